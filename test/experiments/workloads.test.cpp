#include "bench/experiments/workloads.hpp"

#include <boost/test/unit_test.hpp>

#include "model/transformer.hpp"

using namespace ordermoe;
using actors::request_outcome;

namespace {

request_outcome answered(std::vector<std::int32_t> ids, std::string finish) {
  request_outcome made;
  made.token_ids = std::move(ids);
  made.finish = std::move(finish);
  made.first_token_ns = 10'000'000;
  made.done_ns = 30'000'000;
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(workloads)

BOOST_AUTO_TEST_CASE(the_end_of_the_text_is_a_further_token) {
  BOOST_TEST(further_tokens(answered({1, 2}, "length")) == 1u);
  BOOST_TEST(further_tokens(answered({1, 2}, "end_of_text")) == 2u);
  BOOST_TEST(further_tokens(answered({1}, "end_of_text")) == 1u);
  BOOST_TEST(further_tokens(answered({1}, "length")) == 0u);
  BOOST_TEST(further_tokens(answered({}, "end_of_text")) == 0u);
  BOOST_TEST(further_tokens(answered({}, "failed")) == 0u);
}

BOOST_AUTO_TEST_CASE(a_further_token_takes_as_long_whether_the_text_ends_or_not) {
  auto loaded = model::transformer::load(ORDERMOE_DATA "/models/lineage");
  BOOST_REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : loaded.error().message));
  actors::run_setup asked;
  asked.model = *loaded;
  const auto mean_of = [&](std::vector<request_outcome> outcomes) {
    actors::run_result ran;
    ran.outcomes = std::move(outcomes);
    asked.requests.assign(ran.outcomes.size(), {});
    experiments::strategy_report report;
    experiments::answering({}, 4).account(asked, ran, report);
    return report.tpot_ms.mean;
  };
  BOOST_TEST(mean_of({answered({1, 2}, "length")}) == 20);
  BOOST_TEST(mean_of({answered({1, 2}, "end_of_text")}) == 10);
  BOOST_TEST(mean_of({answered({1}, "end_of_text")}) == 20);
  // One token alone has no further one.
  BOOST_TEST(mean_of({answered({1}, "length"), answered({1, 2, 3}, "length")}) == 10);
}

BOOST_AUTO_TEST_SUITE_END()
