#include "config/precision.hpp"

#include <fmt/format.h>

#include <cmath>

namespace ordermoe {

const char* to_string(precision value) {
  switch (value) {
    case precision::stored:
      return "stored";
    case precision::bf16:
      return "bf16";
    case precision::int8:
      return "int8";
    case precision::int4:
      return "int4";
  }
  return "?";
}

result<precision> parse_precision(std::string_view name) {
  for (const auto value : {precision::stored, precision::bf16, precision::int8, precision::int4})
    if (name == to_string(value)) return value;
  return error{errc::usage,
               fmt::format("precision '{}': expected stored, bf16, int8 or int4", name)};
}

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

std::int64_t expert_bytes(const cost_profile& costs, precision kept) {
  const double share = bits_per_weight(kept) / bits_per_weight(precision::stored);
  if (share == 1) return costs.expert_bytes;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(costs.expert_bytes) * share));
}

cost_profile at_precision(cost_profile costs, precision kept) {
  const auto bytes = expert_bytes(costs, kept);
  if (bytes == costs.expert_bytes) return costs;
  costs.name += fmt::format(", {} experts", to_string(kept));
  costs.expert_bytes = bytes;
  return costs;
}

}  // namespace ordermoe
