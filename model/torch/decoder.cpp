#include "model/torch/decoder_torch.hpp"

#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "config/error.hpp"
#include "model/architecture/tensor_plan.hpp"

namespace ordermoe::training {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// y = x * rsqrt(mean(x^2) + eps) * weight over rows of [n, width].
struct rms_norm : torch::autograd::Function<rms_norm> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight,
                        double eps) {
    const auto n = x.size(0), width = x.size(1);
    auto y = torch::empty_like(x);
    auto scale = torch::empty({n}, x.options());
    const float *px = x.data_ptr<float>(), *w = weight.data_ptr<float>();
    float *py = y.data_ptr<float>(), *ps = scale.data_ptr<float>();
    for (std::int64_t i = 0; i < n; ++i, px += width, py += width) {
      float sums[16] = {};
      for (std::int64_t j = 0; j + 16 <= width; j += 16)
        for (int k = 0; k < 16; ++k) sums[k] += px[j + k] * px[j + k];
      float sum = 0;
      for (const float s : sums) sum += s;
      for (std::int64_t j = width / 16 * 16; j < width; ++j) sum += px[j] * px[j];
      const float r = 1.0f / std::sqrt(sum / static_cast<float>(width) + static_cast<float>(eps));
      ps[i] = r;
      for (std::int64_t j = 0; j < width; ++j) py[j] = px[j] * r * w[j];
    }
    context->save_for_backward({x, weight, scale});
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list outputs) {
    const auto saved = context->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &scale = saved[2];
    const auto dy = outputs[0].contiguous();
    const auto n = x.size(0), width = x.size(1);
    auto dx = torch::empty_like(x);
    auto dw = torch::zeros_like(weight);
    const float *px = x.data_ptr<float>(), *w = weight.data_ptr<float>(),
                *pd = dy.data_ptr<float>(), *ps = scale.data_ptr<float>();
    float *po = dx.data_ptr<float>(), *pw = dw.data_ptr<float>();
    for (std::int64_t i = 0; i < n; ++i, px += width, pd += width, po += width) {
      const float r = ps[i];
      float sums[16] = {};
      for (std::int64_t j = 0; j + 16 <= width; j += 16)
        for (int k = 0; k < 16; ++k) sums[k] += pd[j + k] * w[j + k] * px[j + k];
      float sum = 0;
      for (const float s : sums) sum += s;
      for (std::int64_t j = width / 16 * 16; j < width; ++j) sum += pd[j] * w[j] * px[j];
      const float c = sum * r * r * r / static_cast<float>(width);
      for (std::int64_t j = 0; j < width; ++j) {
        po[j] = pd[j] * w[j] * r - px[j] * c;
        pw[j] += pd[j] * px[j] * r;
      }
    }
    return {dx, dw, Tensor()};
  }
};

struct attention_shape {
  std::int64_t sequences, length, heads, kv_heads, dim;
  double theta;
};

/// cos and sin of position * theta^(-2i/dim), [length, dim / 2] each.
std::pair<std::vector<float>, std::vector<float>> rotations(const attention_shape& s) {
  const auto half = static_cast<std::size_t>(s.dim / 2);
  std::vector<float> cosines(static_cast<std::size_t>(s.length) * half), sines(cosines.size());
  for (std::size_t p = 0; p < static_cast<std::size_t>(s.length); ++p)
    for (std::size_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(p) *
          std::pow(s.theta, -2.0 * static_cast<double>(i) / static_cast<double>(s.dim));
      cosines[p * half + i] = static_cast<float>(std::cos(angle));
      sines[p * half + i] = static_cast<float>(std::sin(angle));
    }
  return {std::move(cosines), std::move(sines)};
}

