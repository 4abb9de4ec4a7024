#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "actors/runtime.hpp"
#include "planning/strategies/strategies.hpp"

/// From the name of a strategy to one that is ready to run on given servers.
namespace ordermoe::setup {

using namespace actors;

/// Makes setup.chosen. Where a strategy can be planned in several ways (plan_variants), each
/// answers the same trial load on the emulation and the one with the lowest mean latency is taken.
///
/// `ordermoe` meets a budget by a price of loss, which is calibrated against execution: losses are
/// predicted layer by layer, which underestimates what substitution in many layers at once costs,
/// so `documents` (calibration texts, never the ones that a report scores) are scored through the
/// actors. The damage coefficients in setup.profile are multiplied by measured over predicted, the
/// variants are planned with the corrected profile, and each gets the lowest price at which the
/// measured increase keeps the budget with 95 % confidence, before it answers the trial load.
///
/// With choose_precision, `ordermoe` under a budget is also prepared on the whole model in each
/// precision of setup.coarser: what that alone costs on the texts, at 95 % confidence, is taken of
/// the budget beforehand (strategy::whole_model), and the rest is substitution's. Where that
/// answers the trial load fastest, setup's model and costs become those of the coarser model. Not
/// where the cluster says how servers keep experts, nor where plans can change during the run.
///
/// Trials compute every tensor. Of a large model they get a part of the texts and requests, so that
/// each executes about 2e11 FLOPs, four texts and four requests at least; a budget that is
/// calibrated on fewer tokens is kept with the same confidence, and so used less.
///
/// Errors: those of planning::make_strategy and run_requests.
result<void> prepare_strategy(run_setup& setup, std::string_view name,
                              const planning::strategy_options& options,
                              const std::vector<std::vector<std::int32_t>>& documents);

}  // namespace ordermoe::setup
