#include "actors/monitor.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "planning/strategies/adaptation.hpp"

namespace ordermoe::actors {

namespace {

/// Loads are means over all that was seen, of which each time counts by exp(-age / memory_ns).
constexpr double memory_ns = 1e9;

/// `value` has held for so long.
void fade(double& mean, double value, std::int64_t elapsed_ns) {
  if (elapsed_ns > 0)
    mean += -std::expm1(-static_cast<double>(elapsed_ns) / memory_ns) * (value - mean);
}

/// A mean of waits that are told when they change.
struct told_wait {
  std::int64_t since_ns = 0;
  std::int64_t wait_ns = 0;
  double mean_ns = 0;

  void hold_until(std::int64_t time_ns) {
    fade(mean_ns, static_cast<double>(wait_ns), time_ns - since_ns);
    since_ns = std::max(since_ns, time_ns);
  }
};

/// What a link told last, and the means until then. Its frames are sent one after the other: what it has
/// been busy for before a time is `busy` less what then waits.
struct told_link {
  link_load last;
  double use = 0;
  double mean_wait_ns = 0;

  void hold_until(std::int64_t time_ns, std::int64_t busy_ns, std::int64_t wait_ns) {
    const auto elapsed = time_ns - last.time_ns;
    if (elapsed <= 0) return;
    const auto busy = (busy_ns - wait_ns) - (last.busy_ns - last.wait_ns);
    fade(use, static_cast<double>(busy) / static_cast<double>(elapsed), elapsed);
    const auto drained = std::min(elapsed, last.wait_ns);  // The wait falls as time passes.
    fade(mean_wait_ns,
         static_cast<double>(drained) *
             (static_cast<double>(last.wait_ns) - static_cast<double>(drained) / 2) /
             static_cast<double>(elapsed),
         elapsed);
  }
  void take(const link_load& report) {
    hold_until(report.time_ns, report.busy_ns, report.wait_ns);
    last = report;
  }
  void hold_until(std::int64_t time_ns) {
    const auto wait = std::max<std::int64_t>(0, last.wait_ns - (time_ns - last.time_ns));
    take({last.from, last.to, time_ns, last.busy_ns, wait});
  }
};

struct monitor_state {
  monitor_actor::pointer self = nullptr;
  std::shared_ptr<const service_context> context;
  monitor_options options;
  std::shared_ptr<const plan_in_force> placed;
  planner_actor planner;
  planning::activation_statistics activation;
  double profile_cost_ns = 0;   ///< Of the plan in force under the profile in force.
  double proposed_cost_ns = 0;  ///< Under the profile of the latest proposal.
  bool awaits_planner = false;  ///< A proposal has not been answered.
  std::uint64_t next_check_rows = 0;
  /// By epoch, of the plan in force and of the one before: [n_servers] exact execution.
  std::map<std::uint64_t, std::vector<double>> position_ns;
  bool adapts = false;  ///< The policy weighs by omega, and a step size was given.
  double omega_quality = 0;
  std::vector<planning::observed_request> window;
  std::vector<std::uint64_t> window_requests;
  std::vector<told_wait> waits;  ///< [n_servers]
  std::vector<told_link> links;  ///< [from, to]
  observations seen;             ///< Budget use and delay in sum.

  void start() {
    const auto& shape = context->shape();
    const auto n = context->servers.size();
    activation = {shape.n_layers, shape.n_experts, shape.top_k,
                  context->seat ? context->seat->drift.half_life_s : options.half_life_s};
    activation.fade_to(time_ns());
    if (context->seat && context->seat->counted) activation.restore(*context->seat->counted);
    next_check_rows = options.least_rows;
    waits.resize(n);
    links.resize(n * n);
  }

  double cost_ns(const planning::profile& profile) const {
    return planning::placement_cost_ns(profile, placed->plan, context->servers, context->costs);
  }

  void compare_with(plan_announced& message) {
    placed = std::move(message.content);
    planner = std::move(message.planner);
    awaits_planner = false;
    if (message.new_policy) {
      const auto& policy = placed->tables->policy();
      omega_quality = policy.omega_quality;
      adapts = options.kappa > 0 && omega_quality > 0 && policy.price_ns_per_loss == 0;
      window.clear();
      window_requests.clear();
    }
    if (options.drift_margin > 0) profile_cost_ns = cost_ns(*placed->profile);
    position_ns[placed->plan.epoch] = planning::exact_position_ns(*placed->profile, placed->plan,
                                                                  context->servers, context->costs);
    while (position_ns.size() > 2) position_ns.erase(position_ns.begin());
  }

