#include "model/torch/decoder_torch.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>

#include "config/random.hpp"
#include "model/torch/figures_torch.hpp"
#include "model/torch/trainer_torch.hpp"

using namespace ordermoe;
using namespace ordermoe::training;

BOOST_AUTO_TEST_SUITE(decoder)

namespace {

model::model_config small_shape(std::size_t n_experts) {
  model::model_config shape;
  shape.hidden_size = 24;  // Not a multiple of 16: the tails of the reductions run too.
  shape.intermediate_size = 20;
  shape.n_layers = 2;
  shape.n_heads = 6;
  shape.n_kv_heads = 2;
  shape.head_dim = 4;
  shape.n_experts = n_experts;
  shape.top_k = n_experts > 1 ? 2 : 1;
  shape.vocab_size = 30;
  shape.max_context = 32;
  return shape;
}

torch::Tensor some_ids(std::int64_t rows, std::int64_t length) {
  auto ids = torch::empty({rows, length}, torch::kInt64);
  for (std::int64_t i = 0; i < ids.numel(); ++i)
    ids.data_ptr<std::int64_t>()[i] =
        static_cast<std::int64_t>(random_bits(9, 0, static_cast<std::uint64_t>(i)) % 30);
  return ids;
}

/// Mixtral's, dense and with experts, Qwen2-MoE's and Qwen3-MoE's.
std::vector<model::model_config> all_architectures() {
  auto qwen2 = small_shape(6), qwen3 = small_shape(4);
  qwen2.kind = model::family::qwen2_moe;
  qwen2.gates = model::gate_rule::probabilities;
  qwen2.query_key_value_bias = true;
  qwen2.shared_intermediate_size = 28;
  qwen3.kind = model::family::qwen3_moe;
  qwen3.gates = model::gate_rule::probabilities;
  qwen3.qk_norm = model::query_key_norm::per_head;
  qwen3.top_k = 1;
  return {small_shape(1), small_shape(4), qwen2, qwen3};
}

torch::Tensor loss_of(training::decoder& model, const torch::Tensor& ids,
                      const std::vector<layer_outage>& outages = {}) {
  const auto length = ids.size(1) - 1;
  const auto out = model.forward(ids.narrow(1, 0, length), {0.05, 0.01, {}, nullptr, outages});
  const auto loss =
      torch::nll_loss(torch::log_softmax(out.logits, 1), ids.narrow(1, 1, length).reshape({-1}));
  return out.auxiliary.defined() ? loss + out.auxiliary : loss;
}

/// The same model from plain LibTorch operations, one head and one token's slot at a time.
torch::Tensor plain_logits(training::decoder& model, const torch::Tensor& ids) {
  const auto& shape = model.shape();
  const auto dim = static_cast<std::int64_t>(shape.head_dim),
             heads = static_cast<std::int64_t>(shape.n_heads),
             kv_heads = static_cast<std::int64_t>(shape.n_kv_heads),
             inner = static_cast<std::int64_t>(shape.intermediate_size), length = ids.size(1);
  const auto norm = [&](const torch::Tensor& x, const torch::Tensor& weight) {
    return x * torch::rsqrt(x.square().mean(-1, true) + shape.rms_norm_eps) * weight;
  };
  const auto positions = torch::arange(length, torch::kFloat32).unsqueeze(1);
  const auto angles =
      positions * torch::pow(shape.rope_theta,
                             -torch::arange(0, dim, 2, torch::kFloat32) / static_cast<double>(dim));
  const auto cosines = torch::cat({angles.cos(), angles.cos()}, 1),
             sines = torch::cat({angles.sin(), angles.sin()}, 1);
  const auto rotate = [&](const torch::Tensor& x) {
    return x * cosines +
           torch::cat({-x.narrow(1, dim / 2, dim / 2), x.narrow(1, 0, dim / 2)}, 1) * sines;
  };
  std::vector<torch::Tensor> rows;
  for (std::int64_t r = 0; r < ids.size(0); ++r) {
    auto x = model.embedding.index_select(0, ids[r]);
    for (auto& w : model.layers) {
      const auto qkv = torch::matmul(norm(x, w.input_norm), w.qkv.t());
      std::vector<torch::Tensor> mixed;
      for (std::int64_t h = 0; h < heads; ++h) {
        const auto kv = h / (heads / kv_heads);
        const auto q = rotate(qkv.narrow(1, h * dim, dim)),
                   k = rotate(qkv.narrow(1, (heads + kv) * dim, dim)),
                   v = qkv.narrow(1, (heads + kv_heads + kv) * dim, dim);
        const auto hidden_future = torch::ones({length, length}).triu(1).to(torch::kBool);
        const auto scores = (torch::matmul(q, k.t()) / std::sqrt(static_cast<double>(dim)))
                                .masked_fill(hidden_future, -INFINITY);
        mixed.push_back(torch::matmul(torch::softmax(scores, 1), v));
      }
      x = x + torch::matmul(torch::cat(mixed, 1), w.output.t());
      const auto normed = norm(x, w.post_norm);
      const auto expert = [&](std::int64_t e, const torch::Tensor& y) {
        const auto a = torch::matmul(y, w.gate_and_up[e].t());
        return torch::matmul(torch::silu(a.narrow(1, 0, inner)) * a.narrow(1, inner, inner),
                             w.down[e].t());
      };
      if (!w.router.defined()) {
        x = x + expert(0, normed);
        continue;
      }
      // Mixtral: softmax over all experts, the largest kept and renormalised.
      const auto all = torch::softmax(torch::matmul(normed, w.router.t()), 1);
      const auto [best, which] = all.topk(2, 1);
      const auto gates = best / best.sum(1, true);
      std::vector<torch::Tensor> outputs;
      for (std::int64_t t = 0; t < length; ++t) {
        auto y = torch::zeros_like(normed.narrow(0, t, 1));
        for (std::int64_t s = 0; s < 2; ++s)
          y = y + gates[t][s] * expert(which[t][s].item<std::int64_t>(), normed.narrow(0, t, 1));
        outputs.push_back(y);
      }
      x = x + torch::cat(outputs);
    }
    rows.push_back(torch::matmul(norm(x, model.final_norm), model.head.t()));
  }
  return torch::cat(rows);
}

/// Makes all weights large enough that every path matters.
void stir(training::decoder& model) {
  torch::NoGradGuard no_gradients;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{4});
  model.parameters().add_(
      torch::randn(model.parameters().sizes().vec(), generator, torch::kFloat32) * 0.2);
}

}  // namespace

