#include "net/identity/certificates.hpp"

#include <fcntl.h>
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>
#include <utility>

#include "config/files.hpp"

namespace ordermoe::net {

namespace {

namespace fs = std::filesystem;

template <auto free>
struct freed {
  template <class T>
  void operator()(T* value) const {
    free(value);
  }
};
using key_ptr = std::unique_ptr<EVP_PKEY, freed<EVP_PKEY_free>>;
using certificate_ptr = std::unique_ptr<X509, freed<X509_free>>;
using bio_ptr = std::unique_ptr<BIO, freed<BIO_free_all>>;
using number_ptr = std::unique_ptr<BIGNUM, freed<BN_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freed<X509_EXTENSION_free>>;
using names_ptr = std::unique_ptr<GENERAL_NAMES, freed<GENERAL_NAMES_free>>;

constexpr std::string_view scheme = "ordermoe://";

/// What OpenSSL says of its latest failure.
std::string reason() {
  std::array<char, 256> text{};
  const auto code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

error failed(std::string_view what) {
  return {errc::failed, fmt::format("{}: {}", what, reason())};
}

std::string text_of(BIO* from) {
  char* data = nullptr;
  const auto size = BIO_get_mem_data(from, &data);
  return {data, static_cast<std::size_t>(size)};
}

bio_ptr new_text() {
  return bio_ptr(BIO_new(BIO_s_mem()));
}

bio_ptr text_from(const std::string& bytes) {
  return bio_ptr(BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size())));
}

// -------------------------------------------------------------------------------------------- files

/// A file that was not there before; `mode`: who may read it.
result<void> write_new(const fs::path& path, const std::string& bytes, mode_t mode) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (file < 0)
    return error{
        errno == EEXIST ? errc::usage : errc::io,
        errno == EEXIST
            ? fmt::format("{}: is there already and is not replaced; remove it first, or "
                          "choose another name",
                          path.string())
            : fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno))};
  std::size_t written = 0;
  int problem = ::fchmod(file, mode) == 0 ? 0 : errno;
  while (problem == 0 && written < bytes.size()) {
    const auto n = ::write(file, bytes.data() + written, bytes.size() - written);
    if (n >= 0)
      written += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      problem = errno;
  }
  if (problem == 0 && ::fsync(file) != 0) problem = errno;
  ::close(file);
  if (problem == 0) return {};
  ::unlink(path.c_str());
  return error{errc::io,
               fmt::format("{}: cannot be written: {}", path.string(), std::strerror(problem))};
}

