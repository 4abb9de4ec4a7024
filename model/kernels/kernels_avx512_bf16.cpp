#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

#include "model/kernels/kernel_sets.hpp"

// Everything below is compiled for AVX-512 with VNNI and BF16; kernels.cpp calls it only where the
// processor has all three.
#pragma GCC target( \
    "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,prefer-vector-width=512")

#include "model/kernels/kernel_avx512_vnni.hpp"
#include "model/kernels/kernel_linear.hpp"

namespace ordermoe::model {
namespace {

struct avx512_bf16 : avx512_vnni {
  /// VDPBF16PS flushes whatever MXCSR says.
  struct flushing {};
  using bf16_pairs = __m512bh;
  static constexpr std::size_t rounded_words = 1;

  static bf16_pairs load_pairs(const std::uint8_t* p) {
    return reinterpret_cast<bf16_pairs>(_mm512_loadu_si512(p));
  }
  static bf16_pairs set1_pair(std::uint32_t both) {
    return reinterpret_cast<bf16_pairs>(_mm512_set1_epi32(static_cast<std::int32_t>(both)));
  }
  static vec add_pairs(vec sums, bf16_pairs a, bf16_pairs b) {
    return _mm512_dpbf16_ps(sums, a, b);
  }
};

/// The same instructions for a Zen 4, which reads ahead better by itself: one row of an expert of Mixtral's width in int4 takes
/// 3.2 ms there where it takes 4.3 with what it will soon need fetched (4 rows in bf16, rounded, 11.4 and 13.6). And what passes fetch for
/// others goes no nearer than the second cache, since the misses of the nearest wait behind it: of 8 rows reading and multiplying
/// took the sum of their times before, 27 ms of an expert in bf16 by rounded rows, and 15 in this way.
struct avx512_zen4 : avx512_bf16 {
  static constexpr int soon_into = 0, share_into = 2;
};

}  // namespace

const kernel_set& avx512_bf16_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx512_bf16>("avx512-bf16");
  return set;
}

const kernel_set& avx512_zen4_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx512_zen4>("avx512-zen4");
  return set;
}

}  // namespace ordermoe::model
#endif
