#pragma once

#include <immintrin.h>

#include <cstdint>

#include "model/kernels/kernel_flushing.hpp"

/// 16 fp32 lanes in one AVX-512 register, for the sources that are compiled for it. Included
/// after the target options are in force; every source has its own type.
namespace ordermoe::model {
namespace {

struct avx512 {
  using vec = __m512;
  // Zero-masking forms with this mask compile to the plain instructions and spare GCC 12 a false
  // warning.
  static constexpr __mmask16 all = 0xffff;
  using ints = __m512i;
  using bytes = __m512i;
  using flushing = model::flushing;
  static constexpr std::size_t most_rows = 6, most_bf16_rows = 6, few_rows = 4;
  static constexpr bool many_registers = true;
  static constexpr int soon_into = 1, share_into = 1;
  static constexpr bool pairs = true;
  static constexpr std::size_t rounded_words = 2;
  template <int Rows>
  static constexpr int block_panels = 4;
  // Of quantised numbers integers and sums are in registers; with few rows memory is what limits.
  template <int Rows>
  static constexpr int quantised_panels = Rows >= 5 ? 2 : 4;
  static constexpr int most_heads = 8;
  template <int Heads>
  static constexpr int score_keys = Heads == 8   ? 2
                                    : Heads == 4 ? 4
                                                 : 8;
  template <int Heads>
  static constexpr int value_panels = Heads == 8   ? 2
                                      : Heads == 4 ? 4
                                                   : 8;

  static constexpr int tile_heads = 6, score_panels = 2, value_panels_at_once = 4,
                       lanes_at_once = 2, block_keys = 32;
  template <int Panels>
  static constexpr int value_heads = Panels == 4 ? 6 : 12;

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
  static vec load_even(const std::uint8_t* p) {
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all, _mm512_loadu_si512(p), 16));
  }
  static vec load_odd(const std::uint8_t* p) {
    const auto upper = _mm512_set1_epi32(static_cast<std::int32_t>(0xffff0000));
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), upper));
  }
  static vec max(vec a, vec b) { return _mm512_maskz_max_ps(all, a, b); }
  static vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
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
  /// Row i and number i change places. Four rows that are four apart share a register from the first step on.
  static void transpose(vec (&rows)[16]) {
    vec fours[16];
    for (int i = 0; i < 16; i += 4) {
      const auto ab = _mm512_maskz_unpacklo_ps(all, rows[i], rows[i + 1]);
      const auto ab_high = _mm512_maskz_unpackhi_ps(all, rows[i], rows[i + 1]);
      const auto cd = _mm512_maskz_unpacklo_ps(all, rows[i + 2], rows[i + 3]);
      const auto cd_high = _mm512_maskz_unpackhi_ps(all, rows[i + 2], rows[i + 3]);
      fours[i] = _mm512_maskz_shuffle_ps(all, ab, cd, 0x44);
      fours[i + 1] = _mm512_maskz_shuffle_ps(all, ab, cd, 0xee);
      fours[i + 2] = _mm512_maskz_shuffle_ps(all, ab_high, cd_high, 0x44);
      fours[i + 3] = _mm512_maskz_shuffle_ps(all, ab_high, cd_high, 0xee);
    }
    // Of fours[4 * g + c] part p is number 4 * p + c of rows 4 * g and on.
    for (int c = 0; c < 4; ++c) {
      const auto low = _mm512_maskz_shuffle_f32x4(all, fours[c], fours[4 + c], 0x88);
      const auto low_odd = _mm512_maskz_shuffle_f32x4(all, fours[c], fours[4 + c], 0xdd);
      const auto high = _mm512_maskz_shuffle_f32x4(all, fours[8 + c], fours[12 + c], 0x88);
      const auto high_odd = _mm512_maskz_shuffle_f32x4(all, fours[8 + c], fours[12 + c], 0xdd);
      rows[c] = _mm512_maskz_shuffle_f32x4(all, low, high, 0x88);
      rows[8 + c] = _mm512_maskz_shuffle_f32x4(all, low, high, 0xdd);
      rows[4 + c] = _mm512_maskz_shuffle_f32x4(all, low_odd, high_odd, 0x88);
      rows[12 + c] = _mm512_maskz_shuffle_f32x4(all, low_odd, high_odd, 0xdd);
    }
  }
  static vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
  static vec flushed_fma(vec a, vec b, vec c) { return fma(a, b, c); }
  static vec one_nan(vec v) {
    const auto nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000));
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
  }

  static bytes load_bytes(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
  static bytes low_halves(bytes b) { return _mm512_and_si512(b, _mm512_set1_epi8(0x0f)); }
  static bytes high_halves(bytes b) {
    return _mm512_and_si512(_mm512_maskz_srli_epi16(~__mmask32{0}, b, 4), _mm512_set1_epi8(0x0f));
  }
  static ints set1_ints(std::int32_t x) { return _mm512_set1_epi32(x); }
  static vec to_floats(ints x) { return _mm512_maskz_cvtepi32_ps(all, x); }
  static constexpr bool sums_nibbles = false;
  /// Bytes 0 and 2 of each four, then 1 and 3, as 16-bit numbers: no sum of two saturates.
  static ints dot(ints sums, bytes w, const std::int8_t* values) {
    const auto even = _mm512_and_si512(w, _mm512_set1_epi16(0xff));
    const auto odd = _mm512_maskz_srli_epi16(~__mmask32{0}, w, 8);
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(even, two_of(values[0], values[2])));
    return _mm512_add_epi32(sums, _mm512_madd_epi16(odd, two_of(values[1], values[3])));
  }

 private:
  static __m512i two_of(std::int8_t low, std::int8_t high) {
    return _mm512_set1_epi32(static_cast<std::uint16_t>(low) |
                             (static_cast<std::int32_t>(high) << 16));
  }
  static vec halve(vec a, vec b) {
    return _mm512_add_ps(_mm512_maskz_shuffle_f32x4(all, a, b, 0x44),
                         _mm512_maskz_shuffle_f32x4(all, a, b, 0xee));
  }
};

}  // namespace
}  // namespace ordermoe::model
