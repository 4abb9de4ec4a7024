#include "net/channel/transport.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <set>
#include <thread>

#include "test/net/channel/access_cases.hpp"
#include "test/net/channel/member_cases.hpp"
#include "test/net/channel/transport_cases.hpp"
#include "test/net/channel/turn_cases.hpp"

namespace ordermoe {

namespace {

using namespace test;

std::size_t n_descriptors() {
  std::size_t n = 0;
  for (const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) n += each.exists();
  return n;
}

/// One connection by hand, that waits for what it hears.
class by_hand {
 public:
  explicit by_hand(const net::address& to) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_port = htons(to.port);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    BOOST_REQUIRE(::connect(socket_, reinterpret_cast<sockaddr*>(&where), sizeof where) == 0);
    const timeval limit{std::chrono::seconds(soon).count(), 0};
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  }
  ~by_hand() { ::close(socket_); }
  by_hand(const by_hand&) = delete;
  by_hand& operator=(const by_hand&) = delete;

  /// Whether the handshake, as far as this end sees, went well.
  bool greet(std::shared_ptr<const net::tls_identity> as, stream which = stream::fast) {
    tls_.emplace(std::move(as), which);
    flush();
    while (!tls_->established())
      if (!read()) return false;
    flush();
    return true;
  }
  /// As far as the other end takes it.
  void write(std::string_view wire) {
    while (!wire.empty()) {
      const auto n = ::send(socket_, wire.data(), wire.size(), MSG_NOSIGNAL);
      if (n <= 0) return;
      wire.remove_prefix(static_cast<std::size_t>(n));
    }
  }
  void say(std::string_view plain) {
    BOOST_REQUIRE(tls_->put(plain).has_value());
    flush();
  }
  void say(net::session_word word, const std::string& text, lane of = lane::control) {
    net::frame_header header;
    header.version = net::wire_version;
    header.word = word;
    header.of = of;
    header.length = static_cast<std::uint32_t>(text.size());
    std::string frame;
    net::put(header, frame);
    say(frame + text);
  }
  /// Until the other end closes; false where it does not.
  bool is_closed() {
    while (!closed_ && read()) continue;
    return closed_;
  }
  /// Without waiting.
  bool is_closed_now() {
    char byte = 0;
    const auto n = ::recv(socket_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
  }
  const std::string& heard() const { return heard_; }

 private:
  bool read() {
    std::array<char, 16 * 1024> bytes{};
    const auto n = ::recv(socket_, bytes.data(), bytes.size(), 0);
    closed_ = n == 0 || (n < 0 && errno == ECONNRESET);
    if (n <= 0) return false;
    return !tls_ || tls_->take({bytes.data(), static_cast<std::size_t>(n)}, heard_).has_value();
  }
  void flush() {
    std::string wire;
    tls_->take_output(wire);
    write(wire);
  }

  int socket_;
  std::optional<net::tls_channel> tls_;
  std::string heard_;
  bool closed_ = false;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(transport, some_nodes)

BOOST_AUTO_TEST_CASE(frames_of_all_lanes_from_many_threads_come_once_and_in_order) {
  test::frames_of_all_lanes_from_many_threads_come_once_and_in_order(*this);
}

BOOST_AUTO_TEST_CASE(what_is_sent_in_a_turn_waits_for_its_end_and_goes_out_together) {
  test::what_is_sent_in_a_turn_waits_for_its_end_and_goes_out_together(*this);
}

BOOST_AUTO_TEST_CASE(a_turn_goes_to_each_peer_and_its_lanes_in_their_order) {
  test::a_turn_goes_to_each_peer_and_its_lanes_in_their_order(*this);
}

BOOST_AUTO_TEST_CASE(what_is_written_together_is_cut_anywhere_and_comes_once) {
  test::what_is_written_together_is_cut_anywhere_and_comes_once(*this);
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

BOOST_AUTO_TEST_CASE(of_two_with_addresses_the_lower_name_dials_alone) {
  transport_end b;
  forwarder to_a, to_b;
  b.start(node("b", {{"a", to_a.at()}}));
  to_b.lead_to(b.at());
  transport_end a;
  a.start(node("a", {{"b", to_b.at()}}));
  to_a.lead_to(a.at());
  BOOST_TEST(a.wait_for(what::up));
  BOOST_TEST(b.wait_for(what::up));
  BOOST_TEST(a.send(0, lane::bulk, 1, 0));
  BOOST_TEST(b.wait([](const state& now) { return now.frames(0) == 1; }));
  BOOST_TEST(to_a.n_come() == 0);
  BOOST_TEST(to_b.n_come() == 2);
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

BOOST_AUTO_TEST_CASE(ends_that_stood_still_for_longer_than_silence_may_last_find_each_other_there) {
  two_ends ends(*this, hasty());
  ends.up();
  std::atomic<int> woken{0};
  for (auto* end : {&ends.a, &ends.b})
    end->net().after(0, [&woken] {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      ++woken;
    });
  BOOST_TEST(test::comes_to_be([&] { return woken == 2; }));
  BOOST_TEST(arrives(ends.a, ends.b, lane::token));
  BOOST_TEST(arrives(ends.b, ends.a, lane::token));
  for (auto* end : {&ends.a, &ends.b}) {
    const auto now = end->now();
    BOOST_TEST(now.count(what::down) == 0u, now.last(what::down));
    BOOST_TEST(now.count(what::up) == 1u);
  }
}

BOOST_AUTO_TEST_CASE(a_bulk_connection_that_carries_nothing_any_more_gives_way_to_another_one) {
  two_ends ends(*this, hasty());
  for (auto* end : {&ends.a, &ends.b}) end->plan.always = 200'000;
  ends.up();
  BOOST_TEST(arrives(ends.a, ends.b, lane::bulk));
  const auto before = ends.between.n_come();
  ends.between.stall(1);
  for (std::uint32_t i = 0; i < 60; ++i) ends.a.send(0, lane::bulk, 1, i);
  BOOST_TEST(arrives(ends.a, ends.b, lane::bulk));
  BOOST_TEST(ends.between.n_come() > before);
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

BOOST_AUTO_TEST_CASE(a_client_comes_is_told_sends_and_leaves) {
  test::a_client_comes_is_told_sends_and_leaves(*this);
}

BOOST_AUTO_TEST_CASE(a_client_that_is_cut_off_or_makes_no_sense_is_gone_once) {
  transport_end a;
  forwarder between;
  auto options = node("a", {});
  options.takes_clients = true;
  a.start(std::move(options));
  between.lead_to(a.at());
  {
    transport_end ann;
    ann.start(client("ann", {"", between.at()}));
    BOOST_TEST(a.wait_for(what::up, 1, 0));
    between.lead_nowhere();
    between.cut();
    BOOST_TEST(a.wait_for(what::down, 1, 0));
  }
  {
    by_hand ann(a.at());
    BOOST_TEST(ann.greet(issued.identity("ann", net::role::viewer)));
    BOOST_TEST(a.wait([](const state& now) { return now.clients.size() == 2; }));
    ann.say(std::string(100, 'x'));
    BOOST_TEST(ann.is_closed());
    BOOST_TEST(a.wait_for(what::fault, 1, 1));
    BOOST_TEST(a.wait_for(what::down, 1, 1));
  }
  {
    by_hand ann(a.at());
    BOOST_TEST(ann.greet(issued.identity("ann", net::role::viewer)));
    BOOST_TEST(a.wait([](const state& now) { return now.clients.size() == 3; }));
  }
  BOOST_TEST(a.wait_for(what::down, 1, 2));
  for (net::peer_id id = 0; id < 3; ++id) {
    BOOST_TEST(a.now().count(what::down, id) == 1u);
    BOOST_TEST(a.net().figures(id).name == "");
  }
}

BOOST_AUTO_TEST_CASE(who_may_not_speak_here_is_told_why_and_the_user_hears_of_it_once) {
  transport_end b;
  auto options = node("b", {{"c", std::nullopt}});
  options.takes_clients = true;
  b.start(std::move(options));
  const struct {
    const char* name;
    net::role of;
    stream which;
    const char* why;
  } all[] = {
      {"mallory", net::role::node, stream::fast, "is ordermoe://edge8/node/mallory, expected"},
      {"mallory", net::role::node, stream::bulk, "is ordermoe://edge8/node/mallory, expected"},
      {"ann", net::role::viewer, stream::bulk, "is ordermoe://edge8/viewer/ann, expected"},
      {"b", net::role::node, stream::fast, "is ordermoe://edge8/node/b, expected"}};
  for (const auto& each : all)
    for (int i = 0; i < 3; ++i) {
      by_hand there(b.at());
      BOOST_TEST(there.greet(issued.identity(each.name, each.of), each.which));
      BOOST_TEST(there.is_closed());
      BOOST_TEST_REQUIRE(there.heard().size() > net::header_bytes);
      const auto header = net::get_header(there.heard());
      BOOST_TEST((header.word == net::session_word::refusal));
      BOOST_TEST((net::stream_of(header.of) == each.which));
      BOOST_TEST(has(there.heard(), each.why), there.heard());
    }
  const auto now = b.now();
  BOOST_TEST(now.problems.size() == 3u);
  for (const auto& [who, why] : now.problems) {
    BOOST_TEST(has(who, "127.0.0.1:"), who);
    BOOST_TEST((why.code == errc::mismatch));
  }
  BOOST_TEST(now.clients.empty());
  BOOST_TEST(now.events.empty());
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

BOOST_AUTO_TEST_CASE(connections_that_say_nothing_are_few_and_keep_nobody_out) {
  constexpr std::size_t n_silent = 500;
  transport_end a, b, c;
  forwarder to_b;
  b.start(node("b", {{"a", std::nullopt}}));
  to_b.lead_to(b.at());
  a.start(node("a", {{"b", to_b.at()}, {"c", std::nullopt}}));
  BOOST_TEST(a.wait_for(what::up, 1, 0));
  const auto before = n_descriptors();
  std::vector<std::unique_ptr<by_hand>> silent;
  for (std::size_t i = 0; i < n_silent; ++i) silent.push_back(std::make_unique<by_hand>(a.at()));
  auto later = node("c", {{"a", a.at()}});
  later.listen.clear();
  c.start(std::move(later));
  BOOST_TEST(c.wait_for(what::up, 1, {}), "c does not get through");
  BOOST_TEST(a.wait_for(what::up, 1, 1));
  // Each has an end here and one there.
  BOOST_TEST(n_descriptors() < before + n_silent + 64 + 40);
  std::size_t n_closed = 0;
  for (const auto& each : silent) n_closed += each->is_closed_now() ? 1 : 0;
  BOOST_TEST(n_closed + 64 >= n_silent);
  BOOST_TEST(n_closed < n_silent);
  BOOST_TEST(a.now().problems.size() <= 2u);
  // Those who speak do not notice.
  for (std::uint32_t i = 0; i < 100; ++i) BOOST_TEST(a.send(0, lane::token, 1, i));
  BOOST_TEST(b.wait([](const state& now) { return now.frames(0) == 100; }));
  BOOST_TEST(a.now().count(what::cut) == 0u);
}

BOOST_AUTO_TEST_CASE(whoever_dials_is_not_kept_from_dialling_by_those_who_say_nothing) {
  transport_end a, b;
  forwarder between;
  auto limits = patient();
  limits.hello_ns = 1000 * ms;
  b.start(node("b", {{"a", std::nullopt}}, limits));
  between.lead_to(b.at());
  between.swallow(true);
  a.start(node("a", {{"b", between.at()}}, limits));
  BOOST_TEST(comes_to_be([&] { return between.n_come() >= 1; }));
  std::vector<std::unique_ptr<by_hand>> silent;
  for (std::size_t i = 0; i < 100; ++i) silent.push_back(std::make_unique<by_hand>(a.at()));
  BOOST_TEST(silent.front()->is_closed());
  between.swallow(false);
  BOOST_TEST(a.wait_for(what::up));
  // Those that are left are asked to leave in their turn.
  for (const auto& each : silent) BOOST_TEST(each->is_closed());
}

BOOST_AUTO_TEST_CASE(of_those_who_say_nothing_each_is_asked_to_leave) {
  transport_end b;
  auto limits = patient();
  limits.hello_ns = 300 * ms;
  b.start(node("b", {}, limits));
  std::vector<std::unique_ptr<by_hand>> silent;
  for (std::size_t i = 0; i < 5; ++i) silent.push_back(std::make_unique<by_hand>(b.at()));
  for (const auto& each : silent) BOOST_TEST(each->is_closed());
}

BOOST_AUTO_TEST_CASE(noise_instead_of_a_hello_and_behind_one_ends_that_connection_only) {
  transport_end b, c;
  b.start(node("b", {{"a", std::nullopt}, {"c", std::nullopt}}));
  auto dials = node("c", {{"b", b.at()}});
  dials.listen.clear();
  c.start(std::move(dials));
  BOOST_TEST(b.wait_for(what::up, 1, 1));
  std::string noise(1u << 20, '\0');
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    random_stream draws(seed);
    for (auto& each : noise) each = static_cast<char>(draws.bits());
    const auto which = seed % 2 == 0 ? stream::fast : stream::bulk;
    by_hand instead(b.at());
    BOOST_TEST(instead.greet(issued.identity("a"), which));
    instead.say(noise);
    BOOST_TEST(instead.is_closed(), "seed " << seed);
    by_hand behind(b.at());
    BOOST_TEST(behind.greet(issued.identity("a")));
    behind.say(net::session_word::hello, net::hello_text(hello_of("a")));
    BOOST_TEST(b.wait_for(what::up, seed, 0), "seed " << seed);
    behind.say(noise);
    BOOST_TEST(behind.is_closed(), "seed " << seed);
    BOOST_TEST(b.wait_for(what::fault, 1, 0));
    // It leaves, so that the next begins anew.
    by_hand leaves(b.at());
    BOOST_TEST(leaves.greet(issued.identity("a")));
    leaves.say(net::session_word::hello, net::hello_text(hello_of("a")));
    leaves.say(net::session_word::goodbye, "enough");
    BOOST_TEST(leaves.is_closed(), "seed " << seed);
    BOOST_TEST(b.wait_for(what::down, seed, 0));
  }
  for (std::uint32_t i = 0; i < 100; ++i) BOOST_TEST(c.send(0, lane::token, 1, i));
  BOOST_TEST(b.wait([](const state& now) { return now.frames(1) == 100; }));
  BOOST_TEST(b.now().count(what::cut, 1) == 0u);
  BOOST_TEST(b.now().frames(0) == 0u);
}

BOOST_AUTO_TEST_CASE(what_is_no_tls_is_turned_away_and_told_once) {
  transport_end b;
  b.start(node("b", {}));
  for (int i = 0; i < 3; ++i) {
    by_hand browser(b.at());
    browser.write("GET / HTTP/1.1\r\nHost: b\r\n\r\n");
    BOOST_TEST(browser.is_closed());
  }
  const auto now = b.now();
  BOOST_TEST(now.problems.size() == 1u);
  BOOST_TEST(has(now.problems.at(0).second.message, "http request"));
}

BOOST_AUTO_TEST_CASE(a_renewed_certificate_takes_the_place_of_a_revoked_one_and_nothing_is_lost) {
  test::a_renewed_certificate_takes_the_place_of_a_revoked_one_and_nothing_is_lost(*this);
}

BOOST_AUTO_TEST_CASE(who_is_revoked_is_out_within_5_s_and_in_again_with_another_certificate) {
  test::who_is_revoked_is_out_within_5_s_and_in_again_with_another_certificate(*this);
}

BOOST_AUTO_TEST_CASE(a_client_that_is_left_before_it_introduced_itself_is_told_so) {
  test::a_client_that_is_left_before_it_introduced_itself_is_told_so(*this);
}

BOOST_AUTO_TEST_CASE(a_client_that_is_revoked_is_gone_at_once) {
  test::a_client_that_is_revoked_is_gone_at_once(*this);
}

BOOST_AUTO_TEST_CASE(who_is_no_member_is_kept_out_until_it_is_one) {
  test::who_is_no_member_is_kept_out_until_it_is_one(*this);
}

BOOST_AUTO_TEST_CASE(a_node_that_joins_is_a_client_for_as_long_as_it_is_a_member) {
  test::a_node_that_joins_is_a_client_for_as_long_as_it_is_a_member(*this);
}

BOOST_AUTO_TEST_CASE(who_is_no_member_is_turned_away_where_it_dials) {
  test::who_is_no_member_is_turned_away_where_it_dials(*this);
}

BOOST_AUTO_TEST_CASE(a_client_that_is_called_as_a_node_stays_when_that_is_removed) {
  transport_end a, b;
  auto options = node("a", {{"b", std::nullopt}});
  options.takes_clients = true;
  a.start(std::move(options));
  b.start(client("b", {"a", a.at()}));
  BOOST_TEST(a.wait_for(what::up));
  BOOST_TEST(b.wait_for(what::up));
  a.net().admit(0, false, std::nullopt);
  // In the order of their threads: what is said behind it is answered behind it.
  for (int i = 0; i < 2; ++i) {
    std::promise<void> done;
    a.net().after(0, [&] { done.set_value(); });
    done.get_future().wait();
  }
  BOOST_TEST(b.send(0, lane::control, 1, 0));
  BOOST_TEST(a.wait([](const state& now) { return now.frames(1) == 1; }));
  BOOST_TEST(a.now().count(what::down) == 0u);
}

BOOST_AUTO_TEST_CASE(it_stops_while_frames_fly) {
  test::it_stops_while_frames_fly(*this);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
