#pragma once

#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "config/random.hpp"
#include "planning/selection/selector.hpp"

/// Small drawn worlds, policies and tokens that the tests of the selector share.
namespace ordermoe::planning::drawn {

/// A small world that is drawn to be awkward: equal durations, equal losses, target sets that
/// calibration missed, rows with zeros, servers that host nothing of a layer.
struct world {
  profile experts;
  plan placed;
  cost_model costs;
};

struct shape {
  std::size_t n_servers, n_layers, n_experts, top_k;
};

inline std::vector<std::vector<std::uint32_t>> subsets(std::size_t n, std::size_t size) {
  std::vector<std::vector<std::uint32_t>> found;
  for (std::uint32_t mask = 0; mask < (1u << n); ++mask) {
    std::vector<std::uint32_t> members;
    for (std::uint32_t e = 0; e < n; ++e)
      if ((mask >> e) & 1u) members.push_back(e);
    if (members.size() == size) found.push_back(members);
  }
  return found;
}

/// Some of the sets that `subsets` would list, where those are too many to be listed.
inline std::vector<std::vector<std::uint32_t>> some_subsets(random_stream& random, std::size_t n,
                                                            std::size_t size) {
  std::set<std::vector<std::uint32_t>> found;
  for (const auto wanted = 4 + random.below(9); found.size() < wanted;) {
    std::set<std::uint32_t> members;
    while (members.size() < size) members.insert(static_cast<std::uint32_t>(random.below(n)));
    found.emplace(members.begin(), members.end());
  }
  return {found.begin(), found.end()};
}

inline std::vector<double> distribution(random_stream& random, std::size_t n) {
  std::vector<double> p(n);
  double sum = 0;
  for (auto& x : p) sum += x = random.below(4) == 0 ? 0.0 : random.unit();
  if (sum == 0) sum = p[0] = 1;
  for (auto& x : p) x /= sum;
  return p;
}

/// A number of [low, high], from a coarse grid half of the time so that ties occur.
inline double number(random_stream& random, double low, double high) {
  const double x =
      random.below(2) == 0 ? random.unit() : 0.25 * static_cast<double>(random.below(5));
  return low + (high - low) * x;
}

inline layer_profile draw_layer(random_stream& random, const shape& of) {
  const auto n = of.n_experts;
  layer_profile layer;
  layer.activation = distribution(random, n);
  for (auto* m : {&layer.router_logit, &layer.token_gate_regret}) *m = matrix(n, n);
  for (std::size_t i = 0; i < n; ++i)
    for (std::size_t j = 0; j < n; ++j) {
      if (i == j) {
        layer.router_logit(i, i) = 1;
        continue;
      }
      // Drawn and left, as two of four damages below: a seed stands for the world that it always stood for.
      if (j < i) {
        layer.router_logit(i, j) = layer.router_logit(j, i) = number(random, -0.5, 1);
        number(random, -1, 1);
      }
      number(random, 0, 1.5);
      layer.token_gate_regret(i, j) = number(random, -0.1, 0.6);
    }
  layer.mean_gate.assign(n, 1.0 / static_cast<double>(of.top_k));
  constexpr std::size_t most_listed = 20;
  auto sets = n <= most_listed ? subsets(n, of.top_k) : some_subsets(random, n, of.top_k);
  while (sets.size() > 1 && (sets.size() > (n <= most_listed ? 8 : 16) || random.below(3) == 0))
    sets.erase(sets.begin() + static_cast<std::ptrdiff_t>(random.below(sets.size())));
  auto frequency = distribution(random, sets.size());
  std::sort(frequency.rbegin(), frequency.rend());
  for (std::size_t s = 0; s < sets.size(); ++s) {
    target_set set;
    set.experts = sets[s];
    for (std::size_t j = 0; j < of.top_k; ++j) set.mean_gate.push_back(number(random, 0.1, 0.9));
    set.probability = frequency[s];
    layer.sets.push_back(set);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    const double damage = random.below(4) == 0 ? 0.0 : random.uniform(0.01, 2);
    if (i == 0 || i == 3) layer.damage.push_back(damage);
  }
  layer.damage_error.assign(n_loss_metrics, 0);
  return layer;
}

inline world draw_world(random_stream& random, const shape& of) {
  world w;
  const auto n = of.n_servers;
  w.experts.model_name = "drawn";
  w.experts.n_layers = of.n_layers;
  w.experts.n_experts = of.n_experts;
  w.experts.top_k = of.top_k;
  for (std::size_t l = 0; l < of.n_layers; ++l) w.experts.layers.push_back(draw_layer(random, of));
  for (std::size_t l = 0; l + 1 < of.n_layers; ++l) {
    auto& here = w.experts.layers[l];
    const auto n_next = w.experts.layers[l + 1].sets.size();
    here.set_transition = matrix(here.sets.size(), n_next);
    for (std::size_t set = 0; set < here.sets.size(); ++set) {
      const auto row = distribution(random, n_next);
      for (std::size_t to = 0; to < n_next; ++to) here.set_transition(set, to) = row[to];
    }
    here.transition = matrix(of.n_experts, of.n_experts, 1.0 / static_cast<double>(of.n_experts));
  }

  auto& costs = w.costs;
  costs.n_servers = n;
  const bool coarse = random.below(2) == 0;
  const auto duration = [&](double most) {
    return coarse ? 1000.0 * static_cast<double>(1 + random.below(4))
                  : std::floor(random.uniform(100, most));
  };
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to) {
      costs.hidden_ns.push_back(from == to ? 0 : duration(9000));
      costs.kv_ns.push_back(from == to ? 0 : duration(900));
      costs.message_ns.push_back(from == to ? 0 : duration(5000));
    }
  for (std::size_t m = 0; m < n; ++m) {
    costs.expert_ns.push_back(duration(3000));
    costs.attention_ns.push_back(duration(1500));
    costs.head_ns.push_back(duration(2000));
  }

