#include "model/kv_cache.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <numeric>
#include <vector>

#include "config/random.hpp"

namespace om = ordermoe::model;

namespace {

std::vector<float> row_at(std::size_t position) {
  return {static_cast<float>(position), static_cast<float>(position) + 0.5f, -1};
}

bool holds(const om::kv_cache& cache, std::size_t position) {
  const auto stored = cache.row(position);
  const auto expected = row_at(position);
  return std::equal(stored.begin(), stored.end(), expected.begin(), expected.end());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kv_cache)

BOOST_AUTO_TEST_CASE(rows_that_arrive_in_any_order_are_kept_and_counted_up_to_the_first_gap) {
  constexpr std::size_t n = 150;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ordermoe::random_stream random(seed, 7);
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = n - 1; i > 0; --i)
      if (random.below(3) != 0) std::swap(order[i], order[random.below(i + 1)]);
    om::kv_cache cache(n, 3);
    std::vector<bool> there(n, false);
    for (const auto position : order) {
      cache.put(position, row_at(position));
      there[position] = true;
      const auto gap = std::find(there.begin(), there.end(), false) - there.begin();
      BOOST_TEST_REQUIRE(cache.contiguous() == static_cast<std::size_t>(gap), "seed " << seed);
      for (std::size_t i = 0; i < n; ++i) {
        BOOST_TEST_REQUIRE(cache.has(i) == there[i], "seed " << seed << " position " << i);
        if (there[i]) BOOST_TEST_REQUIRE(holds(cache, i), "seed " << seed << " position " << i);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(pages_come_with_the_rows) {
  constexpr std::size_t page = om::kv_cache::page_rows;
  om::kv_cache cache(10 * page, 3), half(10 * page, 3, om::kv_precision::bf16);
  BOOST_TEST(cache.resident_bytes() == 0u);
  for (auto* each : {&cache, &half}) each->put(0, row_at(0));
  BOOST_TEST(cache.resident_bytes() == page * 3 * 4);
  BOOST_TEST(half.resident_bytes() == page * 3 * 2);
  cache.put(page - 1, row_at(page - 1));
  BOOST_TEST(cache.resident_bytes() == page * 3 * 4);
  cache.put(page, row_at(page));
  BOOST_TEST(cache.resident_bytes() == 2 * page * 3 * 4);
  const auto moved = std::move(cache);
  BOOST_TEST(holds(moved, page));
}

BOOST_AUTO_TEST_CASE(bf16_rows_are_rounded_to_the_nearest_once) {
  om::kv_cache cache(2, 5, om::kv_precision::bf16);
  // 1 + 2^-8 lies halfway between 1 and 1 + 2^-7, 1 + 3 * 2^-8 between that and 1 + 2^-6.
  const std::vector<float> row = {1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1.001p-8f, -3.5f,
                                  INFINITY};
  cache.put(0, row);
  const std::vector<float> rounded = {1.0f, 1.0f + 0x1p-6f, 1.0f + 0x1p-7f, -3.5f, INFINITY};
  BOOST_TEST(cache.row(0) == rounded, boost::test_tools::per_element());
  BOOST_TEST(cache.number(0, 1) == rounded[1]);
  om::kv_cache other(2, 5, om::kv_precision::bf16);
  other.put(0, cache.row(0));
  BOOST_TEST(other.row(0) == rounded, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_row_goes_to_another_cache_as_it_is_kept) {
  for (const auto kept : {om::kv_precision::fp32, om::kv_precision::bf16}) {
    om::kv_cache from(40, 3, kept), to(40, 3, kept);
    BOOST_TEST(from.row_bytes() == 3 * om::bytes_per_number(kept));
    std::vector<std::uint8_t> bytes(from.row_bytes());
    for (const std::size_t position : {2u, 0u, 1u, 35u}) {
      from.put(position,
               std::vector<float>{0.1f * static_cast<float>(position), 1e-30f, -3.14159f});
      from.read_bytes(position, bytes);
      to.put_bytes(position, bytes);
      BOOST_TEST(to.row(position) == from.row(position), boost::test_tools::per_element());
    }
    BOOST_TEST(to.contiguous() == 3u);
    BOOST_TEST(to.has(35));
    BOOST_TEST(!to.has(34));
  }
}

BOOST_AUTO_TEST_CASE(rows_are_the_same_whatever_lies_together_in_a_page) {
  constexpr std::size_t n = 2 * om::kv_cache::page_rows + 3, size = 14;
  for (const auto kept : {om::kv_precision::fp32, om::kv_precision::bf16})
    for (const std::size_t together : {1u, 3u, 4u, 7u, 13u, 14u, 20u}) {
      om::kv_cache whole(n, size, kept), parted(n, size, kept, together), taken(n, size, kept, 4);
      for (std::size_t p = 0; p < n; ++p) {
        std::vector<float> row;
        for (std::size_t i = 0; i < size; ++i) row.push_back(static_cast<float>(100 * p + i) / 7);
        whole.put(p, row);
        // In three parts that end anywhere.
        const std::span all(row);
        parted.put(p, 0, all.first(5));
        parted.put(p, 5, all.subspan(5, 6));
        parted.put(p, 11, all.last(3));
      }
      BOOST_TEST(parted.resident_bytes() == whole.resident_bytes());
      std::vector<std::uint8_t> bytes(whole.row_bytes()), others(whole.row_bytes());
      for (std::size_t p = 0; p < n; ++p) {
        BOOST_TEST_REQUIRE(parted.row(p) == whole.row(p), boost::test_tools::per_element());
        BOOST_TEST_REQUIRE(parted.number(p, 12) == whole.number(p, 12));
        whole.read_bytes(p, bytes);
        parted.read_bytes(p, others);
        BOOST_TEST_REQUIRE(bytes == others, boost::test_tools::per_element());
        taken.put_bytes(p, others);
        BOOST_TEST_REQUIRE(taken.row(p) == whole.row(p), boost::test_tools::per_element());
      }
    }
}

BOOST_AUTO_TEST_CASE(storing_a_row_again_changes_nothing) {
  om::kv_cache cache(8, 3);
  for (const std::size_t position : {0u, 1u, 3u}) cache.put(position, row_at(position));
  cache.put(1, row_at(1));
  cache.put(3, row_at(3));
  BOOST_TEST(cache.contiguous() == 2u);
  BOOST_TEST(holds(cache, 1));
  BOOST_TEST(holds(cache, 3));
  BOOST_TEST(!cache.has(2));
}

BOOST_AUTO_TEST_CASE(a_row_may_come_in_parts) {
  om::kv_cache cache(4, 3);
  const float first[] = {1.0f, 2.0f}, last[] = {5.0f};
  cache.put(1, 0, first);
  BOOST_TEST(cache.has(1));
  BOOST_TEST(cache.contiguous() == 0u);
  BOOST_TEST(cache.row(1)[2] == 0.0f);
  cache.put(1, 2, last);
  cache.put(0, 2, last);
  BOOST_TEST(cache.contiguous() == 2u);
  BOOST_TEST(cache.row(1)[0] == 1.0f);
  BOOST_TEST(cache.row(1)[1] == 2.0f);
  BOOST_TEST(cache.row(1)[2] == 5.0f);
  BOOST_TEST(cache.row(0)[0] == 0.0f);
}

BOOST_AUTO_TEST_CASE(rows_without_numbers_are_counted_all_the_same) {
  om::kv_cache cache(3, 0);
  cache.put(1, {});
  BOOST_TEST(cache.contiguous() == 0u);
  cache.put(0, {});
  BOOST_TEST(cache.contiguous() == 2u);
  BOOST_TEST(cache.row(1).empty());
}

BOOST_AUTO_TEST_CASE(a_row_that_is_put_leaves_its_mirrors_with_the_rows_behind_it) {
  om::kv_cache cache(8, 4);
  const std::vector<float> row(4, 1);
  for (std::size_t p = 0; p < 5; ++p) cache.put(p, row);
  cache.mirror(0, 2).n_rows = 5;
  cache.mirror(2, 2).n_rows = 4;
  BOOST_TEST(cache.mirror(0, 2).n_rows == 5u);
  cache.put(5, row);  // Behind both.
  BOOST_TEST(cache.mirror(0, 2).n_rows == 5u);
  cache.put(3, 2, std::span(row).first(1));  // Of the second alone.
  BOOST_TEST(cache.mirror(0, 2).n_rows == 5u);
  BOOST_TEST(cache.mirror(2, 2).n_rows == 3u);
  const std::vector<std::uint8_t> bytes(cache.row_bytes());
  cache.put_bytes(1, bytes);
  BOOST_TEST(cache.mirror(0, 2).n_rows == 1u);
  BOOST_TEST(cache.mirror(2, 2).n_rows == 1u);
  cache.put(2, row);
  BOOST_TEST(cache.mirror(0, 2).n_rows == 1u);
}

BOOST_AUTO_TEST_SUITE_END()
