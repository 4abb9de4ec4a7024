#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/identity/issued.hpp"

/// Certificates that are not to be believed any more though they have not expired: the authority's certificate revocation
/// list (RFC 5280), ca.crl beside ca.crt. Each list has all that was revoked so far and a larger number than the one
/// before: whoever has seen a number takes no smaller one. A list stays in force until there is a newer one, whatever its
/// next update says: a cluster does not stop because nobody signed.
namespace ordermoe::net {

struct revoked_certificate {
  std::string serial;        ///< Lower-case hexadecimal.
  std::int64_t since_s = 0;  ///< Seconds since 1970.
};

struct revocation_list {
  std::uint64_t number = 0;
  std::int64_t issued_s = 0;
  std::vector<revoked_certificate> revoked;  ///< By serial.
  std::string pem;                           ///< The whole of it, to be passed on.

  bool has(std::string_view serial) const;
};

inline constexpr const char* revocations_file = "ca.crl";
inline constexpr std::size_t most_revocations_bytes = 900 * 1024;

/// `place` begins the message of an error. Errors: malformed; mismatch where it is not signed by the authority of this
/// file; out_of_range beyond most_revocations_bytes; those of reading the authority.
result<revocation_list> parse_revocations(const std::string& pem,
                                          const std::filesystem::path& authority,
                                          std::string_view place);
/// None where there is no such file.
result<std::optional<revocation_list>> read_revocations(const std::filesystem::path& file,
                                                        const std::filesystem::path& authority);

enum class revoke_which { all, all_but_latest };

/// Signs a list with these added: a serial, or all certificates of a name that have not expired; `all_but_latest`: but
/// for that in NAME.crt. Writes ca.crl of the folder in one step; gives those that were not revoked before. Errors:
/// not_found, where nothing of that name or serial was issued; usage where all of it was revoked before, or
/// all_but_latest leaves nothing; io, malformed, mismatch of the folder's files.
result<std::vector<issued_certificate>> revoke(const std::filesystem::path& folder,
                                               const std::string& name_or_serial,
                                               revoke_which which);

}  // namespace ordermoe::net
