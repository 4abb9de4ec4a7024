#include "actors/device/kv_presence.hpp"

#include <boost/test/unit_test.hpp>

#include "config/random.hpp"

namespace ordermoe {

namespace {

actors::attend_work work_at(std::uint32_t first) {
  actors::attend_work work;
  work.first = first;
  work.n = 1;
  return work;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(kv_presence)

BOOST_AUTO_TEST_CASE(attention_needs_every_row_before_it) {
  actors::kv_presence presence;
  BOOST_TEST(presence.ready_for(0));
  BOOST_TEST(!presence.ready_for(1));
  presence.add(0, 3);
  BOOST_TEST(presence.ready_for(3));
  BOOST_TEST(!presence.ready_for(4));
}

BOOST_AUTO_TEST_CASE(rows_beyond_a_gap_count_when_it_closes) {
  actors::kv_presence presence;
  presence.add(4, 2);
  presence.add(7, 1);
  BOOST_TEST(!presence.ready_for(1));
  presence.add(0, 4);
  BOOST_TEST(presence.contiguous == 6u);
  presence.add(6, 1);
  BOOST_TEST(presence.contiguous == 8u);
  BOOST_TEST(presence.later.empty());
}

BOOST_AUTO_TEST_CASE(rows_that_come_again_or_overlap_change_nothing) {
  actors::kv_presence presence;
  presence.add(0, 5);
  presence.add(1, 2);
  BOOST_TEST(presence.contiguous == 5u);
  presence.add(8, 2);
  presence.add(8, 2);
  presence.add(3, 6);
  BOOST_TEST(presence.contiguous == 10u);
  BOOST_TEST(presence.later.empty());
}

BOOST_AUTO_TEST_CASE(work_goes_on_in_the_order_in_which_it_came_once_its_rows_are_here) {
  actors::kv_presence presence;
  for (const std::uint32_t first : {5, 2, 1}) presence.waiting.push_back(work_at(first));
  BOOST_TEST(!presence.take_ready().has_value());
  presence.add(0, 2);
  BOOST_TEST(presence.take_ready()->first == 2u);
  BOOST_TEST(presence.take_ready()->first == 1u);
  BOOST_TEST(!presence.take_ready().has_value());
  presence.add(2, 3);
  BOOST_TEST(presence.take_ready()->first == 5u);
  BOOST_TEST(presence.waiting.empty());
}

BOOST_AUTO_TEST_CASE(in_any_order_it_knows_what_a_list_of_rows_would) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream draws(seed);
    actors::kv_presence presence;
    std::vector<bool> here(64, false);
    for (int i = 0; i < 40; ++i) {
      const auto first = static_cast<std::uint32_t>(draws.below(48));
      const auto n = static_cast<std::uint32_t>(1 + draws.below(8));
      presence.add(first, n);
      for (auto row = first; row < first + n; ++row) here[row] = true;
      std::uint32_t contiguous = 0;
      while (here[contiguous]) ++contiguous;
      BOOST_TEST_REQUIRE(presence.contiguous == contiguous, "seed " << seed);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
