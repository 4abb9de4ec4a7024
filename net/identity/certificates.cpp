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
#include "config/write_all.hpp"
#include "net/identity/issued.hpp"
#include "net/identity/pem.hpp"

namespace ordermoe::net {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view scheme = "ordermoe://";

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
  int problem = ::fchmod(file, mode) == 0 ? 0 : errno;
  if (problem == 0 && !write_all(file, bytes)) problem = errno;
  if (problem == 0 && ::fsync(file) != 0) problem = errno;
  ::close(file);
  if (problem == 0) return {};
  ::unlink(path.c_str());
  return error{errc::io,
               fmt::format("{}: cannot be written: {}", path.string(), std::strerror(problem))};
}

/// Whether write_pair would find files of that name.
result<void> check_new(const fs::path& folder, const std::string& name) {
  for (const auto* suffix : {".key", ".crt"}) {
    const auto path = folder / (name + suffix);
    std::error_code failed;
    if (fs::exists(path, failed))
      return error{errc::usage, fmt::format("{}: is there already", path.string())};
  }
  return {};
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

/// In one step; nobody else can read it at any time.
result<void> replace_key(const fs::path& path, const std::string& key) {
  std::error_code failed;
  if (!fs::exists(path, failed)) return write_new(path, key, 0600);
  // A file keeps its mode.
  if (::chmod(path.c_str(), 0600) != 0)
    return error{errc::io,
                 fmt::format("{}: cannot be replaced: {}", path.string(), std::strerror(errno))};
  return write_file(path, key);
}

// ------------------------------------------------------------------------------------------- making

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

/// What both kinds of certificate have: valid from five minutes ago, since clocks differ.
struct drafted {
  key_ptr key;
  certificate_ptr certificate;
};
key_ptr new_key() {
  return key_ptr(EVP_EC_gen("P-256"));
}

result<drafted> draft(key_ptr key, const std::string& cluster, const std::string& name,
                      std::int64_t days) {
  drafted made{std::move(key), certificate_ptr(X509_new())};
  if (!made.key || !made.certificate) return openssl_failed("making a key");
  auto* certificate = made.certificate.get();
  auto* subject = X509_get_subject_name(certificate);
  if (X509_set_version(certificate, X509_VERSION_3) != 1 || !set_serial(certificate) ||
      X509_gmtime_adj(X509_getm_notBefore(certificate), -300) == nullptr ||
      X509_time_adj_ex(X509_getm_notAfter(certificate), static_cast<int>(days), 0, nullptr) ==
          nullptr ||
      X509_set_pubkey(certificate, made.key.get()) != 1 || !set_name(subject, "O", cluster) ||
      !set_name(subject, "CN", name))
    return openssl_failed("making a certificate");
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

std::string line_of(const X509_NAME* name) {
  const auto out = new_text();
  X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253);
  return text_of(out.get());
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
  facts.serial = hex(X509_get0_serialNumber(certificate));
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (X509_digest(certificate, EVP_sha256(), digest.data(), &size) != 1)
    return openssl_failed("digesting a certificate");
  facts.fingerprint = hex(digest.data(), size);
  facts.not_before_s = seconds_of(X509_get0_notBefore(certificate));
  facts.not_after_s = seconds_of(X509_get0_notAfter(certificate));
  facts.is_authority = X509_check_ca(certificate) > 0;
  read_names(certificate, facts);
  return facts;
}

}  // namespace

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
  auto made = draft(new_key(), cluster, "OrderMoE authority", days);
  if (!made) return made.error();
  auto* certificate = made->certificate.get();
  if (X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) != 1 ||
      !extend(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !extend(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !extend(certificate, certificate, NID_subject_key_identifier, "hash") ||
      X509_sign(certificate, made->key.get(), EVP_sha256()) == 0)
    return openssl_failed("signing the authority's certificate");
  const auto key = pem_of(made->key.get());
  const auto text = pem_of(certificate);
  if (!key) return key.error();
  if (!text) return text.error();
  return write_pair(folder, "ca", *key, *text);
}