  auto& placed = w.placed;
  placed.strategy = "drawn";
  placed.n_servers = n;
  placed.n_layers = of.n_layers;
  placed.n_experts = of.n_experts;
  for (std::size_t l = 0; l < of.n_layers; ++l)
    for (std::size_t e = 0; e < of.n_experts; ++e) {
      const auto home = random.below(n);
      for (std::size_t m = 0; m < n; ++m)
        if (m == home || random.below(3) == 0)
          placed.experts.push_back({server_id{m}, layer_id{l}, expert_id{e}});
    }
  for (std::size_t l = 0; l < of.n_layers; ++l) {
    layer_grouping grouping;
    grouping.threshold = random.uniform(-0.2, 0.6);
    const auto n_groups = 1 + random.below(of.n_experts);
    std::vector<std::vector<std::uint32_t>> members(n_groups);
    std::vector<std::uint32_t> group(of.n_experts);
    for (std::uint32_t e = 0; e < of.n_experts; ++e) members[random.below(n_groups)].push_back(e);
    for (const auto& m : members) {
      if (m.empty()) continue;
      for (const auto e : m) group[e] = static_cast<std::uint32_t>(grouping.groups.size());
      grouping.groups.push_back({m.front(), m});
    }
    grouping.group_of = group;
    placed.grouping.push_back(grouping);
  }
  const auto everywhere = (server_mask{1} << n) - 1;
  const auto kind = random.below(3);
  for (std::size_t access = 0; access < n; ++access) {
    residency members;
    for (std::size_t l = 0; l < of.n_layers; ++l)
      members.layers.push_back(kind == 0   ? everywhere
                               : kind == 1 ? server_mask{1} << access
                                           : 1 + random.below(everywhere));
    placed.residence.push_back(members);
  }
  return w;
}

/// Lets servers but the first keep their experts coarser; the first hosts what would be nowhere as
/// the model has it.
inline void draw_copies(random_stream& random, world& w) {
  auto& kept_at = w.costs.expert_precision;
  kept_at.assign(w.costs.n_servers, precision::stored);
  for (std::size_t m = 1; m < kept_at.size(); ++m)
    kept_at[m] = std::array{precision::stored, precision::int8, precision::int4}[random.below(3)];
  for (auto& layer : w.experts.layers)
    for (const auto kept : {precision::int8, precision::int4}) {
      copy_profile copy{kept, {}, random.below(4) == 0 ? 0.0 : random.uniform(0.1, 2), 0};
      for (std::size_t e = 0; e < w.experts.n_experts; ++e)
        copy.distance.push_back(number(random, 0.05, 0.6));
      layer.copies.push_back(std::move(copy));
    }
  const placement_index index(w.placed);
  for (std::size_t l = 0; l < w.experts.n_layers; ++l)
    for (std::size_t e = 0; e < w.experts.n_experts; ++e) {
      bool stored = false;
      for (std::size_t m = 0; m < kept_at.size(); ++m)
        stored = stored || (kept_at[m] == precision::stored && index.hosts(m, l, e));
      if (!stored) w.placed.experts.push_back({server_id{0u}, layer_id{l}, expert_id{e}});
    }
}

