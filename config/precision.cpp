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

namespace {

std::int64_t bytes_at(std::int64_t stored, precision kept) {
  const double share = bits_per_weight(kept) / bits_per_weight(precision::stored);
  if (share == 1) return stored;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(stored) * share));
}

}  // namespace

std::int64_t expert_bytes(const cost_profile& costs, precision kept) {
  return bytes_at(costs.expert_bytes, kept);
}

cost_profile at_precision(cost_profile costs, precision experts, precision dense) {
  const auto changes = [](precision kept) {
    return bits_per_weight(kept) != bits_per_weight(precision::stored);
  };
  if (changes(experts)) {
    costs.name += fmt::format(", {} experts", to_string(experts));
    costs.expert_bytes = bytes_at(costs.expert_bytes, experts);
  }
  if (changes(dense)) {
    costs.name += fmt::format(", {} dense", to_string(dense));
    costs.attention_bytes = bytes_at(costs.attention_bytes, dense);
    costs.head_bytes = bytes_at(costs.head_bytes, dense);
  }
  return costs;
}

}  // namespace ordermoe
