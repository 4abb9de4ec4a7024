#pragma once

#include <deque>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "test/actors/living.hpp"

/// Days in the life of a service, by seed: clients come and go, plans and the policy change.
namespace ordermoe::test {

/// What happened in a run, so that a test can tell that it tests something.
struct living_counts {
  std::size_t answered = 0, cancelled = 0, overdue = 0;
  std::size_t plans_changed = 0, policies_changed = 0;
  std::size_t held = 0;       ///< Requests that arrived between hold and resume.
  std::size_t two_plans = 0;  ///< Requests that ended under the plan before.
  std::size_t statuses = 0;

  living_counts& operator+=(const living_counts& more) {
    answered += more.answered;
    cancelled += more.cancelled;
    overdue += more.overdue;
    plans_changed += more.plans_changed;
    policies_changed += more.policies_changed;
    held += more.held;
    two_plans += more.two_plans;
    statuses += more.statuses;
    return *this;
  }
};

/// Three clients submit requests at random times; 20 % are cancelled in a random phase, 5 % have a
/// deadline that passes. Two plan changes and a change of policy meanwhile; two requests arrive between
/// hold and resume of each change of plans, or while weights move. The status is asked every 10 ms. Every other seed both plans
/// fit into memory together.
class living_run {
 public:
  living_run(actors::run_mode mode, std::uint64_t seed)
      : mode_(mode),
        draws_(seed, 0x6c696665),
        world_("exact", 0, 1, 5, tiny_model(), seed % 2 == 0 ? world::roomy : 2.5) {
    world_.setup.mode = mode;
    world_.setup.keep_final_hidden = false;
    world_.setup.chunk_rows = 4;
  }

  /// Empty where everything was as it must be; else what was not.
  std::string run(living_counts& counts);

 private:
  struct client_request {
    followed_request follow;
    std::uint64_t number = 0;
    std::int64_t cancel_ns = -1;  ///< After arrival; -1: never.
    bool short_deadline = false;
  };

  bool emulated() const { return mode_ == actors::run_mode::emulated; }
  /// On the wall clock the small model answers in some milliseconds, where a cluster takes a second.
  std::int64_t scaled(std::int64_t ns) const { return emulated() ? ns : ns / 20; }
  std::int64_t within(std::int64_t ns) {
    return static_cast<std::int64_t>(draws_.below(static_cast<std::uint64_t>(scaled(ns))));
  }

  void submit_one(std::int64_t arrival_ns);
  void order_changes();
  /// Time passes; the status is asked.
  std::string live(living_counts& counts);
  std::string check_end(living_counts& counts);

