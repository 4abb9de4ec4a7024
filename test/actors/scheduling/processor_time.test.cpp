#include "actors/scheduling/processor_time.hpp"

#include <boost/test/unit_test.hpp>
#include <thread>

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(processor_time)

BOOST_AUTO_TEST_CASE(work_counts_and_waiting_does_not) {
  using namespace std::chrono_literals;
  constexpr std::int64_t most_ns = 5'000'000;
  actors::work_limit limit;
  BOOST_TEST(!limit.is_over(most_ns));
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(10ms);
    BOOST_TEST(!limit.is_over(most_ns));
  }
  const auto before = actors::processor_ns();
  while (actors::processor_ns() - before < most_ns) {
  }
  BOOST_TEST(limit.is_over(most_ns));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
