#include "actors/admin/admin_state.hpp"

#include <fmt/format.h>

#include <utility>

namespace ordermoe::actors {

void admin_state::act(const std::vector<change_action>& todo) {
  for (const auto& each : todo) switch (each.kind) {
      case change_action::what::tell:
        say(each.server, {{"change", each.message.change},
                          {"kind", to_string(each.message.kind)},
                          {"text", each.message.text}});
        break;
      case change_action::what::step:
        take_step(each);
        break;
      case change_action::what::finished:
        finish(each.change, each.text);
        break;
    }
}

void admin_state::take_step(const change_action& what) {
  plan_step step;
  step.change = what.change;
  step.step = what.step;
  step.admin = caf::actor_cast<caf::strong_actor_ptr>(self);
  book->log(log_event::plan_step, {{"step", to_string(what.step)}});
  switch (what.step) {
    case change_step::prepare: {
      book->note(log_event::plan_change_begins, {{"leader", name_of(rules->leader())}});
      if (auto read = read_plan(what.text, step); !read)
        return act(rules->step_done(what.change, read.error().message));
      prepared = step.plan;
      prepared_by = step.measured;
      step.absent = absent_mask();
      break;
    }
    case change_step::hold:
      book->note(log_event::plan_admission_held);
      break;
    case change_step::install:
    case change_step::commit:
    case change_step::retire:
      break;
    case change_step::abort:
      step.why = what.text;
      book->note(log_event::plan_change_aborted, {{"why", what.text}});
      // The planner hears of it once it has done with what it is at.
      if (context().seat->stop_loading) context().seat->stop_loading(what.change);
      break;
  }
  self->send(work.planner, std::move(step));
}

result<void> admin_state::read_plan(const std::string& text, plan_step& step) const {
  auto document = json_document::parse(text, "plan change");
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"plan", "drain_ns", "holds", "activation"});
  const auto plan_text = root.at("plan").string();
  const auto longest = root.at("drain_ns").integer(0, longest_drain_s * 1'000'000'000);
  const auto no_request_begins = root.at("holds").boolean();
  const auto by = root.find("activation");
  const auto activation = by ? by->string() : std::string();
  if (auto read = (*document)->finish(0); !read) return read.error();
  if (by) {
    const auto& shape = context().shape();
    auto measured = planning::parse_activation(activation, "plan change: activation",
                                               shape.n_layers, shape.n_experts, shape.top_k);
    if (!measured) return measured.error();
    step.measured = std::make_shared<const planning::measured_activation>(std::move(*measured));
  }
  auto plan = planning::parse_plan(plan_text, "plan change");
  if (!plan) return plan.error();
  step.plan = std::make_shared<const planning::plan>(std::move(*plan));
  step.drain_ns = longest;
  step.holds = no_request_begins;
  return {};
}

void admin_state::take(const plan_step_done& message) {
  const auto& why = message.why;
  const auto about = ordered_json{{"epoch", prepared ? prepared->epoch : 0}};
  if (message.step == change_step::commit && prepared) keep_plan();
  if (message.step == change_step::commit) book->note(log_event::plan_changed, about);
  if (message.step == change_step::retire) book->note(log_event::plan_before_gone, about);
  act(rules->step_done(message.change, why));
}

void admin_state::keep_plan() {
  if (prepared_by)
    keep(kept_activation_name, planning::activation_json(*prepared_by), log_event::plan_not_kept);
  if (!context().seat->adopt) return;
  if (auto kept = context().seat->adopt(*prepared); !kept)
    book->note(log_event::plan_not_kept, {{"why", kept.error().message}});
}

void admin_state::finish(serving::change_id change, const std::string& why) {
  auto found = led.extract(change);
  if (found.empty()) return;
  auto& change_led = found.mapped();
  const auto order = change_led.order;
  const auto epoch = change_led.epoch;
  if (!why.empty()) return stay(order, epoch - 1, why);
  if (change_led.plans.empty())
    return book->done(order, epoch,
                      {{"epoch", epoch}, {"admission", std::move(change_led.admission)}});
  // It waits until the plan before this one is gone.
  if (const auto begun = lead_next(std::move(change_led), false); !begun)
    stay(order, epoch, begun.error().message);
}

void admin_state::stay(const order_ptr& order, std::uint64_t epoch, const std::string& why) {
  if (epoch == order->epoch_before)
    return book->refuse(order, {errc::failed, fmt::format("the plan stays: {}", why)});
  book->refuse(order,
               {errc::failed,
                fmt::format("on the way, by the plan of epoch {}: {}; all requests are answered by "
                            "it, propose again to go on",
                            epoch, why)});
}

}  // namespace ordermoe::actors
