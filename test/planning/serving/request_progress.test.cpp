#include "planning/serving/request_progress.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "config/random.hpp"

namespace ordermoe {

namespace {

constexpr std::uint32_t most = 100;

wire::progress_report token(std::uint32_t position, std::int32_t id, std::uint32_t attempt = 2) {
  wire::progress_report made;
  made.attempt = attempt;
  made.position = position;
  made.id = id;
  return made;
}

wire::progress_report chunk(std::uint32_t first, loss_units spent, std::uint32_t attempt = 2) {
  auto made = token(first, -1, attempt);
  made.spent = spent;
  return made;
}

/// Attempt 2; position 10 is the first of the answer, chunks at 0 and 4 report their end.
serving::request_progress begun() {
  serving::request_progress progress;
  const std::vector<std::uint32_t> chunks{0, 4};
  progress.begin(2, 10, chunks);
  return progress;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(request_progress)

BOOST_AUTO_TEST_CASE(positions_are_handed_out_in_turn_whatever_their_order) {
  auto progress = begun();
  BOOST_TEST(progress.take(token(12, 3), most));
  BOOST_TEST(progress.take(token(11, 2), most));
  BOOST_TEST(!progress.next().has_value());
  BOOST_TEST(progress.take(token(10, 1), most));
  for (const std::int32_t id : {1, 2, 3}) {
    const auto report = progress.next();
    BOOST_REQUIRE(report.has_value());
    BOOST_TEST(report->id == id);
  }
  BOOST_TEST(!progress.next().has_value());
  BOOST_TEST(progress.next_position() == 13u);
}

BOOST_AUTO_TEST_CASE(a_position_counts_once) {
  auto progress = begun();
  BOOST_TEST(progress.take(token(11, 2), most));
  BOOST_TEST(!progress.take(token(11, 9), most));
  progress.take(token(10, 1), most);
  progress.next();
  BOOST_TEST(!progress.take(token(10, 9), most));
  BOOST_TEST(progress.next()->id == 2);
}

BOOST_AUTO_TEST_CASE(reports_of_other_attempts_are_left_alone) {
  auto progress = begun();
  for (const std::uint32_t attempt : {1, 3}) {
    BOOST_TEST(!progress.take(token(10, 1, attempt), most));
    BOOST_TEST(!progress.take(chunk(0, 5, attempt), most));
  }
  BOOST_TEST(!progress.next().has_value());
  BOOST_TEST(progress.chunks_spent() == 0);
}

BOOST_AUTO_TEST_CASE(positions_that_no_request_has_are_left_alone) {
  auto progress = begun();
  BOOST_TEST(progress.take(token(most, 1), most));
  BOOST_TEST(!progress.take(token(most + 1, 1), most));
  BOOST_TEST(!progress.take(token(9, 1), most));
}

BOOST_AUTO_TEST_CASE(each_chunk_says_once_what_it_spent) {
  auto progress = begun();
  BOOST_TEST(!progress.chunks_done());
  BOOST_TEST(progress.take(chunk(4, 7), most));
  BOOST_TEST(!progress.take(chunk(4, 7), most));
  BOOST_TEST(!progress.take(chunk(3, 7), most));
  BOOST_TEST(!progress.chunks_done());
  BOOST_TEST(progress.take(chunk(0, 5), most));
  BOOST_TEST(progress.chunks_done());
  BOOST_TEST(progress.chunks_spent() == 12);
  BOOST_TEST(progress.next_position() == 10u);
}

BOOST_AUTO_TEST_CASE(a_new_attempt_forgets_what_came_early_and_what_chunks_spent) {
  auto progress = begun();
  progress.take(token(11, 2), most);
  progress.take(chunk(4, 7), most);
  const std::vector<std::uint32_t> chunks{8};
  progress.begin(3, 11, chunks);
  BOOST_TEST(progress.attempt() == 3u);
  BOOST_TEST(!progress.next().has_value());
  BOOST_TEST(progress.chunks_spent() == 0);
  BOOST_TEST(!progress.take(chunk(0, 5, 3), most));
  BOOST_TEST(progress.take(chunk(8, 1, 3), most));
  BOOST_TEST(progress.chunks_done());
}

BOOST_AUTO_TEST_CASE(any_order_with_repetitions_hands_out_every_position_once) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    random_stream draws(seed);
    auto progress = begun();
    const auto n = static_cast<std::int32_t>(1 + draws.below(20));
    std::vector<wire::progress_report> reports;
    for (std::int32_t i = 0; i < n; ++i)
      for (auto copies = 1 + draws.below(3); copies > 0; --copies)
        reports.push_back(token(10 + static_cast<std::uint32_t>(i), i));
    for (std::size_t i = reports.size(); i > 1; --i)
      std::swap(reports[i - 1], reports[draws.below(i)]);
    std::vector<std::int32_t> handed_out;
    for (const auto& report : reports) {
      progress.take(report, most);
      while (const auto next = progress.next()) handed_out.push_back(next->id);
    }
    BOOST_TEST_REQUIRE(handed_out.size() == static_cast<std::size_t>(n), "seed " << seed);
    BOOST_TEST_REQUIRE(std::ranges::is_sorted(handed_out));
  }
}

BOOST_AUTO_TEST_CASE(what_chunks_spent_is_taken_once) {
  auto progress = begun();
  BOOST_TEST(progress.take(chunk(0, 7), most));
  BOOST_TEST(progress.take_chunks_spent() == 7);
  BOOST_TEST(progress.take_chunks_spent() == 0);
  BOOST_TEST(progress.chunks_spent() == 0);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
