#pragma once

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "test/net/channel/forwarder.hpp"
#include "test/net/channel/transport_end.hpp"

/// Transports to try what every one keeps, whatever its connections are made of: *_cases.hpp, which the test files of each kind run.
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
  std::int64_t least_dead_ns = 0;            ///< Handshakes of a loaded machine take less.

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

}  // namespace ordermoe::test
