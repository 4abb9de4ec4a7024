#include "net/simulation/pair.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using net::lane;
using net::wire_fault;
using what = net::session_event::what;

constexpr std::int64_t ms = 1'000'000;

std::array<net::session_config, 2> both_ends(const net::session_limits& limits) {
  std::array<net::session_config, 2> ends;
  for (std::size_t i = 0; i < 2; ++i) {
    ends[i].self.cluster = "test";
    ends[i].self.node = std::string(i == 0 ? "a" : "b");
    ends[i].self.self.boot = 1;
    ends[i].peer = std::string(i == 0 ? "b" : "a");
    ends[i].limits = limits;
  }
  return ends;
}

/// A pair in time, whose users take in what comes.
struct driven_pair {
  net::simulated_pair pair;
  std::int64_t now_ns = 0;
  std::array<std::vector<net::session_event>, 2> frames, others;

  explicit driven_pair(const net::wire_options& options = {},
                       const net::session_limits& limits = {}, std::uint64_t seed = 1)
      : pair(both_ends(limits), {net::wire_rate{1e6, 10 * ms}, net::wire_rate{1e6, 10 * ms}},
             options, seed) {}

  void take() {
    for (std::size_t end = 0; end < 2; ++end)
      for (auto& event : pair.take_events(end)) {
        const bool frame = event.kind == what::frame;
        if (frame) pair.used(end, event.header.of, net::session::frame_bytes(event.header));
        (frame ? frames : others)[end].push_back(std::move(event));
      }
  }
  void run(std::int64_t ns) {
    const auto until = now_ns + ns;
    for (;;) {
      const auto next = std::max(now_ns, pair.next_ns());
      if (next > until) break;
      now_ns = next;
      pair.advance(now_ns);
      take();
    }
    now_ns = until;
  }
  bool send(std::size_t end, std::size_t bytes, lane of = lane::token) {
    return pair.send(end, of, 1, 2, 3, 4, std::string(bytes, 'x'));
  }
  std::size_t count(std::size_t end, what kind) const {
    std::size_t n = 0;
    for (const auto& each : others[end]) n += each.kind == kind ? 1 : 0;
    return n;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(pair)

BOOST_AUTO_TEST_CASE(bytes_cross_at_the_wires_rate_after_its_delay) {
  driven_pair two;
  BOOST_TEST(!two.send(0, 10));
  two.run(100 * ms);
  BOOST_TEST(two.count(0, what::up) == 1u);
  BOOST_TEST(two.count(1, what::up) == 1u);
  // Until nothing else is on its way.
  while (!two.pair.at_rest()) two.run(ms);
  const auto begun = two.now_ns;
  BOOST_TEST(two.send(0, 20'000 - net::header_bytes));
  BOOST_TEST(!two.pair.at_rest());
  while (two.frames[1].empty()) two.run(ms / 10);
  const auto took = two.now_ns - begun;
  // 20,000 bytes at a megabyte a second, but for a pulse or two before it.
  BOOST_TEST(took >= 30 * ms);
  BOOST_TEST(took <= 31 * ms);
  const auto& header = two.frames[1].front().header;
  BOOST_TEST(header.kind == 1);
  BOOST_TEST(header.request == 2u);
  BOOST_TEST(header.attempt == 3u);
  BOOST_TEST(header.epoch == 4u);
  two.run(1000 * ms);
  BOOST_TEST(two.pair.at_rest());
  BOOST_TEST(two.pair.broken() == "");
}

BOOST_AUTO_TEST_CASE(whatever_happens_to_connections_each_frame_comes_once) {
  for (std::size_t kind = 0; kind < net::n_wire_faults; ++kind) {
    const auto fault = static_cast<wire_fault>(kind);
    if (fault == wire_fault::silence) continue;
    std::uint64_t resumed = 0, connections = 0;
    for (std::uint64_t seed = 1; seed <= 20; ++seed)
      BOOST_TEST_CONTEXT(to_string(fault) << ", seed " << seed) {
        net::wire_options options;
        options.chunk_bytes = 1000;
        options.read_bytes = seed % 2 == 0 ? 1 : 700;
        options.both_dial = seed % 3 == 0;
        driven_pair two(options, {}, seed);
        two.run(100 * ms);
        for (int i = 0; i < 30; ++i) {
          for (std::size_t end = 0; end < 2; ++end)
            BOOST_TEST(two.send(end, 3000, i % 2 == 0 ? lane::token : lane::bulk));
          if (i % 5 == 0) two.pair.strike(fault);
          two.run(7 * ms);
        }
        two.run(20'000 * ms);
        BOOST_TEST(two.pair.broken() == "");
        BOOST_TEST(two.frames[0].size() == 30u);
        BOOST_TEST(two.frames[1].size() == 30u);
        BOOST_TEST(two.pair.at_rest());
        BOOST_TEST(two.pair.counts().faults[kind] == 6u);
        BOOST_TEST(two.pair.counts().downs == 0u);
        resumed += two.pair.counts().resumed;
        connections += two.pair.counts().connections;
      }
    const bool breaks =
        fault == wire_fault::cut || fault == wire_fault::cut_unequally || fault == wire_fault::flip;
    // Where a second connection takes the place of one that goes sooner at one end, that end is cut between.
    if (fault != wire_fault::dial_again) BOOST_TEST((resumed > 0) == breaks, to_string(fault));
    BOOST_TEST(connections >= 40u);
  }
}

BOOST_AUTO_TEST_CASE(of_one_connection_that_stalls_frames_come_late_and_those_of_others_in_time) {
  // Sent at once over either connection, they take some 20 ms.
  constexpr auto in_time_ns = 50 * ms;
  std::size_t fast_late = 0, bulk_late = 0, both_late = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      net::wire_options options;
      options.most_stall_ns = 500 * ms;
      driven_pair two(options, {}, seed);
      two.run(500 * ms);
      two.pair.strike(wire_fault::stall_one);
      two.run(25 * ms);
      BOOST_TEST(two.send(0, 100));
      BOOST_TEST(two.send(0, 100, lane::bulk));
      two.run(in_time_ns);
      const auto came = [&](lane of) {
        return std::ranges::any_of(two.frames[1],
                                   [&](const auto& each) { return each.header.of == of; });
      };
      fast_late += !came(lane::token) && came(lane::bulk);
      bulk_late += came(lane::token) && !came(lane::bulk);
      both_late += !came(lane::token) && !came(lane::bulk);
      two.run(1000 * ms);
      BOOST_TEST(two.frames[1].size() == 2u);
    }
  BOOST_TEST(fast_late > 0u);
  BOOST_TEST(bulk_late > 0u);
  BOOST_TEST(both_late == 0u);
}

BOOST_AUTO_TEST_CASE(a_session_dies_of_silence_and_another_begins) {
  driven_pair two;
  two.run(100 * ms);
  BOOST_TEST(two.send(0, 100));
  two.pair.strike(wire_fault::silence);
  two.run(20'000 * ms);
  BOOST_TEST(two.count(0, what::down) + two.count(1, what::down) > 0u);
  BOOST_TEST(two.count(0, what::up) == 1 + two.count(0, what::down));
  BOOST_TEST(two.send(0, 100));
  BOOST_TEST(two.send(1, 100));
  two.run(1000 * ms);
  BOOST_TEST(!two.frames[0].empty());
  BOOST_TEST(!two.frames[1].empty());
  BOOST_TEST(two.pair.broken() == "");
}

BOOST_AUTO_TEST_CASE(an_end_that_starts_again_begins_anew_also_where_its_count_of_starts_was_lost) {
  using ending = net::simulated_pair::ending;
  for (const auto how : {ending::process, ending::machine})
    for (const std::uint64_t boot : {2, 1}) {
      driven_pair two;
      two.run(100 * ms);
      BOOST_TEST(two.send(0, 100'000));
      two.run(20 * ms);
      two.pair.end(1, how);
      BOOST_TEST(!two.send(1, 100));
      two.run(500 * ms);
      two.pair.start(1, boot);
      two.run(1500 * ms);
      // Who has the count of the one before waits until that one is known to be gone, and nobody dials a machine that
      // is believed to be there.
      const bool at_once = boot == 2 && how == ending::process;
      BOOST_TEST(two.count(0, what::down) == (at_once ? 1u : 0u));
      two.run(5000 * ms);
      BOOST_TEST(two.count(0, what::down) == 1u);
      BOOST_TEST(two.count(0, what::up) == 2u);
      BOOST_TEST(two.count(1, what::up) == 2u);
      BOOST_TEST(two.send(0, 100));
      BOOST_TEST(two.send(1, 100));
      two.run(1000 * ms);
      BOOST_TEST(two.frames[1].size() == 1u);
      BOOST_TEST(two.frames[0].size() == 1u);
      BOOST_TEST(two.pair.broken() == "");
    }
}

BOOST_AUTO_TEST_CASE(what_an_end_said_before_it_started_again_may_come_late_and_changes_nothing) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      net::wire_options options;
      options.most_stall_ns = 500 * ms;
      options.both_dial = seed % 2 == 0;
      driven_pair two(options, {}, seed);
      random_stream draws(seed, 9);
      const auto some_ms = [&](std::uint64_t most) {
        return static_cast<std::int64_t>(1 + draws.below(most)) * ms;
      };
      two.run(100 * ms);
      for (std::uint64_t boot = 2; boot <= 6; ++boot) {
        const std::size_t which = draws.below(2);
        two.send(0, 2000);
        two.send(1, 2000);
        two.run(some_ms(40));
        two.pair.end(which, net::simulated_pair::ending::process);
        two.run(some_ms(100));
        two.pair.start(which, boot);
        // What comes late then meets a session that has taken something.
        for (int i = 0; i < 10; ++i) {
          two.run(some_ms(100));
          two.send(0, 100);
          two.send(1, 100);
        }
      }
      two.run(20'000 * ms);
      const auto before = two.frames[0].size() + two.frames[1].size();
      BOOST_TEST(two.send(0, 100));
      BOOST_TEST(two.send(1, 100));
      two.run(1000 * ms);
      BOOST_TEST(two.frames[0].size() + two.frames[1].size() == before + 2);
      BOOST_TEST(two.pair.at_rest());
      BOOST_TEST(two.pair.broken() == "");
    }
}

BOOST_AUTO_TEST_CASE(
    bits_that_are_others_and_reach_the_session_end_connections_and_not_the_process) {
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    net::wire_options options;
    options.tls = false;
    driven_pair two(options, {}, seed);
    two.pair.strike(wire_fault::flip);
    for (int i = 0; i < 60; ++i) {
      two.run(50 * ms);
      for (std::size_t end = 0; end < 2; ++end) two.send(end, 2000);
      if (i % 4 == 0) two.pair.strike(wire_fault::flip);
    }
    for (std::size_t end = 0; end < 2; ++end)
      refused += two.count(end, what::fault) + two.count(end, what::refused);
  }
  BOOST_TEST(refused > 100u);
}

BOOST_AUTO_TEST_CASE(what_is_used_late_holds_back_what_is_beyond_the_credit) {
  net::session_limits limits;
  limits.credit.fill(1);
  net::wire_options options;
  options.most_use_delay_ns = 500 * ms;
  driven_pair two(options, limits);
  two.run(100 * ms);
  for (int i = 0; i < 20; ++i) BOOST_TEST(two.send(0, 100));
  two.run(30 * ms);
  BOOST_TEST(two.frames[1].size() == 1u);
  BOOST_TEST(two.count(0, what::congested) == 1u);
  two.run(20'000 * ms);
  BOOST_TEST(two.frames[1].size() == 20u);
  BOOST_TEST(two.count(0, what::relieved) == 1u);
  BOOST_TEST(two.pair.broken() == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
