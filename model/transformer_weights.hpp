#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "model/blocks.hpp"
#include "model/checkpoint/matrix_source.hpp"
#include "model/expert_weights.hpp"
#include "model/transformer.hpp"

/// What a transformer holds, for its own sources: loading.cpp fills it, transformer.cpp computes.
namespace ordermoe::model {

/// Rows that are looked up one at a time, kept in bf16 where that keeps every number.
class row_table {
 public:
  row_table() = default;
  /// Reads the source from its first row to its last; what stays where it is mapped is used there.
  explicit row_table(matrix_source& source);

  std::size_t bytes() const { return bytes_; }
  /// row = the numbers of a row, widened.
  void copy_row(std::size_t index, float* row) const;

 private:
  std::size_t row_bytes() const { return width_ * bytes_per_number(type_); }

  std::size_t width_ = 0;
  tensor_type type_ = tensor_type::f32;
  std::size_t bytes_ = 0;
  std::shared_ptr<const std::byte> memory_;
};

struct layer_weights {
  std::vector<block> blocks;  ///< The last one is sparse.
  projection router;
  std::vector<expert_weights> experts;  ///< Those that are not hosted hold nothing.
  expert_weights shared;                ///< Nothing where the family has none.
  projection shared_gate;               ///< [1, hidden_size]
};

struct transformer::weights {
  model_config config;
  compute_place place;
  kv_precision kv = kv_precision::fp32;
  std::shared_ptr<const expert_source> elsewhere;  ///< Null: nobody runs what is not here.
  precision expert_precision = precision::stored;  ///< Of what runs elsewhere.
  row_table embedding;                             ///< [vocab_size, hidden_size] on the host.
  std::vector<layer_weights> layers;
  position_rule positions;  ///< Of decoders.
  std::vector<float> final_norm;
  float head_scale = 1;  ///< Of what goes into the head.
  projection head;
  // Of an encoder:
  relative_bias encoder_positions;
  std::vector<block> encoder_end;  ///< The dense blocks behind its last sparse one.
  std::vector<float> encoder_norm;

  void attend_whole_prompts(std::span<const block> blocks, std::span<const attention_row> rows,
                            std::span<float> hidden) const;
  void attend_decoder(layer_id layer, std::span<const attention_row> rows,
                      std::span<float> hidden) const;
  /// One block of it where some rows are unread.
  void attend_unread(const block& last, std::size_t offset, std::span<const attention_row> rows,
                     std::span<float> hidden) const;
  /// The parts of route(): what experts read, and routers' scores; then the shared expert, where there is one.
  void route_read(const layer_weights& content, std::span<float> hidden, std::span<float> normed,
                  std::span<float> logits) const;
  void run_shared(const layer_weights& content, std::span<const float> normed,
                  std::span<float> hidden) const;
  /// All of route() of a decoder where some rows are unread.
  void route_apart(const layer_weights& content, std::span<const attention_row> rows,
                   std::span<float> hidden, std::span<float> normed, std::span<float> logits) const;
  void leave_for_decoder(layer_id layer, std::span<const attention_row> rows,
                         std::span<float> hidden) const;
};

}  // namespace ordermoe::model
