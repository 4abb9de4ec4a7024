#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"

/// Training of small Mixture-of-Experts models, from a user's text or from the synthetic corpus
/// (corpus.hpp), by recipes that leave experts which can partly stand in for each other. Which
/// shapes there are by name: shapes.hpp.
///
/// Recipes, with their stages in twenty-fourths of the work:
///   dense     one expert throughout: "dense" 5, "continued" 15, "afterwards" 4. What a mixture is
///   compared with. upcycled  "dense" 5, then its feed-forward block copied into every expert with
///   noise, "experts" 15, "outages" 4. lineage   "dense" 5, copied into half as many "parents" 5,
///   each copied into two "children" 10, "outages" 4.
/// While "outages" lasts, half of the rows do without half of the experts of every layer and the
/// router chooses among the rest; in a lineage, half of these rows lose siblings only and the other
/// sibling stands in. So the experts learn to replace each other. The learning rate is one schedule
/// for all recipes, so those with the same seed and tokens share their dense stage to the bit.
namespace ordermoe::training {

struct train_progress {
  std::string stage;
  std::size_t step = 0;      ///< In this stage.
  std::uint64_t tokens = 0;  ///< In all stages so far.
  double share_done = 0;     ///< Of the whole recipe, 0 to 1.
  double loss = 0;           ///< Nats a token, averaged over the last steps.
  double tokens_per_s = 0;
};

/// A device that took part in training.
struct trained_on {
  std::string device;   ///< As train_options names it.
  std::string product;  ///< What its maker calls it, where the driver says so.
  bool operator==(const trained_on&) const = default;
};

struct train_options {
  std::filesystem::path text;  ///< The user's own text; empty: the synthetic corpus.
  std::filesystem::path out;   ///< Folder of the finished model.
  /// Folder of the model as it is before the stage of outages, a model of its own from the same
  /// run; empty: it is not kept.
  std::filesystem::path plain;
  std::string recipe = "upcycled";
  /// What trains: cpu, or libtorch:NAME for a device that LibTorch knows (libtorch:cuda:0). Another
  /// device gives other weights.
  std::string device = "cpu";
  std::uint64_t seed = 1;
  double minutes = 5;  ///< Ends after this long, where `tokens` is 0; sooner where a short text
                       ///< was read sixteen times, since more makes held-out text worse.
  std::uint64_t tokens = 0;  ///< Trains on this many tokens, whatever time it takes.

  std::string shape = "small";                  ///< The name of what follows (shapes.hpp).
  model::family kind = model::family::mixtral;  ///< A decoder: mixtral, qwen2_moe or qwen3_moe.
  model::gate_rule gates = model::gate_rule::renormalised;
  std::size_t shared_intermediate_size = 0;  ///< 0: there is no shared expert.
  std::size_t vocab_size = 768;
  std::size_t hidden_size = 128;
  std::size_t intermediate_size = 192;
  std::size_t n_layers = 6;
  std::size_t n_heads = 4;
  std::size_t n_kv_heads = 2;
  std::size_t n_experts = 8;
  std::size_t top_k = 2;
  std::size_t max_context = 512;
  std::size_t sequence_length = 256;
  std::size_t sequences_per_step = 8;
  double learning_rate = 3e-3;
  double balance_weight = 0.01;
  double z_weight = 0;
  double weight_noise = 0.1;  ///< Of copied experts, over the deviation of the weights.
  /// Of an expert's inner units drawn anew when a dense model becomes a mixture.
  double redrawn_share = 0.25;
  double sibling_redrawn_share = 0.1;  ///< The same when parents become children.
  /// Of children's router rows, over the deviation of the parents' rows.
  double router_noise = 0.5;
  int threads = 1;  ///< More than one makes the weights depend on their number.

