#pragma once

#include <cstddef>
#include <span>

#include "config/error.hpp"

/// How much perplexity a strategy costs, from the losses of the same tokens under it and exactly.
namespace ordermoe::experiments {

/// In per cent, with its 95 % interval. Tokens of one document are no draws of their own: the interval is that of means over
/// documents drawn at random (the estimator of ratios by clusters), and without width where there is but one.
struct paired_increase {
  double percent = 0, low = 0, high = 0;
  friend bool operator==(const paired_increase&, const paired_increase&) = default;
};

/// losses, exact: nats of each scored token, document after document; lengths: how many of them each document has. Error:
/// mismatch where they do not have the same tokens, or none.
result<paired_increase> increase_by_document(std::span<const double> losses,
                                             std::span<const double> exact,
                                             std::span<const std::size_t> lengths);

}  // namespace ordermoe::experiments
