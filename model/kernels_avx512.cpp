#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

#include "model/kernel_sets.hpp"

// Everything below is compiled for AVX-512; kernels.cpp calls it only where the processor has it.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")

#include "model/kernel_bodies.hpp"

namespace ordermoe::model {
namespace {

struct avx512 {
  using vec = __m512;
  // Zero-masking forms with this mask compile to the plain instructions and spare GCC 12 a false
  // warning.
  static constexpr __mmask16 all = 0xffff;
  static constexpr int most_rows = 6;
  template <int Rows>
  static constexpr int wide_panels = Rows <= 2 ? 8 : 4;

  static vec zero() { return _mm512_setzero_ps(); }
  static vec set1(float x) { return _mm512_set1_ps(x); }
  static vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, vec v) { _mm512_storeu_ps(p, v); }
  static vec load_weights(const float* p) { return load(p); }
  static vec load_weights(const std::uint16_t* p) {
    const auto halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const auto wide = _mm512_maskz_cvtepu16_epi32(all, halves);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all, wide, 16));
  }
  static vec max(vec a, vec b) { return _mm512_maskz_max_ps(all, a, b); }
  static vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
  /// The tree of lane_sum for 16 rows at once; rows g, g + 4, g + 8 and g + 12 share a register
  /// from the second step on, so that the sums come out in the order of the rows.
  static vec lane_sums(const vec (&rows)[16]) {
    vec four[4];
    for (int g = 0; g < 4; ++g) {
      const auto ab = halve(rows[g], rows[g + 4]);
      const auto cd = halve(rows[g + 8], rows[g + 12]);
      four[g] = _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all, ab, cd, 0x88),
                              _mm512_maskz_shuffle_f32x4(all, ab, cd, 0xdd));
    }
    vec two[2];
    for (int i = 0; i < 2; ++i)
      two[i] = _mm512_add_ps(_mm512_maskz_shuffle_ps(all, four[2 * i], four[2 * i + 1], 0x44),
                             _mm512_maskz_shuffle_ps(all, four[2 * i], four[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_maskz_shuffle_ps(all, two[0], two[1], 0x88),
                         _mm512_maskz_shuffle_ps(all, two[0], two[1], 0xdd));
  }
  static vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }

 private:
  static vec halve(vec a, vec b) {
    return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all, a, b, 0x44),
                         _mm512_maskz_shuffle_f32x4(all, a, b, 0xee));
  }
};

}  // namespace

const kernel_set& avx512_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx512>("avx512");
  return set;
}

}  // namespace ordermoe::model
#endif
