#pragma once

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "test/net/channel/some_nodes.hpp"

/// Of turns: what is sent within one goes out together at its end, and who is told to rest or to do later what was put off.
namespace ordermoe::test {

/// Heartbeats and what the peer says write what waits along with theirs, so that a few turns may be cut short.
inline void what_is_sent_in_a_turn_waits_for_its_end_and_goes_out_together(const some_nodes& with) {
  constexpr std::uint32_t turns = 50, n_each = 20;
  two_ends ends(with);
  ends.up();
  auto& net = ends.a.net();
  std::uint32_t waited = 0, written_at_once = 0;
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    net.begin_turn();
    BOOST_TEST(!net.holds());
    const auto writes = net.figures(0).writes;
    for (std::uint32_t i = 0; i < n_each; ++i)
      BOOST_REQUIRE(ends.a.send(0, lane::token, 1, turn * n_each + i));
    constexpr std::int64_t not_yet = 3'600'000 * ms;
    net.flush(not_yet);
    BOOST_TEST(net.holds());
    const auto held = net.figures(0);
    waited += held.lanes[static_cast<std::size_t>(lane::token)].waiting_bytes >=
              n_each * net::header_bytes;
    net.flush();
    const auto sent = net.figures(0);
    BOOST_TEST(sent.lanes[static_cast<std::size_t>(lane::token)].waiting_bytes == 0u);
    written_at_once += sent.writes == writes + 1;
    net.end_turn();
    BOOST_TEST(!net.holds());
    const auto so_far = (turn + 1) * n_each;
    BOOST_REQUIRE(ends.b.wait([&](const state& now) { return now.frames(0) >= so_far; }));
  }
  BOOST_TEST(waited > turns / 2);
  BOOST_TEST(written_at_once > turns / 2);
  BOOST_TEST(ends.a.send(0, lane::token, 2, 0));
  BOOST_TEST(net.figures(0).lanes[static_cast<std::size_t>(lane::token)].waiting_bytes == 0u);
  BOOST_TEST(ends.b.wait([](const state& now) { return now.frames(0) >= turns * n_each + 1; }));
  BOOST_TEST(ends.b.now().broken.empty(), ends.b.now().broken);
}

/// Sent in the order of the last lane first.
inline void a_turn_goes_to_each_peer_and_its_lanes_in_their_order(const some_nodes& with) {
  constexpr std::uint32_t turns = 40;
  constexpr std::array fast = {lane::control, lane::token, lane::kv, lane::load};
  std::mutex mutex;
  std::vector<lane> came;
  transport_end a, b, c;
  b.on_frame = [&](net::peer_id, const net::frame_header& header) {
    const std::lock_guard lock(mutex);
    came.push_back(header.of);
  };
  b.start(with.node("b", {{"a", std::nullopt}}));
  c.start(with.node("c", {{"a", std::nullopt}}));
  a.start(with.node("a", {{"b", b.at()}, {"c", c.at()}}));
  BOOST_REQUIRE(a.wait_for(what::up, 2));
  for (std::uint32_t turn = 0; turn < turns; ++turn) {
    a.net().begin_turn();
    for (auto of = fast.rbegin(); of != fast.rend(); ++of)
      for (const net::peer_id to : {0u, 1u}) BOOST_REQUIRE(a.send(to, *of, 1, turn));
    a.net().end_turn();
    // Of no peer anything waits for its next heartbeat.
    for (const net::peer_id to : {0u, 1u})
      for (const auto of : fast)
        BOOST_TEST(a.net().figures(to).lanes[static_cast<std::size_t>(of)].waiting_bytes == 0u);
    const auto all_came = [&](const state& now) {
      return now.frames(0) == (turn + 1) * fast.size();
    };
    BOOST_REQUIRE(b.wait(all_came));
    BOOST_REQUIRE(c.wait(all_came));
  }
  BOOST_TEST(b.now().broken.empty(), b.now().broken);
  BOOST_TEST(c.now().broken.empty(), c.now().broken);
  const auto told = [&] {
    const std::lock_guard lock(mutex);
    return came.size() == turns * fast.size();
  };
  BOOST_REQUIRE(comes_to_be(told));
  std::uint32_t in_order = 0;
  for (std::uint32_t turn = 0; turn < turns; ++turn)
    in_order += std::equal(fast.begin(), fast.end(), came.begin() + turn * fast.size());
  // Heartbeats write what waits along with theirs.
  BOOST_TEST(in_order > turns / 2);
}