  std::filesystem::path state;  ///< Checkpoints; empty: OUT.training, removed at the end.
  bool measure = true;          ///< Measure the figures of the card at the end.
  /// Checkpoint of a dense run's last stage to compare with; may be empty.
  std::filesystem::path dense_state;
  std::string notes;  ///< Added to the card as it stands.
  /// What else belongs into a folder, by file name: asked for when all of the model that will be
  /// `out` is in `folder`, which has a name of its own until then. `left_out` are token ids of
  /// texts of the model's own kind that it was neither trained nor scored on. May be empty.
  std::function<result<std::map<std::string, std::string>>(
      const std::filesystem::path& out, const std::filesystem::path& folder,
      const std::vector<std::vector<std::int32_t>>& left_out)>
      finish;
  /// Asked once a step, and every few rows while the trained model is measured; true: save, leave with errc::interrupted.
  std::function<bool()> should_stop;
  std::function<void(const train_progress&)> on_progress;  ///< Called every few steps.
};

struct loss_point {
  std::string stage;
  std::uint64_t tokens = 0;
  double loss = 0;
};

/// What was measured on the finished model, all on held-out text.
struct model_figures {
  double perplexity = 0;
  std::optional<double> dense_perplexity;  ///< Of the dense model trained on as many tokens.
  double stand_in_perplexity = 0;  ///< Half of every layer's experts gone, each replaced by a
                                   ///< random present one; mean over draws.
  double stand_in_lowest = 0, stand_in_highest = 0;
  /// The same experts gone, their slots left out and gates renormalised; mean over draws.
  double drop_perplexity = 0;
  double drop_lowest = 0, drop_highest = 0;
  /// The same experts gone, the router choosing among those present; mean over draws.
  double router_perplexity = 0;
  double router_lowest = 0, router_highest = 0;
  std::optional<double> sibling_perplexity;  ///< One of every pair of siblings gone, the other
                                             ///< standing in; mean over draws.
  /// Greedy, on held-out arithmetic; only for the synthetic corpus.
  std::optional<double> exact_match;
  std::size_t n_tokens = 0, n_draws = 0, n_problems = 0;
  /// Cosines of router logits between experts over tokens (eq. (4)), median over layers and pairs,
  /// and for pairs of siblings in a lineage; then the same after each token's mean logit is
  /// subtracted.
  double cosine_median = 0, centred_median = 0;
  std::optional<double> sibling_cosine, stranger_cosine, sibling_centred, stranger_centred;
};

struct train_report {
  std::filesystem::path folder;
  std::string recipe;
  bool plain = false;  ///< Of the model as it is before the stage of outages.
  std::uint64_t tokens = 0;
  double seconds = 0;
  std::vector<trained_on> devices;  ///< In their order.
  std::vector<loss_point> curve;
  double held_out_perplexity = 0;
  std::size_t left_out = 0;  ///< Tokens of the text that `finish` gets.
  std::optional<model_figures> figures;
};

/// Trains and writes OUT (config.json, model.safetensors in bf16, tokenizer.model, CARD.md,
/// SHA256SUMS), which appears in one step at the end and must be absent or empty before. Until then
/// OUT.training holds the checkpoints (half_trained.hpp); called again with the same options after
/// an interruption it goes on where it stopped. With `plain`, that folder is written likewise, and
/// before OUT. Of `minutes`, nine tenths go into training and the
/// rest into what surrounds it. Errors: not_found, io (also where OUT holds anything), usage
/// (unknown recipe, impossible shape, `plain` of a recipe without
/// outages), out_of_range (text too short), mismatch (OUT.training holds
/// the state of another run), unsupported (no LibTorch: torch_module.hpp; a device that it does not know), failed (the loss is
/// no number any more), interrupted.
result<train_report> train(const train_options& options);

/// Trains only the tokenizer of the synthetic corpus; the same bytes as in a model folder of that
/// vocabulary.
result<std::string> synthetic_tokenizer(std::size_t vocab_size);

}  // namespace ordermoe::training
