#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <vector>

#include "bench/spread.hpp"

/// What benchmarks that are held against memory share: the clock, and how fast a core reads
/// memory at best.
namespace ordermoe::bench {

/// On the wall, or of the thread itself: the latter leaves out what other programs took of the
/// processor.
inline bool own_time = false;
inline double now_s() {
  timespec now{};
  ::clock_gettime(own_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Of the cache that this processor's core reads through; a whole package has several of them.
inline std::size_t cache_bytes() {
  if (std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index3/size"); file) {
    std::size_t kib = 0;
    if (file >> kib) return kib << 10;
  }
  return std::size_t{32} << 20;
}

/// Bytes that are small finite numbers whether they are read as fp32, bf16 or integers, in huge
/// pages where the kernel grants them.
class pool {
 public:
  explicit pool(std::size_t bytes) : bytes_(bytes) {
    constexpr std::size_t huge = std::size_t{2} << 20;
    first_ = static_cast<std::byte*>(std::aligned_alloc(huge, (bytes + huge - 1) / huge * huge));
    if (first_ == nullptr) std::abort();
    static_cast<void>(::madvise(first_, bytes, MADV_HUGEPAGE));
    std::uint32_t state = 1;
    for (std::size_t i = 0; i + 2 <= bytes; i += 2) {
      state = state * 1664525u + 1013904223u;
      const auto half = static_cast<std::uint16_t>(0x3c00u | (state >> 16 & 0x80ffu));
      std::memcpy(first_ + i, &half, 2);
    }
  }
  ~pool() { std::free(first_); }
  pool(const pool&) = delete;
  pool& operator=(const pool&) = delete;
  std::byte* at(std::size_t offset) const { return first_ + offset; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* first_;
  std::size_t bytes_;
};

/// Reads everything once, from `streams` places at a time, fetching `ahead` bytes ahead, and adds
/// it up.
[[maybe_unused]] __attribute__((target_clones("avx512f", "avx2", "default"))) static std::uint64_t
read_all(const std::byte* first, std::size_t bytes, std::size_t streams, std::size_t ahead) {
  using chunk = std::uint64_t __attribute__((vector_size(64), aligned(64)));
  chunk sums[4] = {};
  const std::size_t part = bytes / streams / 256 * 256;
  for (std::size_t i = 0; i < part; i += 256)
    for (std::size_t s = 0; s < streams; ++s) {
      const std::byte* place = first + s * part + i;
      for (std::size_t k = 0; k < 4; ++k) {
        if (ahead > 0) __builtin_prefetch(place + ahead + k * 64);
        sums[k] += *reinterpret_cast<const chunk*>(place + k * 64);
      }
    }
  std::uint64_t sum = 0;
  for (auto& lanes : sums)
    for (int i = 0; i < 8; ++i) sum += lanes[i];
  return sum;
}

/// The ways to read that are tried before the rounds; the fastest one is the bandwidth.
struct reading {
  const char* name;
  std::size_t streams, ahead;
};
constexpr reading readings[] = {{"one stream", 1, 0},
                                {"two streams", 2, 0},
                                {"one stream, fetched ahead", 1, 4096},
                                {"two streams, fetched ahead", 2, 4096}};

/// seconds_of(reading): how long reading some memory that way took.
template <class SecondsOf>
const reading& fastest_reading(const SecondsOf& seconds_of) {
  const reading* best = nullptr;
  double least = 0;
  for (const auto& how : readings) {
    double fastest = 0;
    for (int i = 0; i < 3; ++i) {
      const double taken = seconds_of(how);
      if (i == 0 || taken < fastest) fastest = taken;
    }
    if (best == nullptr || fastest < least) {
      best = &how;
      least = fastest;
    }
  }
  return *best;
}

inline std::atomic<std::uint64_t> sink{0};

}  // namespace ordermoe::bench
