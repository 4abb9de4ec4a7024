#include "planning/serving/phases.hpp"

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

enum class door { shut, ajar, open };
constexpr serving::transition<door> steps[] = {
    {door::shut, door::ajar, "push"},
    {door::ajar, door::open, "push"},
    {door::ajar, door::ajar, "creak"},
};

constexpr door after(std::initializer_list<door> moves) {
  serving::phase_of<door> phase(door::shut, steps);
  for (const auto each : moves) phase.move(each);
  return phase.now();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(phases)

BOOST_AUTO_TEST_CASE(a_phase_takes_the_steps_of_its_table_and_no_others) {
  serving::phase_of<door> phase(door::shut, steps);
  BOOST_TEST(phase.is(door::shut));
  BOOST_TEST(!phase.may(door::open));
  BOOST_TEST(!phase.move(door::open));
  BOOST_TEST((phase.now() == door::shut));
  BOOST_TEST(phase.move(door::ajar));
  BOOST_TEST(phase.move(door::ajar));
  BOOST_TEST(phase.move(door::open));
  BOOST_TEST(!phase.move(door::open));
  BOOST_TEST(!phase.move(door::shut));
  BOOST_TEST(phase.is(door::open));
}

BOOST_AUTO_TEST_CASE(phases_are_known_when_compiling) {
  static_assert(after({door::ajar, door::shut, door::open}) == door::open);
  static_assert(after({door::open}) == door::shut);
  BOOST_TEST((after({}) == door::shut));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
