#include "net/channel/transport.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <set>
#include <thread>

#include "test/net/channel/forwarder.hpp"
#include "test/net/channel/transport_end.hpp"

namespace ordermoe {

namespace {

using net::lane;
using net::stream;
using test::comes_to_be;
using test::forwarder;
using test::soon;
using test::transport_end;
using what = net::session_event::what;
using state = transport_end::state;

constexpr std::int64_t ms = 1'000'000;

/// A machine that has much else to do is not silent.
net::session_limits patient() {
  net::session_limits limits;
  limits.dead_ns = 120'000 * ms;
  return limits;
}
/// For what is about silence.
net::session_limits hasty() {
  net::session_limits limits;
  limits.heartbeat_ns = 50 * ms;
  limits.suspect_ns = 200 * ms;
  limits.dead_ns = 600 * ms;
  return limits;
}

bool has(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

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

struct some_nodes {
  test::credentials issued{"transport"};

  net::transport_options node(const std::string& name, std::vector<net::transport_peer> peers,
                              net::session_limits limits = patient()) const {
    net::transport_options options;
    options.identity = issued.identity(name);
    options.listen = {{"127.0.0.1", 0}};
    options.peers = std::move(peers);
    options.agreed = {{"model", "abc"}};
    options.limits = limits;
    return options;
  }
  net::transport_options client(const std::string& name, net::transport_peer of) const {
    net::transport_options options;
    options.identity = issued.identity(name, net::role::viewer);
    options.peers = {std::move(of)};
    options.is_client = true;
    options.limits = patient();
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
void send_from_threads(transport_end& from, std::uint32_t n_each, std::vector<std::thread>& into) {
  for (std::size_t i = 0; i < 2 * net::n_lanes; ++i)
    into.emplace_back([&from, n_each, i] {
      for (std::uint32_t at = 0; at < n_each; ++at)
        if (!from.send(0, static_cast<lane>(i / 2), 1 + i, at)) return;
    });
}
/// A frame of a new sender, sent again where a session ends meanwhile.
bool arrives(transport_end& from, transport_end& to, lane of) {
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
void join(std::vector<std::thread>& all) {
  for (auto& each : all) each.join();
  all.clear();
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(transport, some_nodes)

BOOST_AUTO_TEST_CASE(frames_of_all_lanes_from_many_threads_come_once_and_in_order) {
  constexpr std::uint32_t n_each = 1000;
  two_ends ends(*this);
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
  transport_end a, b;
  a.start(node("a", {{"b", std::nullopt}}));
  auto only_dials = node("b", {{"a", a.at()}});
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

BOOST_AUTO_TEST_CASE(connections_that_are_cut_anywhere_lose_nothing_and_double_nothing) {
  constexpr int n_cuts = 20;
  random_stream draws(11), lives(12);
  int so_far = 0;
  // In the handshake, in the hellos, or anywhere behind them; the first gets through.
  two_ends ends(*this, patient(), [&] {
    if (so_far++ < 2) return std::uint64_t{50'000};
    if (so_far > n_cuts) return ~std::uint64_t{0};
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
  BOOST_TEST(ends.between.n_cut() == n_cuts);
  BOOST_TEST(ends.both_have(n));
  ends.check_whole(n);
  BOOST_TEST(ends.a.now().count(what::cut) >= 3u);
  BOOST_TEST(ends.a.now().count(what::resumed) == ends.a.now().count(what::cut));
  BOOST_TEST(ends.a.net().figures(0).resent_frames + ends.b.net().figures(0).resent_frames > 0u);
}

BOOST_AUTO_TEST_CASE(a_way_that_carries_nothing_any_more_is_given_up_and_another_one_is_found) {
  two_ends ends(*this, hasty());
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
  transport_end a;
  forwarder between;
  a.start(node("a", {{"b", between.at()}}));
  auto b = std::make_unique<transport_end>();
  const auto b_with = [&](std::uint64_t boot) {
    auto options = node("b", {{"a", std::nullopt}});
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

BOOST_AUTO_TEST_CASE(another_process_with_the_same_name_and_boot_waits_until_the_first_is_gone) {
  transport_end c;
  c.start(node("c", {{"b", std::nullopt}}));
  transport_end first, second;
  first.start(node("b", {{"c", c.at()}}));
  BOOST_TEST(first.wait_for(what::up));
  BOOST_TEST(c.wait_for(what::up));
  for (std::uint32_t i = 0; i < 10; ++i) {
    BOOST_TEST(first.send(0, lane::token, 1, i));
    BOOST_TEST(c.send(0, lane::token, 1, i));
  }
  BOOST_TEST(c.wait([](const state& now) { return now.frames(0) == 10; }));
  second.start(node("b", {{"c", c.at()}}));
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

BOOST_AUTO_TEST_CASE(who_does_not_use_up_what_comes_gets_no_more_than_the_credit) {
  auto limits = patient();
  limits.credit.fill(20'000);
  transport_end a, b, c;
  b.uses = false;
  for (auto* end : {&a, &b, &c}) end->plan.always = 1000 - net::header_bytes;
  b.start(node("b", {{"a", std::nullopt}}, limits));
  c.start(node("c", {{"a", std::nullopt}}, limits));
  a.start(node("a", {{"b", b.at()}, {"c", c.at()}}, limits));
  BOOST_TEST(a.wait_for(what::up, 2));
  for (auto* end : {&b, &c}) BOOST_TEST(end->wait_for(what::up));
  for (std::uint32_t i = 0; i < 200; ++i)
    for (const auto of : {lane::token, lane::bulk}) BOOST_TEST(a.send(0, of, 1, i));
  BOOST_TEST(a.wait_for(what::congested, 2, 0));
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
  BOOST_TEST(a.wait_for(what::relieved, 2, 0));
  for (auto* end : {&a, &b, &c}) BOOST_TEST(end->now().broken.empty(), end->now().broken);
}

BOOST_AUTO_TEST_CASE(a_client_comes_is_told_sends_and_leaves) {
  transport_end a;
  auto options = node("a", {});
  options.takes_clients = true;
  a.start(std::move(options));
  for (net::peer_id id = 0; id < 3; ++id) {
    transport_end ann;
    // Whoever answers there, or by name.
    ann.start(client("ann", {id == 0 ? "" : "a", a.at()}));
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
  transport_end b, mallory;
  b.start(node("b", {{"a", std::nullopt}}));
  mallory.start([&] {
    auto options = node("mallory", {{"b", b.at()}});
    options.listen.clear();
    return options;
  }());
  BOOST_TEST(mallory.wait_for(what::refused));
  BOOST_TEST(has(mallory.now().last(what::refused), "b refuses: its certificate is"));
  BOOST_TEST(comes_to_be([&] { return mallory.net().figures(0).connections >= 3; }));
  BOOST_TEST(mallory.now().count(what::refused) == 1u);
  BOOST_TEST(mallory.now().problems.empty());
  BOOST_TEST(b.now().problems.size() == 1u);
}

BOOST_AUTO_TEST_CASE(another_than_was_dialled_is_refused_and_told_once) {
  transport_end a, b;
  b.start(node("b", {{"a", std::nullopt}}));
  forwarder between;
  between.lead_to(b.at());
  a.start(node("a", {{"c", between.at()}}));
  BOOST_TEST(a.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(comes_to_be([&] { return between.n_come() >= 4; }));
  const auto now = a.now();
  BOOST_TEST(now.problems.size() == 1u);
  BOOST_TEST((now.problems[0].second.code == errc::mismatch));
  BOOST_TEST(has(now.problems[0].first, "c (127.0.0.1:"), now.problems[0].first);
  BOOST_TEST(has(now.problems[0].second.message, "node/b, expected node c"));
  BOOST_TEST(now.events.empty());
}

BOOST_AUTO_TEST_CASE(who_cannot_be_reached_is_told_once_and_found_when_it_is_there) {
  transport_end a, b;
  forwarder between;  // Leads nowhere yet.
  a.start(node("a", {{"b", between.at()}}));
  BOOST_TEST(a.wait([](const state& now) { return !now.problems.empty(); }));
  BOOST_TEST(comes_to_be([&] { return between.n_come() >= 6; }));
  // A connection that is closed says so in one way or another.
  std::set<std::string> reasons;
  for (const auto& [who, why] : a.now().problems) {
    BOOST_TEST((why.code == errc::io));
    BOOST_TEST(reasons.insert(why.message).second, why.message);
  }
  b.start(node("b", {{"a", std::nullopt}}));
  between.lead_to(b.at());
  BOOST_TEST(a.wait_for(what::up));
}

BOOST_AUTO_TEST_CASE(an_address_that_is_taken_or_is_none_is_named) {
  transport_end a;
  a.start(node("a", {}));
  transport_end other;
  auto options = node("b", {});
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

BOOST_AUTO_TEST_CASE(it_stops_while_frames_fly) {
  for (int round = 0; round < 6; ++round) {
    two_ends ends(*this);
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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
