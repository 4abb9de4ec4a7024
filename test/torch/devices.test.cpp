#include <boost/test/unit_test.hpp>
#include <vector>

#include "model/torch/split_products_torch.hpp"
#include "model/torch/tiles_torch.hpp"
#include "model/torch/transfers_torch.hpp"

namespace {

using namespace ordermoe::model;

at::Tensor rows_from(std::int64_t n, std::int64_t width) {
  return at::arange(1, n * width + 1, at::kFloat).reshape({n, width});
}

}  // namespace

BOOST_AUTO_TEST_SUITE(devices)

BOOST_AUTO_TEST_CASE(a_function_of_single_rows_keeps_them_in_tiles) {
  const at::Device cpu(at::kCPU);
  BOOST_TEST(rows_of_tile([](const at::Tensor& rows) { return at::mul(rows, 3); }, 5, cpu) == 8);
}

BOOST_AUTO_TEST_CASE(what_depends_on_other_rows_or_on_a_rows_place_goes_one_row_at_a_time) {
  const at::Device cpu(at::kCPU);
  const auto neighbours = [](const at::Tensor& rows) {
    return at::add(rows, at::sum(rows, {0}, true));
  };
  const auto place = [](const at::Tensor& rows) {
    return at::add(rows, at::arange(rows.size(0), at::kFloat).unsqueeze(1));
  };
  // As a product that takes some rows by another kernel.
  const auto last = [](const at::Tensor& rows) {
    auto made = rows.clone();
    made.select(0, rows.size(0) - 1).mul_(1.0000002f);
    return made;
  };
  for (const row_function& each :
       {row_function(neighbours), row_function(place), row_function(last)}) {
    BOOST_TEST(!keeps_rows(each, rows_from(8, 5)));
    BOOST_TEST(rows_of_tile(each, 5, cpu) == 1);
  }
}

BOOST_AUTO_TEST_CASE(rows_of_this_librarys_products_keep_their_bits_in_the_tile_that_was_chosen) {
  const at::Device cpu(at::kCPU);
  for (const auto& [n_out, n_in] : {std::pair{64, 64}, {37, 65}, {192, 64}, {512, 96}, {3, 7}}) {
    const auto weights = at::sin(rows_from(n_out, n_in));
    const auto run = [&](const at::Tensor& rows) { return at::linear(rows, weights); };
    const auto tile = rows_of_tile(run, n_in, cpu);
    BOOST_TEST_MESSAGE("[" << n_out << ", " << n_in << "]: tiles of " << tile);
    const auto rows = at::cos(rows_from(tile, n_in));
    const auto expected = run(rows);
    for (std::int64_t by = 0; by < tile; ++by)
      BOOST_TEST(run(rows.roll(by, 0)).equal(expected.roll(by, 0)));
  }
}

BOOST_AUTO_TEST_CASE(three_rows_in_bf16_are_a_row_in_fp32_exactly) {
  const auto rows = at::mul(at::sin(rows_from(5, 37)),
                            at::exp2(at::arange(-60, 125, at::kFloat).reshape({5, 37})));
  const auto parts = split_in_three(rows);
  BOOST_REQUIRE(parts.scalar_type() == at::kBFloat16);
  BOOST_REQUIRE(parts.sizes() == at::IntArrayRef({15, 37}));
  const auto part = [&](std::int64_t i) { return parts.narrow(0, 5 * i, 5).to(at::kFloat); };
  BOOST_TEST(at::add(at::add(part(0), part(1)), part(2)).equal(rows));
  for (const auto i : {0, 1}) BOOST_TEST(part(i).abs().max().item<float>() > 0);  // None is idle.
}

BOOST_AUTO_TEST_CASE(a_split_product_loses_nothing_of_a_row) {
  const auto rows = at::cos(rows_from(8, 300));
  const auto weights = at::sin(rows_from(64, 300)).to(at::kBFloat16);
  const auto exact = at::linear(rows.to(at::kDouble), weights.to(at::kDouble));
  /// Of the largest result.
  const auto off = [&](const at::Tensor& found) {
    return at::sub(found.to(at::kDouble), exact).abs().max().item<double>() /
           exact.abs().max().item<double>();
  };
  const auto split = off(product(rows, weights)),
             plain = off(product(rows, weights.to(at::kFloat)));
  BOOST_TEST_MESSAGE("off by " << split << ", in fp32 by " << plain);
  constexpr double bound = 1e-6;
  BOOST_TEST(split < bound);
  BOOST_TEST(plain < bound);
  // What rounding rows to bf16 would cost.
  BOOST_TEST(off(product(rows.to(at::kBFloat16).to(at::kFloat), weights)) > 100 * bound);
}

BOOST_AUTO_TEST_CASE(weights_are_kept_in_bf16_where_that_loses_nothing) {
  const auto fit = at::sin(rows_from(4096, 4096)).to(at::kBFloat16).to(at::kFloat);
  BOOST_TEST(kept_for_split_products(fit).nbytes() * 2 == fit.nbytes());
  const auto finer = at::add(fit, 1e-6f);
  BOOST_TEST(kept_for_split_products(finer).equal(finer));
  const auto small = fit.narrow(0, 0, 64);
  BOOST_TEST(kept_for_split_products(small).nbytes() == small.nbytes());
  BOOST_TEST(!has_split_products(at::Device(at::kCPU)));
}

BOOST_AUTO_TEST_CASE(rows_cross_filled_up_with_zeros_and_come_back_without) {
  transfers crossing{at::Device(at::kCPU)};
  const std::vector<float> rows{1, 2, 3, 4, 5, 6};
  const auto there = crossing.up(rows.data(), 2, 4, 3);
  BOOST_TEST(there.equal(at::constant_pad_nd(rows_from(2, 3), {0, 0, 0, 2})));
  BOOST_TEST(crossing.up(rows.data(), 2, 2, 3).equal(rows_from(2, 3)));
  std::vector<float> back(7, -1);
  crossing.down(at::mul(there, 2), back.data(), 2);
  crossing.finish();
  BOOST_TEST(back == (std::vector<float>{2, 4, 6, 8, 10, 12, -1}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_SUITE_END()
