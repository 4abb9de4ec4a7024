#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "model/kernels/kernel_bodies.hpp"

/// Rows in the forms that products take them in, under the rules of kernel_bodies.hpp: numbers,
/// rounded to bf16, or quantised.
namespace ordermoe::model::bodies {

/// The number in bf16, as the upper half of fp32: to the nearest, ties to even. Denormal numbers
/// are zeros of their sign.
inline __attribute__((always_inline)) std::uint32_t rounded_bits(float number) {
  const auto bits = std::bit_cast<std::uint32_t>(number);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t nearest = bits + 0x7fffu + (bits >> 16 & 1u);
  const std::uint32_t quiet = bits | 0x00400000u;
  const std::uint32_t finite = magnitude < 0x00800000u ? bits & 0x80000000u : nearest;
  return (magnitude > 0x7f800000u ? quiet : finite) & 0xffff0000u;
}

/// Pairs of inputs as Isa takes them: a word each, or both in one, the first in the lower half.
template <class Isa>
void round_row(const float* input, std::size_t n, std::uint32_t* rounded) {
  if constexpr (Isa::rounded_words == 1)
    for (std::size_t j = 0; j < n / 2; ++j)
      rounded[j] = rounded_bits(input[2 * j]) >> 16 | rounded_bits(input[2 * j + 1]);
  else
    for (std::size_t k = 0; k < n; ++k) rounded[k] = rounded_bits(input[k]);
  if (n % 2 == 0) return;
  if constexpr (Isa::rounded_words == 1)
    rounded[n / 2] = rounded_bits(input[n - 1]) >> 16;
  else
    rounded[n] = 0;
}

/// Magnitudes are compared as bits, so that what is not finite is the largest. Values are rounded
/// to the nearest, ties to even, by adding 1.5 * 2^23.
inline __attribute__((always_inline)) void quantise_group(const float* input,
                                                          quantised_group& output) {
  constexpr std::size_t group = packed_layout::group;
  std::int32_t bits = 0;
  for (std::size_t i = 0; i < group; ++i) {
    const std::int32_t magnitude = std::bit_cast<std::int32_t>(input[i]) & 0x7fffffff;
    bits = magnitude > bits ? magnitude : bits;
  }
  const float largest = std::bit_cast<float>(bits);
  const bool nothing = largest < 0x1p-100f;
  const float inverse = nothing ? 0.0f : 127.0f / largest;
  output.scale = nothing ? 0.0f : largest / 127.0f;
  std::int32_t sum = 0;
  for (std::size_t i = 0; i < group; ++i) {
    const float shifted = input[i] * inverse + 12582912.0f;
    const std::int32_t value = std::bit_cast<std::int32_t>(shifted) - 0x4b400000;
    output.values[i] = static_cast<std::int8_t>(value);
    sum += output.values[i];
  }
  output.sum = sum;
}

template <class Isa>
void quantise(const float* input, std::size_t n, quantised_group* groups) {
  constexpr std::size_t group = packed_layout::group;
  for (; n >= group; n -= group, input += group) quantise_group(input, *groups++);
  if (n > 0) {
    float padded[group] = {};
    std::memcpy(padded, input, n * sizeof(float));
    quantise_group(padded, *groups);
  }
}

/// Rows as operands take them: how one is made of n numbers, how long it is, and where its number
/// k, a multiple of 64, is.
template <class Isa, class Row>
struct row_form;

template <class Isa>
struct row_form<Isa, float> {
  static void make(const float* numbers, std::size_t n, float* row) {
    std::memcpy(row, numbers, n * sizeof(float));
  }
  static std::size_t stride(const packed_layout& layout) { return layout.n_in; }
  static constexpr std::size_t at(std::size_t k) { return k; }
};

template <class Isa>
struct row_form<Isa, std::uint32_t> {
  static void make(const float* numbers, std::size_t n, std::uint32_t* row) {
    round_row<Isa>(numbers, n, row);
  }
  static std::size_t stride(const packed_layout& layout) { return at(2 * layout.n_pairs()); }
  static constexpr std::size_t at(std::size_t k) { return k / 2 * Isa::rounded_words; }
};

template <class Isa>
struct row_form<Isa, quantised_group> {
  static void make(const float* numbers, std::size_t n, quantised_group* row) {
    quantise<Isa>(numbers, n, row);
  }
  static std::size_t stride(const packed_layout& layout) { return layout.n_groups(); }
  static constexpr std::size_t at(std::size_t k) { return k / packed_layout::group; }
};

}  // namespace ordermoe::model::bodies
