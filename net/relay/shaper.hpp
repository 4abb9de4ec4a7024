#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>

#include "net/relay/link.hpp"

/// The bytes of one connection in one direction while a link delays, paces, stalls and flips them. No sockets and no
/// clock: bytes and time go in, bytes and the next time come out.
///
/// A byte goes out once the link's delay has passed since it came in, the bucket that connections share has room for
/// it, and nothing is stalled; never before one that came earlier. The delay, rate and stall that count are those at
/// the time of going out, so changed ones hold for bytes on their way too.
///
/// Goals: what is held stays within the link's buffer_bytes(), however bytes are cut into pieces. What stalls or is
/// paced fills it; then room() is 0, and the sender has to wait.
namespace ordermoe::net {

class shaper {
 public:
  /// `stream`: its number among the link's connections, for the seed of what is flipped. The link must outlive it.
  shaper(link& of, std::uint64_t stream) : link_(of), stream_(stream) {}

  /// How many bytes it takes now.
  std::size_t room() const;
  /// No more than it had room for when they were asked for.
  void take(std::string_view bytes, std::int64_t now_ns);
  /// Behind the bytes so far there are none; this passes with the same delay.
  void end(std::int64_t now_ns);
  /// Appends what goes out now, at most so many bytes. The number of bytes.
  std::size_t give(std::string& into, std::size_t most, std::int64_t now_ns);
  /// The end went out, and all bytes before it.
  bool over(std::int64_t now_ns) const;
  /// When give() or over() has something if nothing else happens; nothing where that is never.
  std::optional<std::int64_t> next_ns(std::int64_t now_ns) const;
  std::size_t held_bytes() const { return bytes_.size() - gone_; }

 private:
  /// Bytes that came at one time.
  struct piece {
    std::int64_t came_ns = 0;
    std::size_t n_bytes = 0;
  };
  std::int64_t due_ns(std::int64_t came_ns) const { return came_ns + link_.conditions().delay_ns; }
  /// Of the first piece, that should go out together; so connections take turns at the bucket in parts of this size.
  std::size_t turn_bytes() const;
  /// Of all that is due, up to so many.
  std::size_t due_bytes(std::size_t most, std::int64_t now_ns) const;
  void drop(std::size_t n_bytes);

  link& link_;
  std::uint64_t stream_;
  std::string bytes_;  ///< The first gone_ went out.
  std::size_t gone_ = 0;
  std::deque<piece> pieces_;
  std::optional<std::int64_t> ended_ns_;
  std::uint64_t n_given_ = 0;
};

}  // namespace ordermoe::net
