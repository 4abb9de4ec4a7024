#include "setup/calibration.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/calibration.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/reference.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/calibration_profile.hpp"

namespace ordermoe::setup {

namespace {

constexpr const char* remedy =
    "run `ordermoe calibrate --text FILE` with a text of the kind that the model is for";

std::vector<std::vector<std::int32_t>> first_of(
    const std::vector<std::vector<std::int32_t>>& documents, std::size_t most_tokens) {
  std::vector<std::vector<std::int32_t>> kept;
  std::size_t n = 0;
  for (const auto& ids : documents) {
    if (n >= most_tokens) break;
    kept.push_back(ids);
    n += ids.size();
  }
  return kept;
}

}  // namespace

result<planning::profile> calibrate_model(const model::transformer& model,
                                          const calibration_request& request) {
  model::calibration_options options;
  options.seed = request.seed;
  options.progress = request.progress;
  options.should_stop = request.should_stop;
  for (const auto kept : request.copies) {
    if (request.elsewhere) {
      options.copies.push_back(
          {kept, [from = request.elsewhere, kept](layer_id layer,
                                                  std::span<const model::expert_rows> work) {
             from->run(layer, kept, work);
           }});
      continue;
    }
    model::load_options loading;
    loading.expert_precision = kept;
    auto coarser = model::transformer::load(request.folder, loading);
    if (!coarser) return coarser.error();
    options.copies.push_back(model::copy_of(kept, std::move(*coarser)));
  }
  const auto statistics = model::calibrate(model, request.documents, options);
  if (!statistics) return statistics.error();
  auto digest = model::model_digest(request.folder);
  if (!digest) return digest.error();
  auto made = make_profile(*statistics, request.model_name, std::move(*digest), request.seed);
  made.texts =
      first_of(request.apart.empty() ? request.documents : request.apart, most_tuning_tokens);
  return made;
}

calibration_texts set_apart(std::vector<std::vector<std::int32_t>> documents, std::size_t most) {
  constexpr std::size_t fewest = 3;
  if (documents.size() < fewest) return {documents, documents};
  const auto n = static_cast<std::ptrdiff_t>(std::min(most, documents.size() * 2 / 3));
  return {{documents.begin(), documents.begin() + n}, {documents.begin() + n, documents.end()}};
}

std::optional<error> unfit(const planning::profile& content, const model::model_config& shape) {
  if (content.calibration_tokens < least_calibration_tokens)
    return error{errc::out_of_range,
                 fmt::format("the profile of {} was made on {} tokens, a quality budget needs one "
                             "of {} at least; {}",
                             content.model_name, content.calibration_tokens,
                             least_calibration_tokens, remedy)};
  if (content.texts.size() == 1)
    return error{
        errc::out_of_range,
        fmt::format("the profile of {} has one text to tune quality budgets on, they need two "
                    "at least, since how texts differ says how sure a loss is; {}",
                    content.model_name, remedy)};
  const double blind = std::log(static_cast<double>(shape.vocab_size));
  if (content.baseline_nats > most_of_a_blind_guess * blind)
    return error{
        errc::mismatch,
        fmt::format("the text that {} was calibrated on does not fit it: {:.2f} nats a token, a "
                    "guess that knows nothing has {:.2f}; {}",
                    content.model_name, content.baseline_nats, blind, remedy)};
  return std::nullopt;
}

std::optional<error> unfit(const std::vector<std::vector<std::int32_t>>& texts,
                           const planning::profile& content, const model::transformer& model) {
  constexpr std::size_t enough_tokens = 512;
  constexpr double half_again = 1.5;
  double nats = 0;
  std::size_t n = 0;
  for (const auto& ids : first_of(texts, enough_tokens)) {
    const auto losses = model::token_losses(model, ids);
    if (!losses) return losses.error();
    for (const double loss : *losses) nats += loss;
    n += losses->size();
  }
  if (n == 0 || nats <= half_again * content.baseline_nats * static_cast<double>(n))
    return std::nullopt;
  return error{errc::mismatch,
               fmt::format("the bundled text does not fit {}: {:.2f} nats a token, the text of its "
                           "profile had {:.2f}, and a budget cannot be tuned on it; {}",
                           content.model_name, nats / static_cast<double>(n), content.baseline_nats,
                           remedy)};
}

bool depends_on_profile(std::string_view strategy, double quality_percent) {
  const auto* record = planning::find_strategy(strategy);
  return quality_percent > 0 && (record == nullptr || record->has_budget);
}

}  // namespace ordermoe::setup
