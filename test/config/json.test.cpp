#include "config/json.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "config/random.hpp"

using namespace ordermoe;

namespace {

std::unique_ptr<json_document> parsed(std::string_view text) {
  auto document = json_document::parse(text, "file.json");
  if (!document) BOOST_FAIL(document.error().message);
  return std::move(document).value();
}

void check_syntax(std::string_view text, std::string_view begins, std::string_view contains) {
  const auto document = json_document::parse(text, "file.json");
  BOOST_REQUIRE_MESSAGE(!document, "accepted " << text);
  BOOST_TEST((document.error().code == errc::malformed));
  BOOST_TEST(document.error().message.starts_with(begins), document.error().message);
  BOOST_TEST(document.error().message.find(contains) != std::string::npos,
             document.error().message);
}

/// What `read` does to the text is refused with this code and exactly this message.
void check_refused(std::string_view text, const std::function<void(const json_value&)>& read,
                   errc code, std::string_view message) {
  const auto document = parsed(text);
  read(document->root());
  const auto outcome = document->outcome();
  BOOST_REQUIRE_MESSAGE(!outcome, "accepted " << text);
  BOOST_TEST(outcome.error().message == message);
  BOOST_TEST((outcome.error().code == code));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(json)

BOOST_AUTO_TEST_CASE(every_type_is_read) {
  const auto document = parsed(
      R"({"name": "plan", "exact": true, "n": 18446744073709551615, "least": -9223372036854775808,
          "share": 0.1, "whole": 3, "values": [1, 2.5], "rows": [[1, 2], [3, 4], [5, 6]], "ids": [0, 7],
          "words": ["a", "b"], "nothing": null, "kind": "two", "inner": {"deep": [{"x": 1}]}})");
  const auto root = document->root();
  BOOST_TEST(root.at("name").string() == "plan");
  BOOST_TEST(root.at("exact").boolean());
  BOOST_TEST(root.at("n").unsigned_integer() == 18446744073709551615ull);
  BOOST_TEST(root.at("least").integer() == std::numeric_limits<std::int64_t>::min());
  BOOST_TEST(root.at("share").number() == 0.1);
  BOOST_TEST(root.at("whole").number() == 3.0);
  BOOST_TEST(root.at("whole").count(0, 3) == 3u);
  BOOST_TEST(root.at("values").numbers() == (std::vector{1.0, 2.5}),
             boost::test_tools::per_element());
  BOOST_TEST(root.at("rows").matrix(3, 2) == (std::vector<double>{1, 2, 3, 4, 5, 6}),
             boost::test_tools::per_element());
  BOOST_TEST(root.at("ids").indices(8) == (std::vector<std::uint32_t>{0, 7}),
             boost::test_tools::per_element());
  BOOST_TEST(root.at("words").strings(2) == (std::vector<std::string>{"a", "b"}),
             boost::test_tools::per_element());
  BOOST_TEST(root.at("kind").one_of({"one", "two"}) == 1u);
  BOOST_TEST(!root.find("nothing"));
  BOOST_TEST(!root.find("absent"));
  BOOST_REQUIRE(root.find("inner"));
  const auto deep = root.at("inner").at("deep").items(1);
  BOOST_REQUIRE(deep.size() == 1u);
  BOOST_TEST(deep[0].at("x").path() == "inner.deep[0].x");
  BOOST_TEST(deep[0].at("x").integer() == 1);
  BOOST_TEST(root.at("inner").keys().size() == 1u);
  root.only({"name", "exact", "n", "least", "share", "whole", "values", "rows", "ids", "words",
             "nothing", "kind", "inner"});
  BOOST_TEST(static_cast<bool>(document->outcome()));
  BOOST_TEST(*document->finish(7) == 7);
}

BOOST_AUTO_TEST_CASE(doubles_come_back_bit_for_bit) {
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const double value =
        std::ldexp(random_unit(1, 0, i) - 0.5, static_cast<int>(random_bits(1, 1, i) % 200) - 100);
    char text[64];
    std::snprintf(text, sizeof text, "%.17g", value);
    BOOST_TEST(parsed(text)->root().number() == value);
  }
}

