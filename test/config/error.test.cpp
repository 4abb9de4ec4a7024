#include "config/error.hpp"

#include <boost/test/unit_test.hpp>
#include <memory>
#include <set>
#include <string>

using namespace ordermoe;

namespace {

constexpr errc all_codes[] = {errc::usage,       errc::not_found,    errc::io,
                              errc::malformed,   errc::out_of_range, errc::mismatch,
                              errc::unsupported, errc::infeasible,   errc::timed_out,
                              errc::interrupted, errc::failed};

result<int> half(int value) {
  if (value % 2 != 0) return error{errc::out_of_range, "odd"};
  return value / 2;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(error)

BOOST_AUTO_TEST_CASE(a_result_holds_a_value_or_an_error) {
  const auto good = half(4);
  BOOST_REQUIRE(good);
  BOOST_TEST(good.has_value());
  BOOST_TEST(*good == 2);
  const auto bad = half(3);
  BOOST_REQUIRE(!bad);
  BOOST_TEST(bad.error().message == "odd");
  BOOST_TEST((bad.error().code == errc::out_of_range));
}

BOOST_AUTO_TEST_CASE(a_result_of_void_is_success_unless_it_has_an_error) {
  BOOST_TEST(static_cast<bool>(result<void>{}));
  const result<void> bad = ordermoe::error{errc::io, "full"};
  BOOST_TEST(!bad);
  BOOST_TEST(bad.error().message == "full");
}

BOOST_AUTO_TEST_CASE(a_value_that_only_moves_is_moved_out) {
  result<std::unique_ptr<int>> held = std::make_unique<int>(7);
  const auto taken = std::move(held).value();
  BOOST_TEST(*taken == 7);
}

BOOST_AUTO_TEST_CASE(a_result_may_hold_an_error_as_its_message) {
  const auto placed = at("cluster.toml", {errc::malformed, "found a comma"});
  BOOST_TEST(placed.message == "cluster.toml: found a comma");
  BOOST_TEST((placed.code == errc::malformed));
}

BOOST_AUTO_TEST_CASE(every_code_has_its_own_sentence_and_an_exit_code) {
  std::set<std::string> sentences;
  for (const auto code : all_codes) {
    sentences.insert(describe(code));
    BOOST_TEST(exit_code(code) >= 1);
    BOOST_TEST(exit_code(code) <= 3);
  }
  BOOST_TEST(sentences.size() == std::size(all_codes));
  BOOST_TEST(exit_code(errc::usage) == 2);
  BOOST_TEST(exit_code(errc::malformed) == 2);
  BOOST_TEST(exit_code(errc::infeasible) == 3);
  BOOST_TEST(exit_code(errc::failed) == 1);
}

BOOST_AUTO_TEST_SUITE_END()
