#include "actors/caf_channel/tls_errors.hpp"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <future>

#include "config/error.hpp"

namespace ordermoe::actors {

namespace {

/// This thread is CAF's: what others do with OpenSSL in this process keeps its errors.
thread_local bool is_of_caf = false;

void handshake_went_on(const SSL*, int where, int result) {
  if (is_of_caf && (where & SSL_CB_EXIT) != 0 && result <= 0) ERR_clear_error();
}

/// CAF gives no access to its connections; OpenSSL tells of each that is made and freed.
void made(void* connection, void*, CRYPTO_EX_DATA*, int, long, void*) {
  SSL_set_info_callback(static_cast<SSL*>(connection), handshake_went_on);
  // CAF closes its sockets without a word; that is an end, and no error that others would find.
  SSL_set_options(static_cast<SSL*>(connection), SSL_OP_IGNORE_UNEXPECTED_EOF);
}
void freed(void*, void*, CRYPTO_EX_DATA*, int, long, void*) {
  if (is_of_caf) ERR_clear_error();
}

}  // namespace

void keep_tls_errors_apart(caf::actor_system& of) {
  static const int registered = SSL_get_ex_new_index(0, nullptr, made, nullptr, freed);
  ORDERMOE_CHECK(registered >= 0, "memory for an index of OpenSSL");
  std::promise<void> done;
  of.middleman().backend().post([&done] {
    is_of_caf = true;
    done.set_value();
  });
  done.get_future().wait();
}

}  // namespace ordermoe::actors
