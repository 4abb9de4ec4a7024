#include "planning/strategies/quality_terms.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <limits>

#include "planning/strategies/strategies.hpp"
#include "test/planning/instances.hpp"
#include "test/support/random_profile.hpp"

namespace ordermoe::planning {

namespace {

constexpr std::size_t n_servers = 5, n_layers = 4, n_experts = 8;

strategy made(std::string_view name, double percent) {
  const auto costs = instances::small_costs();
  const auto experts = random_profile(n_layers, n_experts, 2, 7);
  strategy_options options;
  options.search_steps = 300;
  options.dry_run_requests = 0;
  options.quality_percent = percent;
  auto chosen =
      make_strategy(name, experts, instances::drawn_cluster(n_servers, n_layers, n_experts, 3.5, 3),
                    costs, options);
  BOOST_REQUIRE_MESSAGE(chosen, (chosen ? "" : chosen.error().message));
  return std::move(*chosen);
}

granted_quality granted(const strategy& of, std::optional<double> stated) {
  const auto found = grant_quality(of.quality, of.token_budget, stated);
  BOOST_REQUIRE_MESSAGE(found, (found ? "" : found.error().message));
  return *found;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(quality)

BOOST_AUTO_TEST_CASE(a_request_that_states_nothing_has_what_the_plan_has) {
  for (const auto* name : {"exact", "parallax", "layer-shards", "local-only", "local-tuned", "drop",
                           "wdmoe", "paper", "ordermoe"})
    for (const double percent : {0.0, 5.0, -1.0}) {
      const auto of = made(name, percent);
      const auto plain = granted(of, {});
      BOOST_TEST(plain.token_budget == of.token_budget);
      BOOST_TEST(plain.percent == (of.has_budget ? percent : 0));
    }
  for (const auto* name : {"router-restricted", "local-skip"}) {
    const auto free = made(name, 0);
    BOOST_TEST(granted(free, {}).percent < 0);
    BOOST_TEST(granted(free, {}).token_budget == unbounded_budget);
  }
}

BOOST_AUTO_TEST_CASE(a_smaller_budget_is_what_a_plan_for_it_would_have) {
  for (const auto* name :
       {"local-only", "local-tuned", "drop", "wdmoe", "dynamic-skipping", "paper", "ordermoe"})
    for (const double of_plan : {5.0, -1.0})
      for (const double stated : {0.0, 0.001, 1.0, 4.999}) {
        const auto found = granted(made(name, of_plan), stated);
        const auto planned = made(name, stated).token_budget;
        BOOST_TEST_CONTEXT(name << " for " << of_plan << " %, stated " << stated) {
          BOOST_TEST(found.percent == stated);
          BOOST_TEST(found.token_budget <= planned);
          // Rounded once more.
          BOOST_TEST(found.token_budget >= planned - 1 - planned / 100'000'000);
        }
      }
}

BOOST_AUTO_TEST_CASE(a_larger_budget_counts_as_the_plans_and_says_so) {
  for (const auto* name : {"exact", "parallax", "layer-shards", "local-only", "local-tuned", "drop",
                           "wdmoe", "paper", "ordermoe"}) {
    const auto of = made(name, 5);
    for (const double stated : {5.0, 5.001, 100.0}) {
      const auto found = granted(of, stated);
      BOOST_TEST(found.percent == (of.has_budget ? 5 : 0));
      BOOST_TEST(found.token_budget == of.token_budget);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_percentage_is_refused) {
  const auto of = made("ordermoe", 5);
  constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  for (const double stated : {nan, -nan, infinity, -infinity, -1.0, -1e-300, 100.001, 1e308}) {
    const auto found = grant_quality(of.quality, of.token_budget, stated);
    BOOST_REQUIRE(!found.has_value());
    BOOST_TEST((found.error().code == errc::out_of_range));
    BOOST_TEST(found.error().message.find("0 to 100") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(where_no_budget_is_kept_none_is_granted) {
  const auto of = made("router-restricted", 0);
  for (const double stated : {0.0, 7.0, 100.0}) {
    const auto found = grant_quality(of.quality, of.token_budget, stated);
    BOOST_REQUIRE(!found.has_value());
    BOOST_TEST((found.error().code == errc::unsupported));
  }
}

BOOST_AUTO_TEST_CASE(what_the_whole_models_precision_takes_is_no_requests_to_give_up) {
  quality_terms terms{.percent = 5, .taken_nats = nats_of_percent(2), .units_per_nat = 1e9};
  const auto rest = static_cast<loss_units>((nats_of_percent(5) - nats_of_percent(2)) * 1e9);
  for (const double stated : {0.0, 1.999}) {
    const auto found = grant_quality(terms, rest, stated);
    BOOST_REQUIRE(!found.has_value());
    BOOST_TEST((found.error().code == errc::infeasible));
    BOOST_TEST(found.error().message.find("takes 2 %") != std::string::npos, found.error().message);
  }
  BOOST_TEST(grant_quality(terms, rest, 2)->token_budget == 0);
  const auto some = grant_quality(terms, rest, 3)->token_budget;
  BOOST_TEST(some == static_cast<loss_units>((nats_of_percent(3) - nats_of_percent(2)) * 1e9));
  BOOST_TEST(grant_quality(terms, rest, 5)->token_budget == rest);
  BOOST_TEST(grant_quality(terms, rest, {})->token_budget == rest);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::planning
