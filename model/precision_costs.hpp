#pragma once

#include "config/cost_profile.hpp"
#include "model/expert_weights.hpp"

namespace ordermoe::model {

/// Bits of an expert's weight: 16, 8, or 4.5 with the scale of each group of 32. The scales of
/// int8, one for each output, are not counted.
double bits_per_weight(precision kept);

/// The same charges where every expert is kept so: its bytes, in memory and read for each batch.
/// The name says it. FLOPs stay.
cost_profile at_precision(cost_profile costs, precision kept);

}  // namespace ordermoe::model
