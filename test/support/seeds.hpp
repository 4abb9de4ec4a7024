#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/error.hpp"

/// How far a test with random runs goes: a slice where all tests run, as far as it takes in a campaign
/// (scripts/campaign).
namespace ordermoe::test {

struct seed_range {
  std::uint64_t first = 1, last = 0;
};

/// Seeds 1 to n, or, in a campaign, those of ORDERMOE_SEEDS: "101:200".
inline seed_range seeds(std::uint64_t n) {
  const char* given = std::getenv("ORDERMOE_SEEDS");
  if (given == nullptr) return {1, n};
  const std::string_view text(given);
  seed_range range;
  const auto colon = text.find(':');
  const auto number = [](std::string_view digits, std::uint64_t& into) {
    const auto end = digits.data() + digits.size();
    return std::from_chars(digits.data(), end, into).ptr == end && !digits.empty();
  };
  ORDERMOE_CHECK(colon != std::string_view::npos && number(text.substr(0, colon), range.first) &&
                     number(text.substr(colon + 1), range.last),
                 "ORDERMOE_SEEDS, expected FIRST:LAST");
  return range;
}

/// How often something is done: n, or, in a campaign, ORDERMOE_COUNT.
inline std::uint64_t count(std::uint64_t n) {
  const char* given = std::getenv("ORDERMOE_COUNT");
  return given == nullptr ? n : std::strtoull(given, nullptr, 10);
}

}  // namespace ordermoe::test