inline selection_policy draw_policy(random_stream& random, const shape& of) {
  selection_policy policy;
  policy.candidates = static_cast<candidate_rule>(random.below(5));
  policy.metric = random.below(4) < 2 ? loss_metric::router_logit : loss_metric::token_gate;
  policy.calibrated = random.below(2) == 0;
  policy.residence =
      of.top_k == 1 && random.below(2) == 0 ? residence_choice::with_slot : residence_choice::free;
  random.below(2);  // Drawn and left, so that the instances stay what they were.
  policy.distinct = random.below(2) == 0;
  policy.horizon = random.below(5);
  policy.omega_quality = random.below(3) == 0 ? 0 : random.unit();
  policy.omega_time = random.below(8) == 0 ? 0 : 1 - policy.omega_quality;
  policy.price_attention = random.below(2) == 0;
  policy.budget_bins = 1 + random.below(5);
  return policy;
}

inline loss_units draw_budget(random_stream& random) {
  switch (random.below(6)) {
    case 0:
      return 0;
    case 1:
      return unbounded_budget;
    case 2:
      return static_cast<loss_units>(1 + random.below(10));
    default:
      return static_cast<loss_units>(random.uniform(1e7, 2e9));
  }
}

/// The slots of one token: targets, gates, router probabilities, and the losses that the tables
/// predict.
struct token {
  std::vector<std::uint32_t> targets;
  std::vector<float> gates, probabilities;
  std::vector<std::vector<loss_units>> losses;
  std::vector<slot_query> slots;

  token(random_stream& random, const selection_tables& tables, std::size_t layer, const shape& of) {
    std::vector<std::uint32_t> order(of.n_experts);
    std::iota(order.begin(), order.end(), 0u);
    for (std::size_t i = of.n_experts; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
    double sum = 0;
    std::vector<double> weights;
    for (std::size_t e = 0; e < of.n_experts; ++e)
      sum += weights.emplace_back(0.05 + random.unit());
    std::sort(weights.rbegin(), weights.rend());
    probabilities.resize(of.n_experts);
    for (std::size_t e = 0; e < of.n_experts; ++e)
      probabilities[order[e]] = static_cast<float>(weights[e] / sum);
    targets.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(of.top_k));
    double gate_sum = 0;
    for (const auto t : targets) gate_sum += probabilities[t];
    for (const auto t : targets) gates.push_back(static_cast<float>(probabilities[t] / gate_sum));
    for (std::size_t j = 0; j < of.top_k; ++j) {
      losses.emplace_back(of.n_experts);
      tables.slot_losses(layer, targets[j], gates[j], probabilities, losses.back());
    }
    for (std::size_t j = 0; j < of.top_k; ++j) slots.push_back({targets[j], gates[j], losses[j]});
  }
};

inline std::string shown(const decision& made) {
  std::string text = "n=" + std::to_string(made.residence);
  for (std::size_t j = 0; j < made.n_slots; ++j)
    text += " (" + std::to_string(made.slots[j].server) + "," +
            std::to_string(made.slots[j].expert) + "," + std::to_string(made.slots[j].loss) + ")";
  return text + " time=" + std::to_string(made.time_ns) + " cost=" + std::to_string(made.cost);
}

inline bool close(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max({1e-300, std::abs(a), std::abs(b)});
}

inline bool same_choice(const decision& a, const decision& b) {
  return a.residence == b.residence && a.n_slots == b.n_slots &&
         std::equal(a.slots.begin(), a.slots.begin() + a.n_slots, b.slots.begin());
}

inline shape draw_shape(random_stream& random) {
  const auto top_k = 1 + random.below(3);
  shape of{2 + random.below(2), 1 + random.below(4),
           std::max<std::size_t>(top_k, 2 + random.below(3)), top_k};
  return of;
}

inline shape draw_shape_for(std::size_t instance, random_stream& random) {
  auto of = draw_shape(random);
  // Three slots expand a thousand times more choices than one: a few instances of two servers and
  // three experts.
  if (of.top_k == 3) {
    of.n_servers = 2;
    of.n_experts = 3 + (instance % 7 == 0 ? 1 : 0);
    of.n_layers = 1 + random.below(3);
  }
  return of;
}