/// Calls move(row of qkv or output, pointer into [sequences * kv_heads, group * length, dim]) for
/// all heads of a kind. `first` is the first head's index inside a row of `row_heads` heads.
template <class Move>
void each_head(const attention_shape& s, std::int64_t row_heads, std::int64_t first,
               std::int64_t group, float* rows, float* blocks, const Move& move) {
  for (std::int64_t b = 0; b < s.sequences; ++b)
    for (std::int64_t kv = 0; kv < s.kv_heads; ++kv)
      for (std::int64_t g = 0; g < group; ++g)
        for (std::int64_t t = 0; t < s.length; ++t)
          move(rows + ((b * s.length + t) * row_heads + first + kv * group + g) * s.dim,
               blocks + (((b * s.kv_heads + kv) * group + g) * s.length + t) * s.dim, t);
}

/// Causal grouped-query attention with rotary positions: qkv [n, (heads + 2 kv_heads) * dim] to [n,
/// heads * dim].
struct causal_attention : torch::autograd::Function<causal_attention> {
  static Tensor forward(AutogradContext* context, const Tensor& qkv, std::int64_t sequences,
                        std::int64_t heads, std::int64_t kv_heads, std::int64_t dim, double theta) {
    const attention_shape s{sequences, qkv.size(0) / sequences, heads, kv_heads, dim, theta};
    const auto group = heads / kv_heads, half = dim / 2, row_heads = heads + 2 * kv_heads,
               blocks = sequences * kv_heads;
    auto q = torch::empty({blocks, group * s.length, dim}, qkv.options());
    auto k = torch::empty({blocks, s.length, dim}, qkv.options());
    auto v = torch::empty_like(k);
    const auto [cosines, sines] = rotations(s);
    const auto rotate = [&, cosines = cosines.data(), sines = sines.data()](
                            const float* in, float* out, std::int64_t t) {
      const float *c = cosines + t * half, *n = sines + t * half;
      for (std::int64_t i = 0; i < half; ++i) {
        out[i] = in[i] * c[i] - in[half + i] * n[i];
        out[half + i] = in[half + i] * c[i] + in[i] * n[i];
      }
    };
    const auto copy = [&](const float* in, float* out, std::int64_t) {
      std::memcpy(out, in, static_cast<std::size_t>(dim) * sizeof(float));
    };
    float* rows = qkv.data_ptr<float>();
    each_head(s, row_heads, 0, group, rows, q.data_ptr<float>(), rotate);
    each_head(s, row_heads, heads, 1, rows, k.data_ptr<float>(), rotate);
    each_head(s, row_heads, heads + kv_heads, 1, rows, v.data_ptr<float>(), copy);
    // The mask of one head, repeated for the heads of a group: added by the product itself.
    const auto mask = torch::full({s.length, s.length}, -1e9f, qkv.options())
                          .triu(1)
                          .repeat({group, 1})
                          .unsqueeze(0);
    const auto scores =
        torch::baddbmm(mask, q, k.transpose(1, 2), 1.0, 1.0 / std::sqrt(static_cast<double>(dim)));
    const auto weights = torch::softmax(scores, -1);
    auto mixed = torch::bmm(weights, v);
    auto out = torch::empty({qkv.size(0), heads * dim}, qkv.options());
    each_head(s, heads, 0, group, out.data_ptr<float>(), mixed.data_ptr<float>(),
              [&](float* row, const float* block, std::int64_t) {
                std::memcpy(row, block, static_cast<std::size_t>(dim) * sizeof(float));
              });
    context->save_for_backward({q, k, v, weights});
    context->saved_data["sequences"] = sequences;
    context->saved_data["heads"] = heads;
    context->saved_data["theta"] = theta;
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list outputs) {
    const auto saved = context->get_saved_variables();
    const auto &q = saved[0], &k = saved[1], &v = saved[2], &weights = saved[3];
    const auto sequences = context->saved_data["sequences"].toInt(),
               heads = context->saved_data["heads"].toInt();
    const auto kv_heads = k.size(0) / sequences, dim = k.size(2), half = dim / 2,
               group = heads / kv_heads, row_heads = heads + 2 * kv_heads;
    const attention_shape s{sequences, k.size(1), heads,
                            kv_heads,  dim,       context->saved_data["theta"].toDouble()};
    auto d_out = outputs[0].contiguous();
    auto d_mixed = torch::empty_like(q);
    each_head(s, heads, 0, group, d_out.data_ptr<float>(), d_mixed.data_ptr<float>(),
              [&](const float* row, float* block, std::int64_t) {
                std::memcpy(block, row, static_cast<std::size_t>(dim) * sizeof(float));
              });
    auto d_v = torch::bmm(weights.transpose(1, 2), d_mixed);
    const auto d_weights = torch::bmm(d_mixed, v.transpose(1, 2));
    const auto d_scores = at::_softmax_backward_data(d_weights, weights, -1, at::kFloat)
                              .mul_(1.0 / std::sqrt(static_cast<double>(dim)));
    auto d_q = torch::bmm(d_scores, k);
    auto d_k = torch::bmm(d_scores.transpose(1, 2), q);
    auto d_qkv = torch::empty({d_out.size(0), row_heads * dim}, d_out.options());
    const auto [cosines, sines] = rotations(s);
    const auto rotate_back = [&, cosines = cosines.data(), sines = sines.data()](
                                 float* row, const float* block, std::int64_t t) {
      const float *c = cosines + t * half, *n = sines + t * half;
      for (std::int64_t i = 0; i < half; ++i) {
        row[i] = block[i] * c[i] + block[half + i] * n[i];
        row[half + i] = block[half + i] * c[i] - block[i] * n[i];
      }
    };
    float* rows = d_qkv.data_ptr<float>();
    each_head(s, row_heads, 0, group, rows, d_q.data_ptr<float>(), rotate_back);
    each_head(s, row_heads, heads, 1, rows, d_k.data_ptr<float>(), rotate_back);
    each_head(s, row_heads, heads + kv_heads, 1, rows, d_v.data_ptr<float>(),
              [&](float* row, const float* block, std::int64_t) {
                std::memcpy(row, block, static_cast<std::size_t>(dim) * sizeof(float));
              });
    return {d_qkv, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

/// sum over slots of gate * w2(silu(w1 x) * w3 x): x [n, hidden], experts and gates [n, slots] to
/// [n, hidden].
struct expert_mixture : torch::autograd::Function<expert_mixture> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& gates,
                        const Tensor& experts, const Tensor& gate_and_up, const Tensor& down) {
    const auto n = x.size(0), hidden = x.size(1), slots = gates.size(1),
               n_experts = gate_and_up.size(0), inner = down.size(2);
    // Slots sorted by expert (counting sort): place[i] is where slot i computes; a slot left out
    // has none.
    const auto* chosen = experts.data_ptr<std::int64_t>();
    auto counts = torch::zeros({n_experts + 1}, torch::kInt64);
    auto* start = counts.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < n * slots; ++i)
      if (chosen[i] >= 0) ++start[chosen[i] + 1];
    for (std::int64_t e = 0; e < n_experts; ++e) start[e + 1] += start[e];
    const auto total = start[n_experts];
    auto place = torch::full({n * slots}, -1, torch::kInt64);
    auto* at = place.data_ptr<std::int64_t>();
    std::vector<std::int64_t> next(start, start + n_experts);
    auto gathered = torch::empty({total, hidden}, x.options());
    const float* px = x.data_ptr<float>();
    for (std::int64_t i = 0; i < n * slots; ++i) {
      if (chosen[i] < 0) continue;
      at[i] = next[static_cast<std::size_t>(chosen[i])]++;
      std::memcpy(gathered.data_ptr<float>() + at[i] * hidden, px + i / slots * hidden,
                  static_cast<std::size_t>(hidden) * sizeof(float));
    }
    auto projected = torch::empty({total, 2 * inner}, x.options());
    auto computed = torch::empty({total, hidden}, x.options());
    std::vector<Tensor> activations;
    for (std::int64_t e = 0; e < n_experts; ++e) {
      const auto rows = start[e + 1] - start[e];
      auto a = projected.narrow(0, start[e], rows);
      auto y = computed.narrow(0, start[e], rows);
      if (rows == 0) {
        activations.push_back(torch::empty({0, inner}, x.options()));
        continue;
      }
      torch::mm_out(a, gathered.narrow(0, start[e], rows), gate_and_up[e].t());
      auto s = torch::silu(a.narrow(1, 0, inner)).mul_(a.narrow(1, inner, inner));
      torch::mm_out(y, s, down[e].t());
      activations.push_back(std::move(s));
    }
    auto out = torch::zeros_like(x);
    const float *pg = gates.data_ptr<float>(), *py = computed.data_ptr<float>();
    float* po = out.data_ptr<float>();
    for (std::int64_t i = 0; i < n * slots; ++i) {
      if (at[i] < 0) continue;
      const float g = pg[i];
      float* to = po + i / slots * hidden;
      const float* from = py + at[i] * hidden;
      for (std::int64_t j = 0; j < hidden; ++j) to[j] += g * from[j];
    }
    context->save_for_backward({gates, gate_and_up, down, counts, place, gathered, projected,
                                computed, torch::cat(activations)});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list outputs) {
    const auto saved = context->get_saved_variables();
    const auto &gates = saved[0], &gate_and_up = saved[1], &down = saved[2], &counts = saved[3],
               &place = saved[4], &gathered = saved[5], &projected = saved[6], &computed = saved[7],
               &activations = saved[8];
    const auto d_out = outputs[0].contiguous();
    const auto n = d_out.size(0), hidden = d_out.size(1), slots = gates.size(1),
               n_experts = gate_and_up.size(0), inner = down.size(2), total = gathered.size(0);
    const auto* start = counts.data_ptr<std::int64_t>();
    const auto* at = place.data_ptr<std::int64_t>();
    auto d_gates = torch::zeros_like(gates);
    auto d_computed = torch::empty({total, hidden}, d_out.options());
    const float *pd = d_out.data_ptr<float>(), *pg = gates.data_ptr<float>(),
                *py = computed.data_ptr<float>();
    for (std::int64_t i = 0; i < n * slots; ++i) {
      if (at[i] < 0) continue;
      const float g = pg[i];
      const float *from = pd + i / slots * hidden, *y = py + at[i] * hidden;
      float* to = d_computed.data_ptr<float>() + at[i] * hidden;
      float sums[16] = {};
      for (std::int64_t j = 0; j + 16 <= hidden; j += 16)
        for (int k = 0; k < 16; ++k) {
          to[j + k] = g * from[j + k];
          sums[k] += from[j + k] * y[j + k];
        }
      float sum = 0;
      for (const float v : sums) sum += v;
      for (std::int64_t j = hidden / 16 * 16; j < hidden; ++j) {
        to[j] = g * from[j];
        sum += from[j] * y[j];
      }
      d_gates.data_ptr<float>()[i] = sum;
    }
    auto d_gate_and_up = torch::zeros_like(gate_and_up);
    auto d_down = torch::zeros_like(down);
    auto d_gathered = torch::empty_like(gathered);
    for (std::int64_t e = 0; e < n_experts; ++e) {
      const auto rows = start[e + 1] - start[e];
      if (rows == 0) continue;
      const auto d_y = d_computed.narrow(0, start[e], rows);
      const auto a = projected.narrow(0, start[e], rows);
      const auto gate = a.narrow(1, 0, inner), up = a.narrow(1, inner, inner);
      const auto s = activations.narrow(0, start[e], rows);
      auto into_down = d_down[e];
      torch::mm_out(into_down, d_y.t(), s);
      const auto d_s = torch::mm(d_y, down[e]);
      auto d_a = torch::empty({rows, 2 * inner}, d_out.options());
      auto d_gate = d_a.narrow(1, 0, inner), d_up = d_a.narrow(1, inner, inner);
      d_gate.copy_(at::silu_backward(d_s * up, gate));
      auto silu_gate = torch::silu(gate);
      torch::mul_out(d_up, d_s, silu_gate);
      auto into_up = d_gate_and_up[e];
      torch::mm_out(into_up, d_a.t(), gathered.narrow(0, start[e], rows));
      auto into_rows = d_gathered.narrow(0, start[e], rows);
      torch::mm_out(into_rows, d_a, gate_and_up[e]);
    }
    auto d_x = torch::zeros({n, hidden}, d_out.options());
    float* px = d_x.data_ptr<float>();
    const float* pr = d_gathered.data_ptr<float>();
    for (std::int64_t i = 0; i < n * slots; ++i) {
      if (at[i] < 0) continue;
      float* to = px + i / slots * hidden;
      const float* from = pr + at[i] * hidden;
      for (std::int64_t j = 0; j < hidden; ++j) to[j] += from[j];
    }
    return {d_x, d_gates, Tensor(), d_gate_and_up, d_down};
  }
};

