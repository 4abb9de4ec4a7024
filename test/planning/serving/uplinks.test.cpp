#include "planning/serving/uplinks.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <map>
#include <vector>

#include "config/random.hpp"
#include "planning/serving/emulated_link.hpp"

namespace ordermoe {

namespace {

using serving::shared_uplinks;
using wire::frame_kind;

/// Four servers, two at each of two sites, links of 4000 bytes a microsecond without latency.
cluster four(double of_servers, double of_sites) {
  cluster made;
  made.servers.resize(4);
  made.links.assign(16, {4e9, 0});
  made.sites = {{"east", of_sites}, {"west", of_sites}};
  for (std::size_t m = 0; m < 4; ++m) {
    made.servers[m].uplink_bytes_per_s = of_servers;
    made.servers[m].site = made.sites[m % 2].name;
  }
  bound_by_uplinks(made);
  return made;
}

constexpr server_id at(std::size_t m) {
  return server_id{m};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(uplinks)

BOOST_AUTO_TEST_CASE(without_rates_nothing_is_shared) {
  shared_uplinks none(four(0, 0));
  BOOST_TEST(!none.any());
  BOOST_TEST(none.take(at(0), at(1), 1000, 5, 5) == 5);
  BOOST_TEST(none.take(at(0), at(2), 1000, 5, 5) == 5);
}

BOOST_AUTO_TEST_CASE(what_leaves_a_server_leaves_it_one_after_the_other_and_so_does_what_comes_in) {
  shared_uplinks shared(four(1e9, 0));
  BOOST_TEST(shared.any());
  BOOST_TEST(shared.take(at(0), at(1), 1000, 0, 0) == 0);
  BOOST_TEST(shared.start_ns(at(0), at(2), 1000, 0) == 1000);
  BOOST_TEST(shared.take(at(0), at(2), 1000, 0, 0) == 1000);
  // Into server 1 from elsewhere, while what server 0 sends still comes in there.
  BOOST_TEST(shared.take(at(3), at(1), 500, 0, 0) == 1000);
  // The other way, and between others, nothing waits.
  BOOST_TEST(shared.take(at(1), at(0), 1000, 0, 0) == 0);
  BOOST_TEST(shared.take(at(2), at(3), 1000, 0, 0) == 0);
}

BOOST_AUTO_TEST_CASE(what_stays_at_a_site_takes_nothing_of_its_uplink) {
  shared_uplinks shared(four(0, 1e9));
  BOOST_TEST(shared.take(at(0), at(2), 5000, 0, 0) == 0);
  BOOST_TEST(shared.take(at(0), at(1), 1000, 0, 0) == 0);
  BOOST_TEST(shared.take(at(2), at(3), 1000, 0, 0) == 1000);
  BOOST_TEST(shared.take(at(1), at(0), 1000, 0, 0) == 0);
  BOOST_TEST(shared.take(at(2), at(0), 1000, 0, 0) == 0);
}

BOOST_AUTO_TEST_CASE(gaps_before_frames_that_begin_later_are_filled) {
  shared_uplinks shared(four(1e9, 0));
  // Its link is free at 3000 only.
  BOOST_TEST(shared.take(at(0), at(1), 1000, 3000, 0) == 3000);
  BOOST_TEST(shared.take(at(0), at(2), 2000, 0, 0) == 0);
  BOOST_TEST(shared.take(at(0), at(2), 1001, 0, 0) == 4000);
  BOOST_TEST(shared.take(at(0), at(3), 1000, 0, 0) == 2000);
  BOOST_TEST(shared.take(at(0), at(3), 1, 0, 0) == 5001);
  BOOST_TEST(shared.take(at(0), at(3), 0, 0, 0) == 0);
}

BOOST_AUTO_TEST_CASE(no_way_ever_carries_more_than_its_rate) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) BOOST_TEST_CONTEXT("seed " << seed) {
      random_stream random(seed, 1);
      const auto servers = four(1e9, 1.5e9);
      shared_uplinks shared(servers);
      struct frame {
        std::size_t from, to;
        std::int64_t start, bytes;
      };
      std::vector<frame> frames;
      std::map<std::pair<std::size_t, std::size_t>, std::int64_t> free;
      std::int64_t now = 0;
      for (std::size_t i = 0; i < 200; ++i) {
        now += static_cast<std::int64_t>(random.below(300));
        const auto from = random.below(4), to = (from + 1 + random.below(3)) % 4;
        const auto bytes = static_cast<std::int64_t>(random.below(2000));
        auto& link = free[{from, to}];
        const auto earliest = std::max(now, link);
        const auto foretold = shared.start_ns(at(from), at(to), bytes, earliest);
        const auto start = shared.take(at(from), at(to), bytes, earliest, now);
        BOOST_REQUIRE(start == foretold);
        BOOST_REQUIRE(start >= earliest);
        link = start + transfer_ns(servers.link(at(from), at(to)), bytes);
        frames.push_back({from, to, start, bytes});
      }
      const auto apart = [&](double rate, const auto& takes) {
        std::vector<std::pair<std::int64_t, std::int64_t>> taken;
        for (const auto& each : frames)
          if (takes(each) && each.bytes > 0)
            taken.emplace_back(each.start, each.start + transfer_ns({rate, 0}, each.bytes));
        std::ranges::sort(taken);
        for (std::size_t i = 1; i < taken.size(); ++i)
          BOOST_REQUIRE(taken[i].first >= taken[i - 1].second);
        return taken.size();
      };
      for (std::size_t m = 0; m < 4; ++m) {
        BOOST_TEST(apart(1e9, [&](const frame& each) { return each.from == m; }) > 10u);
        apart(1e9, [&](const frame& each) { return each.to == m; });
      }
      for (std::size_t s = 0; s < 2; ++s) {
        const auto crosses = [](const frame& each) { return each.from % 2 != each.to % 2; };
        BOOST_TEST(apart(1.5e9, [&](const frame& each) {
                     return crosses(each) && each.from % 2 == s;
                   }) > 10u);
        apart(1.5e9, [&](const frame& each) { return crosses(each) && each.to % 2 == s; });
      }
    }
}

BOOST_AUTO_TEST_CASE(links_wait_for_each_other_and_say_so) {
  const auto servers = four(1e9, 0);
  const auto shared = std::make_shared<shared_uplinks>(servers);
  serving::emulated_link first(servers.link(at(0), at(1)), {}, 0, 1, shared),
      second(servers.link(at(0), at(2)), {}, 0, 2, shared);
  BOOST_TEST(second.send(frame_kind::token, 100, 0).end_ns == 100);
  const auto sent = first.send(frame_kind::token, 1000, 50);
  BOOST_TEST(sent.start_ns == 100);
  BOOST_TEST(sent.end_ns == 1100);
  BOOST_TEST(second.wait_ns(200) == 900);
  BOOST_TEST(second.send(frame_kind::token, 100, 200).start_ns == 1100);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
