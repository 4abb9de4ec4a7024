#pragma once

#include <cstdint>
#include <span>

namespace ordermoe::model {

struct sampling_options {
  double temperature = 0;  ///< 0 is greedy.
  std::uint64_t seed = 0;
};

/// The next token. Greedy: the largest logit, ties to the lowest id. Otherwise the inverse of the
/// cumulative distribution, ids ascending, in double precision at random_unit(seed, request,
/// position). `position` is the index in the sequence that the token will take: prompt length plus
/// new tokens before it.
std::int32_t sample(std::span<const float> logits, const sampling_options& options,
                    std::uint64_t request, std::uint64_t position);

/// Negative log-likelihood of `target` in nats, in double precision.
double negative_log_likelihood(std::span<const float> logits, std::int32_t target);

}  // namespace ordermoe::model
