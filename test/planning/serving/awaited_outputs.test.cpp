#include "planning/serving/awaited_outputs.hpp"

#include <boost/test/unit_test.hpp>
#include <numeric>

#include "config/random.hpp"

namespace ordermoe {

namespace {

using wire::executed_slot;
using wire::whole_row;

constexpr std::size_t width = 2;

serving::arrived_output output_of(std::uint32_t from, std::uint32_t layer,
                                  std::vector<wire::output_row> rows, std::vector<float> y) {
  serving::arrived_output made;
  made.from = from;
  made.content.layer = layer;
  made.content.rows = std::move(rows);
  made.content.y = std::move(y);
  return made;
}

/// Gate-weighted sum; the model has its own.
void add_slots(std::span<float> hidden, std::span<const float> gates,
               std::span<const float* const> parts) {
  for (std::size_t j = 0; j < parts.size(); ++j)
    for (std::size_t c = 0; c < hidden.size(); ++c) hidden[c] += gates[j] * parts[j][c];
}

std::vector<float> sums(const serving::awaited_outputs& awaited, std::size_t rows) {
  std::vector<float> hidden(rows * width, 0.0f);
  awaited.add_to(hidden, add_slots);
  return hidden;
}

/// Row 0 runs on server 1 alone, row 1 on servers 0 and 1, row 2 nowhere.
const std::vector<std::uint32_t> slots_of_row{2, 2, 0};
const std::vector<executed_slot> slots{{1, 4, 0.75f}, {1, 5, 0.25f}, {0, 2, 0.5f}, {1, 4, 2.0f}};

serving::awaited_outputs of_three_rows() {
  serving::awaited_outputs awaited;
  awaited.expect(6, slots_of_row, slots, width);
  return awaited;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(awaited_outputs)

BOOST_AUTO_TEST_CASE(a_row_of_one_server_comes_as_a_sum_and_others_slot_by_slot) {
  auto awaited = of_three_rows();
  BOOST_TEST(!awaited.complete());
  BOOST_TEST(!awaited.take(output_of(1, 6, {{0, whole_row}, {1, 1}}, {1, 2, 10, 20})));
  BOOST_TEST(awaited.take(output_of(0, 6, {{1, 0}}, {100, 200})));
  const std::vector<float> expected{1, 2, 50 + 20, 100 + 40, 0, 0};
  BOOST_TEST(sums(awaited, 3) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(nothing_is_awaited_where_no_row_runs_an_expert) {
  serving::awaited_outputs awaited;
  const std::vector<std::uint32_t> none{0, 0};
  awaited.expect(0, none, {}, width);
  BOOST_TEST(awaited.complete());
  BOOST_TEST(sums(awaited, 2) == std::vector<float>(4, 0.0f), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(each_row_counts_once_and_the_first_to_come_counts) {
  auto awaited = of_three_rows();
  awaited.take(output_of(1, 6, {{0, whole_row}}, {1, 2}));
  awaited.take(output_of(1, 6, {{0, whole_row}}, {7, 7}));
  awaited.take(output_of(0, 6, {{1, 0}, {1, 0}}, {100, 200, 7, 7}));
  BOOST_TEST(!awaited.complete());
  // Half of this is here already.
  BOOST_TEST(awaited.take(output_of(1, 6, {{0, whole_row}, {1, 1}}, {9, 9, 10, 20})));
  const std::vector<float> expected{1, 2, 70, 140, 0, 0};
  BOOST_TEST(sums(awaited, 3) == expected, boost::test_tools::per_element());
  BOOST_TEST(awaited.take(output_of(1, 6, {{0, whole_row}}, {7, 7})));
  BOOST_TEST(sums(awaited, 3) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_was_not_asked_for_is_left_alone) {
  auto awaited = of_three_rows();
  awaited.take(output_of(1, 5, {{0, whole_row}}, {9, 9}));  // Another layer.
  awaited.take(output_of(1, 6, {{3, 0}}, {9, 9}));          // No such row.
  awaited.take(output_of(1, 6, {{0, 0}}, {9, 9}));          // A slot of a row that comes as a sum.
  awaited.take(output_of(1, 6, {{1, whole_row}}, {9, 9}));  // A sum of a row that comes by slots.
  awaited.take(output_of(1, 6, {{1, 2}}, {9, 9}));          // No such slot.
  awaited.take(output_of(1, 6, {{2, whole_row}}, {9, 9}));  // A row that runs nothing.
  awaited.take(output_of(0, 6, {{0, whole_row}}, {9, 9}));  // Of a server that was not asked.
  awaited.take(output_of(1, 6, {{1, 0}}, {9, 9}));
  BOOST_TEST(!awaited.complete());
  awaited.take(output_of(0, 6, {{1, 0}}, {2, 2}));
  BOOST_TEST(awaited.take(output_of(1, 6, {{0, whole_row}, {1, 1}}, {1, 1, 4, 4})));
  const std::vector<float> expected{1, 1, 1 + 8, 1 + 8, 0, 0};
  BOOST_TEST(sums(awaited, 3) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_output_that_failed_is_a_problem_where_it_is_awaited_and_only_there) {
  auto awaited = of_three_rows();
  const auto failed = [](std::uint32_t from, std::uint32_t layer, wire::output_row row) {
    auto made = output_of(from, layer, {row}, {});
    made.content.code = static_cast<std::uint8_t>(errc::io);
    made.content.problem = "no memory";
    return made;
  };
  awaited.take(failed(0, 6, {0, whole_row}));  // Server 1 was asked.
  awaited.take(failed(1, 5, {0, whole_row}));
  awaited.take(output_of(1, 6, {{0, whole_row}}, {1, 1}));
  awaited.take(failed(1, 6, {0, whole_row}));  // It is in.
  BOOST_TEST(!awaited.problem().has_value());
  BOOST_TEST(!awaited.take(failed(0, 6, {1, 0})));
  BOOST_REQUIRE(awaited.problem().has_value());
  BOOST_TEST((awaited.problem()->code == errc::io));
  BOOST_TEST(awaited.problem()->message == "no memory");
  awaited.expect(7, slots_of_row, slots, width);
  BOOST_TEST(!awaited.problem().has_value());
}

BOOST_AUTO_TEST_CASE(a_new_layer_begins_with_nothing) {
  auto awaited = of_three_rows();
  awaited.take(output_of(1, 6, {{0, whole_row}, {1, 1}}, {1, 1, 1, 1}));
  awaited.take(output_of(0, 6, {{1, 0}}, {1, 1}));
  BOOST_TEST(awaited.complete());
  const std::vector<std::uint32_t> one{1};
  const std::vector<executed_slot> slot{{3, 0, 1.0f}};
  awaited.expect(7, one, slot, width);
  BOOST_TEST(!awaited.complete());
  awaited.take(output_of(3, 6, {{0, whole_row}}, {9, 9}));
  BOOST_TEST(!awaited.complete());
  awaited.take(output_of(3, 7, {{0, whole_row}}, {3, 4}));
  const std::vector<float> expected{3, 4};
  BOOST_TEST(sums(awaited, 1) == expected, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(in_whatever_order_and_however_often_outputs_come_the_sums_are_the_same) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    random_stream draws(seed);
    const auto n = 1 + draws.below(6);
    std::vector<std::uint32_t> counts;
    std::vector<executed_slot> drawn;
    std::vector<float> expected(n * width, 0.0f);
    std::vector<serving::arrived_output> messages;
    for (std::uint32_t row = 0; row < n; ++row) {
      const auto k = static_cast<std::uint32_t>(draws.below(4));
      counts.push_back(k);
      bool whole = true;
      for (std::uint32_t j = 0; j < k; ++j) {
        drawn.push_back({static_cast<std::uint32_t>(draws.below(2)), j, 1.0f + j});
        whole = whole && drawn.back().server == drawn[drawn.size() - 1 - j].server;
      }
      for (std::uint32_t j = 0; j < (whole ? std::min(k, 1u) : k); ++j) {
        // Whole numbers, so that sums do not depend on the order of additions.
        const auto value = static_cast<float>(draws.below(1000));
        messages.push_back(output_of(drawn[drawn.size() - k + j].server, 1,
                                     {{row, whole ? whole_row : j}},
                                     std::vector<float>(width, value)));
        for (std::size_t c = 0; c < width; ++c)
          expected[row * width + c] += value * (whole ? 1.0f : 1.0f + static_cast<float>(j));
      }
    }
    const auto distinct = messages.size();
    for (std::size_t i = 0; i < distinct; ++i)
      if (draws.below(2) == 0) messages.push_back(messages[i]);
    for (std::size_t i = messages.size(); i > 1; --i)
      std::swap(messages[i - 1], messages[draws.below(i)]);
    serving::awaited_outputs awaited;
    awaited.expect(1, counts, drawn, width);
    bool complete = awaited.complete();
    for (const auto& each : messages) complete = awaited.take(each);
    BOOST_TEST_REQUIRE(complete, "seed " << seed);
    BOOST_TEST_REQUIRE(sums(awaited, n) == expected, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_CASE(a_server_is_awaited_until_all_of_it_is_in) {
  auto awaited = of_three_rows();
  const auto awaits = [&] {
    std::vector<bool> of_server;
    for (const std::uint32_t server : {0, 1, 2, 99}) of_server.push_back(awaited.awaits(server));
    return of_server;
  };
  BOOST_TEST(awaits() == (std::vector<bool>{true, true, false, false}),
             boost::test_tools::per_element());
  awaited.take(output_of(1, 6, {{0, whole_row}}, {1, 2}));
  BOOST_TEST(awaited.awaits(1));  // A slot of row 1.
  awaited.take(output_of(0, 6, {{1, 0}}, {100, 200}));
  BOOST_TEST(awaits() == (std::vector<bool>{false, true, false, false}),
             boost::test_tools::per_element());
  awaited.take(output_of(1, 6, {{1, 1}}, {10, 20}));
  BOOST_TEST(awaits() == (std::vector<bool>{false, false, false, false}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(of_a_row_that_comes_as_a_sum_one_output_is_awaited) {
  serving::awaited_outputs awaited;
  awaited.expect(6, std::vector<std::uint32_t>{2},
                 std::vector<executed_slot>{{1, 4, 0.75f}, {1, 5, 0.25f}}, width);
  BOOST_TEST(awaited.awaits(1));
  awaited.take(output_of(1, 6, {{0, whole_row}}, {1, 2}));
  BOOST_TEST(!awaited.awaits(1));
}

BOOST_AUTO_TEST_CASE(nobody_is_awaited_where_no_row_runs_an_expert) {
  serving::awaited_outputs awaited;
  BOOST_TEST(!awaited.awaits(0));
  awaited.expect(0, std::vector<std::uint32_t>{0, 0}, {}, width);
  BOOST_TEST(!awaited.awaits(0));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
