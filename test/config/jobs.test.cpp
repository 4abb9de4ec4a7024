#include "config/job.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(jobs)

BOOST_AUTO_TEST_CASE(whoever_waits_sees_the_phase_and_its_share) {
  ordermoe::job work;
  BOOST_TEST(work.now().phase == "");
  work.begin("planning");
  work.advancing()(0.25);
  BOOST_TEST(work.now().phase == "planning");
  BOOST_TEST(work.now().share == 0.25);
  work.counting()(3, 4);
  BOOST_TEST(work.now().share == 0.75);
  work.counting()(0, 0);
  BOOST_TEST(work.now().share == 1);
  work.begin("answering");
  BOOST_TEST(work.now().share == 0);
}

BOOST_AUTO_TEST_CASE(whoever_works_is_told_to_stop) {
  ordermoe::job work;
  const auto asked = work.stopping();
  BOOST_TEST(!asked());
  work.stop();
  BOOST_TEST(asked());
  BOOST_TEST(work.stopped());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
