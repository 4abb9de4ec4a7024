#pragma once

#include <optional>
#include <string>

#include "actors/service/service.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/tuning.hpp"
#include "setup/world.hpp"

/// From the name of a strategy to one that is ready to run on given servers.
namespace ordermoe::setup {

struct preparation_request {
  std::string strategy = "ordermoe";
  planning::strategy_options options;
  std::uint64_t seed = 1;  ///< Of trials.
  /// Whether plans can change while the service runs: then the whole model stays as stored.
  bool plans_change = false;
  /// What options.plan was tuned to when it was made: taken as it is instead of tuning again.
  std::optional<tuning> known_tuning;
  precision whole_model = precision::stored;  ///< Likewise, as strategy::whole_model.
  double whole_model_nats = 0;
  std::optional<double> pruned_nats;  ///< Likewise, as strategy::pruned_nats.
};

/// A strategy that is ready: every service, trial and measurement of it starts from this.
struct prepared {
  actors::service_options service;  ///< Emulated, without requests, monitor or trace.
  tuning found;                     ///< What service was tuned to; as it is without a budget.
  bool was_tuned = false;
  std::optional<double> trial_ms;  ///< Mean latency of the trial load, where there was one.
};

/// Requests in flight that are planned for where so many wait at once.
double expected_concurrency(std::size_t n_requests);

/// Plans a strategy for a world. Where it can be planned in several ways (plan_variants), each that
/// is like none before it answers the same trial load on the emulation and the one with the lowest
/// mean latency is taken. Where all are alike, none is tried.
///
/// One server that keeps all experts as the model has them leaves nothing to choose: nothing is tried
/// or tuned, a budget gets the price at which next to nothing is lost, and without a budget the
/// strategies need no profile.
///
/// `ordermoe` meets a budget by a price of loss, which is calibrated against execution: losses are
/// predicted layer by layer, which underestimates what substitution in many layers at once costs,
/// so the world's tuning texts are scored through the actors. The damage coefficients of the
/// profile are multiplied by measured over predicted, the variants are planned with the corrected
/// profile. Of each of three kinds, plans without a core, around one of what `static-pruning` keeps within the budget or of more, and around
/// one of less, the two that answer the trial load fastest at about their price, which is that of a plan made quickly, get one that
/// is sought on a quarter of the texts, and the two fastest of all at that get, on the others, the lowest price at which the measured
/// increase stays within aimed_share of the budget with 95 % confidence, before they
/// answer the trial load again, at that price and at a dearer one. What is found is taken if it is faster by
/// more than 2 % than every plan without a core at the price at which next to nothing is lost; else the fastest of these.
///
/// `static-pruning` and `moe2` meet a budget by the farthest cut at which the texts' increase stays within as much of it with 95 %
/// confidence (setup/cutting.hpp): in the mean, with no ledger of a request's own. `paper-tuned`, which has one, lowers its thresholds
/// as far. `naee` prunes what a trial load and its texts say, and meets what is left of the budget by a price, as above.
///
/// With choose_pruning, `ordermoe` under a budget is also prepared as `static-pruning` is, whose loss on the texts, at 95 % confidence,
/// is taken of the budget beforehand (strategy::pruned_nats); a request that states less than that is refused. That is taken where it
/// answers the trial load faster by more than 2 %, or where nothing else fits; not where plans can change.
///
/// With choose_precision, `ordermoe` under a budget is also prepared on the whole model in each
/// precision of world::coarser: what that alone costs on the texts, at 95 % confidence, is taken of
/// the budget beforehand (strategy::whole_model), and the rest is substitution's. Where that
/// answers the trial load fastest, the service's model and costs are those of the coarser model.
/// Not where the cluster says how servers keep experts, nor where plans can change.
///
/// Trials compute every tensor. Of a large model they get a part of the texts and requests, so that
/// each executes about 2e11 FLOPs, four texts and four requests at least; a budget that is
/// calibrated on fewer tokens is kept with the same confidence, and so used less.
///
/// Where nothing is known of the model (world::knows_nothing) nothing is tried either, and only strategies that never
/// substitute are planned.
///
/// Errors: world::unfit where there is a budget that depends on the profile; usage for a strategy that needs a profile
/// where there is none; those of planning::make_strategy and run_requests; interrupted.
result<prepared> prepare(const world& content, const preparation_request& request, job& work);

/// Whether prepare() executes the model: not for a plan that is given with what it was tuned to or that needs no
/// tuning, nor where nothing is known of the model.
bool runs_model(const preparation_request& request, bool knows_nothing);

/// With each server's own weights: the experts that the plan places on it, and nothing is shared
/// any more. Errors: those of loading; infeasible where that is more than a server has, as the
/// cluster's memory is meant where the model charges its own costs.
result<prepared> with_own_weights(const world& content, prepared ready);

}  // namespace ordermoe::setup
