#include "setup/texts.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
