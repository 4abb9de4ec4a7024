#include "config/threads.hpp"

#include <sys/resource.h>

#include <boost/test/unit_test.hpp>

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(threads)

BOOST_AUTO_TEST_CASE(a_few_threads_are_given_and_ended_again) {
  BOOST_TEST(check_threads(0).has_value());
  for (int i = 0; i < 20; ++i) BOOST_TEST(check_threads(4).has_value());
}

BOOST_AUTO_TEST_CASE(threads_that_the_system_refuses_are_an_error_that_says_how_many_there_were) {
  rlimit before{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  // Room for the program as it is, and not for the stacks of 8192 threads.
  const rlimit tight{rlim_t{4} << 30, before.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_AS, &tight) == 0);
  const auto checked = check_threads(8192);
  BOOST_REQUIRE(::setrlimit(RLIMIT_AS, &before) == 0);
  BOOST_REQUIRE(!checked.has_value());
  BOOST_TEST(checked.error().message.find("expected 8192") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
