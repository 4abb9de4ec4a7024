#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "model/kernels/kernel_sets.hpp"
#include "model/kernels/kernels.hpp"
#include "test/model/fixture.hpp"
#include "test/support/seeds.hpp"

// bf16 weights by rows that are rounded to bf16.

namespace {

namespace om = ordermoe::model;
using fixture::numbers;
using fixture::same_bits;

float of_bits(std::uint32_t bits) {
  return std::bit_cast<float>(bits);
}
std::uint32_t bits_of(float number) {
  return std::bit_cast<std::uint32_t>(number);
}

float without_denormal(float number) {
  return std::abs(number) < std::numeric_limits<float>::min() ? std::copysign(0.0f, number)
                                                              : number;
}

/// a * b + c with zeros for denormal numbers, by another way than the kernels': in double, rounded
/// to odd, so that rounding it to fp32 is rounding the exact sum once.
float flushed_sum(float a, float b, float c) {
  a = without_denormal(a), b = without_denormal(b), c = without_denormal(c);
  const double product = static_cast<double>(a) * static_cast<double>(b), addend = c;
  const double sum = product + addend;
  if (!std::isfinite(sum) || sum == 0) return static_cast<float>(sum);
  const double of_product = sum - addend, of_addend = sum - of_product;
  const double rest = (product - of_product) + (addend - of_addend);
  auto bits = std::bit_cast<std::uint64_t>(sum);
  if (rest != 0 && bits % 2 == 0) bits += (rest > 0) == (sum > 0) ? 1 : -1;
  const double odd = std::bit_cast<double>(bits);
  // Tiny is what rounds, with as many digits as a normal number has, to less than the least of them.
  if (std::abs(odd) < 0x1p-126 - 0x1p-151) return std::copysign(0.0f, static_cast<float>(odd));
  return static_cast<float>(odd);
}

float to_bf16(float number) {
  if (std::isnan(number)) return number;
  if (std::isinf(number)) return number;
  number = without_denormal(number);
  const auto down = of_bits(bits_of(number) & 0xffff0000u);
  const auto up = of_bits((bits_of(number) & 0xffff0000u) + 0x10000u);
  // In double the distance to a number that is past the largest is finite.
  const double top = std::isinf(up) ? std::copysign(0x1p128, number) : up;
  const double below = std::abs(static_cast<double>(number) - down);
  const double above = std::abs(top - static_cast<double>(number));
  const bool even = (bits_of(down) >> 16) % 2 == 0;
  return below < above || (below == above && even) ? down : up;
}

/// An output as kernels.hpp defines it, with sum(a, b, c) for a * b + c.
template <class Sum>
float chain_by(const Sum& add, std::span<const float> row, std::span<const float> weights) {
  float sum = 0;
  const auto at = [](std::span<const float> from, std::size_t k) {
    return k < from.size() ? from[k] : 0.0f;
  };
  for (std::size_t k = 0; k < row.size(); k += 2) {
    sum = add(to_bf16(at(row, k + 1)), at(weights, k + 1), sum);
    sum = add(to_bf16(at(row, k)), at(weights, k), sum);
  }
  return std::isnan(sum) ? of_bits(0x7fc00000) : sum;
}

float chain(std::span<const float> row, std::span<const float> weights) {
  return chain_by(flushed_sum, row, weights);
}

struct matrix {
  om::packed_matrix packed;
  std::vector<float> row_major;
  std::vector<std::byte> bytes;
};

/// Of numbers that are bf16 already.
matrix make_matrix(std::size_t n_out, std::size_t n_in, std::vector<float> row_major) {
  matrix m;
  m.packed.layout = {n_out, n_in};
  m.packed.storage = om::weight_storage::bf16;
  m.packed.rows = om::row_precision::bf16;
  m.row_major = std::move(row_major);
  m.bytes.resize(m.packed.layout.bytes(om::weight_storage::bf16));
  om::pack(m.packed.layout, m.row_major, om::weight_storage::bf16, m.bytes);
  m.packed.data = m.bytes.data();
  return m;
}

matrix make_matrix(std::size_t n_out, std::size_t n_in, std::uint64_t seed) {
  auto drawn = numbers(n_out * n_in, seed);
  for (float& x : drawn) x = of_bits(bits_of(x) & 0xffff0000u);
  return make_matrix(n_out, n_in, std::move(drawn));
}

std::vector<std::uint32_t> round_rows(const om::kernel_set& set, const std::vector<float>& rows,
                                      std::size_t n_in, std::size_t n_rows) {
  const std::size_t words = (n_in + 1) / 2 * set.rounded_words;
  std::vector<std::uint32_t> rounded(n_rows * words, 0xdeadbeef);
  for (std::size_t i = 0; i < n_rows; ++i)
    set.round_row(&rows[i * n_in], n_in, &rounded[i * words]);
  return rounded;
}

std::vector<float> run(const om::kernel_set& set, const om::packed_matrix& weights,
                       const std::vector<float>& input, std::size_t n_rows) {
  std::vector<float> output(n_rows * weights.layout.n_out, NAN);
  const auto rows = round_rows(set, input, weights.layout.n_in, n_rows);
  set.linear_rounded(weights, rows.data(), output.data(), weights.layout.n_out, n_rows);
  return output;
}

// Outputs that fill no lane or no block, one and several blocks; odd numbers of inputs, and more
// than are taken at once.
constexpr std::size_t shapes[][2] = {{1, 1},    {5, 3},    {16, 7},    {17, 40},
                                     {64, 33},  {72, 40},  {128, 96},  {200, 57},
                                     {256, 64}, {330, 20}, {70, 1201}, {64, 1536}};

/// Bits of every kind: ordinary numbers, those whose products are about the least normal number,
/// denormal ones, the largest, infinities and what is no number.
std::vector<float> odd_numbers(std::size_t n, std::uint64_t seed, bool finite) {
  ordermoe::random_stream draws(seed);
  std::vector<float> drawn(n);
  for (float& x : drawn) {
    const auto bits = static_cast<std::uint32_t>(draws.below(std::uint64_t{1} << 32));
    const auto with_exponent = [&](std::uint32_t exponent) {
      return (bits & 0x807fffffu) | exponent << 23;
    };
    switch (draws.below(finite ? 5 : 7)) {
      case 0:
        x = of_bits(with_exponent(120 + bits % 16));
        break;
      case 1:
        x = of_bits(with_exponent(60 + bits % 8));
        break;
      case 2:
        x = of_bits(with_exponent(bits % 3));
        break;
      case 3:
        x = of_bits(bits & 0x80000000u);
        break;
      case 4:
        x = of_bits(with_exponent(250 + bits % 5));
        break;
      default:
        x = of_bits(bits % 16 == 0 ? with_exponent(255) : with_exponent(127));
    }
  }
  return drawn;
}

std::vector<float> upper_halves(std::vector<float> drawn) {
  for (float& x : drawn) x = of_bits(bits_of(x) & 0xffff0000u);
  return drawn;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kernels_rounded)

BOOST_AUTO_TEST_CASE(an_output_is_the_chain_over_pairs_the_odd_input_first) {
  for (const auto* set : om::available_kernels())
    for (const auto& [n_out, n_in] : shapes) {
      const auto m = make_matrix(n_out, n_in, 1);
      const auto input = numbers(3 * n_in, 2, 4.0);
      const auto output = run(*set, m.packed, input, 3);
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t o = 0; o < n_out; ++o) {
          const float sum = chain(std::span(input).subspan(i * n_in, n_in),
                                  std::span(m.row_major).subspan(o * n_in, n_in));
          BOOST_TEST_REQUIRE(same_bits(&sum, &output[i * n_out + o], 1),
                             set->name << " [" << n_out << ", " << n_in << "]");
        }
    }
}

