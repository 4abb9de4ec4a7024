#include "model/kernels/kernels.hpp"

#include <cmath>
#include <deque>
#include <functional>
#include <type_traits>

#include "config/exact_exp.hpp"
#include "model/kv_cache.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::numbers;
using fixture::same_bits;

struct matrix {
  om::packed_layout layout;
  std::vector<float> row_major;
  std::vector<std::byte> wide, narrow;

  om::packed_matrix fp32() const { return {layout, om::weight_storage::fp32, wide.data()}; }
  om::packed_matrix bf16() const { return {layout, om::weight_storage::bf16, narrow.data()}; }
};

matrix make_matrix(std::size_t n_out, std::size_t n_in, std::uint64_t seed) {
  matrix m;
  m.layout = {n_out, n_in};
  m.row_major = numbers(n_out * n_in, seed);
  for (float& x : m.row_major) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    bits &= 0xffff0000u;
    std::memcpy(&x, &bits, 4);
  }
  m.wide.resize(m.layout.bytes(om::weight_storage::fp32));
  m.narrow.resize(m.layout.bytes(om::weight_storage::bf16));
  om::pack(m.layout, m.row_major, om::weight_storage::fp32, m.wide);
  om::pack(m.layout, m.row_major, om::weight_storage::bf16, m.narrow);
  return m;
}

constexpr std::size_t shapes[][2] = {{1, 1},   {5, 3},    {16, 7},   {17, 40},  {64, 33},
                                     {72, 40}, {128, 96}, {200, 57}, {256, 64}, {330, 20}};

std::vector<float> run(const om::kernel_set& set, const om::packed_matrix& weights,
                       const std::vector<float>& input, std::size_t n_rows) {
  std::vector<float> output(n_rows * weights.layout.n_out, NAN);
  set.linear(weights, input.data(), weights.layout.n_in, output.data(), weights.layout.n_out,
             n_rows);
  return output;
}

/// n_rows rows of `row_size` numbers that lie one after the other.
template <class Number>
om::attention_view single_page(const std::vector<Number>& rows, std::size_t n_rows,
                               std::size_t row_size) {
  static std::deque<const void*> pages;
  pages.push_back(rows.data());
  om::attention_view view;
  view.pages = &pages.back();
  view.precision = std::is_same_v<Number, float> ? om::kv_precision::fp32 : om::kv_precision::bf16;
  view.n_rows = n_rows;
  view.row_size = row_size;
  return view;
}

/// The outcome of one query row, for all heads.
void attend(const om::kernel_set& set, const om::attention_shape& shape,
            const std::vector<float>& query, const om::attention_view& view,
            std::vector<float>& output) {
  std::vector<float> scratch(om::attention_scratch(view.n_rows));
  const om::attention_query row{query.data(), output.data(), view};
  set.attention(shape, 0, shape.n_kv_heads, {&row, 1}, scratch.data());
}

/// Query rows of one sequence.
struct some_queries {
  om::attention_shape shape;
  std::vector<float> queries, bias;
  std::size_t bias_size;

  /// Of the first n, in one call or in one for each: the last ones attend to fewer rows than those before them.
  std::vector<float> attend(const om::kernel_set& set, const om::kv_cache& cache, std::size_t n,
                            std::size_t fewest, bool biased, bool together) const {
    const auto rows_of = [&](std::size_t i) { return fewest + (i < 6 ? i : 11 - i); };
    return attend(set, cache, n, rows_of, biased, together);
  }
  /// Query i attends to rows_of(i) rows.
  std::vector<float> attend(const om::kernel_set& set, const om::kv_cache& cache, std::size_t n,
                            const std::function<std::size_t(std::size_t)>& rows_of, bool biased,
                            bool together) const {
    const std::size_t width = shape.n_heads * shape.head_dim;
    std::vector<float> output(n * width), scratch(om::attention_scratch(bias_size), NAN);
    std::vector<om::attention_query> rows;
    for (std::size_t i = 0; i < n; ++i) {
      auto view = cache.rows(0, rows_of(i), 0);
      view.bias = biased ? bias.data() : nullptr;
      view.bias_size = biased ? bias_size : 0;
      rows.push_back({queries.data() + i * width, output.data() + i * width, view});
    }
    for (std::size_t i = 0; i < n; i += together ? n : 1)
      for (std::size_t h = 0; h < shape.n_kv_heads; ++h)
        set.attention(shape, h, h + 1, std::span(rows).subspan(i, together ? n : 1),
                      scratch.data());
    return output;
  }
};

