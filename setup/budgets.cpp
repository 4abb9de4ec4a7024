#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "planning/pruning.hpp"
#include "setup/cutting.hpp"
#include "setup/preparing.hpp"

/// What a budget allows, as texts say that are decoded under it: a price of loss, or how many experts may be pruned.
namespace ordermoe::setup::preparing {

void charge_pruning(planning::strategy& chosen, double nats) {
  chosen.token_budget = std::max<planning::loss_units>(
      0, chosen.token_budget -
             static_cast<planning::loss_units>(std::ceil(nats * planning::units_per_loss)));
  chosen.pruned_nats = nats;
  chosen.quality.taken_nats = nats;
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

namespace {

/// The most experts of planning::pruning_order() without which the texts keep the budget with 95 % confidence, as `static-pruning`
/// does, and what their loss was over what is predicted of it.
result<void> find_cut(const task& about, budget_trial& budget, job& work) {
  const auto& service = about.service;
  const auto order = planning::pruning_order(service.profile);
  const double nats = aimed_share * planning::nats_of_percent(about.options.quality_percent);
  steps progress(work, fmt::format("calibrating the budget of {}", about.name),
                 most_cut_trials(order.size()));
  const auto cut = farthest_cut(order.size(), [&](std::size_t tried) -> result<cut_trial> {
    const auto found =
        budget.judged.score(*service.model, service.profile,
                            planning::first_pruned(order, service.profile.n_layers, tried), work);
    progress.done();
    if (!found) return found.error();
    if (found->bound() > nats) return cut_trial::beyond;
    // What seems to lose nothing is not believed.
    constexpr double least_damage = 0.1;
    if (found->predicted > 0)
      budget.cut_damage = std::max(least_damage, found->to_count() / found->predicted);
    return cut_trial::within;
  });
  if (!cut) return cut.error();
  budget.cut = *cut;
  return {};
}

/// What the budget's price is about, from a plan that is made quickly and half of the texts.
result<budget_trial> tune_roughly(const task& about, const actors::service_options& with_plan,
                                  job& work) {
  constexpr tuning_limits roughly{4, 0.3};
  work.begin(fmt::format("calibrating the budget of {}", about.name));
  auto texts =
      scored_texts::make(about.service, affordable(about.texts, about.service.model->config()),
                         work, about.options.expected_rate);
  if (!texts) return texts.error();
  auto [sought, judged] = texts->sought_and_judged();
  // Half of those that are sought on, a few times, is what is left.
  constexpr double scored_share = 0.4;
  double share = scored_share;
  work.advance(share);
  const auto found = tune_about(with_plan, {}, sought.half(), 2, roughly, work, [&] {
    work.advance(share += (1 - scored_share) / roughly.most_trials);
  });
  if (!found) return found.error();
  budget_trial made{
      std::move(sought), std::move(judged), *found, tuned(with_plan, *found).profile, {}};
  const auto* record = planning::find_strategy(about.name);
  if (record->tries_cores || record->skips_beside_pruning)
    if (auto cut = find_cut(about, made, work); !cut) return cut.error();
  return made;
}

/// Whether the same is pruned for the requests of all access servers.
bool prunes_for_all(const planning::plan& placed) {
  const auto& pruned = placed.pruned;
  return std::ranges::all_of(pruned, [&](const auto& one) { return one == pruned.front(); });
}

/// Whether a strategy that cuts keeps budgets while it runs, too, so that it may lose something without a cut.
bool substitutes(const planning::strategy& chosen) {
  return planning::find_strategy(chosen.name)->keeps_budgets;
}

/// What the texts lose by a plan at most, with 95 % confidence.
result<double> bound_of(const actors::service_options& with_plan, const scored_texts& texts,
                        const job& work) {
  const auto& pruned = with_plan.chosen.plan.pruned;
  if (pruned.empty() && !substitutes(with_plan.chosen)) return 0.0;
  const auto found = !pruned.empty() && prunes_for_all(with_plan.chosen.plan)
                         ? texts.score(*with_plan.model, with_plan.profile, pruned.front(), work)
                         : texts.score(with_plan, work);
  if (!found) return found.error();
  return found->bound();
}

bool is_within(const task& about, double bound) {
  return bound <= aimed_share * planning::nats_of_percent(about.options.quality_percent);
}

struct cut_in_budget {
  std::size_t cut = 0;
  double bound = 0;  ///< As prepared_cut::bound.
};

std::size_t most_cut(const task& about) {
  const auto& service = about.service;
  return planning::find_strategy(about.name)
      ->most_cut({service.profile, service.servers, service.costs, about.options});
}

/// The strategy's first plan with this cut.
result<actors::service_options> plan_of_cut(const task& about, std::size_t cut, const job& work) {
  auto options = about.options;
  options.cut = cut;
  return planned(about.service, about.name, options, work);
}

/// The farthest cut that keeps the budget; `plan_of(cut)` is what is planned with it.
template <class PlanOf>
result<cut_in_budget> cut_of_budget(const task& about, const scored_texts& texts,
                                    const PlanOf& plan_of, job& work) {
  const auto most = most_cut(about);
  steps progress(work, fmt::format("calibrating the budget of {}", about.name),
                 most_cut_trials(most));
  std::map<std::size_t, double> bounds;
  const auto cut = farthest_cut(most, [&](std::size_t tried) -> result<cut_trial> {
    const auto made = plan_of(tried);
    progress.done();
    if (!made && made.error().code == errc::infeasible) return cut_trial::does_not_fit;
    if (!made) return made.error();
    const auto bound = bound_of(*made, texts, work);
    if (!bound) return bound.error();
    bounds[tried] = *bound;
    return is_within(about, *bound) ? cut_trial::within : cut_trial::beyond;
  });
  if (!cut) return cut.error();
  return cut_in_budget{*cut, std::max(0.0, bounds[*cut])};
}

/// Variants that prune or place otherwise than the one the cut was found by may lose something else: those that keep the budget stay.
result<std::vector<strategy_options>> variants_within_budget(const task& about,
                                                             const scored_texts& texts,
                                                             const job& work) {
  const auto& service = about.service;
  auto variants = planning::plan_variants(about.name, service.profile, service.servers,
                                          service.costs, about.options);
  const auto found = planned(service, about.name, variants.front(), work);
  if (!found) return found.error();
  std::vector<strategy_options> kept{variants.front()};
  // Several plans prune the same.
  std::vector<std::pair<std::vector<planning::pruned_experts>, bool>> judged{
      {found->chosen.plan.pruned, true}};
  for (std::size_t i = 1; i < variants.size(); ++i) {
    const auto made = planned(service, about.name, variants[i], work);
    if (!made) continue;
    const auto& pruned = made->chosen.plan.pruned;
    auto known = substitutes(made->chosen)
                     ? judged.end()
                     : std::ranges::find(judged, pruned, [](const auto& one) { return one.first; });
    if (known == judged.end()) {
      const auto bound = bound_of(*made, texts, work);
      if (!bound) return bound.error();
      known = judged.insert(judged.end(), {pruned, is_within(about, *bound)});
    }
    if (known->second) kept.push_back(std::move(variants[i]));
  }
  return kept;
}

/// Whether what a cut prunes goes by where users are.
bool prunes_by_home(const task& about, const job& work) {
  for (auto cut = most_cut(about); cut > 0; cut /= 2)
    if (const auto made = plan_of_cut(about, cut, work); made && !made->chosen.plan.pruned.empty())
      return !prunes_for_all(made->chosen.plan);
  return false;
}

/// At how many servers, or sets of them, users are attended.
std::size_t n_homes(const actors::service_options& with_plan) {
  std::set<std::vector<planning::server_mask>> homes;
  for (const auto& each : with_plan.chosen.plan.residence) homes.insert(each.layers);
  return homes.size();
}

/// The plan with this cut that has so many homes. Error: infeasible where there is none.
result<actors::service_options> plan_with_homes(const task& about, std::size_t cut, std::size_t n,
                                                const job& work) {
  const auto& service = about.service;
  auto options = about.options;
  options.cut = cut;
  for (const auto& variant : planning::plan_variants(about.name, service.profile, service.servers,
                                                     service.costs, options))
    if (auto made = planned(service, about.name, variant, work); made && n_homes(*made) == n)
      return made;
  return error{errc::infeasible, fmt::format("no plan of {} has {} homes", about.name, n)};
}

/// Where each server reaches only experts that are near, what is lost goes by where users are attended: with fewer homes than the
/// first plan has, another reach may keep the budget. Each such form with the farthest cut of its own.
result<std::vector<strategy_options>> forms_of_own_cut(const task& about, const scored_texts& texts,
                                                       job& work) {
  const auto& service = about.service;
  auto uncut = about.options;
  uncut.cut = 0;
  std::set<std::size_t> forms;
  for (const auto& variant :
       planning::plan_variants(about.name, service.profile, service.servers, service.costs, uncut))
    if (const auto made = planned(service, about.name, variant, work)) forms.insert(n_homes(*made));
  if (const auto first = plan_of_cut(about, 0, work)) forms.erase(n_homes(*first));
  std::vector<strategy_options> found;
  for (const auto n : forms) {
    const auto of_form = [&](std::size_t cut) { return plan_with_homes(about, cut, n, work); };
    const auto cut = cut_of_budget(about, texts, of_form, work);
    if (!cut) return cut.error();
    if (cut->cut == 0) continue;  // As among the variants.
    auto made = of_form(cut->cut);
    if (!made) return made.error();
    auto options = about.options;
    options.cut = cut->cut;
    options.plan = std::move(made->chosen.plan);
    found.push_back(std::move(options));
  }
  return found;
}

}  // namespace

bool may_be_priced(const task& about) {
  const auto* record = planning::find_strategy(about.name);
  return record != nullptr && record->tunes_price && about.options.quality_percent > 0;
}

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

bool may_be_cut(const task& about) {
  const auto* record = planning::find_strategy(about.name);
  const auto& options = about.options;
  return record != nullptr && record->most_cut != nullptr && options.quality_percent > 0 &&
         !options.plan && !options.cut && !options.threshold && options.dry_run_requests > 0;
}

result<prepared_cut> prepare_cut(const task& about, job& work) {
  work.begin(fmt::format("calibrating the budget of {}", about.name));
  const auto texts =
      scored_texts::make(about.service, affordable(about.texts, about.service.model->config()),
                         work, about.options.expected_rate);
  if (!texts) return texts.error();
  const auto cut = cut_of_budget(
      about, *texts, [&](std::size_t tried) { return plan_of_cut(about, tried, work); }, work);
  if (!cut) return cut.error();
  auto with_cut = about;
  with_cut.options.cut = cut->cut;
  auto variants = variants_within_budget(with_cut, *texts, work);
  if (!variants) return variants.error();
  if (!planning::find_strategy(about.name)->keeps_budgets && prunes_by_home(about, work)) {
    auto forms = forms_of_own_cut(about, *texts, work);
    if (!forms) return forms.error();
    std::ranges::move(*forms, std::back_inserter(*variants));
  }
  auto ready = choose_variant(with_cut, *variants, nullptr, work);
  if (!ready) return ready.error();
  return prepared_cut{std::move(*ready), cut->bound};
}

}  // namespace ordermoe::setup::preparing
