#include "net/session/bulk_pace.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "config/random.hpp"
#include "net/session/session.hpp"
#include "test/net/session/two_nodes.hpp"

namespace ordermoe {

namespace {

using net::bulk_pace;
using net::lane;
using net::stream;

constexpr std::int64_t ms = 1'000'000;
constexpr std::size_t frame = 16 * 1024;

/// Frames as fast as they may go for so long; bytes a second.
double written(bulk_pace& pace, std::int64_t& now_ns, std::int64_t for_ns, std::int64_t late_ns = 0,
               std::size_t frame_size = frame) {
  const auto begin = now_ns;
  std::uint64_t bytes = 0;
  while (now_ns - begin < for_ns) {
    for (; pace.may_write(now_ns); bytes += frame_size) pace.wrote(frame_size, now_ns);
    now_ns = std::max(now_ns, pace.next_ns()) + late_ns;
  }
  return static_cast<double>(bytes) * 1e9 / static_cast<double>(now_ns - begin);
}

/// Two nodes over one wire: both connections of a direction share its rate and its queue, as on a real link. What is
/// in the queue longest arrives first.
struct shared_wire : test::two_nodes {
  struct chunk {
    std::uint32_t id = 0;
    std::string bytes;
    std::int64_t at_ns = 0;
  };
  double bytes_per_s;
  std::int64_t delay_ns;
  std::array<std::deque<chunk>, 2> queues;  ///< To that end.
  std::array<std::int64_t, 2> free_ns{};
  static constexpr std::size_t window = 4u << 20;  ///< Of TCP, for each connection.
  std::map<std::uint32_t, std::size_t> on_way;

  explicit shared_wire(double rate, std::int64_t delay = ms / 10, net::session_limits limits = {})
      : two_nodes(limits), bytes_per_s(rate), delay_ns(delay) {
    dial(0, stream::fast);
    go(20 * ms);
    BOOST_REQUIRE(both_up());
    dial(0, stream::bulk);
  }
  void put_on_wire(std::size_t to) {
    for (auto& [id, each] : wires) {
      auto& bytes = each.in_flight[to];
      if (bytes.empty()) continue;
      free_ns[to] =
          std::max(free_ns[to], now_ns) +
          static_cast<std::int64_t>(static_cast<double>(bytes.size()) * 1e9 / bytes_per_s);
      on_way[id] += bytes.size();
      queues[to].push_back({id, std::exchange(bytes, {}), free_ns[to] + delay_ns});
    }
  }
  void step() {
    for (std::size_t i = 0; i < 2; ++i)
      for (auto& [id, each] : wires)
        while (on_way[id] < window && ends[i].session->has_output(id, now_ns)) {
          ends[i].session->write(id, each.in_flight[1 - i], 64 * 1024, now_ns);
          put_on_wire(1 - i);
        }
    advance(ms / 20);
    for (std::size_t to = 0; to < 2; ++to)
      for (auto& queue = queues[to]; !queue.empty() && queue.front().at_ns <= now_ns;) {
        auto& next = queue.front();
        on_way[next.id] -= next.bytes.size();
        wires.at(next.id).in_flight[to] = std::move(next.bytes);
        queue.pop_front();
        // Only this one moves.
        arrive();
      }
    for (std::size_t i = 0; i < 2; ++i) use(i);
  }
  void go(std::int64_t ns) {
    for (const auto until = now_ns + ns; now_ns < until;) step();
  }
  /// How long what is put on the wire now would wait.
  std::int64_t queue_ns() const { return std::max<std::int64_t>(0, free_ns[1] - now_ns); }
  std::uint64_t bulk_bytes() const { return ends[1].session->received_bytes(lane::bulk); }

