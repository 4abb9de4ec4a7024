#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/torch/decoder_torch.hpp"
#include "model/training/text_source.hpp"
#include "model/training/train.hpp"

namespace ordermoe::training {

/// Rounds every parameter to bf16, as the model folder stores it, so that figures belong to the
/// folder.
void round_to_bf16(decoder& model);

/// What the functions below throw where `should_stop`, which they ask every few rows, says so.
struct measuring_stopped {};

/// Perplexity over rows of up to 256 ids (or the context, where that is shorter), teacher-forced,
/// every id but the first of each row predicted.
double perplexity(decoder& model, const std::vector<std::int32_t>& ids,
                  const std::function<bool()>& should_stop,
                  const routing_override& override_routing = {});

/// Greedy exact match on held-out arithmetic problems.
double arithmetic_exact_match(decoder& model, const piece_encoder& pieces, std::uint64_t seed,
                              std::size_t n_problems, const std::function<bool()>& should_stop);

/// All figures of a card. `pieces` is null where there are no arithmetic problems (a user's text).
model_figures measure(decoder& model, const std::vector<std::int32_t>& held_out,
                      const piece_encoder* pieces, std::uint64_t seed, bool siblings,
                      const std::function<bool()>& should_stop);

}  // namespace ordermoe::training
