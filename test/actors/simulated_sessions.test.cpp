#include "test/actors/simulated_sessions.hpp"

#include <boost/test/unit_test.hpp>
#include <ctime>

#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

/// Of a slice; `scripts/campaign simulated-sessions` runs ten thousand.
constexpr std::uint64_t n_seeds = 150;

double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(simulated_sessions)

BOOST_AUTO_TEST_CASE(wires_that_break_change_no_answer_and_sessions_that_die_end_what_needed_them) {
  const auto [first, last] = test::seeds(n_seeds);
  const auto begun = processor_seconds();
  test::session_run_counts counts;
  for (auto seed = first; seed <= last; ++seed) {
    test::session_run run(seed);
    const auto wrong = run.run(counts);
    // The first one says it all; where rules are removed, nobody waits for the others.
    BOOST_REQUIRE_MESSAGE(wrong.empty(), run.name() << ": " << wrong);
  }
  const auto seconds = processor_seconds() - begun;
  const auto& all = counts.of_sessions;
  std::string faults;
  for (std::size_t i = 0; i < net::n_wire_faults; ++i)
    faults += fmt::format("{} {}, ", all.faults[i], to_string(static_cast<net::wire_fault>(i)));
  BOOST_TEST_MESSAGE(fmt::format(
      "seeds {} to {}: {} answered, {} failed, {} unheard, {} traces verified; {}{} frames, {} "
      "connections, {} resumed, {} sessions over, {} congested; at least {} frames and {} cuts a "
      "run; {:.1f} ms of processor time a seed",
      first, last, counts.answered, counts.failed, counts.unheard, counts.verified, faults,
      all.frames, all.connections, all.resumed, all.downs, all.congested, counts.fewest_frames,
      counts.fewest_cuts, 1e3 * seconds / static_cast<double>(counts.runs)));
  BOOST_TEST(counts.fewest_frames >= 200u);
  BOOST_TEST(counts.fewest_cuts >= 3u);
  BOOST_TEST(all.resumed > 3 * counts.runs);
  BOOST_TEST(counts.answered > 4 * counts.runs);
  BOOST_TEST(counts.failed > 0u);
  BOOST_TEST(counts.verified > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