Tensor normal(std::vector<std::int64_t> sizes, double deviation, at::Generator& generator) {
  return torch::randn(sizes, generator, torch::kFloat32) * deviation;
}

}  // namespace

Tensor decoder::make(std::vector<std::int64_t> sizes, std::size_t& offset, bool matrix) {
  std::int64_t count = 1;
  for (const auto size : sizes) count *= size;
  const auto begin = static_cast<std::int64_t>(offset);
  offset += static_cast<std::size_t>(count);
  if (!flat_.defined()) return {};  // The first pass only counts.
  auto view = flat_.narrow(0, begin, count).view(sizes).detach();
  view.requires_grad_(true);
  view.mutable_grad() = flat_gradients_.narrow(0, begin, count).view(sizes);
  if (matrix) decay_mask_.narrow(0, begin, count).fill_(1.0f);
  return view;
}

decoder::decoder(const model::model_config& shape, std::uint64_t seed, at::Device device)
    : shape_(shape), plain_(!device.is_cpu()) {
  std::size_t size = 0;
  make_all(size);
  flat_ = torch::zeros({static_cast<std::int64_t>(size)}, at::TensorOptions().device(device));
  flat_gradients_ = torch::zeros_like(flat_);
  decay_mask_ = torch::zeros_like(flat_);
  size = 0;
  make_all(size);
  draw(seed);
}

