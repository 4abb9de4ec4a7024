#include "setup/texts.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <iostream>
#include <sstream>
#include <string>

#include "config/files.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;

result<std::vector<setup::prompt>> read(const std::string& text) {
  const auto path = fs::temp_directory_path() / ("ordermoe-prompts-" + std::to_string(::getpid()));
  BOOST_REQUIRE(write_file(path, text).has_value());
  auto prompts = setup::read_prompts(path.string());
  fs::remove(path);
  return prompts;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(texts)

BOOST_AUTO_TEST_CASE(a_byte_order_mark_is_no_part_of_the_first_prompt) {
  const auto plain = read("\xef\xbb\xbfhello\n");
  BOOST_REQUIRE(plain.has_value());
  BOOST_TEST(plain->front().text == "hello");
  const auto object = read("\xef\xbb\xbf{\"prompt\": \"hello\"}\n");
  BOOST_REQUIRE(object.has_value());
  BOOST_TEST(object->front().text == "hello");
}

BOOST_AUTO_TEST_CASE(prompts_know_their_line) {
  const auto prompts = read("one\n\ntwo\n");
  BOOST_REQUIRE(prompts.has_value());
  BOOST_REQUIRE(prompts->size() == 2u);
  BOOST_TEST((*prompts)[1].place.ends_with(":3"));
}

BOOST_AUTO_TEST_CASE(a_line_may_state_the_budget_of_its_answer) {
  const auto prompts = read(
      "{\"prompt\": \"one\", \"quality_budget_percent\": 0.5}\n{\"prompt\": \"two\"}\nthree\n"
      "{\"prompt\": \"four\", \"quality_budget_percent\": null}\n");
  BOOST_REQUIRE(prompts.has_value());
  BOOST_TEST(prompts->at(0).quality_percent.value() == 0.5);
  BOOST_TEST(!prompts->at(1).quality_percent.has_value());
  BOOST_TEST(!prompts->at(2).quality_percent.has_value());
  BOOST_TEST(!prompts->at(3).quality_percent.has_value());
  for (const auto* wrong : {"-1", "100.5", "1e400", "\"1\"", "true", "[1]"}) {
    const auto refused =
        read(std::string("{\"prompt\": \"one\", \"quality_budget_percent\": ") + wrong + "}\n");
    BOOST_REQUIRE_MESSAGE(!refused.has_value(), wrong);
    BOOST_TEST(refused.error().message.find(":1") != std::string::npos, refused.error().message);
  }
}

BOOST_AUTO_TEST_CASE(members_that_would_do_nothing_are_refused) {
  const auto prompts = read("{\"prompt\": \"hello\", \"temperature\": 5}\n");
  BOOST_REQUIRE(!prompts.has_value());
  BOOST_TEST(prompts.error().message.find("temperature") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(
    standard_input_is_read_like_a_file_and_refused_where_it_is_longer_than_one_may_be) {
  const auto read_input = [](const std::string& text) {
    std::istringstream input(text);
    auto* const before = std::cin.rdbuf(input.rdbuf());
    auto prompts = setup::read_prompts("-");
    std::cin.rdbuf(before);
    return prompts;
  };
  const auto two = read_input("one\n\ntwo");
  BOOST_REQUIRE(two.has_value());
  BOOST_REQUIRE(two->size() == 2u);
  BOOST_TEST((*two)[1].text == "two");
  BOOST_TEST((*two)[1].place == "standard input:3");
  const auto longer = read_input(std::string((std::size_t{64} << 20) + 1, 'x'));
  BOOST_REQUIRE(!longer.has_value());
  BOOST_TEST((longer.error().code == errc::out_of_range));
  BOOST_TEST(longer.error().message == "standard input: larger than the 67108864 bytes allowed");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
