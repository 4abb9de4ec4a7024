#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "config/error.hpp"
#include "config/loss_metric.hpp"
#include "model/transformer.hpp"

/// What a model's router and experts do on calibration texts, and what substituting experts costs
/// it: the raw statistics that planning turns into a profile.
namespace ordermoe::model {

/// Measured damage of one layer under one loss metric: how far the distributions of the next token diverge (Kullback and Leibler) from those
/// without substitution. That is what a text costs more in the mean where the model is right about it; what one text of some thousand tokens
/// does cost more is chance in all layers that matter little.
struct damage_measurement {
  /// Nats per unit of predicted loss: summed divergence over summed prediction; 0 where nothing was predicted.
  double coefficient = 0;
  double standard_error = 0;   ///< Of the coefficient, over documents and draws.
  double mean_divergence = 0;  ///< Nats per token, over all draws.
  double mean_predicted = 0;   ///< Predicted loss per token, over all draws.
};

/// What coarser copies of a layer's experts do in their place.
struct copy_statistics {
  precision kept = precision::int8;
  /// [n_experts] sqrt(E |f_r(x) - copy of f_r(x)|^2 / E |y|^2) over tokens routed to r, y the
  /// layer's gated sum; over all tokens where none was.
  std::vector<double> distance;
  /// All experts of the layer replaced; predicted per slot: gate^2 distance^2.
  damage_measurement damage;
};

/// Experts that the router chose together, ascending.
struct observed_set {
  std::vector<expert_id> experts;  ///< [top_k]
  std::vector<double> mean_gate;   ///< [top_k], of each member over this set's tokens.
  std::uint64_t count = 0;
};

struct set_transition {
  std::size_t from = 0;  ///< Index into this layer's sets.
  std::size_t to = 0;    ///< Index into the next layer's sets.
  std::uint64_t count = 0;
};

/// Matrices are row-major [n_experts, n_experts].
struct layer_statistics {
  /// H H^T of eq. (3) over all tokens; eq. (4) divides by the diagonal's roots.
  std::vector<double> logit_gram;
  std::vector<std::uint64_t> activations;  ///< n_l^j of eq. (5), over all slots.
  /// n_l(k -> k') of eq. (41), from each expert chosen here to each chosen by the same token at the
  /// next layer; empty at the last layer.
  std::vector<std::uint64_t> transitions;
  std::vector<observed_set> sets;               ///< Most frequent first.
  std::vector<set_transition> set_transitions;  ///< By from, then to; empty at the last layer.
  /// Mean of max(0, p_r - p_k) over tokens routed to r; over all tokens where there are none.
  std::vector<double> gate_regret;
  std::vector<double> mean_gate;  ///< [n_experts], over tokens routed to the expert; 0 without any.
  std::vector<double> mean_squared_gate;  ///< [n_experts], likewise.
  std::array<damage_measurement, n_loss_metrics> damage;
  std::vector<copy_statistics> copies;  ///< As calibration_options::copies.
  /// Of the slots with the lowest gates, one of all or several, where no expert runs; predicted per slot: gate^2. Nothing of models with one expert
  /// a token.
  damage_measurement left_out;
};

/// What is done to all tokens that follow by what runs, in all layers at once, at the first positions of a text, where nobody reads what the model
/// says, as within a prompt: it reaches them by keys and values alone. Of the nats that the layers' damage predicts of it at later positions; means are per token that follows.
struct unread_statistics {
  damage_measurement substituted;  ///< Random halves of the experts away, as for the damage.
  /// As layer_statistics::left_out; nothing of models with one expert a token.
  damage_measurement left_out;
};

struct calibration_statistics {
  std::size_t n_layers = 0;
  std::size_t n_experts = 0;
  std::size_t top_k = 0;
  std::uint64_t n_tokens = 0;         ///< That the statistics saw.
  std::uint64_t n_damage_tokens = 0;  ///< That the damage was measured on.
  /// Mean negative log-likelihood per predicted token, nothing substituted.
  double baseline_nats = 0;
  std::vector<layer_statistics> layers;
  /// [buckets] by position_bucket(): what a loss that loss_metric::token_gate or a copy predicts does at a position over what it does at later
  /// ones, of which the layers' damage is told; the last one is of all that follow. Empty for encoder-decoders and documents of a few tokens.
  std::vector<double> position_damage;
  /// [buckets] where as many positions as a bucket begins with are unread, as far as half of a document; those before the third are as that.
  /// Empty for encoder-decoders and documents of a few tokens.
  std::vector<unread_statistics> unread;
};

/// The same model with its experts kept coarser.
struct coarser_copy {
  precision kept = precision::int8;
  expert_runner run;
};
coarser_copy copy_of(precision kept, std::shared_ptr<const transformer> model);

struct calibration_options {
  /// Whole documents from the front until there are this many tokens.
  std::size_t damage_tokens = 2048;
  std::size_t damage_draws = 3;  ///< Random halves of experts taken away, per layer.
  std::uint64_t seed = 1;
  std::vector<coarser_copy> copies = {};  ///< To be measured too, fine to coarse.
  std::function<void(double share_done)> progress = {};
  std::function<bool()> should_stop = {};  ///< Asked between documents.
};

/// Eq. (4): the similarity of experts, [n, n], the diagonal 1, from the Gram matrix of their logits,
/// which is symmetric.
std::vector<double> cosines(std::span<const double> gram, std::size_t n);

/// Passes the documents (token ids, each within the context) through the model; an encoder-decoder
/// has the first half of each in its encoder and predicts the other. Its statistics of a layer are
/// of the rows that run experts there, and no transition leads from encoder to decoder. Errors:
/// out_of_range, naming the document; interrupted; that of the
/// model's experts where they run elsewhere (expert_source.hpp).
result<calibration_statistics> calibrate(const transformer& model,
                                         std::span<const std::vector<std::int32_t>> documents,
                                         const calibration_options& options = {});

}  // namespace ordermoe::model
