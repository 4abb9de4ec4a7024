#include "planning/serving/token_visits.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using serving::step_of;

/// `rows` rows of one layer's outputs of the token whose first position is `first`.
serving::arrived_output output_of(std::uint32_t first, std::uint32_t layer, std::uint32_t rows = 1,
                                  std::uint32_t slot = 0, std::uint32_t from = 0) {
  serving::arrived_output made;
  made.from = from;
  made.content.token.first = first;
  made.content.layer = layer;
  for (std::uint32_t i = 0; i < rows; ++i) made.content.rows.push_back({i, slot});
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(token_visits)

BOOST_AUTO_TEST_CASE(outputs_are_awaited_after_the_attention_of_a_layer_and_before_the_next) {
  static_assert(step_of(0, false) < step_of(0, true));
  static_assert(step_of(0, true) < step_of(1, false));
  wire::token_state state;
  state.layer = 4;
  BOOST_TEST(step_of(state) == step_of(4, false));
  state.slots_of_row = {0};
  BOOST_TEST(step_of(state) == step_of(4, true));
}

BOOST_AUTO_TEST_CASE(a_token_comes_once_at_each_step_and_never_at_an_earlier_one) {
  serving::token_visits visits(10);
  BOOST_TEST(visits.arrive(0, step_of(1, false)).has_value());
  BOOST_TEST(!visits.arrive(0, step_of(1, false)).has_value());
  BOOST_TEST(visits.arrive(0, step_of(3, true)).has_value());
  BOOST_TEST(!visits.arrive(0, step_of(2, false)).has_value());
  BOOST_TEST(!visits.arrive(0, step_of(3, true)).has_value());
  BOOST_TEST(visits.arrive(0, step_of(4, false)).has_value());
}

BOOST_AUTO_TEST_CASE(a_token_at_the_very_first_step_is_new) {
  serving::token_visits visits(10);
  const auto early = visits.arrive(0, step_of(0, false));
  BOOST_REQUIRE(early.has_value());
  BOOST_TEST(early->empty());
}

BOOST_AUTO_TEST_CASE(tokens_do_not_stand_in_each_others_way) {
  serving::token_visits visits(10);
  visits.arrive(0, step_of(5, true));
  BOOST_TEST(visits.arrive(1, step_of(0, false)).has_value());
  BOOST_TEST(visits.park(output_of(1, 2)));
  BOOST_TEST(visits.arrive(2, step_of(2, true))->empty());
}

BOOST_AUTO_TEST_CASE(what_a_token_left_behind_does_not_come_again) {
  serving::token_visits visits(10);
  visits.arrive(0, step_of(1, false));
  visits.leave(0, step_of(3, true));
  BOOST_TEST(!visits.arrive(0, step_of(3, true)).has_value());
  BOOST_TEST(!visits.park(output_of(0, 3)));
  BOOST_TEST(visits.park(output_of(0, 4)));
  // An earlier departure that is told later takes nothing back.
  visits.leave(0, step_of(1, true));
  BOOST_TEST(!visits.arrive(0, step_of(2, false)).has_value());
}

BOOST_AUTO_TEST_CASE(outputs_wait_for_the_token_that_awaits_them_and_for_no_other_step) {
  serving::token_visits visits(10);
  BOOST_TEST(visits.park(output_of(0, 2, 3)));
  BOOST_TEST(visits.park(output_of(0, 2, 1, 1)));
  BOOST_TEST(visits.park(output_of(0, 1)));
  BOOST_TEST(visits.parked_rows() == 5u);
  const auto early = visits.arrive(0, step_of(2, true));
  BOOST_REQUIRE(early.has_value());
  BOOST_REQUIRE_EQUAL(early->size(), 2u);
  BOOST_TEST((*early)[0].content.rows.size() == 3u);
  BOOST_TEST((*early)[1].content.rows[0].slot == 1u);
  BOOST_TEST(visits.parked_rows() == 0u);
}

BOOST_AUTO_TEST_CASE(an_output_is_kept_once_and_not_for_a_token_that_is_past_it) {
  serving::token_visits visits(10);
  BOOST_TEST(visits.park(output_of(0, 2)));
  BOOST_TEST(!visits.park(output_of(0, 2)));
  BOOST_TEST(visits.park(output_of(0, 2, 1, 1)));
  BOOST_TEST(visits.park(output_of(0, 2, 1, 0, 5)));  // Another server says otherwise.
  BOOST_TEST(visits.park(output_of(0, 3)));
  visits.arrive(0, step_of(2, true));
  BOOST_TEST(!visits.park(output_of(0, 2)));
  BOOST_TEST(!visits.park(output_of(0, 1)));
}

BOOST_AUTO_TEST_CASE(no_more_rows_of_a_server_are_kept_than_can_be_awaited) {
  serving::token_visits visits(4);
  BOOST_TEST(visits.park(output_of(0, 0, 3)));
  BOOST_TEST(!visits.park(output_of(1, 0, 2)));
  BOOST_TEST(visits.park(output_of(1, 0, 1)));
  BOOST_TEST(visits.parked_rows() == 4u);
  BOOST_TEST(visits.park(output_of(1, 0, 4, 0, 5)));  // One that floods is in nobody's way.
  BOOST_TEST(!visits.park(output_of(2, 0, 1, 0, 5)));
  visits.arrive(0, step_of(0, true));
  BOOST_TEST(visits.parked_rows() == 1u + 4u);
  BOOST_TEST(visits.park(output_of(2, 0, 3)));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
