#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "config/error.hpp"
#include "net/relay/token_bucket.hpp"

/// What a relay does to one direction, and what all connections share of it: they pass through one bottleneck.
namespace ordermoe::net {

enum class direction : std::uint8_t {
  to,    ///< From who dialled the relay to its target.
  back,  ///< From the target.
};
constexpr std::size_t n_directions = 2;
const char* to_string(direction of);

struct link_conditions {
  std::int64_t delay_ns = 0;           ///< From a byte's coming in to its going out, at least.
  std::uint64_t rate_bytes_per_s = 0;  ///< 0: as fast as they come.
  bool stalled = false;                ///< Nothing goes out.
  double flip_chance = 0;              ///< Of each byte: one of its bits is the other.
  friend bool operator==(const link_conditions&, const link_conditions&) = default;
};
constexpr std::int64_t most_delay_ns = 600'000'000'000;
/// Error: out_of_range.
result<void> check(const link_conditions& wanted);

struct link_counters {
  std::uint64_t bytes_in = 0;      ///< Read from senders.
  std::uint64_t bytes_out = 0;     ///< Written to receivers.
  std::uint64_t flipped_bits = 0;  ///< In bytes that went out or are about to.
};

class link {
 public:
  /// `least_buffer_bytes`: what a connection may hold of this direction where rate and delay ask for less.
  link(std::uint64_t seed, std::uint64_t least_buffer_bytes)
      : seed_(seed), least_buffer_bytes_(least_buffer_bytes) {}

  /// For bytes on their way as well. The conditions must be good (check()).
  void set(const link_conditions& wanted, std::int64_t now_ns);
  const link_conditions& conditions() const { return conditions_; }
  token_bucket& bucket() { return bucket_; }
  const token_bucket& bucket() const { return bucket_; }
  /// That a connection may hold: twice what is on its way at this rate, or the least.
  std::uint64_t buffer_bytes() const;

  /// The next byte that goes out has one bit flipped, whichever connection it is of; asked for n times, the next n.
  void flip_next() { ++n_to_flip_; }
  /// Flips in the bytes that go out: `bytes` from `begin` on, of which the first is number `position` of its stream.
  /// The same seed, stream and position flip the same bit, whatever pieces the bytes come in.
  void flip(std::string& bytes, std::size_t begin, std::uint64_t stream, std::uint64_t position);

  link_counters counted;

 private:
  std::uint64_t seed_, least_buffer_bytes_;
  link_conditions conditions_;
  token_bucket bucket_;
  std::uint64_t n_to_flip_ = 0;
};

}  // namespace ordermoe::net
