#include <boost/test/unit_test.hpp>

#include "net/session/session.hpp"
#include "test/net/session/two_nodes.hpp"

/// Frames in parts, beside what is short and what is bulk.
namespace ordermoe {

namespace {

using net::lane;
using net::stream;
using what = net::session_event::what;
using test::two_nodes;

constexpr std::int64_t ms = 1'000'000;

/// A pair whose wires carry 1 MB/s towards each end: 1 KB a step of a millisecond, of both streams alike.
struct slow_pair : two_nodes {
  std::uint32_t bulk = 0;
  explicit slow_pair(net::session_limits limits = {}, std::uint32_t protocol_of_peer = 2)
      : two_nodes(limits) {
    auto config = ends[1].config();
    config.self.protocol_max = protocol_of_peer;
    ends[1].session.emplace(config, now_ns);
    dial(0, stream::fast);
    pass(3);
    bulk = dial(0, stream::bulk);
    pass(2000);
    BOOST_REQUIRE(ends[0].session->bytes_per_s() > 0.8e6);
    BOOST_REQUIRE(ends[0].session->bytes_per_s() < 1.2e6);
  }
  void pass(int n_ms) {
    for (int i = 0; i < n_ms; ++i) {
      pump(4096);
      arrive(1000);
      for (std::size_t end = 0; end < 2; ++end) use(end);
      advance(1 * ms);
    }
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(parts)

BOOST_AUTO_TEST_CASE(what_is_short_passes_what_holds_a_slow_link_up) {
  slow_pair world;
  const auto token = static_cast<std::size_t>(lane::token);
  BOOST_TEST(world.send(0, lane::token, 300'000));
  world.pass(20);
  BOOST_TEST(world.send(0, lane::token, 500));
  world.pass(3);
  BOOST_TEST(world.ends[1].n_taken[token] == 1u);
  BOOST_TEST(world.ends[1].n_large == 0u);
  // 96 KiB as fast as the link is, and the others at four fifths of that: not before 300 ms.
  world.pass(250);
  BOOST_TEST(world.ends[1].n_taken[token] == 1u);
  world.pass(130);
  BOOST_TEST(world.ends[1].n_taken[token] == 2u);
  BOOST_TEST(world.ends[1].n_large == 1u);
  // What takes no longer than 10 ms, or no part, is short.
  BOOST_TEST(world.send(0, lane::token, 9'000));
  BOOST_TEST(world.send(0, lane::token, 16'000));
  BOOST_TEST(world.send(0, lane::control, 300'000));
  world.pass(600);
  BOOST_TEST(world.ends[1].n_large == 1u);
  BOOST_TEST(world.ends[1].n_taken[token] == 4u);
  BOOST_TEST(world.ends[0].session->outstanding_bytes(lane::bulk) == 0u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(what_goes_in_parts_goes_before_bulk_and_over_cuts) {
  slow_pair world;
  const auto token = static_cast<std::size_t>(lane::token);
  const auto kv = static_cast<std::size_t>(lane::kv);
  const auto bulk = static_cast<std::size_t>(lane::bulk);
  for (int i = 0; i < 10; ++i) BOOST_TEST(world.send(0, lane::bulk, 60'000));
  BOOST_TEST(world.send(0, lane::token, 100'000, 50'000));
  BOOST_TEST(world.send(0, lane::kv, 40'000));
  world.pass(60);
  world.cut(world.bulk);
  world.dial(1, stream::bulk);
  world.pass(300);
  BOOST_TEST(world.ends[1].n_large == 2u);
  BOOST_TEST(world.ends[1].n_taken[token] == 1u);
  BOOST_TEST(world.ends[1].n_taken[kv] == 1u);
  BOOST_TEST(world.ends[1].n_taken[bulk] <= 2u);
  world.pass(3000);
  BOOST_TEST(world.ends[1].n_taken[bulk] == 10u);
  BOOST_TEST(world.ends[0].session->outstanding_bytes(lane::bulk) == 0u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(nothing_goes_in_parts_where_the_peer_or_the_credit_does_not_allow_it) {
  net::session_limits limits;
  limits.credit[static_cast<std::size_t>(lane::bulk)] = 200'000;
  slow_pair world(limits);
  BOOST_TEST(world.send(0, lane::token, 100'000));
  world.pass(300);
  BOOST_TEST(world.ends[1].n_large == 0u);
  BOOST_TEST(world.send(0, lane::token, 90'000));
  world.pass(300);
  BOOST_TEST(world.ends[1].n_large == 1u);
  world.cut(world.bulk);
  BOOST_TEST(world.send(0, lane::token, 90'000));
  world.pass(300);
  BOOST_TEST(world.ends[1].n_large == 1u);
  BOOST_TEST(world.ends[1].n_taken[static_cast<std::size_t>(lane::token)] == 3u);
  BOOST_TEST(world.broken.empty(), world.broken);
  slow_pair old({}, 1);
  BOOST_TEST(old.send(0, lane::token, 90'000));
  BOOST_TEST(old.send(1, lane::token, 90'000));
  old.pass(300);
  BOOST_TEST(old.ends[1].n_large == 0u);
  BOOST_TEST(old.ends[1].n_taken[static_cast<std::size_t>(lane::token)] == 1u);
  BOOST_TEST(old.broken.empty(), old.broken);
}

BOOST_AUTO_TEST_CASE(parts_that_no_session_writes_close_their_connection) {
  const auto said_of = [](std::vector<net::frame_header> headers) {
    slow_pair world;
    std::string bytes;
    std::uint64_t sequence = 0;
    for (auto& each : headers) {
      each.version = net::wire_version;
      each.of = lane::bulk;
      each.sequence = sequence++;
      net::put(each, bytes);
      bytes.append(each.length, '\0');
    }
    auto& end = *world.ends[0].session;
    end.receive(world.bulk, bytes, world.now_ns);
    for (const auto& event : end.take_events())
      if (event.kind == what::fault) return event.text;
    return std::string();
  };
  const auto of_word = [](net::session_word word, std::uint32_t length = 1u << 16) {
    net::frame_header header;
    header.word = word;
    header.length = length;
    return header;
  };
  using net::session_word;
  BOOST_TEST(said_of({of_word(session_word::part), of_word(session_word::last_part)}) == "");
  BOOST_TEST(said_of({of_word(session_word::part), of_word(session_word::none)})
                 .find("lane bulk: found another frame, expected the next part of one") !=
             std::string::npos);
  BOOST_TEST(said_of({of_word(session_word::part, 1), of_word(session_word::last_padded_part, 2)})
                 .find("padding: found 0 bytes of a frame of 3, expected 4 to 3") !=
             std::string::npos);
  // Parts without an end.
  BOOST_TEST(said_of(std::vector<net::frame_header>(100, of_word(session_word::part)))
                 .find("beyond the credit of 4194304") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(bulk_is_no_congestion_and_one_lane_is_not_relieved_for_another) {
  net::session_limits limits;
  limits.credit.fill(5000);
  slow_pair world(limits);
  auto& end = world.ends[0];
  for (int i = 0; i < 20; ++i) BOOST_TEST(world.send(0, lane::bulk, 4000));
  BOOST_TEST(end.session->waiting_bytes(lane::bulk) > 5000u);
  world.pump();
  world.arrive();
  BOOST_TEST(end.count(what::congested) == 0u);
  for (int i = 0; i < 4; ++i) BOOST_TEST(world.send(0, lane::token, 2000));
  for (int i = 0; i < 4; ++i) BOOST_TEST(world.send(0, lane::kv, 2000));
  world.advance(1 * ms);
  BOOST_TEST(end.count(what::congested) == 1u);
  // The taker is done with KV rows, and with no token.
  world.pump();
  world.arrive();
  auto& taker = world.ends[1];
  for (auto each = taker.unused.begin(); each != taker.unused.end();) {
    if (each->of != lane::kv) {
      ++each;
      continue;
    }
    taker.session->used(each->of, net::session::frame_bytes(*each));
    each = taker.unused.erase(each);
  }
  for (int i = 0; i < 400; ++i) {
    world.pump(4096);
    world.arrive(1000);
    world.advance(1 * ms);
  }
  BOOST_TEST(end.count(what::relieved) == 0u);
  world.pass(2000);
  BOOST_TEST(end.count(what::congested) == 1u);
  BOOST_TEST(end.count(what::relieved) == 1u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
