#include "setup/preparation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>
#include <system_error>
#include <thread>
#include <vector>

#include "config/precision.hpp"
#include "planning/plan_alike.hpp"
#include "setup/calibration.hpp"
#include "setup/cutting.hpp"
#include "setup/trials.hpp"

namespace ordermoe::setup {

namespace {

using planning::strategy_options;

/// What is prepared: a service without a strategy, and what is tried on it.
struct task {
  actors::service_options service;
  std::string_view name;
  strategy_options options;
  const token_documents& texts;
  bool is_compared = false;  ///< With the whole model in other precisions, by its trial load.
};

/// Whether every plan is the same to everybody: all experts on the only server, as the model has them, which is never slower
/// than any other way.
bool leaves_no_choice(const task& about) {
  const auto& servers = about.service.servers.servers;
  const auto& options = about.options;
  return servers.size() == 1 && servers.front().expert_precision == precision::stored &&
         options.expert_precision.empty() && !options.choose_precision && !about.is_compared &&
         (!options.plan || options.plan->precision_at(0) == precision::stored);
}

/// Whether what follows from two of a strategy's plans is the same, whatever their planners expect of them.
bool are_alike(const planning::strategy& a, const planning::strategy& b) {
  const auto reads_groups = [](const planning::strategy& content) {
    return content.policy.candidates != planning::candidate_rule::exact &&
           content.policy.candidates != planning::candidate_rule::any &&
           !content.plan.grouping.empty();
  };
  return a.policy == b.policy && !reads_groups(a) && !reads_groups(b) &&
         planning::are_alike(a.plan, b.plan);
}

bool is_priced(const planning::strategy& chosen) {
  return chosen.tunes_price && chosen.token_budget > 0 &&
         chosen.token_budget < planning::unbounded_budget;
}

result<actors::service_options> planned(const actors::service_options& service,
                                        std::string_view name, const strategy_options& options,
                                        const job& work) {
  auto made =
      planning::make_strategy(name, service.profile, service.servers, service.costs, options);
  if (work.stopped()) return error{errc::interrupted, "interrupted; nothing was written"};
  if (!made) return made.error();
  auto with_strategy = service;
  with_strategy.chosen = std::move(*made);
  return with_strategy;
}

/// Work in equal steps, some of them at once.
class steps {
 public:
  steps(job& work, std::string phase, std::size_t n) : work_(work), n_(n) {
    work_.begin(std::move(phase));
  }
  void done() { work_.advance(static_cast<double>(++done_) / static_cast<double>(n_)); }

 private:
  job& work_;
  std::size_t n_;
  std::atomic<std::size_t> done_{0};
};

/// What a budget is tuned with: texts, what their first half said, and the profile with that damage.
struct budget_trial {
  scored_texts texts;
  tuning rough;
  planning::profile corrected;
};

/// Tunes a plan where there is a budget, and tries it.
result<prepared> try_plan(const task& about, const actors::service_options& with_plan,
                          const budget_trial* budget, const job& work, steps& progress) {
  prepared ready;
  ready.service = with_plan;
  if (budget != nullptr) {
    ready.service.profile = about.service.profile;
    const auto found =
        tune(ready.service, budget->rough, budget->texts, {}, work, [&] { progress.done(); });
    if (!found) return found.error();
    ready.found = *found;
    ready.was_tuned = true;
    ready.service = tuned(std::move(ready.service), *found);
  }
  const auto latency = trial_load_ms(ready.service, about.options, about.texts, work);
  progress.done();
  if (!latency) return latency.error();
  ready.trial_ms = *latency;
  return ready;
}

/// Does body(0) to body(n - 1), two or more at a time where there are cores and threads for it.
void in_parallel(std::size_t n, const std::function<void(std::size_t)>& body) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < n; i = next++) body(i);
  };
  std::vector<std::jthread> threads;
  const auto n_threads =
      std::min<std::size_t>(n, std::max(1u, std::thread::hardware_concurrency()));
  try {
    for (std::size_t i = 1; i < n_threads; ++i) threads.emplace_back(work);
  } catch (const std::system_error&) {
    // Those that there are do it.
  }
  work();
}

