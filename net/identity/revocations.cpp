#include "net/identity/revocations.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>

#include "config/files.hpp"
#include "net/identity/pem.hpp"

namespace ordermoe::net {

namespace {

namespace fs = std::filesystem;

/// 0: it has none, or one that no list of ours has.
std::uint64_t number_of(const X509_CRL* list) {
  const integer_ptr number(
      static_cast<ASN1_INTEGER*>(X509_CRL_get_ext_d2i(list, NID_crl_number, nullptr, nullptr)));
  std::uint64_t value = 0;
  if (!number || ASN1_INTEGER_get_uint64(&value, number.get()) != 1) {
    ERR_clear_error();
    return 0;
  }
  return value;
}

bool set_number(X509_CRL* list, std::uint64_t number) {
  const integer_ptr value(ASN1_INTEGER_new());
  return value && ASN1_INTEGER_set_uint64(value.get(), number) == 1 &&
         X509_CRL_add1_ext_i2d(list, NID_crl_number, value.get(), 0, 0) == 1;
}

bool add_entry(X509_CRL* list, const revoked_certificate& which) {
  BIGNUM* read = nullptr;
  if (BN_hex2bn(&read, which.serial.c_str()) == 0) return false;
  const number_ptr number(read);
  const integer_ptr serial(BN_to_ASN1_INTEGER(number.get(), nullptr));
  const time_ptr since(ASN1_TIME_set(nullptr, static_cast<std::time_t>(which.since_s)));
  auto* entry = X509_REVOKED_new();
  if (!serial || !since || entry == nullptr ||
      X509_REVOKED_set_serialNumber(entry, serial.get()) != 1 ||
      X509_REVOKED_set_revocationDate(entry, since.get()) != 1 ||
      X509_CRL_add0_revoked(list, entry) != 1) {
    X509_REVOKED_free(entry);
    return false;
  }
  return true;
}

/// In force from now until the authority's own end.
result<std::string> signed_list(const authority& by, std::uint64_t number,
                                const std::vector<revoked_certificate>& revoked) {
  const revocations_ptr list(X509_CRL_new());
  const time_ptr now(ASN1_TIME_set(nullptr, std::time(nullptr)));
  auto* issuer = by.certificate.get();
  bool good = list && now && X509_CRL_set_version(list.get(), X509_CRL_VERSION_2) == 1 &&
              X509_CRL_set_issuer_name(list.get(), X509_get_subject_name(issuer)) == 1 &&
              X509_CRL_set1_lastUpdate(list.get(), now.get()) == 1 &&
              X509_CRL_set1_nextUpdate(list.get(), X509_get0_notAfter(issuer)) == 1 &&
              set_number(list.get(), number);
  for (const auto& each : revoked) good = good && add_entry(list.get(), each);
  const auto out = new_text();
  if (!good || X509_CRL_sort(list.get()) != 1 ||
      X509_CRL_sign(list.get(), by.key.get(), EVP_sha256()) == 0 ||
      PEM_write_bio_X509_CRL(out.get(), list.get()) != 1)
    return openssl_failed("signing a list of what is revoked");
  return text_of(out.get());
}

std::vector<revoked_certificate> entries_of(X509_CRL* list) {
  std::vector<revoked_certificate> all;
  auto* entries = X509_CRL_get_REVOKED(list);
  for (int i = 0; i < sk_X509_REVOKED_num(entries); ++i) {
    const auto* each = sk_X509_REVOKED_value(entries, i);
    all.push_back({hex(X509_REVOKED_get0_serialNumber(each)),
                   seconds_of(X509_REVOKED_get0_revocationDate(each))});
  }
  std::ranges::sort(all, {}, &revoked_certificate::serial);
  return all;
}

/// Of this name or serial and in force.
result<std::vector<issued_certificate>> meant(const fs::path& folder, const std::string& wanted,
                                              revoke_which which) {
  auto issued = read_issued(folder);
  if (!issued) return issued.error();
  std::vector<issued_certificate> found;
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (auto& each : *issued)
    if (each.serial == wanted || (each.name == wanted && each.until_s > now))
      found.push_back(std::move(each));
  if (found.empty())
    return error{errc::not_found,
                 fmt::format("found neither a certificate in force of the name '{}' nor one of "
                             "that serial in {}; `ordermoe cert list` has them",
                             wanted, folder.string())};
  if (which == revoke_which::all) return found;
  const auto latest = read_certificate(folder / (found.front().name + ".crt"));
  if (!latest) return latest.error();
  std::erase_if(found,
                [&](const issued_certificate& each) { return each.serial == latest->serial; });
  return found;
}

}  // namespace

bool revocation_list::has(std::string_view serial) const {
  const auto found = std::ranges::lower_bound(
      revoked, serial, {}, [](const auto& each) { return std::string_view(each.serial); });
  return found != revoked.end() && found->serial == serial;
}

result<revocation_list> parse_revocations(const std::string& pem, const fs::path& authority,
                                          std::string_view place) {
  if (pem.size() > most_revocations_bytes)
    return error{errc::out_of_range, fmt::format("{}: found {} bytes, expected at most {}", place,
                                                 pem.size(), most_revocations_bytes)};
  const auto root = load_certificate(authority);
  if (!root) return root.error();
  const revocations_ptr list(
      PEM_read_bio_X509_CRL(text_from(pem).get(), nullptr, nullptr, nullptr));
  if (!list) {
    ERR_clear_error();
    return error{errc::malformed,
                 fmt::format("{}: found no list of revoked certificates, expected one in PEM; "
                             "`ordermoe cert revoke` writes one",
                             place)};
  }
  if (X509_CRL_verify(list.get(), X509_get0_pubkey(root->get())) != 1) {
    ERR_clear_error();
    return error{errc::mismatch, fmt::format("{}: is not signed by {}; it is not believed", place,
                                             authority.string())};
  }
  revocation_list read;
  read.number = number_of(list.get());
  if (read.number == 0)
    return error{errc::malformed,
                 fmt::format("{}: found no number, expected one above 0; sign it with `ordermoe "
                             "cert revoke`",
                             place)};
  read.issued_s = seconds_of(X509_CRL_get0_lastUpdate(list.get()));
  read.revoked = entries_of(list.get());
  read.pem = pem;
  return read;
}

result<std::optional<revocation_list>> read_revocations(const fs::path& file,
                                                        const fs::path& authority) {
  const auto text = read_file(file, most_revocations_bytes + 1);
  if (!text && text.error().code == errc::not_found) return std::optional<revocation_list>();
  if (!text) return text.error();
  auto read = parse_revocations(*text, authority, file.string());
  if (!read) return read.error();
  return std::optional(std::move(*read));
}

namespace {

/// Whoever else revokes in this folder meanwhile waits.
class alone_in {
 public:
  explicit alone_in(const fs::path& folder)
      : folder_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    while (folder_ >= 0 && ::flock(folder_, LOCK_EX) != 0 && errno == EINTR) {
    }
  }
  ~alone_in() {
    if (folder_ >= 0) ::close(folder_);
  }
  alone_in(const alone_in&) = delete;
  alone_in& operator=(const alone_in&) = delete;

