#include "cli/testbed_measure.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "bench/experiments/increase.hpp"
#include "bench/experiments/testbed/waiting.hpp"
#include "config/build_id.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "model/reference.hpp"
#include "planning/placement.hpp"
#include "planning/plan_alike.hpp"
#include "planning/strategies/pruned_placement.hpp"
#include "setup/texts.hpp"

namespace ordermoe::cli {

namespace tb = experiments::testbed;
using experiments::strategy_report;
using tb::metric;

namespace {

/// Itself and those that a request meets, where one takes about a second.
double concurrency_at(double rate) {
  return 1 + rate;
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
  options.choose_pruning =
      load.choose_pruning && planning::find_strategy(what.strategy)->tries_cores;
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

/// Of the requests.
double share_in_time(const strategy_report& report, double sla_ms) {
  const auto in_time = std::ranges::count_if(report.outcomes, [&](const auto& answer) {
    return static_cast<double>(answer.done_ns - answer.arrival_ns) * 1e-6 <= sla_ms;
  });
  return static_cast<double>(in_time) / static_cast<double>(report.outcomes.size());
}

void note_times(const strategy_report& report, double sla_ms, tb::row& made) {
  made[metric::latency_ms] = report.latency_ms.mean;
  made[metric::latency_p95_ms] = report.latency_ms.p95;
  made[metric::ttft_ms] = report.ttft_ms.mean;
  made[metric::tpot_ms] = report.tpot_ms.mean;
  made[metric::throughput_tokens_per_s] = report.throughput_tokens_per_s;
  made[metric::busiest_server] = report.busiest_server;
  made[metric::within_sla] = share_in_time(report, sla_ms);
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

/// Of a strategy that may take a rival's plan.
std::string form_of(const setup::world& here, const planning::strategy_options& asked,
                    const planning::strategy& chosen) {
  if (chosen.name != "ordermoe" && chosen.name != "router-ledger") return {};
  if (chosen.pruned_nats) return tb::pruned_form;
  for (const auto* rival : {"layer-shards", "shard-chains", "parallax", "edge-llm"})
    for (const auto& options :
         planning::plan_variants(rival, here.profile, here.servers, here.costs, asked)) {
      const auto made =
          planning::make_strategy(rival, here.profile, here.servers, here.costs, options);
      if (made && planning::are_alike(made->plan, chosen.plan)) return rival;
    }
  return chosen.plan.strategy == planning::core_planner ? tb::core_form : tb::own_form;
}

/// Held-out text in prompts of a length, one behind the other and from the beginning again.
result<void> give_prompts(std::vector<actors::request_spec>& requests, std::size_t n_tokens,
                          const model::tokenizer& tokens) {
  const auto texts = setup::read_documents(setup::data_folder() / "eval" / "held-out.txt", tokens,
                                           n_tokens, n_tokens * requests.size());
  if (!texts) return texts.error();
  std::vector<const std::vector<std::int32_t>*> whole;
  for (const auto& text : *texts)
    if (text.size() == n_tokens) whole.push_back(&text);
  if (whole.empty())
    return error{errc::infeasible,
                 fmt::format("the held-out text has no {} tokens for a prompt", n_tokens)};
  for (std::size_t i = 0; i < requests.size(); ++i) requests[i].prompt = *whole[i % whole.size()];
  return {};
}

/// The same model with room for more positions than it was trained on, for what prompts cost and not for what it says.
result<std::shared_ptr<const model::transformer>> load_longer(const setup::world& content,
                                                              const std::filesystem::path& scratch,
                                                              std::size_t n_positions) {
  constexpr const char* key = "max_position_embeddings";
  std::error_code failed;
  std::filesystem::remove_all(scratch, failed);
  std::filesystem::create_directory(scratch, failed);
  for (const auto& each : std::filesystem::directory_iterator(content.folder, failed))
    std::filesystem::create_symlink(std::filesystem::absolute(each.path()),
                                    scratch / each.path().filename(), failed);
  const auto file = scratch / "config.json";
  const auto text = read_file(file);
  if (!text) return text.error();
  auto shape = nlohmann::json::parse(*text, nullptr, false);
  if (!shape.is_object() || !shape.contains(key))
    return error{errc::infeasible,
                 fmt::format("{}: found no {}, so that prompts cannot be made longer than {}",
                             (content.folder / "config.json").string(), key,
                             content.model->config().max_context)};
  shape[key] = n_positions;
  std::filesystem::remove(file, failed);
  if (auto written = write_file(file, json_text(shape)); !written) return written.error();
  auto loaded = model::transformer::load(scratch, content.loading);
  std::filesystem::remove_all(scratch, failed);
  if (!loaded) return loaded.error();
  return std::shared_ptr<const model::transformer>(std::move(*loaded));
}

tb::row infeasible_row(const tb::point& what, std::string why) {
  tb::row made;
  made.what = what;
  made.is_infeasible = true;
  made.note = std::move(why);
  return made;
}

/// Requests a second that are tried for saturation, each a fifth more than the one before.
double rate_tried(int step) {
  constexpr double least = 0.25, ratio = 1.2;
  return std::stod(fmt::format("{:.3g}", least * std::pow(ratio, step)));
}
constexpr int most_rate_steps = 36;  // 177 a second

/// What trials and tuning cost is bounded by what they are given.
void keep_tuning_texts(setup::world& content, std::size_t most) {
  if (most > 0 && content.tuning_texts.size() > most) content.tuning_texts.resize(most);
}

}  // namespace

result<nlohmann::ordered_json> origin_of(const setup::world& loaded) {
  std::string evaluation;
  for (const char* name : {"held-out.txt", "problems.jsonl", "prompts.jsonl"}) {
    const auto bytes = read_file(setup::data_folder() / "eval" / name);
    if (!bytes) return bytes.error();
    evaluation += sha256_hex(*bytes);
  }
  const auto build = build_id();
  return nlohmann::ordered_json{
      {"build", build.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(build)},
      {"evaluation_data", sha256_hex(evaluation)},
      {"tuning_text_digest", sha256_hex(json_text(nlohmann::json(loaded.tuning_texts)))}};
}

result<std::vector<std::vector<double>>> losses_of_model_alone(const setup::world& loaded,
                                                               const bundled_load& load) {
  work().begin("scoring the model alone");
  std::vector<std::vector<double>> losses;
  for (const auto& spec : load.workloads[1].requests) {
    if (stop_requested()) return error{errc::interrupted, "interrupted; nothing was measured"};
    auto of_text = model::token_losses(*loaded.model, spec.prompt);
    if (!of_text) return of_text.error();
    losses.push_back(std::move(*of_text));
  }
  return losses;
}

result<void> testbed_bench::open() {
  if (auto done = open(precision::stored); !done) return done;
  return score_reference();
}

result<void> testbed_bench::open(const tb::point& what) {
  if (auto done = open(what.kept); !done) return done;
  auto& world = worlds_.at(what.kept);
  const auto wanted = what.prompt_tokens + load_.of.max_new_tokens;
  if (what.prompt_tokens == 0 || wanted <= world.content.model->config().max_context) return {};
  if (world.longer && wanted <= world.longer->config().max_context) return {};
  auto loaded =
      load_longer(world.content, scratch_ / fmt::format("{}-longer", trace_prefix), wanted);
  // Such points are infeasible then.
  if (!loaded && loaded.error().code == errc::infeasible) return {};
  if (!loaded) return loaded.error();
  world.longer = std::move(*loaded);
  return {};
}

result<void> testbed_bench::open(precision kept) {
  if (worlds_.contains(kept)) return {};
  auto flags = flags_;
  flags.expert_precision = to_string(kept);
  auto loaded = load_world(flags);
  if (!loaded) return loaded.error();
  keep_tuning_texts(*loaded, load_.tuning_texts);
  worlds_.emplace(kept, opened{std::move(*loaded), nullptr});
  return {};
}

result<void> testbed_bench::score_reference() {
  const auto load = make_load(stored(), load_.of);
  if (!load) return load.error();
  auto scored = losses_of_model_alone(stored(), *load);
  if (!scored) return scored.error();
  reference_ = std::move(*scored);
  return {};
}

testbed_bench::found_plan testbed_bench::plan_of(const setup::prepared& ready) {
  const auto& chosen = ready.service.chosen;
  return {chosen.plan, chosen.pruned_nats};
}

result<testbed_bench::found_plan> testbed_bench::base_plan(const tb::point& what,
                                                           const setup::world& here, job& work) {
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
  return plans_.insert_or_assign(tb::key_of(base), plan_of(*ready)).first->second;
}

result<setup::prepared> testbed_bench::prepare(const tb::point& what, const setup::world& here,
                                               job& work) {
  auto request = request_for(what, load_);
  if (what.horizon && is_searched(what)) {
    auto plan = base_plan(what, here, work);
    if (!plan) return plan.error();
    request.options.plan = std::move(plan->placed);
    request.pruned_nats = plan->pruned_nats;
  }
  auto ready = setup::prepare(here, request, work);
  if (ready && !what.horizon && is_searched(what)) {
    const std::lock_guard guard(mutex_);
    plans_.insert_or_assign(tb::key_of(what), plan_of(*ready));
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

setup::world testbed_bench::world_of(const tb::point& what) const {
  const auto& opened = worlds_.at(what.kept);
  auto content = opened.content;
  const auto wanted = what.prompt_tokens + load_.of.max_new_tokens;
  if (what.prompt_tokens > 0 && wanted > content.model->config().max_context && opened.longer)
    content.model = opened.longer;
  content.costs = tb::costs_of(what, std::move(content.costs));
  auto servers =
      tb::servers_of(what, content.costs, content.profile.n_layers, content.profile.n_experts);
  return setup::on_servers(std::move(content), std::move(servers));
}

/// Where requests have prompts of a length only their times are asked for.
result<bundled_load> testbed_bench::load_of(const tb::point& what, const setup::world& here,
                                            std::size_t n_requests) const {
  auto options = load_.of;
  options.rate = what.rate;
  options.requests = n_requests;
  auto load = make_load(here, options);
  if (!load) return load.error();
  auto& answering = load->workloads.front();
  // Answers of one length, so that latencies compare.
  for (auto& spec : answering.requests) spec.ignore_end_of_text = true;
  if (what.prompt_tokens == 0) return load;
  load->workloads.resize(1);
  const auto room = here.model->config().max_context;
  if (what.prompt_tokens + options.max_new_tokens > room)
    return error{errc::infeasible, fmt::format("the model has {} positions", room)};
  if (auto given = give_prompts(load->workloads.front().requests, what.prompt_tokens, *here.tokens);
      !given)
    return given.error();
  return load;
}

/// Whether 95 % of the requests of 10 s at that rate, and of as many as elsewhere at least, are in time.
result<bool> testbed_bench::bears(const tb::point& what, job& work) {
  const auto here = world_of(what);
  const auto ready = prepare(what, here, work);
  if (!ready) return ready.error();
  auto load = load_of(what, here, requests_at(what.rate));
  if (!load) return load.error();
  load->workloads.resize(1);
  const auto report = experiments::measure(ready->service, load->workloads, work);
  if (!report) return report.error();
  return share_in_time(*report, load_.sla_ms) >= 0.95;
}

std::size_t testbed_bench::requests_at(double rate) const {
  constexpr double seconds = 10;
  return std::max(load_.of.requests, static_cast<std::size_t>(std::ceil(seconds * rate)));
}

/// Doubling from where the other experiments are, then halving: a rate that is borne whose next one is not.
result<tb::row> testbed_bench::measure_saturation(const tb::point& what, job& work) {
  constexpr int first = 15, stride = 4;
  auto tried = what;
  const auto is_borne = [&](int step) {
    tried.rate = rate_tried(step);
    return bears(tried, work);
  };
  int low = -1, high = most_rate_steps + 1;
  for (int step = first; high - low > 1;) {
    const auto borne = is_borne(step);
    if (!borne && borne.error().code == errc::infeasible)
      return infeasible_row(what, borne.error().message);
    if (!borne) return borne.error();
    (*borne ? low : high) = step;
    if (high > most_rate_steps)
      step = std::min(low + stride, most_rate_steps);
    else if (low < 0)
      step = std::max(high - stride, 0);
    else
      step = (low + high) / 2;
    if (low == most_rate_steps || high == 0) break;
  }
  if (low < 0)
    return infeasible_row(
        what, fmt::format("not even {:g} requests a second are answered in time", rate_tried(0)));
  tried.rate = rate_tried(low);
  auto made = measure_at(tried, requests_at(tried.rate), work);
  if (!made) return made.error();
  made->what = what;
  (*made)[metric::saturating_rate] = tried.rate;
  return made;
}

result<tb::row> testbed_bench::measure(const tb::point& what, job& work) {
  if (what.rate == tb::to_saturation) return measure_saturation(what, work);
  return measure_at(what, load_.of.requests, work);
}

result<tb::row> testbed_bench::measure_at(const tb::point& what, std::size_t n_requests,
                                          job& work) {
  const auto here = world_of(what);
  const auto refuse = [&](const error& why) -> result<tb::row> {
    if (why.code != errc::infeasible) return why;
    return infeasible_row(what, why.message);
  };
  const auto ready = prepare(what, here, work);
  if (!ready) return refuse(ready.error());
  tb::row made;
  made.what = what;
  made.form = form_of(here, request_for(what, load_).options, ready->service.chosen);
  auto load = load_of(what, here, n_requests);
  if (!load) return refuse(load.error());
  auto& answering = load->workloads.front();
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
  made[metric::coverage] = coverage_of(ready->service.chosen.plan, here.profile);
  made[metric::plan_estimate_ms] = report->plan_estimate_ms;
  if (!report->perplexity) return made;
  made[metric::perplexity] = report->perplexity;
  made[metric::exact_match] = report->exact_match;
  made[metric::budget_spent] = report->budget_spent_ratio;
  if (auto compared = compare_losses(report->losses, made); !compared) return compared.error();
  return made;
}

}  // namespace ordermoe::cli
