#include "planning/serving/ledgers.hpp"

#include <boost/test/unit_test.hpp>
#include <set>
#include <string>

namespace ordermoe {

namespace {

using namespace serving;

}  // namespace

BOOST_AUTO_TEST_SUITE(ledgers)

BOOST_AUTO_TEST_CASE(traffic_adds_up_field_by_field) {
  traffic sum{1, 20, 300, 4000, 50000, 600000};
  sum += traffic{2, 10, 100, 1000, 10000, 100000};
  BOOST_TEST(sum.messages == 3);
  BOOST_TEST(sum.hidden_bytes == 30);
  BOOST_TEST(sum.kv_bytes == 400);
  BOOST_TEST(sum.other_bytes == 5000);
  BOOST_TEST(sum.serialised_bytes == 60000);
  BOOST_TEST(sum.busy_ns == 700000);
  BOOST_TEST(sum.charged() == 5430);
}

BOOST_AUTO_TEST_CASE(what_a_frame_tells_uncharged_is_sent_and_not_charged) {
  cost_profile costs;
  costs.hidden_bytes = 8192;
  wire::frame content;
  content.hidden_rows = 2;
  content.value_bytes = 40;
  content.bytes.assign(100, 'x');
  BOOST_TEST(charged_traffic(content, costs).charged() == 2 * 8192 + 60);
  content.bytes.append(8, 'y');
  content.uncharged_bytes = 8;
  BOOST_TEST(charged_traffic(content, costs).charged() == 2 * 8192 + 60);
  BOOST_TEST(charged_traffic(content, costs).serialised_bytes == 108);
}

BOOST_AUTO_TEST_CASE(
    a_slot_is_local_where_the_token_is_and_exact_where_the_target_runs_for_nothing) {
  const auto is = [](std::uint32_t server, std::uint32_t expert, loss_units loss) {
    return classify(2, 7, planning::slot_choice{server, expert, loss});
  };
  BOOST_TEST((is(2, 7, 0) == execution_kind::local_exact));
  BOOST_TEST((is(2, 6, 5) == execution_kind::local_substitute));
  BOOST_TEST((is(1, 7, 0) == execution_kind::remote_exact));
  BOOST_TEST((is(1, 6, 0) == execution_kind::remote_substitute));
  // A coarser copy of the target costs something: it stands in for itself.
  BOOST_TEST((is(2, 7, 5) == execution_kind::local_substitute));
  BOOST_TEST((is(1, 7, 5) == execution_kind::remote_substitute));
  BOOST_TEST((is(2, planning::left_out, 5) == execution_kind::left_out));
}

BOOST_AUTO_TEST_CASE(every_kind_of_execution_has_a_name_of_its_own) {
  std::set<std::string> names;
  for (std::size_t i = 0; i < n_execution_kinds; ++i)
    names.insert(to_string(static_cast<execution_kind>(i)));
  BOOST_TEST(names.size() == n_execution_kinds);
  BOOST_TEST(!names.contains("unknown"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
