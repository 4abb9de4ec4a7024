#include "planning/serving/token_rules.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using namespace serving;

wire::request_terms terms_of(std::uint32_t prompt, std::uint32_t new_tokens) {
  wire::request_terms terms;
  terms.prompt_tokens = prompt;
  terms.given_tokens = prompt;
  terms.max_new_tokens = new_tokens;
  return terms;
}

planning::cost_model three_servers() {
  planning::cost_model prices;
  prices.n_servers = 3;
  prices.message_ns = {0, 5, 9, 5, 0, 5, 9, 5, 0};
  return prices;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(token_rules)

BOOST_AUTO_TEST_CASE(the_budget_of_a_request_is_that_of_its_positions_and_saturates) {
  BOOST_TEST(request_budget(5, 7) == 35);
  BOOST_TEST(request_budget(0, 7) == 0);
  BOOST_TEST(request_budget(5, 0) == 0);
  BOOST_TEST(request_budget(unbounded_budget, 0) == unbounded_budget);
  BOOST_TEST(request_budget(unbounded_budget / 2, 3) == unbounded_budget);
  BOOST_TEST(request_budget(unbounded_budget - 1, ~std::uint64_t{0}) == unbounded_budget);
}

BOOST_AUTO_TEST_CASE(a_pool_is_shared_with_the_layers_and_the_positions_that_are_left) {
  const auto terms = terms_of(10, 4);
  // A chunk before the last shares with nobody.
  BOOST_TEST(tokens_left(terms, 0, 5, 0, 8) == 5.0);
  BOOST_TEST(tokens_left(terms, 0, 5, 6, 8) == 5 * 0.25);
  // The last one carries what the new tokens may spend.
  BOOST_TEST(tokens_left(terms, 5, 5, 0, 8) == 5.0 + 4);
  // A decoding position shares with those behind it.
  BOOST_TEST(tokens_left(terms, 10, 1, 4, 8) == 0.5 + 3);
  BOOST_TEST(tokens_left(terms, 13, 1, 0, 8) == 1.0);
}

BOOST_AUTO_TEST_CASE(the_next_position_begins_with_the_id_and_its_share_of_the_pool) {
  decoding_shape shape;
  shape.n_layers = 6;
  const auto terms = terms_of(10, 4);
  const auto next = successor(terms, 42, 10, 120, 7, 1.0, shape);
  BOOST_TEST((next.terms == terms));
  BOOST_TEST(next.first == 10u);
  BOOST_TEST(next.layer == 0u);
  BOOST_TEST(next.ids == std::vector<std::int32_t>{42}, boost::test_tools::per_element());
  BOOST_TEST(next.pool == 120);
  BOOST_TEST(next.spent == 7);
  BOOST_TEST(next.hidden.empty());
  // One of four was sampled: three may still follow it.
  BOOST_TEST(next.allowance == std::vector<loss_units>{40}, boost::test_tools::per_element());
  BOOST_TEST(successor(terms, 42, 12, 120, 7, 1.0, shape).allowance[0] == 120);
  BOOST_TEST(successor(terms, 42, 12, 120, 7, 0.5, shape).allowance[0] == 60);
  BOOST_TEST(successor(terms, 42, 10, unbounded_budget, 7, 1, shape).allowance[0] ==
             unbounded_budget);
  // The last sampled id is not computed with any budget.
  BOOST_TEST(successor(terms, 42, 13, 120, 7, 1.0, shape).allowance[0] == 0);
}

BOOST_AUTO_TEST_CASE(a_decoder_of_its_own_begins_behind_the_encoder_and_its_start_row) {
  decoding_shape shape;
  shape.n_layers = 6;
  shape.decoded_layer = 3;
  shape.start_rows = 1;
  const auto next = successor(terms_of(10, 4), 42, 11, 120, 0, 1.0, shape);
  BOOST_TEST(next.layer == 3u);
  BOOST_TEST(next.first == 11u);
  // Position 10 read the start token, so position 11 computes the first of four.
  BOOST_TEST(next.allowance[0] == 40);
}

BOOST_AUTO_TEST_CASE(the_last_chunk_carries_what_new_tokens_may_spend) {
  decoding_policy policy;
  policy.token_budget = 10;
  const auto middle = first_chunk_budget(policy, 4, 6, false);
  BOOST_TEST(middle.pool == 40);
  BOOST_TEST(middle.allowance == 10);
  const auto last = first_chunk_budget(policy, 4, 6, true);
  BOOST_TEST(last.pool == 100);
  BOOST_TEST(last.allowance == 10);
  policy.allowance_factor = 2;
  BOOST_TEST(first_chunk_budget(policy, 4, 6, true).allowance == 20);
  policy.token_budget = 0;
  BOOST_TEST(first_chunk_budget(policy, 4, 6, true).allowance == 0);
  policy.token_budget = unbounded_budget;
  BOOST_TEST(first_chunk_budget(policy, 4, 6, false).allowance == unbounded_budget);
}

BOOST_AUTO_TEST_CASE(the_nearest_member_is_the_one_that_a_message_reaches_first) {
  const auto prices = three_servers();
  BOOST_TEST(nearest_member(0b111, 1, prices) == 1u);
  BOOST_TEST(nearest_member(0b101, 1, prices) == 0u);  // As near as server 2: the lower.
  BOOST_TEST(nearest_member(0b110, 0, prices) == 1u);
  BOOST_TEST(nearest_member(0b100, 0, prices) == 2u);
}

BOOST_AUTO_TEST_CASE(every_member_of_a_layer_needs_its_rows) {
  planning::residency residence;
  residence.layers = {0b001, 0b011, 0b110};
  const auto need = kv_need(residence, 3, 5, 100);
  const std::vector<std::int64_t> expected{1000, 1000, 500};
  BOOST_TEST(need == expected, boost::test_tools::per_element());
  BOOST_TEST(kv_need(residence, 4, 5, 100)[3] == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