std::vector<std::uint16_t> halved(const std::vector<float>& numbers) {
  std::vector<std::uint16_t> upper;
  for (const float x : numbers)
    upper.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16));
  return upper;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kernels)

BOOST_AUTO_TEST_CASE(an_output_is_the_chain_of_fused_multiply_adds_in_order_of_k) {
  for (const auto& [n_out, n_in] : shapes) {
    const auto m = make_matrix(n_out, n_in, 1);
    const auto input = numbers(3 * n_in, 2);
    const auto output = run(om::kernels(), m.bf16(), input, 3);
    for (std::size_t i = 0; i < 3; ++i)
      for (std::size_t o = 0; o < n_out; ++o) {
        float sum = 0;
        for (std::size_t k = 0; k < n_in; ++k)
          sum = std::fma(input[i * n_in + k], m.row_major[o * n_in + k], sum);
        BOOST_REQUIRE(same_bits(&sum, &output[i * n_out + o], 1));
      }
  }
}

BOOST_AUTO_TEST_CASE(every_instruction_set_gives_the_bits_of_the_portable_one) {
  const auto sets = om::available_kernels();
  const auto& portable = *sets.front();
  for (const auto* set : sets) {
    BOOST_TEST_CONTEXT(set->name) {
      for (const auto& [n_out, n_in] : shapes) {
        const auto m = make_matrix(n_out, n_in, 3);
        const auto input = numbers(13 * n_in, 4);
        const auto expected = run(portable, m.fp32(), input, 13);
        for (const auto& weights : {m.fp32(), m.bf16()}) {
          const auto output = run(*set, weights, input, 13);
          BOOST_TEST(same_bits(expected.data(), output.data(), output.size()));
        }
      }
      for (const std::size_t n : {1, 15, 16, 40, 129}) {
        const auto a = numbers(n, 5, 30.0);
        const auto b = numbers(n, 6);
        std::vector<float> expected(n), output(n);
        portable.rms_norm(a.data(), b.data(), 1e-5f, expected.data(), n);
        set->rms_norm(a.data(), b.data(), 1e-5f, output.data(), n);
        BOOST_TEST(same_bits(expected.data(), output.data(), n));
        portable.silu_product(a.data(), b.data(), expected.data(), n);
        set->silu_product(a.data(), b.data(), output.data(), n);
        BOOST_TEST(same_bits(expected.data(), output.data(), n));
        auto scores = numbers(n, 9, 60.0);
        scores[n / 2] = n % 2 == 0 ? NAN : -INFINITY;
        const float total = portable.softmax_weights(scores.data(), n, 60, 1.3f, expected.data());
        const float found = set->softmax_weights(scores.data(), n, 60, 1.3f, output.data());
        BOOST_TEST(same_bits(&total, &found, 1));
        BOOST_TEST(same_bits(expected.data(), output.data(), n));
      }
      for (const std::size_t dim : {2, 10, 16, 24, 32, 64, 80, 128})
        for (const std::size_t n_heads : {4, 6, 14}) {
          const om::attention_shape shape{n_heads, 2, dim};
          const std::size_t half = dim / 2;
          const auto angles = numbers(2 * half, 7);
          auto expected = numbers(n_heads * dim, 8);
          auto output = expected;
          portable.rotate(angles.data(), angles.data() + half, expected.data(), n_heads, dim);
          set->rotate(angles.data(), angles.data() + half, output.data(), n_heads, dim);
          BOOST_TEST(same_bits(expected.data(), output.data(), output.size()));
          for (const std::size_t n_rows : {1, 2, 15, 16, 17, 50}) {
            const auto rows = numbers(n_rows * 4 * dim, 9, 3.0);
            const auto query = numbers(n_heads * dim, 10, 3.0);
            const auto page = halved(rows);
            for (const auto& view :
                 {single_page(rows, n_rows, 4 * dim), single_page(page, n_rows, 4 * dim)}) {
              attend(portable, shape, query, view, expected);
              attend(*set, shape, query, view, output);
              BOOST_TEST(same_bits(expected.data(), output.data(), output.size()));
            }
          }
        }
    }
  }
}

