#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/training/decoder.hpp"
#include "model/training/text_source.hpp"
#include "model/training/train.hpp"

namespace ordermoe::training {

/// The AdamW moments of a decoder's flat parameters, and how many steps made them.
struct optimizer_state {
  torch::Tensor first, second;
  std::uint64_t steps = 0;
  explicit optimizer_state(const decoder& model);
};

/// What a stage has reached; saved with the weights.
struct stage_progress {
  std::uint64_t steps = 0;
  std::uint64_t tokens = 0;        ///< In all stages.
  double seconds = 0;              ///< In all stages.
  std::vector<loss_point> curve;   ///< In all stages.
};

struct stage_limits {
  std::string name;
  double begin = 0, end = 1;  ///< The stage's part of the whole recipe, as shares of tokens or of time.
  bool warm_up = true;        ///< Whether the learning rate starts low: at the start and after a change of shape.
};

/// Runs one stage until its share of the recipe is done. Saves `checkpoint` every minute and when it is asked to stop.
/// Errors: interrupted, io.
result<void> run_stage(decoder& model, optimizer_state& optimizer, stage_progress& progress, const text_source& source, const train_options& options,
                       const stage_limits& limits, const std::filesystem::path& checkpoint, const std::string& fingerprint);

result<void> save_checkpoint(const std::filesystem::path& path, decoder& model, const optimizer_state& optimizer, const stage_progress& progress,
                             const std::string& fingerprint);
/// Errors: not_found, malformed; mismatch where the fingerprint differs.
result<void> load_checkpoint(const std::filesystem::path& path, decoder& model, optimizer_state& optimizer, stage_progress& progress,
                             const std::string& fingerprint);

/// The learning rate over the whole recipe, as a factor of its peak: constant, then from 0.6 of the way on linearly
/// down to a twentieth; each stage that warms up rises over its first 50 steps.
double schedule(double share_done, std::uint64_t stage_step, bool warm_up);

}  // namespace ordermoe::training