inline void what_is_written_together_is_cut_anywhere_and_comes_once(const some_nodes& with) {
  constexpr int n_cuts = 15;
  constexpr std::uint32_t n_each = 20;
  random_stream lives(22);
  int so_far = 0;
  two_ends ends(with, patient(), [&] {
    if (so_far++ < 2) return std::uint64_t{50'000};
    constexpr int spare = 5;
    if (so_far > (n_cuts + spare) * with.connections_of_a_dial) return ~std::uint64_t{0};
    return 9000 + lives.below(100'000);
  });
  // A turn fills most of a record of TLS.
  ends.a.plan.always = ends.b.plan.always = 500;
  ends.up();
  std::uint32_t sent = 0;
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(300);
  while (ends.between.n_cut() < n_cuts && std::chrono::steady_clock::now() < until) {
    ends.a.net().begin_turn();
    for (std::uint32_t i = 0; i < n_each; ++i)
      BOOST_TEST_REQUIRE(ends.a.send(0, lane::token, 1, sent++));
    ends.a.net().end_turn();
    BOOST_TEST_REQUIRE(
        ends.b.wait([&](const state& now) { return now.frames(0) + 10 * n_each >= sent; }));
  }
  BOOST_TEST(ends.between.n_cut() >= n_cuts);
  BOOST_TEST(ends.b.wait([&](const state& now) { return now.frames(0) == sent; }));
  const auto now = ends.b.now();
  BOOST_TEST(now.broken.empty(), now.broken);
  BOOST_TEST(now.count(what::down) + ends.a.now().count(what::down) == 0u);
  BOOST_TEST(ends.a.now().count(what::cut) >= 3u);
  BOOST_TEST(ends.a.net().figures(0).resent_frames > 0u);
}

inline void whoever_took_something_hears_when_there_is_no_more_for_now(const some_nodes& with) {
  two_ends ends(with);
  ends.up();
  std::uint64_t sent = 0;
  for (const std::uint32_t n : {1u, 30u}) {
    for (std::uint32_t i = 0; i < n; ++i)
      BOOST_REQUIRE(ends.a.send(0, lane::token, 1, static_cast<std::uint32_t>(sent++)));
    BOOST_TEST(ends.b.wait(
        [&](const state& now) { return now.frames(0) == sent && now.frames_at_rest == sent; }));
  }
}

inline void whoever_does_not_rest_is_not_asked_to(const some_nodes& with) {
  transport_end a, b;
  auto options = with.node("b", {{"a", std::nullopt}});
  options.rests = false;
  b.start(std::move(options));
  a.start(with.node("a", {{"b", b.at()}}));
  BOOST_REQUIRE(a.wait_for(what::up));
  BOOST_REQUIRE(b.wait_for(what::up));
  // It would rest before it takes what is sent once it has taken what came before.
  for (std::uint32_t i = 0; i < 3; ++i) {
    BOOST_REQUIRE(a.send(0, lane::token, 1, i));
    BOOST_TEST(b.wait([&](const state& now) { return now.frames(0) == i + 1; }));
  }
  BOOST_TEST(b.now().rests == 0u);
  b.stop();
  BOOST_TEST(b.now().rests == 0u);
}

inline void what_is_put_off_is_done_later_as_a_turn_of_the_user_and_a_rest_follows(
    const some_nodes& with) {
  two_ends ends(with);
  ends.up();
  constexpr auto delay = std::chrono::milliseconds(20);
  constexpr std::uint32_t n_each = 4;
  auto& net = ends.a.net();
  const auto rests = ends.a.now().rests;
  const auto begun = std::chrono::steady_clock::now();
  std::promise<std::chrono::nanoseconds> first, second;
  std::thread::id of_first, of_second;
  bool held = false;
  net.after(delay.count() * ms, [&] {
    of_first = std::this_thread::get_id();
    for (std::uint32_t i = 0; i < n_each; ++i) ends.a.send(0, lane::token, 1, i);
    held = net.holds();
    first.set_value(std::chrono::steady_clock::now() - begun);
    // From within as well.
    net.after(delay.count() * ms, [&] {
      of_second = std::this_thread::get_id();
      second.set_value(std::chrono::steady_clock::now() - begun);
    });
  });
  BOOST_TEST((first.get_future().get() >= delay));
  BOOST_TEST((second.get_future().get() >= 2 * delay));
  BOOST_TEST(held);
  BOOST_TEST((of_first == of_second && of_first != std::this_thread::get_id()));
  BOOST_TEST(ends.b.wait([](const state& now) { return now.frames(0) == n_each; }));
  BOOST_TEST(ends.a.wait([&](const state& now) { return now.rests >= rests + 2; }));
}

inline void what_is_put_off_is_not_done_once_it_has_stopped(const some_nodes& with) {
  two_ends ends(with);
  ends.up();
  std::atomic<bool> stopped = false, after_all = false;
  for (int i = 0; i < 50; ++i)
    ends.a.net().after(i * ms, [&] { after_all = after_all || stopped; });
  ends.a.stop();
  stopped = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  BOOST_TEST(!after_all);
}

}  // namespace ordermoe::test
