#include "cli/testbed_measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "bench/experiments/increase.hpp"
#include "bench/experiments/testbed/waiting.hpp"
#include "model/reference.hpp"
#include "planning/placement.hpp"

namespace ordermoe::cli {

namespace tb = experiments::testbed;
using experiments::strategy_report;
using tb::metric;

namespace {

/// The expected number in flight where a request takes about a second.
double concurrency_at(double rate) {
  return std::max(1.0, rate);
}

setup::preparation_request request_for(const tb::point& what, const testbed_load& load) {
  setup::preparation_request request;
  request.strategy = what.strategy;
  request.seed = what.seed;
  auto& options = request.options;
  options.quality_percent = what.percent;
  options.seed = what.seed;
  options.search_steps = load.of.search_steps;
  options.concurrency = concurrency_at(what.rate);
  options.expected_rate = what.rate;
  options.dry_run_requests = load.trial_requests;
  options.horizon = what.horizon;
  options.threshold = what.threshold;
  options.replicates = what.without != "redundancy";
  options.disperses = what.without != "dispersion";
  return request;
}

/// Whether a plan's search does not depend on the horizon, so that points that differ in it have one.
bool is_searched(const tb::point& what) {
  return planning::find_strategy(what.strategy)->tunes_price;
}

/// Groups by the published rule, where a plan has none of its own.
std::vector<planning::layer_grouping> grouping_of(const planning::plan& placed,
                                                  const planning::profile& profile) {
  if (!placed.grouping.empty()) return placed.grouping;
  std::vector<planning::layer_grouping> groups;
  const planning::placement_options options;
  for (std::size_t l = 0; l < profile.n_layers; ++l)
    groups.push_back(planning::group_layer(profile.layers[l], profile.layers[l].router_logit,
                                           planning::layer_threshold(l, profile.n_layers, options),
                                           options));
  return groups;
}

/// Share of (server, layer, group) where the server hosts a member, as y of eq. (32).
double coverage_of(const planning::plan& placed, const planning::profile& profile) {
  const auto groups = grouping_of(placed, profile);
  const planning::placement_index index(placed);
  double covered = 0, all = 0;
  for (std::size_t m = 0; m < placed.n_servers; ++m)
    for (std::size_t l = 0; l < placed.n_layers; ++l)
      for (const auto& group : groups[l].groups) {
        all += 1;
        covered += std::ranges::any_of(
            group.members, [&](std::uint32_t expert) { return index.hosts(m, l, expert); });
      }
  return all > 0 ? covered / all : 0;
}

void note_times(const strategy_report& report, double sla_ms, tb::row& made) {
  made[metric::latency_ms] = report.latency_ms.mean;
  made[metric::latency_p95_ms] = report.latency_ms.p95;
  made[metric::ttft_ms] = report.ttft_ms.mean;
  made[metric::tpot_ms] = report.tpot_ms.mean;
  made[metric::throughput_tokens_per_s] = report.throughput_tokens_per_s;
  made[metric::busiest_server] = report.busiest_server;
  const auto in_time = std::ranges::count_if(report.outcomes, [&](const auto& answer) {
    return static_cast<double>(answer.done_ns - answer.arrival_ns) * 1e-6 <= sla_ms;
  });
  made[metric::within_sla] =
      static_cast<double>(in_time) / static_cast<double>(report.outcomes.size());
}

void note_traffic(const strategy_report& report, tb::row& made) {
  const auto megabytes = [&](std::int64_t bytes) { return report.per_1k(bytes) * 1e-6; };
  made[metric::traffic_mb_per_1k] = megabytes(report.charged.charged());
  made[metric::hidden_mb_per_1k] = megabytes(report.charged.hidden_bytes);
  made[metric::kv_mb_per_1k] = megabytes(report.charged.kv_bytes);
  constexpr metric kinds[] = {metric::local_exact, metric::local_substitute, metric::remote_exact,
                              metric::remote_substitute, metric::left_out};
  for (std::size_t i = 0; i < std::size(kinds); ++i) made[kinds[i]] = report.execution[i];
}

/// What trials and tuning cost is bounded by what they are given.
void keep_tuning_texts(setup::world& content, std::size_t most) {
  if (most > 0 && content.tuning_texts.size() > most) content.tuning_texts.resize(most);
}

}  // namespace

result<void> testbed_bench::open() {
  if (auto done = open(precision::stored); !done) return done;
  return score_reference();
}

result<void> testbed_bench::open(precision kept) {
  if (worlds_.contains(kept)) return {};
  auto flags = flags_;
  flags.expert_precision = to_string(kept);
  auto loaded = load_world(flags);
  if (!loaded) return loaded.error();
  keep_tuning_texts(*loaded, load_.tuning_texts);
  worlds_.emplace(kept, opened{std::move(*loaded)});
  return {};
}

result<void> testbed_bench::score_reference() {
  const auto load = make_load(stored(), load_.of);
  if (!load) return load.error();
  work().begin("scoring the model alone");
  for (const auto& spec : load->workloads[1].requests) {
    if (stop_requested()) return error{errc::interrupted, "interrupted; nothing was measured"};
    auto losses = model::token_losses(*stored().model, spec.prompt);
    if (!losses) return losses.error();
    reference_.push_back(std::move(*losses));
  }
  return {};
}

result<planning::plan> testbed_bench::base_plan(const tb::point& what, const setup::world& here,
                                                job& work) {
  auto base = what;
  base.horizon.reset();
  {
    const std::lock_guard guard(mutex_);
    if (const auto found = plans_.find(tb::key_of(base)); found != plans_.end())
      return found->second;
  }
  auto ready = setup::prepare(here, request_for(base, load_), work);
  if (!ready) return ready.error();
  const std::lock_guard guard(mutex_);
  return plans_.insert_or_assign(tb::key_of(base), ready->service.chosen.plan).first->second;
}

result<setup::prepared> testbed_bench::prepare(const tb::point& what, const setup::world& here,
                                               job& work) {
  auto request = request_for(what, load_);
  if (what.horizon && is_searched(what)) {
    auto plan = base_plan(what, here, work);
    if (!plan) return plan.error();
    request.options.plan = std::move(*plan);
  }
  auto ready = setup::prepare(here, request, work);
  if (ready && !what.horizon && is_searched(what)) {
    const std::lock_guard guard(mutex_);
    plans_.insert_or_assign(tb::key_of(what), ready->service.chosen.plan);
  }
  return ready;
}

/// Against those of the model as stored, by document: its tokens are no draws of their own.
result<void> testbed_bench::compare_losses(const std::vector<double>& losses, tb::row& made) const {
  std::vector<double> exact;
  std::vector<std::size_t> lengths;
  for (const auto& document : reference_) {
    exact.insert(exact.end(), document.begin(), document.end());
    lengths.push_back(document.size());
  }
  const auto found = experiments::increase_by_document(losses, exact, lengths);
  if (!found) return found.error();
  made[metric::increase_percent] = found->percent;
  made[metric::increase_low] = found->low;
  made[metric::increase_high] = found->high;
  return {};
}

result<tb::row> testbed_bench::measure(const tb::point& what, job& work) {
  const auto& content = worlds_.at(what.kept).content;
  const auto here = setup::on_servers(
      content,
      tb::servers_of(what, content.costs, content.profile.n_layers, content.profile.n_experts));
  tb::row made;
  made.what = what;
  const auto ready = prepare(what, here, work);
  if (!ready && ready.error().code == errc::infeasible) {
    made.is_infeasible = true;
    made.note = ready.error().message;
    return made;
  }
  if (!ready) return ready.error();

  auto options = load_.of;
  options.rate = what.rate;
  auto load = make_load(here, options);
  if (!load) return load.error();
  auto& answering = load->workloads.front();
  // Answers of one length, so that latencies compare.
  for (auto& spec : answering.requests) spec.ignore_end_of_text = true;
  {
    const std::lock_guard guard(mutex_);
    answering.trace = scratch_ / fmt::format("{}{}.jsonl", trace_prefix, n_traces_++);
  }
  const auto report = experiments::measure(ready->service, load->workloads, work);
  const auto parts = report ? tb::time_parts_of(answering.trace, ready->service.servers,
                                                ready->service.costs, ready->service.chosen.plan)
                            : result<tb::time_parts>(report.error());
  std::error_code ignored;
  std::filesystem::remove(answering.trace, ignored);
  if (!parts) return parts.error();
  note_times(*report, load_.sla_ms, made);
  note_traffic(*report, made);
  made[metric::network_ms] = parts->network_ms;
  made[metric::compute_ms] = parts->compute_ms;
  made[metric::waiting_ms] = parts->waiting_ms;
  made[metric::perplexity] = report->perplexity;
  made[metric::exact_match] = report->exact_match;
  made[metric::budget_spent] = report->budget_spent_ratio;
  made[metric::coverage] = coverage_of(ready->service.chosen.plan, here.profile);
  made[metric::plan_estimate_ms] = report->plan_estimate_ms;
  if (auto compared = compare_losses(report->losses, made); !compared) return compared.error();
  return made;
}

}  // namespace ordermoe::cli