BOOST_AUTO_TEST_CASE(numbers_of_every_kind_give_the_bits_of_the_definition_on_every_set) {
  for (const bool finite : {true, false})
    for (const auto& [n_out, n_in] : shapes) {
      const auto m =
          make_matrix(n_out, n_in, upper_halves(odd_numbers(n_out * n_in, 3 + finite, finite)));
      const auto input = odd_numbers(9 * n_in, 5, finite);
      std::vector<float> expected;
      for (std::size_t i = 0; i < 9; ++i)
        for (std::size_t o = 0; o < n_out; ++o)
          expected.push_back(chain(std::span(input).subspan(i * n_in, n_in),
                                   std::span(m.row_major).subspan(o * n_in, n_in)));
      for (const auto* set : om::available_kernels()) {
        const auto output = run(*set, m.packed, input, 9);
        BOOST_TEST(same_bits(expected.data(), output.data(), output.size()),
                   set->name << " [" << n_out << ", " << n_in << "]");
      }
    }
}

BOOST_AUTO_TEST_CASE(rows_are_rounded_to_the_nearest_and_ties_to_even) {
  auto input = odd_numbers(1001, 7, false);
  for (const std::uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x3f808001u, 0x7f7fffffu,
                                   0xff7f8000u, 0x7f7f7fffu, 0x007fffffu, 0x80000001u, 0x00800000u})
    input.push_back(of_bits(bits));
  for (const auto* set : om::available_kernels())
    for (const std::size_t n : {std::size_t{1}, std::size_t{2}, std::size_t{31}, input.size()}) {
      const auto rounded = round_rows(*set, input, n, 1);
      for (std::size_t k = 0; k < n + n % 2; ++k) {
        const std::uint32_t word = rounded[set->rounded_words == 2 ? k : k / 2];
        const std::uint32_t found = set->rounded_words == 2 ? word
                                    : k % 2 == 0            ? word << 16
                                                            : word & 0xffff0000u;
        const float expected = k < n ? to_bf16(input[k]) : 0.0f;
        if (std::isnan(expected))
          BOOST_TEST(std::isnan(of_bits(found)));
        else
          BOOST_TEST_REQUIRE(found == bits_of(expected), set->name << ": " << input[k]);
      }
    }
}

