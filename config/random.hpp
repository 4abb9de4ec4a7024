#pragma once

#include <cstdint>

namespace ordermoe {

/// Mixes 64 bits (the finaliser of SplitMix64, Steele et al. 2014).
constexpr std::uint64_t mix64(std::uint64_t x) noexcept {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

/// A counter-based generator: the same key and counter give the same 64 bits on every machine and
/// in every order.
constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream,
                                    std::uint64_t counter) noexcept {
  return mix64(mix64(mix64(seed) ^ stream) ^ counter);
}

/// Uniform in [0, 1) with 53 random bits.
constexpr double random_unit(std::uint64_t seed, std::uint64_t stream,
                             std::uint64_t counter) noexcept {
  return static_cast<double>(random_bits(seed, stream, counter) >> 11) * 0x1.0p-53;
}

/// A sequential generator over random_bits, for code that draws many numbers in one place.
class random_stream {
 public:
  constexpr explicit random_stream(std::uint64_t seed, std::uint64_t stream = 0)
      : seed_(seed), stream_(stream) {}
  constexpr std::uint64_t bits() noexcept { return random_bits(seed_, stream_, counter_++); }
  constexpr double unit() noexcept { return static_cast<double>(bits() >> 11) * 0x1.0p-53; }
  constexpr double uniform(double low, double high) noexcept { return low + (high - low) * unit(); }
  /// Uniform in [0, bound); bound > 0. Multiply-shift, with a bias below 2^-32 for bounds below
  /// 2^32.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(bits()) * bound) >> 64);
  }

 private:
  std::uint64_t seed_;
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
};

}  // namespace ordermoe
