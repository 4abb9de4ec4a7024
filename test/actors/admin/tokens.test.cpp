#include "actors/admin/tokens.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>

#include "config/random.hpp"

namespace ordermoe::actors {

namespace {

constexpr std::int64_t day_s = 86'400;

token_book::made make(token_book& book, const std::string& name, std::int64_t for_s = day_s,
                      std::int64_t now_s = 1000) {
  auto made = book.make(name, "operator", for_s, now_s);
  BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  return *made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(tokens)

BOOST_AUTO_TEST_CASE(a_secret_is_its_tokens_and_stands_nowhere_in_the_book) {
  token_book book;
  const auto one = make(book, "one"), other = make(book, "other");
  BOOST_TEST(one.secret != other.secret);
  BOOST_TEST(one.what.salt != other.what.salt);
  for (const auto& each : {one, other}) {
    const auto found = book.check(each.secret, 1000);
    BOOST_REQUIRE(found.has_value());
    BOOST_TEST((*found == each.what));
    // Known by now, and still the same.
    BOOST_TEST(book.check(each.secret, 1000).has_value());
    const auto bare = each.secret.substr(each.secret.rfind('_') + 1);
    BOOST_TEST(bare.size() == 64u);
    BOOST_TEST(book.text().find(bare) == std::string::npos);
  }
  // Of one with the other's secret.
  BOOST_TEST(!book.check(one.secret.substr(0, 21) + other.secret.substr(21), 1000).has_value());
}

BOOST_AUTO_TEST_CASE(what_is_near_a_secret_is_refused_alike) {
  token_book book;
  const auto made = make(book, "one");
  std::int64_t now_s = 1000;
  const auto refused = [&](const std::string& secret) {
    const auto found = book.check(secret, ++now_s);
    return found ? std::string("it holds") : found.error().message;
  };
  const auto words = refused("");
  BOOST_TEST(words.find("does not hold") != std::string::npos);
  for (const std::size_t i : {0u, 4u, 21u, 40u, 84u}) {
    auto near = made.secret;
    near[i] = near[i] == '0' ? '1' : '0';
    BOOST_TEST(refused(near) == words, i);
  }
  BOOST_TEST(refused(made.secret + "0") == words);
  BOOST_TEST(refused(made.secret.substr(1)) == words);
  BOOST_TEST(book.check(made.secret, ++now_s).has_value());
}

BOOST_AUTO_TEST_CASE(guesses_are_answered_once_a_second_and_the_right_secret_at_once) {
  token_book book;
  const auto made = make(book, "one");
  BOOST_TEST(book.check(made.secret, 1000).has_value());
  auto wrong = made.secret;
  wrong.back() = wrong.back() == '0' ? '1' : '0';
  const auto first = book.check(wrong, 1000), second = book.check(wrong, 1000);
  BOOST_TEST((!first && !second));
  BOOST_TEST(second.error().message.find("in a second") != std::string::npos);
  BOOST_TEST(book.check(made.secret, 1000).has_value());
}

BOOST_AUTO_TEST_CASE(a_token_ends_with_its_time_or_when_it_is_revoked) {
  token_book book;
  const auto made = make(book, "one", 100, 1000);
  const auto for_ever = make(book, "other", 0, 1000);
  BOOST_TEST(book.check(made.secret, 1099).has_value());
  BOOST_TEST(!book.check(made.secret, 1100).has_value());
  BOOST_TEST(book.check(for_ever.secret, 1'000'000'000'000).has_value());
  BOOST_TEST(book.revoke("other", 1000).has_value());
  BOOST_TEST(!book.check(for_ever.secret, 1000).has_value());
  BOOST_TEST(!book.revoke("other", 1000).has_value());
  // The name is free again; what expired is forgotten when another is made.
  make(book, "other", 100, 2000);
  BOOST_TEST(book.all().size() == 2u);
}

BOOST_AUTO_TEST_CASE(what_is_no_name_role_or_time_is_refused) {
  token_book book;
  make(book, "taken");
  for (const auto* name : {"", "UPPER", "a b", "\"", "taken"})
    BOOST_TEST(!book.make(name, "admin", day_s, 1000).has_value(), name);
  BOOST_TEST(!book.make("a", "root", day_s, 1000).has_value());
  BOOST_TEST(!book.make("a", "node", day_s, 1000).has_value());
  BOOST_TEST(!book.make("a", "admin", -1, 1000).has_value());
  BOOST_TEST(!book.make("a", "admin", token_book::longest_s + 1, 1000).has_value());
}

BOOST_AUTO_TEST_CASE(books_come_to_the_same_in_whatever_order_they_are_merged) {
  token_book a, b;
  const auto one = make(a, "one"), two = make(b, "two");
  auto a_first = a, b_first = b;
  BOOST_TEST(a_first.merge(b, 1000));
  BOOST_TEST(b_first.merge(a, 1000));
  BOOST_TEST(a_first.text() == b_first.text());
  BOOST_TEST(!a_first.merge(b_first, 1000));
  BOOST_TEST(a_first.revoke("two", 1000).has_value());
  BOOST_TEST(b_first.merge(a_first, 1000));
  // Revoked it stays, whoever has not heard of it.
  BOOST_TEST(!a_first.merge(b, 1000));
  BOOST_TEST(!b_first.merge(b, 1000));
  for (auto* each : {&a_first, &b_first}) {
    BOOST_TEST(each->check(one.secret, 1000).has_value());
    BOOST_TEST(!each->check(two.secret, 1000).has_value());
  }
  // What expired comes back from nobody.
  token_book later;
  BOOST_TEST(!later.merge(a, 1000 + 2 * day_s));
  BOOST_TEST(later.empty());
}

BOOST_AUTO_TEST_CASE(expired_tokens_do_not_stand_in_the_way_of_those_that_others_made) {
  token_book making, hearing;
  for (int i = 0; i < 300; ++i) {
    const auto now_s = 1000 + i * 2 * day_s;
    auto made = making.make(fmt::format("hourly-{}", i), "viewer", day_s, now_s);
    BOOST_REQUIRE(made.has_value());
    hearing.merge(making, now_s);
    BOOST_TEST_REQUIRE(hearing.check(made->secret, now_s).has_value(), i);
  }
}

BOOST_AUTO_TEST_CASE(a_book_is_read_as_it_was_written_and_whatever_else_is_refused) {
  token_book book;
  const auto made = make(book, "one");
  make(book, "two", 0);
  BOOST_TEST(book.revoke("two", 1000).has_value());
  auto read = token_book::parse(book.text(), "tokens.json");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST(read->text() == book.text());
  BOOST_TEST(read->check(made.secret, 1000).has_value());
  random_stream draws(1, 2);
  const auto whole = book.text();
  for (int i = 0; i < 2000; ++i) {
    auto text = whole.substr(0, draws.below(whole.size() + 1));
    for (auto flips = draws.below(4); flips > 0 && !text.empty(); --flips)
      text[draws.below(text.size())] = static_cast<char>(draws.below(128));
    if (const auto bad = token_book::parse(text, "tokens.json"); !bad)
      BOOST_TEST(bad.error().message.find("tokens.json") != std::string::npos);
  }
  BOOST_TEST(!token_book::parse("[]", "tokens.json").has_value());
  auto short_hash = whole;
  short_hash.replace(short_hash.find("\"scrypt\": \"") + 11, 2, "");
  BOOST_TEST(!token_book::parse(short_hash, "tokens.json").has_value());
}

BOOST_AUTO_TEST_CASE(a_book_has_room_for_so_many_and_for_more_when_some_have_expired) {
  token_book book;
  for (std::size_t i = 0; i < token_book::most_tokens; ++i)
    make(book, "token-" + std::to_string(i), 100, 1000);
  BOOST_TEST(!book.make("one-more", "viewer", 100, 1000).has_value());
  BOOST_TEST(book.make("one-more", "viewer", 100, 1100).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::actors