/// As many lanes, each a pair's two multiply-adds on a sum of any bits that fit fp32, against the definition.
BOOST_AUTO_TEST_CASE(lanes_by_the_million_are_two_flushed_multiply_adds_the_odd_input_first) {
  constexpr std::size_t n_in = 6, n_rows = 32;
  const std::uint64_t n_lanes = ordermoe::test::count(1'000'000);
  const auto sets = om::available_kernels();
  // Lanes where keeping denormal numbers would have given another outcome.
  std::uint64_t done = 0, told = 0;
  for (std::uint64_t seed = 1; done < n_lanes; ++seed, done += 64 * n_rows) {
    ordermoe::random_stream draws(seed);
    // The first four weights of an output make up the sum that the last pair meets: numbers of
    // eight binary digits, one below the other.
    const bool tiny = seed % 2 == 0;
    std::vector<float> weights(64 * n_in), input = odd_numbers(n_rows * n_in, seed, seed % 8 != 0);
    const auto last_pair = upper_halves(odd_numbers(64 * 2, seed + 1, seed % 8 != 0));
    for (std::size_t o = 0; o < 64; ++o) {
      const auto sign = draws.below(2) == 0 ? 1.0f : -1.0f;
      const int top =
          tiny ? -54 - static_cast<int>(draws.below(12)) : static_cast<int>(draws.below(24)) - 20;
      for (std::size_t part = 0; part < 3; ++part)
        weights[o * n_in + part] = sign * std::ldexp(static_cast<float>(128 + draws.below(128)),
                                                     top - 7 - 8 * static_cast<int>(part));
      weights[o * n_in + 4] = last_pair[2 * o];
      weights[o * n_in + 5] = last_pair[2 * o + 1];
    }
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t k = 0; k < 4; ++k)
        input[i * n_in + k] = k == 3 ? 0.0f : tiny ? 0x1p-60f : 1.0f;
    const auto m = make_matrix(64, n_in, weights);
    std::vector<float> expected;
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t o = 0; o < 64; ++o) {
        const auto row = std::span(input).subspan(i * n_in, n_in);
        const auto column = std::span(weights).subspan(o * n_in, n_in);
        expected.push_back(chain(row, column));
        const float kept =
            chain_by([](float a, float b, float c) { return std::fma(a, b, c); }, row, column);
        told += same_bits(&kept, &expected.back(), 1) ? 0 : 1;
      }
    for (const auto* set : sets) {
      const auto output = run(*set, m.packed, input, n_rows);
      BOOST_TEST_REQUIRE(same_bits(expected.data(), output.data(), output.size()),
                         set->name << ", seed " << seed);
    }
  }
  BOOST_TEST_MESSAGE(done << " lanes, " << told << " of them other ones with denormal numbers");
  BOOST_TEST(told > done / 100);
}

