#include "model/torch/trainer_torch.hpp"

#include <boost/test/unit_test.hpp>

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(trainer)

BOOST_AUTO_TEST_CASE(the_learning_rate_rises_stays_and_falls) {
  BOOST_TEST(schedule(0, 0, true) < 0.1);
  BOOST_TEST(schedule(0.3, 500, true) == 1.0);
  BOOST_TEST(schedule(0.3, 0, false) == 1.0);
  BOOST_TEST(schedule(0.8, 500, true) < 0.6);
  BOOST_TEST(schedule(0.999999, 500, true) == 0.05, boost::test_tools::tolerance(1e-3));
  BOOST_TEST(schedule(1.0, 500, false) == 0.4, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(schedule(whole_recipe, 500, false) == 0.02, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_SUITE_END()
