#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "actors/service/service.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"
#include "planning/strategies/strategies.hpp"

/// Local mode on a cluster of one server that holds everything.
namespace ordermoe::bench {

inline result<actors::service_options> one_server(std::shared_ptr<const model::transformer> model,
                                                  planning::profile profile,
                                                  std::size_t n_threads) {
  actors::service_options made;
  made.costs = model::own_costs(model->config());
  made.model = std::move(model);
  made.profile = std::move(profile);
  made.mode = actors::run_mode::local;
  made.threads_per_server = n_threads;
  server_spec server;
  server.name = "s0";
  server.flops_per_s = 1e12;
  server.memory_bandwidth_bytes_per_s = 35e9;
  server.memory_bytes = std::int64_t{1} << 40;
  server.kv_bytes = std::int64_t{4} << 30;
  server.arrival_share = 1;
  made.servers.name = "one";
  made.servers.servers = {server};
  made.servers.links.resize(1);
  auto chosen = planning::make_strategy("layer-shards", made.profile, made.servers, made.costs,
                                        planning::strategy_options());
  if (!chosen) return chosen.error();
  made.chosen = std::move(*chosen);
  return made;
}

}  // namespace ordermoe::bench