/// A query about one token, with everything that it refers to.
struct asked {
  token of;
  decision_query query;

  asked(random_stream& random, const world& w, const selection_tables& tables, const shape& s,
        loss_units budget_left)
      : asked(random, w, tables, s, budget_left, random.below(s.n_layers),
              random.below(s.n_servers)) {}
  asked(random_stream& random, const world& w, const selection_tables& tables, const shape& s,
        loss_units budget_left, std::size_t layer, std::size_t access)
      : of(random, tables, layer, s) {
    query.layer = layer;
    query.access = access;
    query.server = random.below(s.n_servers);
    while (((w.placed.residence[access].layers[layer] >> query.server) & 1u) == 0)
      query.server = (query.server + 1) % s.n_servers;
    query.slots = of.slots;
    query.probabilities = of.probabilities;
    query.budget_left = budget_left;
    query.price_scale = std::array{1.0, 0.25, 3.0}[random.below(3)];
  }
  asked(const asked&) = delete;
};

/// Links as a snapshot may have them: frames wait at some.
inline std::vector<double> busy_links(random_stream& random, std::span<const double> free_ns) {
  std::vector<double> links(free_ns.begin(), free_ns.end());
  for (auto& ns : links)
    if (ns > 0) ns += 1000 * static_cast<double>(random.below(4));
  return links;
}

inline loss_units spent(const decision& made) {
  loss_units sum = 0;
  for (std::size_t j = 0; j < made.n_slots; ++j) sum += made.slots[j].loss;
  return sum;
}

inline std::shared_ptr<const selection_tables> built(
    const world& w, const selection_policy& policy, loss_units budget,
    look_ahead_keys keys = look_ahead_keys::automatic) {
  auto made = selection_tables::build(w.experts, w.placed, w.costs, policy, budget, keys);
  BOOST_TEST_REQUIRE(made.has_value(), (made ? "" : made.error().message));
  return *made;
}

/// Three servers in a row, 10 us a hop, an expert takes 1 us; one layer of two experts, 0 at server
/// 0 and 1 at server 2.
inline world row_world(std::size_t n_layers, std::size_t top_k) {
  world w;
  w.experts.n_layers = n_layers;
  w.experts.n_experts = 2;
  w.experts.top_k = top_k;
  for (std::size_t l = 0; l < n_layers; ++l) {
    layer_profile layer;
    layer.activation = {0.5, 0.5};
    layer.router_logit = matrix(2, 2, 1);
    layer.router_logit(0, 1) = layer.router_logit(1, 0) = 0.5;
    layer.token_gate_regret = matrix(2, 2, 0);
    layer.mean_gate = {0.5, 0.5};
    if (top_k == 1)
      layer.sets = {{{0}, {1.0}, 0.5}, {{1}, {1.0}, 0.5}};
    else
      layer.sets = {{{0, 1}, {0.5, 0.5}, 1.0}};
    if (l + 1 < n_layers)
      layer.set_transition = matrix(layer.sets.size(), layer.sets.size(),
                                    1.0 / static_cast<double>(layer.sets.size()));
    layer.damage.assign(n_loss_metrics, 1);
    layer.damage_error.assign(n_loss_metrics, 0);
    w.experts.layers.push_back(layer);
  }
  auto& costs = w.costs;
  costs.n_servers = 3;
  costs.hidden_ns = {0, 10'000, 20'000, 10'000, 0, 10'000, 20'000, 10'000, 0};
  costs.message_ns = costs.kv_ns = costs.hidden_ns;
  costs.expert_ns = {1000, 1000, 1000};
  costs.attention_ns = costs.head_ns = {0, 0, 0};
  w.placed.strategy = "row";
  w.placed.n_servers = 3;
  w.placed.n_layers = n_layers;
  w.placed.n_experts = 2;
  for (std::size_t l = 0; l < n_layers; ++l) {
    w.placed.experts.push_back({server_id{0}, layer_id{l}, expert_id{0}});
    w.placed.experts.push_back({server_id{2}, layer_id{l}, expert_id{1}});
  }
  w.placed.residence.assign(3, residency{std::vector<server_mask>(n_layers, 7)});
  return w;
}

inline selection_policy plain_policy(candidate_rule rule, std::size_t horizon) {
  selection_policy policy;
  policy.candidates = rule;
  policy.horizon = horizon;
  return policy;
}

}  // namespace ordermoe::planning::drawn