BOOST_AUTO_TEST_CASE(wrong_syntax_is_refused_with_line_and_column) {
  check_syntax("", "file.json:1:1: ", "expected JSON");
  check_syntax("{\n  \"a\": 1,\n  \"b\": }", "file.json:3:8: ", "'");
  check_syntax("{\"a\": 1}}", "file.json:1:9: ", "expected JSON");
  check_syntax("[1, 2", "file.json:1:", "expected JSON");
  check_syntax("{\"a\": NaN}", "file.json:1:7: ", "expected JSON");
  check_syntax("[1e999]", "file.json:1:", "1e999");
  check_syntax("\"\xff\"", "file.json:1:", "expected JSON");
  check_syntax("{\"a\": 1, \"a\": 2}", "file.json: ", "'a' twice");
  check_syntax(std::string(100'000, '['), "file.json: ", "64 levels");
}

BOOST_AUTO_TEST_CASE(what_another_process_told_is_no_deeper_than_it_can_be_written_again) {
  const auto nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  BOOST_TEST(parse_told(nested(64)).is_array());
  BOOST_TEST(parse_told(nested(65)).is_discarded());
  BOOST_TEST(parse_told(nested(500'000)).is_discarded());
  // Next to each other, or within a string, they are none.
  std::string flat = "[";
  for (int i = 0; i < 100; ++i) flat += "[],{},";
  BOOST_TEST(parse_told(flat + "0]").is_array());
  BOOST_TEST(parse_told("[\"\\\"" + std::string(100, '[') + "\"]").is_array());
  BOOST_TEST(parse_told("]]]]").is_discarded());
  const auto members = [](std::size_t n) {
    std::string text;
    for (std::size_t i = 0; i < n; ++i) text += "\"" + std::to_string(i) + "\":0,";
    return "{" + text.substr(0, text.size() - 1) + "}";
  };
  BOOST_TEST(parse_told(members(1000)).is_object());
  BOOST_TEST(parse_told(members(1001)).is_discarded());
  BOOST_TEST(parse_told("").is_discarded());
}

BOOST_AUTO_TEST_CASE(a_wrong_value_is_refused_with_its_path) {
  const auto layers = R"({"layers": [{"transition": [0.5, 0.5]}, {"transition": [0.5, -0.5]}]})";
  check_refused(
      layers,
      [](const auto& root) { root.at("layers").items()[1].at("transition").numbers(2, 0, 1); },
      errc::out_of_range,
      "file.json: layers[1].transition[1]: found -0.5, expected a number from 0 to 1; correct it");
  check_refused(
      layers, [](const auto& root) { root.at("layers").items()[0].at("transition").numbers(3); },
      errc::mismatch,
      "file.json: layers[0].transition: found an array of 2 values, expected 3 values; correct it");
  check_refused(
      layers, [](const auto& root) { root.at("layers").items(3); }, errc::mismatch,
      "file.json: layers: found an array of 2 values, expected 3 values; correct it");
  check_refused(
      layers, [](const auto& root) { root.at("epoch").integer(); }, errc::malformed,
      "file.json: found no member 'epoch', expected it to be there; correct it");
  check_refused(
      layers, [](const auto& root) { root.at("layers").at("x").string(); }, errc::malformed,
      "file.json: layers: found an array of 2 values, expected an object with the member 'x'; "
      "correct it");
  check_refused(
      layers,
      [](const auto& root) {
        root.only({"layer", "version"});
      },
      errc::malformed,
      "file.json: found the unknown member 'layers', expected one of layer, version; correct it");
  check_refused(
      "[3.0]", [](const auto& root) { root.items()[0].integer(); }, errc::malformed,
      "file.json: [0]: found 3.0, expected a whole number; correct it");
  check_refused(
      "-1", [](const auto& root) { root.unsigned_integer(); }, errc::out_of_range,
      "file.json: found -1, expected a whole number; correct it");
  check_refused(
      "18446744073709551615", [](const auto& root) { root.integer(); }, errc::out_of_range,
      "file.json: found 18446744073709551615, expected a whole number; correct it");
  check_refused(
      "18446744073709551616", [](const auto& root) { root.unsigned_integer(); }, errc::malformed,
      "file.json: found 1.8446744073709552e+19, expected a whole number; correct it");
  check_refused(
      "9", [](const auto& root) { root.count(1, 8); }, errc::out_of_range,
      "file.json: found 9, expected a whole number from 1 to 8; correct it");
  check_refused(
      "\"three\"",
      [](const auto& root) {
        root.one_of({"one", "two"});
      },
      errc::out_of_range, "file.json: found \"three\", expected one of one, two; correct it");
  check_refused(
      "1", [](const auto& root) { root.boolean(); }, errc::malformed,
      "file.json: found 1, expected true or false; correct it");
  check_refused(
      "null", [](const auto& root) { root.string(); }, errc::malformed,
      "file.json: found null, expected a string; correct it");
  check_refused(
      "[0, 8]", [](const auto& root) { root.indices(8); }, errc::out_of_range,
      "file.json: [1]: found 8, expected a whole number from 0 to 7; correct it");
  check_refused(
      "[[1, 2], [3]]", [](const auto& root) { root.matrix(2, 2); }, errc::mismatch,
      "file.json: [1]: found an array of 1 values, expected 2 values; correct it");
}

BOOST_AUTO_TEST_CASE(the_first_problem_stays_and_later_getters_are_harmless) {
  const auto document = parsed(R"({"a": "x", "b": [1, 2]})");
  document->set_remedy("calibrate again");
  const auto root = document->root();
  BOOST_TEST(root.at("a").integer() == 0);
  BOOST_TEST(document->failed());
  BOOST_TEST(root.at("b").numbers().empty());
  BOOST_TEST(root.at("b").items().empty());
  BOOST_TEST(root.at("missing").at("deeper").string().empty());
  BOOST_TEST(!root.find("b"));
  root.refuse("this", "that");
  const auto outcome = document->finish(1);
  BOOST_REQUIRE(!outcome);
  BOOST_TEST(outcome.error().message ==
             "file.json: a: found \"x\", expected a whole number; calibrate again");
}

BOOST_AUTO_TEST_CASE(every_cut_of_a_document_is_refused) {
  const std::string text = R"({"layers": [{"x": [0.25, -1e-3], "s": "a\u00e9"}], "ok": true})";
  for (std::size_t length = 0; length < text.size(); ++length)
    BOOST_TEST(!json_document::parse(text.substr(0, length), "cut"), "length " << length);
}

BOOST_AUTO_TEST_CASE(a_missing_file_is_refused_by_its_path) {
  const auto document = read_json("/nowhere/plan.json");
  BOOST_REQUIRE(!document);
  BOOST_TEST((document.error().code == errc::not_found));
}

BOOST_AUTO_TEST_SUITE_END()
