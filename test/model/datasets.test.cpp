#include "model/datasets.hpp"

#include <unistd.h>
#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <fstream>

namespace ordermoe::model {

namespace {

const std::filesystem::path samples = std::filesystem::path(ORDERMOE_TEST_DATA) / "datasets";

class temporary_file {
 public:
  explicit temporary_file(const std::string& content) {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~temporary_file() { std::filesystem::remove(path_); }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_ =
      std::filesystem::temp_directory_path() / ("datasets-test-" + std::to_string(::getpid()));
};

void refused(const result<std::vector<question>>& read, const std::string& place) {
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST(read.error().message.find(place) != std::string::npos, read.error().message);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(datasets)

BOOST_AUTO_TEST_CASE(answers_are_normalised_as_the_official_script_does) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"The Cat", "cat"},
      {"a cat, an owl and the dog!", "cat owl and dog"},
      {"  many\t white\n spaces  ", "many white spaces"},
      {"U.S.A.", "usa"},
      {"well-known", "wellknown"},
      {"theatre", "theatre"},
      {"\u00c9T\u00c9", "\u00e9t\u00e9"},
      {"the\u2013end", "\u2013end"},
      {"a", ""},
      {"$1,000.50", "100050"},
      {"it's the 'a' team", "its team"},
      {"caf\u00e9\u00a0noir", "caf\u00e9 noir"},
      {"", ""},
  };
  for (const auto& [text, expected] : cases)
    BOOST_TEST(squad_normalised(text) == expected, text << ": " << squad_normalised(text));
}

BOOST_AUTO_TEST_CASE(the_best_of_the_accepted_answers_counts) {
  const std::vector<std::string> accepted{"four", "the four wheels"};
  BOOST_TEST(score_squad("Four.", accepted).exact_match == 1);
  BOOST_TEST(score_squad("Four.", accepted).f1 == 1);
  const auto partly = score_squad("four big wheels", accepted);
  BOOST_TEST(partly.exact_match == 0);
  BOOST_TEST(partly.f1 == 2 * (2.0 / 3) * 1 / (2.0 / 3 + 1), boost::test_tools::tolerance(1e-12));
  // Repeated words count as often as both texts have them.
  BOOST_TEST(score_squad("four four", std::vector<std::string>{"four"}).f1 == 2 * 0.5 / 1.5,
             boost::test_tools::tolerance(1e-12));
  BOOST_TEST(score_squad("seven", accepted).f1 == 0);
}

BOOST_AUTO_TEST_CASE(no_answer_is_right_only_where_there_is_none) {
  BOOST_TEST(score_squad("", {}).exact_match == 1);
  BOOST_TEST(score_squad("", {}).f1 == 1);
  BOOST_TEST(score_squad("Weir Point", {}).f1 == 0);
  BOOST_TEST(score_squad("", std::vector<std::string>{"four"}).f1 == 0);
}

BOOST_AUTO_TEST_CASE(a_squad_file_gives_its_questions_in_order) {
  const auto read = read_squad(samples / "squad-sample.json");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_REQUIRE_EQUAL(read->size(), 3u);
  BOOST_TEST((*read)[0].id == "t1");
  BOOST_TEST((*read)[0].answers == (std::vector<std::string>{"four", "four wheels"}),
             boost::test_tools::per_element());
  BOOST_TEST((*read)[0].prompt.starts_with("Title: Tide mill\nA tide mill stands"));
  BOOST_TEST(
      (*read)[0].prompt.ends_with("\nQuestion: How many wheels did the mill have?\nAnswer:"));
  BOOST_TEST((*read)[1].answers.empty());
  BOOST_TEST((*read)[2].answers.front() == "oak");
}

BOOST_AUTO_TEST_CASE(bad_squad_files_are_refused_with_their_place) {
  refused(read_squad(samples / "nowhere.json"), "nowhere.json");
  refused(read_squad(temporary_file("{\"data\": [").path()), "");
  refused(read_squad(temporary_file(R"({"data": []})").path()), "data");
  refused(read_squad(
              temporary_file(R"({"data": [{"paragraphs": [{"context": 1, "qas": []}]}]})").path()),
          "data[0].paragraphs[0].context");
  refused(
      read_squad(
          temporary_file(
              R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"id": "x", "question": "q", "answers": []}]}]}]})")
              .path()),
      "qas[0].answers");
}

BOOST_AUTO_TEST_CASE(a_gsm8k_file_gives_problems_and_numbers) {
  const auto read = read_gsm8k(samples / "gsm8k-sample.jsonl");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_REQUIRE_EQUAL(read->size(), 2u);
  BOOST_TEST((*read)[0].answers.front() == "42");
  BOOST_TEST((*read)[1].answers.front() == "5000");
  BOOST_TEST((*read)[1].prompt.ends_with("\nAnswer:"));
  refused(read_gsm8k(temporary_file("\n{\"question\": \"q\", \"answer\": \"7\"}\n").path()),
          ":2: answer");
  refused(read_gsm8k(temporary_file("{\"question\": \"q\", \"answer\": \"#### x\"}").path()),
          ":1: answer");
  refused(read_gsm8k(temporary_file("{\"answer\": \"#### 1\"}").path()), "question");
  refused(read_gsm8k(temporary_file("").path()), "no problem");
}

BOOST_AUTO_TEST_CASE(the_number_of_a_solution_is_found) {
  const std::vector<std::pair<std::string, std::optional<std::string>>> cases{
      {"6*7=42\n#### 42", "42"},
      {"#### 1,234", "1234"},
      {"#### -3", "-3"},
      {"#### $18.50", "18.5"},
      {"#### 7.00", "7"},
      {"so 3 and then 12.", "12"},
      {"we have 5-2 left", "2"},
      {"it fell to -4 degrees", "-4"},
      {"nothing", std::nullopt},
      {"#### ", std::nullopt},
      {"1,000 of 2,500 people", "2500"},
      {"#### 1 #### 2", "2"},
  };
  for (const auto& [text, expected] : cases)
    BOOST_TEST((gsm8k_answer(text) == expected),
               text << ": " << gsm8k_answer(text).value_or("none"));
}

BOOST_AUTO_TEST_CASE(wikitext_is_read_as_it_stands_and_only_the_raw_edition) {
  const auto read = read_wikitext(samples / "wikitext-sample.raw");
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(read->starts_with(" = Tide mill = \n\n A tide"));
  const auto tokenised = read_wikitext(temporary_file("the <unk> of 1 @-@ 2\n").path());
  BOOST_REQUIRE(!tokenised.has_value());
  BOOST_TEST(tokenised.error().message.find("raw edition") != std::string::npos);
  BOOST_TEST(!read_wikitext(temporary_file("\xff\xfe").path()).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::model
