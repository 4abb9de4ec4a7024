#include <algorithm>
#include <cmath>

#include "planning/search/trajectory.hpp"

/// Waits at the servers while several positions are in flight.
namespace ordermoe::planning {

namespace {

/// One kind of job at a server: rows for it that wait together are served as one.
struct job_kind {
  double runs = 0;        ///< Rows per position
  double service_ns = 0;  ///< Of one batch
};

/// Mean wait of the first row of a job at a server that serves its jobs in order, where positions
/// pass at `rate` per ns: what is ahead in the queue and in service,
///
///   w = sum over kinds of (jobs per ns) * service * (w + service / 2)
///
/// Rows of the same kind that come while a job waits join it, so that (jobs per ns) is
/// rows / (1 + rows * w): the right side is concave, and Newton's method from beyond the root
/// descends to it.
double first_row_wait(const std::vector<job_kind>& kinds, double rate) {
  double w = 0;
  for (const auto& kind : kinds) w += 2 * kind.service_ns;
  for (int round = 0; round < 30; ++round) {
    double ahead = 0, slope = 0;
    for (const auto& kind : kinds) {
      const double rows = rate * kind.runs, share = 1 / (1 + rows * w);
      ahead += rows * kind.service_ns * (w + 0.5 * kind.service_ns) * share;
      slope += rows * kind.service_ns * (1 - 0.5 * rows * kind.service_ns) * share * share;
    }
    const double step = (w - ahead) / std::max(1 - slope, 1e-3);
    w = std::max(0.0, w - step);
    if (std::abs(step) <= 1e-4 * w + 1) break;
  }
  return w;
}

/// Mean wait of a row: the rows that join a job come half way through its wait on average.
double row_wait(const std::vector<job_kind>& kinds, double rate) {
  if (kinds.empty() || rate <= 0) return 0;
  const double w = first_row_wait(kinds, rate);
  double rows = 0, waited = 0;
  for (const auto& kind : kinds) {
    const double joined = rate * kind.runs * w;
    rows += kind.runs;
    waited += kind.runs * w * (1 + 0.5 * joined) / (1 + joined);
  }
  return waited / rows;
}

}  // namespace

queue_estimate estimate_queues(const trajectory_model& model, const trajectory_usage& usage,
                               double token_ns, double concurrency,
                               std::span<const double> known_wait_ns) {
  const auto n_servers = model.n_servers;
  std::vector<std::vector<job_kind>> kinds(n_servers);
  double bare_ns = token_ns;
  for (std::size_t m = 0; m < n_servers; ++m) {
    const auto add = [&](double runs, double service_ns) {
      if (runs > 0) kinds[m].push_back({runs, service_ns});
    };
    for (std::size_t l = 0; l < model.n_layers; ++l)
      add(usage.visits[l * n_servers + m], model.costs.attention_ns[m]);
    const auto n_items = model.n_layers * model.n_experts;
    for (std::size_t i = 0; i < n_items; ++i)
      add(usage.expert_runs[m * n_items + i], model.costs.expert_ns[m]);
    add(usage.head_runs[m], model.costs.head_ns[m]);
    if (!known_wait_ns.empty()) bare_ns -= usage.jobs[m] * known_wait_ns[m];
  }
  bare_ns = std::max(bare_ns, 1.0);
  queue_estimate out;
  out.wait_ns.assign(n_servers, 0);
  // A position meets the other concurrency - 1; longer positions pass less often and wait less.
  const auto with_waits = [&](double at_ns) {
    double total = bare_ns;
    for (std::size_t m = 0; m < n_servers; ++m) {
      out.wait_ns[m] = row_wait(kinds[m], std::max(0.0, concurrency - 1) / at_ns);
      total += usage.jobs[m] * out.wait_ns[m];
    }
    return total;
  };
  // Regula falsi (Illinois) on with_waits(t) - t, which falls in t.
  double low = bare_ns, low_gap = with_waits(low) - low;
  double high = low + low_gap, high_gap = with_waits(high) - high;
  out.token_ns = high + high_gap;
  for (int round = 0; round < 20 && high - low > 1e-5 * high && low_gap > high_gap; ++round) {
    const double t = (low * high_gap - high * low_gap) / (high_gap - low_gap);
    const double gap = with_waits(t) - t;
    out.token_ns = t + gap;
    if (std::abs(gap) <= 1e-5 * t) break;
    if (gap > 0) {
      low = t;
      low_gap = gap;
      high_gap *= 0.5;
    } else {
      high = t;
      high_gap = gap;
      low_gap *= 0.5;
    }
  }
  return out;
}

}  // namespace ordermoe::planning
