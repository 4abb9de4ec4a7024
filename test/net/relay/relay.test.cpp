#include "net/relay/relay.hpp"

#include <bit>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "config/random.hpp"
#include "test/net/relay/plain_socket.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

using net::direction;
using test::comes_true;
using test::plain_socket;
using namespace std::chrono_literals;

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t hour = 3'600'000 * ms;

std::chrono::steady_clock::time_point now() {
  return std::chrono::steady_clock::now();
}

/// A target that listens, a relay in front of it, and who dials that.
struct relayed {
  plain_socket target = *plain_socket::listening();
  std::unique_ptr<net::relay> relay;
  explicit relayed(net::relay_options options = {}) {
    options.target.port = target.port();
    auto started = net::relay::start(options);
    BOOST_REQUIRE_MESSAGE(started.has_value(), (started ? "" : started.error().message));
    relay = std::move(*started);
  }
  struct pair {
    plain_socket near, far;
  };
  pair connect() {
    auto near = plain_socket::dialled(relay->port());
    return {std::move(near), target.accept()};
  }
  void set(direction of, const net::link_conditions& wanted) {
    BOOST_REQUIRE(relay->set(of, wanted).has_value());
  }
  net::link_counters counted(direction of) const {
    return relay->counters().links[static_cast<std::size_t>(of)];
  }
};

net::link_conditions delayed(std::int64_t ns) {
  net::link_conditions conditions;
  conditions.delay_ns = ns;
  return conditions;
}

net::link_conditions stalled() {
  net::link_conditions conditions;
  conditions.stalled = true;
  return conditions;
}

std::string drawn(std::size_t n, std::uint64_t seed) {
  random_stream draws(seed);
  std::string bytes(n, '\0');
  for (auto& each : bytes) each = static_cast<char>(draws.bits());
  return bytes;
}