BOOST_AUTO_TEST_CASE(fast_blocks_equal_plain_operations_forwards_and_backwards) {
  for (const std::size_t n_experts : {std::size_t{1}, std::size_t{4}}) {
    training::decoder model(small_shape(n_experts), 1);
    stir(model);
    const auto ids = some_ids(2, 9);
    const auto targets = some_ids(2, 9).flip(1).reshape({-1});
    const auto fast = model.forward(ids).logits;
    torch::nll_loss(torch::log_softmax(fast, 1), targets).backward();
    const auto fast_gradients = model.gradients().clone();
    model.gradients().zero_();
    const auto plain = plain_logits(model, ids);
    torch::nll_loss(torch::log_softmax(plain, 1), targets).backward();
    const double difference = (fast - plain).abs().max().item<double>(),
                 size = plain.abs().max().item<double>();
    BOOST_TEST(difference < 1e-4 * size);
    // Both are fp32 with sums in another order.
    const double gradient_difference =
                     (fast_gradients - model.gradients()).abs().max().item<double>(),
                 gradient_size = model.gradients().abs().max().item<double>();
    BOOST_TEST(gradient_size > 1e-3);
    BOOST_TEST(gradient_difference < 1e-4 * gradient_size);
  }
}

BOOST_AUTO_TEST_CASE(plain_blocks_have_the_loss_and_gradients_of_the_fast_ones) {
  for (const auto& shape : all_architectures()) {
    training::decoder fast(shape, 1), plain(shape, 1);
    stir(fast);
    stir(plain);
    plain.use_plain_blocks();
    BOOST_TEST_REQUIRE(fast.parameters().equal(plain.parameters()));
    const auto ids = some_ids(4, 9);
    random_stream random(3, 0);
    std::vector<layer_outage> outages;
    if (shape.n_experts > 1)
      outages = draw_outages(shape.n_layers, shape.n_experts, 4, 8, true, random);
    const auto of_fast = loss_of(fast, ids, outages), of_plain = loss_of(plain, ids, outages);
    of_fast.backward();
    of_plain.backward();
    // Both are fp32 with sums in another order.
    BOOST_TEST(of_fast.item<double>() == of_plain.item<double>(),
               boost::test_tools::tolerance(1e-5));
    const double difference = (fast.gradients() - plain.gradients()).abs().max().item<double>(),
                 size = fast.gradients().abs().max().item<double>();
    BOOST_TEST(size > 1e-3);
    BOOST_TEST(difference < 1e-4 * size);
    // Every kind of parameter learns.
    for (const auto& w : fast.layers)
      for (const auto& tensor : {w.qkv, w.qkv_bias, w.query_norm, w.key_norm, w.router, w.down,
                                 w.shared_gate, w.shared_gate_and_up, w.shared_down})
        if (tensor.defined()) BOOST_TEST(tensor.grad().abs().max().item<double>() > 1e-7);
  }
}

BOOST_AUTO_TEST_CASE(gates_that_are_probabilities_are_those_among_all_experts) {
  auto shape = small_shape(4);
  shape.kind = model::family::qwen3_moe;
  shape.qk_norm = model::query_key_norm::per_head;
  shape.gates = model::gate_rule::probabilities;
  shape.top_k = 1;
  training::decoder model(shape, 1);
  stir(model);
  forward_options how;
  how.override_routing = [](std::size_t, const torch::Tensor& logits, routing& chosen) {
    const auto all = torch::softmax(logits, 1);
    BOOST_TEST(chosen.gates.equal(all.gather(1, chosen.experts)));
    BOOST_TEST(chosen.experts.reshape({-1}).equal(all.argmax(1)));
  };
  torch::NoGradGuard no_gradients;
  model.forward(some_ids(2, 9), how);
}