/// The key and then the certificate, or neither.
result<void> write_pair(const fs::path& folder, const std::string& name, const std::string& key,
                        const std::string& certificate) {
  const auto key_file = folder / (name + ".key");
  if (auto written = write_new(key_file, key, 0600); !written) return written;
  auto written = write_new(folder / (name + ".crt"), certificate, 0644);
  if (!written) ::unlink(key_file.c_str());
  return written;
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

/// Without a password: nobody is asked for one.
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

// ------------------------------------------------------------------------------------------- making

result<std::string> pem_of(EVP_PKEY* key) {
  const auto out = new_text();
  if (PEM_write_bio_PrivateKey(out.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1)
    return failed("writing a key");
  return text_of(out.get());
}

result<std::string> pem_of(X509* certificate) {
  const auto out = new_text();
  if (PEM_write_bio_X509(out.get(), certificate) != 1) return failed("writing a certificate");
  return text_of(out.get());
}

/// 127 random bits, above 0.
bool set_serial(X509* certificate) {
  const number_ptr serial(BN_new());
  return serial && BN_rand(serial.get(), 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(serial.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_name(X509_NAME* into, const char* part, const std::string& value) {
  return X509_NAME_add_entry_by_txt(into, part, MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(value.data()),
                                    static_cast<int>(value.size()), -1, 0) == 1;
}

bool extend(X509* certificate, X509* issuer, int which, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const extension_ptr made(X509V3_EXT_conf_nid(nullptr, &context, which, value.c_str()));
  return made && X509_add_ext(certificate, made.get(), -1) == 1;
}

/// What both kinds of certificate have: a new key's, valid from five minutes ago, since clocks differ.
struct drafted {
  key_ptr key;
  certificate_ptr certificate;
};
result<drafted> draft(const std::string& cluster, const std::string& name, std::int64_t days) {
  drafted made{key_ptr(EVP_EC_gen("P-256")), certificate_ptr(X509_new())};
  if (!made.key || !made.certificate) return failed("making a key");
  auto* certificate = made.certificate.get();
  auto* subject = X509_get_subject_name(certificate);
  if (X509_set_version(certificate, X509_VERSION_3) != 1 || !set_serial(certificate) ||
      X509_gmtime_adj(X509_getm_notBefore(certificate), -300) == nullptr ||
      X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(days), 0, nullptr) ==
          nullptr ||
      X509_set_pubkey(certificate, made.key.get()) != 1 || !set_name(subject, "O", cluster) ||
      !set_name(subject, "CN", name))
    return failed("making a certificate");
  return made;
}

result<void> check_days(std::int64_t days) {
  if (days >= 1 && days <= 36'500) return {};
  return error{errc::usage, fmt::format("days: found {}, expected 1 to 36500", days)};
}

bool is_address(const std::string& host) {
  return host.find(':') != std::string::npos ||
         host.find_first_not_of("0123456789.") == std::string::npos;
}

/// OpenSSL reads alternative names as a list of kind:value; a comma in one would begin another.
result<std::string> alternative_names(const std::string& uri,
                                      const std::vector<std::string>& hosts) {
  auto names = "URI:" + uri;
  for (const auto& host : hosts) {
    if (host.empty() || host.size() > 253 ||
        host.find_first_not_of(
            "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:-") !=
            std::string::npos)
      return error{errc::usage,
                   fmt::format("host: found '{}', expected a DNS name or an address", host)};
    names += fmt::format(",{}:{}", is_address(host) ? "IP" : "DNS", host);
  }
  return names;
}

// ------------------------------------------------------------------------------------------ reading

std::string hex(const unsigned char* bytes, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

std::string line_of(const X509_NAME* name) {
  const auto out = new_text();
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253);
  return text_of(out.get());
}

std::int64_t seconds_of(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return 0;
  return static_cast<std::int64_t>(::timegm(&parts));
}

std::string string_of(const ASN1_STRING* text) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
          static_cast<std::size_t>(ASN1_STRING_length(text))};
}

std::string address_of(const ASN1_OCTET_STRING* bytes) {
  const auto* data = ASN1_STRING_get0_data(bytes);
  const auto size = static_cast<std::size_t>(ASN1_STRING_length(bytes));
  if (size == 4) return fmt::format("{}.{}.{}.{}", data[0], data[1], data[2], data[3]);
  std::string text;
  for (std::size_t i = 0; i + 1 < size; i += 2)
    text += fmt::format("{}{:x}", i == 0 ? "" : ":", data[i] * 256 + data[i + 1]);
  return text;
}

/// The alternative names: our URI, and hosts.
void read_names(X509* certificate, certificate_facts& facts) {
  const names_ptr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const auto* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) {
      const auto uri = string_of(name->d.uniformResourceIdentifier);
      if (uri.starts_with(scheme) && facts.uri.empty()) facts.uri = uri;
    } else if (name->type == GEN_DNS) {
      facts.hosts.push_back(string_of(name->d.dNSName));
    } else if (name->type == GEN_IPADD) {
      facts.hosts.push_back(address_of(name->d.iPAddress));
    }
  }
}

result<certificate_facts> facts_of(X509* certificate) {
  certificate_facts facts;
  facts.subject = line_of(X509_get_subject_name(certificate));
  facts.issuer = line_of(X509_get_issuer_name(certificate));
  const auto* serial = X509_get0_serialNumber(certificate);
  facts.serial =
      hex(ASN1_STRING_get0_data(serial), static_cast<std::size_t>(ASN1_STRING_length(serial)));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (X509_digest(certificate, EVP_sha256(), digest.data(), &size) != 1)
    return failed("digesting a certificate");
  facts.fingerprint = hex(digest.data(), size);
  facts.not_before_s = seconds_of(X509_get0_notBefore(certificate));
  facts.not_after_s = seconds_of(X509_get0_notAfter(certificate));
  facts.is_authority = X509_check_ca(certificate) > 0;
  read_names(certificate, facts);
  return facts;
}

result<void> check_owner_alone(const fs::path& key) {
  struct stat found {};
  if (::stat(key.c_str(), &found) != 0)
    return error{errc::io,
                 fmt::format("{}: cannot be read: {}", key.string(), std::strerror(errno))};
  if ((found.st_mode & 077) == 0) return {};
  return error{
      errc::mismatch,
      fmt::format("{}: found mode {:o}, expected a key that its owner alone can read: chmod "
                  "600",
                  key.string(), found.st_mode & 0777)};
}

}  // namespace

