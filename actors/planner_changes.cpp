#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "actors/planner_state.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "planning/plan_alike.hpp"
#include "planning/serving/two_plans.hpp"
#include "planning/strategies/adaptation.hpp"

/// Plans that may come next, and the way from one to the next.
namespace ordermoe::actors {

void planner_state::order(std::shared_ptr<const replan_order> content) {
  orders.push_back(std::move(content));
  next_order();
}

void planner_state::next_order() {
  while (phase.is(planner_phase::steady) && !joint && !unread && !orders.empty()) {
    const auto content = std::move(orders.front());
    orders.pop_front();
    consider("order", content->strategy, content->planning, current->profile, 0);
  }
}

void planner_state::propose(propose_replan& message) {
  if (!phase.is(planner_phase::steady) || joint || unread)
    return self->send(work.monitor, plan_kept{});
  consider("drift", work.chosen.name, work.proposals, std::move(message.profile),
           message.least_gain);
}

result<planning::strategy> planner_state::place(const std::string& strategy,
                                                planning::strategy_options options,
                                                const planning::profile& profile) const {
  options.plan.reset();
  return planning::make_strategy(strategy, profile, known, context->costs, options);
}

void planner_state::consider(std::string reason, const std::string& strategy,
                             planning::strategy_options options,
                             std::shared_ptr<const planning::profile> profile, double least_gain) {
  next = {};
  next.change.reason = std::move(reason);
  next.change.asked_ns = time_ns();
  const auto made = place(strategy, std::move(options), *profile);
  if (!made) return refuse(made.error().message);
  if (auto taken = weigh(made->plan, *profile, least_gain, next.change); !taken)
    return refuse(taken.error().message);
  auto placed = made->plan;
  placed.epoch = current->plan.epoch + 1;
  // What the policy in force cannot select by is known before anybody waits.
  auto content = make(std::move(profile), std::move(placed), policy);
  if (!content) return refuse(content.error().message);
  next.content = std::move(*content);
  next.change.held = !fits_beside(next.content->plan);
  next.change.held ? drain() : move();
}

result<void> planner_state::fits_beside(const planning::plan& plan) const {
  return serving::check_both_fit(current->plan, plan, context->servers, context->costs);
}

result<void> planner_state::weigh(const planning::plan& plan, const planning::profile& profile,
                                  double least_gain, plan_change& changed) const {
  if (auto fits =
          check_kv_fits(plan.residence, work.most_positions, context->servers, context->costs);
      !fits)
    return fits;
  if (plan.expert_precision != current->plan.expert_precision)
    return error{errc::unsupported,
                 "it keeps experts in another precision than servers have loaded"};
  const auto stays = [](const planning::plan& one) {
    return one.offloads() || !one.pruned.empty();
  };
  if (stays(plan) || stays(current->plan))
    return error{errc::unsupported,
                 "a plan that prunes experts or keeps some in host memory is in force from the "
                 "start to the end; start the service again with the other plan"};
  if (planning::are_alike(current->plan, plan))
    return error{errc::failed, "it is the plan in force"};
  changed.cost_before_ns =
      planning::placement_cost_ns(profile, current->plan, known, context->costs);
  changed.cost_after_ns = planning::placement_cost_ns(profile, plan, known, context->costs);
  if (changed.reason == "drift" &&
      changed.cost_after_ns >= changed.cost_before_ns * (1 - least_gain))
    return error{errc::failed, "no plan was found that is cheaper by the margin"};
  return {};
}

void planner_state::refuse(std::string why) {
  next.change.epoch = current->plan.epoch;
  next.change.refused = std::move(why);
  if (next.change.reason == "drift" && work.monitor) self->send(work.monitor, plan_kept{});
  self->send(work.recorder, std::move(next.change));
  next = {};
}

// ----------------------------------------------------------------------------- from plan to plan

void planner_state::drain() {
  phase.move(planner_phase::draining);
  await_end_of_requests();
  hold();
}

void planner_state::await_end_of_requests() {
  ended_requests = false;
  joint ? await_all_servers(joint->drain_ns) : await_all_servers();
}

void planner_state::count(const admission_held& message) {
  if (!phase.is(planner_phase::draining) || message.change != change) return;
  if (awaited.erase(message.server) == 0 || !awaited.empty()) return;
  next.change.drained_ns = time_ns();
  if (joint) return answer_step(serving::change_step::hold);
  move();
}

void planner_state::move() {
  phase.move(planner_phase::moving);
  if (!next.change.held) ++change;
  next.move = planning::weights_to_move(current->plan, next.content->plan, context->servers,
                                        context->costs);
  // On the wall clock all servers share the weights of one process.
  if (context->clock == clock_kind::virtual_time)
    send_later(self, handle(), next.move.ns, weights_moved{change});
  else
    self->send(handle(), weights_moved{change});
}

void planner_state::end_moving(const weights_moved& message) {
  if (!phase.is(planner_phase::moving) || message.change != change) return;
  if (auto taken = take_beside(); !taken) return give_up_change(taken.error().message);
  install_and_await(planner_phase::installing);
}

result<void> planner_state::take_beside() {
  if (next.content->policy != policy_version || next.content->links != priced_links) {
    auto content = make(next.content->profile, next.content->plan, policy);
    if (!content) return content.error();
    next.content = std::move(*content);
  }
  beside = next.content;
  return {};
}

void planner_state::end_installing() {
  phase.move(planner_phase::installed);
  joint ? answer_step(serving::change_step::install) : begin_under_next();
}

void planner_state::begin_under_next() {
  std::swap(current, beside);
  if (context->trace)
    trace(trace::plan_line(tables(), current->plan, *current->profile, next.change.reason,
                           next.move, time_ns()));
  announce(false);
  install_and_await(planner_phase::beginning);
}

void planner_state::end_beginning() {
  phase.move(planner_phase::ending);
  resume();
  next.change.epoch = current->plan.epoch;
  next.change.moved_bytes = next.move.bytes;
  next.change.done_ns = time_ns();
  self->send(work.recorder, std::move(next.change));
  next = {};
  // Servers told what has ended when they began; whoever has to say more does.
  await_end_of_requests();
  for (const auto server : ended) awaited.erase(server);
  if (joint) answer_step(serving::change_step::commit);
  check_ended();
}

void planner_state::count(const requests_ended& message) {
  if (message.epoch != current->plan.epoch) return;
  if (phase.is(planner_phase::beginning)) ended.insert(message.server);
  if (!phase.is(planner_phase::ending) || awaited.erase(message.server) == 0) return;
  check_ended();
}

void planner_state::check_ended() {
  if (!awaited.empty()) return;
  ended.clear();
  if (joint) return self->send(joint->admin, plan_before_ended{joint->id});
  retire();
}

void planner_state::retire() {
  loaded_model model;
  if (auto loaded = load_here(hosted_by(current->plan)))
    model = std::move(*loaded);
  else
    report(loaded.error());
  beside = nullptr;
  lacks_under = 0;
  install_and_await(planner_phase::retiring, model);
}

void planner_state::end_retiring() {
  phase.move(planner_phase::steady);
  if (joint) answer_step(serving::change_step::retire);
  joint.reset();
  next_order();
}

void planner_state::give_up_change(std::string why) {
  phase.move(planner_phase::steady);
  ++change;
  awaited.clear();
  const bool is_installed = std::exchange(beside, nullptr) != nullptr;
  if (lacks_under != 0) {
    unread = next.content;
    read_back();
  } else {
    const auto model = load_here(hosted_by(current->plan));
    if (!model) report(model.error());
    if (joint || is_installed) install(model ? *model : nullptr);
    resume();
  }
  joint.reset();
  refuse(std::move(why));
  next_order();
}

void planner_state::read_back() {
  constexpr std::int64_t again_ns = 10'000'000'000;
  if (!unread) return;
  const auto model = load_in_steps(unread->plan, current->plan);
  if (!model) {
    if (std::has_single_bit(++times_unread)) report(model.error());
    // The next plan goes, and what comes for the experts waits.
    install();
    return send_later(self, handle(), again_ns, read_experts{}, later::timer);
  }
  unread = nullptr;
  times_unread = 0;
  lacks_under = 0;
  install(*model);
  resume();
}

void planner_state::overdue(const change_overdue& message) {
  if (message.change != change || awaited.empty()) return;
  switch (phase.now()) {
    case planner_phase::draining:
      if (joint && !std::exchange(ended_requests, true)) return end_requests_in_flight();
      if (joint) return answer_step(serving::change_step::hold, "requests in flight do not end");
      return give_up_change(fmt::format("{} of {} servers still had requests in flight",
                                        awaited.size(), work.servers.size()));
    case planner_phase::installing:
      // Nobody may begin under a plan that is not everywhere.
      if (joint)
        return answer_step(serving::change_step::install, "its server did not install the plan");
      if (beside)
        return give_up_change(fmt::format("server {} did not install the plan", *awaited.begin()));
      report_awaited("did not install the plan");
      return all_have_installed();
    case planner_phase::ending:
      if (!std::exchange(ended_requests, true)) return end_requests_in_flight();
      report_awaited("does not end the requests under the plan before");
      return check_ended();
    case planner_phase::beginning:
    case planner_phase::retiring:
      report_awaited("did not install the plan");
      return all_have_installed();
    default:
      return;
  }
}

void planner_state::report_awaited(const char* what) {
  for (const auto server : awaited)
    report({errc::timed_out,
            fmt::format("server {} {} of epoch {}", server, what, current->plan.epoch)},
           server, problem::scope::server);
  awaited.clear();
}

}  // namespace ordermoe::actors
