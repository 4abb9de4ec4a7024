#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/torch/decoder_torch.hpp"
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
  std::uint64_t tokens = 0;         ///< In all stages.
  double seconds = 0;               ///< In all stages.
  std::vector<trained_on> devices;  ///< In all stages, each once.
  std::vector<loss_point> curve;    ///< In all stages.
};

struct stage_limits {
  std::string name;
  double end = 1;  ///< The share of the recipe, in tokens or in time, at which the stage is over.
  /// Whether half of the rows do without half of the experts (draw_outages).
  bool outages = false;
  bool siblings = false;  ///< Whether every second of these rows loses siblings only, and their
                          ///< siblings stand in.
  /// Whether the learning rate starts low: at the start and after a change of shape.
  bool warm_up = true;
};

/// Runs one stage until its share of the recipe is done. Calls `save` every minute and when it is
/// asked to stop. Errors: interrupted; failed where the loss is no number any more; what `save`
/// reports.
result<void> run_stage(decoder& model, optimizer_state& optimizer, stage_progress& progress,
                       const text_source& source, const train_options& options,
                       const stage_limits& limits, const std::function<result<void>()>& save);

result<void> save_checkpoint(const std::filesystem::path& path, decoder& model,
                             const optimizer_state& optimizer, const stage_progress& progress,
                             const std::string& fingerprint);
/// Errors: not_found, malformed; mismatch where the fingerprint differs.
result<void> load_checkpoint(const std::filesystem::path& path, decoder& model,
                             optimizer_state& optimizer, stage_progress& progress,
                             const std::string& fingerprint);

/// What the rows of one training step do without. Half of the rows lose nothing. The others lose a
/// random half of every layer's experts and the router chooses among the rest; with `siblings`,
/// every second of them loses instead at each layer one of about half of the pairs (2i, 2i + 1),
/// and the other of the pair stands in.
std::vector<layer_outage> draw_outages(std::size_t n_layers, std::size_t n_experts,
                                       std::int64_t rows, std::int64_t row_length, bool siblings,
                                       random_stream& random);

/// The same on a device, for rows of one step: [rows * row_length, n_experts] of every layer, drawn
/// alike.
std::vector<layer_outage> draw_outages_on(at::Device device, std::size_t n_layers,
                                          std::size_t n_experts, std::int64_t rows,
                                          std::int64_t row_length, bool siblings,
                                          random_stream& random);

/// One AdamW step over the flat parameters in vector operations, which never waits for the device;
/// gradients are zeroed. `rate` is the learning rate.
void step_in_vectors(decoder& model, optimizer_state& optimizer, double rate);
/// The same in one pass over the CPU's memory.
void step_in_one_pass(decoder& model, optimizer_state& optimizer, double rate);

/// The last stage of every recipe goes on for another fifth of the tokens before it: shares of a
/// recipe count the stages before as 1, so a whole recipe ends at this.
inline constexpr double whole_recipe = 1.2;

/// The learning rate over the whole recipe, as a factor of its peak: constant, from share 0.6 on
/// linearly down to a twentieth at 1; then from 0.4 down again. Each stage that warms up rises over
/// its first 50 steps.
double schedule(double share_done, std::uint64_t stage_step, bool warm_up);

}  // namespace ordermoe::training
