#include <algorithm>
#include <bit>
#include <cmath>

#include "model/expert_weights.hpp"
#include "model/kernels/kernels.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::numbers;
using fixture::same_bits;

constexpr om::weight_storage quantised_storages[] = {om::weight_storage::int8,
                                                     om::weight_storage::int4};
/// A storage and what rows are before it.
struct form {
  om::weight_storage storage;
  om::row_precision rows;
  constexpr form(om::weight_storage kept, om::row_precision before = om::row_precision::fp32)
      : storage(kept), rows(before) {}
};
constexpr form every_form[] = {om::weight_storage::fp32,
                               om::weight_storage::bf16,
                               {om::weight_storage::bf16, om::row_precision::bf16},
                               om::weight_storage::int8,
                               om::weight_storage::int4};

// Outputs that fill no lane or no block, one and several blocks, inputs that fill no group.
constexpr std::size_t shapes[][2] = {{1, 1},   {5, 3},    {16, 32},  {17, 40},   {64, 33},
                                     {72, 96}, {128, 64}, {200, 57}, {256, 160}, {330, 20}};

struct matrix {
  om::packed_matrix packed;
  std::vector<float> row_major;
  std::vector<std::byte> bytes;
};

matrix make_matrix(std::size_t n_out, std::size_t n_in, form kept, std::uint64_t seed) {
  matrix m;
  const auto storage = kept.storage;
  m.packed.layout = {n_out, n_in};
  m.packed.storage = storage;
  m.packed.rows = kept.rows;
  m.row_major = numbers(n_out * n_in, seed);
  m.bytes.resize(m.packed.layout.bytes(storage));
  om::pack(m.packed.layout, m.row_major, storage, m.bytes);
  m.packed.data = m.bytes.data();
  return m;
}

std::vector<om::quantised_group> quantise(const om::kernel_set& set, const std::vector<float>& rows,
                                          std::size_t n_in, std::size_t n_rows) {
  const std::size_t stride = (n_in + 31) / 32;
  std::vector<om::quantised_group> groups(n_rows * stride);
  for (std::size_t i = 0; i < n_rows; ++i) set.quantise(&rows[i * n_in], n_in, &groups[i * stride]);
  return groups;
}

std::vector<float> run(const om::kernel_set& set, const om::packed_matrix& weights,
                       const std::vector<float>& input, std::size_t n_rows) {
  std::vector<float> output(n_rows * weights.layout.n_out, NAN);
  const auto groups = quantise(set, input, weights.layout.n_in, n_rows);
  set.linear_quantised(weights, groups.data(), output.data(), weights.layout.n_out, n_rows);
  return output;
}

struct expert {
  matrix gate, up, down;
  om::packed_expert packed() const { return {gate.packed, up.packed, down.packed}; }
};

expert make_expert(std::size_t width, std::size_t inner, form wide, form down, std::uint64_t seed) {
  return {make_matrix(inner, width, wide, seed), make_matrix(inner, width, wide, seed + 1),
          make_matrix(width, inner, down, seed + 2)};
}

std::vector<float> run(const om::kernel_set& set, const om::packed_expert& weights,
                       const std::vector<float>& input, std::size_t n_rows) {
  std::vector<float> output(input.size(), NAN);
  const std::size_t room = om::expert_scratch(weights, n_rows);
  const std::unique_ptr<std::byte, void (*)(void*)> scratch(
      static_cast<std::byte*>(std::aligned_alloc(64, (room + 63) / 64 * 64)), &std::free);
  set.expert(weights, input.data(), output.data(), n_rows, scratch.get());
  return output;
}

std::vector<float> product(const om::kernel_set& set, const om::packed_matrix& weights,
                           const std::vector<float>& input, std::size_t n_rows) {
  if (om::quantised(weights.storage)) return run(set, weights, input, n_rows);
  std::vector<float> output(n_rows * weights.layout.n_out, NAN);
  if (om::rounds_rows(weights)) {
    const std::size_t n_in = weights.layout.n_in,
                      words = weights.layout.n_pairs() * set.rounded_words;
    std::vector<std::uint32_t> rows(n_rows * words);
    for (std::size_t i = 0; i < n_rows; ++i)
      set.round_row(&input[i * n_in], n_in, &rows[i * words]);
    set.linear_rounded(weights, rows.data(), output.data(), weights.layout.n_out, n_rows);
    return output;
  }
  set.linear(weights, input.data(), weights.layout.n_in, output.data(), weights.layout.n_out,
             n_rows);
  return output;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kernels_quantised)

