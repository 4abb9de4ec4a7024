#pragma once

#include <cstdint>

/// The draws of one run, each from a stream of its own: asking for one does not shift the others.
namespace ordermoe::setup {

/// Whose arrivals are drawn. Requests and scored texts are never in one run, and share a stream.
enum class seed_stream : std::uint64_t {
  requests = 0,
  scored_texts = 0,
  problems = 1,
  tuning_texts = 2,
  trial_load = 3,
  questions = 4
};

/// The seed of a stream, from the one that the user gives.
constexpr std::uint64_t seed_of(std::uint64_t seed, seed_stream stream) {
  return seed + static_cast<std::uint64_t>(stream);
}

}  // namespace ordermoe::setup
