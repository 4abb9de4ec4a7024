#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/service/service.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/preparation.hpp"
#include "setup/texts.hpp"
#include "setup/trials.hpp"
#include "setup/tuning.hpp"

/// What the sources of preparation share: preparation.cpp says in which order, choosing.cpp chooses between plans, and
/// budgets.cpp finds what a budget allows.
namespace ordermoe::setup::preparing {

using planning::strategy_options;

/// What is prepared: a service without a strategy, and what is tried on it.
struct task {
  actors::service_options service;
  std::string_view name;
  strategy_options options;
  const token_documents& texts;
  bool is_compared = false;  ///< With the whole model in other precisions, by its trial load.
};

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

/// What a budget is tuned with: texts to seek prices on and others to judge them by, what half of the former said, the profile
/// with that damage, how many experts `static-pruning` would do without for it, and the damage that these were found to do.
struct budget_trial {
  scored_texts sought, judged;
  tuning rough;
  planning::profile corrected;
  std::optional<std::size_t> cut;
  double cut_damage = 1;
};

/// What gives quality up, or a request's own budget, has to be faster by this share: more than loads alike differ in what they say.
inline constexpr double least_gain = 0.02;

/// What its plan prunes for everybody takes so many nats of the budget; its rule has the rest.
void charge_pruning(planning::strategy& chosen, double nats);

/// Whether its budget is met by a price of loss.
bool is_priced(const planning::strategy& chosen);

/// The service by that strategy. Errors: those of planning::make_strategy; interrupted.
result<actors::service_options> planned(const actors::service_options& service,
                                        std::string_view name, const strategy_options& options,
                                        const job& work);

/// Tries every plan that is like none before it; the fastest one is taken. The result does not depend on the threads. One
/// plan without a budget needs no trial.
result<prepared> choose_variant(const task& about, const std::vector<strategy_options>& variants,
                                const budget_trial* budget, job& work);

bool may_be_priced(const task& about);
/// Nothing where the budget is none after all.
result<std::optional<budget_trial>> try_budget(const task& about, job& work);

/// Where a budget is met by how far the strategy cuts.
bool may_be_cut(const task& about);

/// What a strategy that cuts is ready with, and what the texts lose at this cut at most, with 95 % confidence, in nats a token. Of
/// `moe2`, whose plans for a cut do not all prune alike, by the one that the cut was found with.
struct prepared_cut {
  prepared ready;
  double bound = 0;
};
result<prepared_cut> prepare_cut(const task& about, job& work);

}  // namespace ordermoe::setup::preparing
