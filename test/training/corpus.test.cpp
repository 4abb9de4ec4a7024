#include "model/training/corpus.hpp"

#include <boost/test/unit_test.hpp>

#include <array>
#include <map>
#include <set>
#include <string>

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(corpus)

BOOST_AUTO_TEST_CASE(no_item_of_one_split_occurs_in_another) {
  std::map<std::string, split> key_split, text_split;
  std::array<std::size_t, 3> n_items{};
  for (const auto part : {split::train, split::calibration, split::eval})
    for (std::uint64_t d = 0; d < 3000; ++d)
      for (const auto& item : make_document(part, 5, d).items) {
        BOOST_TEST((split_of(item.key) == part));
        BOOST_TEST((key_split.emplace(item.key, part).first->second == part), item.key);
        BOOST_TEST((text_split.emplace(item.text, part).first->second == part), item.text);
        ++n_items[static_cast<std::size_t>(part)];
      }
  for (const auto n : n_items) BOOST_TEST(n > 3000u);
}

BOOST_AUTO_TEST_CASE(a_problem_is_in_one_split_however_it_is_worded) {
  random_stream random(11);
  std::set<std::string> held_out;
  for (int i = 0; i < 2000; ++i) held_out.insert(make_problem(split::eval, random).key);
  BOOST_TEST(held_out.size() > 300u);
  for (int i = 0; i < 20000; ++i) {
    const auto p = make_problem(split::train, random);
    BOOST_TEST_REQUIRE(!held_out.contains(p.key), p.key);
  }
}

BOOST_AUTO_TEST_CASE(worked_solutions_end_in_the_true_result) {
  random_stream random(3);
  for (int i = 0; i < 3000; ++i) {
    const auto p = make_problem(split::train, random);
    const auto at = p.key.find_first_of("+-*");
    const int a = std::stoi(p.key.substr(0, at)), b = std::stoi(p.key.substr(at + 1));
    const int expected = p.key[at] == '+' ? a + b : p.key[at] == '-' ? a - b : a * b;
    BOOST_TEST_REQUIRE(p.answer == std::to_string(expected), p.prompt);
    const auto found = final_answer(p.worked);
    BOOST_TEST_REQUIRE(found.has_value());
    BOOST_TEST_REQUIRE(*found == p.answer);
  }
}

BOOST_AUTO_TEST_CASE(the_final_answer_is_read_from_the_first_line_only) {
  BOOST_TEST(final_answer(" 1+2=3; answer 3\nQ: answer 4").value_or("none") == "3");
  BOOST_TEST(final_answer(" answer 3; answer 45").value_or("none") == "45");
  BOOST_TEST(!final_answer("3\nanswer 3").has_value());
  BOOST_TEST(!final_answer(" answer x").has_value());
  BOOST_TEST(!final_answer("").has_value());
}

BOOST_AUTO_TEST_CASE(documents_are_a_function_of_seed_and_index) {
  std::set<std::string> seen;
  for (std::uint64_t d = 0; d < 100; ++d) {
    BOOST_TEST(make_document(split::train, 1, d).text() ==
               make_document(split::train, 1, d).text());
    seen.insert(make_document(split::train, 1, d).text());
    seen.insert(make_document(split::train, 2, d).text());
  }
  BOOST_TEST(seen.size() == 200u);
}

BOOST_AUTO_TEST_CASE(every_domain_occurs) {
  std::array<int, n_domains> n{};
  for (std::uint64_t d = 0; d < 400; ++d)
    ++n[static_cast<std::size_t>(make_document(split::train, 1, d).what)];
  for (const int count : n) BOOST_TEST(count > 10);
}

BOOST_AUTO_TEST_SUITE_END()
