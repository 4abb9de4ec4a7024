#include "net/channel/tls.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>
#include <vector>

#include "net/identity/pem.hpp"

namespace ordermoe::net {

namespace {

/// Each with its length before it, as ALPN has them.
constexpr std::string_view fast_protocol = "\x0fordermoe-fast/1";
constexpr std::string_view bulk_protocol = "\x0fordermoe-bulk/1";
constexpr std::string_view join_protocol = "\x0fordermoe-join/1";

std::string_view protocol_of(stream which, dial_purpose what_for) {
  if (what_for == dial_purpose::joining) return join_protocol;
  return which == stream::fast ? fast_protocol : bulk_protocol;
}

std::string reason() {
  std::array<char, 256> text{};
  const auto code = ERR_peek_last_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  const auto* words = ERR_reason_error_string(code);
  if (words != nullptr) return words;
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

/// The protocol of ours that the client offers; none: the handshake fails.
int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                    const unsigned char* offered, unsigned int offered_size, void*) {
  const std::string_view all(reinterpret_cast<const char*>(offered), offered_size);
  for (std::size_t at = 0; at < all.size();) {
    const auto size = static_cast<std::size_t>(static_cast<unsigned char>(all[at])) + 1;
    const auto one = all.substr(at, size);
    if (one == fast_protocol || one == bulk_protocol || one == join_protocol) {
      *chosen = offered + at + 1;
      *chosen_size = static_cast<unsigned char>(size - 1);
      return SSL_TLSEXT_ERR_OK;
    }
    at += size;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

/// The one URI of ours in a certificate.
result<certificate_name> name_in(X509* certificate) {
  auto* names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::vector<certificate_name> ours;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names); ++i) {
    const auto* each = sk_GENERAL_NAME_value(names, i);
    if (each->type != GEN_URI) continue;
    const auto* text = each->d.uniformResourceIdentifier;
    auto name = parse_uri({reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                           static_cast<std::size_t>(ASN1_STRING_length(text))});
    if (name) ours.push_back(std::move(*name));
  }
  GENERAL_NAMES_free(names);
  if (ours.empty()) return error{errc::malformed, "its certificate has no name of ours"};
  if (ours.size() > 1)
    return error{errc::malformed,
                 fmt::format("its certificate has more than one name of ours: {} and {}",
                             uri_of(ours[0]), uri_of(ours[1]))};
  return std::move(ours.front());
}

bool use(SSL_CTX* context, const std::filesystem::path& authority,
         const std::filesystem::path& certificate, const std::filesystem::path& key) {
  return SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
         SSL_CTX_load_verify_locations(context, authority.c_str(), nullptr) == 1 &&
         SSL_CTX_use_certificate_file(context, certificate.c_str(), SSL_FILETYPE_PEM) == 1 &&
         SSL_CTX_use_PrivateKey_file(context, key.c_str(), SSL_FILETYPE_PEM) == 1 &&
         SSL_CTX_check_private_key(context) == 1;
}

/// What OpenSSL reads and writes, in our own memory.
BIO_METHOD* wire_method() {
  static BIO_METHOD* const method = [] {
    auto* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "ordermoe wire");
    BIO_meth_set_create(made, [](BIO* self) {
      BIO_set_init(self, 1);
      return 1;
    });
    BIO_meth_set_read(made, [](BIO* self, char* into, int most) {
      auto& wire = *static_cast<tls_wire*>(BIO_get_data(self));
      BIO_clear_retry_flags(self);
      const auto n = std::min<std::size_t>(wire.in.size(), static_cast<std::size_t>(most));
      if (n == 0) {
        BIO_set_retry_read(self);
        return -1;
      }
      std::memcpy(into, wire.in.data(), n);
      wire.in.remove_prefix(n);
      return static_cast<int>(n);
    });
    BIO_meth_set_write(made, [](BIO* self, const char* bytes, int size) {
      static_cast<tls_wire*>(BIO_get_data(self))->out.append(bytes, static_cast<std::size_t>(size));
      return size;
    });
    BIO_meth_set_ctrl(made, [](BIO*, int command, long, void*) -> long {
      return command == BIO_CTRL_FLUSH ? 1 : 0;
    });
    return made;
  }();
  return method;
}

}  // namespace

namespace {

/// Of the files and of what was known before, the one with the largest number.
result<revocation_list> newest_revocations(const identity_files& files,
                                           const tls_identity* before) {
  auto newest = before != nullptr ? before->revocations() : revocation_list{};
  for (const auto* each : {&files.revocations, &files.kept_revocations}) {
    if (each->empty()) continue;
    auto read = read_revocations(*each, files.authority);
    if (!read) return read.error();
    if (*read && (*read)->number > newest.number) newest = std::move(**read);
  }
  return newest;
}

}  // namespace

tls_identity::~tls_identity() {
  SSL_CTX_free(context_);
}

std::shared_ptr<const tls_identity> tls_identity::with(revocation_list revocations) const {
  auto made = std::shared_ptr<tls_identity>(new tls_identity);
  SSL_CTX_up_ref(context_);
  made->context_ = context_;
  made->name_ = name_;
  made->facts_ = facts_;
  made->files_ = files_;
  made->revocations_ = std::move(revocations);
  return made;
}

result<std::shared_ptr<const tls_identity>> tls_identity::load(
    const std::filesystem::path& authority, const std::filesystem::path& certificate,
    const std::filesystem::path& key) {
  return load({authority, certificate, key, authority.parent_path() / revocations_file, {}});
}

