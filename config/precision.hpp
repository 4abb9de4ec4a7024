#pragma once

#include <cstdint>
#include <string_view>

#include "config/cost_profile.hpp"
#include "config/error.hpp"

namespace ordermoe {

/// What weights are turned into when they are loaded; `stored`: what the checkpoint has, and rows
/// as they are. bf16 rounds weights that have more bits, and rows; int8 has one scale for each
/// output, int4 one for 32 inputs of an output, and rows before both are int8 by 32. Ordered from
/// fine to coarse.
enum class precision : std::uint8_t { stored, bf16, int8, int4 };

/// "stored", "bf16", "int8", "int4".
const char* to_string(precision value);
/// The opposite of to_string. Error: usage, naming what is allowed.
result<precision> parse_precision(std::string_view name);

/// Bits of an expert's weight: 16, 8, or 4.5 with the scale of each group of 32. The scales of
/// int8, one for each output, are not counted.
double bits_per_weight(precision kept);

/// Bytes of one expert that is kept so, by charges that count it in 16 bits.
std::int64_t expert_bytes(const cost_profile& costs, precision kept);

/// The same charges where every expert is kept so, and what is not an expert as `dense`: their
/// bytes, in memory and read for each batch. The name says it. FLOPs stay, and so does the
/// embedding; norms and router, which stay as they are, are too few to count. A shared expert,
/// which costs count with attention, follows `dense` here and the experts when it is loaded.
cost_profile at_precision(cost_profile costs, precision experts,
                          precision dense = precision::stored);

}  // namespace ordermoe