BOOST_AUTO_TEST_CASE(an_output_is_the_chain_over_the_groups_of_exact_integers_and_scales) {
  // From the definition in kernels.hpp alone: integers of weights and scales are got back from
  // unpack(), which is checked against the original weights below.
  for (const auto storage : quantised_storages)
    for (const auto& [n_out, n_in] : shapes) {
      const auto m = make_matrix(n_out, n_in, storage, 1);
      const auto weights = om::unpack(m.packed);
      const auto input = numbers(3 * n_in, 2, 4.0);
      const auto output = run(om::kernels(), m.packed, input, 3);
      const auto groups = quantise(om::kernels(), input, n_in, 3);
      const std::size_t n_groups = m.packed.layout.n_groups();
      for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t o = 0; o < n_out; ++o) {
          double sum = 0;
          double size = 0;
          for (std::size_t k = 0; k < n_in; ++k) {
            const auto& group = groups[i * n_groups + k / 32];
            const double term =
                static_cast<double>(weights[o * n_in + k]) * group.scale * group.values[k % 32];
            sum += term;
            size += std::abs(term);
          }
          // Two roundings a group and two of the scales, of 2^-24 each.
          const double allowed = (2.0 * static_cast<double>(n_groups) + 4) * 0x1p-24 * size;
          BOOST_REQUIRE_SMALL(output[i * n_out + o] - sum, allowed + 1e-30);
        }
    }
}

BOOST_AUTO_TEST_CASE(every_instruction_set_gives_the_bits_of_the_portable_one) {
  const auto sets = om::available_kernels();
  const auto& portable = *sets.front();
  for (const auto* set : sets) BOOST_TEST_CONTEXT(set->name) {
      for (const auto& [n_out, n_in] : shapes) {
        const auto input = numbers(13 * n_in, 4, 100.0);
        const auto expected = quantise(portable, input, n_in, 13);
        const auto groups = quantise(*set, input, n_in, 13);
        BOOST_TEST(std::memcmp(expected.data(), groups.data(),
                               groups.size() * sizeof(om::quantised_group)) == 0);
        for (const auto storage : quantised_storages) {
          const auto m = make_matrix(n_out, n_in, storage, 3);
          for (const std::size_t n_rows : {1, 13}) {
            const auto wanted = run(portable, m.packed, input, n_rows);
            const auto output = run(*set, m.packed, input, n_rows);
            BOOST_TEST(same_bits(wanted.data(), output.data(), output.size()));
          }
        }
        for (const auto wide : every_form)
          for (const auto down : every_form) {
            const auto e = make_expert(n_in, n_out, wide, down, 5);
            for (const std::size_t n_rows : {1, 2, 11}) {
              const std::vector<float> rows(input.begin(),
                                            input.begin() + static_cast<long>(n_rows * n_in));
              const auto wanted = run(portable, e.packed(), rows, n_rows);
              const auto output = run(*set, e.packed(), rows, n_rows);
              BOOST_TEST(same_bits(wanted.data(), output.data(), output.size()));
            }
          }
      }
    }
}

BOOST_AUTO_TEST_CASE(sums_of_the_largest_integers_are_exact_in_every_instruction_set) {
  // Weights of +-127 against inputs of +-127: pairs of products pass what 16 bits hold.
  constexpr std::size_t n_in = 96;
  for (const float sign : {1.0f, -1.0f}) {
    std::vector<float> row_major(64 * n_in, 127.0f * sign), input(n_in, 127.0f);
    om::packed_matrix weights{{64, n_in}, om::weight_storage::int8, nullptr};
    std::vector<std::byte> bytes(weights.layout.bytes(weights.storage));
    om::pack(weights.layout, row_major, weights.storage, bytes);
    weights.data = bytes.data();
    for (const auto* set : om::available_kernels())
      for (const float x : run(*set, weights, input, 1))
        BOOST_TEST(x == sign * 127.0f * 127.0f * static_cast<float>(n_in));
  }
}

BOOST_AUTO_TEST_CASE(sums_of_the_largest_nibbles_are_exact_in_every_instruction_set) {
  // Where halves of a lane's four inputs are added apart, in 16 bits, these are what they come to at most, and what they pass on the way.
  constexpr std::size_t n_in = 96, n_out = 64, group_bytes = n_out * 18;
  om::packed_matrix weights{{n_out, n_in}, om::weight_storage::int4, nullptr};
  std::vector<std::byte> bytes(weights.layout.bytes(weights.storage));
  BOOST_REQUIRE(bytes.size() == n_in / 32 * group_bytes);
  const auto all_of = [&](std::uint32_t eight_nibbles) {
    constexpr std::uint16_t one = 0x3f80;
    for (std::size_t g = 0; g < bytes.size(); g += group_bytes) {
      for (std::size_t i = 0; i < n_out * 16; i += 4) std::memcpy(&bytes[g + i], &eight_nibbles, 4);
      for (std::size_t i = n_out * 16; i < group_bytes; i += 2) std::memcpy(&bytes[g + i], &one, 2);
    }
    weights.data = bytes.data();
  };
  for (const std::uint32_t nibbles :
       {0x00000000u, 0xffffffffu, 0x0000ffffu, 0xffff0000u, 0x0f0f0f0fu, 0xf0f0f0f0u, 0x00ff00ffu})
    for (const std::uint32_t negative : {0u, ~0u, 0x33333333u, 0xccccccccu, 0xffffu, 0x55555555u}) {
      all_of(nibbles);
      const auto back = om::unpack(weights);
      std::vector<float> input(n_in);
      float expected = 0;
      for (std::size_t k = 0; k < n_in; ++k) {
        input[k] = (negative >> (k % 32) & 1) != 0 ? -127.0f : 127.0f;
        expected += back[k] * input[k];
      }
      for (const auto* set : om::available_kernels())
        for (const float x : run(*set, weights, input, 1)) BOOST_REQUIRE(x == expected);
    }
}

