#include "model/training/text_source.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <set>
#include <string>

#include "model/training/train.hpp"

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(text_source)

namespace {

std::shared_ptr<const piece_encoder> pieces() {
  static const auto made = piece_encoder::from_bytes(*synthetic_tokenizer(400));
  return *made;
}

/// Lines of 30 to 40 bytes, each with its number, so that a line found again is the same line.
std::string numbered_lines(std::size_t n) {
  std::string text;
  for (std::size_t i = 0; i < n; ++i)
    text += "line <" + std::to_string(i) + "> of the text that is read\n";
  return text;
}

std::set<std::string> lines_in(const std::string& text) {
  std::set<std::string> found;
  for (std::size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1))
    if (const auto end = text.find('>', at); end != std::string::npos)
      found.insert(text.substr(at, end - at));
  return found;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_text_of_one_long_line_is_cut_within_it) {
  std::string text;
  while (text.size() < 200'000) text += "the caf\xC3\xA9 is <open> today ";
  for (const bool ends : {false, true}) {
    const auto source = user_source(pieces(), ends ? text + "\n" : text, 64, 1);
    BOOST_REQUIRE_MESSAGE(source.has_value(), (source ? "" : source.error().message));
    const auto held = (*source)->held_out(1'000'000);
    const auto scored = pieces()->decode(std::span(held).subspan(1));
    const double share = static_cast<double>(scored.size()) / static_cast<double>(text.size());
    BOOST_TEST(share > 0.08);
    BOOST_TEST(share < 0.12);
  }
}

BOOST_AUTO_TEST_CASE(what_is_left_out_for_calibration_is_neither_trained_on_nor_scored) {
  const auto text = numbered_lines(4000);
  const auto source = user_source(pieces(), text, 64, 1);
  BOOST_REQUIRE(source.has_value());
  std::string left;
  std::size_t n_left = 0;
  for (const auto& ids : (*source)->left_out(1'000'000, 256)) {
    BOOST_TEST(ids.size() <= 256u);
    n_left += ids.size();
    left += pieces()->decode(ids);
  }
  const auto calibrated = lines_in(left);
  // A twentieth of nine tenths.
  const double share = static_cast<double>(left.size()) / static_cast<double>(text.size());
  BOOST_TEST(share > 0.03);
  BOOST_TEST(share < 0.06);
  const auto held = (*source)->held_out(1'000'000);
  const auto scored = lines_in(pieces()->decode(std::span(held).subspan(1)));
  std::set<std::string> trained;
  std::vector<std::int64_t> row(4096);
  for (std::uint64_t step = 0; step < 400; ++step) {
    (*source)->fill(step, 0, row);
    std::vector<std::int32_t> ids;
    for (const auto id : row)
      if (id != bos_id) ids.push_back(static_cast<std::int32_t>(id));
    for (const auto& line : lines_in(pieces()->decode(ids))) trained.insert(line);
  }
  BOOST_TEST(calibrated.size() > 100u);
  BOOST_TEST(trained.size() > 3000u);
  for (const auto& line : calibrated) {
    BOOST_TEST(!trained.contains(line), line);
    BOOST_TEST(!scored.contains(line), line);
  }
  // From all over the text: every fifth of it has some.
  std::set<std::size_t> fifths;
  for (const auto& line : calibrated) fifths.insert(std::stoul(line.substr(1)) / 720);
  BOOST_TEST(fifths.size() == 5u);
  BOOST_TEST(n_left > 256u);
}

BOOST_AUTO_TEST_CASE(a_short_text_leaves_nothing_out_and_a_limit_holds) {
  const auto small = user_source(pieces(), numbered_lines(300), 64, 1);
  BOOST_REQUIRE(small.has_value());
  BOOST_TEST((*small)->left_out(1000, 256).empty());
  const auto large = user_source(pieces(), numbered_lines(4000), 64, 1);
  BOOST_REQUIRE(large.has_value());
  std::size_t n = 0;
  for (const auto& ids : (*large)->left_out(700, 256)) n += ids.size();
  BOOST_TEST(n <= 700u);
  BOOST_TEST(n > 600u);
  n = 0;
  for (const auto& ids : synthetic_source(pieces(), 1)->left_out(700, 256)) n += ids.size();
  BOOST_TEST(n == 700u);
}

BOOST_AUTO_TEST_SUITE_END()
