#include "actors/admin/member_roll.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "config/files.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using actors::member_word;
using actors::member_words;

struct kept_roll {
  fs::path folder = fs::temp_directory_path() / ("ordermoe-roll-" + std::to_string(::getpid()));
  fs::path file = folder / "state" / "members.json";
  kept_roll() { fs::remove_all(folder); }
  ~kept_roll() { fs::remove_all(folder); }

  std::shared_ptr<actors::member_roll> open(const std::set<std::string>& spare = {}) const {
    auto roll = actors::member_roll::open(file, spare);
    BOOST_REQUIRE(roll.has_value());
    return *roll;
  }
  static std::shared_ptr<actors::member_roll> in_memory() {
    return *actors::member_roll::open({}, {});
  }
  static member_words word(const char* name, std::uint64_t number, const char* by, bool member,
                           const char* address = "") {
    return {{name, {number, by, member, address}}};
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(member_roll, kept_roll)

BOOST_AUTO_TEST_CASE(all_are_members_but_spares_until_something_else_is_heard) {
  const auto roll = open({"d"});
  BOOST_TEST(roll->is_absent("d"));
  BOOST_TEST(!roll->is_absent("a"));
  // What node files have is told to nobody.
  BOOST_TEST(actors::members_text(roll->now()) == R"({"version":1,"servers":[]})");
  BOOST_TEST(roll->take(word("d", 1, "a", true)).changed == std::vector<std::string>{"d"},
             boost::test_tools::per_element());
  BOOST_TEST(!roll->is_absent("d"));
  roll->take(word("b", 1, "a", false));
  BOOST_TEST(roll->is_absent("b"));
  BOOST_TEST(!roll->is_absent("d"));
}

BOOST_AUTO_TEST_CASE(all_end_with_the_same_in_whatever_order_they_hear) {
  std::vector<member_words> said{word("b", 1, "a", false), word("b", 2, "c", true, "b.lan:1"),
                                 word("b", 2, "a", false), word("d", 1, "c", false),
                                 word("d", 1, "a", true),  word("b", 2, "c", true)};
  std::ranges::sort(said, {}, actors::members_text);
  std::set<std::string> ends;
  do {
    const auto roll = in_memory();
    for (const auto& each : said) roll->take(each);
    BOOST_TEST(roll->take(said.front()).changed.empty());
    ends.insert(actors::members_text(roll->now()));
  } while (std::ranges::next_permutation(said, {}, actors::members_text).found);
  BOOST_REQUIRE(ends.size() == 1u);
  const auto end = actors::parse_members(*ends.begin(), "end");
  BOOST_REQUIRE(end.has_value());
  BOOST_TEST((end->at("b") == member_word{2, "c", true, "b.lan:1"}));
  BOOST_TEST((end->at("d") == member_word{1, "c", false, ""}));
}

BOOST_AUTO_TEST_CASE(it_is_kept_over_the_end_of_a_process_and_told_once) {
  const auto roll = open();
  std::size_t told = 0;
  roll->tell([&](const member_words& now) {
    ++told;
    BOOST_TEST(now.contains("b"));
  });
  const auto first = roll->take(word("b", 1, "a", false, "10.0.0.4:7400"));
  BOOST_TEST(first.kept.has_value());
  BOOST_TEST(roll->take(word("b", 1, "a", false, "10.0.0.4:7400")).changed.empty());
  BOOST_TEST(told == 1u);
  const auto again = open({"b", "d"});
  BOOST_TEST((again->now().at("b") == member_word{1, "a", false, "10.0.0.4:7400"}));
  BOOST_TEST(again->absent() == (std::set<std::string>{"b", "d"}),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(what_cannot_be_kept_holds_all_the_same) {
  fs::create_directories(folder);
  const auto nowhere = actors::member_roll::open(folder / "missing" / "state", {});
  BOOST_REQUIRE(nowhere.has_value());
  fs::create_directories(folder / "missing" / "state");
  const auto taken = (*nowhere)->take(word("b", 1, "a", false));
  BOOST_TEST(!taken.kept.has_value());
  BOOST_TEST(taken.changed.size() == 1u);
  BOOST_TEST((*nowhere)->is_absent("b"));
}

BOOST_AUTO_TEST_CASE(what_makes_no_sense_is_refused_by_its_place) {
  const auto whole = actors::members_text(word("b", 2, "a", false, "[::1]:7400"));
  BOOST_TEST(actors::parse_members(whole, "x").has_value());
  const auto of = [](const std::string& server) {
    return R"({"version": 1, "servers": [)" + server + "]}";
  };
  const std::string good =
      R"({"name": "b", "number": 1, "by": "a", "member": true, "address": ""})";
  BOOST_TEST(actors::parse_members(of(good), "x").has_value());
  const auto with = [&](std::string_view part, std::string_view instead) {
    auto text = good;
    return of(text.replace(text.find(part), part.size(), instead));
  };
  for (const auto& bad :
       {std::string("nonsense"), std::string("{}"), of(good + ", " + good), of("7"),
        with(R"("number": 1)", R"("number": 0)"), with(R"("number": 1)", R"("number": -1)"),
        with(R"("number": 1)", R"("number": 18446744073709551615)"),
        with(R"("member": true)", R"("member": 1)"), with(R"("by": "a", )", ""),
        with(R"("address": "")", R"("address": "nowhere")"),
        with(R"("name")", R"("colour": "red", "name")")}) {
    const auto read = actors::parse_members(bad, "x");
    BOOST_REQUIRE_MESSAGE(!read.has_value(), bad);
    BOOST_TEST(read.error().message.starts_with("x"), read.error().message);
  }
}

BOOST_AUTO_TEST_CASE(a_kept_file_that_is_broken_is_not_done_without) {
  fs::create_directories(file.parent_path());
  for (const char* broken : {"", "half", R"({"version": 2, "servers": []})"}) {
    BOOST_REQUIRE(write_file(file, broken).has_value());
    const auto roll = actors::member_roll::open(file, {});
    BOOST_REQUIRE(!roll.has_value());
    BOOST_TEST(roll.error().message.find("members.json") != std::string::npos);
    BOOST_TEST(roll.error().message.find("from another node") != std::string::npos);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
