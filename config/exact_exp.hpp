#pragma once

#include <bit>
#include <cstdint>
#include <limits>

/// The exponential where a decision or a sample hangs on its last bit. libm's differs in the last bit between processors with
/// and without fused multiply-add; this one is made of additions and products that every IEEE 754 processor rounds alike.
namespace ordermoe {

/// The least x for which exact_exp() is not 0.
constexpr double least_of_exact_exp = -708.3964185322641;

/// exact_exp() from the least number of it to the largest. Inlined wherever it is called, as vector instructions go.
[[gnu::always_inline]] inline double exact_exp_between(double x) {
  // x = k ln 2 + r with |r| <= ln 2 / 2; the first part of ln 2 has so few bits that k times it is exact.
  constexpr double log2_e = 0x1.71547652b82fep+0, to_integer = 0x1.8p+52;
  constexpr double ln2_first = 0x1.62e42fefa0000p-1, ln2_rest = 0x1.cf79abc9e3b39p-40;
  const double shifted = x * log2_e + to_integer;
  const double k = shifted - to_integer;
  const double r = (x - k * ln2_first) - k * ln2_rest;
  // The series up to r^13 / 13!, what follows being below 2^-57; in pairs, which do not wait for each other.
  const double r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
  const double a = 0x1p-1 + r * 0x1.5555555555555p-3;                  // 1/2!, 1/3!
  const double b = 0x1.5555555555555p-5 + r * 0x1.1111111111111p-7;    // 1/4!, 1/5!
  const double c = 0x1.6c16c16c16c17p-10 + r * 0x1.a01a01a01a01ap-13;  // 1/6!, 1/7!
  const double d = 0x1.a01a01a01a01ap-16 + r * 0x1.71de3a556c734p-19;  // 1/8!, 1/9!
  const double e = 0x1.27e4fb7789f5cp-22 + r * 0x1.ae64567f544e4p-26;  // 1/10!, 1/11!
  const double f = 0x1.1eed8eff8d898p-29 + r * 0x1.6124613a86d09p-33;  // 1/12!, 1/13!
  const double tail = (a + r2 * b) + r4 * (c + r2 * d) + r8 * (e + r2 * f);
  const double y = 1 + (r + r2 * tail);
  // k stands in the last bits of what it was found by, and goes to the exponent: the result is a normal number.
  const auto bits = std::bit_cast<std::uint64_t>(shifted) << 52;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(y) + bits);
}

/// e^x, within 1 ulp where it is a normal number. Infinity above the largest, 0 below the least one that is normal (there
/// nothing that is summed with others is left of it), a NaN of a NaN.
inline double exact_exp(double x) {
  constexpr double largest = 709.782712893384;
  if (!(x <= largest)) return x != x ? x : std::numeric_limits<double>::infinity();
  return x < least_of_exact_exp ? 0 : exact_exp_between(x);
}

}  // namespace ordermoe