BOOST_AUTO_TEST_CASE(a_row_has_the_same_bits_alone_and_in_every_batch) {
  // The last one has more inputs than a tile goes over at once, in every storage.
  for (const auto* set : om::available_kernels())
    for (const auto storage : every_form)
      for (const auto& [n_out, n_in] :
           {std::pair<std::size_t, std::size_t>{200, 57}, {128, 96}, {72, 2100}}) {
        const auto m = make_matrix(n_out, n_in, storage, 11);
        const auto e = make_expert(n_in, n_out, storage, storage, 12);
        const auto input = numbers(64 * n_in, 13);
        std::vector<float> alone, expert_alone;
        for (std::size_t i = 0; i < 64; ++i) {
          const std::vector<float> row(input.begin() + static_cast<long>(i * n_in),
                                       input.begin() + static_cast<long>((i + 1) * n_in));
          const auto one = product(*set, m.packed, row, 1);
          alone.insert(alone.end(), one.begin(), one.end());
          const auto two = run(*set, e.packed(), row, 1);
          expert_alone.insert(expert_alone.end(), two.begin(), two.end());
        }
        for (std::size_t n_rows = 2; n_rows <= 64; n_rows += set->name[0] == 'p' ? 9 : 1) {
          const std::vector<float> rows(input.begin(),
                                        input.begin() + static_cast<long>(n_rows * n_in));
          const auto together = product(*set, m.packed, rows, n_rows);
          BOOST_REQUIRE(same_bits(alone.data(), together.data(), together.size()));
          const auto expert_together = run(*set, e.packed(), rows, n_rows);
          BOOST_REQUIRE(
              same_bits(expert_alone.data(), expert_together.data(), expert_together.size()));
        }
      }
}

BOOST_AUTO_TEST_CASE(an_expert_in_one_pass_has_the_bits_of_its_steps) {
  for (const auto* set : om::available_kernels())
    for (const auto storage : every_form)
      for (const auto& [inner, width] : shapes)
        for (const std::size_t n_rows : {1, 5}) {
          const auto e = make_expert(width, inner, storage, storage, 21);
          const auto input = numbers(n_rows * width, 22, 3.0);
          const auto gate = product(*set, e.gate.packed, input, n_rows);
          const auto up = product(*set, e.up.packed, input, n_rows);
          std::vector<float> between(n_rows * inner);
          set->silu_product(gate.data(), up.data(), between.data(), between.size());
          const auto expected = product(*set, e.down.packed, between, n_rows);
          const auto output = run(*set, e.packed(), input, n_rows);
          BOOST_REQUIRE(same_bits(expected.data(), output.data(), output.size()));
          // Without a gate.
          auto plain = e.packed();
          plain.gate.data = nullptr;
          for (std::size_t i = 0; i < between.size(); ++i) between[i] = std::max(up[i], 0.0f);
          const auto wanted = product(*set, e.down.packed, between, n_rows);
          const auto made = run(*set, plain, input, n_rows);
          BOOST_REQUIRE(same_bits(wanted.data(), made.data(), made.size()));
        }
}

BOOST_AUTO_TEST_CASE(a_quantised_row_is_within_half_a_step_and_sums_its_values) {
  for (const double scale : {1e-6, 1.0, 1e6}) {
    const auto row = numbers(77, 31, scale);
    std::vector<om::quantised_group> groups(3);
    om::kernels().quantise(row.data(), row.size(), groups.data());
    for (std::size_t g = 0; g < 3; ++g) {
      std::int32_t sum = 0;
      float largest = 0;
      for (std::size_t i = 0; i < 32; ++i) {
        const float x = 32 * g + i < row.size() ? row[32 * g + i] : 0.0f;
        largest = std::max(largest, std::abs(x));
        sum += groups[g].values[i];
        BOOST_TEST(std::abs(x - groups[g].scale * groups[g].values[i]) <=
                   0.5f * groups[g].scale * 1.0001f);
      }
      BOOST_TEST(groups[g].sum == sum);
      BOOST_TEST(groups[g].scale == largest / 127.0f);
    }
  }
}

