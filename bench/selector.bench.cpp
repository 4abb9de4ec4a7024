#include <benchmark/benchmark.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/cluster.hpp"
#include "config/random.hpp"
#include "planning/placement.hpp"
#include "planning/selection/selector.hpp"
#include "planning/strategies/strategies.hpp"
#include "test/support/random_profile.hpp"

/// The selector at the shape of Mixtral on eight servers: 32 layers, 8 experts, memory for two
/// copies of the model, attention free to run anywhere (one residency, the widest); and at the
/// shapes of models with many experts. A decision includes the predicted losses of its slots.
/// Queries are drawn once and walked in turn.
namespace {

using namespace ordermoe;
using namespace ordermoe::planning;

constexpr std::size_t n_queries = 4096;

struct world {
  profile experts;
  cluster servers;
  plan placed;
  cost_model costs;
};

world make_world(std::size_t n_servers, std::size_t n_layers, std::size_t n_experts,
                 std::size_t top_k) {
  world w;
  w.experts = random_profile(n_layers, n_experts, top_k, 1);
  draw_options options;
  options.n_servers = n_servers;
  options.seed = 1;
  options.memory_ratio = 2.0;
  options.costs = named_cost_profile("mixtral-8x7b").value();
  options.n_layers = n_layers;
  options.n_experts = n_experts;
  w.servers = draw_cluster(options);
  w.placed = place_by_similarity(w.experts, w.servers, options.costs, {}).value();
  w.placed.residence = roaming_residency(n_servers, n_layers);
  w.costs = make_cost_model(w.servers, options.costs);
  return w;
}

struct named_shape {
  const char* name;
  std::size_t n_layers, n_experts, top_k;
};
constexpr named_shape many_experts[] = {{"qwen1.5-moe", 24, 60, 4},
                                        {"olmoe", 16, 64, 8},
                                        {"qwen3-moe", 48, 128, 8},
                                        {"switch-256", 12, 256, 1}};

const world& many(std::size_t index) {
  static world worlds[std::size(many_experts)];
  auto& w = worlds[index];
  const auto& of = many_experts[index];
  if (w.costs.n_servers == 0) w = make_world(8, of.n_layers, of.n_experts, of.top_k);
  return w;
}

const world& mixtral(std::size_t top_k) {
  static const world one = make_world(8, 32, 8, 1);
  static const world two = make_world(8, 32, 8, 2);
  return top_k == 1 ? one : two;
}

/// A strategy's own policy; one that tunes its price of loss as it is once that is found.
selection_policy policy_of(std::string_view strategy, std::size_t top_k) {
  const auto* record = find_strategy(strategy);
  auto policy = record->policy(top_k);
  if (record->tunes_price) policy.price_ns_per_loss = 2e7;
  return policy;
}

/// A token's budget that lets it substitute in about a tenth of its layers: nats where losses are,
/// else the paper's units.
loss_units middling_budget(const world& w, const selection_policy& policy) {
  return policy.calibrated ? loss_units(1e8)
                           : loss_units(3e8) * static_cast<loss_units>(w.experts.top_k);
}

struct token {
  std::size_t layer, server, access;
  std::array<std::uint32_t, max_slots> targets;
  std::array<float, max_slots> gates;
  std::vector<float> probabilities;
  loss_units budget_left;
};

std::vector<token> draw_tokens(const world& w, loss_units budget) {
  random_stream random(7);
  std::vector<token> tokens(n_queries);
  for (auto& t : tokens) {
    t.layer = random.below(w.experts.n_layers);
    t.server = random.below(w.costs.n_servers);
    t.access = random.below(w.costs.n_servers);
    const auto& sets = w.experts.layers[t.layer].sets;
    double u = random.unit();
    std::size_t set = 0;
    while (set + 1 < sets.size() && (u -= sets[set].probability) >= 0) ++set;
    double sum = 0;
    t.probabilities.resize(w.experts.n_experts);
    for (auto& p : t.probabilities) sum += p = static_cast<float>(0.02 + 0.5 * random.unit());
    for (const auto e : sets[set].experts) {
      sum += 1 - t.probabilities[e];
      t.probabilities[e] = 1;
    }
    for (auto& p : t.probabilities) p = static_cast<float>(p / sum);
    const auto k = w.experts.top_k;
    for (std::size_t j = 0; j < k; ++j) {
      t.targets[j] = sets[set].experts[j];
      t.gates[j] = static_cast<float>(sets[set].mean_gate[j]);
    }
    t.budget_left = static_cast<loss_units>(random.unit() * static_cast<double>(budget));
  }
  return tokens;
}

decision decide(const selection_tables& tables, const token& t, std::size_t top_k,
                std::span<const std::int64_t> waits, std::span<const double> links,
                std::span<loss_units> losses) {
  const auto n = t.probabilities.size();
  std::array<slot_query, max_slots> slots;
  for (std::size_t j = 0; j < top_k; ++j) {
    slots[j] = {t.targets[j], t.gates[j], {}};
    if (!tables.reads_losses()) continue;
    const auto own = losses.subspan(j * n, n);
    tables.slot_losses(t.layer, t.targets[j], t.gates[j], t.probabilities, own);
    slots[j].loss = own;
  }
  decision_query query;
  query.layer = t.layer;
  query.server = t.server;
  query.access = t.access;
  query.slots = std::span(slots).first(top_k);
  query.budget_left = t.budget_left;
  query.wait_ns = waits;
  query.link_ns = links;
  query.probabilities = t.probabilities;
  return tables.select(query);
}

void select(benchmark::State& state, const world& w, const selection_policy& policy,
            bool with_waits) {
  const auto top_k = w.experts.top_k;
  const auto budget = middling_budget(w, policy);
  const auto tables = selection_tables::build(w.experts, w.placed, w.costs, policy, budget).value();
  const auto tokens = draw_tokens(w, budget);
  std::vector<std::int64_t> waits;
  random_stream random(9);
  for (std::size_t m = 0; with_waits && m < w.costs.n_servers; ++m)
    waits.push_back(static_cast<std::int64_t>(random.below(2'000'000)));
  std::vector<double> links;
  if (with_waits) {
    links.assign(tables->link_ns().begin(), tables->link_ns().end());
    for (auto& ns : links)
      if (ns > 0) ns += static_cast<double>(random.below(500'000));
  }
  std::vector<loss_units> losses(top_k * w.experts.n_experts);
  std::size_t at = 0, substituted = 0, missing = 0, moved = 0, slots = 0;
  double cost = 0;
  for (const auto& t : tokens) {
    const auto made = decide(*tables, t, top_k, waits, links, losses);
    moved += made.residence != t.server;
    cost += made.cost;
    for (std::size_t j = 0; j < top_k; ++j, ++slots) {
      const auto expert = made.slots[j].expert;
      missing += expert == left_out;
      substituted += expert != left_out && expert != t.targets[j];
    }
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(decide(*tables, tokens[at], top_k, waits, links, losses));
    at = (at + 1) % n_queries;
  }
  state.counters["substituted"] = static_cast<double>(substituted) / static_cast<double>(slots);
  state.counters["left_out"] = static_cast<double>(missing) / static_cast<double>(slots);
  state.counters["cost"] = cost / n_queries;
  state.counters["moved"] = static_cast<double>(moved) / n_queries;
}

void build(benchmark::State& state, const world& w, const selection_policy& policy) {
  const auto budget = middling_budget(w, policy);
  for (auto _ : state)
    benchmark::DoNotOptimize(
        selection_tables::build(w.experts, w.placed, w.costs, policy, budget).value());
}

/// Eq. (42) expanded forwards as printed, over the same quantised budget: no tables, nothing
/// remembered. What it needs of profile and plan is laid out flat beforehand, so that the factor
/// compares the recursion and not its book-keeping. Paper policy only, one residency: everywhere.
class direct_recursion {
 public:
  direct_recursion(const world& w, const selection_policy& policy, loss_units budget,
                   const selection_tables& tables)
      : w_(w), policy_(policy), bins_(tables.bins()), width_(tables.bin_width()) {
    double reference = 0;
    for (const double c : w.costs.expert_ns) reference += c;
    per_ns_ = policy.omega_time / (reference / static_cast<double>(w.costs.n_servers));
    per_unit_ = policy.omega_quality / static_cast<double>(budget);
    const placement_index index(w.placed);
    const auto n = w.experts.n_experts, k = w.experts.top_k;
    layers_.resize(w.experts.n_layers);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const auto& here = w.experts.layers[l];
      const auto& groups = w.placed.grouping[l];
      auto& layer = layers_[l];
      layer.targets.resize(n);
      for (std::size_t r = 0; r < n; ++r)
        for (std::size_t e = 0; e < n; ++e) {
          if (r != e && (groups.group_of[r] != groups.group_of[e] ||
                         here.router_logit(r, e) < groups.threshold))
            continue;
          for (std::size_t m = 0; m < w.costs.n_servers; ++m)
            if (index.hosts(m, l, e))
              layer.targets[r].push_back({m, e, r == e ? 0 : (1 - here.router_logit(r, e)) / 2});
        }
      layer.set_of.assign(n * n, here.sets.size());
      for (std::size_t set = 0; set < here.sets.size(); ++set) {
        const auto& members = here.sets[set].experts;
        layer.set_of[members.front() * n + members.back()] =
            layer.set_of[members.back() * n + members.front()] = set;
      }
      // Rows by pair of executed experts, the mean of the sets that share one where none is equal.
      if (l + 1 == layers_.size()) continue;
      const auto n_next = w.experts.layers[l + 1].sets.size();
      layer.rows.assign(n * n, std::vector<double>(n_next, 0));
      for (std::size_t a = 0; a < n; ++a)
        for (std::size_t b = 0; b < n; ++b) {
          auto& row = layer.rows[a * n + b];
          double weight = 0;
          for (std::size_t set = 0; set < here.sets.size(); ++set) {
            const auto& members = here.sets[set].experts;
            bool counts = false;
            if (layer.set_of[a * n + b] < here.sets.size() && (k == 1 || a != b))
              counts = layer.set_of[a * n + b] == set;
            else
              for (const auto e : members) counts = counts || e == a || e == b;
            if (!counts) continue;
            weight += here.sets[set].probability;
            for (std::size_t to = 0; to < n_next; ++to)
              row[to] += here.sets[set].probability * here.set_transition(set, to);
          }
          for (std::size_t to = 0; to < n_next; ++to)
            row[to] = weight > 0 ? row[to] / weight : w.experts.layers[l + 1].sets[to].probability;
        }
    }
  }

  /// The minimum of eq. (43).
  double decide(const token& t, std::size_t horizon) const {
    std::array<double, 2> gates{t.gates[0], t.gates[1]};
    return minimum(t.layer, t.server, t.targets.data(), gates.data(), t.budget_left, true, horizon);
  }

 private:
  struct candidate {
    std::size_t server, expert;
    double distance;
  };
  struct layer_data {
    std::vector<std::vector<candidate>> targets;
    std::vector<std::size_t> set_of;
    std::vector<std::vector<double>> rows;
  };

  double ahead(std::size_t l, std::size_t n, std::size_t a, std::size_t b, std::size_t bin,
               std::size_t steps) const {
    if (steps == 0 || l + 1 == layers_.size()) return 0;
    const auto& row = layers_[l].rows[a * w_.experts.n_experts + b];
    double sum = 0;
    for (std::size_t set = 0; set < row.size(); ++set) {
      if (row[set] == 0) continue;
      const auto& next = w_.experts.layers[l + 1].sets[set];
      sum += row[set] * minimum(l + 1, n, next.experts.data(), next.mean_gate.data(),
                                static_cast<loss_units>(bin) * width_, false, steps);
    }
    return sum;
  }

  std::size_t bin_after(loss_units budget, loss_units loss, bool now) const {
    if (now)
      return std::min<std::size_t>(bins_ - 1, static_cast<std::size_t>((budget - loss) / width_));
    return static_cast<std::size_t>(budget / width_ - (loss + width_ - 1) / width_);
  }

  static loss_units units(double weight, double distance) {
    return static_cast<loss_units>(std::ceil(weight * distance * units_per_loss));
  }

  double minimum(std::size_t l, std::size_t s, const std::uint32_t* targets, const double* gates,
                 loss_units budget, bool now, std::size_t steps) const {
    const auto& costs = w_.costs;
    double best = std::numeric_limits<double>::infinity();
    const auto& first = layers_[l].targets[targets[0]];
    if (w_.experts.top_k == 1) {
      for (const auto& x : first) {
        const auto loss = units(1, x.distance);
        if (loss > budget) continue;
        const double time = costs.hidden(s, x.server) + costs.expert_ns[x.server];
        const double cost =
            per_ns_ * time + per_unit_ * static_cast<double>(loss) +
            ahead(l, x.server, x.expert, x.expert, bin_after(budget, loss, now), steps - 1);
        best = std::min(best, cost);
      }
      return best;
    }
    const auto& second = layers_[l].targets[targets[1]];
    for (std::size_t n = 0; n < costs.n_servers; ++n)
      for (const auto& x : first)
        for (const auto& y : second) {
          const auto loss = units(gates[0], x.distance) + units(gates[1], y.distance);
          if (loss > budget) continue;
          const double run = x.server == y.server && x.expert != y.expert ? 2 : 1;
          const double time =
              std::max(costs.hidden(s, n),
                       std::max(costs.hidden(s, x.server) + run * costs.expert_ns[x.server] +
                                    costs.hidden(x.server, n),
                                costs.hidden(s, y.server) + run * costs.expert_ns[y.server] +
                                    costs.hidden(y.server, n)));
          const double cost =
              per_ns_ * time + per_unit_ * static_cast<double>(loss) +
              ahead(l, n, x.expert, y.expert, bin_after(budget, loss, now), steps - 1);
          best = std::min(best, cost);
        }
    return best;
  }

  const world& w_;
  selection_policy policy_;
  std::size_t bins_;
  loss_units width_;
  double per_ns_ = 0, per_unit_ = 0;
  std::vector<layer_data> layers_;
};

/// Processor time of this thread, so that a busy machine does not blur the factor.
double thread_ns() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

/// The same decisions by tables and by recursion: the counter `factor` is the recursion's time over
/// the tables' for one decision. Ends the program where their minima differ.
void against_recursion(benchmark::State& state, const world& w, std::size_t horizon,
                       std::size_t n_tokens) {
  const auto top_k = w.experts.top_k;
  auto policy = policy_of("paper", top_k);
  policy.horizon = horizon;
  const auto budget = middling_budget(w, policy);
  const auto tables = selection_tables::build(w.experts, w.placed, w.costs, policy, budget).value();
  const direct_recursion direct(w, policy, budget, *tables);
  auto tokens = draw_tokens(w, budget);
  // Decisions that have their whole horizon before them; the recursion takes the first of them.
  std::erase_if(tokens, [&](const token& t) { return t.layer + horizon > w.experts.n_layers; });
  n_tokens = std::min(n_tokens, tokens.size());
  std::vector<double> expected(n_tokens);
  std::vector<loss_units> losses(2 * w.experts.n_experts);
  double direct_ns = 0, table_ns = 0;
  for (auto _ : state) {
    double start = thread_ns();
    for (std::size_t i = 0; i < n_tokens; ++i) expected[i] = direct.decide(tokens[i], horizon);
    direct_ns = (thread_ns() - start) / static_cast<double>(n_tokens);
    constexpr int repeats = 20;
    start = thread_ns();
    for (int i = 0; i < repeats; ++i)
      for (const auto& t : tokens)
        benchmark::DoNotOptimize(decide(*tables, t, top_k, {}, {}, losses));
    table_ns = (thread_ns() - start) / static_cast<double>(repeats * tokens.size());
    state.SetIterationTime(direct_ns * 1e-9);
  }
  for (std::size_t i = 0; i < n_tokens; ++i) {
    const double found = decide(*tables, tokens[i], top_k, {}, {}, losses).cost;
    if (std::abs(found - expected[i]) > 1e-9 * std::abs(expected[i])) {
      std::fprintf(stderr, "tables %.17g, recursion %.17g\n", found, expected[i]);
      std::abort();
    }
  }
  state.counters["recursion_us"] = direct_ns * 1e-3;
  state.counters["tables_us"] = table_ns * 1e-3;
  state.counters["factor"] = direct_ns / table_ns;
}

void repeated(benchmark::internal::Benchmark* made, int repetitions) {
  made->Repetitions(repetitions)
      ->ReportAggregatesOnly(true)
      ->ComputeStatistics(
          "min", [](const std::vector<double>& v) { return *std::min_element(v.begin(), v.end()); })
      ->ComputeStatistics("max", [](const std::vector<double>& v) {
        return *std::max_element(v.begin(), v.end());
      });
}

void add_select(const std::string& name, const world& (*where)(std::size_t), std::size_t shape,
                const selection_policy& policy, bool with_waits) {
  repeated(benchmark::RegisterBenchmark(
               ("select/" + name + (with_waits ? "/waits" : "")).c_str(),
               [=](benchmark::State& s) { select(s, where(shape), policy, with_waits); })
               ->MinTime(0.1),
           9);
}

void add_build(const std::string& name, const world& (*where)(std::size_t), std::size_t shape,
               const selection_policy& policy) {
  repeated(
      benchmark::RegisterBenchmark(("build/" + name).c_str(),
                                   [=](benchmark::State& s) { build(s, where(shape), policy); })
          ->Unit(benchmark::kMillisecond)
          ->MinTime(0.1),
      5);
}

void register_all() {
  for (const std::size_t top_k : {1, 2})
    for (const std::string strategy : {"paper", "ordermoe"}) {
      const auto policy = policy_of(strategy, top_k);
      const auto name = strategy + "/top" + std::to_string(top_k);
      for (const bool waits : {false, true}) add_select(name, mixtral, top_k, policy, waits);
      add_build(name, mixtral, top_k, policy);
    }
  for (std::size_t index = 0; index < std::size(many_experts); ++index)
    for (const std::string strategy : {"paper", "ordermoe"}) {
      const auto policy = policy_of(strategy, many_experts[index].top_k);
      const auto name = strategy + "/" + many_experts[index].name;
      add_select(name, many, index, policy, true);
      add_build(name, many, index, policy);
    }
  static const world small = make_world(4, 8, 4, 2);
  const auto factor = [](const char* name, const world& w, std::size_t horizon, std::size_t n) {
    repeated(benchmark::RegisterBenchmark(
                 (std::string("recursion/") + name + "/H" + std::to_string(horizon)).c_str(),
                 [&w, horizon, n](benchmark::State& s) { against_recursion(s, w, horizon, n); })
                 ->Iterations(1)
                 ->UseManualTime()
                 ->Unit(benchmark::kMicrosecond),
             5);
  };
  factor("8-servers/8-experts/top1", mixtral(1), 2, 2048);
  factor("8-servers/8-experts/top1", mixtral(1), 3, 512);
  factor("8-servers/8-experts/top1", mixtral(1), 4, 64);
  // Deeper at this shape a single decision takes the recursion minutes and more.
  factor("8-servers/8-experts/top2", mixtral(2), 2, 32);
  factor("4-servers/4-experts/top2", small, 2, 512);
  factor("4-servers/4-experts/top2", small, 3, 32);
  factor("4-servers/4-experts/top2", small, 4, 4);
}

}  // namespace

int main(int argc, char** argv) {
  register_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
