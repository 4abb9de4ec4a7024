#pragma once

#include <optional>
#include <vector>

#include "setup/trials.hpp"
#include "setup/tuning.hpp"

/// Which of the prices that a search tried is taken.
namespace ordermoe::setup {

struct tried_price {
  double price = 0;  ///< What is searched for, the logarithm of price times damage.
  tuning at;
  trial_score found;
};

/// The lowest that kept so many nats, on so many times the texts, behind no dearer one that did not. What a price loses differs from what those
/// beside it lose by more than texts alone explain, and the lowest one would be the luckiest: it is taken to lose what it and the next cheaper one
/// lose in the mean, where that is more. Nothing where the dearest did not keep them.
std::optional<tried_price> lowest_kept(std::vector<tried_price> tried, double nats,
                                       double times_as_many = 1);

}  // namespace ordermoe::setup
