#include "bench/experiments/experiment.hpp"

#include <algorithm>

namespace ordermoe::experiments {

spread spread_of(std::vector<double> values) {
  spread found;
  if (values.empty()) return found;
  std::sort(values.begin(), values.end());
  for (const auto value : values) found.mean += value / static_cast<double>(values.size());
  const auto at = [&](double share) {
    return values[std::min(values.size() - 1,
                           static_cast<std::size_t>(share * static_cast<double>(values.size())))];
  };
  found.p50 = at(0.50);
  found.p95 = at(0.95);
  if (values.size() >= 500) found.p99 = at(0.99);
  return found;
}

double strategy_report::per_1k(std::int64_t bytes) const {
  const auto tokens = prompt_tokens + new_tokens;
  return tokens == 0 ? 0 : 1000.0 * static_cast<double>(bytes) / static_cast<double>(tokens);
}

namespace {

strategy_report report_of(const service_options& service) {
  strategy_report report;
  report.name = service.chosen.name;
  if (service.chosen.has_budget) report.quality_budget_percent = service.quality_percent;
  report.whole_model = service.chosen.whole_model;
  const auto& pruned = service.chosen.pruned_nats;
  report.whole_model_percent =
      planning::percent_of_nats(service.chosen.quality.taken_nats - pruned.value_or(0));
  if (pruned) report.pruned_percent = planning::percent_of_nats(*pruned);
  report.plan_estimate_ms = service.chosen.plan.estimated_token_ns * 1e-6;
  return report;
}

run_setup setup_of(const service_options& service, const workload& load, job& work) {
  run_setup setup;
  static_cast<service_options&>(setup) = service;
  setup.requests = load.requests;
  setup.trace = load.trace;
  setup.replans = load.replans;
  setup.watcher = load.watcher;
  setup.should_stop = work.stopping();
  setup.on_progress = work.counting();
  draw_arrivals(setup.requests, setup.servers, load.rate,
                setup::seed_of(service.seed, load.arrivals));
  return setup;
}

}  // namespace

result<strategy_report> measure(const service_options& service, std::span<const workload> workloads,
                                job& work) {
  return measure(service, workloads, work, run_requests);
}

result<strategy_report> measure(const service_options& service, std::span<const workload> workloads,
                                job& work, const answering_machine& answer) {
  auto report = report_of(service);
  for (const auto& load : workloads) {
    work.begin(load.phase);
    const auto setup = setup_of(service, load, work);
    auto answered = answer(setup);
    if (!answered) return answered.error();
    report.host_seconds += answered->host_seconds;
    report.tensor_seconds += answered->tensor_seconds;
    load.account(setup, *answered, report);
  }
  return report;
}

}  // namespace ordermoe::experiments
