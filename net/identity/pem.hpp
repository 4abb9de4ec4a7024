#pragma once

#include <openssl/evp.h>
#include <openssl/x509v3.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "config/error.hpp"

/// OpenSSL's things as values, and as PEM in files. For sources alone: no other header has OpenSSL's.
namespace ordermoe::net {

template <auto free>
struct freed {
  template <class T>
  void operator()(T* value) const {
    free(value);
  }
};
using key_ptr = std::unique_ptr<EVP_PKEY, freed<EVP_PKEY_free>>;
using certificate_ptr = std::unique_ptr<X509, freed<X509_free>>;
using revocations_ptr = std::unique_ptr<X509_CRL, freed<X509_CRL_free>>;
using bio_ptr = std::unique_ptr<BIO, freed<BIO_free_all>>;
using number_ptr = std::unique_ptr<BIGNUM, freed<BN_free>>;
using integer_ptr = std::unique_ptr<ASN1_INTEGER, freed<ASN1_INTEGER_free>>;
using time_ptr = std::unique_ptr<ASN1_TIME, freed<ASN1_TIME_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freed<X509_EXTENSION_free>>;
using names_ptr = std::unique_ptr<GENERAL_NAMES, freed<GENERAL_NAMES_free>>;

/// With what OpenSSL says of its latest failure.
error openssl_failed(std::string_view what);

bio_ptr new_text();
bio_ptr text_from(const std::string& bytes);
std::string text_of(BIO* from);

/// Lower-case hexadecimal.
std::string hex(const unsigned char* bytes, std::size_t size);
std::string hex(const ASN1_INTEGER* number);
/// Seconds since 1970.
std::int64_t seconds_of(const ASN1_TIME* time);

result<certificate_ptr> load_certificate(const std::filesystem::path& path);
/// Without a password: nobody is asked for one.
result<key_ptr> load_key(const std::filesystem::path& path);
result<std::string> pem_of(EVP_PKEY* key);
result<std::string> pem_of(X509* certificate);

/// The authority of a folder, with the key by which it signs.
struct authority {
  certificate_ptr certificate;
  key_ptr key;
  std::string cluster;
};
/// Errors: io, malformed; mismatch where the key is another's.
result<authority> load_authority(const std::filesystem::path& folder);

}  // namespace ordermoe::net
