#include "config/cost_profile.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

using namespace ordermoe;

BOOST_AUTO_TEST_SUITE(cost_profile)

BOOST_AUTO_TEST_CASE(mixtral_is_charged_by_its_public_shape) {
  const auto costs = *named_cost_profile("mixtral-8x7b");
  BOOST_TEST(costs.hidden_bytes == 8192);
  BOOST_TEST(costs.kv_row_bytes == 4096);
  BOOST_TEST(costs.expert_bytes == 352'321'536);
  BOOST_TEST(costs.expert_flops == 352'321'536);
  BOOST_TEST(costs.embedding_bytes == 262'144'000);
  BOOST_TEST(costs.head_bytes == 262'144'000);
  BOOST_TEST(costs.head_flops == 262'144'000);
  BOOST_TEST(costs.attention_flops_per_context == 4 * 32 * 128);
  // 32 layers of 8 experts: the published 46.7 thousand million parameters.
  const auto parameters = (costs.resident_bytes(32) + 32 * 8 * costs.expert_bytes) / 2;
  BOOST_TEST(parameters == 46'702'792'704 - 4096);  // less the last norm
}

BOOST_AUTO_TEST_CASE(qwen_counts_its_shared_expert_with_attention) {
  const auto costs = *named_cost_profile("qwen1.5-moe-a2.7b");
  BOOST_TEST(costs.hidden_bytes == 4096);
  BOOST_TEST(costs.kv_row_bytes == 8192);
  BOOST_TEST(costs.expert_bytes == 3 * 2048 * 1408 * 2);
  const std::int64_t shared_weights = 3 * 2048 * 5632 + 2048;
  const std::int64_t attention_weights = 4 * 2048 * 2048;
  const std::int64_t router_weights = 2048 * 60;
  BOOST_TEST(costs.attention_flops == 2 * (shared_weights + attention_weights + router_weights));
  // 24 layers of 60 experts: the published 14.3 thousand million parameters.
  const auto parameters =
      static_cast<double>((costs.resident_bytes(24) + 24 * 60 * costs.expert_bytes) / 2);
  BOOST_TEST(parameters > 14.25e9);
  BOOST_TEST(parameters < 14.35e9);
}

BOOST_AUTO_TEST_CASE(switch_base_holds_its_tied_embedding_once) {
  const auto costs = *named_cost_profile("switch-base-8");
  BOOST_TEST(costs.hidden_bytes == 1536);
  BOOST_TEST(costs.kv_row_bytes == 3072);
  BOOST_TEST(costs.expert_bytes == 2 * 768 * 3072 * 2);
  BOOST_TEST(costs.embedding_bytes + costs.head_bytes == 32128 * 768 * 2);
}

BOOST_AUTO_TEST_CASE(the_measured_profile_of_mixtrals_shape_is_mixtrals) {
  auto measured = measured_cost_profile(4096, 14336, 32, 8, 128, 8, 32000);
  const auto named = *named_cost_profile("mixtral-8x7b");
  BOOST_TEST(measured.name == "measured");
  BOOST_TEST(measured.hidden_bytes == named.hidden_bytes);
  BOOST_TEST(measured.kv_row_bytes == named.kv_row_bytes);
  BOOST_TEST(measured.expert_bytes == named.expert_bytes);
  BOOST_TEST(measured.expert_flops == named.expert_flops);
  BOOST_TEST(measured.attention_bytes == named.attention_bytes);
  BOOST_TEST(measured.attention_flops == named.attention_flops);
  BOOST_TEST(measured.attention_flops_per_context == named.attention_flops_per_context);
  BOOST_TEST(measured.head_flops == named.head_flops);
  BOOST_TEST(measured.resident_bytes(6) == named.resident_bytes(6));
}

BOOST_AUTO_TEST_CASE(a_token_of_each_larger_model_runs_as_many_weights_as_is_published) {
  struct published {
    const char* name;
    std::int64_t layers, top_k;
    double active_billions;
  };
  for (const auto& model :
       {published{"mixtral-8x22b", 56, 2, 39}, published{"qwen3-30b-a3b", 48, 8, 3.3},
        published{"qwen3-235b-a22b", 94, 8, 22}, published{"deepseek-v3", 61, 8, 37}}) {
    const auto costs = *named_cost_profile(model.name);
    const auto weights =
        (model.layers * (model.top_k * costs.expert_flops + costs.attention_flops) +
         costs.head_flops) /
            2 +
        costs.embedding_bytes / 2;
    BOOST_TEST(1e-9 * static_cast<double>(weights) == model.active_billions,
               boost::test_tools::tolerance(0.025));
  }
  // Latent attention keeps 512 + 64 numbers of a token and layer.
  BOOST_TEST(named_cost_profile("deepseek-v3")->kv_row_bytes == 1152);
}

BOOST_AUTO_TEST_CASE(overheads_stand_behind_the_name) {
  const auto costs = named_cost_profile("mixtral-8x7b:batch-us=40:message-us=12.5");
  BOOST_REQUIRE(costs);
  BOOST_TEST(costs->name == "mixtral-8x7b:batch-us=40:message-us=12.5");
  BOOST_TEST(costs->batch_ns == 40'000);
  BOOST_TEST(costs->message_ns == 12'500);
  BOOST_TEST(costs->expert_bytes == named_cost_profile("mixtral-8x7b")->expert_bytes);
  BOOST_TEST(named_cost_profile("mixtral-8x7b")->batch_ns == 0);
  BOOST_TEST(is_measured_cost_profile("measured:batch-us=1"));
  BOOST_TEST(!is_measured_cost_profile("measuredly"));
  BOOST_TEST(check_cost_profile("measured:batch-us=1").has_value());
  for (const char* wrong : {":", ":batch-us", ":batch-us=", ":batch-us=-1", ":batch-us=1e7",
                            ":batch-us=nan", ":batch-us=4x", ":batch=4", ":batch-us=4:"})
    for (const std::string base : {"mixtral-8x7b", "measured"}) {
      const auto refused = check_cost_profile(base + wrong);
      BOOST_REQUIRE_MESSAGE(!refused, base << wrong);
      BOOST_TEST((refused.error().code == errc::usage));
      BOOST_TEST(refused.error().message.find("batch-us=N") != std::string::npos,
                 refused.error().message);
    }
}

BOOST_AUTO_TEST_CASE(every_listed_name_is_known_and_another_is_refused_with_the_list) {
  BOOST_TEST(cost_profile_names().size() == 7u);
  for (const auto& name : cost_profile_names()) {
    const auto costs = named_cost_profile(name);
    BOOST_REQUIRE(costs);
    BOOST_TEST(costs->name == name);
  }
  const auto unknown = named_cost_profile("mixtral");
  BOOST_REQUIRE(!unknown);
  BOOST_TEST((unknown.error().code == errc::usage));
  for (const auto& name : cost_profile_names())
    BOOST_TEST(unknown.error().message.find(name) != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()