BOOST_AUTO_TEST_CASE(a_row_has_the_same_bits_alone_and_in_every_batch) {
  for (const auto* set : om::available_kernels())
    for (const auto& [n_out, n_in] : shapes) {
      const auto m = make_matrix(n_out, n_in, 11);
      const auto input = numbers(40 * n_in, 12);
      std::vector<float> alone;
      for (std::size_t i = 0; i < 40; ++i) {
        const auto one = run(*set, m.packed, {&input[i * n_in], &input[(i + 1) * n_in]}, 1);
        alone.insert(alone.end(), one.begin(), one.end());
      }
      for (std::size_t n_rows = 2; n_rows <= 40; ++n_rows) {
        const auto output = run(*set, m.packed, input, n_rows);
        BOOST_REQUIRE(same_bits(alone.data(), output.data(), output.size()));
      }
    }
}

BOOST_AUTO_TEST_CASE(what_is_tiny_is_judged_after_rounding_to_the_digits_of_a_normal_number) {
  // 2^-126 less some quarters of the step to the next number below, were there one as fine.
  constexpr std::pair<float, bool> quarters[] = {{1, true},  {2, true},  {3, false},
                                                 {4, false}, {5, false}, {8, false}};
  for (const auto& [n, stays] : quarters)
    for (const float sign : {1.0f, -1.0f}) {
      const auto m = make_matrix(1, 4, {sign * 0x1p-60f, 0, -sign * n * 0x1p-80f, 0});
      const std::vector<float> input{0x1p-66f, 0, 0x1p-72f, 0};
      const float expected = std::copysign(stays ? 0x1p-126f : 0.0f, sign);
      for (const auto* set : om::available_kernels()) {
        const auto output = run(*set, m.packed, input, 1);
        BOOST_TEST(same_bits(&expected, output.data(), 1), set->name << ": " << sign * n);
      }
    }
}

namespace {

/// The portable set's steps and every set's expert() agree.
void check_expert(const matrix& gate, const matrix& up, const matrix& down,
                  const std::vector<float>& input, std::size_t n_rows) {
  const std::size_t width = down.packed.layout.n_out, inner = down.packed.layout.n_in;
  const auto& portable = om::portable_kernels();
  const auto gates = run(portable, gate.packed, input, n_rows);
  const auto ups = run(portable, up.packed, input, n_rows);
  std::vector<float> units(n_rows * inner);
  portable.silu_product(gates.data(), ups.data(), units.data(), units.size());
  const auto expected = run(portable, down.packed, units, n_rows);
  const om::packed_expert expert{gate.packed, up.packed, down.packed};
  for (const auto* set : om::available_kernels()) {
    std::vector<std::byte> scratch(om::expert_scratch(expert, n_rows) + 64);
    void* place = scratch.data();
    std::size_t left = scratch.size();
    std::align(64, left - 64, place, left);
    std::vector<float> output(n_rows * width, NAN);
    set->expert(expert, input.data(), output.data(), n_rows, place);
    BOOST_TEST(same_bits(expected.data(), output.data(), output.size()),
               set->name << " [" << inner << ", " << width << "], " << n_rows << " rows");
  }
}

constexpr std::pair<std::size_t, std::size_t> expert_shapes[] = {{64, 33}, {200, 57}};

}  // namespace

BOOST_AUTO_TEST_CASE(an_expert_of_numbers_of_every_kind_has_the_bits_of_its_steps_on_every_set) {
  for (const bool finite : {true, false})
    for (const auto& [inner, width] : expert_shapes)
      for (const std::size_t n_rows : {std::size_t{1}, std::size_t{7}}) {
        const auto drawn = [&](std::size_t n_out, std::size_t n_in, std::uint64_t seed) {
          return make_matrix(n_out, n_in, upper_halves(odd_numbers(n_out * n_in, seed, finite)));
        };
        check_expert(drawn(inner, width, 21), drawn(inner, width, 22), drawn(width, inner, 23),
                     odd_numbers(n_rows * width, 24, finite), n_rows);
      }
}

BOOST_AUTO_TEST_CASE(an_expert_whose_gates_are_about_the_least_normal_number_flushes_them) {
  // Gates of 2^-126 and less meet units of 2^57: what is kept of them is seen in the outputs.
  const auto scaled = [](std::vector<float> drawn, int exponent) {
    for (float& x : drawn) x = std::ldexp(x, exponent);
    return drawn;
  };
  for (const auto& [inner, width] : expert_shapes)
    for (const std::size_t n_rows : {std::size_t{1}, std::size_t{7}}) {
      const auto drawn = [&](std::size_t n_out, std::size_t n_in, std::uint64_t seed,
                             int exponent) {
        return make_matrix(n_out, n_in,
                           upper_halves(scaled(numbers(n_out * n_in, seed), exponent)));
      };
      check_expert(drawn(inner, width, 31, -64), drawn(inner, width, 32, 120),
                   drawn(width, inner, 33, 0), scaled(numbers(n_rows * width, 34), -63), n_rows);
    }
}