void decoder::make_all(std::size_t& offset) {
  const auto hidden = static_cast<std::int64_t>(shape_.hidden_size),
             inner = static_cast<std::int64_t>(shape_.intermediate_size),
             shared = static_cast<std::int64_t>(shape_.shared_intermediate_size),
             experts = static_cast<std::int64_t>(shape_.n_experts),
             vocab = static_cast<std::int64_t>(shape_.vocab_size),
             dim = static_cast<std::int64_t>(shape_.head_dim),
             width = static_cast<std::int64_t>(shape_.n_heads) * dim,
             kv = static_cast<std::int64_t>(shape_.kv_width());
  layers.clear();
  embedding = make({vocab, hidden}, offset, false);
  for (std::size_t l = 0; l < shape_.n_layers; ++l) {
    layer_weights w;
    w.input_norm = make({hidden}, offset, false);
    w.qkv = make({width + 2 * kv, hidden}, offset, true);
    if (shape_.query_key_value_bias) w.qkv_bias = make({width + 2 * kv}, offset, false);
    if (shape_.qk_norm != model::query_key_norm::none) {
      w.query_norm = make({dim}, offset, false);
      w.key_norm = make({dim}, offset, false);
    }
    w.output = make({hidden, width}, offset, true);
    w.post_norm = make({hidden}, offset, false);
    if (experts > 1) w.router = make({experts, hidden}, offset, false);
    w.gate_and_up = make({experts, 2 * inner, hidden}, offset, true);
    w.down = make({experts, hidden, inner}, offset, true);
    if (shared > 0) {
      w.shared_gate = make({1, hidden}, offset, false);
      w.shared_gate_and_up = make({1, 2 * shared, hidden}, offset, true);
      w.shared_down = make({1, hidden, shared}, offset, true);
    }
    layers.push_back(std::move(w));
  }
  final_norm = make({hidden}, offset, false);
  head = make({vocab, hidden}, offset, true);
}

