#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "planning/plan_alike.hpp"
#include "setup/preparing.hpp"
#include "setup/tried_plans.hpp"

/// The choice between a strategy's plans, by how fast they answer the trial load.
namespace ordermoe::setup::preparing {

namespace {

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

/// Prices that a tuned plan is tried at, over the lowest that keeps the budget: what substitution saves is predicted, and not always
/// saved, so that a budget need not be used up. The first is that one. Where a rule leaves slots out and puts nothing in their place, so low a price
/// may empty the ledger at the first positions, where a slot loses most, so that the rest runs as without a budget; a far dearer one may be faster then.
constexpr double dearer_prices[] = {1, 8};
constexpr double dearer_prices_of_leaving_out[] = {1, 4, 16, 64, 256, 1024};
/// Those at which such a rule is also tried without its ledger: what a full ledger hides may be that next to nothing is lost.
constexpr double prices_without_ledger[] = {1.0 / 1024, 1.0 / 64, 1.0 / 8, 1, 8, 64};

bool only_leaves_out(const planning::strategy& chosen) {
  const auto rule = chosen.policy.candidates;
  return rule == planning::candidate_rule::weigh || rule == planning::candidate_rule::drop;
}

std::span<const double> prices_over(const planning::strategy& chosen) {
  if (only_leaves_out(chosen)) return dearer_prices_of_leaving_out;
  return dearer_prices;
}

/// A plan with this price and damage, which its budget is kept at.
prepared ready_at(const task& about, actors::service_options with_plan, const tuning& found) {
  with_plan.profile = about.service.profile;
  return {tuned(std::move(with_plan), found), found, true, std::nullopt};
}

/// Tries a plan that needs no budget.
result<prepared> try_plan(const task& about, const actors::service_options& with_plan,
                          const job& work, steps& progress) {
  const auto latency = trial_load_ms(with_plan, about.options, about.texts, work);
  progress.done();
  if (!latency) return latency.error();
  return prepared{with_plan, {}, false, *latency};
}

/// Prices are sought on some texts, and what was found on them is a start for the others.
constexpr tuning_limits sought_limits{3, 0.3}, judged_limits{6, 0.25, 4};
constexpr std::size_t steps_of_sought = static_cast<std::size_t>(sought_limits.most_trials) + 1;
std::span<const double> free_prices(const planning::strategy& chosen) {
  if (only_leaves_out(chosen)) return prices_without_ledger;
  return {};
}
std::size_t steps_of_judged(const planning::strategy& chosen) {
  return static_cast<std::size_t>(judged_limits.most_trials) + prices_over(chosen).size() +
         free_prices(chosen).size();
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

/// The texts of a budget for plans that prune these experts for everybody.
struct texts_beside {
  planning::pruned_experts pruned;
  scored_texts sought, judged;
};

/// Where plans prune for everybody within a budget: what that takes of it, on texts on which no price is sought. Those that take all of it are
/// none any more. Gives the texts for each of what they prune, since several prune the same.
result<std::vector<texts_beside>> charge_variants(const task& about, const budget_trial& budget,
                                                  planned_services& made, const job& work) {
  std::vector<texts_beside> known;
  for (auto& one : made) {
    if (!one || one->chosen.plan.pruned.empty()) continue;
    const auto& pruned = one->chosen.plan.pruned.front();
    auto found = std::ranges::find(known, pruned, &texts_beside::pruned);
    if (found == known.end()) {
      auto sought = budget.sought.beside(about.service, pruned, work);
      auto judged = budget.judged.beside(about.service, pruned, work);
      if (!sought || !judged) return sought ? judged.error() : sought.error();
      found = known.insert(known.end(), {pruned, std::move(*sought), std::move(*judged)});
    }
    // In the mean, as what slots lose is charged: confidence is asked of both together, when the price is tuned. What seems to lose
    // nothing is not believed.
    constexpr double least_share = 0.1;
    const auto found_here = found->judged.pruned();
    charge_pruning(one->chosen, std::max(found_here.increase, least_share * found_here.bound()));
    if (one->chosen.token_budget == 0)
      one = error{errc::infeasible, "what the plan prunes takes all of the budget"};
  }
  return known;
}

/// The texts by which a plan's price is tuned.
const scored_texts& texts_for(const planning::plan& placed, const std::vector<texts_beside>& known,
                              scored_texts texts_beside::*part, const scored_texts& plain) {
  if (placed.pruned.empty()) return plain;
  return *std::ranges::find(known, placed.pruned.front(), &texts_beside::pruned).*part;
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

/// One of a strategy's plans, and the price of loss at which its budget is about kept.
struct candidate {
  const actors::service_options* with_plan = nullptr;
  tuning about;
  plan_kind of = plan_kind::whole;
};

/// With a core of what `static-pruning` keeps within the budget, or of more, the damage is that of pruning, which was measured, and what a slot does
/// that is left out is what calibration says. No price is taken for granted there: at one so low that every slot is served where it is fastest, a core lost two to three times the budget of pruning.
candidate candidate_of(const actors::service_options& with_plan, const strategy_options& variant,
                       const budget_trial& budget) {
  const auto n_outside = variant.cut.value_or(0);
  const bool is_within = !with_plan.chosen.plan.pruned.empty() ||
                         (n_outside > 0 && n_outside <= budget.cut.value_or(0));
  auto about = budget.rough;
  if (is_within) {
    about.damage = budget.cut_damage;
    about.left_out = 1;
  }
  const auto of = is_within       ? plan_kind::pruned_core
                  : n_outside > 0 ? plan_kind::core
                                  : plan_kind::whole;
  return {&with_plan, about, of};
}

/// How the trial load is answered under each plan at its price; in no time that is finite by one that does not fit.
result<std::vector<trial_answers>> trials_of(const task& about, const std::vector<candidate>& tried,
                                             job& work) {
  steps progress(work, fmt::format("trying {} plans of {}", tried.size(), about.name),
                 tried.size());
  std::vector<result<trial_answers>> found(tried.size(), error{errc::failed, "not tried"});
  in_parallel(tried.size(), [&](std::size_t i) {
    const auto ready = ready_at(about, *tried[i].with_plan, tried[i].about);
    found[i] = trial_load(ready.service, about.options, about.texts, work);
    progress.done();
  });
  std::vector<trial_answers> answers;
  for (const auto& one : found) {
    if (!one && one.error().code != errc::infeasible) return one.error();
    answers.push_back(one ? *one : trial_answers{std::numeric_limits<double>::infinity(), 0});
  }
  return answers;
}

/// Of more plans than are worth tuning by themselves, those that are, by how they answer the trial load at about their price.
result<std::vector<candidate>> those_worth_tuning(const task& about,
                                                  const std::vector<candidate>& kept, job& work) {
  if (kept.size() <= most_tuned) return kept;
  const auto answers = trials_of(about, kept, work);
  if (!answers) return answers.error();
  std::vector<tried_plan> tried;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto& [ms, nats] = (*answers)[i];
    tried.push_back({kept[i].of, ms, nats * kept[i].about.price_ns_per_nat * 1e-6});
  }
  std::vector<candidate> worth;
  for (const auto i : worth_tuning(tried)) worth.push_back(kept[i]);
  return worth;
}

/// A plan whose price was sought.
struct sought_price {
  candidate one;  ///< About the price that was found.
  double trial_ms = 0;
};

/// Seeks a plan's price and tries it.
result<sought_price> seek_price(const task& about, const candidate& one, const budget_trial& budget,
                                const std::vector<texts_beside>& beside, const job& work,
                                steps& progress) {
  auto service = *one.with_plan;
  service.profile = about.service.profile;
  constexpr double judged_by = 3;  // times as many texts
  const auto& texts = texts_for(service.chosen.plan, beside, &texts_beside::sought, budget.sought);
  const auto found = tune_about(service, one.about, texts, judged_by, sought_limits, work,
                                [&] { progress.done(); });
  if (!found) return found.error();
  const auto ready = ready_at(about, *one.with_plan, *found);
  const auto latency = trial_load_ms(ready.service, about.options, about.texts, work);
  progress.done();
  if (!latency) return latency.error();
  return sought_price{{one.with_plan, *found, one.of}, *latency};
}

/// How the trial load was answered at a price, by a service with its ledger in force or without one.
struct tried_tuning {
  tuning at;
  double ms = 0;
  bool is_limited = true;
};

/// Tunes a plan to its budget on texts on which nothing was sought, from the price that others found, and tries it at the best of the
/// prices. Where a rule leaves slots out and puts nothing in their place, also with the damage that is seen where no ledger stops it.
result<prepared> tune_judged(const task& about, const candidate& one, const budget_trial& budget,
                             const std::vector<texts_beside>& beside, const job& work,
                             steps& progress) {
  auto service = *one.with_plan;
  service.profile = about.service.profile;
  const auto& texts = texts_for(service.chosen.plan, beside, &texts_beside::judged, budget.judged);
  const auto found = tune(service, one.about, texts, judged_limits, work, [&] { progress.done(); });
  if (!found) return found.error();
  std::vector<tried_tuning> open;
  const auto try_at = [&](const tuning& at, bool is_limited) -> result<void> {
    auto ready = ready_at(about, *one.with_plan, at).service;
    const auto latency = trial_load_ms(is_limited ? ready : unlimited(std::move(ready)),
                                       about.options, about.texts, work);
    if (!latency) return latency.error();
    open.push_back({at, *latency, is_limited});
    return {};
  };
  for (const bool is_limited : {true, false})
    for (const double times :
         is_limited ? prices_over(service.chosen) : free_prices(service.chosen)) {
      const tuning at{found->price_ns_per_nat * times, found->damage, found->left_out};
      if (auto done = try_at(at, is_limited); !done) return done.error();
      progress.done();
    }
  // The fastest that keeps the budget; of equally fast ones the one that was sought.
  while (!open.empty()) {
    const auto fastest = std::ranges::min_element(open, {}, &tried_tuning::ms);
    const auto tried = *fastest;
    open.erase(fastest);
    if (!tried.is_limited) {
      const auto at = recounted(service, tried.at, texts, work);
      if (!at) return at.error();
      if (!*at) continue;
      if (auto done = try_at(**at, true); !done) return done.error();
      continue;
    }
    // The search has seen that it is kept, but at the highest price what is pruned is lost all the same; and where the ledger stops most of what a
    // low price would lose, a dearer one may lose more.
    const bool is_seen = service.chosen.plan.pruned.empty() && tried.at == *found;
    const auto is_kept = is_seen ? result<bool>(true) : is_kept_at(service, tried.at, texts, work);
    if (!is_kept) return is_kept.error();
    if (!*is_kept) continue;
    auto ready = ready_at(about, *one.with_plan, tried.at);
    ready.trial_ms = tried.ms;
    return ready;
  }
  return error{errc::infeasible, "what the plan prunes loses more than the budget"};
}

/// The fastest of those that fit; the first error where none does.
result<prepared> fastest(const std::vector<result<prepared>>& tried) {
  const prepared* best = nullptr;
  for (const auto& one : tried) {
    if (!one && one.error().code == errc::infeasible) continue;
    if (!one) return one.error();
    if (best == nullptr || *one->trial_ms < *best->trial_ms) best = &*one;
  }
  if (best == nullptr) return tried.front().error();
  return *best;
}

/// The plan that answers the trial load fastest with next to no loss, which is how the rivals that never substitute answer it; nothing
/// where every plan has a core, or nothing is tried.
result<std::optional<prepared>> fastest_without_loss(const task& about, std::vector<candidate> kept,
                                                     job& work) {
  if (about.options.dry_run_requests == 0) return std::optional<prepared>();
  std::erase_if(kept, [](const candidate& one) { return one.of != plan_kind::whole; });
  for (auto& one : kept) one.about = next_to_no_loss();
  const auto answers = trials_of(about, kept, work);
  if (!answers) return answers.error();
  const auto best = std::ranges::min_element(*answers, {}, &trial_answers::ms);
  if (best == answers->end() || best->ms == std::numeric_limits<double>::infinity())
    return std::optional<prepared>();
  const auto& one = kept[static_cast<std::size_t>(best - answers->begin())];
  auto ready = ready_at(about, *one.with_plan, one.about);
  ready.trial_ms = best->ms;
  return std::optional(std::move(ready));
}

/// Those worth judging at the price that was sought for each. Error: infeasible where none fits.
result<std::vector<candidate>> fastest_sought(const task& about,
                                              const std::vector<candidate>& worth,
                                              const budget_trial& budget,
                                              const std::vector<texts_beside>& beside, job& work) {
  steps progress(work, fmt::format("trying {} plans of {}", worth.size(), about.name),
                 worth.size() * steps_of_sought);
  std::vector<result<sought_price>> tried(worth.size(), error{errc::failed, "not tried"});
  in_parallel(worth.size(), [&](std::size_t i) {
    tried[i] = seek_price(about, worth[i], budget, beside, work, progress);
  });
  std::vector<sought_price> found;
  for (auto& one : tried) {
    if (!one && one.error().code != errc::infeasible) return one.error();
    if (one) found.push_back(*one);
  }
  if (found.empty()) return tried.front().error();
  std::vector<tried_plan> sought;
  for (const auto& one : found) sought.push_back({one.one.of, one.trial_ms});
  std::vector<candidate> kept;
  for (const auto i : worth_judging(sought)) kept.push_back(found[i].one);
  return kept;
}

/// Of the fastest few at about their price, the fastest two at the price that was sought for each are tuned on other texts. What then loses
/// quality has to be faster than the fastest plan that does not by more than loads alike differ in what they say.
result<prepared> choose_tuned(const task& about, const std::vector<candidate>& kept,
                              const budget_trial& budget, const std::vector<texts_beside>& beside,
                              job& work) {
  const auto lossless = fastest_without_loss(about, kept, work);
  if (!lossless) return lossless.error();
  const auto worth = those_worth_tuning(about, kept, work);
  if (!worth) return worth.error();
  const auto few = fastest_sought(about, *worth, budget, beside, work);
  if (!few && few.error().code != errc::infeasible) return few.error();
  if (!few) return *lossless ? result<prepared>(**lossless) : result<prepared>(few.error());
  steps progress(work, fmt::format("trying {} plans of {} on other texts", few->size(), about.name),
                 few->size() * steps_of_judged(few->front().with_plan->chosen));
  std::vector<result<prepared>> tried(few->size(), error{errc::failed, "not tried"});
  in_parallel(few->size(), [&](std::size_t i) {
    tried[i] = tune_judged(about, (*few)[i], budget, beside, work, progress);
  });
  auto best = fastest(tried);
  if (!*lossless || (!best && best.error().code != errc::infeasible)) return best;
  if (best && *best->trial_ms < *(*lossless)->trial_ms * (1 - least_gain)) return best;
  return **lossless;
}

}  // namespace

result<prepared> choose_variant(const task& about, const std::vector<strategy_options>& variants,
                                const budget_trial* budget, job& work) {
  auto made = plan_all(about, variants, budget, work);
  std::vector<texts_beside> beside;
  if (budget != nullptr) {
    auto charged = charge_variants(about, *budget, made, work);
    if (!charged) return charged.error();
    beside = std::move(*charged);
  }
  for (const auto& one : made)
    if (!one && one.error().code != errc::infeasible) return one.error();
  const auto kept = different(made);
  if (kept.empty()) return made.front().error();
  if (budget != nullptr) {
    std::vector<candidate> candidates;
    for (const auto i : kept) candidates.push_back(candidate_of(*made[i], variants[i], *budget));
    return choose_tuned(about, candidates, *budget, beside, work);
  }
  if (kept.size() == 1) return prepared{*made[kept.front()], {}, false, std::nullopt};
  steps progress(work, fmt::format("trying {} plans of {}", kept.size(), about.name), kept.size());
  std::vector<result<prepared>> tried(kept.size(), error{errc::failed, "not tried"});
  in_parallel(kept.size(),
              [&](std::size_t i) { tried[i] = try_plan(about, *made[kept[i]], work, progress); });
  return fastest(tried);
}

}  // namespace ordermoe::setup::preparing
