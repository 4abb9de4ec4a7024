#include "model/kv_cache.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
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

BOOST_AUTO_TEST_CASE(a_copy_keeps_its_rows_and_takes_as_many_as_the_original) {
  om::kv_cache cache(100, 3);
  for (std::size_t i = 0; i < 40; ++i) cache.put(i, row_at(i));
  auto copy = cache;
  for (std::size_t i = 40; i < 100; ++i) copy.put(i, row_at(i));
  BOOST_TEST(copy.contiguous() == 100u);
  BOOST_TEST(cache.contiguous() == 40u);
  BOOST_TEST(copy.capacity() == 100u);
  BOOST_TEST(holds(copy, 39));
  BOOST_TEST(holds(copy, 99));
  BOOST_TEST(!cache.has(40));
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

BOOST_AUTO_TEST_SUITE_END()