BOOST_AUTO_TEST_CASE(auxiliary_losses_reach_the_routers) {
  training::decoder model(small_shape(4), 1);
  stir(model);
  const auto out = model.forward(some_ids(2, 9), {1.0, 1.0, {}, nullptr});
  BOOST_TEST_REQUIRE(out.auxiliary.defined());
  out.auxiliary.backward();
  BOOST_TEST(model.layers[0].router.grad().abs().max().item<double>() > 1e-6);
}

BOOST_AUTO_TEST_CASE(growing_without_noise_keeps_the_function) {
  training::decoder dense(small_shape(1), 3);
  stir(dense);
  training::decoder mixture(small_shape(4), 5);
  grow(dense, mixture, {0, 0, 0}, 7);
  const auto ids = some_ids(2, 12);
  torch::NoGradGuard no_gradients;
  const auto before = dense.forward(ids).logits, after = mixture.forward(ids).logits;
  // Two gates that sum to one only up to rounding.
  BOOST_TEST((before - after).abs().max().item<double>() <
             1e-4 * before.abs().max().item<double>());
  training::decoder noisy(small_shape(4), 5);
  grow(dense, noisy, {0.1, 0.25, 0.5}, 7);
  BOOST_TEST((before - noisy.forward(ids).logits).abs().max().item<double>() > 1e-3);
}

BOOST_AUTO_TEST_CASE(children_stand_beside_their_siblings) {
  training::decoder parents(small_shape(2), 3);
  stir(parents);
  training::decoder children(small_shape(4), 5);
  grow(parents, children, {0, 0, 0}, 7);
  for (std::int64_t e = 0; e < 4; ++e) {
    BOOST_TEST(children.layers[1].down[e].equal(parents.layers[1].down[e / 2]));
    BOOST_TEST(children.layers[1].router[e].equal(parents.layers[1].router[e / 2]));
  }
}

BOOST_AUTO_TEST_CASE(what_no_expert_owns_is_handed_down) {
  for (auto shape : all_architectures()) {
    if (shape.n_experts == 1) continue;
    auto dense = shape;
    dense.n_experts = dense.top_k = 1;
    training::decoder parent(dense, 3), child(shape, 5);
    stir(parent);
    grow(parent, child, {}, 7);
    const auto &from = parent.layers[1], &to = child.layers[1];
    const std::pair<torch::Tensor, torch::Tensor> pairs[] = {
        {from.qkv, to.qkv},
        {from.qkv_bias, to.qkv_bias},
        {from.query_norm, to.query_norm},
        {from.key_norm, to.key_norm},
        {from.shared_gate, to.shared_gate},
        {from.shared_gate_and_up, to.shared_gate_and_up},
        {from.shared_down, to.shared_down}};
    for (const auto& [before, after] : pairs) {
      BOOST_TEST_REQUIRE(before.defined() == after.defined());
      if (before.defined()) BOOST_TEST(before.equal(after));
    }
  }
}

BOOST_AUTO_TEST_CASE(a_slot_left_out_adds_nothing) {
  for (const bool plain : {false, true}) {
    training::decoder model(small_shape(4), 1);
    stir(model);
    if (plain) model.use_plain_blocks();
    const auto ids = some_ids(1, 6);
    torch::NoGradGuard no_gradients;
    const auto all_left_out = model
                                  .forward(ids, {0, 0,
                                                 [](std::size_t, const torch::Tensor&,
                                                    routing& chosen) { chosen.experts.fill_(-1); },
                                                 nullptr})
                                  .logits;
    const auto no_weight = model
                               .forward(ids, {0, 0,
                                              [](std::size_t, const torch::Tensor&,
                                                 routing& chosen) { chosen.gates.fill_(0); },
                                              nullptr})
                               .logits;
    BOOST_TEST(all_left_out.equal(no_weight));
    BOOST_TEST(!all_left_out.equal(model.forward(ids).logits));
  }
}

BOOST_AUTO_TEST_CASE(gradients_follow_finite_differences) {
  training::decoder model(small_shape(1), 1);  // A mixture's loss jumps where a choice changes.
  stir(model);
  const auto ids = some_ids(2, 7);
  loss_of(model, ids).backward();
  const auto gradients = model.gradients().clone();
  // Along the gradient itself the change is largest, so fp32 noise is smallest.
  const auto direction = gradients / gradients.norm();
  torch::NoGradGuard no_gradients;
  constexpr double h = 2e-3;
  model.parameters().add_(direction, h);
  const double above = loss_of(model, ids).item<double>();
  model.parameters().sub_(direction, 2 * h);
  const double below = loss_of(model, ids).item<double>();
  const double slope = (above - below) / (2 * h), expected = gradients.norm().item<double>();
  BOOST_TEST(std::abs(slope - expected) < 0.02 * expected);
}

BOOST_AUTO_TEST_SUITE_END()
