#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "net/session/header.hpp"

/// The first thing that both ends of a connection say, before any frame: who they are and what they go by.
namespace ordermoe::net {

/// One life of a node's end of a session. Whoever forgets what was sent and received takes another.
struct end_identity {
  std::uint64_t boot = 0;        ///< Counts the starts of the node.
  std::uint64_t generation = 0;  ///< Counts the sessions with this peer that the node gave up.
  friend auto operator<=>(const end_identity&, const end_identity&) = default;
};

/// Name and value of something in which both ends must agree: model digest, precision, shape, plan.
using agreement = std::pair<std::string, std::string>;

/// What is only true of one kind of device is agreed on by those that have it: a name such as `arithmetic[libtorch:cpu]`
/// is compared where both ends say it.
bool is_of_some(std::string_view agreement_name);

struct hello {
  /// What both speak most recent is spoken. 2: frames may come in parts (session_word::part).
  std::uint32_t protocol_min = 1, protocol_max = 2;
  std::string cluster, node;
  end_identity self;
  std::uint64_t life =
      0;  ///< Drawn by each process: two of one name and boot are told apart by it.
  stream which = stream::fast;
  /// Of the peer, as this end knows it; boot 0: not at all. `expected` belongs to the session with that one.
  end_identity other;
  std::uint64_t other_life = 0;
  /// By lane: the sequence that this end takes next.
  std::array<std::uint64_t, n_lanes> expected{};
  std::vector<agreement> agreed;
  friend bool operator==(const hello&, const hello&) = default;
};

inline constexpr std::size_t most_hello_bytes = 16 * 1024;

/// JSON text of at most most_hello_bytes where the names and values are short.
std::string hello_text(const hello& content);

/// Error: malformed, naming the field.
result<hello> parse_hello(std::string_view text);

/// Why the two do not belong together, naming the field and both values; nothing where they do. `name` is the
/// peer's as its certificate has it; empty: nobody vouches for it.
std::optional<error> disagreement(const hello& mine, const hello& theirs, std::string_view name);

}  // namespace ordermoe::net
