#include <boost/test/unit_test.hpp>

#include "net/session/session.hpp"
#include "test/net/session/two_nodes.hpp"
#include "test/support/seeds.hpp"

/// Sessions over connections that a seed delays, stalls, cuts in the middle of a frame, at one end before the other,
/// or dials from both ends at once, and nodes that start again: frames come once, in order, and all of them once
/// faults are over.
namespace ordermoe {

namespace {

using net::lane;
using net::stream;
using what = net::session_event::what;

constexpr std::int64_t ms = 1'000'000;

struct random_run : test::two_nodes {
  random_stream draws;
  bool restarts;

  static net::session_limits limits_of(std::uint64_t seed) {
    random_stream draws(seed, 1);
    net::session_limits limits;
    constexpr std::uint64_t credits[] = {1, 1000, 5000, 1u << 20};
    for (auto& credit : limits.credit) credit = credits[draws.below(4)];
    constexpr std::uint32_t parts[] = {100, 1000, 1u << 14};
    limits.parts.part_bytes = parts[draws.below(3)];
    constexpr std::int64_t holds_up_ns[] = {0, 1, 10 * ms};
    limits.parts.longest_ns = holds_up_ns[draws.below(3)];
    return limits;
  }
  random_run(std::uint64_t seed, bool with_restarts)
      : two_nodes(limits_of(seed)), draws(seed), restarts(with_restarts) {}

  bool one_in(std::uint64_t n) { return draws.below(n) == 0; }

  void dial_some() {
    const auto has = [&](stream which) {
      return std::ranges::any_of(wires, [&](const auto& each) {
        return each.second.which == which && each.second.attached[0] && each.second.attached[1];
      });
    };
    if (!has(stream::fast) || one_in(40)) dial(draws.below(2), stream::fast, !one_in(3));
    if (one_in(10)) dial(draws.below(2), stream::fast);
    if (!has(stream::bulk) && one_in(2)) dial(draws.below(2), stream::bulk);
  }
  void disturb() {
    if (!wires.empty() && one_in(12)) {
      auto at = wires.begin();
      std::advance(at, draws.below(wires.size()));
      const auto kind = draws.below(4);
      if (kind == 0)
        cut(at->first, true, one_in(2));
      else if (kind == 1)
        cut(at->first, one_in(2), true);
      else
        at->second.stalled = {one_in(2), one_in(2)};
    }
    if (restarts && one_in(150)) restart(draws.below(2));
  }
  void step() {
    if (one_in(3)) dial_some();
    // Without a pause links are timed, and then what is large goes in parts.
    if (one_in(60)) run(300 * ms);
    disturb();
    for (auto n = draws.below(6); n > 0; --n) {
      const auto end = draws.below(2);
      const auto of = static_cast<lane>(draws.below(net::n_lanes));
      const auto size = one_in(4) ? draws.below(6000) : draws.below(200);
      send(end, of, size, one_in(6) ? draws.below(6000 - size) : 0);
    }
    pump(1 + draws.below(4000));
    arrive(1 + draws.below(4000), &draws);
    for (std::size_t i = 0; i < 2; ++i)
      if (one_in(2)) use(i, draws.below(8));
    advance(static_cast<std::int64_t>(draws.below(one_in(8) ? 900 : 60)) * ms);
    check_credit();
  }
  /// But for one frame alone.
  void check_credit() {
    for (const auto& end : ends)
      for (std::size_t i = 0; i < net::n_lanes; ++i)
        if (end.session->outstanding_bytes(static_cast<lane>(i)) >
            end.limits.credit[i] + 6000 + net::header_bytes)
          broken = "more than the credit is outstanding";
  }
  /// Connections hold from now on.
  void heal() {
    for (auto& [id, each] : wires) each.stalled = {false, false};
    for (int i = 0; i < 1000 && broken.empty() && (i < 40 || !at_rest()); ++i) {
      std::vector<std::uint32_t> half;
      for (const auto& [id, each] : wires)
        if (!each.attached[0] || !each.attached[1]) half.push_back(id);
      for (const auto id : half)
        if (wires.contains(id)) cut(id);
      const auto has = [&](stream which) {
        return std::ranges::any_of(wires,
                                   [&](const auto& each) { return each.second.which == which; });
      };
      if (!has(stream::fast)) dial(0, stream::fast);
      run(100 * ms);
      if (both_up() && !has(stream::bulk)) dial(0, stream::bulk);
    }
  }
  /// Bulk goes at the pace of the link as it was found before.
  bool at_rest() const {
    return both_up() && std::ranges::all_of(ends, [](const test::node_end& end) {
             std::uint64_t left = 0;
             for (std::size_t of = 0; of < net::n_lanes; ++of)
               left += end.session->outstanding_bytes(static_cast<lane>(of)) +
                       end.session->waiting_bytes(static_cast<lane>(of));
             return left == 0;
           });
  }
  void check_rest() {
    if (!both_up()) broken = "not up although nothing disturbs them";
    for (std::size_t i = 0; i < 2 && broken.empty(); ++i)
      for (std::size_t of = 0; of < net::n_lanes; ++of) {
        if (ends[i].n_sent[of] != ends[1 - i].n_taken[of])
          broken = fmt::format("{}: not everything arrived on lane {}", ends[i].name,
                               net::to_string(static_cast<lane>(of)));
        if (ends[i].session->outstanding_bytes(static_cast<lane>(of)) +
                ends[i].session->waiting_bytes(static_cast<lane>(of)) !=
            0)
          broken = fmt::format("{}: not everything was used up", ends[i].name);
      }
  }
};

void run_seeds(bool restarts) {
  std::uint64_t resumed = 0, downs = 0, frames = 0, resent = 0, large = 0;
  const auto range = test::seeds(300);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    random_run world(seed, restarts);
    for (int i = 0; i < 300 && world.broken.empty(); ++i) world.step();
    if (world.broken.empty()) world.heal();
    if (world.broken.empty()) world.check_rest();
    BOOST_TEST(world.broken.empty(), "seed " << seed << ": " << world.broken);
    for (const auto& end : world.ends) {
      resumed += end.count(what::resumed);
      downs += end.count(what::down);
      resent += end.session->resent_frames();
      large += end.n_large;
      for (std::size_t i = 0; i < net::n_lanes; ++i)
        frames += end.session->received_bytes(static_cast<lane>(i)) > 0;
    }
  }
  const auto n = range.last - range.first + 1;
  BOOST_TEST_MESSAGE(n << " seeds: " << resumed << " resumed, " << downs << " given up, " << resent
                       << " frames resent, " << large << " large ones");
  BOOST_TEST(resumed > n);
  BOOST_TEST(downs > n / 10);
  BOOST_TEST(resent > n);
  BOOST_TEST(frames > n);
  BOOST_TEST(large > n);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(session_faults)

BOOST_AUTO_TEST_CASE(connections_that_are_cut_and_stalled) {
  run_seeds(false);
}

BOOST_AUTO_TEST_CASE(nodes_that_start_again) {
  run_seeds(true);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
