#include "actors/admin/gathering.hpp"

#include <boost/test/unit_test.hpp>
#include <vector>

#include "actors/admin/kept_policy.hpp"
#include "config/random.hpp"

namespace ordermoe::actors {

namespace {

/// The answers of one book, each as the servers that told.
struct answers {
  gathering_book book;
  std::vector<std::set<std::uint32_t>> ended;
  gathering_book::told_times last;  ///< Of the question that ended last.

  std::uint64_t ask(std::set<std::uint32_t> waits, std::int64_t until_ns = 100) {
    return book.begin(std::move(waits), {{0, nlohmann::ordered_json::object()}}, {3, until_ns},
                      [this](const told_reports& told, const gathering_book::told_times& at) {
                        auto& who = ended.emplace_back();
                        for (const auto& [server, report] : told) who.insert(server);
                        last = at;
                      });
  }
};

using servers = std::set<std::uint32_t>;

}  // namespace

BOOST_AUTO_TEST_SUITE(gathering)

BOOST_AUTO_TEST_CASE(a_question_ends_once_when_all_have_answered) {
  answers of;
  const auto question = of.ask({1, 2});
  of.book.take(question, 1, {}, 0);
  of.book.take(question, 1, {}, 0);
  of.book.take(question, 7, {}, 0);
  of.book.take(question + 1, 2, {}, 0);
  BOOST_TEST(of.ended.empty());
  of.book.take(question, 2, {}, 0);
  of.book.take(question, 2, {}, 0);
  of.book.expire(1000);
  BOOST_REQUIRE_EQUAL(of.ended.size(), 1u);
  BOOST_TEST((of.ended[0] == servers{0, 1, 2}));
  BOOST_TEST(of.book.empty());
}

BOOST_AUTO_TEST_CASE(when_each_report_was_there_is_told_with_them) {
  answers of;
  const auto question = of.ask({1, 2, 5});
  of.book.take(question, 2, {}, 7);
  of.book.take(question, 1, {}, 20);
  of.book.take(question, 1, {}, 30);
  of.book.expire(100);
  BOOST_REQUIRE_EQUAL(of.ended.size(), 1u);
  BOOST_TEST((of.last == gathering_book::told_times{{0, 3}, {1, 20}, {2, 7}}));
  // Where nobody is waited for.
  of.ask({});
  BOOST_TEST((of.last == gathering_book::told_times{{0, 3}}));
}

BOOST_AUTO_TEST_CASE(who_is_lost_or_late_is_left_out) {
  answers of;
  const auto first = of.ask({1, 2}, 100), second = of.ask({2}, 100), third = of.ask({1, 2}, 200);
  of.book.take(first, 1, {}, 0);
  of.book.lose(2);
  BOOST_REQUIRE_EQUAL(of.ended.size(), 2u);
  BOOST_TEST((of.ended[0] == servers{0, 1}));
  BOOST_TEST((of.ended[1] == servers{0}));
  of.book.take(second, 2, {}, 0);
  of.book.expire(199);
  BOOST_TEST(of.ended.size() == 2u);
  of.book.expire(200);
  BOOST_REQUIRE_EQUAL(of.ended.size(), 3u);
  of.book.take(third, 1, {}, 0);
  BOOST_TEST((of.ended[2] == servers{0}));
}

BOOST_AUTO_TEST_CASE(a_question_to_nobody_ends_at_once) {
  answers of;
  BOOST_TEST(of.ask({}) == 0u);
  BOOST_TEST(of.ended.size() == 1u);
  for (std::size_t i = 0; i < gathering_book::most; ++i) of.ask({1});
  BOOST_TEST(of.book.full());
}

BOOST_AUTO_TEST_CASE(of_two_policies_one_is_newer_and_both_nodes_know_which) {
  const kept_policy none{}, first{1, 0, "a", {}}, same{1, 2, "b", {}}, later{2, 0, "c", {}};
  BOOST_TEST(first.is_newer_than(none));
  BOOST_TEST(same.is_newer_than(first));
  BOOST_TEST(!first.is_newer_than(same));
  BOOST_TEST(later.is_newer_than(same));
  BOOST_TEST(!later.is_newer_than(later));
}

BOOST_AUTO_TEST_CASE(a_kept_policy_is_read_as_it_was_written_and_whatever_else_is_refused) {
  kept_policy kept{7, 2, "s2.1.3", {}};
  kept.policy.omega_time = 0.625;
  const auto text = text_of(kept);
  const auto read = parse_kept_policy(text, "policy.json");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST(text_of(*read) == text);
  random_stream draws(3, 4);
  for (int i = 0; i < 2000; ++i) {
    auto bent = text.substr(0, draws.below(text.size() + 1));
    for (auto flips = draws.below(4); flips > 0 && !bent.empty(); --flips)
      bent[draws.below(bent.size())] = static_cast<char>(draws.below(256));
    if (const auto bad = parse_kept_policy(bent, "policy.json"); !bad)
      BOOST_TEST(bad.error().message.find("policy") != std::string::npos);
  }
  BOOST_TEST(!parse_kept_policy("{}", "policy.json").has_value());
  // None that leaves no version for the next one.
  auto last = kept;
  last.version = UINT64_MAX;
  BOOST_TEST(!parse_kept_policy(text_of(last), "policy.json").has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::actors
