#include "actors/monitor.hpp"

#include <cmath>
#include <utility>

#include "planning/strategies/adaptation.hpp"

namespace ordermoe::actors {

namespace {

/// What the newest report of a load counts against all before it.
constexpr double newest_share = 0.25;

void fade(double& mean, double value) {
  mean += newest_share * (value - mean);
}

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
  std::vector<double> position_ns;  ///< [n_servers] exact execution of the plan in force.
  bool adapts = false;              ///< The policy weighs by omega, and a step size was given.
  double omega_quality = 0;
  std::vector<planning::observed_request> window;
  std::vector<std::uint64_t> window_requests;
  std::vector<link_load> links;  ///< [from, to] latest report
  observations seen;             ///< Budget use and delay in sum.

  void start() {
    const auto& shape = context->shape();
    const auto n = context->servers.size();
    activation = {shape.n_layers, shape.n_experts, options.half_life_rows};
    next_check_rows = options.least_rows;
    links.resize(n * n);
    seen.wait_ns.resize(n);
    seen.link_use.resize(n * n);
    seen.link_wait_ns.resize(n * n);
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
    position_ns = planning::exact_position_ns(*placed->profile, placed->plan, context->servers,
                                              context->costs);
  }

  /// No better plan for what was measured: from here on only further drift counts.
  void keep_plan() {
    awaits_planner = false;
    profile_cost_ns = proposed_cost_ns;
  }

  void count(const activation_report& report) {
    activation.add(report.counts, report.rows);
    if (options.drift_margin <= 0 || awaits_planner || !placed) return;
    if (activation.rows_seen() < next_check_rows) return;
    next_check_rows = activation.rows_seen() + options.least_rows;
    auto measured = std::make_shared<const planning::profile>(
        planning::with_measured_activation(*placed->profile, activation));
    proposed_cost_ns = cost_ns(*measured);
    const auto ratio = proposed_cost_ns / profile_cost_ns;
    if (std::abs(ratio - 1) <= options.drift_margin) return;
    awaits_planner = true;
    ++seen.proposals;
    self->send(planner, propose_replan{std::move(measured), ratio, options.drift_margin});
  }

  void count(const planning::answered_request& request) {
    if (!planning::has_budget_use(request.budget)) return;
    const auto observed = planning::observe(request, context->chunk_rows, position_ns);
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

  void measure(const link_load& report) {
    const auto index = report.from * context->servers.size() + report.to;
    auto& before = links[index];
    const auto elapsed = report.time_ns - before.time_ns;
    if (elapsed > 0)
      fade(seen.link_use[index],
           static_cast<double>(report.busy_ns - before.busy_ns) / static_cast<double>(elapsed));
    fade(seen.link_wait_ns[index], static_cast<double>(report.wait_ns));
    before = report;
  }

  observations tell() const {
    auto told = seen;
    for (std::size_t l = 0; l < activation.n_layers(); ++l)
      told.activation.push_back(activation.shares(l));
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
  const bool wall = context->clock == clock_kind::wall;
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
        [&state](const wire::load_report& report) {
          fade(state.seen.wait_ns[report.server], static_cast<double>(report.wait_ns));
        },
        [&state](const link_load& report) { state.measure(report); },
        [&state](const request_report& report) { state.count(*report.content); },
        [&state](status_query) { return state.tell(); },
    };
  };
  // Judging drift takes long: on the wall clock it has a thread of its own.
  return wall ? system.spawn<caf::detached>(std::move(behavior))
              : system.spawn(std::move(behavior));
}

}  // namespace ordermoe::actors
