#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// A few target sets in place of many. Where experts are many, nearly every token has a target set
/// of its own: 60 experts at top-4 make half a million sets. What plans need of them, how often
/// experts are wanted together and what follows, a sample of some hundred shows as well.
namespace ordermoe::planning {

/// Sets that a profile keeps for a layer at most.
inline constexpr std::size_t max_profile_sets = 256;

struct representatives {
  std::vector<std::size_t> kept;    ///< Indices of the kept sets, ascending.
  std::vector<std::size_t> counts;  ///< [sets] position in `kept` of the set that each counts for.
};

/// At most `n_most` of `sets` (each ascending) with these weights (not negative, at least one
/// above 0): all of them where they are no more. Otherwise every set that has its share of
/// 1 / n_most alone, and a systematic sample of the others in lexicographic order, so that rare
/// experts stay represented. Each set left out counts for the kept set that shares most experts
/// with it; among equals, for the one that least counts for so far. Deterministic.
representatives choose_representatives(std::span<const std::vector<std::uint32_t>> sets,
                                       std::span<const double> weights, std::size_t n_most);

}  // namespace ordermoe::planning
