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

}  // namespace

const kernel_set& avx512_bf16_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx512_bf16>("avx512-bf16");
  return set;
}

}  // namespace ordermoe::model
#endif
