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

// Everything below is compiled for AVX2 and FMA; kernels.cpp calls it only where the processor has
// them.
#pragma GCC target("avx2,fma")

#include "model/kernels/kernel_flushing.hpp"
#include "model/kernels/kernel_linear.hpp"

namespace ordermoe::model {
namespace {

struct avx2 {
  struct vec {
    __m256 low;
    __m256 high;
  };
  struct ints {
    __m256i low;
    __m256i high;
  };
  using bytes = ints;
  // Sixteen registers: twelve sums at most, and what the weights and one input take.
  using flushing = model::flushing;
  static constexpr std::size_t most_rows = 6, most_bf16_rows = 5, few_rows = 6;
  static constexpr bool many_registers = false;
  // What others need does not fit the nearest cache beside what a tile reads.
  static constexpr int soon_into = 1, share_into = 2;
  static constexpr bool pairs = false;
  static constexpr std::size_t rounded_words = 2;
  template <int Rows>
  static constexpr int block_panels = Rows == 1 ? 4 : 1;
  template <int Rows>
  static constexpr int quantised_panels = Rows == 1   ? 4
                                          : Rows <= 3 ? 2
                                                      : 1;
  static constexpr int most_heads = 4;
  template <int Heads>
  static constexpr int score_keys = Heads == 1   ? 4
                                    : Heads == 2 ? 2
                                                 : 1;
  template <int Heads>
  static constexpr int value_panels = Heads == 4 ? 1 : 2;

  static constexpr int tile_heads = 6, score_panels = 1, value_panels_at_once = 2,
                       lanes_at_once = 1, block_keys = 32;
  template <int Panels>
  static constexpr int value_heads = Panels == 2 ? 3 : 6;

