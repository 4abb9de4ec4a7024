#include "actors/admin/admin_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "net/session/session.hpp"
#include "planning/serving/two_plans.hpp"
#include "planning/strategies/left_out.hpp"

namespace ordermoe::actors {

void admin_state::propose(const order_ptr& order, const json_value& arguments) {
  arguments.only({"strategy", "steps", "seed", "without", "measured"});
  auto wanted = std::make_shared<replan_order>();
  const auto strategy = arguments.find("strategy");
  if (strategy) wanted->strategy = strategy->string();
  if (const auto steps = arguments.find("steps"))
    wanted->planning.search_steps =
        static_cast<std::size_t>(steps->unsigned_integer(1, 1'000'000'000));
  if (const auto seed = arguments.find("seed")) wanted->planning.seed = seed->unsigned_integer();
  const auto left_out = left_out_of(arguments);
  if (!left_out) return book->refuse(order, left_out.error());
  wanted->planning.without = *left_out;
  const auto by_measure = arguments.find("measured");
  if (!by_measure || !by_measure->boolean()) return propose(order, wanted, nullptr);
  if (gatherings.full()) return book->refuse(order, asked_too_much());
  with_activation([this, order, wanted](const auto& measured, const auto&) {
    if (measured->least_rows() >= 1) return propose(order, wanted, measured);
    book->refuse(
        order, {errc::failed,
                fmt::format("routers have chosen nothing yet at some layer, or so long ago that "
                            "it counts no more ({:.3g} rows are left of it, expected 1 at least); "
                            "propose without --measured, or once requests were answered",
                            measured->least_rows())});
  });
}

bool admin_state::refused_for_change(const order_ptr& order) {
  if (!rules->is_under_way()) return false;
  book->refuse(order,
               {errc::failed, "a change of plan is under way; propose again once it is over"});
  return true;
}

void admin_state::propose(const order_ptr& order, const std::shared_ptr<const replan_order>& wanted,
                          const activation_ptr& measured) {
  if (refused_for_change(order)) return;
  with_plan(order, [this, order, wanted, measured](const in_force& now) {
    // One may have begun while the planner was busy.
    if (refused_for_change(order)) return;
    const auto epoch = now.content->plan.epoch;
    self->request(work.planner, caf::infinite, plan_query{wanted, measured})
        .then([this, order, epoch, measured, before = now.content](const plan_proposal& made) {
          if (!made.plan) return book->refuse(order, {errc::failed, made.refused});
          if (order->dry_run) return tell_unkept(order, made, *before, measured);
          const auto& kept = keep(true, made, before->plan, measured);
          book->note(log_event::plan_proposed,
                     {{"proposal", kept.number}, {"operation", order->operation}});
          book->done(order, epoch, proposal_report(context(), kept));
        });
  });
}

/// Kept nowhere: `plan apply` would take it for what was proposed last.
void admin_state::tell_unkept(const order_ptr& order, const plan_proposal& made,
                              const plan_in_force& before, const activation_ptr& measured) {
  const proposal would{n_proposals + 1, made, way_to(before.plan, *made.plan), measured};
  auto told = difference_report(context(), before.index, would);
  told.erase("proposal");
  book->done(order, before.plan.epoch, std::move(told));
}

result<planning::server_mask> admin_state::left_out_of(const json_value& arguments) const {
  auto mask = absent_mask();
  const auto named = arguments.find("without");
  if (!named) return mask;
  for (const auto& name : named->strings()) {
    const auto server = server_called(name);
    if (!server) return server.error();
    mask |= planning::server_bit(*server);
  }
  return mask;
}

const proposal& admin_state::keep(bool is_ordered, const plan_proposal& made,
                                  const planning::plan& before, const activation_ptr& measured) {
  if (proposals.size() == most_proposals) proposals.pop_front();
  proposals.push_back({++n_proposals, made, way_to(before, *made.plan), measured, is_ordered});
  return proposals.back();
}

std::vector<planning::plan> admin_state::way_to(const planning::plan& before,
                                                const planning::plan& after) const {
  return serving::plans_between(before, after, context().servers, context().costs);
}

const proposal* admin_state::proposal_of(const order_ptr& order, const json_value& arguments) {
  const auto wanted = arguments.find("proposal");
  if (proposals.empty()) {
    book->refuse(order,
                 {errc::not_found, "nothing was proposed at this node; `plan propose` first"});
    return nullptr;
  }
  if (!wanted) {
    // Nobody applies unseen what came by itself behind what was looked at.
    const auto ordered =
        std::ranges::find(proposals.rbegin(), proposals.rend(), true, &proposal::is_ordered);
    return ordered != proposals.rend() ? &*ordered : &proposals.back();
  }
  const auto number = wanted->unsigned_integer();
  const auto found = std::ranges::find(proposals, number, &proposal::number);
  if (found != proposals.end()) return &*found;
  book->refuse(order,
               {errc::not_found, fmt::format("found proposal {}, expected one of {} to {}", number,
                                             proposals.front().number, proposals.back().number)});
  return nullptr;
}

void admin_state::diff(const order_ptr& order, const json_value& arguments) {
  const auto* chosen = proposal_of(order, arguments);
  if (chosen == nullptr) return;
  with_plan(order, [this, order, of = *chosen](const in_force& now) {
    book->tell(order, difference_report(context(), now.content->index, of));
  });
}

void admin_state::apply(const order_ptr& order, const json_value& arguments) {
  arguments.only({"proposal", "drain_s"});
  const auto drain = arguments.find("drain_s");
  const auto drain_s = drain ? drain->integer(0, longest_drain_s) : 30;
  const auto* chosen = proposal_of(order, arguments);
  if (chosen == nullptr) return;
  with_plan(order, [this, order, drain_s, of = *chosen](const in_force& now) {
    if (of.content.plan->epoch != now.content->plan.epoch + 1)
      return book->refuse(
          order, {errc::mismatch,
                  fmt::format("proposal {} follows the plan of epoch {}, in force is "
                              "that of epoch {}; propose again",
                              of.number, of.content.plan->epoch - 1, now.content->plan.epoch)});
    const auto left = planning::newly_needed(*of.content.plan, now.content->plan, absent_mask());
    if (left != 0)
      return book->refuse(
          order,
          {errc::mismatch,
           fmt::format("proposal {} has experts, or rows of others' requests, on {}, which "
                       "is no member any more; propose again",
                       of.number, name_of(static_cast<std::uint32_t>(std::countr_zero(left))))});
    if (order->dry_run) return tell_dry_run(order, of, drain_s);
    lead(order, of, drain_s);
  });
}

void admin_state::tell_dry_run(const order_ptr& order, const proposal& of, std::int64_t drain_s) {
  const auto missing = away_members();
  if (!missing.empty())
    return book->refuse(order,
                        {errc::failed, fmt::format("{} is not connected, and every server has "
                                                   "to take part",
                                                   name_of(*missing.begin()))});
  auto told = proposal_report(context(), of);
  told["drain_s"] = drain_s;
  told["note"] =
      !of.plans.empty()
          ? fmt::format(
                "servers load what they lack while requests are answered; then new ones begin "
                "under the new plan, and those before end under theirs; what has not ended {} s "
                "later ends with an error that says so",
                drain_s)
          : fmt::format(
                "admission will be held for up to {} s, and for as long as servers take to load "
                "what they lack: new requests wait until those in flight have ended; what is in "
                "flight then ends with an error that says so",
                drain_s);
  book->done(order, last_epoch(of), std::move(told));
}

void admin_state::lead(const order_ptr& order, const proposal& of, std::int64_t drain_s) {
  led_change first{order,      {of.plans.begin(), of.plans.end()}, 0, drain_s, admission_during(of),
                   of.measured};
  const bool holds = of.plans.empty();
  if (holds) first.plans.push_back(*of.content.plan);
  if (const auto begun = lead_next(std::move(first), holds); !begun)
    book->refuse(order, begun.error());
}

result<void> admin_state::lead_next(led_change next, bool holds) {
  const auto change = (std::uint64_t{id()} + 1) << 56 |
                      (std::uint64_t{context().seat->boot} & 0xffffff) << 32 | ++n_changes;
  const auto plan = std::move(next.plans.front());
  next.plans.pop_front();
  next.epoch = plan.epoch;
  ordered_json text{{"plan", ordered_json::parse(planning::plan_json(plan)).dump()},
                    {"drain_ns", next.drain_s * 1'000'000'000},
                    {"holds", holds}};
  if (next.measured) text["activation"] = planning::activation_json(*next.measured);
  // As it is told, within a message of the admins'.
  constexpr std::size_t rest_bytes = 4096;
  static const std::size_t most =
      net::session_limits{}.largest_frame[static_cast<std::size_t>(net::lane::control)] -
      rest_bytes;
  const auto content = text.dump();
  if (const auto bytes = ordered_json(content).dump().size(); bytes > most)
    return error{errc::infeasible, fmt::format("the plan takes {} bytes where it is told to the "
                                               "others, expected at most {}; one with fewer "
                                               "copies of experts takes less",
                                               bytes, most)};
  auto todo = rules->begin(change, content, holds);
  if (!todo) return todo.error();
  led[change] = std::move(next);
  act(*todo);
  return {};
}

void admin_state::abort(const order_ptr& order, const json_value&) {
  // Not of the planner, who may be loading experts for the change.
  with_epoch(order, [this, order](std::uint64_t epoch) {
    std::vector<change_action> todo;
    const auto why = fmt::format("aborted by {} (operation {})", order->who, order->operation);
    auto tried = *rules;
    if (!(order->dry_run ? tried : *rules).give_up(why, todo))
      return book->refuse(order, {errc::failed,
                                  "no change that this node leads can be aborted: none is under "
                                  "way, or it is committed"});
    if (!order->dry_run) act(todo);
    book->done(order, epoch, ordered_json::object());
  });
}

}  // namespace ordermoe::actors