BOOST_AUTO_TEST_CASE(exact_weights_are_exact_exponentials_in_every_set) {
  auto scores = numbers(1003, 31, 400.0);
  scores[3] = 400;
  scores[4] = -INFINITY;
  scores[5] = -1e30f;
  scores[6] = NAN;
  std::vector<double> weights(scores.size());
  for (const auto* set : om::available_kernels())
    for (const double temperature : {0.3, 1.0, 1e9}) {
      set->exact_weights(scores.data(), scores.size(), 400, temperature, weights.data());
      for (std::size_t i = 0; i < scores.size(); ++i) {
        const double expected =
            ordermoe::exact_exp((static_cast<double>(scores[i]) - 400) / temperature);
        if (std::isnan(expected))
          BOOST_TEST(std::isnan(weights[i]));
        else
          BOOST_TEST(weights[i] == expected, set->name << ": " << scores[i]);
      }
    }
}

BOOST_AUTO_TEST_CASE(a_row_of_a_product_has_the_same_bits_alone_and_in_every_batch) {
  for (const auto* set : om::available_kernels())
    for (const auto& [n_out, n_in] : shapes) {
      const auto m = make_matrix(n_out, n_in, 11);
      const auto input = numbers(64 * n_in, 12);
      std::vector<float> alone(64 * n_out);
      for (std::size_t i = 0; i < 64; ++i)
        set->linear(m.bf16(), &input[i * n_in], n_in, &alone[i * n_out], n_out, 1);
      for (std::size_t n_rows = 2; n_rows <= 64; ++n_rows) {
        const auto output = run(*set, m.bf16(), input, n_rows);
        BOOST_REQUIRE(same_bits(alone.data(), output.data(), output.size()));
      }
    }
}

BOOST_AUTO_TEST_CASE(strided_rows_leave_what_lies_between_alone) {
  const auto m = make_matrix(17, 9, 13);
  const auto input = numbers(4 * 11, 14);
  std::vector<float> output(4 * 20, 7.0f);
  om::kernels().linear(m.fp32(), input.data(), 11, output.data(), 20, 4);
  for (std::size_t i = 0; i < 4; ++i) {
    std::vector<float> alone(17);
    om::kernels().linear(m.fp32(), &input[i * 11], 9, alone.data(), 17, 1);
    BOOST_TEST(same_bits(alone.data(), &output[i * 20], 17));
    for (std::size_t o = 17; o < 20; ++o) BOOST_TEST(output[i * 20 + o] == 7.0f);
  }
}

BOOST_AUTO_TEST_CASE(attention_is_the_softmax_weighted_mean_of_the_values) {
  // fp32 against double: scores of size 10 carry errors of about 1e-6, and so do weights and sums.
  const om::attention_shape shape{4, 2, 20};
  const std::size_t n_rows = 37;
  const auto rows = numbers(n_rows * 80, 15, 2.0);
  const auto query = numbers(80, 16, 2.0);
  std::vector<float> output(80);
  attend(om::kernels(), shape, query, single_page(rows, n_rows, 80), output);
  for (std::size_t h = 0; h < 4; ++h) {
    std::vector<double> weight(n_rows);
    double total = 0;
    for (std::size_t t = 0; t < n_rows; ++t) {
      double score = 0;
      for (std::size_t d = 0; d < 20; ++d)
        score += static_cast<double>(query[h * 20 + d]) * rows[t * 80 + h / 2 * 20 + d];
      weight[t] = std::exp(score / std::sqrt(20.0));
      total += weight[t];
    }
    for (std::size_t d = 0; d < 20; ++d) {
      double expected = 0;
      for (std::size_t t = 0; t < n_rows; ++t)
        expected += weight[t] / total * rows[t * 80 + 40 + h / 2 * 20 + d];
      BOOST_TEST(std::abs(output[h * 20 + d] - expected) < 1e-5);
    }
  }
}

