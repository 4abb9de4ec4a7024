#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"

/// Profiles from texts, and whether a quality budget may depend on one.
namespace ordermoe::setup {

struct calibration_request {
  std::filesystem::path folder;  ///< Of the model.
  std::string model_name;        ///< As the profile has it.
  std::vector<std::vector<std::int32_t>> documents;
  std::vector<std::vector<std::int32_t>> apart =
      {};  ///< Others of their kind, which the profile keeps; empty: the same.
  std::uint64_t seed = 1;
  std::vector<precision> copies = {};  ///< Coarser ones to be measured too.
  /// Who runs the experts, the model having none; null: the model does, and the copies are loaded.
  std::shared_ptr<const model::expert_source> elsewhere = {};
  std::function<void(double share_done)> progress = {};
  std::function<bool()> should_stop = {};
};

/// Tokens of texts that a profile keeps to tune budgets on.
inline constexpr std::size_t most_tuning_tokens = 32'768;

/// Documents that statistics are made of, and others.
struct calibration_texts {
  std::vector<std::vector<std::int32_t>> documents, apart;
};

/// A text's documents in two parts, of which the second has a third of them at least, since what is chosen by statistics loses less on their own
/// texts than on others: the first `most` documents or fewer, and what follows. Of fewer than three, all and all.
calibration_texts set_apart(std::vector<std::vector<std::int32_t>> documents, std::size_t most);

/// The profile has the first most_tuning_tokens of the documents apart as its texts. Errors: those of loading and of
/// model::calibrate.
result<planning::profile> calibrate_model(const model::transformer& model,
                                          const calibration_request& request);

/// Fewer tokens say too little of how often experts are chosen and of what their damage is.
inline constexpr std::size_t least_calibration_tokens = 256;

/// Of ln(vocabulary), what a token costs by a guess that knows nothing: a text that costs the model
/// more than this is none of the kind that it learnt. On texts of their own the bundled models need
/// 0.10 to 0.11 of it, and a model that learnt Shakespeare's for three minutes 0.46; on other English
/// prose, program text, their own text's words or characters shuffled, and random characters, the
/// bundled models need 1.07 to 1.93 of it.
inline constexpr double most_of_a_blind_guess = 0.9;

/// Why a quality budget must not depend on the profile, with the remedy: it is of too few tokens,
/// has one text alone to tune on, or is of a text that does not fit the model. Nothing where it may. Codes: out_of_range, mismatch.
std::optional<error> unfit(const planning::profile& content, const model::model_config& shape);

/// Why a budget must not be tuned on these texts: they cost the model more than half again what
/// those did that the profile was made on. Scores some of them. Codes as above.
std::optional<error> unfit(const std::vector<std::vector<std::int32_t>>& texts,
                           const planning::profile& content, const model::transformer& model);

/// Whether what the strategy does under this budget depends on what the profile predicts: not
/// without a budget, nor with one of 0 or without limit.
bool depends_on_profile(std::string_view strategy, double quality_percent);

}  // namespace ordermoe::setup