  actors::run_mode mode_;
  random_stream draws_;
  world world_;
  std::unique_ptr<actors::service> service_;
  std::deque<client_request> requests_;
  std::size_t submitted_in_change_ = 0;
};

inline void living_run::submit_one(std::int64_t arrival_ns) {
  auto& request = requests_.emplace_back();
  auto& spec = request.follow.spec;
  const auto vocabulary = world_.setup.model->config().vocab_size;
  spec.access = static_cast<std::uint32_t>(draws_.below(world_.setup.servers.size()));
  spec.arrival_ns = arrival_ns;
  const auto length = 1 + draws_.below(12);
  for (std::size_t t = 0; t < length; ++t)
    spec.prompt.push_back(static_cast<std::int32_t>(draws_.below(vocabulary)));
  spec.max_new_tokens = static_cast<std::uint32_t>(1 + draws_.below(emulated() ? 8 : 48));
  spec.temperature = draws_.unit() < 0.5 ? 0 : 0.9;
  spec.sampling_seed = 3;
  const auto luck = draws_.unit();
  if (luck < 0.2) request.cancel_ns = within(emulated() ? 1'500'000'000 : 100'000'000);
  if (luck >= 0.2 && luck < 0.25) {
    request.short_deadline = true;
    spec.deadline_ns = emulated() ? 1 + within(50'000'000) : 1;
  }
  request.number = service_->submit(spec, request.follow.sink());
  if (request.cancel_ns >= 0)
    service_->at(arrival_ns + request.cancel_ns,
                 [service = service_.get(), number = request.number] { service->cancel(number); });
}

inline void living_run::order_changes() {
  actors::replan_order there, back;
  there.strategy = "layer-shards";
  there.at_ns = within(2'000'000'000);
  back.strategy = "exact";
  back.at_ns = scaled(3'000'000'000) + within(2'000'000'000);
  service_->change_plan(there);
  service_->change_plan(back);
  // On the wall clock a change is over before a status shows it.
  if (!emulated())
    for (const auto& order : {there, back})
      for (int i = 0; i < 4; ++i) submit_one(std::max<std::int64_t>(0, order.at_ns) + 300'000 * i);
  actors::policy_order policy;
  policy.policy = world_.setup.chosen.policy;
  policy.policy.horizon = 2;
  policy.at_ns = within(5'000'000'000);
  service_->change_policy(policy);
}

inline std::string living_run::live(living_counts& counts) {
  const auto n_changes = [&] { return service_->history()->plan_changes.size(); };
  for (auto next = service_->now_ns();;) {
    next = std::max(next + 10'000'000, service_->now_ns());
    service_->run_until(
        [&] { return service_->now_ns() >= next || (service_->outstanding() == 0 && emulated()); });
    const auto status = service_->status();
    if (!status) return status.error().message;
    ++counts.statuses;
    if (auto wrong = contradiction(*status); !wrong.empty()) return wrong;
    using actors::planner_phase;
    const auto phase = status->planner.phase;
    const bool changes = phase == planner_phase::draining || phase == planner_phase::moving;
    if (changes && submitted_in_change_ < 2 * (n_changes() + 1)) {
      ++submitted_in_change_;
      submit_one(service_->now_ns());
    }
    const auto finished = n_changes();
    if (service_->outstanding() == 0 && (finished == 2 || emulated())) return {};
  }
}

inline std::string living_run::check_end(living_counts& counts) {
  if (auto settled = service_->settle(); !settled) return settled.error().message;
  const auto history = service_->history();
  const auto status = service_->status();
  if (!history || !status) return "no status at the end";
  for (const auto& change : history->plan_changes) counts.plans_changed += change.refused.empty();
  for (const auto& change : history->policy_changes)
    counts.policies_changed += change.refused.empty();
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    const auto& [follow, number, cancel_ns, short_deadline] = requests_[i];
    const auto place = fmt::format("request {}: ", number);
    if (!follow.mistake.empty()) return place + follow.mistake;
    if (!follow.ended) return place + "no end";
    const auto& end = *follow.ended;
    const auto expected = reference_ids(*world_.setup.model, follow.spec, number);
    const bool whole = follow.streamed == expected;
    const bool beginning =
        follow.streamed.size() <= expected.size() &&
        std::equal(follow.streamed.begin(), follow.streamed.end(), expected.begin());
    for (const auto& change : history->plan_changes) {
      if (!change.refused.empty()) continue;
      counts.held += change.held && end.arrival_ns > change.asked_ns &&
                     end.arrival_ns < change.done_ns && end.done_ns > change.done_ns;
      counts.two_plans +=
          !change.held && end.arrival_ns < change.done_ns && end.done_ns > change.done_ns;
    }
    if (end.finish == "cancelled") {
      ++counts.cancelled;
      if (cancel_ns < 0 || !beginning) return place + "cancelled with other ids, or unasked";
    } else if (end.problem) {
      ++counts.overdue;
      if (end.problem->code != errc::timed_out || !short_deadline || !beginning)
        return place + end.problem->message;
    } else {
      ++counts.answered;
      if (!whole) return place + "other ids";
    }
  }
  return left_behind(*status);
}

inline std::string living_run::run(living_counts& counts) {
  auto begun = actors::service::start(world_.setup);
  if (!begun) return begun.error().message;
  service_ = std::move(*begun);
  order_changes();
  constexpr int n_clients = 3, n_each = 8;
  for (int client = 0; client < n_clients; ++client)
    for (int i = 0; i < n_each; ++i) submit_one(within(5'000'000'000));
  if (auto wrong = live(counts); !wrong.empty()) return wrong;
  auto wrong = check_end(counts);
  service_->stop();
  return wrong;
}

}  // namespace ordermoe::test
