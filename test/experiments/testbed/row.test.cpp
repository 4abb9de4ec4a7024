#include "bench/experiments/testbed/row.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

BOOST_AUTO_TEST_SUITE(row)

BOOST_AUTO_TEST_CASE(a_line_reads_back_to_the_row_that_it_was_written_from) {
  auto made = as_read_back(made_row(
      at_main_budget("paper", 12),
      {{metric::latency_ms, 1 / 3.0}, {metric::left_out, 0}, {metric::increase_low, -1e-7}}));
  made.note = "a note, with \"quotes\" and commas";
  made.form = "layer-shards";
  const auto line = row_line(made, "digest");
  const auto read = row_of(line, "digest");
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST((*read == made));
  BOOST_TEST(row_line(*read, "digest") == line);
  BOOST_TEST(*(*read)[metric::latency_ms] == 0.333333);
  BOOST_TEST(!(*read)[metric::exact_match].has_value());
}

BOOST_AUTO_TEST_CASE(an_infeasible_row_says_why_on_one_line) {
  testbed::row made;
  made.what = at_main_budget("paper", 12);
  made.is_infeasible = true;
  made.note = "the first line\nthe second, too";
  const auto line = row_line(made, "digest");
  BOOST_TEST(line.find('\n') == std::string::npos);
  const auto read = row_of(line, "digest");
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(read->is_infeasible);
  BOOST_TEST(read->note == "the first line the second, too");
}

BOOST_AUTO_TEST_CASE(a_line_has_a_cell_for_each_column) {
  const auto cells = csv_cells(row_line(made_row(at_main_budget("paper", 1), {}), "digest"));
  BOOST_REQUIRE(cells.has_value());
  BOOST_TEST(cells->size() == row_columns().size());
}

BOOST_AUTO_TEST_CASE(lines_that_are_no_row_of_these_settings_are_refused) {
  const auto line = row_line(made_row(at_main_budget("paper", 1), {{metric::ttft_ms, 5}}), "mine");
  BOOST_TEST((row_of(line, "other").error().code == errc::mismatch));
  BOOST_TEST((row_of(line.substr(0, line.size() / 2), "mine").error().code == errc::malformed));
  auto torn = line;
  torn.replace(torn.find("measured"), 8, "guessed!");
  BOOST_TEST((row_of(torn, "mine").error().code == errc::malformed));
  BOOST_TEST(!csv_cells("a,\"b").has_value());
  for (const char* none : {"nan", "inf", "1e999", "5x"}) {
    auto other = line;
    other.replace(other.find(",5,"), 3, fmt::format(",{},", none));
    BOOST_TEST((row_of(other, "mine").error().code == errc::malformed), none);
  }
  auto infeasible = line;
  infeasible.replace(infeasible.find("measured"), 8, "infeasible");
  const auto refused = row_of(infeasible, "mine");
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("column ttft_ms: found '5'") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
