#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "net/identity/certificates.hpp"

/// What an authority has issued: a text file `issued` in its folder, a line "SERIAL ROLE NAME UNTIL" for each certificate,
/// so that those that were renewed can still be revoked.
namespace ordermoe::net {

struct issued_certificate {
  std::string serial;  ///< Lower-case hexadecimal.
  role of = role::node;
  std::string name;
  std::int64_t until_s = 0;  ///< Seconds since 1970.
};

/// On a line of its own, whatever is there. Error: io.
result<void> add_issued(const std::filesystem::path& folder, const issued_certificate& made);

/// The oldest first; certificates of the folder that are not in the list, as those of folders made before there was one,
/// come last. Half a line at the end, which a full disk leaves, is none. Errors: io; malformed, naming the line.
result<std::vector<issued_certificate>> read_issued(const std::filesystem::path& folder);

}  // namespace ordermoe::net
