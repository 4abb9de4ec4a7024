#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "model/sampling.hpp"
#include "model/torch_module.hpp"
#include "test/actors/fixture.hpp"
#include "test/support/devices.hpp"

namespace ordermoe {

namespace {

using model::transformer;

std::shared_ptr<const transformer> of_family(model::family kind, const std::string& device) {
  return test::random_model(kind, {.device = device});
}

/// The answers of servers that all compute with this model.
std::vector<actors::request_outcome> serve(const std::shared_ptr<const transformer>& with,
                                           actors::run_mode mode) {
  test::world world("exact", 0, 1, 5, with);
  world.setup.mode = mode;
  world.setup.chunk_rows = 4;
  world.add_requests(4, 12, 0.0);
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  return outcome->outcomes;
}

/// Over the vocabulary, for the last computed position.
std::vector<float> logits_of(const transformer& with, const actors::request_outcome& answer) {
  std::vector<float> logits(with.config().vocab_size);
  with.head(answer.final_hidden, logits);
  return logits;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(libtorch)

// Both paths multiply the same bf16 weights in fp32 and differ in the order of their sums alone: a
// dot product of the 64 to 192 numbers here is off by some 2^-24 of its terms' size, through a few
// layers to logits of about 10. The bound is a hundred times the difference that was measured, and
// a hundredth of what any wrong term makes; an answer may not change.
BOOST_AUTO_TEST_CASE(servers_on_a_libtorch_device_answer_as_those_on_the_kernels_do) {
  constexpr double bound = 1e-4;
  for (const auto kind :
       {model::family::mixtral, model::family::qwen2_moe, model::family::switch_transformers})
    for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local})
      BOOST_TEST_CONTEXT(model::to_string(kind) << ", " << to_string(mode)) {
        const auto own = of_family(kind, "cpu"), torch = of_family(kind, test::libtorch_device());
        const auto expected = serve(own, mode), found = serve(torch, mode);
        BOOST_REQUIRE_EQUAL(found.size(), expected.size());
        double largest = 0, size = 0;
        bool same_bits = true;
        for (std::size_t i = 0; i < found.size(); ++i) {
          BOOST_TEST(found[i].token_ids == expected[i].token_ids, boost::test_tools::per_element());
          const auto a = logits_of(*torch, found[i]), b = logits_of(*own, expected[i]);
          for (std::size_t v = 0; v < a.size(); ++v) {
            largest = std::max(largest, std::abs(static_cast<double>(a[v]) - b[v]));
            size = std::max(size, std::abs(static_cast<double>(b[v])));
            same_bits = same_bits && a[v] == b[v];
          }
        }
        BOOST_TEST_MESSAGE("largest difference " << largest << " of logits up to " << size);
        BOOST_TEST(largest <= bound);
        BOOST_TEST(size > 1);
        // A BLAS for AVX2 adds in the order in which the kernels do.
        if (__builtin_cpu_supports("avx512f"))
          BOOST_TEST(!same_bits, "LibTorch has not computed these");
        BOOST_TEST(model::torch_is_loaded());
      }
}

// docs/OPERATING.md, "Devices", states what is asked here. The same texts go through both, the answers
// of LibTorch's servers behind their prompts: greedy ids part for good at the first tie, logits of equal
// ids do not.
BOOST_AUTO_TEST_CASE(twenty_prompts_are_served_on_libtorch_within_the_stated_tolerance) {
  struct tolerance {
    model::kv_precision kv;
    double half, most;  ///< Of a position's logits: half of the positions, and any.
    double perplexity;  ///< Relative.
  };
  for (const auto& stated : {tolerance{model::kv_precision::fp32, 2e-5, 1e-4, 1e-6},
                             tolerance{model::kv_precision::bf16, 1e-3, 0.1, 1e-4}})
    BOOST_TEST_CONTEXT((stated.kv == model::kv_precision::fp32 ? "fp32" : "bf16")) {
      const std::string folder = ORDERMOE_DATA "/models/lineage";
      const auto own = *model::transformer::load(folder, {.kv = stated.kv}),
                 torch = *model::transformer::load(
                     folder, {.device = test::libtorch_device(), .kv = stated.kv});
      constexpr std::uint32_t n_prompts = 20, n_tokens = 24;
      auto world = test::bundled_world("lineage", "exact", n_prompts, n_tokens, 0.0);
      world.setup.model = torch;
      const auto outcome = actors::run_requests(world.setup);
      BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
      BOOST_REQUIRE_EQUAL(outcome->outcomes.size(), n_prompts);
      std::vector<double> largest;
      double torch_nats = 0, own_nats = 0;
      std::size_t n_alike = 0;
      for (std::size_t i = 0; i < n_prompts; ++i) {
        const auto& spec = world.setup.requests[i];
        const auto& answer = outcome->outcomes[i].token_ids;
        model::generation_options options;
        options.max_new_tokens = n_tokens;
        const auto reference = model::generate(*torch, nullptr, spec.prompt, options),
                   kernels = model::generate(*own, nullptr, spec.prompt, options);
        BOOST_REQUIRE(reference && kernels);
        // Servers of one kind: that device's own reference, id for id.
        BOOST_TEST(answer == reference->token_ids, boost::test_tools::per_element());
        n_alike += answer == kernels->token_ids ? 1 : 0;
        auto text = spec.prompt;
        text.insert(text.end(), answer.begin(), answer.end());
        const auto found = *model::logits(*torch, text), expected = *model::logits(*own, text);
        const auto n = text.size(), vocabulary = found.size() / n;
        for (std::size_t p = 0; p < n; ++p) {
          double most = 0;
          for (std::size_t v = p * vocabulary; v < (p + 1) * vocabulary; ++v)
            most = std::max(most, std::abs(static_cast<double>(found[v]) - expected[v]));
          largest.push_back(most);
          if (p + 1 == n) continue;
          const auto row = [&](const std::vector<float>& all) {
            return std::span(all).subspan(p * vocabulary, vocabulary);
          };
          torch_nats += model::negative_log_likelihood(row(found), text[p + 1]);
          own_nats += model::negative_log_likelihood(row(expected), text[p + 1]);
        }
      }
      std::ranges::sort(largest);
      const auto n = static_cast<double>(largest.size() - n_prompts);
      const double ratio = std::exp((torch_nats - own_nats) / n) - 1;
      BOOST_TEST_MESSAGE(
          "of " << largest.size() << " positions: half within " << largest[largest.size() / 2]
                << ", 99 % within " << largest[largest.size() * 99 / 100] << ", all within "
                << largest.back() << "; perplexity " << std::exp(own_nats / n) << ", by " << ratio
                << " off; " << n_alike << " of " << n_prompts << " answers alike");
      BOOST_TEST(largest[largest.size() / 2] <= stated.half);
      BOOST_TEST(largest.back() <= stated.most);
      BOOST_TEST(std::abs(ratio) <= stated.perplexity);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