using planned_services = std::vector<result<actors::service_options>>;

/// Every variant planned, with the damage that was measured where there is a budget.
planned_services plan_all(const task& about, const std::vector<strategy_options>& variants,
                          const budget_trial* budget, job& work) {
  auto service = about.service;
  if (budget != nullptr) service.profile = budget->corrected;
  steps progress(work, fmt::format("planning {}", about.name), variants.size());
  planned_services made(variants.size(), error{errc::failed, "not planned"});
  in_parallel(variants.size(), [&](std::size_t i) {
    made[i] = planned(service, about.name, variants[i], work);
    progress.done();
  });
  return made;
}

/// Places of the plans that are none of those before them again. What is alike answers alike.
std::vector<std::size_t> different(const planned_services& made) {
  std::vector<std::size_t> kept;
  for (std::size_t i = 0; i < made.size(); ++i)
    if (made[i] && std::ranges::none_of(kept, [&](std::size_t before) {
          return are_alike(made[before]->chosen, made[i]->chosen);
        }))
      kept.push_back(i);
  return kept;
}

/// What the trial load takes under each plan at the price of loss that fits one made quickly; never of one that does not fit.
result<std::vector<double>> rough_trials(const task& about, const planned_services& made,
                                         const std::vector<std::size_t>& of,
                                         const budget_trial& budget, job& work) {
  steps progress(work, fmt::format("trying {} plans of {}", of.size(), about.name), of.size());
  std::vector<result<double>> tried(of.size(), error{errc::failed, "not tried"});
  in_parallel(of.size(), [&](std::size_t i) {
    auto service = *made[of[i]];
    service.profile = about.service.profile;
    tried[i] =
        trial_load_ms(tuned(std::move(service), budget.rough), about.options, about.texts, work);
    progress.done();
  });
  std::vector<double> ms;
  for (const auto& one : tried) {
    if (!one && one.error().code != errc::infeasible) return one.error();
    ms.push_back(one ? *one : std::numeric_limits<double>::infinity());
  }
  return ms;
}

/// Of more plans than are worth tuning by themselves, those that answer the trial load fastest at a common price, in the order
/// that they had.
result<std::vector<std::size_t>> worth_tuning(const task& about, const planned_services& made,
                                              std::vector<std::size_t> kept,
                                              const budget_trial& budget, job& work) {
  constexpr std::size_t most_tuned = 4;
  if (kept.size() <= most_tuned) return kept;
  const auto ms = rough_trials(about, made, kept, budget, work);
  if (!ms) return ms.error();
  std::vector<std::size_t> by_time(kept.size());
  std::iota(by_time.begin(), by_time.end(), std::size_t{0});
  std::ranges::stable_sort(by_time, {}, [&](std::size_t i) { return (*ms)[i]; });
  by_time.resize(most_tuned);
  std::ranges::sort(by_time);
  for (auto& each : by_time) each = kept[each];
  return by_time;
}

