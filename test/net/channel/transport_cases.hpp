#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "test/net/channel/some_nodes.hpp"

/// Of frames and the ways they take: every one comes once and in its order, whatever is cut, silent, started again or stopped.
namespace ordermoe::test {

inline void frames_of_all_lanes_from_many_threads_come_once_and_in_order(const some_nodes& with) {
  constexpr std::uint32_t n_each = 1000;
  auto limits = patient();
  limits.dead_ns = std::max(limits.dead_ns, with.least_dead_ns);
  limits.parts.longest_ns = 0;  // On a slow machine large ones would come in parts, by lane bulk.
  two_ends ends(with, limits);
  for (auto* end : {&ends.a, &ends.b}) end->plan.most_bytes = 256 * 1024;
  ends.up();
  std::vector<std::thread> threads;
  send_from_threads(ends.a, n_each, threads);
  send_from_threads(ends.b, n_each, threads);
  join(threads);
  BOOST_TEST(ends.both_have(10 * n_each));
  ends.check_whole(10 * n_each);
  const auto a = ends.a.net().figures(0), b = ends.b.net().figures(0);
  BOOST_TEST(a.connections == 2u);
  BOOST_TEST(a.resent_frames + b.resent_frames == 0u);
  BOOST_TEST(a.self.boot == 1u);
  for (std::size_t i = 0; i < net::n_lanes; ++i) {
    BOOST_TEST(a.lanes[i].sent_bytes == b.lanes[i].received_bytes);
    BOOST_TEST(b.lanes[i].sent_bytes == a.lanes[i].received_bytes);
    BOOST_TEST(a.lanes[i].sent_bytes > n_each * 2 * net::header_bytes);
    BOOST_TEST(a.lanes[i].waiting_bytes == 0u);
  }
  BOOST_TEST(a.written_bytes > b.read_bytes / 2);
  BOOST_TEST(!ends.a.send(1, lane::token, 1, 0));
}

inline void a_node_without_an_address_dials_whoever_has_one(const some_nodes& with) {
  transport_end a, b;
  a.start(with.node("a", {{"b", std::nullopt}}));
  auto only_dials = with.node("b", {{"a", a.at()}});
  only_dials.listen.clear();
  b.start(std::move(only_dials));
  BOOST_TEST_REQUIRE(a.wait_for(what::up));
  BOOST_TEST_REQUIRE(b.wait_for(what::up));
  std::vector<std::thread> threads;
  send_from_threads(a, 20, threads);
  send_from_threads(b, 20, threads);
  join(threads);
  for (auto* end : {&a, &b}) {
    BOOST_TEST(end->wait([](const state& now) { return now.frames(0) == 200; }));
    BOOST_TEST(end->now().broken.empty(), end->now().broken);
  }
}

inline void connections_that_are_cut_anywhere_lose_nothing_and_double_nothing(
    const some_nodes& with) {
  constexpr int n_cuts = 20;
  random_stream draws(11), lives(12);
  int so_far = 0;
  // In the handshake, in the hellos, or anywhere behind them; the first gets through.
  auto limits = patient();
  // Where cuts make a way slow, large ones would come in parts, by lane bulk.
  limits.parts.longest_ns = 0;
  two_ends ends(with, limits, [&] {
    if (so_far++ < 2) return std::uint64_t{50'000};
    // Some may end before they are cut.
    constexpr int spare = 5;
    if (so_far > (n_cuts + spare) * with.connections_of_a_dial) return ~std::uint64_t{0};
    return lives.below(3) == 0 ? 1 + lives.below(9000) : 9000 + lives.below(200'000);
  });
  for (auto* end : {&ends.a, &ends.b}) end->plan.most_bytes = 64 * 1024;
  ends.up();
  std::array<std::uint32_t, net::n_lanes> sent{};
  std::uint64_t n = 0;
  const auto some_are_there = [&](const state& now) { return now.frames(0) + 300 >= n; };
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(300);
  while (ends.between.n_cut() < n_cuts && std::chrono::steady_clock::now() < until) {
    const auto of = static_cast<lane>(draws.below(net::n_lanes));
    const auto i = sent[static_cast<std::size_t>(of)]++;
    BOOST_TEST_REQUIRE(ends.a.send(0, of, 1, i));
    BOOST_TEST_REQUIRE(ends.b.send(0, of, 1, i));
    ++n;
    BOOST_TEST_REQUIRE(ends.a.wait(some_are_there));
    BOOST_TEST_REQUIRE(ends.b.wait(some_are_there));
  }
  BOOST_TEST(ends.between.n_cut() >= n_cuts);
  BOOST_TEST(ends.both_have(n));
  ends.check_whole(n);
  BOOST_TEST(ends.a.now().count(what::cut) >= 3u);
  BOOST_TEST(ends.a.wait(
      [](const state& now) { return now.count(what::resumed) == now.count(what::cut); }));
  BOOST_TEST(ends.a.net().figures(0).resent_frames + ends.b.net().figures(0).resent_frames > 0u);
}

inline void a_way_that_carries_nothing_any_more_is_given_up_and_another_one_is_found(
    const some_nodes& with) {
  auto limits = hasty();
  limits.parts.longest_ns = 0;  // On a slow machine large ones would come in parts, by lane bulk.
  two_ends ends(with, limits);
  for (auto* end : {&ends.a, &ends.b}) end->plan.always = 200'000;
  ends.up();
  ends.between.stall();
  // More than sockets hold.
  for (std::uint32_t i = 0; i < 60; ++i)
    for (const auto of : {lane::kv, lane::bulk}) {
      ends.a.send(0, of, 1, i);
      ends.b.send(0, of, 1, i);
    }
  for (auto* end : {&ends.a, &ends.b}) {
    BOOST_TEST(end->wait_for(what::down));
    BOOST_TEST(end->wait_for(what::up, 2));
  }
  // The other end may hear of it from this one.
  BOOST_TEST(has(ends.a.now().last(what::down), "was silent for"));
  BOOST_TEST(arrives(ends.a, ends.b, lane::kv));
  BOOST_TEST(arrives(ends.a, ends.b, lane::bulk));
  BOOST_TEST(arrives(ends.b, ends.a, lane::kv));
}

inline void a_peer_that_starts_again_is_down_and_up(const some_nodes& with) {
  transport_end a;
  forwarder between;
  a.start(with.node("a", {{"b", between.at()}}));
  auto b = std::make_unique<transport_end>();
  const auto b_with = [&](std::uint64_t boot) {
    auto options = with.node("b", {{"a", std::nullopt}});
    options.boot = boot;
    return options;
  };
  b->start(b_with(1));
  between.lead_to(b->at());
  BOOST_TEST(a.wait_for(what::up));
  // It ends in good order and says so.
  BOOST_TEST(b->wait_for(what::up));
  b->stop();
  BOOST_TEST(a.wait_for(what::down));
  BOOST_TEST(has(a.now().last(what::down), "b left"), a.now().last(what::down));
  BOOST_TEST(!a.send(0, lane::token, 1, 0));
  // It ends without a word: the next hello says it.
  b = std::make_unique<transport_end>();
  b->start(b_with(2));
  between.lead_to(b->at());
  BOOST_TEST(a.wait_for(what::up, 2));
  between.lead_nowhere();
  between.cut();
  BOOST_TEST(a.wait_for(what::cut));
  BOOST_TEST(a.send(0, lane::token, 2, 0));  // It waits, and is lost.
  b = std::make_unique<transport_end>();
  b->start(b_with(3));
  between.lead_to(b->at());
  BOOST_TEST(a.wait_for(what::up, 3));
  const auto now = a.now();
  BOOST_TEST(now.count(what::down) == 2u);
  BOOST_TEST(has(now.last(what::down), "b began anew: found boot 3"), now.last(what::down));
  BOOST_TEST(a.net().figures(0).self.boot == 3u);
  BOOST_TEST(a.send(0, lane::token, 3, 0));
  BOOST_TEST(b->wait([](const state& there) { return there.frames(0) == 1; }));
  BOOST_TEST(b->now().broken.empty(), b->now().broken);
}

inline void another_process_with_the_same_name_and_boot_waits_until_the_first_is_gone(
    const some_nodes& with) {
  transport_end c;
  c.start(with.node("c", {{"b", std::nullopt}}));
  transport_end first, second;
  first.start(with.node("b", {{"c", c.at()}}));
  BOOST_TEST(first.wait_for(what::up));
  BOOST_TEST(c.wait_for(what::up));
  for (std::uint32_t i = 0; i < 10; ++i) {
    BOOST_TEST(first.send(0, lane::token, 1, i));
    BOOST_TEST(c.send(0, lane::token, 1, i));
  }
  BOOST_TEST(c.wait([](const state& now) { return now.frames(0) == 10; }));
  second.start(with.node("b", {{"c", c.at()}}));
  BOOST_TEST(second.wait_for(what::refused));
  BOOST_TEST(c.wait_for(what::refused));
  BOOST_TEST(has(c.now().last(what::refused), "another process"), c.now().last(what::refused));
  BOOST_TEST(has(second.now().last(what::refused), "another process"));
  // It dials again and again; the first does not notice.
  BOOST_TEST(comes_to_be([&] { return second.net().figures(0).connections >= 3; }));
  for (std::uint32_t i = 10; i < 20; ++i) {
    BOOST_TEST(first.send(0, lane::token, 1, i));
    BOOST_TEST(c.send(0, lane::token, 1, i));
  }
  BOOST_TEST(c.wait([](const state& now) { return now.frames(0) == 20; }));
  BOOST_TEST(first.wait([](const state& now) { return now.frames(0) == 20; }));
  for (auto* end : {&c, &first}) {
    BOOST_TEST(end->now().broken.empty(), end->now().broken);
    BOOST_TEST(end->now().count(what::cut) == 0u);
    BOOST_TEST(end->now().count(what::down) == 0u);
  }
  BOOST_TEST(c.now().count(what::refused) == 1u);
  BOOST_TEST(second.now().count(what::up) == 0u);
  first.stop();
  BOOST_TEST(second.wait_for(what::up));
  BOOST_TEST(c.wait_for(what::up, 2));
  BOOST_TEST(c.now().count(what::down) == 1u);
  BOOST_TEST(second.send(0, lane::token, 2, 0));
  BOOST_TEST(c.wait([](const state& now) { return now.frames(0) == 21; }));
  BOOST_TEST(c.now().broken.empty(), c.now().broken);
}

inline void who_does_not_use_up_what_comes_gets_no_more_than_the_credit(const some_nodes& with) {
  auto limits = patient();
  limits.credit.fill(20'000);
  transport_end a, b, c;
  b.uses = false;
  for (auto* end : {&a, &b, &c}) end->plan.always = 1000 - net::header_bytes;
  b.start(with.node("b", {{"a", std::nullopt}}, limits));
  c.start(with.node("c", {{"a", std::nullopt}}, limits));
  a.start(with.node("a", {{"b", b.at()}, {"c", c.at()}}, limits));
  BOOST_TEST(a.wait_for(what::up, 2));
  for (auto* end : {&b, &c}) BOOST_TEST(end->wait_for(what::up));
  for (std::uint32_t i = 0; i < 200; ++i)
    for (const auto of : {lane::token, lane::bulk}) BOOST_TEST(a.send(0, of, 1, i));
  BOOST_TEST(a.wait_for(what::congested, 1, 0));
  // Another peer gets all that it is sent meanwhile.
  for (std::uint32_t i = 0; i < 500; ++i) BOOST_TEST(a.send(1, lane::token, 1, i));
  BOOST_TEST(c.wait([](const state& now) { return now.frames(0) == 500; }));
  BOOST_TEST(b.wait([](const state& now) { return now.frames(0) == 40; }));
  const auto figures = a.net().figures(0);
  for (const auto i : {1u, 4u}) {
    BOOST_TEST(figures.lanes[i].outstanding_bytes == 20'000u);
    BOOST_TEST(figures.lanes[i].waiting_bytes == 180'000u);
  }
  BOOST_TEST(b.now().frames(0) == 40u);
  BOOST_TEST(a.now().count(what::relieved, 0) == 0u);
  // What is used up makes room for more.
  for (int used = 0; used < 10; ++used) {
    for (const auto of : {lane::token, lane::bulk}) b.net().used(0, of, 20'000);
    const auto next = static_cast<std::uint64_t>(std::min(40 * (used + 2), 400));
    BOOST_TEST(b.wait([&](const state& now) { return now.frames(0) >= next; }));
    for (const auto i : {1u, 4u})
      BOOST_TEST(a.net().figures(0).lanes[i].outstanding_bytes <= 20'000u);
  }
  BOOST_TEST(a.wait_for(what::relieved, 1, 0));
  for (auto* end : {&a, &b, &c}) BOOST_TEST(end->now().broken.empty(), end->now().broken);
}

inline void who_cannot_be_reached_is_told_once_and_found_when_it_is_there(const some_nodes& with) {
  transport_end a, b;
  forwarder between;  // Leads nowhere yet.
  a.start(with.node("a", {{"b", between.at()}}));
  BOOST_TEST(a.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(comes_to_be([&] { return between.n_come() >= 6; }));
  // A connection that is closed says so in one way or another.
  std::set<std::string> reasons;
  for (const auto& [who, why] : a.now().problems) {
    BOOST_TEST((why.code == errc::io));
    BOOST_TEST(reasons.insert(why.message).second, why.message);
  }
  b.start(with.node("b", {{"a", std::nullopt}}));
  between.lead_to(b.at());
  BOOST_TEST(a.wait_for(what::up));
}

inline void an_address_that_is_taken_or_is_none_is_named(const some_nodes& with) {
  transport_end a;
  a.start(with.node("a", {}));
  transport_end other;
  auto options = with.node("b", {});
  options.listen = {a.at()};
  const auto taken = net::transport::start(options, other);
  BOOST_REQUIRE(!taken.has_value());
  BOOST_TEST((taken.error().code == errc::io));
  BOOST_TEST(has(taken.error().message, net::to_string(a.at()).c_str()), taken.error().message);
  options.listen = {{"203.0.113.7", 0}};
  const auto foreign = net::transport::start(options, other);
  BOOST_REQUIRE(!foreign.has_value());
  BOOST_TEST(has(foreign.error().message, "cannot listen at 203.0.113.7:0"));
}

inline void it_stops_while_frames_fly(const some_nodes& with) {
  for (int round = 0; round < 6; ++round) {
    two_ends ends(with);
    ends.up();
    std::vector<std::thread> threads;
    send_from_threads(ends.a, 1'000'000, threads);
    send_from_threads(ends.b, 1'000'000, threads);
    threads.emplace_back([&] {
      while (ends.b.net().figures(0).up) ends.a.net().figures(0);
    });
    const auto n = static_cast<std::uint64_t>(100 + 300 * round);
    BOOST_TEST(ends.b.wait([n](const state& now) { return now.frames(0) >= n; }));
    auto& first = round % 2 == 0 ? ends.a : ends.b;
    auto& second = round % 2 == 0 ? ends.b : ends.a;
    first.stop();
    const auto told = first.now().events.size();
    const auto frames = first.now().frames(0);
    BOOST_TEST(!first.send(0, lane::token, 1, 0));
    BOOST_TEST(second.wait_for(what::down));
    second.stop();
    join(threads);
    BOOST_TEST(first.now().events.size() == told);
    BOOST_TEST(first.now().frames(0) == frames);
    for (auto* end : {&ends.a, &ends.b}) BOOST_TEST(end->now().broken.empty(), end->now().broken);
  }
}

}  // namespace ordermoe::test
