#pragma once

#include <string>
#include <string_view>

#include "config/error.hpp"
#include "net/relay/relay.hpp"

/// The lines by which a relay is steered while it runs:
///
///   delay to|back MS            each byte goes out so long after it came in
///   rate to|back MBIT           in 10^6 bits a second; 0: as fast as they come
///   stall to|back               nothing goes out
///   release to|back             until this
///   cut [after to|back BYTES] [refuse MS]
///   flip to|back [CHANCE]       a wrong bit in the next byte, or in each by this chance
///   status                      what passed so far
///   quit
namespace ordermoe::net {

struct relay_command {
  enum class what { delay, rate, stall, release, cut, flip_next, flip, status, quit };
  what kind = what::status;
  direction of = direction::to;
  double value = 0;  ///< Milliseconds, 10^6 bits a second, or a chance.
  cut_options how;
};

/// Error: usage, naming the word that was found and what was expected.
result<relay_command> parse_relay_command(std::string_view line);
/// What a delay, rate, stall, release or flip makes of conditions.
link_conditions changed(link_conditions from, const relay_command& by);
/// Does all but status and quit, for which there is nothing to do. Error: of relay::set().
result<void> apply(const relay_command& command, relay& to);

/// Rates beyond 0 are at least a byte a second.
std::uint64_t bytes_per_s(double mbit_per_s);
std::int64_t nanoseconds(double ms);
constexpr double most_delay_ms = most_delay_ns / 1e6;
constexpr double most_rate_mbit = most_rate_bytes_per_s * 8e-6;

}  // namespace ordermoe::net
