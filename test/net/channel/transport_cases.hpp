#pragma once

#include <fmt/format.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <future>
#include <mutex>
#include <set>
#include <thread>

#include "test/net/channel/forwarder.hpp"
#include "test/net/channel/transport_end.hpp"

/// What every transport keeps, whatever its connections are made of. The test files of each kind run them.
namespace ordermoe::test {

using net::lane;
using net::stream;
using what = net::session_event::what;
using state = transport_end::state;

constexpr std::int64_t ms = 1'000'000;

/// A machine that has much else to do is not silent.
inline net::session_limits patient() {
  net::session_limits limits;
  limits.dead_ns = 120'000 * ms;
  return limits;
}
/// For what is about silence.
inline net::session_limits hasty() {
  net::session_limits limits;
  limits.heartbeat_ns = 50 * ms;
  limits.suspect_ns = 200 * ms;
  limits.dead_ns = 600 * ms;
  return limits;
}

inline bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

struct some_nodes {
  credentials issued{"transport"};
  net::connections_maker carried_by;         ///< Left out: TLS over TCP.
  std::string proof = "its certificate is";  ///< What a peer's name goes by.
  int connections_of_a_dial = 1;             ///< That whoever listens sees.

  net::transport_options node(const std::string& name, std::vector<net::transport_peer> peers,
                              net::session_limits limits = patient()) const {
    net::transport_options options;
    options.identity = issued.identity(name);
    options.listen = {{"127.0.0.1", 0}};
    options.peers = std::move(peers);
    options.agreed = {{"model", "abc"}};
    options.limits = limits;
    options.carried_by = carried_by;
    return options;
  }
  net::transport_options client(const std::string& name, net::transport_peer of) const {
    net::transport_options options;
    options.identity = issued.identity(name, net::role::viewer);
    options.peers = {std::move(of)};
    options.is_client = true;
    options.limits = patient();
    options.carried_by = carried_by;
    return options;
  }
  net::hello hello_of(const std::string& name) const {
    net::session_config config;
    config.self.cluster = "edge8";
    config.self.node = name;
    config.self.self.boot = 1;
    config.self.agreed = {{"model", "abc"}};
    config.peer = "somebody";
    net::session as_it_says(config, 0);
    as_it_says.connected(1, stream::fast, true, "", 0);
    std::string bytes;
    as_it_says.write(1, bytes, 1 << 20, 0);
    return *net::parse_hello(std::string_view(bytes).substr(net::header_bytes));
  }
};

/// a dials b: it has the lower name.
struct two_ends {
  transport_end a, b;
  forwarder between;
  explicit two_ends(
      const some_nodes& from, net::session_limits limits = patient(),
      std::function<std::uint64_t()> life = [] { return ~std::uint64_t{0}; })
      : between(std::move(life)) {
    b.start(from.node("b", {{"a", std::nullopt}}, limits));
    between.lead_to(b.at());
    a.start(from.node("a", {{"b", between.at()}}, limits));
  }
  void up() {
    BOOST_REQUIRE(a.wait_for(what::up));
    BOOST_REQUIRE(b.wait_for(what::up));
  }
  bool both_have(std::uint64_t n) {
    const auto all = [n](const state& now) { return now.frames(0) >= n; };
    return a.wait(all) && b.wait(all);
  }
  void check_whole(std::uint64_t n) {
    for (auto* end : {&a, &b}) {
      const auto now = end->now();
      BOOST_TEST(now.broken.empty(), now.broken);
      BOOST_TEST(now.frames(0) == n);
      BOOST_TEST(now.count(what::down) == 0u, now.last(what::down));
      BOOST_TEST(now.count(what::fault) == 0u, now.last(what::fault));
      BOOST_TEST(now.count(what::up) == 1u);
    }
  }
};

/// Two threads for each lane, each with frames of its own.
inline void send_from_threads(transport_end& from, std::uint32_t n_each,
                              std::vector<std::thread>& into) {
  for (std::size_t i = 0; i < 2 * net::n_lanes; ++i)
    into.emplace_back([&from, n_each, i] {
      for (std::uint32_t at = 0; at < n_each; ++at)
        if (!from.send(0, static_cast<lane>(i / 2), 1 + i, at)) return;
    });
}
/// A frame of a new sender, sent again where a session ends meanwhile.
inline bool arrives(transport_end& from, transport_end& to, lane of) {
  static std::uint64_t sender = 1000;
  const auto n_there = [&] {
    const auto now = to.now();
    return now.n_frames.contains(0) ? now.n_frames.at(0)[static_cast<std::size_t>(of)] : 0;
  };
  const auto before = n_there();
  std::size_t sessions = 0;
  return comes_to_be([&] {
    const auto ups = from.now().count(what::up) + to.now().count(what::up);
    if (ups != sessions && from.send(0, of, ++sender, 0)) sessions = ups;
    return n_there() > before;
  });
}
inline void join(std::vector<std::thread>& all) {
  for (auto& each : all) each.join();
  all.clear();
}

inline void frames_of_all_lanes_from_many_threads_come_once_and_in_order(const some_nodes& with) {
  constexpr std::uint32_t n_each = 1000;
  auto limits = patient();
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
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
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
  two_ends ends(with, patient(), [&] {
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
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
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
  two_ends ends(with, hasty());
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

inline void a_client_comes_is_told_sends_and_leaves(const some_nodes& with) {
  transport_end a;
  auto options = with.node("a", {});
  options.takes_clients = true;
  a.start(std::move(options));
  for (net::peer_id id = 0; id < 3; ++id) {
    transport_end ann;
    // Whoever answers there, or by name.
    ann.start(with.client("ann", {id == 0 ? "" : "a", a.at()}));
    BOOST_TEST(ann.wait_for(what::up));
    BOOST_TEST(ann.net().figures(0).name == "a");
    BOOST_TEST(a.wait_for(what::up, 1, id));
    const auto came = a.now().clients;
    BOOST_TEST_REQUIRE(came.size() == id + 1);
    BOOST_TEST(came.back().first == id);
    BOOST_TEST((came.back().second == net::certificate_name{"edge8", net::role::viewer, "ann"}));
    for (std::uint32_t i = 0; i < 50; ++i) {
      BOOST_TEST(ann.send(0, lane::control, 1, i));
      BOOST_TEST(a.send(id, lane::control, 1, i));
    }
    BOOST_TEST(a.wait([id](const state& now) { return now.frames(id) == 50; }));
    BOOST_TEST(ann.wait([](const state& now) { return now.frames(0) == 50; }));
    if (id == 2)
      a.net().leave(id, "that is enough");
    else
      ann.stop();
    BOOST_TEST(a.wait_for(what::down, 1, id));
    BOOST_TEST(!a.send(id, lane::control, 1, 50));
    if (id == 2) BOOST_TEST(ann.wait_for(what::down));
    if (id == 2) BOOST_TEST(has(ann.now().last(what::down), "that is enough"));
    BOOST_TEST(ann.now().broken.empty(), ann.now().broken);
  }
  BOOST_TEST(a.now().broken.empty(), a.now().broken);
  BOOST_TEST(a.now().problems.empty());
}

inline void who_is_not_expected_hears_so_at_its_own_end_once(const some_nodes& with) {
  transport_end b, mallory;
  b.start(with.node("b", {{"a", std::nullopt}}));
  mallory.start([&] {
    auto options = with.node("mallory", {{"b", b.at()}});
    options.listen.clear();
    return options;
  }());
  BOOST_TEST(mallory.wait_for(what::refused));
  BOOST_TEST(has(mallory.now().last(what::refused), ("b refuses: " + with.proof).c_str()));
  BOOST_TEST(comes_to_be([&] { return mallory.net().figures(0).connections >= 3; }));
  BOOST_TEST(mallory.now().count(what::refused) == 1u);
  BOOST_TEST(mallory.now().problems.empty());
  BOOST_TEST(b.now().problems.size() == 1u);
}

inline void another_than_was_dialled_is_refused_and_told_once(const some_nodes& with) {
  transport_end a, b;
  b.start(with.node("b", {{"a", std::nullopt}}));
  forwarder between;
  between.lead_to(b.at());
  a.start(with.node("a", {{"c", between.at()}}));
  BOOST_TEST(a.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(comes_to_be([&] { return b.net().figures(0).connections >= 3; }));
  const auto now = a.now();
  BOOST_TEST(now.problems.size() == 1u,
             now.problems.back().first + now.problems.back().second.message);
  BOOST_TEST((now.problems[0].second.code == errc::mismatch));
  BOOST_TEST(has(now.problems[0].first, "c (127.0.0.1:"), now.problems[0].first);
  BOOST_TEST(has(now.problems[0].second.message, "node/b, expected node c"));
  BOOST_TEST(now.events.empty());
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

inline std::string renew(const some_nodes& with, const std::string& name) {
  const auto before = net::renew(with.issued.file(""), name, {});
  BOOST_REQUIRE(before.has_value());
  return before->serial;
}
inline void revoke(const some_nodes& with, const std::string& name_or_serial) {
  BOOST_REQUIRE(net::revoke(with.issued.file(""), name_or_serial, net::revoke_which::all));
}

/// Under load: the certificate that the connections were made with is revoked after it was renewed.
inline void a_renewed_certificate_takes_the_place_of_a_revoked_one_and_nothing_is_lost(
    const some_nodes& with) {
  constexpr std::uint32_t n_each = 3000;
  two_ends ends(with);
  ends.up();
  std::vector<std::thread> threads;
  send_from_threads(ends.a, n_each, threads);
  send_from_threads(ends.b, n_each, threads);
  for (int round = 1; round <= 3; ++round) {
    auto& renewed = round % 2 == 0 ? ends.b : ends.a;
    const std::string name = round % 2 == 0 ? "b" : "a";
    const auto before = renew(with, name);
    renewed.net().use(with.issued.identity(name));
    revoke(with, before);
    for (auto* end : {&ends.a, &ends.b})
      end->net().use(with.issued.identity(end == &ends.a ? "a" : "b"));
    for (auto* end : {&ends.a, &ends.b})
      BOOST_TEST(end->wait_for(what::resumed, static_cast<std::size_t>(round)));
  }
  join(threads);
  BOOST_TEST(ends.both_have(2 * net::n_lanes * n_each));
  ends.check_whole(2 * net::n_lanes * n_each);
}

inline void who_is_revoked_is_out_within_5_s_and_in_again_with_another_certificate(
    const some_nodes& with) {
  two_ends ends(with, net::session_limits{});
  ends.up();
  revoke(with, "a");
  const auto begun = std::chrono::steady_clock::now();
  ends.b.net().use(with.issued.identity("b"));
  BOOST_TEST(ends.b.wait_for(what::down));
  BOOST_TEST(ends.a.wait_for(what::down));
  BOOST_TEST((std::chrono::steady_clock::now() - begun < std::chrono::seconds(5)));
  BOOST_TEST(comes_to_be([&] { return ends.between.n_come() >= 6; }));
  BOOST_TEST(ends.b.now().count(what::up) == 1u);
  std::size_t n_told = 0;
  for (const auto& [who, why] : ends.b.now().problems) n_told += has(why.message, "is revoked");
  BOOST_TEST(n_told <= 2u);  // Of the connections that there were, and of those that come.
  BOOST_TEST(n_told >= 1u);
  renew(with, "a");
  ends.a.net().use(with.issued.identity("a"));
  BOOST_TEST(ends.b.wait_for(what::up, 2));
  BOOST_TEST(ends.a.wait_for(what::up, 2));
  BOOST_TEST(ends.a.send(0, lane::token, 1, 0));
}

inline void a_client_that_is_left_before_it_introduced_itself_is_told_so(const some_nodes& with) {
  transport_end a, ann;
  auto options = with.node("a", {});
  options.takes_clients = true;
  a.leaves_clients = "nobody is let in";
  a.start(std::move(options));
  ann.start(with.client("ann", {"", a.at()}));
  BOOST_TEST(ann.wait_for(what::down));
  BOOST_TEST(has(ann.now().last(what::down), "nobody is let in"));
}

inline void a_client_that_is_revoked_is_gone_at_once(const some_nodes& with) {
  transport_end a, ann, ben;
  auto options = with.node("a", {});
  options.takes_clients = true;
  a.start(std::move(options));
  ann.start(with.client("ann", {"", a.at()}));
  ben.start(with.client("ben", {"", a.at()}));
  BOOST_TEST(a.wait([](const state& now) { return now.count(what::up) == 2; }));
  const auto id = a.now().clients[0].second.name == "ann" ? 0u : 1u;
  revoke(with, "ann");
  a.net().use(with.issued.identity("a"));
  BOOST_TEST(a.wait_for(what::down, 1, id));
  BOOST_TEST(ben.send(0, lane::control, 1, 0));
  BOOST_TEST(a.wait([&](const state& now) { return now.frames(1 - id) == 1; }));
  BOOST_TEST(a.now().count(what::down) == 1u);
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
