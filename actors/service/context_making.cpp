#include "actors/service/context_making.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "actors/planner.hpp"
#include "config/devices.hpp"
#include "planning/plan.hpp"

namespace ordermoe::actors {

namespace {

/// [n_servers] what each runs; null where there is none that fits.
std::vector<std::shared_ptr<const model::transformer>> models_of(const service_options& options,
                                                                 const cluster& servers) {
  if (!options.server_models.empty()) return options.server_models;
  std::vector<std::shared_ptr<const model::transformer>> models;
  for (const auto& server : servers.servers) {
    if (server.device != kernels_device) {
      const auto there = options.on_devices.find(server.device);
      const bool fits = server.expert_precision == precision::stored;
      models.push_back(fits && there != options.on_devices.end() ? there->second : nullptr);
      continue;
    }
    const auto coarser = options.coarser.find(server.expert_precision);
    models.push_back(server.expert_precision == precision::stored ? options.model
                     : coarser != options.coarser.end()           ? coarser->second
                                                                  : nullptr);
  }
  return models;
}

/// Whether every server has a model with the experts of its plan.
result<void> check_models(const service_options& options, const service_context& context) {
  const auto& servers = context.servers;
  if (context.models.size() != servers.size())
    return error{errc::mismatch, fmt::format("{} models were loaded for {} servers",
                                             context.models.size(), servers.size())};
  for (std::size_t m = 0; m < servers.size(); ++m)
    if (!context.models[m] && context.is_here(m))
      return error{
          errc::mismatch,
          fmt::format(
              "server {} ({}) keeps its experts as {} on device {}, and no model was loaded so", m,
              servers.servers[m].name, to_string(servers.servers[m].expert_precision),
              servers.servers[m].device)};
  if (options.server_models.empty()) return {};
  if (options.monitor.drift_margin > 0)
    return error{errc::unsupported,
                 "servers that loaded the experts of one plan cannot change to another"};
  for (const auto& placed : options.chosen.plan.experts)
    if (context.is_here(placed.server.index()) &&
        !context.models[placed.server.index()]->hosts(placed.layer, placed.expert))
      return error{
          errc::mismatch,
          fmt::format("server {} did not load expert {} of layer {}, which the plan places "
                      "there",
                      placed.server.index(), placed.expert.index(), placed.layer.index())};
  return {};
}

result<void> check_seat(const service_options& options, const service_context& context) {
  if (!options.seat) return {};
  const auto n = context.n_servers();
  if (options.seat->server >= n || options.seat->outlets.size() != n)
    return error{
        errc::out_of_range,
        fmt::format("a seat as server {} with ways to {} servers, expected one of {} and as "
                    "many",
                    options.seat->server, options.seat->outlets.size(), n)};
  if (options.mode != run_mode::local || options.server_models.empty() || options.monitor.kappa > 0)
    return error{
        errc::unsupported,
        "one server of a cluster runs on the wall clock, on its own weights, and changes no "
        "weights of selection by itself"};
  return {};
}

result<void> check_sessions(const service_options& options) {
  if (!options.sessions) return {};
  if (options.mode != run_mode::emulated || options.bad_links.on())
    return error{errc::unsupported,
                 "sessions are simulated in emulated mode, where links have no disturbances of "
                 "their own"};
  if (shared_uplinks(options.servers).any())
    return error{errc::unsupported,
                 "sessions are simulated with links of their own; the cluster gives servers or "
                 "sites an uplink, leave these out"};
  if (options.sessions->wire.chunk_bytes < 1 || options.sessions->wire.read_bytes < 1)
    return error{errc::out_of_range, "wires with chunks of no bytes; expected 1 at least"};
  return {};
}

}  // namespace

result<void> check_options(const service_options& options, const service_context& context) {
  if (options.threads_per_server < 1)
    return error{errc::out_of_range, "no thread for a server to compute with; expected 1 at least"};
  if (options.system && options.mode == run_mode::emulated)
    return error{errc::unsupported,
                 "virtual time has a scheduler of its own; run on the wall clock in the actor "
                 "system of another"};
  if (options.rehearsed && options.mode == run_mode::emulated)
    return error{errc::unsupported,
                 "virtual time takes what is charged anyway; rehearse on the wall clock"};
  if (options.chosen.plan.offloads() && options.mode != run_mode::emulated)
    return error{
        errc::unsupported,
        "the plan keeps experts in the memory of hosts, beside that of servers, which only "
        "virtual time tells apart; run it emulated, or plan by another strategy"};
  if (options.chunk_rows < 1)
    return error{errc::out_of_range, "chunks of no rows; expected 1 at least"};
  if (options.sink && options.model->config().encoder_decoder)
    return error{
        errc::unsupported,
        fmt::format(
            "a trace has no lines for rows without slots, which {} has; run without a trace",
            model::architecture_of(options.model->config().kind))};
  if (auto checked = check_models(options, context); !checked) return checked;
  if (auto checked = check_seat(options, context); !checked) return checked;
  if (auto checked = check_sessions(options); !checked) return checked;
  if (options.promised_positions.empty()) return {};
  return check_kv_fits(options.chosen.plan.residence, options.promised_positions, context.servers,
                       options.costs);
}

std::shared_ptr<service_context> make_context(const service_options& options) {
  auto context = std::make_shared<service_context>();
  context->model = options.model;
  context->tokens = options.tokens;
  context->servers = planning::with_precisions(options.servers, options.chosen.plan);
  context->costs = options.costs;
  context->prices = planning::make_cost_model(context->servers, options.costs);
  context->offloaded = planning::offloaded_flags(options.chosen.plan);
  context->models = models_of(options, context->servers);
  const bool emulated = options.mode == run_mode::emulated;
  context->clock = emulated ? clock_kind::virtual_time : clock_kind::wall;
  context->chunk_rows = options.chunk_rows;
  context->stream_kv = options.stream_kv;
  context->keep_final_hidden = options.keep_final_hidden;
  context->load_period_ns = options.load_period_ns;
  constexpr std::int64_t hour_ns = 3'600'000'000'000, two_minutes_ns = 120'000'000'000;
  context->request_timeout_ns = options.request_timeout_ns > 0 ? options.request_timeout_ns
                                : emulated                     ? hour_ns
                                                               : two_minutes_ns;
  context->most_positions =
      options.most_positions > 0
          ? options.most_positions
          : 2 * static_cast<std::uint32_t>(options.model->config().max_context);
  context->bad_links = options.bad_links;
  if (emulated) {
    auto uplinks = std::make_shared<shared_uplinks>(context->servers);
    if (uplinks->any()) context->uplinks = std::move(uplinks);
  }
  context->seat = options.seat;
  if (options.rehearsed) {
    context->dilation = options.rehearsed->dilation;
    context->request_timeout_ns = context->on_clock(context->request_timeout_ns);
  }
  if (options.sessions)
    context->network = std::make_shared<session_network>(*options.sessions, context->servers);
  context->trace = options.sink;
  context->derive();
  return context;
}

}  // namespace ordermoe::actors
