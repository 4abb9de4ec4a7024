#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "actors/service/service.hpp"
#include "net/channel/transport.hpp"

/// What a node says of its sessions and of its work, as JSON.
namespace ordermoe::actors {

/// What of a session goes and came, by its lanes; what it is found to carry.
nlohmann::ordered_json session_json(const net::peer_figures& figures);
nlohmann::ordered_json credits_json(const net::session_limits& limits);
/// Times in charged nanoseconds, which the dilation is taken out of.
nlohmann::ordered_json rehearsal_json(const rehearsal& how, const rehearsal_figures& figures);

/// Of a count that grows: how fast it grew in the last seconds. From any thread.
class token_rate {
 public:
  /// About once a second.
  void sample(std::uint64_t count);
  /// The count, and what it gained a second since the oldest sample.
  std::pair<std::uint64_t, double> rate(std::uint64_t count) const;

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t n_samples = 10;
  struct one {
    clock::time_point at;
    std::uint64_t count = 0;
  };
  mutable std::mutex mutex_;
  std::deque<one> samples_;
};

}  // namespace ordermoe::actors
