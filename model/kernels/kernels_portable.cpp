#include <bit>
#include <cfloat>
#include <cmath>
#include <type_traits>
#include <utility>

#include "model/kernels/kernel_linear.hpp"
#include "model/kernels/kernel_sets.hpp"

namespace ordermoe::model {
namespace {

struct portable {
  struct vec {
    float lanes[16];
  };
  struct ints {
    std::int32_t lanes[16];
  };
  struct bytes {
    std::uint8_t lanes[64];
  };
  /// flushed_fma() does without.
  struct flushing {};
  static constexpr std::size_t most_rows = 2, most_bf16_rows = 2, few_rows = 2;
  static constexpr bool many_registers = false;
  static constexpr int soon_into = 1, share_into = 1;
  static constexpr bool pairs = false;
  static constexpr std::size_t rounded_words = 2;
  template <int Rows>
  static constexpr int block_panels = 2;
  template <int Rows>
  static constexpr int quantised_panels = block_panels<Rows>;
  static constexpr int most_heads = 4;
  template <int Heads>
  static constexpr int score_keys = Heads == 1   ? 4
                                    : Heads == 2 ? 2
                                                 : 1;
  template <int Heads>
  static constexpr int value_panels = 2;

  static constexpr int tile_heads = 2, score_panels = 2, value_panels_at_once = 2,
                       lanes_at_once = 1, block_keys = 32;
  template <int Panels>
  static constexpr int value_heads = Panels == 2 ? 2 : 4;

  static vec zero() { return {}; }
  static vec set1(float x) {
    vec v;
    for (float& lane : v.lanes) lane = x;
    return v;
  }
  static vec load(const float* p) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = p[i];
    return v;
  }
  static void store(float* p, const vec& v) {
    for (int i = 0; i < 16; ++i) p[i] = v.lanes[i];
  }
  static vec load_weights(const float* p) { return load(p); }
  static vec load_weights(const std::uint16_t* p) {
    vec v;
    for (int i = 0; i < 16; ++i)
      v.lanes[i] = std::bit_cast<float>(static_cast<std::uint32_t>(p[i]) << 16);
    return v;
  }
  static vec load_even(const std::uint8_t* p) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = bodies::widen(bits_at(p + 4 * i));
    return v;
  }
  static vec load_odd(const std::uint8_t* p) { return load_even(p + 2); }
  static vec max(const vec& a, const vec& b) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = a.lanes[i] > b.lanes[i] ? a.lanes[i] : b.lanes[i];
    return v;
  }
  static vec add(const vec& a, const vec& b) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = a.lanes[i] + b.lanes[i];
    return v;
  }
  static vec mul(const vec& a, const vec& b) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = a.lanes[i] * b.lanes[i];
    return v;
  }
  static vec lane_sums(const vec (&rows)[16]) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = bodies::lane_sum(rows[i].lanes);
    return v;
  }
  /// Row i and number i change places.
  static void transpose(vec (&rows)[16]) {
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < i; ++j) std::swap(rows[i].lanes[j], rows[j].lanes[i]);
  }
  static vec fma(const vec& a, const vec& b, const vec& c) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = std::fma(a.lanes[i], b.lanes[i], c.lanes[i]);
    return v;
  }
  static vec flushed_fma(const vec& a, const vec& b, const vec& c) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = flushed_fma(a.lanes[i], b.lanes[i], c.lanes[i]);
    return v;
  }
  static vec one_nan(const vec& a) {
    vec v = a;
    for (float& lane : v.lanes)
      if (std::isnan(lane)) lane = std::bit_cast<float>(0x7fc00000u);
    return v;
  }

  static bytes load_bytes(const std::uint8_t* p) {
    bytes b;
    std::memcpy(b.lanes, p, sizeof b.lanes);
    return b;
  }
  static bytes low_halves(const bytes& b) {
    bytes half;
    for (int i = 0; i < 64; ++i) half.lanes[i] = b.lanes[i] & 0x0f;
    return half;
  }
  static bytes high_halves(const bytes& b) {
    bytes half;
    for (int i = 0; i < 64; ++i) half.lanes[i] = static_cast<std::uint8_t>(b.lanes[i] >> 4);
    return half;
  }
  static ints set1_ints(std::int32_t x) {
    ints v;
    for (std::int32_t& lane : v.lanes) lane = x;
    return v;
  }
  static vec to_floats(const ints& x) {
    vec v;
    for (int i = 0; i < 16; ++i) v.lanes[i] = static_cast<float>(x.lanes[i]);
    return v;
  }
  static constexpr bool sums_nibbles = false;
  static ints dot(const ints& sums, const bytes& w, const std::int8_t* values) {
    ints v = sums;
    for (int i = 0; i < 16; ++i)
      for (int j = 0; j < 4; ++j) v.lanes[i] += w.lanes[4 * i + j] * values[j];
    return v;
  }

 private:
  static std::uint16_t bits_at(const std::uint8_t* p) {
    std::uint16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
  }
  static float flushed(float x) { return std::abs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }
  /// A result that rounds up to the least normal number is a zero where it would not with digits as
  /// fine as that number's own. In double it is exact as far as that: factors of eight digits, and
  /// a sum that is then a few of the least numbers.
  static float flushed_fma(float a, float b, float c) {
    a = flushed(a), b = flushed(b), c = flushed(c);
    const float sum = std::fma(a, b, c);
    if (std::abs(sum) == FLT_MIN) {
      const double exact = static_cast<double>(a) * static_cast<double>(b) + static_cast<double>(c);
      if (std::abs(exact) < 0x1p-126 - 0x1p-151) return std::copysign(0.0f, sum);
    }
    return flushed(sum);
  }
};

}  // namespace

const kernel_set& portable_kernels() {
  static constexpr kernel_set set = bodies::make_set<portable>("portable");
  return set;
}

}  // namespace ordermoe::model