BOOST_AUTO_TEST_CASE(products_of_rows_as_they_are_stay_apart) {
  // The same weights, by rows that bf16 does not hold: another outcome, near by.
  const auto m = make_matrix(128, 96, 13);
  const auto input = numbers(96, 14);
  auto as_they_are = m.packed;
  as_they_are.rows = om::row_precision::fp32;
  std::vector<float> exact(128);
  om::kernels().linear(as_they_are, input.data(), 96, exact.data(), 128, 1);
  const auto rounded = run(om::kernels(), m.packed, input, 1);
  BOOST_TEST(!same_bits(exact.data(), rounded.data(), 128));
  for (std::size_t o = 0; o < 128; ++o) {
    double size = 0;
    for (std::size_t k = 0; k < 96; ++k)
      size += std::abs(static_cast<double>(input[k]) * m.row_major[o * 96 + k]);
    // Rounding to eight digits is off by 2^-9 of an input at most; the sums' own roundings are far less.
    BOOST_TEST(std::abs(exact[o] - rounded[o]) <= 0x1.01p-9 * size);
  }
}

BOOST_AUTO_TEST_CASE(denormal_numbers_are_as_before_once_a_product_is_done) {
  const auto m = make_matrix(64, 32, 15);
  const auto input = numbers(32, 16);
  for (const auto* set : om::available_kernels()) {
    static_cast<void>(run(*set, m.packed, input, 1));
    constexpr float least = std::numeric_limits<float>::min();
    const volatile float divided = least;
    const volatile float half = divided / 2;
    const float found = half, sum = half + half;
    BOOST_TEST(found > 0.0f, set->name);
    BOOST_TEST(sum == least, set->name);
  }
}

namespace {

/// What an instruction set might do instead: all even inputs of a pair first.
void even_first(const om::packed_matrix& weights, const std::uint32_t* input, float* output,
                std::size_t output_stride, std::size_t n_rows) {
  auto swapped = om::unpack(weights);
  const auto& layout = weights.layout;
  for (std::size_t at = 0; at < swapped.size(); at += 2) std::swap(swapped[at], swapped[at + 1]);
  const auto m = make_matrix(layout.n_out, layout.n_in, swapped);
  std::vector<std::uint32_t> rows(input, input + n_rows * layout.n_in);
  for (std::size_t at = 0; at < rows.size(); at += 2) std::swap(rows[at], rows[at + 1]);
  om::portable_kernels().linear_rounded(m.packed, rows.data(), output, output_stride, n_rows);
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_set_that_computes_otherwise_is_told_from_one_that_computes_as_defined) {
  for (const auto* set : om::available_kernels())
    BOOST_TEST(om::rounds_as_defined(*set), set->name);
#if defined(__x86_64__)
  // It is left out where it does not; that no processor known does otherwise is seen here.
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni"))
    BOOST_TEST(om::rounds_as_defined(om::avx512_bf16_kernels()));
#endif
  auto other = om::portable_kernels();
  other.linear_rounded = even_first;
  BOOST_TEST(!om::rounds_as_defined(other));
  // Without zeros for denormal numbers, as multiply-adds are on their own.
  other.linear_rounded = [](const om::packed_matrix& weights, const std::uint32_t* input,
                            float* output, std::size_t output_stride, std::size_t n_rows) {
    const auto numbers = om::unpack(weights);
    const std::size_t n_in = weights.layout.n_in;
    for (std::size_t i = 0; i < n_rows; ++i)
      for (std::size_t o = 0; o < weights.layout.n_out; ++o) {
        float sum = 0;
        for (std::size_t k = 0; k < n_in; ++k)
          sum = std::fma(of_bits(input[i * n_in + (k ^ 1)]), numbers[o * n_in + (k ^ 1)], sum);
        output[i * output_stride + o] = std::isnan(sum) ? of_bits(0x7fc00000) : sum;
      }
  };
  BOOST_TEST(!om::rounds_as_defined(other));
}

BOOST_AUTO_TEST_SUITE_END()
