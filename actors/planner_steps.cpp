#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "actors/planner_state.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "planning/strategies/adaptation.hpp"
#include "planning/strategies/left_out.hpp"

/// Changes that the planners of all servers make together, step by step, as the admin says; and the weights for them.
namespace ordermoe::actors {

expert_set planner_state::hosted_by(const planning::plan& plan) const {
  return [index = planning::placement_index(plan), id = work.ids.front()](layer_id layer,
                                                                          expert_id expert) {
    return index.hosts(id, layer.index(), expert.index());
  };
}

result<loaded_model> planner_state::load_here(const expert_set& hosts) const {
  if (!work.load || (!joint && !unread)) return loaded_model();
  const auto server = work.ids.front();
  std::int64_t bytes = 0;
  for (std::uint32_t layer = 0; layer < current->plan.n_layers; ++layer)
    for (std::uint32_t expert = 0; expert < current->plan.n_experts; ++expert)
      if (hosts(layer_id{layer}, expert_id{expert}))
        bytes += expert_bytes(context->servers.servers[server], context->costs);
  const auto most =
      expert_memory_bytes(context->servers.servers[server], context->costs, current->plan.n_layers);
  if (bytes > most)
    return error{errc::infeasible,
                 fmt::format("experts of {} bytes would be kept on server {}, which keeps {}",
                             bytes, server, most)};
  // The change that was given up may fetch nothing any more.
  constexpr std::uint64_t no_change = UINT64_MAX;
  return work.load(unread ? no_change : joint->id, hosts);
}

// ------------------------------------------------------------------- steps that all servers take

void planner_state::answer_step(serving::change_step step, std::string why) const {
  self->send(joint->admin, plan_step_done{joint->id, step, std::move(why)});
}

void planner_state::take(plan_step& step) {
  using serving::change_step;
  const auto admin = caf::actor_cast<admin_actor>(step.admin);
  if (step.step == change_step::prepare) return prepare(step, admin);
  if (!joint || joint->id != step.change) {
    if (step.step != change_step::abort)
      self->send(admin, plan_step_done{step.change, step.step, "nothing was prepared here"});
    return;
  }
  switch (step.step) {
    case change_step::prepare:
      return;
    case change_step::hold:
      return drain();
    case change_step::install:
      return install_with_others();
    case change_step::commit:
      return begin_under_next();
    case change_step::retire:
      return retire();
    case change_step::abort:
      return abort(std::move(step.why));
  }
}

void planner_state::prepare(plan_step& step, const admin_actor& admin) {
  const auto refuse_step = [&](const std::string& why) {
    self->send(admin, plan_step_done{step.change, serving::change_step::prepare, why});
  };
  if (!phase.is(planner_phase::steady) || joint || !step.plan)
    return refuse_step("another change of plan is under way");
  if (unread)
    return refuse_step("experts of the plan in force, which went for the last one, are not back");
  next = {};
  next.change.reason = "order";
  next.change.asked_ns = time_ns();
  next.change.held = step.holds;
  joint = joint_change{step.change, admin, step.drain_ns};
  if (auto made = make_ready(step); !made) {
    joint.reset();
    return refuse_step(made.error().message);
  }
  answer_step(serving::change_step::prepare);
}

result<void> planner_state::check_members(const planning::plan& placed,
                                          planning::server_mask absent) const {
  const auto left = planning::newly_needed(placed, current->plan, absent);
  if (left == 0) return {};
  return error{errc::mismatch, fmt::format("it needs {}, which is no member; propose again",
                                           context->servers.servers[std::countr_zero(left)].name)};
}

result<void> planner_state::make_ready(const plan_step& step) {
  const auto& placed = *step.plan;
  auto profile = by(step.measured);
  if (placed.epoch != current->plan.epoch + 1)
    return error{errc::mismatch,
                 fmt::format("it follows the plan of epoch {}, in force is that of epoch {}",
                             placed.epoch - 1, current->plan.epoch)};
  if (auto valid = planning::validate(placed, context->servers, context->costs); !valid)
    return valid.error();
  if (auto among = check_members(placed, step.absent); !among) return among;
  if (auto taken = weigh(placed, *profile, 0, next.change); !taken) return taken.error();
  auto content = make(std::move(profile), placed, policy);
  if (!content) return content.error();
  next.content = std::move(*content);
  if (step.holds) return {};
  if (auto fits = fits_beside(placed); !fits) return fits.error();
  auto loaded = load_here([before = hosted_by(current->plan), after = hosted_by(placed)](
                              layer_id layer, expert_id expert) {
    return before(layer, expert) || after(layer, expert);
  });
  if (!loaded) return loaded.error();
  next.model = std::move(*loaded);
  return {};
}

void planner_state::install_with_others() {
  if (next.change.held) {
    phase.move(planner_phase::moving);
    // Whoever hears sooner that the change was given up may ask for them.
    lacks_under = current->plan.epoch;
    auto loaded = load_in_steps(current->plan, next.content->plan);
    if (!loaded) return answer_step(serving::change_step::install, loaded.error().message);
    next.model = std::move(*loaded);
  } else {
    phase.move(planner_phase::moving);
  }
  next.move = planning::weights_to_move(current->plan, next.content->plan, context->servers,
                                        context->costs);
  if (auto taken = take_beside(); !taken) {
    // All others go by the plan soon: by the policy that it was prepared for, if need be.
    report(taken.error());
    beside = next.content;
  }
  install_and_await(planner_phase::installing, std::exchange(next.model, nullptr));
}

result<loaded_model> planner_state::load_in_steps(const planning::plan& from,
                                                  const planning::plan& to) {
  auto kept = load_here(
      [before = hosted_by(from), after = hosted_by(to)](layer_id layer, expert_id expert) {
        return before(layer, expert) && after(layer, expert);
      });
  if (!kept) return kept;
  install(*kept);
  *kept = nullptr;
  return load_here(hosted_by(to));
}

void planner_state::end_requests_in_flight() {
  constexpr std::int64_t longest_ns = 5'000'000'000;
  send_later(self, handle(), longest_ns, change_overdue{change}, later::timer);
  const auto epoch =
      phase.is(planner_phase::draining) ? current->plan.epoch + 1 : current->plan.epoch;
  for (const auto& server : work.servers)
    self->send(server, end_requests{
                           epoch, "the plan changes, and the request took longer than that waits"});
}

void planner_state::abort(std::string why) {
  const bool can_be = phase.is(planner_phase::steady) || phase.is(planner_phase::draining) ||
                      phase.is(planner_phase::moving) || phase.is(planner_phase::installing) ||
                      phase.is(planner_phase::installed);
  if (can_be) give_up_change(std::move(why));
}

std::shared_ptr<const planning::profile> planner_state::by(
    const std::shared_ptr<const planning::measured_activation>& measured) const {
  if (!measured)
    return current ? current->profile : std::make_shared<const planning::profile>(work.profile);
  return std::make_shared<const planning::profile>(
      planning::with_measured_activation(work.profile, *measured));
}

drift_report planner_state::drift(const drift_query& query) const {
  if (!current) return {};
  const auto cost_ns = [&](const planning::profile& profile) {
    return planning::placement_cost_ns(profile, current->plan, known, context->costs);
  };
  return {current->plan.epoch, cost_ns(*current->profile), cost_ns(*by(query.measured)),
          planning::moved_shares(*current->profile, *query.measured)};
}

plan_proposal planner_state::propose_only(const plan_query& query) const {
  const auto& order = *query.order;
  plan_proposal made;
  if (!current) {
    made.refused = "no plan is in force yet";
    return made;
  }
  made.strategy =
      order.strategy.empty() ? work.chosen.name : planning::canonical_strategy_name(order.strategy);
  const auto profile = by(query.measured);
  auto strategy = place(made.strategy, order.planning, *profile);
  if (!strategy) {
    made.refused = strategy.error().message;
    return made;
  }
  plan_change told;
  const auto taken = weigh(strategy->plan, *profile, 0, told);
  made.cost_before_ns = told.cost_before_ns;
  made.cost_after_ns = told.cost_after_ns;
  if (!taken) {
    made.refused = taken.error().message;
    return made;
  }
  strategy->plan.epoch = current->plan.epoch + 1;
  made.bytes_to.assign(context->n_servers(), 0);
  for (const auto& each : strategy->plan.experts)
    if (!current->index.hosts(each.server.index(), each.layer.index(), each.expert.index()))
      made.bytes_to[each.server.index()] +=
          expert_bytes(context->servers.servers[each.server.index()], context->costs);
  if (const auto fits = fits_beside(strategy->plan); !fits) made.why_held = fits.error().message;
  made.plan = std::make_shared<const planning::plan>(std::move(strategy->plan));
  return made;
}

}  // namespace ordermoe::actors