namespace {

result<drafted> signed_by(const authority& by, key_ptr key, const certificate_request& wanted) {
  const auto names = alternative_names(uri_of({by.cluster, wanted.of, wanted.name}), wanted.hosts);
  if (!names) return names.error();
  auto made = draft(std::move(key), by.cluster, wanted.name, wanted.days);
  if (!made) return made.error();
  auto* certificate = made->certificate.get();
  auto* issuer = by.certificate.get();
  const char* uses = wanted.of == role::node ? "serverAuth,clientAuth" : "clientAuth";
  if (X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) != 1 ||
      !extend(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") ||
      !extend(certificate, issuer, NID_key_usage, "critical,digitalSignature") ||
      !extend(certificate, issuer, NID_ext_key_usage, uses) ||
      !extend(certificate, issuer, NID_subject_alt_name, *names) ||
      !extend(certificate, issuer, NID_subject_key_identifier, "hash") ||
      !extend(certificate, issuer, NID_authority_key_identifier, "keyid:always") ||
      X509_sign(certificate, by.key.get(), EVP_sha256()) == 0)
    return openssl_failed(fmt::format("making the certificate of {}", wanted.name));
  return made;
}

result<void> check_request(const certificate_request& wanted) {
  if (auto good = check_name("name", wanted.name); !good) return good;
  if (wanted.name == "ca")
    return error{errc::usage, "name: found 'ca', expected another: that is the authority"};
  return check_days(wanted.days);
}

/// In the folder's list before there is a certificate: what is listed and does not exist harms nobody.
result<void> list_as_issued(const fs::path& folder, X509* certificate,
                            const certificate_request& wanted) {
  return add_issued(folder, {hex(X509_get0_serialNumber(certificate)), wanted.of, wanted.name,
                             seconds_of(X509_get0_notAfter(certificate))});
}

}  // namespace

result<void> issue(const fs::path& folder, const certificate_request& wanted) {
  if (auto good = check_request(wanted); !good) return good;
  const auto by = load_authority(folder);
  if (!by) return by.error();
  if (auto is_new = check_new(folder, wanted.name); !is_new) return is_new;
  const auto made = signed_by(*by, new_key(), wanted);
  if (!made) return made.error();
  const auto key_text = pem_of(made->key.get());
  const auto text = pem_of(made->certificate.get());
  if (!key_text) return key_text.error();
  if (!text) return text.error();
  if (auto listed = list_as_issued(folder, made->certificate.get(), wanted); !listed) return listed;
  return write_pair(folder, wanted.name, *key_text, *text);
}

result<certificate_facts> renew(const fs::path& folder, const std::string& name,
                                const renewal& wanted) {
  const auto place = folder / (name + ".crt");
  certificate_request request{role::node, name, {}, wanted.days};
  if (auto good = check_request(request); !good) return good.error();
  auto before = read_certificate(place);
  if (!before && before.error().code == errc::not_found)
    return error{errc::not_found,
                 fmt::format("{}: there is none to renew; make the first with `ordermoe cert "
                             "issue {} --dir {}`",
                             place.string(), name, folder.string())};
  if (!before) return before.error();
  const auto by = load_authority(folder);
  if (!by) return by.error();
  const auto who = parse_uri(before->uri);
  if (!who) return at(place.string(), who.error());
  if (who->cluster != by->cluster || who->name != name)
    return error{errc::mismatch,
                 fmt::format("{}: is of {}, expected {} of cluster {}; name the right folder",
                             place.string(), before->uri, name, by->cluster)};
  request.of = who->of;
  request.hosts = before->hosts;
  auto key = wanted.keeps_key ? load_key(folder / (name + ".key")) : new_key();
  if (!key) return key.error();
  const auto made = signed_by(*by, std::move(*key), request);
  if (!made) return made.error();
  const auto key_text = pem_of(made->key.get());
  const auto text = pem_of(made->certificate.get());
  if (!key_text) return key_text.error();
  if (!text) return text.error();
  if (auto listed = list_as_issued(folder, made->certificate.get(), request); !listed)
    return listed.error();
  // Whoever reads between the two finds a pair that does not fit, and looks again.
  if (!wanted.keeps_key)
    if (auto written = replace_key(folder / (name + ".key"), *key_text); !written)
      return written.error();
  if (auto written = write_file(place, *text); !written) return written.error();
  return before;
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