void decoder::draw(std::uint64_t seed) {
  torch::NoGradGuard no_gradients;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto fill = [&](Tensor& tensor, double deviation) {
    if (tensor.defined()) tensor.copy_(normal(tensor.sizes().vec(), deviation, generator));
  };
  const auto fill_with_one = [](Tensor& tensor) {
    if (tensor.defined()) tensor.fill_(1.0f);
  };
  const double into_stream = 0.02 / std::sqrt(2.0 * static_cast<double>(shape_.n_layers));
  fill(embedding, 0.02);
  for (auto& w : layers) {
    for (auto* norm : {&w.input_norm, &w.post_norm, &w.query_norm, &w.key_norm})
      fill_with_one(*norm);
    fill(w.qkv, 0.05);
    fill(w.output, into_stream * 2);
    fill(w.router, 0.02);
    fill(w.gate_and_up, 0.05);
    fill(w.down, into_stream * 2);
    fill(w.shared_gate, 0.02);
    fill(w.shared_gate_and_up, 0.05);
    fill(w.shared_down, into_stream * 2);
  }
  fill_with_one(final_norm);
  fill(head, 0.02);
}

Tensor decoder::norm(const Tensor& x, const Tensor& weight) const {
  return plain_ ? plain::rms_norm(x, weight, shape_.rms_norm_eps)
                : rms_norm::apply(x, weight, shape_.rms_norm_eps);
}