std::string refusal(const net::relay_options& options) {
  const auto refused = net::relay::start(options);
  BOOST_REQUIRE(!refused.has_value());
  return refused.error().message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(relay)

BOOST_AUTO_TEST_CASE(bytes_pass_both_ways_and_each_side_ends_its_own) {
  relayed world;
  auto [near, far] = world.connect();
  BOOST_TEST(near.send("question"));
  near.end();
  BOOST_TEST(far.read_all() == "question");
  BOOST_TEST(world.relay->counters().connections == 1u);
  BOOST_TEST(far.send("answer"));
  far.end();
  BOOST_TEST(near.read_all() == "answer");
  BOOST_TEST(comes_true([&] { return world.relay->counters().connections == 0; }));
  BOOST_TEST(world.relay->counters().accepted == 1u);
  BOOST_TEST(world.counted(direction::to).bytes_in == 8u);
  BOOST_TEST(world.counted(direction::to).bytes_out == 8u);
  BOOST_TEST(world.counted(direction::back).bytes_out == 6u);
}

BOOST_AUTO_TEST_CASE(it_speaks_ipv6_as_well) {
  auto target = plain_socket::listening(plain_socket::version::v6);
  if (!target) {
    BOOST_TEST_MESSAGE("this system has no ::1");
    return;
  }
  net::relay_options options;
  options.listen = {"::1", 0};
  options.target = {"::1", target->port()};
  const auto started = net::relay::start(options);
  BOOST_REQUIRE(started.has_value());
  auto near = plain_socket::dialled((*started)->port(), plain_socket::version::v6);
  auto far = target->accept();
  BOOST_TEST(near.send("six"));
  BOOST_TEST(far.read(3) == "six");
}

BOOST_AUTO_TEST_CASE(what_cannot_be_started_says_why) {
  net::relay_options options;
  options.target.port = 7000;
  options.listen.address = "0.0.0.0";
  BOOST_TEST(refusal(options).find("listen: found 0.0.0.0, which other hosts may reach") == 0u);
  options.listen.address = "localhost";
  BOOST_TEST(refusal(options).find("listen: found 'localhost'") == 0u);
  options.listen.address = "127.0.0.1";
  options.target.address = "nowhere";
  BOOST_TEST(refusal(options).find("target: found 'nowhere'") == 0u);
  options.target = {"127.0.0.1", 0};
  BOOST_TEST(refusal(options).find("target: found port 0") == 0u);
  options.target.port = 7000;
  options.conditions[1].delay_ns = -1;
  BOOST_TEST(refusal(options).find("back: delay: found -1") == 0u);
  options.conditions[1].delay_ns = 0;
  const auto taken = *plain_socket::listening();
  options.listen.port = taken.port();
  BOOST_TEST(refusal(options).find("cannot be listened on") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(bad_conditions_change_nothing) {
  relayed world;
  world.set(direction::to, delayed(3 * ms));
  BOOST_TEST(!world.relay->set(direction::to, delayed(-1)).has_value());
  BOOST_TEST((world.relay->conditions(direction::to) == delayed(3 * ms)));
  BOOST_TEST((world.relay->conditions(direction::back) == net::link_conditions{}));
}

BOOST_AUTO_TEST_CASE(no_byte_is_earlier_than_its_delay) {
  net::relay_options options;
  options.conditions = {delayed(40 * ms), delayed(60 * ms)};
  relayed world(options);
  auto [near, far] = world.connect();
  std::vector<std::chrono::steady_clock::time_point> sent;
  for (int i = 0; i < 20; ++i) {
    sent.push_back(now());
    BOOST_TEST(near.send(std::string(1, static_cast<char>(i))));
    std::this_thread::sleep_for(1ms);
  }
  for (int i = 0; i < 20; ++i) {
    BOOST_TEST(far.read(1) == std::string(1, static_cast<char>(i)));
    BOOST_TEST((now() - sent[i] >= 40ms));
  }
  const auto begin = now();
  BOOST_TEST(far.send("back"));
  BOOST_TEST(near.read(4) == "back");
  BOOST_TEST((now() - begin >= 60ms));
}

BOOST_AUTO_TEST_CASE(a_shorter_delay_lets_out_what_waits) {
  relayed world;
  auto [near, far] = world.connect();
  world.set(direction::to, delayed(net::most_delay_ns));
  BOOST_TEST(near.send("late"));
  BOOST_TEST(comes_true([&] { return world.relay->counters().held_bytes[0] == 4; }));
  world.set(direction::to, {});
  BOOST_TEST(far.read(4) == "late");
}

BOOST_AUTO_TEST_CASE(no_more_passes_than_the_rate_and_its_burst) {
  relayed world;
  net::link_conditions paced;
  paced.rate_bytes_per_s = 1'000'000;
  world.set(direction::to, paced);
  auto [near, far] = world.connect();
  const auto bytes = drawn(200'000, 1);
  const auto begin = now();
  std::thread sender([&near = near, &bytes] { near.send(bytes); });
  const auto found = far.read(bytes.size());
  sender.join();
  BOOST_TEST((found == bytes));
  BOOST_TEST((now() - begin >= 195ms));
}

BOOST_AUTO_TEST_CASE(a_stall_holds_little_makes_the_sender_wait_and_loses_nothing) {
  net::relay_options options;
  options.least_buffer_bytes = 100'000;
  relayed world(options);
  auto [near, far] = world.connect();
  world.set(direction::to, stalled());
  const auto bytes = drawn(1u << 20, 2);
  std::string sent;
  while (near.writable(300ms)) {
    const auto at = sent.size() % bytes.size();
    sent.append(bytes, at, near.send_some(std::string_view(bytes).substr(at)));
    BOOST_REQUIRE_LT(sent.size(), 256u << 20);  // Else nobody made it wait.
  }
  const auto held = world.relay->counters().held_bytes[0];
  BOOST_TEST(held > 0u);
  BOOST_TEST(held <= 100'000u);
  BOOST_TEST(!far.readable(50ms));
  // The other way is as it was.
  BOOST_TEST(far.send("hello"));
  BOOST_TEST(near.read(5) == "hello");
  world.set(direction::to, {});
  BOOST_TEST((far.read(sent.size()) == sent));
}

BOOST_AUTO_TEST_CASE(a_cut_closes_every_connection_and_loses_what_is_on_its_way) {
  relayed world;
  auto one = world.connect(), two = world.connect();
  world.set(direction::to, delayed(net::most_delay_ns));
  BOOST_TEST(one.near.send("lost"));
  BOOST_TEST(comes_true([&] { return world.relay->counters().held_bytes[0] == 4; }));
  world.relay->cut();
  for (auto* each : {&one, &two}) {
    BOOST_TEST(each->near.read_all().empty());
    BOOST_TEST(each->far.read_all().empty());
  }
  BOOST_TEST(world.relay->counters().connections == 0u);
  world.set(direction::to, {});
  auto [near, far] = world.connect();
  BOOST_TEST(near.send("again"));
  BOOST_TEST(far.read(5) == "again");
}

BOOST_AUTO_TEST_CASE(a_cut_after_a_prefix_lets_exactly_that_pass) {
  relayed world;
  auto [near, far] = world.connect();
  BOOST_TEST(near.send("before "));
  BOOST_TEST(far.read(7) == "before ");
  world.relay->cut({.after_bytes = 5, .of = direction::to});
  BOOST_TEST(far.send("the other way goes on"));
  BOOST_TEST(near.read(21) == "the other way goes on");
  BOOST_TEST(near.send("pre"));
  BOOST_TEST(far.read(3) == "pre");
  near.send("fix and what is behind it");
  BOOST_TEST(far.read_all() == "fi");
  BOOST_TEST(near.read_all().empty());
}

BOOST_AUTO_TEST_CASE(after_a_cut_who_dials_is_reset_for_as_long_as_asked) {
  relayed world;
  world.relay->cut({.refuse_ns = hour});
  auto refused = plain_socket::dialled(world.relay->port());
  BOOST_TEST(refused.read_all().empty());
  BOOST_TEST(world.relay->counters().refused == 1u);
  BOOST_TEST(world.relay->counters().accepted == 0u);
  const auto begin = now();
  world.relay->cut({.refuse_ns = 50 * ms});
  BOOST_TEST(comes_true([&] {
    const auto tried = plain_socket::dialled(world.relay->port());
    return world.target.readable(1ms);
  }));
  BOOST_TEST((now() - begin >= 50ms));
}

BOOST_AUTO_TEST_CASE(who_dials_is_reset_where_the_target_takes_nobody) {
  relayed world;
  world.target.close();
  auto near = plain_socket::dialled(world.relay->port());
  BOOST_TEST(near.read_all().empty());
  BOOST_TEST(world.relay->counters().unreached == 1u);
  BOOST_TEST(world.relay->counters().connections == 0u);
}

BOOST_AUTO_TEST_CASE(one_flip_is_one_bit_of_the_next_byte) {
  relayed world;
  auto [near, far] = world.connect();
  world.relay->flip_next(direction::back);
  const auto bytes = drawn(10'000, 3);
  BOOST_TEST(far.send(bytes));
  const auto found = near.read(bytes.size());
  BOOST_TEST(std::popcount(static_cast<unsigned char>(found[0] ^ bytes[0])) == 1);
  BOOST_TEST((found.substr(1) == bytes.substr(1)));
  BOOST_TEST(world.counted(direction::back).flipped_bits == 1u);
  BOOST_TEST(world.counted(direction::to).flipped_bits == 0u);
}

BOOST_AUTO_TEST_CASE(a_side_that_breaks_ends_the_other_behind_what_it_sent) {
  relayed world;
  world.set(direction::to, delayed(20 * ms));
  for (int i = 0; i < 2; ++i) {
    auto [near, far] = world.connect();
    auto& breaks = i == 0 ? near : far;
    auto& other = i == 0 ? far : near;
    BOOST_TEST(breaks.send("last words"));
    BOOST_TEST(comes_true(
        [&] { return world.counted(i == 0 ? direction::to : direction::back).bytes_in == 10; }));
    breaks.reset();
    BOOST_TEST(other.read_all() == "last words");
    BOOST_TEST(comes_true([&] { return world.relay->counters().connections == 0; }));
  }
}

BOOST_AUTO_TEST_CASE(its_end_closes_what_it_connected) {
  relayed world;
  auto [near, far] = world.connect();
  BOOST_TEST(near.send("x"));
  BOOST_TEST(far.read(1) == "x");
  world.relay.reset();
  BOOST_TEST(near.read_all().empty());
  BOOST_TEST(far.read_all().empty());
}

BOOST_AUTO_TEST_CASE(many_connections_stay_whole_while_conditions_change) {
  const auto range = test::seeds(3);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream draws(seed, 0x72656c6179);
      relayed world;
      std::vector<relayed::pair> pairs;
      std::vector<std::string> bytes;
      std::vector<std::thread> senders;
      for (std::uint64_t i = 0; i < 4; ++i) {
        pairs.push_back(world.connect());
        bytes.push_back(drawn(300'000, mix64(seed) + i));
      }
      for (std::size_t i = 0; i < 4; ++i)
        for (auto* each : {&pairs[i].near, &pairs[i].far})
          senders.emplace_back([each, &text = bytes[i]] { each->send(text); });
      std::vector<std::string> to(4), back(4);
      for (int part = 0; part < 30; ++part) {
        net::link_conditions other;
        other.delay_ns = static_cast<std::int64_t>(draws.below(5 * ms));
        other.rate_bytes_per_s = draws.below(2) * (20'000'000 + draws.below(100'000'000));
        world.set(draws.below(2) == 0 ? direction::to : direction::back, other);
        for (std::size_t i = 0; i < 4; ++i) {
          to[i] += pairs[i].far.read(10'000);
          back[i] += pairs[i].near.read(10'000);
        }
      }
      for (auto& each : senders) each.join();
      for (std::size_t i = 0; i < 4; ++i) {
        BOOST_TEST((to[i] == bytes[i]));
        BOOST_TEST((back[i] == bytes[i]));
      }
    }
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
