#include "actors/cluster/node_figures.hpp"

namespace ordermoe::actors {

using net::lane;
using nlohmann::ordered_json;

ordered_json session_json(const net::peer_figures& figures) {
  ordered_json lanes;
  for (std::size_t i = 0; i < net::n_lanes; ++i) {
    const auto& each = figures.lanes[i];
    lanes[net::to_string(static_cast<lane>(i))] = {{"sent_bytes", each.sent_bytes},
                                                   {"received_bytes", each.received_bytes},
                                                   {"outstanding_bytes", each.outstanding_bytes},
                                                   {"waiting_bytes", each.waiting_bytes}};
  }
  return {{"boot", figures.self.boot},
          {"serial", figures.serial},
          {"round_trip_ns", figures.round_trip_ns},
          {"bytes_per_s", figures.bytes_per_s},
          {"connections", figures.connections},
          {"resent_frames", figures.resent_frames},
          {"written_bytes", figures.written_bytes},
          {"read_bytes", figures.read_bytes},
          {"writes", figures.writes},
          {"reads", figures.reads},
          {"lanes", std::move(lanes)}};
}

ordered_json credits_json(const net::session_limits& limits) {
  ordered_json credits;
  for (std::size_t i = 0; i < net::n_lanes; ++i)
    credits[net::to_string(static_cast<lane>(i))] = limits.credit[i];
  return credits;
}

ordered_json rehearsal_json(const rehearsal& how, const rehearsal_figures& figures) {
  const auto charged = [&](std::int64_t on_clock_ns) {
    return static_cast<std::int64_t>(static_cast<double>(on_clock_ns) / how.dilation);
  };
  return {{"dilation", how.dilation},
          {"stretch", how.stretch},
          {"batches", figures.batches},
          {"charged_ns", charged(figures.charged_ns)},
          {"exceeded", figures.exceeded},
          {"exceeded_ns", charged(figures.exceeded_ns)},
          {"most_exceeded_ns", charged(figures.most_exceeded_ns)},
          {"late_ns", charged(figures.late_ns)}};
}

}  // namespace ordermoe::actors