Tensor decoder::attend(const layer_weights& w, const Tensor& normed, std::int64_t sequences,
                       const plain::rotation& rotated) const {
  const auto heads = static_cast<std::int64_t>(shape_.n_heads),
             kv_heads = static_cast<std::int64_t>(shape_.n_kv_heads),
             dim = static_cast<std::int64_t>(shape_.head_dim), n = normed.size(0);
  auto qkv = w.qkv_bias.defined() ? torch::addmm(w.qkv_bias, normed, w.qkv.t())
                                  : torch::mm(normed, w.qkv.t());
  if (w.query_norm.defined()) {
    const auto per_head = [&](std::int64_t first, std::int64_t count, const Tensor& weight) {
      const auto rows = qkv.narrow(1, first * dim, count * dim).reshape({n * count, dim});
      return norm(rows, weight).view({n, count * dim});
    };
    qkv = torch::cat({per_head(0, heads, w.query_norm), per_head(heads, kv_heads, w.key_norm),
                      qkv.narrow(1, (heads + kv_heads) * dim, kv_heads * dim)},
                     1);
  }
  if (plain_) return plain::causal_attention(qkv, sequences, heads, kv_heads, rotated);
  return causal_attention::apply(qkv, sequences, heads, kv_heads, dim, shape_.rope_theta);
}

routing decoder::route(std::size_t layer, const Tensor& normed, const forward_options& options,
                       Tensor& auxiliary) const {
  const auto experts = static_cast<std::int64_t>(shape_.n_experts),
             top_k = static_cast<std::int64_t>(shape_.top_k), n = normed.size(0);
  const auto logits = torch::mm(normed, layers[layer].router.t());
  const layer_outage none, &outage = options.outages.empty() ? none : options.outages[layer];
  const auto open = outage.blocked.defined() ? logits.masked_fill(outage.blocked, -1e9) : logits;
  auto [best, which] = open.topk(top_k, 1, true, true);
  // A gate that is a probability is one among all experts, those included that are out.
  const auto gates = shape_.gates == model::gate_rule::renormalised
                         ? torch::softmax(best, 1)
                         : torch::softmax(logits, 1).gather(1, which);
  if (outage.stand_in.defined()) which = outage.stand_in.gather(1, which);
  routing chosen{which.contiguous(), gates.contiguous()};
  if (options.router_logits) options.router_logits->push_back(logits.detach());
  if (options.balance_weight > 0 || options.z_weight > 0) {
    const auto counts =
        plain_ ? plain::weights_of(torch::ones_like(best.detach()), which, experts).sum(0)
               : torch::bincount(which.reshape({-1}), {}, experts).to(torch::kFloat32);
    const auto balance =
        (torch::softmax(logits, 1).mean(0) * counts / static_cast<double>(n * top_k)).sum() *
        static_cast<double>(experts);
    const auto z = torch::logsumexp(logits, 1).square().mean();
    const auto share = 1.0 / static_cast<double>(layers.size());
    const auto loss = balance * (options.balance_weight * share) + z * (options.z_weight * share);
    auxiliary = auxiliary.defined() ? auxiliary + loss : loss;
  }
  if (options.override_routing) {
    options.override_routing(layer, logits, chosen);
    if (plain_)  // A slot left out weighs nothing here.
      chosen = {chosen.experts.clamp_min(0), chosen.gates * chosen.experts.ge(0)};
  }
  return chosen;
}