/// Tries every plan that is like none before it; the fastest one is taken. The result does not depend on the threads. One
/// plan without a budget needs no trial; with one, the fastest few at a common price are tuned.
result<prepared> choose_variant(const task& about, const std::vector<strategy_options>& variants,
                                const budget_trial* budget, job& work) {
  const auto made = plan_all(about, variants, budget, work);
  for (const auto& one : made)
    if (!one && one.error().code != errc::infeasible) return one.error();
  auto kept = different(made);
  if (kept.empty()) return made.front().error();
  if (budget != nullptr) {
    auto worth = worth_tuning(about, made, std::move(kept), *budget, work);
    if (!worth) return worth.error();
    kept = std::move(*worth);
  }
  if (kept.size() == 1 && budget == nullptr)
    return prepared{*made[kept.front()], {}, false, std::nullopt};
  const auto steps_of_plan =
      budget == nullptr ? 1 : 1 + static_cast<std::size_t>(tuning_limits{}.most_trials);
  steps progress(work, fmt::format("trying {} plans of {}", kept.size(), about.name),
                 kept.size() * steps_of_plan);
  std::vector<result<prepared>> tried(kept.size(), error{errc::failed, "not tried"});
  in_parallel(kept.size(), [&](std::size_t i) {
    tried[i] = try_plan(about, *made[kept[i]], budget, work, progress);
  });
  const prepared* best = nullptr;
  for (const auto& one : tried) {
    if (!one && one.error().code == errc::infeasible) continue;
    if (!one) return one.error();
    if (best == nullptr || *one->trial_ms < *best->trial_ms) best = &*one;
  }
  if (best == nullptr) return tried.front().error();
  return *best;
}

/// A plan where there is but one. What substitutes is never faster there, so that no budget is worth a search for its price.
result<prepared> prepare_only_plan(const task& about, job& work) {
  work.begin(fmt::format("planning {}", about.name));
  auto made = planned(about.service, about.name, about.options, work);
  if (!made) return made.error();
  prepared ready{std::move(*made), {}, false, std::nullopt};
  if (!is_priced(ready.service.chosen)) return ready;
  ready.found = next_to_no_loss();
  ready.was_tuned = true;
  ready.service = tuned(std::move(ready.service), ready.found);
  return ready;
}

/// What the budget's price is about, from a plan that is made quickly and half of the texts.
result<budget_trial> tune_roughly(const task& about, const actors::service_options& with_plan,
                                  job& work) {
  constexpr tuning_limits roughly{4, 0.3};
  work.begin(fmt::format("calibrating the budget of {}", about.name));
  auto texts = scored_texts::make(about.service,
                                  affordable(about.texts, about.service.model->config()), work);
  if (!texts) return texts.error();
  // Half of them a few times is what is left.
  constexpr double scored_share = 0.4;
  double share = scored_share;
  work.advance(share);
  const auto found = tune(with_plan, {}, texts->half(), roughly, work,
                          [&] { work.advance(share += (1 - scored_share) / roughly.most_trials); });
  if (!found) return found.error();
  return budget_trial{std::move(*texts), *found, tuned(with_plan, *found).profile};
}

bool may_be_priced(const task& about) {
  const auto* record = planning::find_strategy(about.name);
  return record != nullptr && record->tunes_price && about.options.quality_percent > 0;
}

/// Nothing where the budget is none after all.
result<std::optional<budget_trial>> try_budget(const task& about, job& work) {
  auto quickly = about.options;
  constexpr std::size_t quick_steps = 2000;
  quickly.search_steps = std::min(about.options.search_steps, quick_steps);
  work.begin(fmt::format("planning {}", about.name));
  const auto rough_plan = planned(about.service, about.name, quickly, work);
  if (!rough_plan) return rough_plan.error();
  if (!is_priced(rough_plan->chosen)) return std::optional<budget_trial>();
  auto tried = tune_roughly(about, *rough_plan, work);
  if (!tried) return tried.error();
  return std::optional(std::move(*tried));
}

/// Where a budget is met by how far the strategy cuts.
bool may_be_cut(const task& about) {
  const auto* record = planning::find_strategy(about.name);
  const auto& options = about.options;
  return record != nullptr && record->most_cut != nullptr && options.quality_percent > 0 &&
         !options.plan && !options.cut && options.dry_run_requests > 0;
}

