#include "net/identity/pem.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <ctime>

#include "config/files.hpp"
#include "net/identity/certificates.hpp"

namespace ordermoe::net {

namespace fs = std::filesystem;

error openssl_failed(std::string_view what) {
  std::array<char, 256> text{};
  const auto code = ERR_get_error();
  ERR_clear_error();
  if (code != 0) ERR_error_string_n(code, text.data(), text.size());
  return {errc::failed,
          fmt::format("{}: {}", what, code == 0 ? "no reason given" : std::string(text.data()))};
}

bio_ptr new_text() {
  return bio_ptr(BIO_new(BIO_s_mem()));
}

bio_ptr text_from(const std::string& bytes) {
  return bio_ptr(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

std::string text_of(BIO* from) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(from, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string hex(const unsigned char* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

std::string hex(const ASN1_INTEGER* number) {
  return hex(ASN1_STRING_get0_data(number), static_cast<std::size_t>(ASN1_STRING_length(number)));
}

std::int64_t seconds_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (time == nullptr || ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return static_cast<std::int64_t>(::timegm(&parts));
}

result<certificate_ptr> load_certificate(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  certificate_ptr found(PEM_read_bio_X509(text_from(*text).get(), nullptr, nullptr, nullptr));
  if (!found) {
    ERR_clear_error();
    return error{errc::malformed,
                 fmt::format("{}: found no certificate, expected one in PEM", path.string())};
  }
  return found;
}

result<key_ptr> load_key(const fs::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  const auto no_password = [](char*, int, int, void*) { return -1; };
  key_ptr found(PEM_read_bio_PrivateKey(text_from(*text).get(), nullptr, no_password, nullptr));
  if (!found) {
    ERR_clear_error();
    return error{errc::malformed,
                 fmt::format("{}: found no private key, expected one in PEM without a password",
                             path.string())};
  }
  return found;
}

result<std::string> pem_of(EVP_PKEY* key) {
  const auto out = new_text();
  if (PEM_write_bio_PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return openssl_failed("writing a key");
  return text_of(out.get());
}

result<std::string> pem_of(X509* certificate) {
  const auto out = new_text();
  if (PEM_write_bio_X509(out.get(), certificate) != 1)
    return openssl_failed("writing a certificate");
  return text_of(out.get());
}

namespace {

result<std::string> cluster_of(X509* authority) {
  std::array<char, 256> text{};
  const auto n = X509_NAME_get_text_by_NID(X509_get_subject_name(authority), NID_organizationName,
                                           text.data(), static_cast<int>(text.size()));
  const std::string cluster(text.data(), n > 0 ? static_cast<std::size_t>(n) : 0);
  if (!check_name("cluster", cluster))
    return error{errc::malformed,
                 "found no cluster's name in it, expected an authority made by "
                 "`ordermoe cert init`"};
  return cluster;
}

}  // namespace

result<authority> load_authority(const fs::path& folder) {
  auto certificate = load_certificate(folder / "ca.crt");
  if (!certificate) return certificate.error();
  auto key = load_key(folder / "ca.key");
  if (!key) return key.error();
  if (X509_check_private_key(certificate->get(), key->get()) != 1) {
    ERR_clear_error();
    return error{errc::mismatch, fmt::format("{}: is not the key of ca.crt beside it",
                                             (folder / "ca.key").string())};
  }
  auto cluster = cluster_of(certificate->get());
  if (!cluster) return at((folder / "ca.crt").string(), cluster.error());
  return authority{std::move(*certificate), std::move(*key), std::move(*cluster)};
}

}  // namespace ordermoe::net
