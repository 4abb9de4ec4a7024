#pragma once

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "net/channel/tls.hpp"

/// Certificates of a cluster "edge8" in a scratch folder, and such that no authority of ours would issue.
namespace ordermoe::test {

/// What `sign` puts into a certificate.
struct odd_certificate {
  std::string name;                     ///< Of its files.
  std::string uri;                      ///< Empty: no alternative names.
  long from_s = -3600, until_s = 3600;  ///< From now.
  std::string uses = "serverAuth,clientAuth";
};

class credentials {
 public:
  explicit credentials(const char* called)
      : folder_(std::filesystem::temp_directory_path() /
                ("ordermoe-" + std::string(called) + "-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(folder_);
    BOOST_REQUIRE(net::make_authority(folder_, "edge8", 10).has_value());
  }
  ~credentials() { std::filesystem::remove_all(folder_); }
  credentials(const credentials&) = delete;
  credentials& operator=(const credentials&) = delete;

  std::filesystem::path file(const std::string& name) const { return folder_ / name; }

  /// Issued where there is none yet.
  std::shared_ptr<const net::tls_identity> identity(const std::string& name,
                                                    net::role of = net::role::node) const {
    if (!std::filesystem::exists(file(name + ".crt")))
      BOOST_REQUIRE(net::issue(folder_, {of, name, {}, 10}).has_value());
    auto loaded = net::tls_identity::load(file("ca.crt"), file(name + ".crt"), file(name + ".key"));
    BOOST_REQUIRE(loaded.has_value());
    return *loaded;
  }

  /// Of this authority, with the authority's own hand.
  void sign(const odd_certificate& wanted) const {
    auto* authority = PEM_read_bio_X509(open("ca.crt", "r").get(), nullptr, nullptr, nullptr);
    auto* by = PEM_read_bio_PrivateKey(open("ca.key", "r").get(), nullptr, nullptr, nullptr);
    auto* key = EVP_EC_gen("P-256");
    auto* made = X509_new();
    X509_set_version(made, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(made),
                     1 + static_cast<long>(std::hash<std::string>{}(wanted.name) >> 2));
    X509_gmtime_adj(X509_getm_notBefore(made), wanted.from_s);
    X509_gmtime_adj(X509_getm_notAfter(made), wanted.until_s);
    X509_set_pubkey(made, key);
    X509_set_issuer_name(made, X509_get_subject_name(authority));
    extend(made, authority, NID_basic_constraints, "critical,CA:FALSE");
    extend(made, authority, NID_ext_key_usage, wanted.uses);
    if (!wanted.uri.empty()) extend(made, authority, NID_subject_alt_name, wanted.uri);
    BOOST_REQUIRE(X509_sign(made, by, EVP_sha256()) > 0);
    BOOST_REQUIRE(PEM_write_bio_X509(open(wanted.name + ".crt", "w").get(), made) == 1);
    BOOST_REQUIRE(PEM_write_bio_PrivateKey(open(wanted.name + ".key", "w").get(), key, nullptr,
                                           nullptr, 0, nullptr, nullptr) == 1);
    std::filesystem::permissions(
        file(wanted.name + ".key"),
        std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    X509_free(made);
    EVP_PKEY_free(key);
    EVP_PKEY_free(by);
    X509_free(authority);
  }

 private:
  struct closed {
    void operator()(BIO* file) const { BIO_free(file); }
  };
  std::unique_ptr<BIO, closed> open(const std::string& name, const char* mode) const {
    std::unique_ptr<BIO, closed> opened(BIO_new_file(file(name).c_str(), mode));
    BOOST_REQUIRE(opened != nullptr);
    return opened;
  }
  static void extend(X509* certificate, X509* issuer, int which, const std::string& value) {
    X509V3_CTX context;
    X509V3_set_ctx_nodb(&context);
    X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
    auto* made = X509V3_EXT_conf_nid(nullptr, &context, which, value.c_str());
    BOOST_REQUIRE(made != nullptr && X509_add_ext(certificate, made, -1) == 1);
    X509_EXTENSION_free(made);
  }

  std::filesystem::path folder_;
};

}  // namespace ordermoe::test