Tensor decoder::mixture(const Tensor& x, const routing& chosen, const Tensor& gate_and_up,
                        const Tensor& down) const {
  if (!plain_) return expert_mixture::apply(x, chosen.gates, chosen.experts, gate_and_up, down);
  const bool alone = gate_and_up.size(0) == 1;
  return plain::expert_mixture(
      x, alone ? chosen.gates : plain::weights_of(chosen.gates, chosen.experts, down.size(0)),
      gate_and_up, down);
}

forward_result decoder::forward(const Tensor& ids, const forward_options& options) {
  const auto sequences = ids.size(0);
  auto x = torch::embedding(embedding, ids.reshape({-1}));
  const auto n = x.size(0);
  Tensor auxiliary;
  plain::rotation rotated;
  routing all_alike;  // Of a dense model and of the shared expert.
  if (plain_) {
    rotated = plain::rotation_of(ids.size(1), static_cast<std::int64_t>(shape_.head_dim),
                                 shape_.rope_theta, device());
  } else {
    all_alike = {torch::zeros({n, 1}, torch::kInt64), torch::ones({n, 1})};
  }
  for (std::size_t l = 0; l < layers.size(); ++l) {
    auto& w = layers[l];
    x = torch::addmm(x, attend(w, norm(x, w.input_norm), sequences, rotated), w.output.t());
    const auto normed = norm(x, w.post_norm);
    const auto chosen = shape_.n_experts > 1 ? route(l, normed, options, auxiliary) : all_alike;
    x = x + mixture(normed, chosen, w.gate_and_up, w.down);
    if (w.shared_gate.defined())
      x = x + mixture(normed,
                      {all_alike.experts, torch::sigmoid(torch::mm(normed, w.shared_gate.t()))},
                      w.shared_gate_and_up, w.shared_down);
  }
  return {torch::mm(norm(x, final_norm), head.t()), auxiliary};
}

std::vector<named_tensor> decoder::export_tensors() const {
  torch::NoGradGuard no_gradients;
  std::vector<named_tensor> all;
  const auto add = [&](const model::tensor_spec& to, const Tensor& tensor) {
    all.push_back({to.name, tensor.detach().to(torch::kCPU).contiguous().clone()});
  };
  const auto width = static_cast<std::int64_t>(shape_.n_heads * shape_.head_dim),
             kv = static_cast<std::int64_t>(shape_.kv_width());
  const auto tensors = model::tensors_by_use(shape_);
  add(tensors.embedding, embedding);
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const auto& w = layers[l];
    const auto& block = tensors.decoder.blocks[l];
    add(block.attention.norm, w.input_norm);
    add(block.attention.query, w.qkv.narrow(0, 0, width));
    add(block.attention.key, w.qkv.narrow(0, width, kv));
    add(block.attention.value, w.qkv.narrow(0, width + kv, kv));
    if (w.qkv_bias.defined()) {
      add(block.attention.bias[0], w.qkv_bias.narrow(0, 0, width));
      add(block.attention.bias[1], w.qkv_bias.narrow(0, width, kv));
      add(block.attention.bias[2], w.qkv_bias.narrow(0, width + kv, kv));
    }
    if (w.query_norm.defined()) {
      add(*block.attention.query_norm, w.query_norm);
      add(*block.attention.key_norm, w.key_norm);
    }
    add(block.attention.output, w.output);
    add(block.feed_forward_norm, w.post_norm);
    // A dense model is a mixture of one: its router's row never matters.
    add(block.sparse->router, w.router.defined() ? w.router : torch::zeros({1, w.output.size(0)}));
    const auto add_expert = [&](const model::feed_forward_tensors& expert, const Tensor& both,
                                const Tensor& down) {
      const auto inner = down.size(1);
      add(*expert.gate, both.narrow(0, 0, inner));
      add(expert.down, down);
      add(expert.up, both.narrow(0, inner, inner));
    };
    for (std::size_t e = 0; e < block.sparse->experts.size(); ++e)
      add_expert(block.sparse->experts[e], w.gate_and_up[static_cast<std::int64_t>(e)],
                 w.down[static_cast<std::int64_t>(e)]);
    if (w.shared_gate.defined()) {
      add_expert(*block.sparse->shared, w.shared_gate_and_up[0], w.shared_down[0]);
      add(*block.sparse->shared_gate, w.shared_gate);
    }
  }
  add(tensors.decoder.final_norm, final_norm);
  add(*tensors.head, head);
  return all;
}