/// Whether a plan keeps the budget on the texts with 95 % confidence; its strategy keeps none while it runs.
result<bool> keeps_budget(const task& about, const actors::service_options& with_plan,
                          const scored_texts& texts, const job& work) {
  if (with_plan.chosen.plan.pruned.empty()) return true;
  const auto found = texts.score(with_plan, work);
  if (!found) return found.error();
  return found->bound() <= planning::nats_of_percent(about.options.quality_percent);
}

/// The farthest cut that keeps the budget.
result<std::size_t> cut_of_budget(const task& about, const scored_texts& texts, job& work) {
  const auto& service = about.service;
  const auto most =
      planning::find_strategy(about.name)
          ->most_cut({service.profile, service.servers, service.costs, about.options});
  steps progress(work, fmt::format("calibrating the budget of {}", about.name),
                 most_cut_trials(most));
  return farthest_cut(most, [&](std::size_t cut) -> result<cut_trial> {
    auto options = about.options;
    options.cut = cut;
    const auto made = planned(service, about.name, options, work);
    progress.done();
    if (!made && made.error().code == errc::infeasible) return cut_trial::does_not_fit;
    if (!made) return made.error();
    const auto kept = keeps_budget(about, *made, texts, work);
    if (!kept) return kept.error();
    return *kept ? cut_trial::within : cut_trial::beyond;
  });
}

/// Variants that prune otherwise than the one the cut was found by lose something else: those that keep the budget stay.
result<std::vector<strategy_options>> variants_within_budget(const task& about,
                                                             const scored_texts& texts,
                                                             const job& work) {
  const auto& service = about.service;
  auto variants = planning::plan_variants(about.name, service.profile, service.servers,
                                          service.costs, about.options);
  const auto found = planned(service, about.name, variants.front(), work);
  if (!found) return found.error();
  std::vector<strategy_options> kept{variants.front()};
  for (std::size_t i = 1; i < variants.size(); ++i) {
    const auto made = planned(service, about.name, variants[i], work);
    if (!made) continue;
    if (made->chosen.plan.pruned != found->chosen.plan.pruned) {
      const auto keeps = keeps_budget(about, *made, texts, work);
      if (!keeps) return keeps.error();
      if (!*keeps) continue;
    }
    kept.push_back(std::move(variants[i]));
  }
  return kept;
}

result<prepared> prepare_cut(const task& about, job& work) {
  work.begin(fmt::format("calibrating the budget of {}", about.name));
  const auto texts = scored_texts::make(
      about.service, affordable(about.texts, about.service.model->config()), work);
  if (!texts) return texts.error();
  const auto cut = cut_of_budget(about, *texts, work);
  if (!cut) return cut.error();
  auto with_cut = about;
  with_cut.options.cut = *cut;
  const auto variants = variants_within_budget(with_cut, *texts, work);
  if (!variants) return variants.error();
  return choose_variant(with_cut, *variants, nullptr, work);
}

