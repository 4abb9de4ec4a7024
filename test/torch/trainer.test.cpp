#include "model/torch/trainer_torch.hpp"

#include <boost/test/unit_test.hpp>

#include "config/random.hpp"
#include "model/torch/batches_torch.hpp"
#include "model/torch/training_device_torch.hpp"

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(trainer)

BOOST_AUTO_TEST_CASE(the_learning_rate_rises_stays_and_falls) {
  BOOST_TEST(schedule(0, 0, true) < 0.1);
  BOOST_TEST(schedule(0.3, 500, true) == 1.0);
  BOOST_TEST(schedule(0.3, 0, false) == 1.0);
  BOOST_TEST(schedule(0.8, 500, true) < 0.6);
  BOOST_TEST(schedule(0.999999, 500, true) == 0.05, boost::test_tools::tolerance(1e-3));
  BOOST_TEST(schedule(1.0, 500, false) == 0.4, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(schedule(whole_recipe, 500, false) == 0.02, boost::test_tools::tolerance(1e-9));
}

BOOST_AUTO_TEST_CASE(a_step_in_vectors_is_the_step_in_one_pass) {
  model::model_config shape;
  shape.hidden_size = shape.intermediate_size = 16;
  shape.n_layers = shape.n_heads = shape.n_kv_heads = 2;
  shape.head_dim = 8;
  shape.n_experts = 4;
  shape.top_k = 2;
  shape.vocab_size = 30;
  shape.max_context = 32;
  training::decoder one(shape, 1), other(shape, 1);
  optimizer_state of_one(one), of_other(other);
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{4});
  for (const double size : {1e-4, 1.0, 1e-3}) {  // Clipped and not.
    const auto gradient =
        torch::randn(one.gradients().sizes().vec(), generator, torch::kFloat32) * size;
    one.gradients().copy_(gradient);
    other.gradients().copy_(gradient);
    step_in_one_pass(one, of_one, 0.01);
    step_in_vectors(other, of_other, 0.01);
    BOOST_TEST((one.parameters() - other.parameters()).abs().max().item<double>() < 1e-5);
    BOOST_TEST((of_one.second - of_other.second).abs().max().item<double>() < 1e-6);
    BOOST_TEST(other.gradients().abs().max().item<double>() == 0.0);
    BOOST_TEST(of_one.steps == of_other.steps);
  }
  BOOST_TEST(!one.parameters().equal(training::decoder(shape, 1).parameters()));
}

BOOST_AUTO_TEST_CASE(outages_of_a_device_are_those_of_the_cpu) {
  for (const bool siblings : {false, true}) {
    random_stream one(5, 1), other(5, 1);
    const auto here = draw_outages(3, 6, 8, 5, siblings, one),
               there = draw_outages_on(at::kCPU, 3, 6, 8, 5, siblings, other);
    BOOST_TEST_REQUIRE(there.size() == 3u);
    for (std::size_t l = 0; l < 3; ++l) {
      BOOST_TEST(here[l].blocked.equal(there[l].blocked));
      BOOST_TEST(here[l].blocked.any().item<bool>());
      BOOST_TEST(there[l].stand_in.defined() == siblings);
      if (siblings) BOOST_TEST(here[l].stand_in.equal(there[l].stand_in));
    }
  }
}

namespace {

/// Rows that say which step and row they are.
struct counting_source final : text_source {
  void fill(std::uint64_t step, std::uint64_t index, std::span<std::int64_t> row) const override {
    for (std::size_t i = 0; i < row.size(); ++i)
      row[i] = static_cast<std::int64_t>(1000000 * step + 1000 * index + i);
  }
  std::vector<std::int32_t> held_out(std::size_t) const override { return {}; }
  std::vector<std::vector<std::int32_t>> left_out(std::size_t, std::size_t) const override {
    return {};
  }
};

}  // namespace

BOOST_AUTO_TEST_CASE(batches_that_were_prepared_by_several_threads_are_the_same) {
  const counting_source source;
  train_options options;
  options.sequences_per_step = 6;
  options.sequence_length = 8;
  options.max_context = 16;
  batch_feed alone(source, options);
  auto with_threads = options;
  with_threads.threads = 3;
  batch_feed ahead(source, with_threads);
  std::uint64_t tokens = 0;
  for (std::uint64_t step = 0; step < 9; ++step) {
    const auto size = batch_size_of(options, step);
    BOOST_TEST(size.rows * size.length == 48);
    BOOST_TEST(size.length == (step == 7 ? 16 : 8));
    const auto expected = alone.take(tokens, size), found = ahead.take(tokens, size);
    BOOST_TEST(expected.equal(found));
    BOOST_TEST(found[1][2].item<std::int64_t>() ==
               static_cast<std::int64_t>(1000000 * tokens) + 1002);
    tokens += 48;
    // What was prepared for another step is not taken.
    ahead.prepare(step == 4 ? tokens + 1 : tokens, batch_size_of(options, step + 1));
  }
}

BOOST_AUTO_TEST_CASE(devices_are_named_as_elsewhere) {
  const auto cpu = open_training_device("cpu"), plain = open_training_device("libtorch:cpu");
  BOOST_TEST_REQUIRE(cpu.has_value());
  BOOST_TEST_REQUIRE(plain.has_value());
  BOOST_TEST(!cpu->plain);
  BOOST_TEST(plain->plain);
  BOOST_TEST(plain->kept.device == "libtorch:cpu");
  for (const auto* name : {"libtorch:cuda:99", "libtorch:abacus", "gpu"}) {
    const auto refused = open_training_device(name);
    BOOST_TEST_REQUIRE(!refused.has_value(), name);
    BOOST_TEST((refused.error().code == errc::unsupported));
    BOOST_TEST(refused.error().message.find(name) != std::string::npos);
  }
}

BOOST_AUTO_TEST_SUITE_END()
