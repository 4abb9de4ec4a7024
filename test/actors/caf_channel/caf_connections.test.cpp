#include "actors/caf_channel/caf_connections.hpp"

#include <openssl/ssl.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "test/net/channel/access_cases.hpp"
#include "test/net/channel/member_cases.hpp"
#include "test/net/channel/transport_cases.hpp"
#include "test/net/channel/turn_cases.hpp"

namespace ordermoe {

namespace {

using namespace test;

struct nodes_over_caf : some_nodes {
  nodes_over_caf() {
    carried_by = actors::caf_connections;
    proof = "it says that it is";
    connections_of_a_dial = 2;  // The first only looks whether anybody answers.
    least_dead_ns = 2'500 * ms;
  }
};

/// Says something to a port and reads until the other end closes; whether it does within the time of a receive.
bool is_turned_away(const net::address& at, std::string_view with) {
  const int made = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in where{};
  where.sin_family = AF_INET;
  where.sin_port = htons(at.port);
  where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  BOOST_REQUIRE(::connect(made, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0);
  const timeval limit{std::chrono::seconds(soon).count(), 0};
  ::setsockopt(made, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  BOOST_REQUIRE(::send(made, with.data(), with.size(), MSG_NOSIGNAL) ==
                static_cast<ssize_t>(with.size()));
  std::array<char, 4096> heard{};
  ssize_t n = 1;
  while (n > 0) n = ::recv(made, heard.data(), heard.size(), 0);
  const bool closed = n == 0 || errno == ECONNRESET;
  ::close(made);
  return closed;
}

/// Connections without a book of peers above them.
struct bare_channel final : net::connections_user {
  std::promise<void> first_closed;
  bool was_one_closed = false;
  std::vector<net::connection_ptr> open;
  std::unique_ptr<net::connections> all;
  net::address at{"127.0.0.1", 0};

  bare_channel(const nodes_over_caf& with, const char* name, std::optional<net::address> where) {
    constexpr std::int64_t silent_ns = 2'500'000'000, dial_ns = 5'000'000'000;
    auto made = actors::caf_connections({with.issued.identity(name), silent_ns, dial_ns}, *this);
    BOOST_REQUIRE(made.has_value());
    all = std::move(*made);
    if (where) at = take(all->listen(*where));
    all->start();
  }
  ~bare_channel() override {
    all->post([this] {
      for (const auto& each : open) {
        each->close();
        each->closed = true;
      }
      all->halt();
    });
    all->join();
  }

  result<void> dial(const net::address& to) {
    std::promise<result<void>> told;
    all->post([&] {
      all->dial(to, net::stream::fast, [&](result<net::connection_ptr> made) {
        if (made) open.push_back(*made);
        told.set_value(made ? result<void>() : result<void>(made.error()));
      });
    });
    return told.get_future().get();
  }

  void accepted(net::connection_ptr with) override { open.push_back(std::move(with)); }
  void came(const net::connection_ptr&, std::string_view, bool) override {}
  void has_room(const net::connection_ptr&) override {}
  void was_closed(const net::connection_ptr&, std::string_view) override {
    if (!std::exchange(was_one_closed, true)) first_closed.set_value();
  }
  void could_not_accept(const std::string&, const error&) override {}

 private:
  static net::address take(const result<net::address>& at) {
    BOOST_REQUIRE(at.has_value());
    return *at;
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(caf_connections, nodes_over_caf)

// What every transport keeps:
BOOST_AUTO_TEST_CASE(frames_of_all_lanes_from_many_threads_come_once_and_in_order) {
  test::frames_of_all_lanes_from_many_threads_come_once_and_in_order(*this);
}
BOOST_AUTO_TEST_CASE(what_is_sent_in_a_turn_waits_for_its_end_and_goes_out_together) {
  test::what_is_sent_in_a_turn_waits_for_its_end_and_goes_out_together(*this);
}

BOOST_AUTO_TEST_CASE(whoever_took_something_hears_when_there_is_no_more_for_now) {
  test::whoever_took_something_hears_when_there_is_no_more_for_now(*this);
}

BOOST_AUTO_TEST_CASE(whoever_does_not_rest_is_not_asked_to) {
  test::whoever_does_not_rest_is_not_asked_to(*this);
}

BOOST_AUTO_TEST_CASE(what_is_put_off_is_done_later_as_a_turn_of_the_user_and_a_rest_follows) {
  test::what_is_put_off_is_done_later_as_a_turn_of_the_user_and_a_rest_follows(*this);
}

BOOST_AUTO_TEST_CASE(what_is_put_off_is_not_done_once_it_has_stopped) {
  test::what_is_put_off_is_not_done_once_it_has_stopped(*this);
}

BOOST_AUTO_TEST_CASE(a_node_without_an_address_dials_whoever_has_one) {
  test::a_node_without_an_address_dials_whoever_has_one(*this);
}
BOOST_AUTO_TEST_CASE(connections_that_are_cut_anywhere_lose_nothing_and_double_nothing) {
  test::connections_that_are_cut_anywhere_lose_nothing_and_double_nothing(*this);
}
BOOST_AUTO_TEST_CASE(a_way_that_carries_nothing_any_more_is_given_up_and_another_one_is_found) {
  test::a_way_that_carries_nothing_any_more_is_given_up_and_another_one_is_found(*this);
}
BOOST_AUTO_TEST_CASE(a_peer_that_starts_again_is_down_and_up) {
  test::a_peer_that_starts_again_is_down_and_up(*this);
}
BOOST_AUTO_TEST_CASE(another_process_with_the_same_name_and_boot_waits_until_the_first_is_gone) {
  test::another_process_with_the_same_name_and_boot_waits_until_the_first_is_gone(*this);
}
BOOST_AUTO_TEST_CASE(who_does_not_use_up_what_comes_gets_no_more_than_the_credit) {
  test::who_does_not_use_up_what_comes_gets_no_more_than_the_credit(*this);
}
BOOST_AUTO_TEST_CASE(a_client_that_is_left_before_it_introduced_itself_is_told_so) {
  test::a_client_that_is_left_before_it_introduced_itself_is_told_so(*this);
}

BOOST_AUTO_TEST_CASE(a_client_comes_is_told_sends_and_leaves) {
  test::a_client_comes_is_told_sends_and_leaves(*this);
}
BOOST_AUTO_TEST_CASE(who_is_not_expected_hears_so_at_its_own_end_once) {
  test::who_is_not_expected_hears_so_at_its_own_end_once(*this);
}
BOOST_AUTO_TEST_CASE(another_than_was_dialled_is_refused_and_told_once) {
  test::another_than_was_dialled_is_refused_and_told_once(*this);
}
BOOST_AUTO_TEST_CASE(who_cannot_be_reached_is_told_once_and_found_when_it_is_there) {
  test::who_cannot_be_reached_is_told_once_and_found_when_it_is_there(*this);
}
BOOST_AUTO_TEST_CASE(an_address_that_is_taken_or_is_none_is_named) {
  test::an_address_that_is_taken_or_is_none_is_named(*this);
}
BOOST_AUTO_TEST_CASE(a_node_that_joins_is_a_client_for_as_long_as_it_is_a_member) {
  test::a_node_that_joins_is_a_client_for_as_long_as_it_is_a_member(*this);
}
BOOST_AUTO_TEST_CASE(who_is_no_member_is_turned_away_where_it_dials) {
  test::who_is_no_member_is_turned_away_where_it_dials(*this);
}
BOOST_AUTO_TEST_CASE(it_stops_while_frames_fly) {
  test::it_stops_while_frames_fly(*this);
}

// Of this kind alone:
BOOST_AUTO_TEST_CASE(large_frames_go_both_ways_through_a_small_window) {
  constexpr std::uint32_t n_each = 24;
  // On a machine that is busy the link seems slow, and frames would go in parts, which lane bulk delivers.
  auto whole = patient();
  whole.parts.longest_ns = 0;
  two_ends ends(*this, whole);
  for (auto* end : {&ends.a, &ends.b}) end->plan.always = 1u << 20;
  ends.up();
  for (std::uint32_t i = 0; i < n_each; ++i)
    for (const auto of : {lane::kv, lane::bulk}) {
      BOOST_TEST(ends.a.send(0, of, 1, i));
      BOOST_TEST(ends.b.send(0, of, 1, i));
    }
  BOOST_TEST(ends.both_have(2 * n_each));
  ends.check_whole(2 * n_each);
}

BOOST_AUTO_TEST_CASE(a_stranger_is_turned_away_and_those_who_are_there_do_not_notice) {
  transport_end a, b, imposter;
  b.start(node("b", {{"a", std::nullopt}, {"c", std::nullopt}}));
  a.start(node("a", {{"b", b.at()}}));
  BOOST_TEST(a.wait_for(what::up));
  // A certificate of another authority, whatever name is in it.
  const credentials other("caf-other");
  auto options = node("c", {{"b", b.at()}});
  options.listen.clear();
  options.identity = other.identity("c");
  imposter.start(std::move(options));
  BOOST_TEST(imposter.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(
      has(imposter.now().problems[0].second.message, "does not take the other's certificate"),
      imposter.now().problems[0].second.message);
  // No TLS, and none of ours.
  BOOST_TEST(is_turned_away(b.at(), "GET / HTTP/1.1\r\nHost: b\r\n\r\n"));
  BOOST_TEST(is_turned_away(b.at(), std::string(64 * 1024, '\xff')));
  for (std::uint32_t i = 0; i < 100; ++i) BOOST_TEST(a.send(0, lane::token, 1, i));
  BOOST_TEST(b.wait([](const state& now) { return now.frames(0) == 100; }));
  BOOST_TEST(b.now().count(what::cut) == 0u, b.now().last(what::cut));
  BOOST_TEST(b.now().count(what::up) == 1u);
  BOOST_TEST(imposter.now().count(what::up) == 0u);
}

BOOST_AUTO_TEST_CASE(whom_one_dials_in_vain_does_not_break_the_others) {
  transport_end a, b, imposter;
  b.start(node("b", {{"a", std::nullopt}}));
  const credentials other("caf-other");
  auto options = node("c", {});
  options.identity = other.identity("c");
  imposter.start(std::move(options));
  a.start(node("a", {{"b", b.at()}, {"c", imposter.at()}}));
  BOOST_TEST(a.wait_for(what::up, 1, 0));
  BOOST_TEST(a.wait([](const state& now) { return !now.problems.empty(); }));
  // Again and again, while frames fly.
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::uint32_t n = 0;
  for (; std::chrono::steady_clock::now() < until; ++n) {
    BOOST_TEST_REQUIRE(a.send(0, lane::token, 1, n));
    BOOST_TEST_REQUIRE(b.wait([n](const state& now) { return now.frames(0) == n + 1; }));
  }
  BOOST_TEST(a.now().count(what::cut) == 0u, a.now().last(what::cut));
  BOOST_TEST(b.now().count(what::up) == 1u);
}

BOOST_AUTO_TEST_CASE(clients_that_come_and_go_do_not_break_the_others) {
  transport_end a, b;
  auto options = node("b", {{"a", std::nullopt}});
  options.takes_clients = true;
  b.start(std::move(options));
  a.start(node("a", {{"b", b.at()}}));
  BOOST_TEST(b.wait_for(what::up, 1, 0));
  std::atomic<bool> over{false};
  std::thread sends([&] {
    for (std::uint32_t i = 0; !over; ++i)
      if (!a.send(0, lane::token, 1, i) ||
          !b.wait([i](const state& now) { return now.frames(0) == i + 1; }))
        return;
  });
  for (net::peer_id id = 1; id <= 30; ++id) {
    transport_end ann;
    ann.start(client("ann", {"b", b.at()}));
    BOOST_TEST(ann.wait_for(what::up));
    ann.stop();
    BOOST_TEST(b.wait_for(what::down, 1, id));
  }
  over = true;
  sends.join();
  BOOST_TEST(b.now().count(what::cut, 0) == 0u, b.now().last(what::cut));
  BOOST_TEST(b.now().count(what::up, 0) == 1u);
}

BOOST_AUTO_TEST_CASE(another_cluster_under_the_same_authority_is_refused_by_what_it_says) {
  transport_end b, lyon;
  b.start(node("b", {{"lyon", std::nullopt}}));
  issued.sign({"lyon", "URI:ordermoe://edge9/node/lyon"});
  auto options = node("lyon", {{"b", b.at()}});
  options.listen.clear();
  lyon.start(std::move(options));
  BOOST_TEST(lyon.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(has(lyon.now().problems[0].second.message, "of cluster edge9, expected edge8"),
             lyon.now().problems[0].second.message);
  BOOST_TEST(b.wait([](const state& now) { return !now.problems.empty(); }));
}

BOOST_AUTO_TEST_CASE(the_two_kinds_of_connections_do_not_meet_and_say_why) {
  constexpr std::chrono::seconds limit(5);
  for (const bool caf_dials : {true, false}) {
    transport_end dials, listens;
    auto there = node("b", {{"a", std::nullopt}});
    auto here = node("a", {});
    (caf_dials ? there : here).carried_by = nullptr;
    listens.start(std::move(there));
    here.peers = {{"b", listens.at()}};
    dials.start(std::move(here));
    BOOST_TEST(dials.wait([](const state& now) { return !now.problems.empty(); }, limit));
    const auto told = dials.now().problems.at(0).second.message;
    BOOST_TEST(has(told, "channel"), told);
    BOOST_TEST(dials.now().count(what::up) == 0u);
  }
}

BOOST_AUTO_TEST_CASE(whoever_listens_anew_at_an_address_is_found_by_the_first_attempt) {
  bare_channel dials(*this, "a", std::nullopt);
  auto listens = std::make_unique<bare_channel>(*this, "b", net::address{"127.0.0.1", 0});
  const auto at = listens->at;
  BOOST_REQUIRE(dials.dial(at).has_value());
  // Somebody else is there then, although the address is the same.
  listens = nullptr;
  BOOST_REQUIRE((dials.first_closed.get_future().wait_for(std::chrono::seconds(soon)) ==
                 std::future_status::ready));
  listens = std::make_unique<bare_channel>(*this, "b", at);
  const auto again = dials.dial(at);
  BOOST_TEST(again.has_value(), (again ? "" : again.error().message));
}

BOOST_AUTO_TEST_CASE(files_that_are_taken_away_later_do_no_harm) {
  two_ends ends(*this);
  ends.up();
  const auto later = node("c", {});
  for (const char* each : {"a.key", "a.crt", "b.key", "b.crt", "ca.crt"})
    std::filesystem::remove(issued.file(each));
  // Certificates are shown again.
  ends.between.cut();
  for (auto* end : {&ends.a, &ends.b}) BOOST_TEST(end->wait_for(what::resumed));
  // Whoever starts needs them.
  transport_end c;
  const auto unreadable = net::transport::start(later, c);
  BOOST_REQUIRE(!unreadable.has_value());
  BOOST_TEST(has(unreadable.error().message, "ca.crt"), unreadable.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
