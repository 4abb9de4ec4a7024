#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "config/ids.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/checksums.hpp"
#include "model/expert_source.hpp"
#include "model/expert_weights.hpp"
#include "model/kv_cache.hpp"

/// A model of one of the families in model_config.hpp in the pieces that run on different servers.
///
/// Goals: a row's result has the same bits whatever shares its batch and wherever it is computed;
/// no LibTorch where nobody asks for it. Every span of rows is row-major fp32 on the host, [n_rows, width];
/// weights live on the device that load() was given. All members are const and may be called from
/// several threads at once.
namespace ordermoe::model {

struct load_options {
  /// What computes attention, experts and head (config/devices.hpp): "cpu" is the kernels, all others
  /// load LibTorch. The rest, as embedding, norms and routers' choices, is the host's on every device.
  std::string device = "cpu";
  /// Which routed experts are read; empty: all. What is not an expert is always read.
  std::function<bool(layer_id layer, expert_id expert)> hosts = {};
  /// Runs the experts that are not read; null: nobody does.
  std::shared_ptr<const expert_source> elsewhere = nullptr;
  work_watch watch = {};                 ///< Asked between matrices.
  kv_precision kv = kv_precision::fp32;  ///< Of the caches that make_cache() makes.
  /// Of the experts, the shared one included.
  precision expert_precision = precision::stored;
  /// Of single experts instead, where it is set: servers choose by memory. The shared expert keeps
  /// expert_precision.
  std::function<precision(layer_id layer, expert_id expert)> precision_of = {};
  /// Of what every row passes: attention's projections, the dense blocks' feed-forward and the
  /// output head. Embeddings, norms, routers and the shared expert's gate stay as stored.
  precision dense_precision = precision::stored;
};

/// Bytes of one expert of this model on the host at a precision; `stored` counts bf16, as published
/// checkpoints have it.
std::size_t expert_bytes(const model_config& config, precision kept);

class expert_reader;
class expert_shelf;

class transformer {
 public:
  /// Reads config.json and the safetensors of a Hugging Face style folder. All headers are checked
  /// before any weight is read; weights go straight from the files to where they stay, so
  /// that at no time more than resident_bytes() and a few MiB are in memory. Matrices of a packed
  /// folder (packed_tensors.hpp) stay in its files, mapped, which must not change while this lives.
  /// Errors name the file, tensor or field; interrupted; unsupported where weights are to be kept
  /// other than stored and LibTorch multiplies, or other than they are packed or quantised.
  static result<std::shared_ptr<const transformer>> load(const std::filesystem::path& folder,
                                                         const load_options& options = {});
  /// The same model with other experts: those of `hosts` that are here are shared with this one, the others are read
  /// with this precision, to the same device. Errors: those of expert_reader::read.
  result<std::shared_ptr<const transformer>> with_experts(
      const expert_reader& reader,
      const std::function<bool(layer_id layer, expert_id expert)>& hosts, precision kept) const;
  ~transformer();
  transformer(const transformer&) = delete;
  transformer& operator=(const transformer&) = delete;

  const model_config& config() const;
  kv_precision kv() const;
  /// A cache without rows for one sequence at a layer.
  kv_cache make_cache(layer_id layer, std::size_t capacity_rows) const {
    return {capacity_rows, config().kv_row_size(layer), kv(), config().head_dim};
  }
  /// Whether load() read this expert.
  bool hosts(layer_id layer, expert_id expert) const;
  /// Bytes of all weights and tables, on the host or on the device that load() was given.
  std::size_t resident_bytes() const;

  /// hidden[i] = embedding of ids[i]. Precondition: 0 <= id < vocab_size.
  void embed(std::span<const std::int32_t> ids, std::span<float> hidden) const;

  /// The blocks of a layer as far as its router: attention and the dense blocks before the sparse
  /// one, each row at its own position over its own cache. What later rows read of a row is written
  /// to its cache first. In an encoder-decoder (model_config.hpp) rows of a prompt come all in one
  /// call, one after the other, in the encoder's layers and the decoder's first; in the decoder's
  /// they only leave keys and values, and what becomes of their hidden state concerns no one but
  /// the next layer's attend(). Unread rows leave their key and value of the last of these blocks and keep what they had before
  /// it as their hidden state.
  void attend(layer_id layer, std::span<const attention_row> rows, std::span<float> hidden) const;

  /// normed = the rows that the experts read, [n, hidden_size]; logits = router scores, [n,
  /// n_experts]. Where the family has a shared expert, then hidden += sigmoid(its gate) *
  /// shared(normed): it runs for every row wherever the row is, so it belongs to what is not
  /// routed, and comes before the routed slots in every sum. Once for each row and layer, on what
  /// attend() left in hidden.
  ///
  /// `rows` are those of attend(). In an encoder-decoder the chosen expert is written to the caches
  /// of decoded rows, and rows that run no expert (the prompt's in the decoder's layers, and those
  /// that find their expert full) get logits that say so: has_slots() in routing.hpp. Of other families unread rows get such
  /// logits, and nothing else is done for them: their normed stays as it is.
  void route(layer_id layer, std::span<const attention_row> rows, std::span<float> hidden,
             std::span<float> normed, std::span<float> logits) const;
  /// For families whose rows all run experts.
  void route(layer_id layer, std::span<float> hidden, std::span<float> normed,
             std::span<float> logits) const;

  /// output = expert(normed), without its gate, [n, hidden_size]. Throws expert_failure where the expert is not
  /// here and nobody runs it elsewhere.
  void run_expert(layer_id layer, expert_id expert, std::span<const float> normed,
                  std::span<float> output) const;
  /// The same for several experts of a layer; those that run elsewhere do so at once.
  void run_experts(layer_id layer, std::span<const expert_rows> work) const;

  /// logits over the vocabulary, [n, vocab_size], from the hidden state after the last layer.
  void head(std::span<const float> hidden, std::span<float> logits) const;

 private:
  struct weights;
  explicit transformer(std::unique_ptr<weights> content);
  std::unique_ptr<weights> weights_;
};

/// Reads single experts of a model's folder, one at a time.
class expert_reader {
 public:
  /// `came`, where it is there: has experts that came from other hosts, which a part of a model lacks. Errors: those of
  /// transformer::load() before it reads a weight.
  static result<std::unique_ptr<expert_reader>> open(
      const std::filesystem::path& folder, std::shared_ptr<const expert_shelf> came = nullptr);
  ~expert_reader();
  /// The weights that transformer::load() would keep with this expert_precision on this place. Errors: likewise.
  result<expert_weights> read(layer_id layer, expert_id expert, precision kept,
                              const compute_place& place = {}) const;

 private:
  struct content;
  explicit expert_reader(std::unique_ptr<content> made);
  std::unique_ptr<content> content_;
};

/// sum = gates[0] * outputs[0] + gates[1] * outputs[1] + ..., one row of `sum.size()` numbers: the
/// first product, then each further product added in slot (rank) order, every product and every sum
/// rounded once (no fused operation).
void weigh_slots(std::span<float> sum, std::span<const float> gates,
                 std::span<const float* const> outputs);

/// hidden += the sum of weigh_slots: the slots are summed first, then added to the residual stream.
/// Every place that sums slots calls one of these two, so that a server may return the weighted sum
/// of a row instead of its slots.
void add_slots(std::span<float> hidden, std::span<const float> gates,
               std::span<const float* const> outputs);

}  // namespace ordermoe::model
