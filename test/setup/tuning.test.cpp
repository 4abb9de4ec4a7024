#include "setup/tuning.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "setup/preparation.hpp"
#include "setup/trials.hpp"
#include "test/setup/small_world.hpp"

/// The price of loss at which texts keep a budget.
namespace ordermoe {

namespace {

constexpr std::uint64_t seed = 1;

setup::world world() {
  return test::small_world(test::random_model(model::family::mixtral), 8, 24);
}

/// `ordermoe` on its own plan with a budget, not tuned.
actors::service_options untuned(const setup::world& content, double percent) {
  planning::strategy_options options;
  options.quality_percent = percent;
  options.search_steps = 200;
  auto service = setup::service_in(content, seed);
  auto made =
      planning::make_strategy("ordermoe", service.profile, service.servers, service.costs, options);
  BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  service.chosen = std::move(*made);
  return service;
}

/// Random texts on which it loses something that everything is substituted: a random model is no better at most than one with other experts.
setup::token_documents texts_that_lose(const actors::service_options& service) {
  constexpr std::size_t n_drawn = 64, n_kept = 16;
  const auto free_of_loss =
      setup::tuned(service, setup::tuning{.price_ns_per_nat = 1e7, .damage = 1e-3});
  random_stream draws(9);
  std::vector<std::pair<double, std::vector<std::int32_t>>> drawn(n_drawn);
  job work;
  for (auto& [increase, text] : drawn) {
    for (int i = 0; i < 24; ++i)
      text.push_back(static_cast<std::int32_t>(draws.below(service.model->config().vocab_size)));
    const auto alone = setup::scored_texts::make(service, {text}, work);
    BOOST_REQUIRE(alone.has_value());
    const auto found = alone->score(free_of_loss, work);
    BOOST_REQUIRE(found.has_value());
    increase = found->increase;
  }
  std::ranges::sort(drawn, std::greater(), [](const auto& one) { return one.first; });
  setup::token_documents kept;
  for (std::size_t i = 0; i < n_kept; ++i) kept.push_back(drawn[i].second);
  return kept;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tuning)

BOOST_AUTO_TEST_CASE(a_rough_search_for_a_price_ends_where_the_next_trial_would_be) {
  const auto content = world();
  const auto service = untuned(content, 0.5);
  job work;
  const auto texts = setup::scored_texts::make(service, texts_that_lose(service), work);
  BOOST_REQUIRE(texts.has_value());
  // Loss is as good as free: the one trial says that this is too low.
  const auto start = setup::tuning{.price_ns_per_nat = 1e7, .damage = 1e-3};
  const setup::tuning_limits once{1, 0.1};
  const auto sure = setup::tune(service, start, *texts, once, work);
  const auto about = setup::tune_about(service, start, *texts, 2, once, work);
  BOOST_REQUIRE((sure && about));
  BOOST_TEST(sure->price_ns_per_nat == setup::next_to_no_loss().price_ns_per_nat);
  BOOST_TEST(about->price_ns_per_nat * about->damage > start.price_ns_per_nat * start.damage);
  BOOST_TEST(about->price_ns_per_nat < sure->price_ns_per_nat);
}

BOOST_AUTO_TEST_CASE(where_no_price_kept_the_budget_more_are_tried) {
  const auto content = world();
  const auto service = untuned(content, 20);
  job work;
  const auto texts = setup::scored_texts::make(service, texts_that_lose(service), work);
  BOOST_REQUIRE(texts.has_value());
  const auto start = setup::tuning{.price_ns_per_nat = 1e7, .damage = 1e-3};
  const auto given_up = setup::tune(service, start, *texts, {1, 0.1}, work);
  std::size_t told = 0;
  const auto found = setup::tune(service, start, *texts, {1, 0.1, 12}, work, [&] { ++told; });
  BOOST_REQUIRE((given_up && found));
  BOOST_TEST(given_up->price_ns_per_nat == setup::next_to_no_loss().price_ns_per_nat);
  BOOST_TEST(found->price_ns_per_nat * found->damage <
             given_up->price_ns_per_nat * given_up->damage);
  const auto score = texts->score(setup::tuned(service, *found), work);
  BOOST_REQUIRE(score.has_value());
  BOOST_TEST(score->bound() <= setup::aimed_share * std::log(1.2));
  BOOST_TEST(told == 1);
  const auto is_kept = [&](const setup::tuning& at) {
    const auto kept = setup::is_kept_at(service, at, *texts, work);
    BOOST_REQUIRE(kept.has_value());
    return *kept;
  };
  BOOST_TEST(is_kept(*found));
  BOOST_TEST(!is_kept(start));
}

BOOST_AUTO_TEST_CASE(what_a_full_ledger_hides_is_seen_without_it) {
  const auto content = world();
  const auto service = untuned(content, 300);
  job work;
  const auto texts = setup::scored_texts::make(service, texts_that_lose(service), work);
  BOOST_REQUIRE(texts.has_value());
  // A hundred times what is lost is counted, so that little of it is done.
  const auto at = setup::tuning{.price_ns_per_nat = 1e6, .damage = 100, .left_out = 3};
  const auto found = setup::recounted(service, at, *texts, work);
  BOOST_REQUIRE((found && *found));
  const auto now = **found;
  BOOST_TEST(now.damage < at.damage);
  BOOST_TEST(now.price_ns_per_nat * now.damage == at.price_ns_per_nat * at.damage,
             boost::test_tools::tolerance(1e-9));
  BOOST_TEST(now.left_out / at.left_out == now.damage / at.damage,
             boost::test_tools::tolerance(1e-9));
  const auto before = texts->score(setup::tuned(service, at), work);
  const auto after = texts->score(setup::tuned(service, now), work);
  BOOST_REQUIRE((before && after));
  BOOST_TEST(after->increase > before->increase);
  BOOST_TEST(after->bound() <= setup::aimed_share * std::log(4.0));
  BOOST_TEST(after->predicted <= 2 * after->increase);
  BOOST_TEST(after->increase <= 2 * after->predicted);
  // Of a small budget more than that would be lost.
  const auto little = setup::recounted(untuned(content, 0.5), at, *texts, work);
  BOOST_REQUIRE(little.has_value());
  BOOST_TEST(!little->has_value());
}

BOOST_AUTO_TEST_CASE(what_seems_to_lose_less_than_nothing_is_taken_to_lose_nothing) {
  const setup::trial_score gains{.increase = -0.03, .standard_error = 0.01};
  const setup::trial_score loses{.increase = 0.02, .standard_error = 0.01};
  BOOST_TEST(gains.bound() == 1.645 * 0.01, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(gains.bound(4) == 1.645 * 0.005, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(loses.bound() == 0.02 + 1.645 * 0.01, boost::test_tools::tolerance(1e-12));
  // Of four texts, of which an expensive model is given no more, Student's distribution with three degrees of freedom.
  auto of_few = loses;
  of_few.n_texts = 4;
  BOOST_TEST(of_few.bound() == 0.02 + 2.353 * 0.01, boost::test_tools::tolerance(1e-12));
  auto of_one = loses;
  of_one.n_texts = 1;
  of_one.standard_error = 0;
  BOOST_TEST(std::isinf(of_one.bound()));
  of_one.predicted = 0.03;
  BOOST_TEST(of_one.to_count() == 0.03);
}

BOOST_AUTO_TEST_CASE(a_budget_is_kept_by_a_ledger_that_counts_about_what_was_measured) {
  const auto content = world();
  const auto service = untuned(content, 300);
  job work;
  const auto texts = setup::scored_texts::make(service, texts_that_lose(service), work);
  BOOST_REQUIRE(texts.has_value());
  for (const double damage : {0.1, 10.0}) {
    const auto found = setup::tune(
        service, setup::tuning{.price_ns_per_nat = 1e7, .damage = damage}, *texts, {8, 0.1}, work);
    BOOST_REQUIRE(found.has_value());
    const auto score = texts->score(setup::tuned(service, *found), work);
    BOOST_REQUIRE(score.has_value());
    BOOST_TEST(score->bound() <= std::log(4.0));
    BOOST_TEST_REQUIRE(score->increase > 0);
    BOOST_TEST(score->predicted <= 2 * score->increase);
    BOOST_TEST(score->increase <= 2 * score->predicted);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