result<std::shared_ptr<const tls_identity>> tls_identity::load(const identity_files& files,
                                                               const tls_identity* before) {
  const auto& [authority, certificate, key, revocations, kept] = files;
  auto name = check_identity(authority, certificate, key, std::time(nullptr));
  if (!name) return name.error();
  auto facts = read_certificate(certificate);
  if (!facts) return facts.error();
  auto newest = newest_revocations(files, before);
  if (!newest) return newest.error();
  auto* context = SSL_CTX_new(TLS_method());
  if (context == nullptr || !use(context, authority, certificate, key)) {
    SSL_CTX_free(context);
    return error{errc::failed,
                 fmt::format("{}: TLS cannot use it with {} and {}: {}", certificate.string(),
                             key.string(), authority.string(), reason())};
  }
  // A session of ours outlives connections; TLS's own resumption would only be a second way in.
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_options(context, SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION | SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  auto made = std::shared_ptr<tls_identity>(new tls_identity);
  made->context_ = context;
  made->name_ = std::move(*name);
  made->facts_ = std::move(*facts);
  made->files_ = files;
  made->revocations_ = std::move(*newest);
  return std::shared_ptr<const tls_identity>(std::move(made));
}

tls_channel::tls_channel(std::shared_ptr<const tls_identity> self)
    : self_(std::move(self)), ssl_(make(true)) {}

tls_channel::tls_channel(std::shared_ptr<const tls_identity> self, stream which,
                         dial_purpose what_for)
    : self_(std::move(self)), ssl_(make(false)), which_(which) {
  const auto protocol = protocol_of(which, what_for);
  SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(protocol.data()),
                      static_cast<unsigned int>(protocol.size()));
  SSL_do_handshake(ssl_);
  ERR_clear_error();
}

ssl_st* tls_channel::make(bool accepted) {
  auto* ssl = SSL_new(self_->context_);
  ORDERMOE_CHECK(ssl != nullptr, "memory for a TLS connection");
  auto* wire = BIO_new(wire_method());
  ORDERMOE_CHECK(wire != nullptr, "memory for a TLS connection");
  BIO_set_data(wire, &wire_);
  SSL_set_bio(ssl, wire, wire);
  accepted ? SSL_set_accept_state(ssl) : SSL_set_connect_state(ssl);
  return ssl;
}

tls_channel::~tls_channel() {
  SSL_free(ssl_);
}

result<void> tls_channel::take(std::string_view wire, std::string& plain) {
  ERR_clear_error();
  // OpenSSL keeps what it has of a record.
  wire_.in = wire;
  if (!established_)
    if (auto done = go_on(); !done || !established_) return done;
  static thread_local std::array<char, 16 * 1024> record;
  for (;;) {
    const auto n = SSL_read(ssl_, record.data(), static_cast<int>(record.size()));
    if (n > 0) {
      plain.append(record.data(), static_cast<std::size_t>(n));
      // Most often that was all: it need not be asked for more.
      if (wire_.in.empty() && SSL_has_pending(ssl_) == 0) return {};
      continue;
    }
    const auto why = SSL_get_error(ssl_, n);
    if (why == SSL_ERROR_WANT_READ) return {};
    if (why == SSL_ERROR_ZERO_RETURN) {
      ended_ = true;
      return {};
    }
    return error{errc::malformed, fmt::format("TLS: {}", reason())};
  }
}

result<void> tls_channel::go_on() {
  const auto done = SSL_do_handshake(ssl_);
  if (done == 1) return establish();
  if (SSL_get_error(ssl_, done) == SSL_ERROR_WANT_READ) return {};
  const auto verified = SSL_get_verify_result(ssl_);
  if (verified != X509_V_OK)
    return error{errc::malformed, fmt::format("TLS: the peer's certificate: {}",
                                              X509_verify_cert_error_string(verified))};
  return error{errc::malformed, fmt::format("TLS: {}", reason())};
}

result<void> tls_channel::establish() {
  const unsigned char* protocol = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_, &protocol, &size);
  const std::string_view chosen(reinterpret_cast<const char*>(protocol), size);
  joins_ = chosen == join_protocol.substr(1);
  if (!joins_ && chosen != fast_protocol.substr(1) && chosen != bulk_protocol.substr(1))
    return error{
        errc::malformed,
        "TLS: the peer speaks no protocol of ours; all nodes and clients of a cluster need "
        "the same channel (asio or caf)"};
  which_ = chosen == bulk_protocol.substr(1) ? stream::bulk : stream::fast;
  auto* certificate = SSL_get1_peer_certificate(ssl_);
  if (certificate == nullptr) return error{errc::malformed, "TLS: the peer has no certificate"};
  auto name = name_in(certificate);
  peer_serial_ = hex(X509_get0_serialNumber(certificate));
  X509_free(certificate);
  if (!name) return name.error();
  if (name->cluster != self_->name().cluster)
    return error{errc::mismatch, fmt::format("its certificate is of cluster {}, expected {}",
                                             name->cluster, self_->name().cluster)};
  peer_ = std::move(*name);
  established_ = true;
  return {};
}

result<void> tls_channel::put(std::string_view plain) {
  ERR_clear_error();
  wire_.in = {};
  while (!plain.empty()) {
    const auto size = static_cast<int>(std::min<std::size_t>(plain.size(), INT_MAX));
    const auto n = SSL_write(ssl_, plain.data(), size);
    if (n <= 0) return error{errc::failed, fmt::format("TLS: {}", reason())};
    plain.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

void tls_channel::take_output(std::string& wire) {
  if (wire.empty())
    wire.swap(wire_.out);
  else
    wire += wire_.out;
  wire_.out.clear();
}

void tls_channel::end() {
  ERR_clear_error();
  wire_.in = {};
  if (established_) SSL_shutdown(ssl_);
  ERR_clear_error();
}

}  // namespace ordermoe::net
