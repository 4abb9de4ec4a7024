#include "actors/admin/reports.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "planning/strategies/left_out.hpp"

namespace ordermoe::actors {

using nlohmann::ordered_json;

ordered_json members_report(const service_context& context, const in_force& now,
                            const server_status& status, const std::set<std::uint32_t>& away,
                            const std::set<std::uint32_t>& absent, serving::change_phase phase) {
  const auto self = context.seat->server;
  planning::server_mask members = planning::all_servers(context.n_servers());
  for (const auto server : absent) members &= ~planning::server_bit(server);
  const auto hosts = planning::needed(now.content->plan, members);
  auto servers = ordered_json::array();
  for (std::uint32_t server = 0; server < context.n_servers(); ++server)
    servers.push_back({{"name", context.servers.servers[server].name},
                       {"server", server},
                       {"self", server == self},
                       {"member", !absent.contains(server)},
                       {"hosts", (hosts & planning::server_bit(server)) != 0},
                       {"up", server == self || !away.contains(server)}});
  return {{"node", context.servers.servers[self].name},
          {"boot", context.seat->boot},
          {"epoch", now.content->plan.epoch},
          {"epochs", status.epochs},
          {"strategy", now.policy.name},
          {"placement", now.content->plan.strategy},
          {"policy", now.content->policy},
          {"admitting", status.admitting},
          {"drained", status.drained},
          {"requests", status.requests.size()},
          {"change", serving::to_string(phase)},
          {"members", std::move(servers)}};
}

ordered_json requests_report(const service_context& context, const server_status& status,
                             std::int64_t now_ns) {
  auto requests = ordered_json::array();
  for (const auto& each : status.requests)
    requests.push_back({{"request", each.request},
                        {"phase", to_string(each.phase)},
                        {"epoch", each.epoch},
                        {"attempt", each.attempt},
                        {"prompt_tokens", each.prompt_tokens},
                        {"new_tokens", each.new_tokens},
                        {"age_s", static_cast<double>(now_ns - each.arrival_ns) * 1e-9}});
  return {{"node", context.servers.servers[context.seat->server].name},
          {"requests", std::move(requests)}};
}

ordered_json plan_report(const service_context& context, const in_force& now) {
  const auto& plan = now.content->plan;
  auto servers = ordered_json::array();
  for (std::uint32_t server = 0; server < context.n_servers(); ++server) {
    const auto here = [&](const auto& each) { return each.server.index() == server; };
    servers.push_back({{"name", context.servers.servers[server].name},
                       {"experts", std::ranges::count_if(plan.experts, here)},
                       {"bytes", plan.expert_bytes_used[server]},
                       {"most_bytes", plan.expert_bytes_limit[server]}});
  }
  return {{"epoch", plan.epoch},
          {"strategy", now.policy.name},
          {"placement", plan.strategy},
          {"servers", std::move(servers)},
          {"plan", ordered_json::parse(planning::plan_json(plan))}};
}

ordered_json history_report(const history& known) {
  auto changes = ordered_json::array();
  for (const auto& each : known.plan_changes)
    changes.push_back({{"epoch", each.epoch},
                       {"reason", each.reason},
                       {"refused", each.refused},
                       {"held", each.held},
                       {"asked_s", static_cast<double>(each.asked_ns) * 1e-9},
                       {"drained_s", static_cast<double>(each.drained_ns) * 1e-9},
                       {"done_s", static_cast<double>(each.done_ns) * 1e-9},
                       {"moved_bytes", each.moved_bytes},
                       {"cost_before_ns", each.cost_before_ns},
                       {"cost_after_ns", each.cost_after_ns}});
  auto problems = ordered_json::array();
  for (const auto& each : known.problems)
    problems.push_back(
        {{"scope", to_string(each.of)}, {"count", each.count}, {"message", each.what.message}});
  return {{"changes", std::move(changes)}, {"problems", std::move(problems)}};
}

std::string admission_during(const proposal& of) {
  if (of.plans.empty()) return "held: " + of.content.why_held;
  if (of.plans.size() == 1) return "never stops";
  return fmt::format("never stops; {} plans one after the other, since {}", of.plans.size(),
                     of.content.why_held);
}

std::uint64_t last_epoch(const proposal& of) {
  return of.plans.empty() ? of.content.plan->epoch : of.plans.back().epoch;
}

ordered_json proposal_report(const service_context& context, const proposal& of) {
  auto servers = ordered_json::array();
  for (std::uint32_t server = 0; server < context.n_servers(); ++server)
    servers.push_back({{"name", context.servers.servers[server].name},
                       {"bytes_to_load", of.content.bytes_to[server]}});
  ordered_json told{{"proposal", of.number},
                    {"strategy", of.content.strategy},
                    {"epoch", last_epoch(of)},
                    {"cost_before_ms", of.content.cost_before_ns * 1e-6},
                    {"cost_after_ms", of.content.cost_after_ns * 1e-6},
                    {"admission", admission_during(of)}};
  if (of.measured) told["measured_rows"] = of.measured->least_rows();
  told["servers"] = std::move(servers);
  return told;
}

ordered_json difference_report(const service_context& context,
                               const planning::placement_index& before, const proposal& of) {
  const planning::placement_index after(*of.content.plan);
  auto servers = ordered_json::array();
  for (std::uint32_t server = 0; server < context.n_servers(); ++server) {
    auto gains = ordered_json::array(), loses = ordered_json::array();
    for (std::uint32_t layer = 0; layer < context.shape().n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < context.shape().n_experts; ++expert) {
        const bool had = before.hosts(server, layer, expert);
        const bool has = after.hosts(server, layer, expert);
        if (has && !had) gains.push_back({layer, expert});
        if (had && !has) loses.push_back({layer, expert});
      }
    servers.push_back({{"name", context.servers.servers[server].name},
                       {"bytes_to_load", of.content.bytes_to[server]},
                       {"gains", std::move(gains)},
                       {"loses", std::move(loses)}});
  }
  auto told = proposal_report(context, of);
  told["servers"] = std::move(servers);
  return told;
}

}  // namespace ordermoe::actors