  /// Bulk without end, as a user feeds it; the rate, and how long tokens wait at most.
  struct outcome {
    double bytes_per_s = 0;
    std::int64_t longest_wait_ns = 0;
    double mean_wait_ns = 0;
  };
  outcome flood(std::int64_t ns) {
    outcome found;
    const auto begin = now_ns, until = now_ns + ns;
    const auto before = bulk_bytes();
    std::uint64_t n = 0;
    for (; now_ns < until; ++n) {
      auto& from = *ends[0].session;
      while (from.outstanding_bytes(lane::bulk) + from.waiting_bytes(lane::bulk) < (2u << 20))
        send(0, lane::bulk, frame - net::header_bytes);
      step();
      found.longest_wait_ns = std::max(found.longest_wait_ns, queue_ns());
      found.mean_wait_ns += static_cast<double>(queue_ns());
    }
    found.mean_wait_ns /= static_cast<double>(n);
    found.bytes_per_s =
        static_cast<double>(bulk_bytes() - before) * 1e9 / static_cast<double>(now_ns - begin);
    return found;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(bulk_pace)

BOOST_AUTO_TEST_CASE(four_fifths_of_what_was_measured_are_written_however_large_frames_are) {
  for (const double link : {1e6, 12.5e6, 125e6, 1.25e9})
    for (const std::size_t size : {1000u, 16384u, 65576u}) {
      net::bulk_pace pace;
      pace.measured(link);
      std::int64_t now_ns = 5 * ms;
      BOOST_TEST(written(pace, now_ns, 2000 * ms, 0, size) == 0.8 * link,
                 boost::test_tools::tolerance(0.05));
    }
}

BOOST_AUTO_TEST_CASE(a_writer_who_comes_late_makes_up_for_it_and_never_in_a_long_burst) {
  net::bulk_pace pace;
  pace.measured(125e6);
  std::int64_t now_ns = 0;
  BOOST_TEST(written(pace, now_ns, 1000 * ms, ms / 2) == 100e6, boost::test_tools::tolerance(0.05));
  // Much later: what has come together is not more than of a millisecond.
  now_ns += 10'000 * ms;
  std::size_t burst = 0;
  for (; pace.may_write(now_ns); burst += frame) pace.wrote(frame, now_ns);
  BOOST_TEST(burst >= 100'000u);
  BOOST_TEST(burst <= 100'000u + frame);
}

BOOST_AUTO_TEST_CASE(what_is_not_measured_begins_low_and_grows_while_it_is_used) {
  net::bulk_pace pace;
  std::int64_t now_ns = 0;
  BOOST_TEST(written(pace, now_ns, 1000 * ms) == net::bulk_pace::first_bytes_per_s,
             boost::test_tools::tolerance(0.05));
  for (int i = 0; i < 5; ++i) {
    written(pace, now_ns, 200 * ms);
    pace.heartbeat(0, ms);
  }
  const auto grown = pace.bytes_per_s();
  BOOST_TEST(grown > 5e6);
  // Nobody waits for it: nothing says that the link would carry more.
  for (int i = 0; i < 50; ++i) pace.heartbeat(0, ms);
  BOOST_TEST(pace.bytes_per_s() == grown);
}

BOOST_AUTO_TEST_CASE(late_heartbeats_slow_it_and_nothing_keeps_it_slow) {
  net::bulk_pace pace;
  pace.measured(125e6);
  std::int64_t now_ns = 0;
  const auto beat = [&](std::int64_t waited_ns) {
    written(pace, now_ns, 200 * ms);
    pace.heartbeat(waited_ns, ms);
  };
  // One may be a busy processor's.
  beat(50 * ms);
  beat(0);
  BOOST_TEST(pace.bytes_per_s() == 100e6);
  for (int i = 0; i < 100; ++i) beat(500 * ms);
  BOOST_TEST(pace.bytes_per_s() == net::bulk_pace::least_bytes_per_s);
  // The same is found again: that is no reason to jump back.
  pace.measured(125e6);
  BOOST_TEST(pace.bytes_per_s() == net::bulk_pace::least_bytes_per_s);
  for (int i = 0; i < 60; ++i) beat(0);
  BOOST_TEST(pace.bytes_per_s() == 100e6);
  // Late without bulk is not bulk's doing.
  for (int i = 0; i < 10; ++i) pace.heartbeat(50 * ms, ms);
  BOOST_TEST(pace.bytes_per_s() >= 80e6);
}

BOOST_AUTO_TEST_CASE(what_else_goes_to_the_peer_leaves_bulk_the_rest_and_never_nothing) {
  for (const double share : {0.1, 0.5, 1.5}) {
    net::bulk_pace pace;
    pace.measured(100e6);
    std::int64_t now_ns = 0, told_ns = 0;
    double bulk = 0;
    while (now_ns < 1000 * ms) {
      const auto passed_s = static_cast<double>(now_ns - told_ns) * 1e-9;
      pace.others(static_cast<std::size_t>(share * 100e6 * passed_s), now_ns);
      told_ns = now_ns;
      const auto rate = written(pace, now_ns, ms);
      bulk += rate * static_cast<double>(now_ns - told_ns) * 1e-9;
    }
    bulk *= 1e9 / static_cast<double>(now_ns);
    const auto expected = std::max(0.1, std::min(0.8, 0.95 - share));
    BOOST_TEST(bulk == expected * 100e6, boost::test_tools::tolerance(0.1));
  }
}

BOOST_AUTO_TEST_CASE(what_was_found_on_a_link_that_hardly_carries_anything_stops_nothing) {
  net::bulk_pace pace;
  pace.measured(10e3);
  // As much as times a link.
  pace.wrote(512 * 1024, 0);
  BOOST_TEST(pace.next_ns() <= 5000 * ms);
}

// ------------------------------------------------------------------------------------- in a session

BOOST_AUTO_TEST_CASE(the_queue_of_a_shared_link_stays_empty_under_bulk) {
  for (const double rate : {12.5e6, 125e6}) {
    shared_wire world(rate);
    world.flood(1000 * ms);
    BOOST_TEST(world.ends[0].session->bytes_per_s() == rate, boost::test_tools::tolerance(0.02));
    const auto found = world.flood(3000 * ms);
    BOOST_TEST(found.bytes_per_s == 0.8 * rate, boost::test_tools::tolerance(0.05));
    // A burst of filler, once.
    BOOST_TEST(found.mean_wait_ns < 1.2 * frame * 1e9 / rate);
    BOOST_TEST(world.broken.empty(), world.broken);
  }
}

BOOST_AUTO_TEST_CASE(a_paced_stream_does_not_take_its_own_pace_for_the_links) {
  net::session_limits limits;
  limits.burst_busy_ns = 2000 * ms;  // Often, so that what is measured is measured under bulk.
  shared_wire world(125e6, ms / 10, limits);
  world.flood(1000 * ms);
  for (int i = 0; i < 6; ++i) {
    // Beyond all that is remembered of bursts before.
    const auto found = world.flood(8000 * ms);
    BOOST_TEST(found.bytes_per_s == 100e6, boost::test_tools::tolerance(0.05));
    BOOST_TEST(world.ends[0].session->bulk_bytes_per_s() == 100e6,
               boost::test_tools::tolerance(0.03));
  }
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_link_that_gets_slower_is_left_room_before_it_is_measured_again) {
  shared_wire world(125e6);
  world.flood(1500 * ms);
  world.bytes_per_s = 40e6;
  world.flood(4000 * ms);
  const auto found = world.flood(3000 * ms);
  BOOST_TEST(found.bytes_per_s > 20e6);
  // Not what four megabytes of credit would let stand there: 100 ms.
  BOOST_TEST(found.mean_wait_ns < 20.0 * ms);
  world.bytes_per_s = 125e6;
  world.flood(12'000 * ms);
  BOOST_TEST(world.flood(2000 * ms).bytes_per_s > 90e6);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_link_that_nobody_measures_is_found_by_growing) {
  net::session_limits limits;
  limits.burst_busy_ns = limits.burst_idle_ns = 0;
  shared_wire world(50e6, ms, limits);
  const auto first = world.flood(200 * ms);
  BOOST_TEST(first.bytes_per_s < 1.1e6);
  world.flood(6000 * ms);
  const auto found = world.flood(4000 * ms);
  BOOST_TEST(found.bytes_per_s > 25e6);
  BOOST_TEST(found.mean_wait_ns < 20.0 * ms);
  BOOST_TEST(world.ends[0].session->bytes_per_s() == 0);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(neither_tokens_nor_bulk_starve) {
  net::session_limits limits;
  limits.burst_busy_ns = 600'000 * ms;  // Once, before what is looked at.
  shared_wire world(50e6, ms / 10, limits);
  world.flood(1000 * ms);
  // Tokens alone would take half the link.
  const auto before = world.ends[1].n_taken[1], bulk_before = world.bulk_bytes();
  const int n_steps = 40'000;
  std::uint64_t most_missing = 0;
  for (int i = 0; i < n_steps; ++i) {
    auto& from = *world.ends[0].session;
    while (from.outstanding_bytes(lane::bulk) + from.waiting_bytes(lane::bulk) < (2u << 20))
      world.send(0, lane::bulk, frame - net::header_bytes);
    world.send(0, lane::token, 1250 - net::header_bytes);
    world.step();
    most_missing = std::max(most_missing, world.ends[0].n_sent[1] - world.ends[1].n_taken[1]);
  }
  const auto s = n_steps * 50e-6;
  BOOST_TEST(world.ends[1].n_taken[1] - before + 200 >= static_cast<std::uint64_t>(n_steps));
  // Microseconds; what others send is noticed within some milliseconds.
  BOOST_TEST(most_missing * 50 < 4000u);
  BOOST_TEST(static_cast<double>(world.bulk_bytes() - bulk_before) / s > 0.35 * 50e6);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(bulk_that_goes_on_says_nothing_of_the_connection_that_tokens_go_over) {
  test::two_nodes world;
  const auto fast = world.dial(0, stream::fast);
  world.run(3 * ms);
  world.dial(0, stream::bulk);
  world.run(300 * ms);
  world.wires.at(fast).stalled = {true, true};
  for (int i = 0; i < 30; ++i) {
    world.send(0, lane::bulk, 1000);
    world.send(1, lane::bulk, 1000);
    world.run(100 * ms);
  }
  BOOST_TEST(world.ends[0].count(net::session_event::what::down) == 1u);
  BOOST_TEST(world.ends[1].count(net::session_event::what::down) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
