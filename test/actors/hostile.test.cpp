#include "test/actors/hostile.hpp"

#include <boost/test/unit_test.hpp>

#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

/// Seeds of a slice; with those of `scripts/campaign hostile` a hundred thousand frames lie.
void check(test::hostile_world& world, test::lying how, std::uint64_t n_seeds) {
  const auto [first, last] = test::seeds(n_seeds);
  for (auto seed = first; seed <= last; ++seed) {
    const auto wrong = world.run(how, seed);
    BOOST_TEST(wrong.empty(), "seed " << seed << ": " << wrong);
  }
  std::string told;
  for (std::size_t kind = 0; kind < world.told.size(); ++kind)
    told += fmt::format(" {} {}", world.told[kind],
                        wire::to_string(static_cast<wire::frame_kind>(kind)));
  BOOST_TEST_MESSAGE("frames that lied:" << told);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(hostile)

BOOST_AUTO_TEST_CASE(a_server_that_lies_in_any_field_affects_its_own_requests_alone) {
  test::hostile_world world;
  check(world, test::lying::in_fields, 40);
  for (std::size_t i = 0; i < world.told_of_list.size(); ++i)
    BOOST_TEST(world.told_of_list[i] > 0u, test::lies()[i].name << " was never told");
}

BOOST_AUTO_TEST_CASE(a_server_that_sends_random_bytes_affects_its_own_requests_alone) {
  test::hostile_world world;
  check(world, test::lying::in_bytes, 20);
  for (const auto count : world.told) BOOST_TEST(count > 0u);
}

BOOST_AUTO_TEST_CASE(a_server_that_says_what_others_said_affects_its_own_requests_alone) {
  test::hostile_world world;
  check(world, test::lying::as_others, 20);
  for (const auto count : world.told) BOOST_TEST(count > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
