#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "config/exact_exp.hpp"
#include "model/kernels/kernels.hpp"

/// The kernels' bodies, included once by the source of each instruction set after its target
/// options are in force. `Isa` supplies `vec`, 16 fp32 lanes, with zero, load, store, set1, fma,
/// mul and load_weights (fp32 or bf16), most_heads (4 or 8), score_keys and value_panels (how many keys,
/// and how many 16 numbers of a value, fit its registers with so many heads), and `ints`, 16 int32 lanes, with what
/// linear products of quantised numbers take (kernel_linear.hpp).
///
/// Bodies are templates over a type of the including source, so that no two sources share an
/// instantiation and the linker cannot hand one set's code to another.
namespace ordermoe::model::bodies {

constexpr std::size_t lane = packed_layout::lane;
constexpr std::size_t block = packed_layout::block;

/// The fixed tree: halves are added until one lane is left.
inline __attribute__((always_inline)) float lane_sum(const float (&lanes)[lane]) {
  float eight[8];
  float four[4];
  for (int i = 0; i < 8; ++i) eight[i] = lanes[i] + lanes[i + 8];
  for (int i = 0; i < 4; ++i) four[i] = eight[i] + eight[i + 4];
  return (four[0] + four[2]) + (four[1] + four[3]);
}

inline __attribute__((always_inline)) float widen(float x) {
  return x;
}
inline __attribute__((always_inline)) float widen(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}

/// Sum of a[i] * b[i] in 16 lanes. Lanes start at +0 and so are never -0: leaving the last
/// elements' missing lanes alone is the same as adding zeros to them.
template <class Isa, class Number>
inline __attribute__((always_inline)) float dot(const float* a, const Number* b, std::size_t n) {
  auto sum = Isa::zero();
  std::size_t i = 0;
  for (; i + lane <= n; i += lane) sum = Isa::fma(Isa::load(a + i), Isa::load_weights(b + i), sum);
  alignas(64) float lanes[lane];
  Isa::store(lanes, sum);
  for (std::size_t j = 0; i < n; ++i, ++j) lanes[j] = std::fma(a[i], widen(b[i]), lanes[j]);
  return lane_sum(lanes);
}

/// e^x to within 2 units in the last place for x in [-87, 88], clamped outside: 2^n times a
/// polynomial on
/// [-ln 2 / 2, ln 2 / 2] (the Taylor series to the seventh power), n found by adding 1.5 * 2^23.
inline __attribute__((always_inline)) float exponential(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = std::fma(x, 1.44269504088896341f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = std::fma(n, -0.693359375f, x);
  r = std::fma(n, 2.12194440e-4f, r);
  float p = 1.0f / 5040.0f;
  p = std::fma(p, r, 1.0f / 720.0f);
  p = std::fma(p, r, 1.0f / 120.0f);
  p = std::fma(p, r, 1.0f / 24.0f);
  p = std::fma(p, r, 1.0f / 6.0f);
  p = std::fma(p, r, 0.5f);
  p = std::fma(p, r, 1.0f);
  p = std::fma(p, r, 1.0f);
  const auto exponent = (std::bit_cast<std::int32_t>(shifted) - 0x4b400000 + 127) << 23;
  return p * std::bit_cast<float>(exponent);
}

template <class Isa>
void rms_norm(const float* input, const float* weight, float epsilon, float* output,
              std::size_t n) {
  const float mean = dot<Isa>(input, input, n) / static_cast<float>(n);
  const float scale = 1.0f / std::sqrt(mean + epsilon);
  for (std::size_t i = 0; i < n; ++i) output[i] = weight[i] * (input[i] * scale);
}

template <class Isa>
void silu_product(const float* gate, const float* up, float* output, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) output[i] = gate[i] / (1.0f + exponential(-gate[i])) * up[i];
}

template <class Isa>
void rotate(const float* cosines, const float* sines, float* heads, std::size_t n_heads,
            std::size_t head_dim) {
  const std::size_t half = head_dim / 2;
  for (std::size_t h = 0; h < n_heads; ++h) {
    float* low = heads + h * head_dim;
    float* high = low + half;
    for (std::size_t i = 0; i < half; ++i) {
      const float a = low[i];
      const float b = high[i];
      low[i] = std::fma(a, cosines[i], -(b * sines[i]));
      high[i] = std::fma(b, cosines[i], a * sines[i]);
    }
  }
}

template <class Isa>
float softmax_weights(const float* numbers, std::size_t n, float largest, float scale,
                      float* weights) {
  for (std::size_t i = 0; i < n; ++i) {
    const float x = (numbers[i] - largest) * scale;
    // By a mask, as a branch would keep compilers from vector instructions.
    const auto kept = 0u - std::uint32_t{x >= -87.0f};
    weights[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(exponential(x)) & kept);
  }
  alignas(64) float lanes[lane] = {};
  std::size_t i = 0;
  for (; i + lane <= n; i += lane)
    for (std::size_t j = 0; j < lane; ++j) lanes[j] += weights[i + j];
  for (std::size_t j = 0; i < n; ++i, ++j) lanes[j] += weights[i];
  return lane_sum(lanes);
}

template <class Isa>
void exact_weights(const float* numbers, std::size_t n, double largest, double temperature,
                   double* weights) {
  for (std::size_t i = 0; i < n; ++i) {
    const double x = (static_cast<double>(numbers[i]) - largest) / temperature;
    // Below the least the outcome is 0, whatever is made of it; what is no number stays none. By a mask, as a branch would
    // keep compilers from vector instructions.
    const auto kept = std::uint64_t{x < least_of_exact_exp} - 1;
    weights[i] = std::bit_cast<double>(std::bit_cast<std::uint64_t>(exact_exp_between(x)) & kept);
  }
}

}  // namespace ordermoe::model::bodies
