#include "actors/admin/admin_state.hpp"

#include <fmt/format.h>

#include <utility>

#include "planning/selection/policy_check.hpp"
#include "trace/header.hpp"

namespace ordermoe::actors {

result<planning::selection_policy> admin_state::changed_policy(
    const planning::selection_policy& now, const std::string& members) const {
  auto whole = ordered_json::parse(trace::policy_json(now));
  const auto changes = parse_told(members);
  if (!changes.is_object() || changes.empty())
    return error{errc::usage, "arguments.policy: expected an object with the members to change"};
  for (const auto& [name, value] : changes.items()) {
    if (!whole.contains(name))
      return error{errc::usage,
                   fmt::format("arguments.policy: found '{}', expected a member of what "
                               "`policy get` tells",
                               name)};
    whole[name] = value;
  }
  return trace::parse_policy(whole.dump(), "arguments.policy");
}

void admin_state::set_policy(const order_ptr& order, const json_value& arguments) {
  change_policy_by(order, arguments.at("policy").string());
}

void admin_state::change_policy_by(const order_ptr& order, const std::string& members) {
  with_plan(order, [this, order, members, before = policy.version](const in_force& now) {
    // Of what the planner had not heard of when it answered: it has by now.
    if (policy.version != before) return change_policy_by(order, members);
    const auto changed = changed_policy(now.policy, members);
    if (!changed) return book->refuse(order, changed.error());
    // One that no planner would take is not kept either.
    const auto& content = *now.content;
    if (const auto good = planning::selection::check_policy(*changed, content.profile->top_k,
                                                            content.decoding.token_budget);
        !good)
      return book->refuse(order, good.error());
    if (policy.version >= most_policy_version)
      return book->refuse(order, {errc::failed,
                                  "a policy has the last version that there is; stop all nodes, "
                                  "remove state/policy.json of each, and start them"});
    const auto version = policy.version + 1;
    if (!order->dry_run) {
      adopt_policy({version, id(), order->operation, *changed});
      say_to_all({{"policy", text_of(policy)}});
    }
    book->done(order, now.content->plan.epoch,
               {{"version", version},
                {"policy", ordered_json::parse(trace::policy_json(*changed))},
                {"not_told", names_of(away_members())}});
  });
}

void admin_state::adopt_policy(kept_policy next) {
  policy = std::move(next);
  // One that was kept is older.
  policy_is_due = false;
  order_policy();
  keep(kept_policy_name, text_of(policy), log_event::policy_not_kept);
}

void admin_state::order_policy() {
  auto wanted = std::make_shared<policy_order>();
  wanted->policy = policy.policy;
  self->send(work.planner, change_policy{std::move(wanted)});
  book->note(log_event::policy_changed,
             {{"operation", policy.operation}, {"version", policy.version}});
}

void admin_state::follow_kept_policy() {
  self->request(work.planner, caf::infinite, in_force_query{}).then([this](const in_force& now) {
    if (now.content && std::exchange(policy_is_due, false)) order_policy();
  });
}

}  // namespace ordermoe::actors
