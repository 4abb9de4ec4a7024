#include "actors/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/planner_state.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "planning/serving/token_rules.hpp"

/// What is in force: the first plan, policies, and tables by links as they are known.
namespace ordermoe::actors {

void planner_state::trace(const std::string& line) const {
  if (context->trace) context->trace->line(line);
}

result<std::shared_ptr<const plan_in_force>> planner_state::make(
    std::shared_ptr<const planning::profile> profile, planning::plan placed,
    const planning::selection_policy& by) const {
  auto tables =
      planning::selection_tables::build(*profile, placed, prices, by, work.chosen.token_budget);
  if (!tables) return tables.error();
  const planning::placement_index index(placed);
  const decoding_policy decoding{work.chosen.token_budget, work.chosen.allowance_factor,
                                 work.chosen.continue_in_place, work.chosen.quality};
  return std::make_shared<const plan_in_force>(
      plan_in_force{std::move(placed), index, std::move(*tables), policy_version,
                    std::move(profile), decoding, priced_links});
}

void planner_state::report(error what, std::uint32_t server, problem::scope of) const {
  problem found;
  found.of = of;
  found.server = server;
  found.what = std::move(what);
  found.time_ns = time_ns();
  self->send(work.recorder, std::move(found));
}

void planner_state::await_all_servers() {
  constexpr std::int64_t slack_ns = 30'000'000'000;
  await_all_servers(context->request_timeout_ns + slack_ns);
}

void planner_state::await_all_servers(std::int64_t longest_ns) {
  ++change;
  awaited.clear();
  awaited.insert(work.ids.begin(), work.ids.end());
  send_later(self, handle(), longest_ns, change_overdue{change}, later::timer);
}

install_plans planner_state::what_is_there(loaded_model model) const {
  install_plans message;
  message.plans = {current};
  if (beside)
    message.plans.insert(
        beside->plan.epoch < current->plan.epoch ? message.plans.begin() : message.plans.end(),
        beside);
  message.begins_under = current->plan.epoch;
  message.number = n_installs;
  message.planner = handle();
  message.model = std::move(model);
  message.lacks_under = lacks_under;
  return message;
}

void planner_state::install(const loaded_model& model) {
  ++n_installs;
  for (const auto& server : work.servers) self->send(server, what_is_there(model));
}

void planner_state::install_and_await(planner_phase next_phase, const loaded_model& model) {
  phase.move(next_phase);
  await_all_servers();
  awaited_install = n_installs + 1;
  install(model);
}

void planner_state::hold() {
  holding = true;
  for (const auto& server : work.servers) self->send(server, hold_admission{change, handle()});
}

void planner_state::resume() {
  if (!std::exchange(holding, false)) return;
  for (const auto& server : work.servers) self->send(server, resume_admission{});
}

void planner_state::announce(bool new_policy) {
  if (work.monitor) self->send(work.monitor, plan_announced{current, handle(), new_policy});
}

// ------------------------------------------------------------------------------------ first plan

void planner_state::push() {
  if (!phase.is(planner_phase::idle)) return;
  policy = work.chosen.policy;
  auto placed = work.chosen.plan;
  placed.epoch = first_epoch(placed, *context);
  const auto measured = context->seat ? context->seat->measured : nullptr;
  auto content = make(by(measured), std::move(placed), policy);
  if (!content) return report(content.error());
  current = std::move(*content);
  announce(true);
  install_and_await(planner_phase::installing);
}

void planner_state::count(const plans_installed& message) {
  // In other phases other answers are awaited, and tables change in all of them.
  if (!phase.is(planner_phase::installing) && !phase.is(planner_phase::beginning) &&
      !phase.is(planner_phase::retiring))
    return;
  if (message.number < awaited_install || awaited.erase(message.server) == 0) return;
  if (awaited.empty()) all_have_installed();
}

void planner_state::all_have_installed() {
  switch (phase.now()) {
    case planner_phase::installing:
      return beside ? end_installing() : end_first_installing();
    case planner_phase::beginning:
      return end_beginning();
    case planner_phase::retiring:
      return end_retiring();
    default:
      return;
  }
}

void planner_state::end_first_installing() {
  phase.move(planner_phase::steady);
  resume();
  next_order();
}

void planner_state::replace(const server_replaced& message) {
  const auto place = std::ranges::find(work.ids, message.server);
  if (place == work.ids.end()) return;
  const auto server = caf::actor_cast<edge_server_actor>(message.handle);
  work.servers[static_cast<std::size_t>(place - work.ids.begin())] = server;
  if (!current) return;
  self->send(server, what_is_there());
  if (phase.is(planner_phase::draining) && awaited.contains(message.server))
    return self->send(server, hold_admission{change, handle()});
  if (!holding) self->send(server, resume_admission{});
  // Whatever it had under the plan before is over.
  if (phase.is(planner_phase::ending)) count(requests_ended{current->plan.epoch, message.server});
}

// -------------------------------------------------------------------------------------- policies

void planner_state::change_to(const change_weights& message) {
  if (!current) return;
  auto by = policy;
  by.omega_time = message.weights.omega_time;
  by.omega_quality = message.weights.omega_quality;
  auto changed = described("window");
  changed.requests = message.requests;
  if (!adopt(by, changed)) return;
  if (context->trace)
    trace(
        trace::weights_line(tables(), message.kappa, message.weights, message.requests, time_ns()));
  install();
}

void planner_state::change_to(const policy_order& order) {
  if (!current) return;
  auto changed = described("order");
  if (!adopt(order.policy, changed)) return;
  if (context->trace) trace(trace::policy_line(tables(), policy, time_ns()));
  announce(true);
  install();
}

policy_change planner_state::described(std::string reason) const {
  policy_change changed;
  changed.reason = std::move(reason);
  changed.epoch = current->plan.epoch;
  changed.time_ns = time_ns();
  return changed;
}

bool planner_state::adopt(const planning::selection_policy& by, policy_change& changed) {
  ++policy_version;
  auto content = make(current->profile, current->plan, by);
  if (!content) {
    --policy_version;
    changed.refused = content.error().message;
  } else {
    policy = by;
    current = std::move(*content);
    renew_beside();
  }
  changed.version = policy_version;
  changed.weights = {policy.omega_time, policy.omega_quality};
  self->send(work.recorder, changed);
  return changed.refused.empty();
}

void planner_state::renew_beside() {
  if (!beside) return;
  auto content = make(beside->profile, beside->plan, policy);
  if (!content) return report(content.error());
  beside = std::move(*content);
}

// ----------------------------------------------------------------------------------------- links

void planner_state::take(const links_told& message) {
  if (!links.take(message.report) || std::exchange(pricing_is_set, true)) return;
  // Links of many servers change together, and tables take a while.
  constexpr std::int64_t delay_ns = 1'000'000'000;
  send_later(self, handle(), delay_ns, price_links{}, later::timer);
}

void planner_state::price() {
  pricing_is_set = false;
  known.links = links.links();
  prices = planning::make_cost_model(known, context->costs);
  priced_links = std::make_shared<const std::vector<link_spec>>(known.links);
  if (!current) return;
  auto content = make(current->profile, current->plan, policy);
  if (!content) return report(content.error());
  current = std::move(*content);
  renew_beside();
  install();
}

// ------------------------------------------------------------------------------------- the actor

const char* to_string(planner_phase phase) {
  switch (phase) {
    case planner_phase::idle:
      return "idle";
    case planner_phase::steady:
      return "steady";
    case planner_phase::draining:
      return "draining";
    case planner_phase::moving:
      return "moving";
    case planner_phase::installing:
      return "installing";
    case planner_phase::installed:
      return "installed";
    case planner_phase::beginning:
      return "beginning";
    case planner_phase::ending:
      return "ending";
    case planner_phase::retiring:
      return "retiring";
  }
  return "unknown";
}

planner_actor spawn_planner(caf::actor_system& system,
                            std::shared_ptr<const service_context> context, planner_work work) {
  const bool wall = context->clock == clock_kind::wall;
  auto behavior = [context = std::move(context), work = std::move(work)](
                      planner_actor::stateful_pointer<planner_state> self) mutable
      -> planner_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.context = std::move(context);
    state.known = state.context->servers;
    state.prices = state.context->prices;
    state.links = serving::link_board(state.known);
    state.work = std::move(work);
    return {
        [&state](push_plan) { state.push(); },
        [&state](const links_told& message) { state.take(message); },
        [&state](price_links) { state.price(); },
        [&state](replan& message) { state.order(std::move(message.order)); },
        [&state](const change_policy& message) { state.change_to(*message.order); },
        [&state](propose_replan& message) { state.propose(message); },
        [&state](const change_weights& message) { state.change_to(message); },
        [&state](const admission_held& message) { state.count(message); },
        [&state](const plans_installed& message) { state.count(message); },
        [&state](const requests_ended& message) { state.count(message); },
        [&state](const server_replaced& message) { state.replace(message); },
        [&state](const weights_moved& message) { state.end_moving(message); },
        [&state](const change_overdue& message) { state.overdue(message); },
        [&state](read_experts) {
          state.read_back();
          state.next_order();
        },
        [&state](plan_step& step) { state.take(step); },
        [&state](const plan_query& query) { return state.propose_only(query); },
        [&state](const drift_query& query) { return state.drift(query); },
        [&state](in_force_query) {
          return in_force{state.current, state.policy};
        },
        [&state](status_query) {
          return planner_status{state.phase.now(), state.current ? state.current->plan.epoch : 0,
                                state.policy_version, state.orders.size()};
        },
    };
  };
  // Planning takes long: on the wall clock it has a thread of its own.
  return wall ? system.spawn<caf::detached>(std::move(behavior))
              : system.spawn(std::move(behavior));
}

std::uint64_t first_epoch(const planning::plan& plan, const service_context& context) {
  return context.seat ? std::max<std::uint64_t>(1, plan.epoch) : 1;
}

result<void> check_kv_fits(const std::vector<planning::residency>& residence,
                           const std::vector<std::size_t>& most_positions, const cluster& servers,
                           const cost_profile& costs) {
  for (std::size_t access = 0; access < residence.size(); ++access) {
    const auto need =
        kv_need(residence[access], servers.size(), most_positions[access], costs.kv_row_bytes);
    for (std::size_t m = 0; m < need.size(); ++m)
      if (need[m] > servers.servers[m].kv_bytes)
        return error{errc::infeasible,
                     fmt::format("the KV rows of a request of {} positions at server {} need {} "
                                 "bytes on server {} ({}), which keeps {} for KV; raise kv memory "
                                 "in the cluster file or shorten the request",
                                 most_positions[access], access, need[m], m,
                                 servers.servers[m].name, servers.servers[m].kv_bytes)};
  }
  return {};
}

}  // namespace ordermoe::actors
