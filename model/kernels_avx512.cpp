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
    // The zero-masking forms compile to the plain instructions and spare GCC 12 a false warning.
    constexpr __mmask16 all = 0xffff;
    const auto wide = _mm512_maskz_cvtepu16_epi32(all, halves);
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all, wide, 16));
  }
  static vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
};

}  // namespace

const kernel_set& avx512_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx512>("avx512");
  return set;
}

}  // namespace ordermoe::model
#endif
