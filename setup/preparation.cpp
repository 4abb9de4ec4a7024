#include "setup/preparation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "config/precision.hpp"
#include "setup/calibration.hpp"
#include "setup/preparing.hpp"

namespace ordermoe::setup {

using preparing::budget_trial;
using preparing::choose_variant;
using preparing::planned;
using preparing::strategy_options;
using preparing::task;

namespace {

/// Whether every plan is the same to everybody: all experts on the only server, as the model has them, which is never slower
/// than any other way.
bool leaves_no_choice(const task& about) {
  const auto& servers = about.service.servers.servers;
  const auto& options = about.options;
  return servers.size() == 1 && servers.front().expert_precision == precision::stored &&
         options.expert_precision.empty() && !options.choose_precision && !about.is_compared &&
         (!options.plan || options.plan->precision_at(0) == precision::stored);
}

/// A plan where there is but one. What substitutes is never faster there, so that no budget is worth a search for its price.
result<prepared> prepare_only_plan(const task& about, job& work) {
  work.begin(fmt::format("planning {}", about.name));
  auto made = planned(about.service, about.name, about.options, work);
  if (!made) return made.error();
  prepared ready{std::move(*made), {}, false, std::nullopt};
  if (!preparing::is_priced(ready.service.chosen)) return ready;
  ready.found = next_to_no_loss();
  ready.was_tuned = true;
  ready.service = tuned(std::move(ready.service), ready.found);
  return ready;
}

/// Plans for the concurrency of the options, and tries what there is.
result<prepared> choose_for_load(const task& about, const budget_trial* budget, job& work) {
  const auto& service = about.service;
  auto options = about.options;
  if (budget != nullptr) options.cut = budget->cut;
  const auto variants =
      options.dry_run_requests == 0
          ? std::vector{options}
          : planning::plan_variants(about.name, budget ? budget->corrected : service.profile,
                                    service.servers, service.costs, options);
  return choose_variant(about, variants, budget, work);
}

/// Itself, and those that a request meets when it comes: by Little's law as many as come while one is answered.
double requests_in_flight(const strategy_options& options, double latency_ms) {
  return 1 + options.expected_rate * latency_ms * 1e-3;
}

/// Beyond the loads that plans for this one are made for, too.
bool is_far_from(double planned, double in_flight) {
  return in_flight < planned / 2 || in_flight > planned * 2;
}

/// Prepares a strategy for the model as it is.
result<prepared> prepare_one(const task& about, job& work) {
  const bool is_cut = preparing::may_be_cut(about);
  if (!is_cut && leaves_no_choice(about)) return prepare_only_plan(about, work);
  std::optional<budget_trial> budget;
  if (!is_cut && preparing::may_be_priced(about)) {
    auto tried = preparing::try_budget(about, work);
    if (!tried) return tried.error();
    budget = std::move(*tried);
  }
  const auto choose = [&](const task& for_load) -> result<prepared> {
    if (!is_cut) return choose_for_load(for_load, budget ? &*budget : nullptr, work);
    auto cut = preparing::prepare_cut(for_load, work);
    if (!cut) return cut.error();
    return std::move(cut->ready);
  };
  auto chosen = choose(about);
  const bool says_load = about.options.concurrency_by_trial && about.options.expected_rate > 0;
  // Of strategies that cut, plans of this one alone go by the load.
  const bool goes_by_load = !is_cut || about.name == "static-pruning";
  if (!chosen || !says_load || !goes_by_load || !chosen->trial_ms) return chosen;
  const auto in_flight = requests_in_flight(about.options, *chosen->trial_ms);
  if (!is_far_from(about.options.concurrency, in_flight)) return chosen;
  auto again = about;
  again.options.concurrency = in_flight;
  auto other = choose(again);
  if (!other && other.error().code != errc::infeasible) return other;
  const bool is_better = other && other->trial_ms && *other->trial_ms < *chosen->trial_ms;
  return is_better ? std::move(other) : std::move(chosen);
}

/// Of a plan of `static-pruning` in a strategy that keeps budgets: what it prunes takes so much of the budget. It runs as there, and nothing
/// else is lost, but of a strategy that has a rule of its own for the rest.
void note_pruning(planning::strategy& chosen, std::size_t top_k, double nats) {
  preparing::charge_pruning(chosen, nats);
  if (planning::find_strategy(chosen.name)->skips_beside_pruning) return;
  chosen.policy = planning::find_strategy("static-pruning")->policy(top_k);
  chosen.token_budget = 0;
}

/// Whether what `static-pruning` does with the budget may be taken, too.
bool may_prune(const task& about) {
  const auto* record = planning::find_strategy(about.name);
  const auto& options = about.options;
  return options.choose_pruning && record != nullptr && record->tries_cores &&
         options.quality_percent > 0 && !options.plan && options.dry_run_requests > 0;
}

/// By the plan of `static-pruning` for the budget; nothing where the budget allows to prune nothing, or what is left does not fit.
result<std::optional<prepared>> prepare_pruned(const task& about, job& work) {
  auto cutting = about;
  cutting.name = "static-pruning";
  auto cut = preparing::prepare_cut(cutting, work);
  if (!cut && cut.error().code == errc::infeasible) return std::optional<prepared>();
  if (!cut) return cut.error();
  auto options = about.options;
  options.plan = std::move(cut->ready.service.chosen.plan);
  if (options.plan->pruned.empty()) return std::optional<prepared>();
  auto made = planned(about.service, about.name, options, work);
  if (!made) return made.error();
  note_pruning(made->chosen, about.service.profile.top_k, cut->bound);
  // It answers as it did there.
  if (const auto ms = cut->ready.trial_ms)
    return std::optional(prepared{std::move(*made), {}, false, ms});
  const auto latency = trial_load_ms(*made, options, about.texts, work);
  if (!latency && latency.error().code == errc::infeasible) return std::optional<prepared>();
  if (!latency) return latency.error();
  return std::optional(prepared{std::move(*made), {}, false, *latency});
}

/// Prepares a strategy for the model as it is, or for what pruning leaves of it, where that may be and is faster by least_gain.
result<prepared> prepare_best(const task& about, job& work) {
  auto whole = prepare_one(about, work);
  if (!may_prune(about)) return whole;
  // Where there was nothing to choose, there is nothing to gain.
  if (whole ? !whole->trial_ms.has_value() : whole.error().code != errc::infeasible) return whole;
  auto pruned = prepare_pruned(about, work);
  if (!pruned) return pruned.error();
  if (!*pruned) return whole;
  const bool is_faster =
      !whole || *(*pruned)->trial_ms < *whole->trial_ms * (1 - preparing::least_gain);
  return is_faster ? result<prepared>(std::move(**pruned)) : std::move(whole);
}

/// Whether the whole model may be kept coarser, as a server may: there is a budget that this can
/// take something of, nobody says how a server keeps its experts, and the plan stays.
bool may_keep_whole_model_coarser(const world& content, const preparation_request& request) {
  const auto& options = request.options;
  const auto* record = planning::find_strategy(request.strategy);
  return options.choose_precision && record != nullptr && record->uses_coarser_copies &&
         options.quality_percent > 0 && !options.plan && options.expert_precision.empty() &&
         options.dry_run_requests > 0 && !request.plans_change &&
         std::ranges::all_of(content.servers.servers, [](const server_spec& server) {
           return server.expert_precision == precision::stored;
         });
}

/// The same service with every expert of the model kept so.
actors::service_options with_whole_model(actors::service_options service, precision kept) {
  service.model = service.coarser.at(kept);
  service.costs = at_precision(std::move(service.costs), kept);
  service.coarser.clear();
  return service;
}

/// What is left of a budget in per cent where the model's precision took so many nats of it.
double left_of(double quality_percent, double taken_nats) {
  return planning::percent_of_nats(planning::nats_of_percent(quality_percent) - taken_nats);
}

/// `quality_percent`: the whole budget, of which the model's precision took so much besides what is pruned.
void note_whole_model(planning::strategy& chosen, precision kept, double taken_nats,
                      double quality_percent) {
  chosen.whole_model = kept;
  chosen.quality.taken_nats += taken_nats;
  chosen.quality.percent = quality_percent;
}

/// Prepared on the model in this precision, with what its damage, measured on the texts at 95 %
/// confidence, leaves of the budget; nothing where that is nothing or does not fit.
result<std::optional<prepared>> prepare_coarser(const task& about, precision kept,
                                                const token_documents& read,
                                                const scored_texts& texts, job& work) {
  auto coarse = about;
  coarse.service = with_whole_model(about.service, kept);
  const auto of_coarse =
      scored_texts::make(coarse.service, read, work, about.options.expected_rate);
  if (!of_coarse) return of_coarse.error();
  const double taken = std::max(0.0, texts.above(of_coarse->exact()).bound());
  if (taken >= planning::nats_of_percent(about.options.quality_percent))
    return std::optional<prepared>();
  coarse.options.choose_precision = false;
  coarse.options.quality_percent = left_of(about.options.quality_percent, taken);
  auto ready = prepare_best(coarse, work);
  if (!ready && ready.error().code == errc::infeasible) return std::optional<prepared>();
  if (!ready) return ready.error();
  note_whole_model(ready->service.chosen, kept, taken, about.options.quality_percent);
  return std::optional(std::move(*ready));
}

/// The fastest of `as_stored`, which may be infeasible, and the whole model in each precision.
result<prepared> fastest_whole_model(const task& about, result<prepared> as_stored, job& work) {
  constexpr auto never = std::numeric_limits<double>::infinity();
  const auto read = affordable(about.texts, about.service.model->config());
  const auto texts = scored_texts::make(about.service, read, work, about.options.expected_rate);
  if (!texts) return texts.error();
  auto best = std::move(as_stored);
  double to_beat = best ? best->trial_ms.value_or(never) : never;
  for (const auto& each : about.service.coarser) {
    auto tried = prepare_coarser(about, each.first, read, *texts, work);
    if (!tried) return tried.error();
    if (!*tried || !(*tried)->trial_ms || *(*tried)->trial_ms >= to_beat) continue;
    to_beat = *(*tried)->trial_ms;
    best = std::move(**tried);
  }
  return best;
}

/// A plan that was tuned when it was made.
result<prepared> prepare_known(task about, const preparation_request& request, job& work) {
  if (request.whole_model != precision::stored) {
    about.service = with_whole_model(std::move(about.service), request.whole_model);
    about.options.quality_percent =
        left_of(about.options.quality_percent, request.whole_model_nats);
  }
  work.begin(fmt::format("planning {}", about.name));
  auto made = planned(about.service, about.name, about.options, work);
  if (!made) return made.error();
  prepared ready{std::move(*made), request.known_tuning.value_or(tuning{}),
                 request.known_tuning.has_value(), std::nullopt};
  if (request.pruned_nats)
    note_pruning(ready.service.chosen, about.service.profile.top_k, *request.pruned_nats);
  if (request.whole_model != precision::stored)
    note_whole_model(ready.service.chosen, request.whole_model, request.whole_model_nats,
                     request.options.quality_percent);
  if (ready.was_tuned) ready.service = tuned(std::move(ready.service), ready.found);
  return ready;
}

}  // namespace

namespace {

/// What does not need all experts in memory, where nothing but they is too much.
error with_ways_out(error why, const world& content, const preparation_request& request) {
  const auto* record = planning::find_strategy(request.strategy);
  const bool does_with_less =
      record != nullptr &&
      ((record->most_cut != nullptr && !record->keeps_budgets) || record->name == "offload");
  const bool all_else_fits =
      std::ranges::all_of(content.servers.servers, [&](const server_spec& server) {
        return expert_memory_bytes(server, content.costs, content.profile.n_layers) >= 0;
      });
  if (why.code != errc::infeasible || request.options.plan || does_with_less || !all_else_fits)
    return why;
  if (request.options.quality_percent != 0)
    why.message += fmt::format(
        "; {} leaves out the experts that are missed least, as far as the budget allows",
        record != nullptr && record->tries_cores && !request.options.choose_pruning
            ? fmt::format("`static-pruning`, or {} with --choose-pruning,", record->name)
            : "`static-pruning`");
  why.message +=
      "; `offload` reads weights from the memory of hosts that have some beside their "
      "accelerator's";
  return why;
}

/// Then nothing is expected of anybody: every expert runs where it is asked for.
bool is_one_without_budget(const world& content, const preparation_request& request) {
  return content.servers.size() == 1 && request.options.quality_percent == 0;
}

/// Whether its plan comes with what it was prepared with.
bool is_known(const preparation_request& request) {
  return request.known_tuning || request.whole_model != precision::stored || request.pruned_nats;
}

}  // namespace

double expected_concurrency(std::size_t n_requests) {
  return std::clamp(static_cast<double>(n_requests), 1.0, 4.0);
}

bool runs_model(const preparation_request& request, bool knows_nothing) {
  if (knows_nothing) return false;
  if (is_known(request)) return false;
  const auto* record = planning::find_strategy(request.strategy);
  const bool tunes =
      record != nullptr && record->tunes_price && request.options.quality_percent > 0;
  return !request.options.plan || tunes;
}

result<prepared> prepare(const world& content, const preparation_request& request, job& work) {
  const auto* record = planning::find_strategy(request.strategy);
  const bool needs_no_profile =
      (record != nullptr && !record->needs_profile) || is_one_without_budget(content, request);
  if (content.knows_nothing && !needs_no_profile)
    return error{
        errc::usage,
        fmt::format(
            "{}: nothing is known of {}, whose experts only {} place then; place it by one of "
            "these, "
            "and run `ordermoe calibrate --connect` on the running cluster, or `ordermoe calibrate "
            "--model` where one process can hold the model",
            request.strategy, content.model_name, planning::strategies_without_profile())};
  if (content.unfit && depends_on_profile(request.strategy, request.options.quality_percent))
    return *content.unfit;
  auto options = request.options;
  options.should_stop = work.stopping();
  options.choose_pruning &= !request.plans_change;
  // Loads of a model that nobody knows say nothing.
  if (content.knows_nothing) options.dry_run_requests = 0;
  if (options.horizon)
    options.horizon =
        std::min(*options.horizon, static_cast<std::size_t>(content.profile.n_layers));
  task about{service_in(content, request.seed), request.strategy, options, content.tuning_texts};
  about.service.quality_percent = options.quality_percent;
  if (is_known(request)) return prepare_known(std::move(about), request, work);
  try {
    const bool tries_coarser = may_keep_whole_model_coarser(content, request);
    about.is_compared = tries_coarser;
    auto ready = prepare_best(about, work);
    // Where the model as stored fits nowhere, a coarser one may.
    if (tries_coarser && (ready || ready.error().code == errc::infeasible))
      ready = fastest_whole_model(about, std::move(ready), work);
    if (!ready) return with_ways_out(ready.error(), content, request);
    return ready;
  } catch (const model::expert_failure& failed) {
    return failed.why;
  }
}

result<prepared> with_own_weights(const world& content, prepared ready) {
  auto& service = ready.service;
  const auto& placed = service.chosen.plan;
  const planning::placement_index index(placed);
  for (std::size_t m = 0; m < placed.n_servers; ++m) {
    auto loading = content.loading;
    loading.device = content.servers.servers[m].device;
    if (service.chosen.whole_model != precision::stored)
      loading.expert_precision = service.chosen.whole_model;
    if (placed.precision_at(m) != precision::stored)
      loading.expert_precision = placed.precision_at(m);
    loading.hosts = [&](layer_id layer, expert_id expert) {
      return index.hosts(m, layer.index(), expert.index());
    };
    auto loaded = model::transformer::load(content.folder, loading);
    if (!loaded) return loaded.error();
    const auto& server = service.servers.servers[m];
    const auto bytes = static_cast<std::int64_t>((*loaded)->resident_bytes());
    const auto room = server.memory_bytes - server.kv_bytes;
    if (content.charges_own_costs && bytes > room)
      return error{errc::infeasible,
                   fmt::format("server {} ({}): its weights take {} bytes, {} are left beside KV; "
                               "give it more memory or plan again",
                               m, server.name, bytes, room)};
    service.server_models.push_back(std::move(*loaded));
  }
  service.model = service.server_models.front();
  service.coarser.clear();
  service.on_devices.clear();
  return ready;
}

}  // namespace ordermoe::setup
