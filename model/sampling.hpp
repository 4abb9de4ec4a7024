#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ordermoe::model {

struct sampling_options {
  double temperature = 0;  ///< 0 is greedy.
  std::uint64_t seed = 0;
  // What follows changes the logits, in this order, before a token is drawn.
  std::vector<std::pair<std::int32_t, float>> bias = {};  ///< Added; each id once.
  /// Taken off the logit of every token that the answer has, for each time that it has it, and once.
  double frequency_penalty = 0, presence_penalty = 0;
  // What follows leaves tokens out of the draw, the likeliest stay; it changes nothing where the temperature is 0.
  std::size_t top_k = 0;  ///< So many; 0: all.
  double top_p = 1;       ///< As few as have so much of what top_k left together.

  bool has_penalty() const { return frequency_penalty != 0 || presence_penalty != 0; }
  /// Of n tokens.
  bool leaves_all(std::size_t n) const { return (top_k == 0 || top_k >= n) && top_p >= 1; }
};

/// The next token. Greedy: the largest logit, ties to the lowest id. Otherwise the inverse of the
/// cumulative distribution, ids ascending, at random_unit(seed, request, position): chances are
/// fp32 numbers, summed in double precision, where all tokens stay, and double ones where top_k or
/// top_p leave some out. Logits that are no numbers are never drawn. `position` is the index in the sequence that the token will take: prompt length plus
/// new tokens before it.
/// `answered`: ids of the answer before, for the penalties. Among those that top_k and top_p leave, ids are ascending too; of
/// equally likely ones the lower stays.
std::int32_t sample(std::span<const float> logits, const sampling_options& options,
                    std::uint64_t request, std::uint64_t position,
                    std::span<const std::int32_t> answered = {});

struct token_chance {
  std::int32_t id = 0;
  double logprob = 0;  ///< Nats, by the model's logits as they are, at temperature 1.
  friend bool operator==(const token_chance&, const token_chance&) = default;
};
/// Of `chosen`, then of the n likeliest, likeliest first, of equally likely ones the lower.
std::vector<token_chance> chances(std::span<const float> logits, std::int32_t chosen,
                                  std::size_t n);

/// Negative log-likelihood of `target` in nats, in double precision.
double negative_log_likelihood(std::span<const float> logits, std::int32_t target);

/// Kullback-Leibler divergence in nats of the distribution that the second logits give from that of the first ones, of as many tokens, in double
/// precision: what the second ones' likelihood of a token is lower by in the mean where the first ones are right. At least 0.
double kl_divergence(std::span<const float> from, std::span<const float> logits);

}  // namespace ordermoe::model
