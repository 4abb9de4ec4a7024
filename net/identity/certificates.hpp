#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Who may speak in a cluster: a certificate authority of its own, and certificates that say a name and a role in
/// their URI, ordermoe://CLUSTER/ROLE/NAME. Nobody else's certificates count.
///
/// A folder holds ca.crt and ca.key, and for each name NAME.crt and NAME.key. Keys are on the curve P-256, and only their
/// owner can read their files. ca.key is needed to issue, renew and revoke and nowhere else: it stays with the operator, and
/// so does `issued`, the list of what was issued (issued.hpp). ca.crl is what was revoked (revocations.hpp).
namespace ordermoe::net {

/// What the holder of a certificate is: a server, or somebody at a console who may look, drain and resume, or everything.
enum class role : std::uint8_t { node, viewer, operate, admin };
const char* to_string(role of);
/// Error: usage, naming what is allowed.
result<role> parse_role(std::string_view name);

struct certificate_name {
  std::string cluster;
  role of = role::node;
  std::string name;
  friend bool operator==(const certificate_name&, const certificate_name&) = default;
};
/// "ordermoe://edge8/node/berlin"
std::string uri_of(const certificate_name& who);
/// Error: malformed.
result<certificate_name> parse_uri(std::string_view uri);

/// Lower-case letters, digits, hyphens and dots, at most 63, a letter or digit first. Error: usage.
result<void> check_name(std::string_view what, std::string_view name);

/// Makes a new authority in the folder, which is made too. Error: io; usage where there is one already.
result<void> make_authority(const std::filesystem::path& folder, const std::string& cluster,
                            std::int64_t days);

struct certificate_request {
  role of = role::node;
  std::string name;
  std::vector<std::string> hosts;  ///< DNS names and addresses, for what checks those.
  std::int64_t days = 365;
};
/// Makes NAME.key and NAME.crt, signed by the folder's authority. Error: io, malformed; usage where the name has a
/// certificate already.
result<void> issue(const std::filesystem::path& folder, const certificate_request& wanted);

struct renewal {
  std::int64_t days = 365;
  bool keeps_key = false;  ///< The new certificate is of the same key; else of a new one.
};
/// Whoever has a certificate that lasts less is warned.
inline constexpr std::int64_t expires_soon_s = std::int64_t{30} * 86'400;

struct certificate_facts {
  std::string uri;  ///< Empty: none of ours.
  std::string subject, issuer;
  std::string serial;       ///< Lower-case hexadecimal.
  std::string fingerprint;  ///< SHA-256 of the certificate, lower-case hexadecimal.
  std::int64_t not_before_s = 0, not_after_s = 0;  ///< Seconds since 1970.
  bool is_authority = false;
  std::vector<std::string> hosts;
};
/// Another certificate for the same name, role and hosts in the place of NAME.crt (and of NAME.key), each file in one
/// step. Gives what was there before, which stays good until it expires or is revoked (revocations.hpp). Errors:
/// not_found where there is none yet; io, malformed; mismatch where it is of another cluster or name.
result<certificate_facts> renew(const std::filesystem::path& folder, const std::string& name,
                                const renewal& wanted);

/// Of a file in PEM. Error: io, malformed.
result<certificate_facts> read_certificate(const std::filesystem::path& file);

/// That nobody but its owner can read a file of keys. Errors: io where that cannot be told, mismatch where others can.
result<void> check_owner_alone(const std::filesystem::path& key);

/// That the certificate is signed by the authority and in force at this time, that the key is its own and readable by
/// its owner alone, and what name it gives. Error: io, malformed, mismatch; the message says which file and what to do.
result<certificate_name> check_identity(const std::filesystem::path& authority,
                                        const std::filesystem::path& certificate,
                                        const std::filesystem::path& key, std::int64_t now_s);

}  // namespace ordermoe::net
