#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/architecture/model_config.hpp"
#include "model/expert_weights.hpp"
#include "model/kv_cache.hpp"

/// The parts of a block that every row takes wherever it is: attention and the dense feed-forward.
/// For the sources of this folder; transformer puts them together. A device that fails throws
/// device_failure.
///
/// Every span of hidden states is [n_rows, hidden_size]; each part adds what it computes from the
/// norm of hidden to hidden. A row's bits do not depend on the rows beside it.
namespace ordermoe::model {

/// Cosines and sines of rotary positions: the first ones tabulated, later ones computed when
/// needed, by the same function.
class rotary_angles {
 public:
  rotary_angles() = default;
  explicit rotary_angles(const model_config& config);

  /// Cosines [head_dim / 2], then sines, of position * theta^(-2 i / head_dim): in double
  /// precision, rounded once. `spare` has head_dim numbers.
  const float* at(std::size_t position, float* spare) const;
  std::size_t bytes() const { return tabulated_.size() * sizeof(float); }

 private:
  void compute(std::size_t position, float* numbers) const;

  std::size_t head_dim_ = 0;
  double theta_ = 1;
  std::vector<float> tabulated_;  ///< [positions, head_dim]
};

/// What stands for positions in T5: a number for each head and distance of query and key, added to
/// the score ("Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer").
class relative_bias {
 public:
  enum class direction { both, backwards };

  relative_bias() = default;
  /// table: [relative_buckets, n_heads]. Distances below half of the buckets have one each, the
  /// others share the second half by their logarithm; with both directions each has half of the
  /// buckets.
  relative_bias(std::span<const float> table, const model_config& config, direction reach);

  /// line(q)[h * size() + t] is of head h, query q and key t; with direction backwards t <= q.
  const float* line(std::size_t query) const { return numbers_.data() + (most_ - query); }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return numbers_.size() * sizeof(float); }

 private:
  std::size_t most_ = 0;        ///< Longest distance.
  std::size_t size_ = 0;        ///< Distances from key to query, -most to 0 or to most.
  std::vector<float> numbers_;  ///< [n_heads, size]
};

/// Attention of a sequence's rows to each other.
struct self_attention {
  std::vector<float> norm;                  ///< [hidden_size]
  projection query_key_value;               ///< q, k, v one after the other.
  std::vector<float> bias;                  ///< Of q, k, v, or nothing.
  std::vector<float> query_norm, key_norm;  ///< As qk_norm says, or nothing.
  projection output;
  /// Where both matrices are on a device, and positions are rotary: there all of it is computed.
  std::shared_ptr<const device_attention> on_device;
};

/// Attention of decoded rows to the prompt's.
struct prompt_attention {
  std::vector<float> norm;  ///< [hidden_size], of the decoded rows.
  projection query;
  projection key_value;  ///< Of the prompt's rows as the encoder leaves them.
  projection output;
};

struct block {
  self_attention attention;
  std::optional<prompt_attention> to_prompt;  ///< In the decoder of an encoder-decoder.
  std::vector<float> feed_forward_norm;       ///< [hidden_size]
  expert_weights dense;                       ///< Nothing in a sparse block.

  /// Of everything above.
  std::size_t bytes() const;
};

/// What positions are to the blocks of a stack: one of the two, or neither table.
struct position_rule {
  rotary_angles rotary;
  relative_bias relative;
};

/// Puts attention whose matrices are on a device there as a whole. Throws device_failure.
void attend_on_device(const model_config& config, const compute_place& place,
                      self_attention& weights);

/// The shape that the attention kernel needs.
attention_shape attention_heads(const model_config& config);

/// Rows that attend to the rows of their sequence up to themselves; in an encoder-decoder decoded
/// rows, to the decoded ones. Key and value are written to the numbers of the cache's row from
/// `offset` on first, and read from there.
void attend_backwards(const model_config& config, const self_attention& weights,
                      const position_rule& positions, std::span<const attention_row> rows,
                      std::size_t offset, std::span<float> hidden);

/// Writes key and value of rows that attend to nothing themselves, with the bits that attend_backwards() writes.
void keep_for_later(const model_config& config, const self_attention& weights,
                    const position_rule& positions, std::span<const attention_row> rows,
                    std::size_t offset, std::span<const float> hidden);

/// The rows of one or more whole prompts, each prompt's rows one after the other from position 0:
/// every row attends to all rows of its prompt. No cache is read or written.
void attend_within_prompts(const model_config& config, const self_attention& weights,
                           const relative_bias& positions, std::span<const attention_row> rows,
                           std::span<float> hidden);

/// Writes what decoded rows read from the prompt's rows, key and value of the encoder's output, to
/// their caches' rows from `offset` on.
void keep_for_decoder(const model_config& config, const prompt_attention& weights,
                      std::span<const attention_row> rows, std::size_t offset,
                      std::span<const float> hidden);

/// Decoded rows attend to what keep_for_decoder left of their prompt.
void attend_to_prompt(const model_config& config, const prompt_attention& weights,
                      std::span<const attention_row> rows, std::size_t offset,
                      std::span<float> hidden);

/// The dense feed-forward of a block.
void feed_forward(const model_config& config, const block& weights, std::span<float> hidden);

/// target = norm of each row of source, [n, hidden_size] both; they may be the same.
void norm_rows(const model_config& config, std::span<const float> weight,
               std::span<const float> source, std::span<float> target);

}  // namespace ordermoe::model
