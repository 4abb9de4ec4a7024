#include "actors/admin/orders.hpp"

#include <boost/test/unit_test.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ordermoe::actors {

namespace {

using nlohmann::ordered_json;

struct book_of_orders {
  std::vector<log_record> log;
  order_book book{[] { return 2.5; },
                  log_outlet([this](const log_record& each) { log.push_back(each); })};

  /// An order that changes something, done with this told of it.
  void give(ordered_json told) {
    auto order = std::make_shared<order_in_hand>();
    order->operation = "s0.1.1";
    order->reply = [](const std::string&) {};
    book.done(order, 1, std::move(told));
  }
};

}  // namespace

}  // namespace ordermoe::actors

namespace ordermoe {

using namespace actors;

BOOST_AUTO_TEST_SUITE(orders)

BOOST_AUTO_TEST_CASE(events_are_numbered_whatever_they_are_about) {
  book_of_orders at;
  for (int i = 0; i < 3; ++i) at.book.note(log_event::node_drained, {{"operation", "a"}});
  at.book.note(log_event::members_changed,
               {{"server", "s1"}, {"number", 1}, {"event", "another"}, {"change", 7}});
  const auto& last = at.book.events().back();
  BOOST_TEST(last["number"] == 4);
  BOOST_TEST(last["event"] == "members.changed");
  BOOST_TEST(last["change"] == 7);
  BOOST_TEST(at.book.latest_event() == 4u);
}

BOOST_AUTO_TEST_CASE(of_a_long_text_the_audit_keeps_the_beginning_and_how_long_it_is) {
  book_of_orders at;
  at.give({{"moved", std::string(40'000, 'x')}});
  at.give({{"moved", "little"}});
  const auto text = at.book.audited().front()["text"].get<std::string>();
  BOOST_TEST(text.size() < order_book::most_audited_bytes + 40);
  BOOST_TEST(text.ends_with("... (40012 bytes)"), text);
  BOOST_TEST(at.book.audited().back()["text"] == R"({"moved":"little"})");
  // As the log has it.
  BOOST_TEST(at.log.front().fields.back().name == "text");
  BOOST_TEST(text_of(at.log.front().fields.back()) == text);
}

BOOST_AUTO_TEST_CASE(of_more_than_a_reply_has_room_for_the_latest_are_told) {
  order_book::lines kept;
  for (int i = 0; i < 10; ++i) kept.push_back({{"n", i}});
  const auto bytes = kept.front().dump().size();
  BOOST_TEST((latest_of(kept, 3 * bytes) == ordered_json{kept[7], kept[8], kept[9]}));
  BOOST_TEST(latest_of(kept, 10 * bytes).size() == 10u);
  BOOST_TEST((latest_of(kept, bytes - 1) == ordered_json::array()));
  BOOST_TEST((latest_of({}, bytes) == ordered_json::array()));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
