#pragma once

#include <functional>
#include <optional>

#include "actors/service/service.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "planning/profile.hpp"
#include "setup/trials.hpp"

/// The price of loss at which a strategy's budget holds in execution.
namespace ordermoe::setup {

/// What a budget was calibrated to. The damage of the profile that a service runs with is that of
/// its world's times `damage`, in the metric of its policy and in coarser copies, and times `left_out` in what a slot
/// does that is left out.
struct tuning {
  double price_ns_per_nat = 1e9;
  double damage = 1;
  double left_out = 1;
  friend bool operator==(const tuning&, const tuning&) = default;
};

/// The service with this price and damage; it must have the profile of its world.
actors::service_options tuned(actors::service_options service, const tuning& found);

/// How long a search for a price may go on.
struct tuning_limits {
  int most_trials = 5;
  double tolerance = 0.1;  ///< Ends when at least 1 - tolerance of the budget is used.
  int most_more = 0;       ///< Trials more, where none of those kept the budget.
};

/// The price at which next to nothing is lost, without a correction of the damage.
tuning next_to_no_loss();

/// What tune() is likely to find on so many times these texts, without being sure that the budget is kept: where a search on them ends, at a price
/// that it tried or at the next one that it would.
result<tuning> tune_about(const actors::service_options& service, const tuning& start,
                          const scored_texts& texts, double times_as_many, tuning_limits limits,
                          const job& work, const std::function<void()>& told = {});

/// Whether the texts' increase stays within aimed_share of the budget of service.chosen with 95 % confidence at this price and damage. Errors:
/// those of scored_texts::score.
result<bool> is_kept_at(const actors::service_options& service, const tuning& at,
                        const scored_texts& texts, const job& work);

/// The same service with budgets so large that no ledger stops anything.
actors::service_options unlimited(actors::service_options service);

/// What does the same as this price and damage would without a ledger, with the damage that the texts say it does then, as far as one trial
/// knows: a ledger that is soon full hides what would be lost behind it, and one that counts more than is lost is full sooner. Nothing where the
/// texts' increase does not stay within aimed_share of the budget so, with 95 % confidence. Errors: those of scored_texts::score.
result<std::optional<tuning>> recounted(const actors::service_options& service, const tuning& at,
                                        const scored_texts& texts, const job& work);

/// Calibrates the budget of service.chosen against execution with its ledger in force: finds the
/// lowest price of loss at which the texts' increase stays within aimed_share of the budget with 95 % confidence,
/// and the damage by what was measured over what was predicted, both kinds of it together, all from `start` on, until a price is near enough and the ledger counts within
/// a factor of two what was measured. Where none of limits.most_trials prices keeps the budget, limits.most_more follow until one does, and
/// where none does it is next_to_no_loss()'s. What
/// selection does without a ledger depends on price times damage alone, so that both are found in
/// one search: a secant search for that product on logarithmic scales, since the increase falls
/// about as a power of it. `told`: called limits.most_trials times, once for each trial as it ends and, where fewer are
/// needed, for the others at the end. Errors: those of scored_texts::score.
result<tuning> tune(const actors::service_options& service, const tuning& start,
                    const scored_texts& texts, tuning_limits limits, const job& work,
                    const std::function<void()>& told = {});

}  // namespace ordermoe::setup
