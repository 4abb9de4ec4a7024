#include "config/ids.hpp"

#include <boost/test/unit_test.hpp>
#include <type_traits>
#include <unordered_set>

using namespace ordermoe;

BOOST_AUTO_TEST_SUITE(ids)

BOOST_AUTO_TEST_CASE(one_kind_of_id_does_not_turn_into_another_or_into_a_number) {
  static_assert(!std::is_convertible_v<server_id, layer_id>);
  static_assert(!std::is_convertible_v<std::size_t, server_id>);
  static_assert(!std::is_convertible_v<server_id, std::size_t>);
  BOOST_TEST(server_id{3}.index() == 3u);
}

BOOST_AUTO_TEST_CASE(ids_order_and_hash_by_their_number) {
  BOOST_TEST((expert_id{1} < expert_id{2}));
  BOOST_TEST((expert_id{2} == expert_id{2}));
  std::unordered_set<expert_id> seen{expert_id{1}, expert_id{2}, expert_id{1}};
  BOOST_TEST(seen.size() == 2u);
}

BOOST_AUTO_TEST_SUITE_END()