  static vec zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static vec set1(float x) {
    const auto v = _mm256_set1_ps(x);
    return {v, v};
  }
  static vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, const vec& v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 8, v.high);
  }
  static vec load_weights(const float* p) { return load(p); }
  static vec load_weights(const std::uint16_t* p) { return {widen(p), widen(p + 8)}; }
  static vec load_even(const std::uint8_t* p) {
    const auto both = load_bytes(p);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(both.low, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(both.high, 16))};
  }
  static vec load_odd(const std::uint8_t* p) {
    const auto upper = _mm256_set1_epi32(static_cast<std::int32_t>(0xffff0000));
    const auto both = load_bytes(p);
    return {_mm256_castsi256_ps(_mm256_and_si256(both.low, upper)),
            _mm256_castsi256_ps(_mm256_and_si256(both.high, upper))};
  }
  static vec max(const vec& a, const vec& b) {
    return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
  }
  static vec add(const vec& a, const vec& b) {
    return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
  }
  static vec mul(const vec& a, const vec& b) {
    return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
  }
  static vec lane_sums(const vec (&rows)[16]) { return {eight_sums(rows), eight_sums(rows + 8)}; }
  /// Row i and number i change places.
  static void transpose(vec (&rows)[16]) {
    __m256 quarter[8], other[8];
    for (int i = 0; i < 8; ++i) quarter[i] = rows[i].low;
    transpose_eight(quarter);
    for (int i = 0; i < 8; ++i) other[i] = rows[i + 8].low;
    transpose_eight(other);
    vec low[8];
    for (int i = 0; i < 8; ++i) low[i] = {quarter[i], other[i]};
    for (int i = 0; i < 8; ++i) quarter[i] = rows[i].high;
    transpose_eight(quarter);
    for (int i = 0; i < 8; ++i) other[i] = rows[i + 8].high;
    transpose_eight(other);
    for (int i = 0; i < 8; ++i) {
      rows[i] = low[i];
      rows[i + 8] = {quarter[i], other[i]};
    }
  }
  static vec fma(const vec& a, const vec& b, const vec& c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }

  static vec flushed_fma(const vec& a, const vec& b, const vec& c) { return fma(a, b, c); }
  static vec one_nan(const vec& v) { return {one_nan(v.low), one_nan(v.high)}; }

  static bytes load_bytes(const std::uint8_t* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  static bytes low_halves(const bytes& b) {
    const auto mask = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(b.low, mask), _mm256_and_si256(b.high, mask)};
  }
  static bytes high_halves(const bytes& b) {
    return low_halves({_mm256_srli_epi16(b.low, 4), _mm256_srli_epi16(b.high, 4)});
  }
  static ints set1_ints(std::int32_t x) {
    const auto v = _mm256_set1_epi32(x);
    return {v, v};
  }
  static vec to_floats(const ints& x) {
    return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
  }
  /// Bytes 0 and 2 of each four, then 1 and 3, as 16-bit numbers: no sum of two saturates.
  static ints dot(const ints& sums, const bytes& w, const std::int8_t* values) {
    const auto four = four_of(values);
    const auto even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8);
    const auto odd = _mm256_srai_epi16(four, 8);
    return {four_products(sums.low, w.low, even, odd), four_products(sums.high, w.high, even, odd)};
  }

  // One instruction for two products, where 16-bit numbers of both would first have to be made: 32 rows of an expert of Mixtral's
  // width take 63 ms on a Zen 3 instead of 230.
  static constexpr bool sums_nibbles = true;
  using nibble_sums = ints;
  static nibble_sums begin_nibbles(std::int32_t sum) {
    const auto v = _mm256_set1_epi16(static_cast<std::int16_t>(-4 * sum));
    return {v, v};
  }
  static nibble_sums dot_nibbles(const nibble_sums& sums, const bytes& w,
                                 const std::int8_t* values) {
    const auto four = four_of(values);
    return {in_this_order(_mm256_add_epi16(sums.low, _mm256_maddubs_epi16(w.low, four))),
            in_this_order(_mm256_add_epi16(sums.high, _mm256_maddubs_epi16(w.high, four)))};
  }
  static ints of_nibbles(const nibble_sums& sums) {
    const auto one = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(sums.low, one), _mm256_madd_epi16(sums.high, one)};
  }

 private:
  static __m256 one_nan(__m256 v) {
    const auto nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    return _mm256_blendv_ps(v, nan, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  }
  /// A sum that is made now: otherwise GCC 12 adds products to each other first, and has more of them than there are registers.
  static __m256i in_this_order(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
  }
  static __m256i four_of(const std::int8_t* values) {
    std::int32_t four;
    std::memcpy(&four, values, sizeof four);
    return _mm256_set1_epi32(four);
  }
  static __m256i four_products(__m256i sums, __m256i w, __m256i even, __m256i odd) {
    const auto low = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(0xff)), even);
    const auto high = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), odd);
    return in_this_order(_mm256_add_epi32(sums, _mm256_add_epi32(low, high)));
  }
  static void transpose_eight(__m256 (&rows)[8]) {
    __m256 fours[8];
    for (int i = 0; i < 8; i += 4) {
      const auto ab = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
      const auto ab_high = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
      const auto cd = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
      const auto cd_high = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
      fours[i] = _mm256_shuffle_ps(ab, cd, 0x44);
      fours[i + 1] = _mm256_shuffle_ps(ab, cd, 0xee);
      fours[i + 2] = _mm256_shuffle_ps(ab_high, cd_high, 0x44);
      fours[i + 3] = _mm256_shuffle_ps(ab_high, cd_high, 0xee);
    }
    for (int c = 0; c < 4; ++c) {
      rows[c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x20);
      rows[4 + c] = _mm256_permute2f128_ps(fours[c], fours[4 + c], 0x31);
    }
  }
  /// The tree of lane_sum for eight rows at once: rows i and i + 4 share a register from the second
  /// step on.
  static __m256 eight_sums(const vec* rows) {
    __m256 four[4];
    for (int i = 0; i < 4; ++i) {
      const auto a = _mm256_add_ps(rows[i].low, rows[i].high);
      const auto b = _mm256_add_ps(rows[i + 4].low, rows[i + 4].high);
      four[i] =
          _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    __m256 two[2];
    for (int i = 0; i < 2; ++i)
      two[i] = _mm256_add_ps(_mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0x44),
                             _mm256_shuffle_ps(four[2 * i], four[2 * i + 1], 0xee));
    return _mm256_add_ps(_mm256_shuffle_ps(two[0], two[1], 0x88),
                         _mm256_shuffle_ps(two[0], two[1], 0xdd));
  }
  static __m256 widen(const std::uint16_t* p) {
    const auto halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
  }
};

}  // namespace

const kernel_set& avx2_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx2>("avx2");
  return set;
}

}  // namespace ordermoe::model
#endif
