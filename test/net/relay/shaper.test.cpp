#include "net/relay/shaper.hpp"

#include <boost/test/unit_test.hpp>

#include "config/random.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

constexpr std::int64_t ms = 1'000'000;
constexpr std::int64_t s = 1'000 * ms;
constexpr std::size_t plenty = 1u << 30;

/// A link and one connection's bytes.
struct shaped_link {
  net::link link;
  net::shaper shaper;
  explicit shaped_link(net::link_conditions conditions = {}, std::uint64_t buffer = 1u << 20)
      : link(1, buffer), shaper(link, 0) {
    link.set(conditions, 0);
  }
  std::string give(std::int64_t now_ns, std::size_t most = plenty) {
    std::string out;
    const auto n = shaper.give(out, most, now_ns);
    BOOST_TEST(n == out.size());
    return out;
  }
};

net::link_conditions delayed(std::int64_t ns) {
  net::link_conditions conditions;
  conditions.delay_ns = ns;
  return conditions;
}

net::link_conditions paced(std::uint64_t bytes_per_s) {
  net::link_conditions conditions;
  conditions.rate_bytes_per_s = bytes_per_s;
  return conditions;
}

std::string counted(std::size_t n) {
  std::string bytes(n, '\0');
  for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(mix64(i));
  return bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(shaper)

BOOST_AUTO_TEST_CASE(without_conditions_bytes_go_out_as_they_come) {
  shaped_link world;
  BOOST_TEST(!world.shaper.next_ns(5).has_value());
  world.shaper.take("one", 5);
  BOOST_TEST(*world.shaper.next_ns(5) == 5);
  BOOST_TEST(world.give(5, 2) == "on");
  world.shaper.take("two", 6);
  BOOST_TEST(world.give(6) == "etwo");
  BOOST_TEST(!world.shaper.next_ns(6).has_value());
  BOOST_TEST(world.link.counted.bytes_in == 6u);
}

BOOST_AUTO_TEST_CASE(each_byte_goes_out_exactly_the_delay_after_it_came_in) {
  shaped_link world(delayed(100 * ms));
  // Ten pieces are on their way at the same time.
  for (int i = 0; i < 50; ++i) {
    const auto now = i * 10 * ms;
    world.shaper.take(std::string(3, static_cast<char>('a' + i)), now);
    BOOST_TEST(world.give(now - 1).empty());
    const auto expected = i < 10 ? "" : std::string(3, static_cast<char>('a' + i - 10));
    BOOST_TEST(*world.shaper.next_ns(now) == (i < 10 ? 100 * ms : now));
    BOOST_TEST(world.give(now) == expected);
    BOOST_TEST(*world.shaper.next_ns(now) == std::max<std::int64_t>(0, i - 9) * 10 * ms + 100 * ms);
  }
}

BOOST_AUTO_TEST_CASE(another_delay_holds_for_what_is_on_its_way_and_keeps_the_order) {
  shaped_link world(delayed(100 * ms));
  world.shaper.take("a", 0);
  world.shaper.take("b", 10 * ms);
  world.link.set(delayed(200 * ms), 20 * ms);
  BOOST_TEST(*world.shaper.next_ns(20 * ms) == 200 * ms);
  world.shaper.take("c", 20 * ms);
  world.link.set(delayed(15 * ms), 26 * ms);
  BOOST_TEST(world.give(26 * ms) == "ab");
  BOOST_TEST(world.give(35 * ms) == "c");
}

BOOST_AUTO_TEST_CASE(what_goes_out_keeps_within_the_rate_and_its_burst_whenever_one_looks) {
  constexpr std::uint64_t rate = 1'000'000;
  shaped_link world(paced(rate));
  world.shaper.take(counted(500'000), 0);
  std::string out;
  std::int64_t now = 0;
  while (const auto next = world.shaper.next_ns(now)) {
    BOOST_TEST_REQUIRE(*next >= now);
    now = *next;
    const auto piece = world.give(now);
    BOOST_TEST_REQUIRE(!piece.empty());
    out += piece;
    BOOST_TEST_REQUIRE(out.size() <= 5'000u + rate * now / s);
  }
  BOOST_TEST((out == counted(500'000)));
  BOOST_TEST(now == 495 * ms);
}

BOOST_AUTO_TEST_CASE(a_stall_that_ends_is_no_excuse_for_going_beyond_the_rate) {
  shaped_link world(paced(1'000'000));
  auto stalled = paced(1'000'000);
  stalled.stalled = true;
  world.link.set(stalled, 0);
  world.shaper.take(counted(100'000), 0);
  BOOST_TEST(!world.shaper.next_ns(0).has_value());
  BOOST_TEST(world.give(10 * s).empty());
  world.link.set(paced(1'000'000), 10 * s);
  std::size_t n = 0;
  while (const auto piece = world.give(10 * s).size()) n += piece;
  BOOST_TEST(n == 5'000u);
}

BOOST_AUTO_TEST_CASE(a_delay_does_not_slow_a_paced_stream_down) {
  auto conditions = paced(10'000'000);
  conditions.delay_ns = 50 * ms;
  shaped_link world(conditions);
  // Bytes come at half the rate: each goes out exactly when its delay is over.
  for (int i = 0; i < 1'000; ++i) {
    const auto now = i * ms;
    world.shaper.take(std::string(5'000, static_cast<char>(i)), now);
    BOOST_TEST_REQUIRE(world.give(now) ==
                       (i < 50 ? "" : std::string(5'000, static_cast<char>(i - 50))));
  }
}

BOOST_AUTO_TEST_CASE(connections_of_a_direction_share_its_rate_by_turns) {
  net::link link(1, 1u << 20);
  link.set(paced(1'000'000), 0);
  net::shaper shapers[] = {{link, 0}, {link, 1}};
  for (auto& each : shapers) each.take(counted(200'000), 0);
  std::size_t n[2] = {0, 0};
  std::int64_t now = 0;
  for (std::size_t turn = 0; now < 100 * ms; ++turn) {
    for (std::size_t i = 0; i < 2; ++i) {
      std::string out;
      n[(turn + i) % 2] += shapers[(turn + i) % 2].give(out, plenty, now);
    }
    now = std::min(*shapers[0].next_ns(now), *shapers[1].next_ns(now));
  }
  BOOST_TEST(n[0] + n[1] <= 105'000u);
  BOOST_TEST(n[0] + n[1] >= 95'000u);
  BOOST_TEST(n[0] >= 45'000u);
  BOOST_TEST(n[1] >= 45'000u);
}

BOOST_AUTO_TEST_CASE(room_ends_at_the_bound_even_for_single_bytes) {
  constexpr std::uint64_t bound = 10'000;
  shaped_link world(delayed(1 * s), bound);
  BOOST_TEST(world.shaper.room() == bound);
  std::size_t n = 0;
  for (std::int64_t now = 0; world.shaper.room() > 0; ++now, ++n) world.shaper.take("x", now);
  // A piece costs more than its byte.
  BOOST_TEST(n < bound / 10);
  BOOST_TEST(world.give(2 * s).size() == n);
  BOOST_TEST(world.shaper.room() == bound);
  world.shaper.take(counted(5'000), 3 * s);
  world.shaper.take(counted(world.shaper.room()), 3 * s);
  BOOST_TEST(world.shaper.room() == 0u);
}

BOOST_AUTO_TEST_CASE(the_end_comes_the_delay_after_it_and_behind_all_bytes) {
  shaped_link world(delayed(100 * ms));
  world.shaper.take("last", 0);
  world.shaper.end(5 * ms);
  BOOST_TEST(world.give(100 * ms, 3) == "las");
  BOOST_TEST(!world.shaper.over(200 * ms));
  BOOST_TEST(world.give(100 * ms) == "t");
  BOOST_TEST(*world.shaper.next_ns(100 * ms) == 105 * ms);
  BOOST_TEST(!world.shaper.over(105 * ms - 1));
  BOOST_TEST(world.shaper.over(105 * ms));
  auto stalled = delayed(0);
  stalled.stalled = true;
  world.link.set(stalled, 105 * ms);
  BOOST_TEST(!world.shaper.over(105 * ms));
}

BOOST_AUTO_TEST_CASE(a_flipped_byte_is_the_next_that_goes_out_and_no_other) {
  shaped_link world(delayed(10 * ms));
  world.shaper.take("abc", 0);
  BOOST_TEST(world.give(10 * ms, 1) == "a");
  world.link.flip_next();
  const auto out = world.give(10 * ms);
  BOOST_TEST(out[0] != 'b');
  BOOST_TEST(out[1] == 'c');
}

BOOST_AUTO_TEST_CASE(whatever_changes_meanwhile_every_byte_goes_out_once_and_in_order) {
  const auto range = test::seeds(50);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    random_stream draws(seed, 0x7265);
    shaped_link world({}, 1 + draws.below(20'000));
    const auto sent = counted(200'000);
    std::string out;
    std::size_t n_in = 0;
    std::int64_t now = 0;
    for (int step = 0; out.size() < sent.size(); ++step) {
      BOOST_REQUIRE_MESSAGE(step < 1'000'000, "seed " << seed << " does not come to an end");
      if (draws.below(100) == 0) {
        net::link_conditions other;
        other.delay_ns = static_cast<std::int64_t>(draws.below(20 * ms));
        other.rate_bytes_per_s = draws.below(2) * (100'000 + draws.below(10'000'000));
        other.stalled = draws.below(4) == 0;
        world.link.set(other, now);
      }
      const auto n =
          std::min<std::size_t>({draws.below(3'000), world.shaper.room(), sent.size() - n_in});
      world.shaper.take({sent.data() + n_in, n}, now);
      n_in += n;
      world.shaper.give(out, draws.below(3'000), now);
      now += static_cast<std::int64_t>(draws.below(2 * ms));
    }
    BOOST_REQUIRE_MESSAGE(out == sent, "seed " << seed);
    BOOST_TEST(world.shaper.held_bytes() == 0u);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