// -------------------------------------------------------------------------------------------- names

namespace {
constexpr std::array<const char*, 4> role_names{"node", "viewer", "operator", "admin"};
}

const char* to_string(role of) {
  return role_names[static_cast<std::size_t>(of)];
}

result<role> parse_role(std::string_view name) {
  for (std::size_t i = 0; i < role_names.size(); ++i)
    if (name == role_names[i]) return static_cast<role>(i);
  return error{errc::usage,
               fmt::format("role: found '{}', expected node, viewer, operator or admin", name)};
}

std::string uri_of(const certificate_name& who) {
  return fmt::format("{}{}/{}/{}", scheme, who.cluster, to_string(who.of), who.name);
}

result<certificate_name> parse_uri(std::string_view uri) {
  const auto refused = [&] {
    return error{errc::malformed,
                 fmt::format("URI: found '{}', expected {}CLUSTER/ROLE/NAME", uri, scheme)};
  };
  if (!uri.starts_with(scheme)) return refused();
  const auto rest = uri.substr(scheme.size());
  const auto first = rest.find('/');
  const auto second = first == std::string_view::npos ? first : rest.find('/', first + 1);
  if (second == std::string_view::npos) return refused();
  certificate_name found;
  found.cluster = rest.substr(0, first);
  found.name = rest.substr(second + 1);
  const auto of = parse_role(rest.substr(first + 1, second - first - 1));
  if (!of || !check_name("cluster", found.cluster) || !check_name("name", found.name))
    return refused();
  found.of = *of;
  return found;
}

result<void> check_name(std::string_view what, std::string_view name) {
  constexpr std::string_view letters = "abcdefghijklmnopqrstuvwxyz0123456789";
  const bool good = !name.empty() && name.size() <= 63 &&
                    letters.find(name.front()) != std::string_view::npos &&
                    std::ranges::all_of(name, [&](char c) {
                      return letters.find(c) != std::string_view::npos || c == '-' || c == '.';
                    });
  if (good) return {};
  return error{
      errc::usage,
      fmt::format("{}: found '{}', expected at most 63 lower-case letters, digits, hyphens "
                  "and dots, a letter or digit first",
                  what, name)};
}

// ------------------------------------------------------------------------------------------- making

result<void> make_authority(const fs::path& folder, const std::string& cluster, std::int64_t days) {
  if (auto good = check_name("cluster", cluster); !good) return good;
  if (auto good = check_days(days); !good) return good;
  std::error_code status;
  fs::create_directories(folder, status);
  if (status)
    return error{errc::io,
                 fmt::format("{}: cannot be made: {}", folder.string(), status.message())};
  auto made = draft(cluster, "OrderMoE authority", days);
  if (!made) return made.error();
  auto* certificate = made->certificate.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1 ||
      !extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !extend(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !extend(certificate, certificate, NID_subject_key_identifier, "hash") ||
      X509_sign(certificate, made->key.get(), EVP_sha256()) == 0)
    return failed("signing the authority's certificate");
  const auto key = pem_of(made->key.get());
  const auto text = pem_of(certificate);
  if (!key) return key.error();
  if (!text) return text.error();
  return write_pair(folder, "ca", *key, *text);
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

result<drafted> signed_by(X509* authority, EVP_PKEY* authority_key, const std::string& cluster,
                          const certificate_request& wanted) {
  const auto names = alternative_names(uri_of({cluster, wanted.of, wanted.name}), wanted.hosts);
  if (!names) return names.error();
  auto made = draft(cluster, wanted.name, wanted.days);
  if (!made) return made.error();
  auto* certificate = made->certificate.get();
  const char* uses = wanted.of == role::node ? "serverAuth,clientAuth" : "clientAuth";
  if (X509_set_issuer_name(certificate, X509_get_subject_name(authority)) != 1 ||
      !extend(certificate, authority, NID_basic_constraints, "critical,CA:FALSE") ||
      !extend(certificate, authority, NID_key_usage, "critical,digitalSignature") ||
      !extend(certificate, authority, NID_ext_key_usage, uses) ||
      !extend(certificate, authority, NID_subject_alt_name, *names) ||
      !extend(certificate, authority, NID_subject_key_identifier, "hash") ||
      !extend(certificate, authority, NID_authority_key_identifier, "keyid:always") ||
      X509_sign(certificate, authority_key, EVP_sha256()) == 0)
    return failed(fmt::format("making the certificate of {}", wanted.name));
  return made;
}

}  // namespace

