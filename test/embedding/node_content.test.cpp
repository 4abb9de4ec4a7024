#include "embedding/node_content.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>
#include <new>
#include <stdexcept>
#include <utility>

namespace ordermoe {

namespace {

using api::problem_code;

struct idle_engine final : embedding::engine {
  std::uint64_t submit(actors::remote_request, actors::answer_sink) override { return 0; }
  void cancel(std::uint64_t) override {}
  result<std::string> status() override { return std::string("{}"); }
  void stop() override {}
};

}  // namespace

BOOST_AUTO_TEST_SUITE(node_content)

BOOST_AUTO_TEST_CASE(what_is_over_is_forgotten_when_the_next_comes_and_the_rest_is_closed_by_stop) {
  api::node_content content(std::make_unique<idle_engine>());
  std::vector<int> closed;
  bool is_over = false;
  const auto kept = std::make_shared<int>(0);
  for (const int each : {0, 1, 2})
    BOOST_REQUIRE(content.closes_with(
        {[&closed, each, kept] { closed.push_back(each); }, [&is_over] { return is_over; }}));
  BOOST_TEST(kept.use_count() == 4);
  is_over = true;
  BOOST_REQUIRE(
      content.closes_with({[&closed, kept] { closed.push_back(3); }, [] { return false; }}));
  BOOST_TEST(kept.use_count() == 2);
  BOOST_REQUIRE(content.stop());
  BOOST_TEST(closed == std::vector<int>{3}, boost::test_tools::per_element());
  const auto late = content.closes_with({[] {}, [] { return false; }});
  BOOST_REQUIRE(!late);
  BOOST_TEST((late.problem().code == problem_code::usage));
}

BOOST_AUTO_TEST_CASE(that_memory_is_exhausted_is_told_without_taking_any) {
  const auto told = api::without_exceptions([]() -> api::result<int> { throw std::bad_alloc(); });
  BOOST_REQUIRE(!told);
  BOOST_TEST(told.problem().message == "out of memory");
  // It is kept within the string itself.
  BOOST_TEST(told.problem().message.capacity() == std::string().capacity());
  const auto other =
      api::without_exceptions([]() -> api::result<int> { throw std::runtime_error("no"); });
  BOOST_TEST(other.problem().message == "no");
}

BOOST_AUTO_TEST_CASE(no_wait_is_longer_than_clocks_can_count) {
  using std::chrono::milliseconds;
  const auto now = std::chrono::steady_clock::now();
  const auto longest = embedding::countable(milliseconds::max());
  BOOST_TEST((now + longest > now + std::chrono::hours(24 * 364)));
  BOOST_TEST(embedding::countable(milliseconds(5)).count() == 5);
  BOOST_TEST(embedding::countable(milliseconds::min()).count() == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
