#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/reference.hpp"
#include "model/transformer.hpp"

/// The layers one after the other in one process: what the reference, calibration and evaluation
/// share.
namespace ordermoe::model {

/// What every row's slots execute, [n_rows] lists in rank order.
using slot_table = std::vector<std::vector<executed_slot>>;

/// Runs the slots of a layer: every expert once over all rows that want it; then hidden += the
/// gated outputs of each row in rank order. normed and hidden are [n, hidden_size].
void execute_slots(const transformer& model, layer_id layer, std::span<const float> normed,
                   const slot_table& slots, std::span<float> hidden);
/// The same where something else runs the experts.
void execute_slots(const model_config& config, const expert_runner& run, layer_id layer,
                   std::span<const float> normed, const slot_table& slots, std::span<float> hidden);

/// The router's own choice as slots; none where the row has none.
std::vector<executed_slot> routed_slots(std::span<const float> logits, const model_config& config);

/// One sequence's caches, one per layer.
std::vector<kv_cache> make_caches(const transformer& model, std::size_t capacity_rows);

/// Consecutive positions of one sequence.
struct sequence_rows {
  std::size_t first = 0;   ///< Position of the first row.
  std::size_t prompt = 0;  ///< Rows of the sequence's prompt; counts in an encoder-decoder only.
  /// Of so many of the rows, the first ones, nobody reads what the last layer makes of them: there they leave keys and values
  /// alone. Does not count in an encoder-decoder.
  std::size_t unread = 0;
};

/// The rows as they take part in attend() and route() of a layer. Of an encoder-decoder's layers
/// only those that have to do with them: decoded rows pass the encoder's layers by, so that the
/// rows of a layer are the first of `n_rows`, or all.
std::vector<attention_row> rows_at(const model_config& config, layer_id layer, kv_cache& cache,
                                   sequence_rows which, std::size_t n_rows);

/// One whole layer over rows of one sequence, [n_rows, hidden_size].
void run_layer(const transformer& model, layer_id layer, kv_cache& cache, sequence_rows which,
               std::span<float> hidden, const slot_override& override_slots = {});

/// A text as rows that predict it: row first + i predicts targets[i].
///
/// A decoder reads all tokens and predicts every one but the first. An encoder-decoder takes the
/// first `prompt` tokens into its encoder and predicts the others, its decoder reading its start
/// token and then the text.
struct teacher_forced {
  std::vector<std::int32_t> ids;  ///< One a row, as many as the text has.
  std::size_t prompt = 0;         ///< Rows of the encoder; 0 for decoders.
  std::size_t first = 0;
  std::vector<std::int32_t> targets;
};
/// Precondition: ids has two tokens or more, and 0 < prompt < ids.size().
teacher_forced as_rows(const model_config& config, std::span<const std::int32_t> ids,
                       std::size_t prompt);

/// Logits before each target, [targets, vocab_size], from the hidden state of all rows after the last layer.
std::vector<float> target_logits(const transformer& model, const teacher_forced& text,
                                 std::span<const float> hidden);

/// Negative log-likelihoods in nats of the targets, from the hidden state of all rows after the
/// last layer.
std::vector<double> target_losses(const transformer& model, const teacher_forced& text,
                                  std::span<const float> hidden);

}  // namespace ordermoe::model
