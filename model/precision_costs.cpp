#include "model/precision_costs.hpp"

#include <fmt/format.h>

#include <cmath>

namespace ordermoe::model {

double bits_per_weight(precision kept) {
  switch (kept) {
    case precision::stored:
    case precision::bf16:
      return 16;
    case precision::int8:
      return 8;
    case precision::int4:
      return 4.5;
  }
  return 16;
}

cost_profile at_precision(cost_profile costs, precision kept) {
  const double share = bits_per_weight(kept) / bits_per_weight(precision::bf16);
  if (share == 1) return costs;
  costs.name += fmt::format(", {} experts", to_string(kept));
  costs.expert_bytes =
      static_cast<std::int64_t>(std::ceil(static_cast<double>(costs.expert_bytes) * share));
  return costs;
}

}  // namespace ordermoe::model