result<void> issue(const fs::path& folder, const certificate_request& wanted) {
  if (auto good = check_name("name", wanted.name); !good) return good;
  if (wanted.name == "ca")
    return error{errc::usage, "name: found 'ca', expected another: that is the authority"};
  if (auto good = check_days(wanted.days); !good) return good;
  const auto authority = load_certificate(folder / "ca.crt");
  if (!authority) return authority.error();
  const auto key = load_key(folder / "ca.key");
  if (!key) return key.error();
  if (X509_check_private_key(authority->get(), key->get()) != 1) {
    ERR_clear_error();
    return error{errc::mismatch, fmt::format("{}: is not the key of ca.crt beside it",
                                             (folder / "ca.key").string())};
  }
  const auto cluster = cluster_of(authority->get());
  if (!cluster) return at((folder / "ca.crt").string(), cluster.error());
  const auto made = signed_by(authority->get(), key->get(), *cluster, wanted);
  if (!made) return made.error();
  const auto key_text = pem_of(made->key.get());
  const auto text = pem_of(made->certificate.get());
  if (!key_text) return key_text.error();
  if (!text) return text.error();
  return write_pair(folder, wanted.name, *key_text, *text);
}

result<certificate_facts> read_certificate(const fs::path& file) {
  const auto certificate = load_certificate(file);
  if (!certificate) return certificate.error();
  return facts_of(certificate->get());
}

result<certificate_name> check_identity(const fs::path& authority, const fs::path& certificate,
                                        const fs::path& key, std::int64_t now_s) {
  const auto root = load_certificate(authority);
  if (!root) return root.error();
  const auto own = load_certificate(certificate);
  if (!own) return own.error();
  if (auto alone = check_owner_alone(key); !alone) return alone.error();
  const auto secret = load_key(key);
  if (!secret) return secret.error();
  if (X509_check_private_key(own->get(), secret->get()) != 1) {
    ERR_clear_error();
    return error{errc::mismatch,
                 fmt::format("{}: is not the key of {}", key.string(), certificate.string())};
  }
  if (X509_verify(own->get(), X509_get0_pubkey(root->get())) != 1) {
    ERR_clear_error();
    return error{errc::mismatch,
                 fmt::format("{}: is not signed by {}; issue one with that authority",
                             certificate.string(), authority.string())};
  }
  const auto facts = facts_of(own->get());
  if (!facts) return facts.error();
  if (now_s < facts->not_before_s)
    return error{
        errc::mismatch,
        fmt::format("{}: is in force from {:%Y-%m-%d %H:%M} UTC; is this machine's clock right?",
                    certificate.string(), fmt::gmtime(facts->not_before_s))};
  if (now_s > facts->not_after_s)
    return error{errc::mismatch,
                 fmt::format("{}: expired on {:%Y-%m-%d %H:%M} UTC; issue another",
                             certificate.string(), fmt::gmtime(facts->not_after_s))};
  const auto who = parse_uri(facts->uri);
  if (!who) return at(certificate.string(), who.error());
  return *who;
}

}  // namespace ordermoe::net