BOOST_AUTO_TEST_CASE(zeros_stay_zeros_and_what_is_not_finite_is_not_hidden) {
  for (const auto* set : om::available_kernels())
    for (const auto storage : quantised_storages) {
      const auto m = make_matrix(20, 64, storage, 41);
      for (const float x : run(*set, m.packed, std::vector<float>(64, 0.0f), 1))
        BOOST_TEST(x == 0.0f);
      for (const float x : run(*set, m.packed, std::vector<float>(64, 1e-33f), 1))
        BOOST_TEST(x == 0.0f);
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        std::vector<float> row(64, 1.0f);
        row[40] = bad;
        for (const float x : run(*set, m.packed, row, 1)) BOOST_TEST(!std::isfinite(x));
      }
      const matrix nothing = [&] {
        matrix zeros = make_matrix(20, 64, storage, 42);
        std::ranges::fill(zeros.row_major, 0.0f);
        om::pack(zeros.packed.layout, zeros.row_major, storage, zeros.bytes);
        zeros.packed.data = zeros.bytes.data();
        return zeros;
      }();
      for (const float x : run(*set, nothing.packed, numbers(64, 43), 1)) BOOST_TEST(x == 0.0f);
    }
}

BOOST_AUTO_TEST_CASE(packed_weights_are_within_half_a_step_of_the_original) {
  for (const auto& [n_out, n_in] : shapes) {
    const auto eight = make_matrix(n_out, n_in, om::weight_storage::int8, 51);
    const auto eight_back = om::unpack(eight.packed);
    for (std::size_t o = 0; o < n_out; ++o) {
      const auto row = std::span(eight.row_major).subspan(o * n_in, n_in);
      float largest = 0;
      for (const float x : row) largest = std::max(largest, std::abs(x));
      for (std::size_t k = 0; k < n_in; ++k)
        BOOST_REQUIRE_SMALL(row[k] - eight_back[o * n_in + k], 0.5f * largest / 127 * 1.0001f);
    }
    // Four bits: steps of an eighth of the largest magnitude, the plain choice, are
    // never better than those that were searched for.
    const auto four = make_matrix(n_out, n_in, om::weight_storage::int4, 51);
    const auto four_back = om::unpack(four.packed);
    for (std::size_t o = 0; o < n_out; ++o)
      for (std::size_t start = 0; start < n_in; start += 32) {
        const std::size_t end = std::min(n_in, start + 32);
        float extreme = 0;
        for (std::size_t k = start; k < end; ++k)
          if (std::abs(four.row_major[o * n_in + k]) > std::abs(extreme))
            extreme = four.row_major[o * n_in + k];
        const float step = extreme / -8;
        double plain = 0, searched = 0;
        for (std::size_t k = start; k < end; ++k) {
          const float x = four.row_major[o * n_in + k];
          const double a = x - step * std::clamp(std::nearbyint(x / step), -8.0f, 7.0f);
          const double b = static_cast<double>(x) - four_back[o * n_in + k];
          plain += a * a;
          searched += b * b;
        }
        // Rounding the scale to bf16 may move a weight by 2^-8 of the largest.
        const double rounding = 0x1p-8 * std::abs(extreme);
        BOOST_REQUIRE_LE(searched, plain + static_cast<double>(end - start) * rounding * rounding);
      }
  }
}

BOOST_AUTO_TEST_CASE(four_bits_of_normal_weights_lose_less_than_a_hundredth_of_their_squares) {
  ordermoe::random_stream random(61);
  constexpr std::size_t n_out = 64, n_in = 512;
  std::vector<float> row_major(n_out * n_in);
  for (float& x : row_major) {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += random.unit();
    x = static_cast<float>(0.02 * sum);
  }
  om::packed_matrix weights{{n_out, n_in}, om::weight_storage::int4, nullptr};
  std::vector<std::byte> bytes(weights.layout.bytes(weights.storage));
  BOOST_TEST(bytes.size() == n_out * n_in * 9 / 16);
  om::pack(weights.layout, row_major, weights.storage, bytes);
  weights.data = bytes.data();
  const auto back = om::unpack(weights);
  double lost = 0, all = 0;
  for (std::size_t i = 0; i < back.size(); ++i) {
    lost += std::pow(static_cast<double>(row_major[i]) - back[i], 2);
    all += std::pow(static_cast<double>(row_major[i]), 2);
  }
  BOOST_TEST_MESSAGE("lost share of squares: " << lost / all);
  BOOST_TEST(lost / all < 0.01);
}

BOOST_AUTO_TEST_SUITE_END()