void grow(decoder& parent, decoder& child, const growth& how, std::uint64_t seed) {
  torch::NoGradGuard no_gradients;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto parents = static_cast<std::int64_t>(parent.shape().n_experts),
             children = static_cast<std::int64_t>(child.shape().n_experts);
  ORDERMOE_CHECK(children % parents == 0, "children share their parents evenly");
  child.embedding.copy_(parent.embedding);
  child.final_norm.copy_(parent.final_norm);
  child.head.copy_(parent.head);
  for (std::size_t l = 0; l < child.layers.size(); ++l) {
    auto &from = parent.layers[l], &to = child.layers[l];
    const auto copy = [](Tensor& into, const Tensor& what) {
      if (what.defined()) into.copy_(what);
    };
    copy(to.input_norm, from.input_norm);
    copy(to.qkv, from.qkv);
    copy(to.qkv_bias, from.qkv_bias);
    copy(to.query_norm, from.query_norm);
    copy(to.key_norm, from.key_norm);
    copy(to.output, from.output);
    copy(to.post_norm, from.post_norm);
    copy(to.shared_gate, from.shared_gate);
    copy(to.shared_gate_and_up, from.shared_gate_and_up);
    copy(to.shared_down, from.shared_down);
    if (from.router.defined()) {
      const double deviation = from.router.std().item<double>();
      to.router.copy_(from.router.repeat_interleave(children / parents, 0) +
                      normal(to.router.sizes().vec(), how.router_noise * deviation, generator));
    } else {
      to.router.copy_(normal(to.router.sizes().vec(), how.drawn_router, generator));
    }
    const auto inner = static_cast<std::int64_t>(child.shape().intermediate_size);
    for (std::int64_t e = 0; e < children; ++e) {
      const auto p = e * parents / children;
      const auto up = from.gate_and_up[p], down = from.down[p];
      const double up_deviation = up.std().item<double>(),
                   down_deviation = down.std().item<double>();
      auto new_up = up + normal(up.sizes().vec(), how.weight_noise * up_deviation, generator);
      auto new_down =
          down + normal(down.sizes().vec(), how.weight_noise * down_deviation, generator);
      // Inner unit u is redrawn as a whole: its gate row, its up row and its column of the way
      // down.
      const auto redrawn = (torch::rand({inner}, generator, torch::kFloat32) < how.redrawn_share)
                               .to(torch::kFloat32);
      const auto both = torch::cat({redrawn, redrawn}).unsqueeze(1);
      new_up = new_up * (1 - both) + normal(up.sizes().vec(), up_deviation, generator) * both;
      new_down = new_down * (1 - redrawn) +
                 normal(down.sizes().vec(), down_deviation, generator) * redrawn;
      to.gate_and_up[e].copy_(new_up);
      to.down[e].copy_(new_down);
    }
  }
}

}  // namespace ordermoe::training