 private:
  int folder_;
};

}  // namespace

result<std::vector<issued_certificate>> revoke(const fs::path& folder,
                                               const std::string& name_or_serial,
                                               revoke_which which) {
  const auto by = load_authority(folder);
  if (!by) return by.error();
  const alone_in here(folder);
  const auto place = folder / revocations_file;
  auto before = read_revocations(place, folder / "ca.crt");
  if (!before) return before.error();
  auto wanted = meant(folder, name_or_serial, which);
  if (!wanted) return wanted.error();
  auto list = before->value_or(revocation_list{});
  std::erase_if(*wanted, [&](const issued_certificate& each) { return list.has(each.serial); });
  if (wanted->empty())
    return error{errc::usage, fmt::format("{}: nothing is left to revoke: {}", name_or_serial,
                                          which == revoke_which::all
                                              ? "all of it was revoked before"
                                              : "of its certificates only the latest is in force")};
  const auto now = static_cast<std::int64_t>(std::time(nullptr));
  for (const auto& each : *wanted) list.revoked.push_back({each.serial, now});
  const auto text = signed_list(*by, list.number + 1, list.revoked);
  if (!text) return text.error();
  if (auto written = write_file(place, *text); !written) return written.error();
  return std::move(*wanted);
}

}  // namespace ordermoe::net
