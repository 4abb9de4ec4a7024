#include "planning/serving/emulated_link.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

namespace ordermoe {

namespace {

using namespace serving;
using wire::frame_kind;

/// 1000 bytes a microsecond, 7 us of latency.
constexpr link_spec slow{1e9, 7'000};

std::vector<std::vector<std::int64_t>> deliveries(const disturbance& bad, std::uint32_t from,
                                                  std::uint32_t to, std::size_t n = 200) {
  serving::emulated_link link(slow, bad, from, to);
  std::vector<std::vector<std::int64_t>> all;
  for (std::size_t i = 0; i < n; ++i)
    all.push_back(
        link.send(frame_kind::token, 1000, static_cast<std::int64_t>(i) * 5000).deliveries);
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(emulated_link)

BOOST_AUTO_TEST_CASE(frames_are_charged_one_after_the_other_and_then_the_latency) {
  serving::emulated_link link(slow, {}, 0, 1);
  const auto first = link.send(frame_kind::token, 1000, 100);
  BOOST_TEST(first.start_ns == 100);
  BOOST_TEST(first.end_ns == 1100);
  BOOST_TEST(first.arrival_ns == 8100);
  BOOST_TEST(first.deliveries == std::vector<std::int64_t>{8100}, boost::test_tools::per_element());
  BOOST_TEST(link.wait_ns(600) == 500);
  const auto second = link.send(frame_kind::kv, 500, 600);
  BOOST_TEST(second.start_ns == 1100);
  BOOST_TEST(second.end_ns == 1600);
  BOOST_TEST(second.arrival_ns == 8600);
  BOOST_TEST(link.wait_ns(1600) == 0);
  BOOST_TEST(link.wait_ns(99'999) == 0);
  // Long idle: it starts at once.
  BOOST_TEST(link.send(frame_kind::token, 0, 50'000).arrival_ns == 57'000);
}

BOOST_AUTO_TEST_CASE(what_holds_a_link_up_for_long_goes_in_parts_and_short_frames_pass) {
  // 100 Mbit/s: 10 ms are 125,000 bytes, and a part of 16 KiB takes 1.31 ms, the next one 1.64 ms after it.
  constexpr link_spec uplink{12.5e6, 7'000, 500};
  serving::emulated_link link(uplink, {}, 0, 1);
  BOOST_TEST(!link.is_in_parts(frame_kind::token, 125'000));
  BOOST_TEST(link.is_in_parts(frame_kind::token, 125'001));
  BOOST_TEST(link.is_in_parts(frame_kind::kv, 125'001));
  BOOST_TEST(!link.is_in_parts(frame_kind::load, 125'001));
  BOOST_TEST(!link.is_in_parts(frame_kind::token, (2 << 20) + 1));
  // Of no more than a part.
  BOOST_TEST(!goes_in_parts({1e5, 0}, frame_kind::token, 16 * 1024));
  BOOST_TEST(!goes_in_parts(slow, frame_kind::token, 1 << 20));
  const auto part = link.send_part(16'384, 1'000);
  BOOST_TEST(part.start_ns == 1'000);
  BOOST_TEST(part.end_ns == 1'311'720);
  BOOST_TEST(part.deliveries.empty());
  const auto next = link.next_part_ns(part, 16'384, 1'000);
  BOOST_TEST(next == 1'639'400);
  const auto passing = link.send(frame_kind::token, 1'250, 200'000);
  BOOST_TEST(passing.start_ns == 1'311'720);
  BOOST_TEST(passing.end_ns == 1'411'720 + 500);
  // The last one is a frame like any other.
  const auto last = link.send(frame_kind::token, 1'250, next);
  BOOST_TEST(last.start_ns == next);
  BOOST_TEST(last.arrival_ns == next + 100'500 + 7'000);
  // Where the link was busy until later, the next one waits for that.
  BOOST_TEST(next_part_ns(uplink, 16'384, 1'000, 9'000'000) == 9'000'000);
}

BOOST_AUTO_TEST_CASE(without_a_seed_nothing_is_disturbed) {
  disturbance bad;
  bad.dropped_share = 1;
  bad.repeated_share = 0.9;
  bad.most_delay_ns = 1'000'000;
  int meddled = 0;
  bad.meddle = [&](wire::frame&, std::uint64_t) { ++meddled; };
  for (const auto& each : deliveries(bad, 0, 1)) BOOST_TEST(each.size() == 1u);
  serving::emulated_link link(slow, bad, 0, 1);
  wire::frame frame;
  link.deliver(frame);
  BOOST_TEST(meddled == 0);
}

BOOST_AUTO_TEST_CASE(seed_and_link_decide_what_happens_to_frames) {
  disturbance bad;
  bad.seed = 5;
  bad.most_delay_ns = 1'000'000;
  bad.repeated_share = 0.3;
  bad.dropped_share = 0.2;
  BOOST_TEST((deliveries(bad, 0, 1) == deliveries(bad, 0, 1)));
  BOOST_TEST((deliveries(bad, 0, 1) != deliveries(bad, 1, 0)));
  BOOST_TEST((deliveries(bad, 0, 1) != deliveries(bad, 0, 2)));
  auto other = bad;
  other.seed = 6;
  BOOST_TEST((deliveries(bad, 0, 1) != deliveries(other, 0, 1)));
}

BOOST_AUTO_TEST_CASE(as_many_frames_are_lost_and_repeated_as_the_shares_say) {
  constexpr std::size_t n = 4000;
  disturbance bad;
  bad.seed = 5;
  bad.dropped_share = 0.25;
  std::size_t lost = 0;
  for (const auto& each : deliveries(bad, 0, 1, n)) lost += each.empty();
  BOOST_TEST(lost > n / 5);
  BOOST_TEST(lost < n * 3 / 10);
  bad.dropped_share = 0;
  bad.repeated_share = 0.5;
  std::size_t came = 0;
  for (const auto& each : deliveries(bad, 0, 1, n)) {
    BOOST_TEST(!each.empty());
    came += each.size();
  }
  // A geometric series of share 1/2: twice on average.
  BOOST_TEST(came > n * 19 / 10);
  BOOST_TEST(came < n * 21 / 10);
  bad.repeated_share = 0;
  bad.dropped_share = 1;
  for (const auto& each : deliveries(bad, 0, 1)) BOOST_TEST(each.empty());
}

BOOST_AUTO_TEST_CASE(late_frames_come_within_the_bound_and_do_not_hold_up_the_link) {
  disturbance bad;
  bad.seed = 9;
  bad.most_delay_ns = 100'000;
  bad.delayed_share = 0.5;
  serving::emulated_link link(slow, bad, 0, 1);
  std::size_t late = 0, overtaken = 0;
  std::int64_t before = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto sent = link.send(frame_kind::token, 1000, i * 1000);
    BOOST_TEST_REQUIRE(sent.arrival_ns == (i + 1) * 1000 + 7000);
    BOOST_TEST_REQUIRE(sent.deliveries.size() == 1u);
    const auto delay = sent.deliveries[0] - sent.arrival_ns;
    BOOST_TEST_REQUIRE(delay >= 0);
    BOOST_TEST_REQUIRE(delay <= bad.most_delay_ns);
    late += delay > 0;
    overtaken += sent.deliveries[0] < before;
    before = sent.deliveries[0];
  }
  BOOST_TEST(late > 400u);
  BOOST_TEST(late < 600u);
  BOOST_TEST(overtaken > 100u);
}

BOOST_AUTO_TEST_CASE(only_the_kinds_that_are_named_are_disturbed) {
  disturbance bad;
  bad.seed = 5;
  bad.dropped_share = 1;
  bad.kinds = 1u << static_cast<unsigned>(frame_kind::kv);
  serving::emulated_link link(slow, bad, 0, 1);
  BOOST_TEST(link.send(frame_kind::token, 10, 0).deliveries.size() == 1u);
  BOOST_TEST(link.send(frame_kind::kv, 10, 0).deliveries.empty());
  BOOST_TEST(link.send(frame_kind::failure, 10, 0).deliveries.size() == 1u);
}

BOOST_AUTO_TEST_CASE(what_meddles_gets_other_bits_for_every_delivery) {
  disturbance bad;
  bad.seed = 5;
  std::vector<std::uint64_t> bits;
  bad.meddle = [&](wire::frame& content, std::uint64_t drawn) {
    content.bytes = "changed";
    bits.push_back(drawn);
  };
  serving::emulated_link link(slow, bad, 0, 1);
  wire::frame frame;
  link.deliver(frame);
  link.deliver(frame);
  BOOST_TEST(frame.bytes == "changed");
  BOOST_REQUIRE_EQUAL(bits.size(), 2u);
  BOOST_TEST(bits[0] != bits[1]);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
