#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "planning/server_mask.hpp"

/// Which servers of the cluster file belong to the cluster now. All do at first, but for those that are declared as spare; an
/// operator removes and adds them while the others run.
///
///   spare, or removed              member
///     neither dialled nor let in     as ever
///     plans place nothing there
///     changes go on without it
///          |                           |
///          +------ members add ------->|
///          |<----- members remove -----+   where it hosts nothing: `decommission` first
///
/// What is said of one server does not touch what is said of another. Every word on a server has a larger number than the one
/// before, and of two with the same number that of the later name holds: all nodes that hear of each other end with the same,
/// in whatever order they hear it. Each keeps the latest on its disk, and tells it whoever connects.
namespace ordermoe::actors {

/// The last word on one server.
struct member_word {
  static constexpr std::uint64_t most_number = std::uint64_t{1} << 53;

  std::uint64_t number = 0;  ///< 0: as node.toml has it.
  std::string by;            ///< The node that was asked.
  bool member = true;
  std::string address;  ///< HOST:PORT where it is dialled, if not as in node.toml; else empty.

  bool operator==(const member_word&) const = default;
  bool is_newer_than(const member_word& other) const;
};
/// By the name of the server; of one that is not there nobody has said anything.
using member_words = std::map<std::string, member_word>;

/// Of those that somebody said.
std::string members_text(const member_words& words);
/// Error: malformed, naming what is.
result<member_words> parse_members(std::string_view text, std::string_view place);

/// Thread-safe.
class member_roll {
 public:
  /// `file`: where it is kept; empty: nowhere. `spare`: no members until something else is heard. Errors: io, malformed.
  static result<std::shared_ptr<member_roll>> open(std::filesystem::path file,
                                                   const std::set<std::string>& spare);

  /// What is done with every change; once, before there is any.
  void tell(std::function<void(const member_words&)> user) { user_ = std::move(user); }

  member_words now() const;
  bool is_absent(const std::string& name) const;
  std::set<std::string> absent() const;

  /// Of these words those that are newer than what is known are taken; gives the names of their servers. Error: io; they hold
  /// all the same, until the end of the process.
  struct outcome {
    std::vector<std::string> changed;
    result<void> kept;
  };
  outcome take(const member_words& words);

 private:
  member_roll(std::filesystem::path file, member_words now)
      : file_(std::move(file)), now_(std::move(now)) {}

  std::filesystem::path file_;
  std::function<void(const member_words&)> user_;
  std::mutex changing_;  ///< One change at a time.
  mutable std::mutex mutex_;
  member_words now_;
};

/// Of the servers those with these names.
planning::server_mask mask_of(const std::set<std::string>& names, const cluster& servers);

}  // namespace ordermoe::actors
