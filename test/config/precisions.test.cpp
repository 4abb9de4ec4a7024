#include "config/precision.hpp"

#include <boost/test/unit_test.hpp>

#include "config/cluster.hpp"

using namespace ordermoe;

// Not `precision`, which is the type.
BOOST_AUTO_TEST_SUITE(precisions)

BOOST_AUTO_TEST_CASE(names_are_read_back_and_others_refused) {
  for (const auto kept : {precision::stored, precision::bf16, precision::int8, precision::int4})
    BOOST_TEST((*parse_precision(to_string(kept)) == kept));
  const auto refused = parse_precision("int3");
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::usage));
  BOOST_TEST(refused.error().message.find("int3") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(experts_and_the_rest_are_charged_by_their_bits) {
  const auto costs = *named_cost_profile("mixtral-8x7b");
  BOOST_TEST(expert_bytes(costs, precision::stored) == costs.expert_bytes);
  BOOST_TEST(expert_bytes(costs, precision::int8) == costs.expert_bytes / 2);
  BOOST_TEST(expert_bytes(costs, precision::int4) == costs.expert_bytes * 9 / 32);
  server_spec server;
  server.expert_precision = precision::int8;
  BOOST_TEST(expert_bytes(server, costs) == costs.expert_bytes / 2);

  BOOST_TEST(at_precision(costs, precision::bf16).name == costs.name);
  const auto coarse = at_precision(costs, precision::int8, precision::int4);
  BOOST_TEST(coarse.name == "mixtral-8x7b, int8 experts, int4 dense");
  BOOST_TEST(coarse.expert_bytes == costs.expert_bytes / 2);
  BOOST_TEST(coarse.attention_bytes == (costs.attention_bytes * 9 + 31) / 32);
  BOOST_TEST(coarse.head_bytes == costs.head_bytes * 9 / 32);
  BOOST_TEST(coarse.embedding_bytes == costs.embedding_bytes);
  BOOST_TEST(coarse.expert_flops == costs.expert_flops);
}

BOOST_AUTO_TEST_SUITE_END()
