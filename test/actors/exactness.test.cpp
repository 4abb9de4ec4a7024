#include <boost/test/unit_test.hpp>

#include "fixture.hpp"

namespace ordermoe {

namespace {

void check_equals_reference(const test::world& world) {
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  BOOST_REQUIRE_EQUAL(outcome->outcomes.size(), world.setup.requests.size());
  for (const auto& spec : world.setup.requests) {
    model::generation_options options;
    options.max_new_tokens = spec.max_new_tokens;
    options.sampling = {spec.temperature, spec.sampling_seed};
    options.request = spec.number;
    const auto expected = model::generate(*world.setup.model, nullptr, spec.prompt, options);
    BOOST_REQUIRE(expected.has_value());
    const auto& answer = outcome->outcomes[spec.number];
    BOOST_TEST(answer.token_ids == expected->token_ids, boost::test_tools::per_element());
    BOOST_TEST(answer.final_hidden == expected->final_hidden);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(exactness)

BOOST_AUTO_TEST_CASE(emulated_exact_strategies_equal_the_reference_bit_for_bit) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"})
    for (const double temperature : {0.0, 1.0}) {
      BOOST_TEST_CONTEXT(strategy << " at temperature " << temperature) {
        test::world world(strategy);
        world.add_requests(12, 10, temperature);
        check_equals_reference(world);
      }
    }
}

BOOST_AUTO_TEST_CASE(local_exact_strategies_equal_the_reference_bit_for_bit) {
  for (const std::string strategy : {"exact", "layer-shards", "ordermoe"}) {
    BOOST_TEST_CONTEXT(strategy) {
      test::world world(strategy);
      world.setup.mode = actors::run_mode::local;
      world.add_requests(12, 10, 0.8);
      check_equals_reference(world);
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
