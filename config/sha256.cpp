#include "config/sha256.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>

#include "config/error.hpp"

namespace ordermoe {

struct sha256::state {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~state() { EVP_MD_CTX_free(context); }
};

sha256::sha256() : state_(std::make_unique<state>()) {
  ORDERMOE_CHECK(
      state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
      "OpenSSL has SHA-256");
}

sha256::~sha256() = default;
sha256::sha256(sha256&&) noexcept = default;
sha256& sha256::operator=(sha256&&) noexcept = default;

void sha256::update(std::string_view bytes) {
  ORDERMOE_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1,
                 "a digest takes bytes until it is finished");
}

std::string sha256::finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int n = 0;
  ORDERMOE_CHECK(EVP_DigestFinal_ex(state_->context, digest, &n) == 1, "a digest is finished once");
  std::string text;
  text.reserve(2 * n);
  for (unsigned int i = 0; i < n; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

bool same_digest(std::string_view left, std::string_view right) {
  return left.size() == right.size() && CRYPTO_memcmp(left.data(), right.data(), left.size()) == 0;
}

}  // namespace ordermoe
