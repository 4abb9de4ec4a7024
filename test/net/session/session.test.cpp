#include "net/session/session.hpp"

#include <boost/test/unit_test.hpp>

#include "test/net/session/two_nodes.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

using net::lane;
using net::stream;
using what = net::session_event::what;
using test::two_nodes;

constexpr std::int64_t ms = 1'000'000;

struct connected_pair : two_nodes {
  std::uint32_t fast = 0;
  explicit connected_pair(net::session_limits limits = {}) : two_nodes(limits) {
    fast = dial(0, stream::fast);
    run(3 * ms);
    BOOST_REQUIRE(both_up());
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(session)

BOOST_AUTO_TEST_CASE(two_that_agree_are_up_and_frames_come_in_the_order_of_their_lane) {
  connected_pair world;
  BOOST_TEST(world.ends[0].session->peer().node == "b");
  BOOST_TEST(world.ends[1].session->peer().node == "a");
  for (int i = 0; i < 20; ++i) {
    BOOST_TEST(world.send(0, lane::token, 100));
    BOOST_TEST(world.send(1, lane::control, 0));
  }
  world.run(3 * ms);
  BOOST_TEST(world.ends[1].n_taken[1] == 20u);
  BOOST_TEST(world.ends[0].n_taken[0] == 20u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(padding_is_on_the_wire_and_in_every_count_and_nobody_gets_it) {
  connected_pair world;
  BOOST_TEST(world.send(0, lane::token, 100, 900));
  BOOST_TEST(world.send(0, lane::token, 0, 4));
  // Too little to say how much it is.
  BOOST_TEST(world.send(0, lane::token, 100, 3));
  BOOST_TEST(world.send(0, lane::token, 100));
  std::string bytes;
  world.ends[0].session->write(world.fast, bytes, 1u << 20, world.now_ns);
  BOOST_TEST(net::get_header(bytes).length == 1000u);
  BOOST_TEST(bytes.size() == 1040u + 44 + 140 + 140);
  BOOST_TEST(bytes.find_first_not_of('\0', 40 + 100) == 1036u);  // The mark.
  world.wires.at(world.fast).in_flight[1] = bytes;
  world.arrive(777);  // In two pieces.
  world.arrive();
  BOOST_TEST(world.ends[1].n_taken[1] == 4u);
  BOOST_TEST(world.ends[0].session->sent_bytes(lane::token) == bytes.size());
  BOOST_TEST(world.ends[1].session->received_bytes(lane::token) == bytes.size());
  BOOST_TEST(world.ends[0].session->outstanding_bytes(lane::token) == bytes.size());
  world.use(1);
  world.run(500 * ms);
  BOOST_TEST(world.ends[0].session->outstanding_bytes(lane::token) == 0u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(padding_counts_for_the_largest_frame_and_the_credit) {
  net::session_limits limits;
  limits.largest_frame[1] = 1000;
  limits.credit[1] = 1500;
  connected_pair world(limits);
  BOOST_TEST(!world.ends[0].session->send(lane::token, 7, 0, 0, 3, "x", 0, 1000));
  BOOST_TEST(world.send(0, lane::token, 1, 900));
  BOOST_TEST(world.send(0, lane::token, 1, 900));
  world.pump();
  world.arrive();
  BOOST_TEST(world.ends[1].n_taken[1] == 1u);
  BOOST_TEST(world.ends[0].count(what::congested) == 1u);
  world.run(500 * ms);
  BOOST_TEST(world.ends[1].n_taken[1] == 2u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(lanes_take_precedence_at_the_moment_of_writing) {
  connected_pair world;
  world.send(0, lane::load, 1000);
  world.send(0, lane::kv, 1000);
  world.send(0, lane::token, 1000);
  world.send(0, lane::control, 1000);
  std::vector<lane> order;
  for (int i = 0; i < 4; ++i) {
    std::string bytes;
    world.ends[0].session->write(world.fast, bytes, 1, world.now_ns);
    order.push_back(net::get_header(bytes).of);
  }
  const std::vector<lane> expected{lane::control, lane::token, lane::kv, lane::load};
  BOOST_TEST((order == expected));
}

BOOST_AUTO_TEST_CASE(after_a_cut_each_frame_still_comes_once) {
  connected_pair world;
  for (int i = 0; i < 5; ++i) world.send(0, lane::token, 1000);
  // Two of them arrive, and the peer's word of that does not come back.
  world.pump();
  world.arrive(2 * 1040 + 500);
  world.cut(world.fast);
  BOOST_TEST(world.ends[0].count(what::cut) == 1u);
  BOOST_TEST(world.send(0, lane::token, 1000));  // Waits.
  world.dial(1, stream::fast);
  world.run(3 * ms);
  BOOST_TEST(world.ends[0].count(what::resumed) == 1u);
  BOOST_TEST(world.ends[1].n_taken[1] == 6u);
  BOOST_TEST(world.ends[0].session->resent_frames() > 0u);
  BOOST_TEST(world.ends[0].session->sent_bytes(lane::token) == 6 * 1040u);
  BOOST_TEST(world.ends[1].session->received_bytes(lane::token) == 6 * 1040u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(what_is_written_and_not_used_up_stays_within_the_credit) {
  net::session_limits limits;
  limits.credit.fill(5000);
  connected_pair world(limits);
  for (int i = 0; i < 20; ++i) world.send(0, lane::token, 1000);
  for (int i = 0; i < 10; ++i) {
    world.pump();
    world.arrive();
    world.advance(100 * ms);
  }
  auto& sender = *world.ends[0].session;
  BOOST_TEST(sender.outstanding_bytes(lane::token) == 4 * 1040u);
  BOOST_TEST(sender.waiting_bytes(lane::token) == 16 * 1040u);
  BOOST_TEST(world.ends[0].count(what::congested) == 1u);
  BOOST_TEST(world.ends[0].count(what::relieved) == 0u);
  // Another lane goes on, and so does this one once its frames are used up.
  world.send(0, lane::control, 10);
  world.run(5 * ms);
  BOOST_TEST(world.ends[1].n_taken[0] == 1u);
  world.run(2000 * ms);
  BOOST_TEST(world.ends[1].n_taken[1] == 20u);
  BOOST_TEST(sender.outstanding_bytes(lane::token) == 0u);
  BOOST_TEST(world.ends[0].count(what::relieved) == 1u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_frame_larger_than_the_credit_goes_alone) {
  net::session_limits limits;
  limits.credit.fill(1);
  connected_pair world(limits);
  for (int i = 0; i < 10; ++i) world.send(1, lane::kv, 500);
  world.run(100 * ms);
  BOOST_TEST(world.ends[0].n_taken[2] == 10u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(silence_is_suspected_then_ends_the_session_for_both) {
  connected_pair world;
  world.wires.at(world.fast).stalled = {true, true};
  world.send(0, lane::token, 10);
  world.run(1100 * ms);
  BOOST_TEST(world.ends[0].count(what::suspect) == 1u);
  BOOST_TEST(world.ends[0].count(what::down) == 0u);
  world.wires.at(world.fast).stalled = {false, false};
  world.run(10 * ms);
  BOOST_TEST(world.ends[0].count(what::heard) == 1u);
  BOOST_TEST(world.ends[1].n_taken[1] == 1u);
  world.wires.at(world.fast).stalled = {true, true};
  world.run(2600 * ms);
  BOOST_TEST(world.ends[0].count(what::down) == 1u);
  BOOST_TEST(world.ends[1].count(what::down) == 1u);
  BOOST_TEST(!world.send(0, lane::token, 10));
  BOOST_TEST(world.wires.empty());
  world.dial(0, stream::fast);
  world.run(3 * ms);
  BOOST_TEST(world.both_up());
  BOOST_TEST(world.ends[0].session->self().generation == 1u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(what_an_end_slept_through_is_not_its_peers_silence) {
  connected_pair world;
  world.send(0, lane::token, 10);
  world.pump();
  // A host that stands still for a minute, with both or with one of them.
  world.advance(60'000 * ms, 60'000 * ms);
  for (const auto& end : world.ends) {
    BOOST_TEST(end.count(what::suspect) == 0u);
    BOOST_TEST(end.count(what::down) == 0u);
  }
  world.arrive();
  BOOST_TEST(world.ends[1].n_taken[1] == 1u);
  // From then on silence counts as ever.
  world.wires.at(world.fast).stalled = {true, true};
  world.run(2400 * ms);
  BOOST_TEST(world.ends[0].count(what::down) == 0u);
  world.run(200 * ms);
  for (const auto& end : world.ends) {
    BOOST_TEST(end.count(what::suspect) == 1u);
    BOOST_TEST(end.count(what::down) == 1u);
  }
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(whoever_gave_up_alone_makes_the_other_give_up) {
  connected_pair world;
  world.send(1, lane::token, 10);
  world.wires.at(world.fast).stalled = {true, false};  // b still hears a.
  world.run(2600 * ms);
  BOOST_TEST(world.ends[0].count(what::down) == 1u);
  world.dial(1, stream::fast);
  world.run(3 * ms);
  BOOST_TEST(world.both_up());
  BOOST_TEST(world.ends[1].count(what::down) == 1u);
  BOOST_TEST(world.ends[1].count(what::up) == 2u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_node_that_starts_again_begins_another_session) {
  connected_pair world;
  world.send(0, lane::token, 10);
  world.restart(1);
  world.dial(1, stream::fast);
  world.run(3 * ms);
  BOOST_TEST(world.both_up());
  BOOST_TEST(world.ends[0].count(what::down) == 1u);
  BOOST_TEST((world.ends[0].events.back().kind == what::up));
  BOOST_TEST(world.ends[1].n_taken[1] == 0u);
  world.send(0, lane::token, 10);
  world.run(3 * ms);
  BOOST_TEST(world.ends[1].n_taken[1] == 1u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(what_an_earlier_life_said_does_not_end_the_present_session) {
  two_nodes world;
  const auto old = world.dial(1, stream::fast);
  world.wires.at(old).stalled = {true, true};
  world.pump();  // Its hello is on the way.
  auto bytes = world.wires.at(old).in_flight[0];
  world.restart(1);
  world.dial(1, stream::fast);
  world.run(3 * ms);
  BOOST_REQUIRE(world.both_up());
  world.ends[0].session->receive(old, bytes, world.now_ns);
  world.run(3 * ms);
  BOOST_TEST(world.both_up());
  BOOST_TEST(world.ends[0].count(what::up) == 1u);
  BOOST_TEST(world.ends[0].session->peer().self.boot == 2u);
}

BOOST_AUTO_TEST_CASE(of_two_that_dial_at_once_both_keep_the_same_connection) {
  for (const bool in_turn : {false, true}) {
    two_nodes world;
    const auto of_a = world.dial(0, stream::fast);
    const auto of_b = world.dial(1, stream::fast);
    if (in_turn) {
      world.pump(1);
      world.arrive(100);
    }
    world.run(20 * ms);
    BOOST_TEST(world.both_up());
    BOOST_TEST(world.wires.contains(of_a));
    BOOST_TEST(!world.wires.contains(of_b));
    BOOST_TEST(world.ends[0].count(what::up) == 1u);
    BOOST_TEST(world.ends[1].count(what::up) == 1u);
    BOOST_TEST(world.ends[0].count(what::down) == 0u);
    for (int i = 0; i < 3; ++i) world.send(0, lane::token, 10);
    world.run(3 * ms);
    BOOST_TEST(world.ends[1].n_taken[1] == 3u);
  }
}

BOOST_AUTO_TEST_CASE(both_keep_the_same_connection_whichever_hello_comes_first) {
  two_nodes world;
  const auto of_a = world.dial(0, stream::fast);
  const auto of_b = world.dial(1, stream::fast);
  // Each end hears first over the connection that the other keeps for later.
  world.wires.at(of_a).stalled = {false, true};
  world.wires.at(of_b).stalled = {true, false};
  world.pump();
  world.arrive();
  world.wires.at(of_a).stalled = world.wires.at(of_b).stalled = {false, false};
  world.run(20 * ms);
  BOOST_TEST(world.both_up());
  BOOST_TEST(world.wires.contains(of_a));
  BOOST_TEST(!world.wires.contains(of_b));
  BOOST_TEST(world.ends[0].count(what::down) + world.ends[1].count(what::down) == 0u);
}

BOOST_AUTO_TEST_CASE(a_connection_that_went_silent_gives_way_to_another) {
  connected_pair world;  // Dialled by a, whose name is the lower one.
  world.send(0, lane::token, 10);
  world.cut(world.fast, false, true);  // a does not notice.
  world.run(500 * ms);
  BOOST_TEST(world.ends[0].count(what::cut) == 0u);
  const auto other = world.dial(1, stream::fast);
  world.run(3 * ms);
  BOOST_TEST(world.both_up());
  BOOST_TEST(world.wires.contains(other));
  BOOST_TEST(world.ends[1].n_taken[1] == 1u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(what_must_agree_is_compared_and_named_at_both_ends) {
  const auto refusal_of = [](auto change) {
    two_nodes world;
    auto config = world.ends[1].config();
    change(config);
    world.ends[1].session.emplace(config, world.now_ns);
    world.dial(0, stream::fast);
    world.run(5 * ms);
    BOOST_TEST(!world.both_up());
    BOOST_TEST(world.wires.empty());
    BOOST_TEST(world.ends[0].count(what::refused) >= 1u);
    BOOST_TEST(world.ends[1].count(what::refused) >= 1u);
    return world.ends[0].events.front().text;
  };
  BOOST_TEST(refusal_of([](auto& config) { config.self.agreed[0].second = "xyz"; }) ==
             "hello.model: found xyz, expected abc");
  BOOST_TEST(refusal_of([](auto& config) { config.self.agreed.clear(); }) ==
             "hello.model: found nothing, expected abc");
  BOOST_TEST(refusal_of([](auto& config) { config.self.agreed.emplace_back("kv", "bf16"); }) ==
             "hello.kv: found bf16, expected nothing");
  BOOST_TEST(refusal_of([](auto& config) { config.self.cluster = "other"; }) ==
             "hello.cluster: found other, expected test");
  BOOST_TEST(refusal_of([](auto& config) { config.self.node = "c"; }) ==
             "hello.node: found c, expected b");
  BOOST_TEST(refusal_of([](auto& config) {
               config.self.protocol_min = 3;
               config.self.protocol_max = 4;
             }) == "hello.protocol: found 3 to 4, expected 1 to 2");
}

BOOST_AUTO_TEST_CASE(ends_of_other_limits_refuse_each_other_before_a_frame_is_sent) {
  two_nodes world;
  auto config = world.ends[1].config();
  config.limits.credit[1] = 5000;
  world.ends[1].session.emplace(config, world.now_ns);
  world.dial(0, stream::fast);
  world.run(5 * ms);
  BOOST_TEST(world.ends[0].events.front().text ==
             "hello.credit.token: found 5000, expected 67108864");
}

BOOST_AUTO_TEST_CASE(a_frame_that_the_peer_would_refuse_is_not_taken) {
  net::session_limits limits;
  limits.largest_frame[1] = 100;
  connected_pair world(limits);
  BOOST_TEST(!world.send(0, lane::token, 101));
  BOOST_TEST(world.send(0, lane::token, 100));
  world.run(3 * ms);
  BOOST_TEST(world.ends[1].n_taken[1] == 1u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_refusal_by_a_peer_that_seemed_to_agree_cuts_the_session) {
  connected_pair world;
  net::frame_header header;
  header.version = net::wire_version;
  header.word = net::session_word::refusal;
  header.length = 2;
  std::string bytes;
  net::put(header, bytes);
  bytes += "no";
  auto& end = *world.ends[0].session;
  end.receive(world.fast, bytes, world.now_ns);
  BOOST_TEST((end.now_in() == net::session::phase::cut));
  world.run(3 * ms);
  BOOST_TEST(world.ends[0].count(what::refused) == 1u);
  BOOST_TEST(world.ends[0].count(what::cut) == 1u);
}

BOOST_AUTO_TEST_CASE(a_goodbye_ends_the_session_at_once) {
  connected_pair world;
  world.ends[0].session->leave("stopping");
  world.run(3 * ms);
  BOOST_TEST(world.ends[1].count(what::down) == 1u);
  BOOST_TEST(world.ends[1].events.back().text == "a left: stopping");
  BOOST_TEST(world.wires.empty());
}

BOOST_AUTO_TEST_CASE(bulk_has_its_own_connection_once_the_session_is_up) {
  two_nodes early;
  early.dial(0, stream::bulk);
  early.run(3 * ms);
  BOOST_TEST(early.wires.empty());
  connected_pair world;
  world.send(0, lane::bulk, 5000);
  world.run(3 * ms);
  BOOST_TEST(world.ends[1].n_taken[4] == 0u);
  const auto bulk = world.dial(0, stream::bulk);
  world.run(3 * ms);
  BOOST_TEST(world.ends[1].n_taken[4] == 1u);
  world.send(0, lane::bulk, 5000);
  world.cut(bulk);
  BOOST_TEST(world.ends[0].count(what::cut) == 0u);
  world.dial(0, stream::bulk);
  // Its pace goes on behind the filler that timed the link.
  world.run(300 * ms);
  BOOST_TEST(world.ends[1].n_taken[4] == 2u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_round_trip_leaves_out_what_the_peer_held) {
  connected_pair world;
  // For longer than what came before it, over a shorter way, is remembered.
  for (int i = 0; i < 100; ++i) {
    world.pump();
    world.advance(30 * ms);
    world.arrive();
    world.advance(35 * ms);
  }
  BOOST_TEST(world.ends[0].session->round_trip_ns() >= 60 * ms);
  BOOST_TEST(world.ends[0].session->round_trip_ns() <= 130 * ms);
}

BOOST_AUTO_TEST_CASE(whoever_says_nothing_is_refused_in_time) {
  two_nodes world;
  auto& end = *world.ends[0].session;
  end.connected(99, stream::fast, false, "b", world.now_ns);
  end.tick(4'999 * ms);
  BOOST_TEST(end.take_closing().empty());
  BOOST_TEST(end.next_tick_ns() == 5'000 * ms);
  end.tick(5'000 * ms);
  BOOST_TEST(end.take_closing().size() == 1u);
  BOOST_TEST(end.take_events().back().text.find("no hello") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(bytes_that_no_session_writes_close_the_connection_and_nothing_else) {
  // What stands in the header, and what is said of it.
  const auto said_of = [](bool greeted, net::frame_header header, std::size_t n_bytes = 0) {
    connected_pair world;
    auto& end = *world.ends[0].session;
    auto id = world.fast;
    if (!greeted) {
      id = 77;
      end.connected(id, stream::fast, false, "b", world.now_ns);
    }
    std::string bytes;
    net::put(header, bytes);
    bytes.append(n_bytes, 'x');
    end.receive(id, bytes, world.now_ns);
    const auto events = end.take_events();
    BOOST_REQUIRE(!events.empty());
    BOOST_TEST((events[0].kind == what::fault || events[0].kind == what::refused));
    BOOST_TEST((end.take_closing() == std::vector<net::session::connection_id>{id}));
    BOOST_TEST((end.now_in() != net::session::phase::away));
    return events[0].text;
  };
  const auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  net::frame_header good;
  good.version = net::wire_version;
  auto bad = good;
  bad.version = 9;
  BOOST_TEST(has(said_of(true, bad), "version: found 9, expected 1"));
  bad = good;
  bad.of = static_cast<lane>(200);
  BOOST_TEST(has(said_of(true, bad), "lane: found 200"));
  bad = good;
  bad.of = lane::bulk;
  BOOST_TEST(has(said_of(true, bad), "lane: found 4"));
  bad = good;
  bad.word = static_cast<net::session_word>(77);
  BOOST_TEST(has(said_of(true, bad), "word: found 77"));
  bad = good;
  bad.word = net::session_word::last_part;
  BOOST_TEST(has(said_of(true, bad), "word: found a part of a frame in lane control"));
  bad = good;
  bad.length = 0xffffffff;
  BOOST_TEST(has(said_of(true, bad), "length: found 4294967295"));
  bad = good;
  bad.sequence = 5;
  BOOST_TEST(has(said_of(true, bad), "sequence of lane control: found 5, expected 0"));
  bad = good;
  bad.word = net::session_word::padded;
  BOOST_TEST(has(said_of(true, bad), "padding: found 0 bytes of a frame of 0, expected 4 to 0"));
  bad.length = 8;  // 'xxxx' as a number.
  BOOST_TEST(has(said_of(true, bad, 8), "padding: found 2021161080 bytes of a frame of 8"));
  bad = good;
  bad.word = net::session_word::pulse;
  BOOST_TEST(has(said_of(true, bad), "pulse: found 0 bytes"));
  bad.length = 14 * 8;
  BOOST_TEST(has(said_of(true, bad, bad.length), "confirmed, expected at most frame 0"));
  BOOST_TEST(has(said_of(false, good), "expected a hello first"));
  bad = good;
  bad.word = net::session_word::hello;
  BOOST_TEST(has(said_of(true, bad), "second hello"));
  bad.length = 20;
  BOOST_TEST(has(said_of(false, bad, 20), "hello:"));
  bad.length = 1u << 20;
  BOOST_TEST(has(said_of(false, bad), "length: found 1048576 bytes, expected at most 16384"));
}

BOOST_AUTO_TEST_CASE(a_session_whose_ends_do_not_fit_together_is_given_up_after_a_few_connections) {
  connected_pair world;
  auto& end = *world.ends[0].session;
  const auto& peer = *world.ends[1].session;
  net::frame_header gap;
  gap.version = net::wire_version;
  gap.sequence = 5;
  std::string bytes;
  net::put(gap, bytes);
  net::hello theirs;
  theirs.cluster = "test";
  theirs.node = "b";
  theirs.self = peer.self();
  theirs.other = end.self();
  theirs.agreed = end.peer().agreed;
  std::string greeting;
  const auto said = net::hello_text(theirs);
  net::frame_header first;
  first.version = net::wire_version;
  first.word = net::session_word::hello;
  first.length = static_cast<std::uint32_t>(said.size());
  net::put(first, greeting);
  greeting += said;
  const auto connect_and_say = [&](std::uint32_t id, const std::string& words) {
    end.connected(id, stream::fast, true, "b", world.now_ns);
    end.receive(id, greeting, world.now_ns);
    end.receive(id, words, world.now_ns);
    std::size_t faults = 0;
    for (const auto& event : end.take_events()) faults += event.kind == what::fault ? 1 : 0;
    return faults;
  };
  BOOST_TEST(connect_and_say(70, bytes) == 1u);
  BOOST_TEST(connect_and_say(71, bytes) == 1u);
  // A new frame: it can go on.
  gap.sequence = 0;
  std::string whole;
  net::put(gap, whole);
  BOOST_TEST(connect_and_say(72, whole) == 0u);
  BOOST_TEST(connect_and_say(73, bytes) == 1u);
  BOOST_TEST(connect_and_say(74, bytes) == 1u);
  BOOST_TEST((end.now_in() == net::session::phase::cut));
  const auto before = end.self().generation;
  end.connected(75, stream::fast, true, "b", world.now_ns);
  end.receive(75, greeting, world.now_ns);
  end.receive(75, bytes, world.now_ns);
  BOOST_TEST((end.now_in() == net::session::phase::away));
  BOOST_TEST(end.self().generation == before + 1);
  const auto events = end.take_events();
  BOOST_REQUIRE(!events.empty());
  BOOST_TEST((events.back().kind == what::down));
  BOOST_TEST(events.back().text.find("does not go on where this end is: sequence") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(random_bytes_never_break_it) {
  random_stream draws(5);
  for (int run = 0; run < 300; ++run) {
    connected_pair world;
    for (int i = 0; i < 5; ++i) world.send(1, lane::token, 200);
    world.ends[1].session->write(world.fast, world.wires.at(world.fast).in_flight[0], 1u << 20,
                                 world.now_ns);
    auto bytes = world.wires.at(world.fast).in_flight[0];
    for (std::uint64_t n = 1 + draws.below(8); n > 0; --n)
      bytes[draws.below(bytes.size())] = static_cast<char>(draws.bits());
    auto& end = *world.ends[0].session;
    for (std::size_t at = 0; at < bytes.size();) {
      const auto n = std::min<std::size_t>(bytes.size() - at, 1 + draws.below(300));
      end.receive(world.fast, std::string_view(bytes).substr(at, n), world.now_ns);
      at += n;
    }
    for (const auto& event : end.take_events())
      if (event.kind == what::frame) BOOST_TEST(event.text.size() == event.header.length);
  }
}

BOOST_AUTO_TEST_CASE(the_round_trip_is_the_least_of_the_last_seconds) {
  connected_pair world;
  const auto slow = [&](int times) {
    for (int i = 0; i < times; ++i) {
      world.pump();
      world.advance(30 * ms);
      world.arrive();
    }
  };
  world.run(1000 * ms);
  const auto before = world.ends[0].session->round_trip_ns();
  BOOST_TEST(before >= 0);
  BOOST_TEST(before <= 3 * ms);
  // Waits of two seconds are not the link's.
  slow(2000 / 30);
  BOOST_TEST(world.ends[0].session->round_trip_ns() == before);
  // What stays is.
  slow(6000 / 30);
  BOOST_TEST(world.ends[0].session->round_trip_ns() >= 60 * ms);
  world.run(1000 * ms);
  BOOST_TEST(world.ends[0].session->round_trip_ns() <= 3 * ms);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(filler_times_a_link_that_carries_nothing_large) {
  net::session_limits limits;
  limits.burst_busy_ns = 1000 * ms;
  limits.burst_idle_ns = 10'000 * ms;
  connected_pair world(limits);
  world.dial(0, stream::bulk);
  const auto step = [&](std::size_t bytes) {
    world.pump();
    world.arrive(bytes);
    for (std::size_t i = 0; i < 2; ++i) world.use(i);
    world.advance(ms / 5);
  };
  const auto found = [&] { return world.ends[0].session->bytes_per_s(); };
  BOOST_TEST(found() == 0);
  for (int i = 0; i < 5000; ++i) step(2'000);
  BOOST_TEST(found() == 10e6, boost::test_tools::tolerance(0.02));
  // The link gets slower. Nothing is sent: nobody looks for long.
  for (int i = 0; i < 25'000; ++i) step(1'000);
  BOOST_TEST(found() == 10e6, boost::test_tools::tolerance(0.02));
  // Frames are sent: it is timed at once, and what was before is forgotten in half a minute.
  for (int i = 0; i < 200'000; ++i) {
    if (i % 500 == 0) world.send(0, lane::token, 10);
    step(1'000);
  }
  BOOST_TEST(found() == 5e6, boost::test_tools::tolerance(0.02));
  BOOST_TEST(world.ends[1].count(what::frame) == 0u);
  BOOST_TEST(world.broken.empty(), world.broken);
}

BOOST_AUTO_TEST_CASE(a_large_frame_times_the_link_and_no_filler_is_needed) {
  net::session_limits limits;
  limits.burst_busy_ns = limits.burst_idle_ns = 0;
  connected_pair world(limits);
  world.dial(0, stream::bulk);
  world.send(0, lane::token, 300'000);
  for (int i = 0; i < 4000; ++i) {
    world.pump();
    world.arrive(2'000);
    world.advance(ms / 10);
  }
  BOOST_TEST(world.ends[0].session->bytes_per_s() == 20e6, boost::test_tools::tolerance(0.02));
  BOOST_TEST(world.ends[1].session->bytes_per_s() == 0);
}

BOOST_AUTO_TEST_CASE(filler_that_announces_too_much_is_a_fault) {
  connected_pair world;
  world.dial(0, stream::bulk);
  world.run(3 * ms);
  net::frame_header header;
  header.version = net::wire_version;
  header.word = net::session_word::filler;
  header.of = lane::bulk;
  header.sequence = 65;
  std::string bytes;
  net::put(header, bytes);
  world.ends[1].session->receive(2, bytes, world.now_ns);
  const auto events = world.ends[1].session->take_events();
  BOOST_REQUIRE(!events.empty());
  BOOST_TEST((events.back().kind == what::fault));
  BOOST_TEST(events.back().text.find("parts of filler") != std::string::npos, events.back().text);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