BOOST_AUTO_TEST_CASE(pages_and_precision_of_rows_change_no_bit_of_attention_over_the_same_numbers) {
  constexpr std::size_t most = 3 * om::kv_cache::page_rows + 5, dim = 24,
                        row_size = 2 * 2 * dim + 3;
  const om::attention_shape shape{4, 2, dim};
  const auto query = numbers(4 * dim, 30);
  std::vector<float> expected(4 * dim), output(4 * dim);
  for (const auto precision : {om::kv_precision::fp32, om::kv_precision::bf16}) {
    om::kv_cache cache(most, row_size, precision);
    for (std::size_t p = 0; p < most; ++p) cache.put(p, numbers(row_size, 100 + p, 2.0));
    for (const std::size_t first : {0u, 1u, 16u, 31u, 32u, 50u})
      for (const std::size_t n : {1u, 2u, 15u, 16u, 17u, 32u, 33u, 50u}) {
        std::vector<float> rows;
        for (std::size_t p = first; p < first + n; ++p) {
          const auto row = cache.row(p);
          rows.insert(rows.end(), row.begin(), row.end());
        }
        auto plain = single_page(rows, n, row_size);
        plain.offset = 3;
        for (const auto* set : om::available_kernels()) {
          attend(*set, shape, query, plain, expected);
          attend(*set, shape, query, cache.rows(first, n, 3), output);
          BOOST_TEST_REQUIRE(same_bits(expected.data(), output.data(), output.size()),
                             set->name << ": rows " << first << " to " << first + n);
        }
      }
  }
}

BOOST_AUTO_TEST_CASE(a_query_row_has_the_same_bits_alone_and_beside_others_of_its_sequence) {
  constexpr std::size_t most = 2 * om::kv_cache::page_rows + 9;
  for (const std::size_t dim : {10u, 16u, 24u, 80u, 128u})
    for (const std::size_t n_heads : {2u, 6u, 8u, 14u})
      for (const auto precision : {om::kv_precision::fp32, om::kv_precision::bf16}) {
        const some_queries of{{n_heads, 2, dim},
                              numbers(11 * n_heads * dim, 42, 2.0),
                              numbers(n_heads * most, 41, 3.0),
                              most};
        om::kv_cache by_row(most, 4 * dim, precision), by_head(most, 4 * dim, precision, dim);
        for (std::size_t p = 0; p < most; ++p)
          for (auto* each : {&by_row, &by_head}) each->put(p, numbers(4 * dim, 500 + p, 2.0));
        for (const auto* set : om::available_kernels())
          for (const std::size_t n : {1u, 2u, 3u, 5u, 8u, 11u})
            for (const std::size_t fewest : {1u, 7u, 16u, 31u, 50u})
              for (const bool biased : {false, true}) {
                const auto alone = of.attend(*set, by_row, n, fewest, biased, false);
                for (const auto* cache : {&by_row, &by_head}) {
                  const auto together = of.attend(*set, *cache, n, fewest, biased, true);
                  BOOST_TEST_REQUIRE(same_bits(alone.data(), together.data(), alone.size()),
                                     set->name << ": " << n << " rows from " << fewest);
                }
              }
      }
}

BOOST_AUTO_TEST_CASE(a_query_row_has_the_portable_sets_bits_beside_as_many_others_as_fill_tiles) {
  constexpr std::size_t most = 4 * om::kv_cache::page_rows + 13, most_queries = 53;
  const std::function<std::size_t(std::size_t)> causal = [](std::size_t i) { return 88 + i; },
                                                mixed = [](std::size_t i) {
                                                  return 1 + i * 37 % most;
                                                };
  for (const auto& [dim, n_heads] :
       std::vector<std::pair<std::size_t, std::size_t>>{{16, 2}, {80, 2}, {128, 8}, {512, 2}})
    for (const auto precision : {om::kv_precision::fp32, om::kv_precision::bf16}) {
      const std::size_t n_queries = dim == 512 ? 23 : most_queries;
      const some_queries of{{n_heads, 2, dim},
                            numbers(n_queries * n_heads * dim, 43, 2.0),
                            numbers(n_heads * most, 44, 3.0),
                            most};
      om::kv_cache by_row(most, 4 * dim, precision), by_head(most, 4 * dim, precision, dim);
      for (std::size_t p = 0; p < most; ++p)
        for (auto* each : {&by_row, &by_head}) each->put(p, numbers(4 * dim, 700 + p, 2.0));
      for (const bool biased : {false, true})
        for (const auto& rows_of : {causal, mixed}) {
          const auto& portable = *om::available_kernels().front();
          const auto alone = of.attend(portable, by_row, n_queries, rows_of, biased, false);
          for (const auto* set : om::available_kernels())
            for (const auto n : {n_queries, n_queries - 6, std::size_t{21}})
              for (const auto* cache : {&by_row, &by_head}) {
                const auto together = of.attend(*set, *cache, n, rows_of, biased, true);
                BOOST_TEST_REQUIRE(same_bits(alone.data(), together.data(), together.size()),
                                   set->name << ": " << n << " queries, dim " << dim);
              }
        }
    }
}

