#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>

#include "model/torch_module.hpp"
#include "test/actors/fixture.hpp"

namespace ordermoe {

namespace {

using model::transformer;

std::shared_ptr<const transformer> of_family(model::family kind, const char* device) {
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
        const auto own = of_family(kind, "cpu"), torch = of_family(kind, "libtorch:cpu");
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

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
