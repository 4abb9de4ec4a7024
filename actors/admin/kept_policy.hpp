#pragma once

#include <cstdint>
#include <string>

#include "config/error.hpp"
#include "planning/selection/selector.hpp"

/// A policy that operators set, as nodes keep it over their end and tell it to those that were away. No CAF type in this
/// header.
///
/// Whoever sets one gives it a version behind all that it knows of; of two policies the one with the higher version stands,
/// and of two with the same, set at once at two nodes, that of the server with the higher number. So nodes that hear of
/// each other end up with the same, in whatever order they do.
namespace ordermoe::actors {

struct kept_policy {
  std::uint64_t version = 0;  ///< 0: as the plan was made with; nothing was set.
  std::uint32_t by = 0;       ///< The server where it was set.
  std::string operation;
  planning::selection_policy policy;

  bool is_newer_than(const kept_policy& other) const {
    return version != other.version ? version > other.version : by > other.by;
  }
};

/// Of which a node tells or keeps; whoever said more would leave no version for whoever sets the next one.
inline constexpr std::uint64_t most_policy_version = std::uint64_t{1} << 53;

std::string text_of(const kept_policy& content);
/// Errors: malformed or out_of_range, naming `place` and the member.
result<kept_policy> parse_kept_policy(const std::string& text, const std::string& place);

}  // namespace ordermoe::actors