  /// No better plan for what was measured: from here on only further drift counts.
  void keep_plan() {
    awaits_planner = false;
    profile_cost_ns = proposed_cost_ns;
  }

  void count(const activation_report& report) {
    activation.fade_to(time_ns());
    for (std::size_t l = 0; l < report.targets.size(); ++l) {
      activation.add(l, report.targets[l]);
      seen.activation_rows += report.targets[l].size() / context->shape().top_k;
    }
    for (std::size_t l = 0; l < report.steps.size(); ++l) activation.add_steps(l, report.steps[l]);
    if (options.drift_margin <= 0 || awaits_planner || !placed) return;
    if (activation.rows_seen() < next_check_rows ||
        activation.least_rows() < static_cast<double>(options.least_rows))
      return;
    next_check_rows = activation.rows_seen() + options.least_rows;
    auto measured = std::make_shared<const planning::profile>(
        planning::with_measured_activation(*placed->profile, activation.now()));
    proposed_cost_ns = cost_ns(*measured);
    const auto ratio = proposed_cost_ns / profile_cost_ns;
    if (std::abs(ratio - 1) <= options.drift_margin) return;
    awaits_planner = true;
    ++seen.proposals;
    self->send(planner, propose_replan{std::move(measured), ratio, options.drift_margin});
  }

  void count(const planning::answered_request& request) {
    if (!planning::has_budget_use(request.budget)) return;
    const auto by = position_ns.find(request.epoch);
    if (by == position_ns.end()) return;
    const auto observed = planning::observe(request, context->chunk_rows, by->second);
    ++seen.requests;
    seen.budget_use += observed.budget_use;
    seen.normalised_delay += observed.normalised_delay;
    if (!adapts) return;
    window.push_back(observed);
    window_requests.push_back(request.request);
    if (window.size() < options.window_requests) return;
    const auto weights = planning::adapt_to_window(omega_quality, options.kappa, window);
    const bool moved = weights.omega_quality != omega_quality;
    omega_quality = weights.omega_quality;
    if (moved)
      self->send(planner, change_weights{weights, options.kappa, std::move(window_requests)});
    window.clear();
    window_requests.clear();
  }

  std::int64_t time_ns() const { return now_ns(self) - context->start_ns; }

  void measure(const wire::load_report& report) {
    auto& wait = waits[report.server];
    wait.hold_until(time_ns());
    wait.wait_ns = report.wait_ns;
  }

  void measure(const link_load& report) {
    links[report.from * context->servers.size() + report.to].take(report);
  }

  observations tell() {
    auto told = seen;
    const auto time = time_ns();
    // All means began at nothing, which counts as much as what is not yet forgotten of it.
    const auto weight = time > 0 ? -std::expm1(-static_cast<double>(time) / memory_ns) : 1;
    for (auto& wait : waits) {
      wait.hold_until(time);
      told.wait_ns.push_back(wait.mean_ns / weight);
    }
    for (auto& link : links) {
      link.hold_until(time);
      told.link_use.push_back(link.use / weight);
      told.link_wait_ns.push_back(link.mean_wait_ns / weight);
    }
    activation.fade_to(time);
    told.activation = activation.now();
    if (told.requests > 0) {
      told.budget_use /= static_cast<double>(told.requests);
      told.normalised_delay /= static_cast<double>(told.requests);
    }
    return told;
  }
};

}  // namespace

monitor_actor spawn_monitor(caf::actor_system& system,
                            std::shared_ptr<const service_context> context,
                            const monitor_options& options) {
  // A node's judges no drift: the admins do so for all nodes.
  const bool judges = context->clock == clock_kind::wall && !context->seat;
  auto behavior = [context = std::move(context),
                   options](monitor_actor::stateful_pointer<monitor_state> self) mutable
      -> monitor_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.context = std::move(context);
    state.options = options;
    state.start();
    return {
        [&state](plan_announced& message) { state.compare_with(message); },
        [&state](plan_kept) { state.keep_plan(); },
        [&state](const activation_report& report) { state.count(report); },
        [&state](const wire::load_report& report) { state.measure(report); },
        [&state](const link_load& report) { state.measure(report); },
        [&state](const request_report& report) { state.count(*report.content); },
        [&state](status_query) { return state.tell(); },
    };
  };
  // Judging drift takes long: on the wall clock it has a thread of its own.
  return judges ? system.spawn<caf::detached>(std::move(behavior))
                : system.spawn(std::move(behavior));
}

}  // namespace ordermoe::actors
