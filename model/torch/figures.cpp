#include "model/torch/figures_torch.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "config/random.hpp"
#include "model/calibration.hpp"
#include "model/training/corpus.hpp"

namespace ordermoe::training {
namespace {

using torch::Tensor;

constexpr std::int64_t longest_window = 256;

std::int64_t window_of(const decoder& model) {
  return std::min(longest_window, static_cast<std::int64_t>(model.shape().max_context));
}

/// For every layer a random half of the experts present, and for each missing one a random present
/// one.
struct outage {
  std::vector<std::vector<std::int64_t>> stand_in;  // [layer][expert]; itself where present
};

outage draw_outage(const decoder& model, std::uint64_t seed, std::uint64_t draw) {
  random_stream random(seed, draw);
  const auto n = model.shape().n_experts;
  outage drawn;
  for (std::size_t l = 0; l < model.shape().n_layers; ++l) {
    std::vector<std::int64_t> order(n);
    for (std::size_t e = 0; e < n; ++e) order[e] = static_cast<std::int64_t>(e);
    for (std::size_t i = n - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    const auto present = n - n / 2;
    std::vector<std::int64_t> replaced(n);
    for (std::size_t i = 0; i < n; ++i)
      replaced[static_cast<std::size_t>(order[i])] =
          i < present ? order[i] : order[random.below(present)];
    drawn.stand_in.push_back(std::move(replaced));
  }
  return drawn;
}

routing_override substitute(const outage& drawn) {
  return [&drawn](std::size_t layer, const Tensor&, routing& chosen) {
    auto* expert = chosen.experts.data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < chosen.experts.numel(); ++i)
      expert[i] = drawn.stand_in[layer][static_cast<std::size_t>(expert[i])];
  };
}

/// Gates that are probabilities stay as they are, as in serving; others are renormalised.
routing_override drop(const outage& drawn, model::gate_rule gates) {
  return [&drawn, gates](std::size_t layer, const Tensor&, routing& chosen) {
    const auto slots = chosen.experts.size(1);
    auto* expert = chosen.experts.data_ptr<std::int64_t>();
    auto* gate = chosen.gates.data_ptr<float>();
    for (std::int64_t row = 0; row < chosen.experts.size(0);
         ++row, expert += slots, gate += slots) {
      float left = 0;
      for (std::int64_t s = 0; s < slots; ++s) {
        if (drawn.stand_in[layer][static_cast<std::size_t>(expert[s])] != expert[s]) expert[s] = -1;
        if (expert[s] >= 0) left += gate[s];
      }
      for (std::int64_t s = 0; s < slots && gates == model::gate_rule::renormalised; ++s)
        if (expert[s] >= 0) gate[s] /= left;
    }
  };
}

/// Lets the router choose among the experts present.
routing_override restrict_router(const outage& drawn, model::gate_rule gates) {
  return [&drawn, gates](std::size_t layer, const Tensor& logits, routing& chosen) {
    auto open = logits.clone();
    for (std::size_t e = 0; e < drawn.stand_in[layer].size(); ++e)
      if (drawn.stand_in[layer][e] != static_cast<std::int64_t>(e))
        open.select(1, static_cast<std::int64_t>(e)).fill_(-1e9);
    const auto [best, which] = open.topk(chosen.gates.size(1), 1, true, true);
    const auto weights = gates == model::gate_rule::renormalised
                             ? torch::softmax(best, 1)
                             : torch::softmax(logits, 1).gather(1, which);
    chosen = {which.contiguous(), weights.contiguous()};
  };
}

/// One random member of every pair of siblings gone, the other standing in.
outage draw_siblings(const decoder& model, std::uint64_t seed, std::uint64_t draw) {
  random_stream random(seed + 1, draw);
  outage drawn;
  for (std::size_t l = 0; l < model.shape().n_layers; ++l) {
    std::vector<std::int64_t> replaced(model.shape().n_experts);
    for (std::size_t pair = 0; pair + 1 < replaced.size(); pair += 2) {
      const auto present = static_cast<std::int64_t>(pair + random.below(2));
      replaced[pair] = replaced[pair + 1] = present;
    }
    drawn.stand_in.push_back(std::move(replaced));
  }
  return drawn;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto n = values.size();
  return n % 2 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

struct cosines {
  std::vector<double> all, siblings, strangers;
};

/// Eq. (4) over rows of H_l = W_r X^T (eq. (3)): `logits` of every layer are [n_tokens, n_experts].
cosines router_cosines(const std::vector<Tensor>& logits, bool centred) {
  cosines found;
  for (auto h : logits) {
    if (centred) h = h - h.mean(1, true);
    const auto wide = h.to(torch::kFloat64);
    const auto gram = torch::mm(wide.t(), wide).contiguous();
    const auto n = static_cast<std::size_t>(gram.size(0));
    const auto similarity = model::cosines({gram.data_ptr<double>(), n * n}, n);
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = i + 1; j < n; ++j) {
        const double value = similarity[i * n + j];
        found.all.push_back(value);
        (i / 2 == j / 2 ? found.siblings : found.strangers).push_back(value);
      }
  }
  return found;
}

void leave_where(const std::function<bool()>& should_stop) {
  if (should_stop && should_stop()) throw measuring_stopped();
}

}  // namespace

void round_to_bf16(decoder& model) {
  torch::NoGradGuard no_gradients;
  model.parameters().copy_(model.parameters().to(torch::kBFloat16).to(torch::kFloat32));
}

double perplexity(decoder& model, const std::vector<std::int32_t>& ids,
                  const std::function<bool()>& should_stop,
                  const routing_override& override_routing) {
  torch::NoGradGuard no_gradients;
  double total = 0;
  std::size_t counted = 0;
  const auto window = window_of(model);
  const auto all = torch::tensor(std::vector<std::int64_t>(ids.begin(), ids.end()));
  const auto n = all.numel();
  const auto score = [&](const Tensor& rows) {
    const auto length = rows.size(1) - 1;
    const auto logits =
        model.forward(rows.narrow(1, 0, length), {0, 0, override_routing, nullptr}).logits;
    const auto losses =
        torch::nll_loss(torch::log_softmax(logits, 1), rows.narrow(1, 1, length).reshape({-1}), {},
                        at::Reduction::Sum);
    total += losses.item<double>();
    counted += static_cast<std::size_t>(rows.size(0) * length);
  };
  constexpr std::int64_t rows_at_once = 16;
  for (std::int64_t at = 0; at + 1 < n;) {
    leave_where(should_stop);
    const auto full = std::min((n - at) / window, rows_at_once);
    if (full > 0) {
      score(all.narrow(0, at, full * window).view({full, window}));
      at += full * window;
    } else {
      score(all.narrow(0, at, n - at).view({1, n - at}));
      at = n;
    }
  }
  return counted ? std::exp(total / static_cast<double>(counted)) : 0;
}

double arithmetic_exact_match(decoder& model, const piece_encoder& pieces, std::uint64_t seed,
                              std::size_t n_problems, const std::function<bool()>& should_stop) {
  torch::NoGradGuard no_gradients;
  constexpr std::size_t longest = 96, at_once = 64;
  random_stream random(seed, 1);
  std::size_t right = 0;
  for (std::size_t begin = 0; begin < n_problems; begin += at_once) {
    const auto n = std::min(at_once, n_problems - begin);
    std::vector<problem> problems;
    std::vector<std::vector<std::int32_t>> rows;
    std::vector<std::size_t> prompt_size;
    std::vector<bool> done(n, false);
    for (std::size_t i = 0; i < n; ++i) {
      problems.push_back(make_problem(split::eval, random));
      rows.push_back({bos_id});
      for (const auto id : pieces.encode(problems.back().prompt)) rows.back().push_back(id);
      prompt_size.push_back(rows.back().size());
    }
    for (std::size_t step = 0; step < longest && std::count(done.begin(), done.end(), false) > 0;
         ++step) {
      leave_where(should_stop);
      std::size_t width = 0;
      std::vector<std::size_t> open;
      for (std::size_t i = 0; i < n; ++i)
        if (!done[i]) {
          open.push_back(i);
          width = std::max(width, rows[i].size());
        }
      // Rows are padded on the right: a causal model's answer at a row's own end does not see the
      // padding.
      auto batch =
          torch::full({static_cast<std::int64_t>(open.size()), static_cast<std::int64_t>(width)},
                      static_cast<std::int64_t>(eos_id), torch::kInt64);
      for (std::size_t r = 0; r < open.size(); ++r)
        std::copy(rows[open[r]].begin(), rows[open[r]].end(),
                  batch.data_ptr<std::int64_t>() + r * width);
      const auto best = model.forward(batch).logits.argmax(1);
      for (std::size_t r = 0; r < open.size(); ++r) {
        auto& row = rows[open[r]];
        const auto id = static_cast<std::int32_t>(
            best[static_cast<std::int64_t>(r * width + row.size() - 1)].item<std::int64_t>());
        row.push_back(id);
        const auto written = pieces.decode(std::span(row).subspan(prompt_size[open[r]]));
        if (id == eos_id || written.find('\n') != std::string::npos) done[open[r]] = true;
      }
    }
    for (std::size_t i = 0; i < n; ++i)
      if (final_answer(pieces.decode(std::span(rows[i]).subspan(prompt_size[i]))) ==
          problems[i].answer)
        ++right;
  }
  return static_cast<double>(right) / static_cast<double>(n_problems);
}

model_figures measure(decoder& model, const std::vector<std::int32_t>& held_out,
                      const piece_encoder* pieces, std::uint64_t seed, bool siblings,
                      const std::function<bool()>& should_stop) {
  model_figures figures;
  figures.n_tokens = held_out.size();
  figures.perplexity = perplexity(model, held_out, should_stop);
  if (model.shape().n_experts > 1) {
    figures.n_draws = 8;
    const auto gates = model.shape().gates;
    std::vector<double> stood_in, dropped, routed, siblings_only;
    for (std::uint64_t draw = 0; draw < figures.n_draws; ++draw) {
      const auto drawn = draw_outage(model, seed, draw);
      stood_in.push_back(perplexity(model, held_out, should_stop, substitute(drawn)));
      dropped.push_back(perplexity(model, held_out, should_stop, drop(drawn, gates)));
      routed.push_back(perplexity(model, held_out, should_stop, restrict_router(drawn, gates)));
      if (siblings) {
        const auto pairs = draw_siblings(model, seed, draw);
        siblings_only.push_back(perplexity(model, held_out, should_stop, substitute(pairs)));
      }
    }
    const auto summary = [](const std::vector<double>& values, double& mean, double& lowest,
                            double& highest) {
      for (const double v : values) mean += v / static_cast<double>(values.size());
      lowest = *std::min_element(values.begin(), values.end());
      highest = *std::max_element(values.begin(), values.end());
    };
    summary(stood_in, figures.stand_in_perplexity, figures.stand_in_lowest,
            figures.stand_in_highest);
    summary(routed, figures.router_perplexity, figures.router_lowest, figures.router_highest);
    if (siblings) {
      double mean = 0, lowest = 0, highest = 0;
      summary(siblings_only, mean, lowest, highest);
      figures.sibling_perplexity = mean;
    }
    summary(dropped, figures.drop_perplexity, figures.drop_lowest, figures.drop_highest);

    torch::NoGradGuard no_gradients;
    std::vector<Tensor> logits;
    const auto window = window_of(model);
    const auto rows =
        std::min<std::int64_t>(static_cast<std::int64_t>(held_out.size()) / window, 16);
    if (rows > 0) {
      const auto ids = torch::tensor(std::vector<std::int64_t>(held_out.begin(),
                                                               held_out.begin() + rows * window))
                           .view({rows, window});
      model.forward(ids, {0, 0, {}, &logits});
      const auto raw = router_cosines(logits, false), centred = router_cosines(logits, true);
      figures.cosine_median = median(raw.all);
      figures.centred_median = median(centred.all);
      if (siblings) {
        figures.sibling_cosine = median(raw.siblings);
        figures.stranger_cosine = median(raw.strangers);
        figures.sibling_centred = median(centred.siblings);
        figures.stranger_centred = median(centred.strangers);
      }
    }
  }
  if (pieces) {
    figures.n_problems = 256;
    figures.exact_match =
        arithmetic_exact_match(model, *pieces, seed, figures.n_problems, should_stop);
  }
  return figures;
}

}  // namespace ordermoe::training