BOOST_AUTO_TEST_CASE(scores_may_be_scaled_and_biased_and_rows_lie_apart) {
  for (const std::size_t dim : {10u, 16u, 20u, 64u})
    for (const auto* set : om::available_kernels()) {
      const om::attention_shape shape{3, 3, dim, 1.0f};
      const std::size_t n_rows = 37, row_size = 6 * dim + 5, bias_size = 41;
      const auto rows = numbers(n_rows * row_size, 19);
      const auto query = numbers(3 * dim, 20, 1.0 / std::sqrt(static_cast<double>(dim)));
      const auto bias = numbers(3 * bias_size, 21, 3.0);
      std::vector<float> output(3 * dim);
      auto view = single_page(rows, n_rows, row_size);
      view.bias = bias.data();
      view.bias_size = bias_size;
      attend(*set, shape, query, view, output);
      for (std::size_t h = 0; h < 3; ++h) {
        std::vector<double> weight(n_rows);
        double total = 0;
        for (std::size_t t = 0; t < n_rows; ++t) {
          double score = bias[h * bias_size + t];
          for (std::size_t d = 0; d < dim; ++d)
            score += static_cast<double>(query[h * dim + d]) * rows[t * row_size + h * dim + d];
          weight[t] = std::exp(score);
          total += weight[t];
        }
        for (std::size_t d = 0; d < dim; ++d) {
          double expected = 0;
          for (std::size_t t = 0; t < n_rows; ++t)
            expected += weight[t] / total * rows[t * row_size + (3 + h) * dim + d];
          BOOST_TEST(std::abs(output[h * dim + d] - expected) < 1e-5);
        }
      }
      // The same bits from every set.
      std::vector<float> portable(3 * dim);
      attend(*om::available_kernels().front(), shape, query, view, portable);
      BOOST_TEST(same_bits(portable.data(), output.data(), output.size()));
    }
}

BOOST_AUTO_TEST_CASE(the_gated_product_is_silu_times_the_other) {
  const auto gate = numbers(1000, 17, 100.0);
  const auto up = numbers(1000, 18);
  std::vector<float> output(1000);
  om::kernels().silu_product(gate.data(), up.data(), output.data(), 1000);
  for (std::size_t i = 0; i < 1000; ++i) {
    const double expected =
        static_cast<double>(gate[i]) / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    // Five roundings and an exponential of two units in the last place; tiny results are absolute.
    BOOST_TEST(std::abs(output[i] - expected) <= 1e-6 * std::abs(expected) + 1e-36);
  }
}

BOOST_AUTO_TEST_CASE(weights_of_a_softmax_are_exponentials_and_nothing_where_none_is_left) {
  for (const std::size_t n : {1, 16, 17, 511, 4096}) {
    auto scores = numbers(n, n, 40.0);
    scores[0] = 40.0f;
    if (n > 16) {
      scores[3] = -INFINITY;
      scores[7] = NAN;
      scores[11] = -1000.0f;
    }
    for (const float scale : {0.5f, 1.0f, 2.5f}) {
      std::vector<float> weights(n, -1.0f);
      const float total =
          om::kernels().softmax_weights(scores.data(), n, 40.0f, scale, weights.data());
      double expected_total = 0;
      for (std::size_t i = 0; i < n; ++i) {
        const double x = (static_cast<double>(scores[i]) - 40) * static_cast<double>(scale);
        const double expected = x >= -87 ? std::exp(x) : 0;
        expected_total += expected;
        // Two roundings of x, which weigh as much as x is large, and an exponential of two units in the last place.
        if (expected == 0)
          BOOST_TEST((weights[i] == 0 || std::abs(x + 87) <= 1e-3));
        else if (std::abs(x + 87) > 1e-3)
          BOOST_TEST(std::abs(weights[i] - expected) <= (2e-7 + 1.3e-7 * std::abs(x)) * expected);
      }
      BOOST_TEST(weights[0] == 1.0f);
      BOOST_TEST(std::abs(total - expected_total) <= 2e-6 * expected_total);
    }
  }
}

BOOST_AUTO_TEST_CASE(numbers_with_more_than_sixteen_bits_do_not_fit_bf16) {
  BOOST_TEST(om::fits_bf16(std::vector<float>{1.0f, -0.5f, 3.140625f}));
  BOOST_TEST(!om::fits_bf16(std::vector<float>{1.0f, 1.001f}));
}

BOOST_AUTO_TEST_SUITE_END()
