#include "bench/experiments/increase.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <vector>

using namespace ordermoe;
using experiments::increase_by_document;

BOOST_AUTO_TEST_SUITE(increase)

BOOST_AUTO_TEST_CASE(documents_are_the_draws_and_not_their_tokens) {
  // Differences 0.1, 0.1 and 0.4, 0.4: means of documents 0.1 and 0.4 about 0.25.
  const std::vector<double> exact = {1, 2, 3, 4}, losses = {1.1, 2.1, 3.4, 4.4};
  const auto found = increase_by_document(losses, exact, std::vector<std::size_t>{2, 2});
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(std::abs(found->percent - 100 * std::expm1(0.25)) < 1e-9);
  // The standard error of a mean of two that are 0.15 from it: 0.15 * sqrt(2) / sqrt(2).
  BOOST_TEST(std::abs(found->low - 100 * std::expm1(0.25 - 1.96 * 0.15)) < 1e-9);
  BOOST_TEST(std::abs(found->high - 100 * std::expm1(0.25 + 1.96 * 0.15)) < 1e-9);
  // As draws of their own tokens would say less than there is to doubt.
  const auto by_token = increase_by_document(losses, exact, std::vector<std::size_t>{1, 1, 1, 1});
  BOOST_REQUIRE(by_token.has_value());
  BOOST_TEST(by_token->percent == found->percent);
  BOOST_TEST(by_token->high - by_token->low < 0.9 * (found->high - found->low));
}

BOOST_AUTO_TEST_CASE(long_documents_weigh_more) {
  const std::vector<double> exact = {1, 1, 1, 1}, losses = {1.3, 1, 1, 1};
  const auto found = increase_by_document(losses, exact, std::vector<std::size_t>{1, 3});
  BOOST_REQUIRE(found.has_value());
  BOOST_TEST(std::abs(found->percent - 100 * std::expm1(0.3 / 4)) < 1e-9);
  // Sums less length times mean: 0.3 - 0.075 and 0 - 0.225.
  const double half = 1.96 * std::sqrt(2.0 * (0.225 * 0.225 + 0.225 * 0.225)) / 4;
  BOOST_TEST(std::abs(found->high - 100 * std::expm1(0.075 + half)) < 1e-9);
}

BOOST_AUTO_TEST_CASE(one_document_has_no_width_and_other_tokens_are_refused) {
  const std::vector<double> exact = {1, 2}, losses = {1.1, 2.3};
  const auto one = increase_by_document(losses, exact, std::vector<std::size_t>{2});
  BOOST_REQUIRE(one.has_value());
  BOOST_TEST(one->low == one->high);
  for (const auto& lengths : {std::vector<std::size_t>{1}, {3}, {}}) {
    const auto refused = increase_by_document(losses, exact, lengths);
    BOOST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code == errc::mismatch));
  }
  BOOST_TEST(!increase_by_document({}, {}, {}).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
