#pragma once

#include <cstdint>
#include <vector>

#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/ids.hpp"

namespace ordermoe::planning {

/// Durations that selection and placement price, in nanoseconds as doubles, one row at a time and
/// without queues. The same numbers that the emulation charges for a batch of one row.
///
/// Layout: row-major [from][to] for the links, [server] for the rest.
struct cost_model {
  std::size_t n_servers = 0;
  /// d(s, n): one hidden state over a link; 0 on the diagonal. z_l / B + tau.
  std::vector<double> hidden_ns;
  /// One KV row of one layer over a link, without the latency (it is streamed).
  std::vector<double> kv_ns;
  std::vector<double> message_ns;  ///< A small message (a sampled id): latency plus its bytes.
  /// c(m): one row through one expert, max(FLOPs / F, bytes / bandwidth).
  std::vector<double> expert_ns;
  std::vector<precision> expert_precision;  ///< How each server keeps its experts.
  /// One row through one layer's attention, norms and router, no context.
  std::vector<double> attention_ns;
  std::vector<double> head_ns;  ///< One row through the output projection.

  double hidden(std::size_t from, std::size_t to) const { return hidden_ns[from * n_servers + to]; }
  double kv(std::size_t from, std::size_t to) const { return kv_ns[from * n_servers + to]; }
  double message(std::size_t from, std::size_t to) const {
    return message_ns[from * n_servers + to];
  }
};

/// Bytes that a small message is priced at before it is serialised.
inline constexpr std::int64_t small_message_bytes = 64;

/// Positions that the ways of a request's prompt and text are counted for.
inline constexpr double positions_of_request = 32;

cost_model make_cost_model(const cluster& servers, const cost_profile& costs);

}  // namespace ordermoe::planning