/// Plans for the concurrency of the options, and tries what there is.
result<prepared> choose_for_load(const task& about, const budget_trial* budget, job& work) {
  const auto& service = about.service;
  const auto variants =
      about.options.dry_run_requests == 0
          ? std::vector{about.options}
          : planning::plan_variants(about.name, budget ? budget->corrected : service.profile,
                                    service.servers, service.costs, about.options);
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
  if (may_be_cut(about)) return prepare_cut(about, work);
  if (leaves_no_choice(about)) return prepare_only_plan(about, work);
  std::optional<budget_trial> budget;
  if (may_be_priced(about)) {
    auto tried = try_budget(about, work);
    if (!tried) return tried.error();
    budget = std::move(*tried);
  }
  auto chosen = choose_for_load(about, budget ? &*budget : nullptr, work);
  const bool says_load = about.options.concurrency_by_trial && about.options.expected_rate > 0;
  if (!chosen || !says_load || !chosen->trial_ms) return chosen;
  const auto in_flight = requests_in_flight(about.options, *chosen->trial_ms);
  if (!is_far_from(about.options.concurrency, in_flight)) return chosen;
  auto again = about;
  again.options.concurrency = in_flight;
  auto other = choose_for_load(again, budget ? &*budget : nullptr, work);
  if (!other && other.error().code != errc::infeasible) return other;
  const bool is_better = other && other->trial_ms && *other->trial_ms < *chosen->trial_ms;
  return is_better ? std::move(other) : std::move(chosen);
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

/// `quality_percent`: the whole budget, of which the model's precision took so much.
void note_whole_model(planning::strategy& chosen, precision kept, double taken_nats,
                      double quality_percent) {
  chosen.whole_model = kept;
  chosen.quality.taken_nats = taken_nats;
  chosen.quality.percent = quality_percent;
}

/// Prepared on the model in this precision, with what its damage, measured on the texts at 95 %
/// confidence, leaves of the budget; nothing where that is nothing or does not fit.
result<std::optional<prepared>> prepare_coarser(const task& about, precision kept,
                                                const token_documents& read,
                                                const scored_texts& texts, job& work) {
  auto coarse = about;
  coarse.service = with_whole_model(about.service, kept);
  const auto of_coarse = scored_texts::make(coarse.service, read, work);
  if (!of_coarse) return of_coarse.error();
  const double taken = std::max(0.0, texts.above(of_coarse->exact()).bound());
  if (taken >= planning::nats_of_percent(about.options.quality_percent))
    return std::optional<prepared>();
  coarse.options.choose_precision = false;
  coarse.options.quality_percent = left_of(about.options.quality_percent, taken);
  auto ready = prepare_one(coarse, work);
  if (!ready && ready.error().code == errc::infeasible) return std::optional<prepared>();
  if (!ready) return ready.error();
  note_whole_model(ready->service.chosen, kept, taken, about.options.quality_percent);
  return std::optional(std::move(*ready));
}

/// The fastest of `as_stored`, which may be infeasible, and the whole model in each precision.
result<prepared> fastest_whole_model(const task& about, result<prepared> as_stored, job& work) {
  constexpr auto never = std::numeric_limits<double>::infinity();
  const auto read = affordable(about.texts, about.service.model->config());
  const auto texts = scored_texts::make(about.service, read, work);
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
  if (request.whole_model != precision::stored)
    note_whole_model(ready.service.chosen, request.whole_model, request.whole_model_nats,
                     request.options.quality_percent);
  if (ready.was_tuned) ready.service = tuned(std::move(ready.service), ready.found);
  return ready;
}

}  // namespace

namespace {

/// Then nothing is expected of anybody: every expert runs where it is asked for.
bool is_one_without_budget(const world& content, const preparation_request& request) {
  return content.servers.size() == 1 && request.options.quality_percent == 0;
}

}  // namespace

double expected_concurrency(std::size_t n_requests) {
  return std::clamp(static_cast<double>(n_requests), 1.0, 4.0);
}

bool runs_model(const preparation_request& request, bool knows_nothing) {
  if (knows_nothing) return false;
  if (request.known_tuning || request.whole_model != precision::stored) return false;
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
  // Loads of a model that nobody knows say nothing.
  if (content.knows_nothing) options.dry_run_requests = 0;
  if (options.horizon)
    options.horizon =
        std::min(*options.horizon, static_cast<std::size_t>(content.profile.n_layers));
  task about{service_in(content, request.seed), request.strategy, options, content.tuning_texts};
  about.service.quality_percent = options.quality_percent;
  if (request.known_tuning || request.whole_model != precision::stored)
    return prepare_known(std::move(about), request, work);
  try {
    const bool tries_coarser = may_keep_whole_model_coarser(content, request);
    about.is_compared = tries_coarser;
    auto ready = prepare_one(about, work);
    // Where the model as stored fits nowhere, a coarser one may.
    if (tries_coarser && (ready || ready.error().code == errc::infeasible))
      return fastest_whole_model(about, std::move(ready), work);
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
