#include <tuple>

#include "planning/selection/selector_tables.hpp"

/// Where sets are keys: what a target set can run in its place, and how long each set takes between two servers.
namespace ordermoe::planning::selection {

/// Ways to run each slot of a target set at mean gates, for a token at `server`.
std::vector<std::vector<option>> tables::mean_options(const layer_facts& facts, std::size_t set,
                                                      std::size_t server) const {
  const auto& targets = facts.sets[set];
  const auto loss = [&](std::size_t slot, std::size_t expert) {
    return facts.mean_loss[(set * top_k_ + slot) * n_experts_ + expert];
  };
  std::vector<std::vector<option>> options(top_k_);
  const auto add = [&](std::size_t slot, std::size_t expert) {
    for (std::size_t kept = 0; kept < precisions_.size(); ++kept) {
      const auto hosts = hosts_from(facts, kept * n_experts_ + expert, server);
      if (hosts == 0) continue;
      options[slot].push_back(
          {loss(slot, expert) +
               copy_units(facts, kept, expert, facts.mean_gates[set * top_k_ + slot]),
           hosts, static_cast<std::uint32_t>(expert), 0});
    }
  };
  const auto is_local = [&](std::size_t expert) { return (facts.hosts[expert] >> server) & 1u; };

  if (policy_.candidates == candidate_rule::router_restricted) {
    std::vector<std::uint8_t> taken(n_experts_, 0);
    for (std::size_t j = 0; j < top_k_; ++j)
      if (is_local(targets[j])) {
        taken[targets[j]] = 1;
        add(j, targets[j]);
      }
    for (std::size_t j = 0; j < top_k_; ++j) {
      if (!options[j].empty()) continue;
      // The best local expert not yet taken, else the best local one.
      std::size_t best = n_experts_;
      for (const bool free : {true, false}) {
        for (std::size_t e = 0; e < n_experts_; ++e)
          if (is_local(e) && !(free && taken[e]) &&
              (best == n_experts_ || loss(j, e) < loss(j, best)))
            best = e;
        if (best < n_experts_) break;
      }
      if (best < n_experts_) {
        taken[best] = 1;
        add(j, best);
      } else {
        add(j, targets[j]);
        options[j].back().leaves = 1;
      }
    }
    return options;
  }
  for (std::size_t j = 0; j < top_k_; ++j) {
    for (std::size_t e = 0; e < n_experts_; ++e) {
      if (loss(j, e) == forbidden) continue;
      if (keeps_substitutes() && !is_local(e)) continue;
      add(j, e);
    }
    if (keeps_substitutes() && !is_local(targets[j])) {
      add(j, targets[j]);
      options[j].back().leaves = is_kept_local() ? 1 : 0;
    }
  }
  return options;
}

/// Visits the ways to run all slots that the whole budget allows.
template <class Visit>
void tables::for_each_combination(const layer_facts& facts, std::size_t set, std::size_t server,
                                  const Visit& visit) const {
  const auto options = mean_options(facts, set, server);
  const bool ignores_budget = token_budget_ == unbounded_budget || is_priced() || ignores_budgets();
  std::array<std::uint32_t, max_slots> experts{}, ways{};
  const auto fill = [&](auto&& self, std::size_t slot, loss_units loss,
                        std::uint32_t leaves) -> void {
    if (slot == top_k_) {
      combination all;
      all.key = key_of(experts.data(), top_k_);
      all.step = steps_.empty() ? all.key : step_index_(ways.data(), top_k_);
      all.leaves = leaves;
      all.quality = per_unit_ * static_cast<double>(loss);
      if (!ignores_budget) all.bin = static_cast<std::uint32_t>((loss + width_ - 1) / width_);
      visit(all);
      return;
    }
    for (const auto& choice : options[slot]) {
      const auto sum = loss + choice.loss;
      // ceil(sum / width) beyond the last bin: not within the budget as the tables count it.
      if (!ignores_budget && sum > static_cast<loss_units>(n_bins_ - 1) * width_) continue;
      if (runs_apart() && std::find(experts.begin(), experts.begin() + slot, choice.expert) !=
                              experts.begin() + slot)
        continue;
      experts[slot] = choice.expert;
      if (!steps_.empty()) {
        const auto host = static_cast<std::size_t>(std::countr_zero(choice.hosts));
        ways[slot] = static_cast<std::uint32_t>(precision_at_[host] * n_experts_ + choice.expert);
      }
      self(self, slot + 1, sum, leaves + choice.leaves);
    }
  };
  fill(fill, 0, 0, 0);
}

/// The same by ascending bin; dominated ones left out.
std::vector<combination> tables::combinations(const layer_facts& facts, std::size_t set,
                                              std::size_t server) const {
  std::vector<combination> found;
  for_each_combination(facts, set, server, [&](const combination& all) { found.push_back(all); });

  const auto order = [](const combination& x) {
    return std::tuple(x.step, x.leaves, x.bin, x.quality);
  };
  std::sort(found.begin(), found.end(),
            [&](const auto& x, const auto& y) { return order(x) < order(y); });
  std::vector<combination> kept;
  for (const auto& x : found) {
    if (!kept.empty() && kept.back().step == x.step && kept.back().leaves == x.leaves &&
        (is_monotone() ? kept.back().quality <= x.quality : kept.back().bin == x.bin))
      continue;
    kept.push_back(x);
  }
  std::stable_sort(kept.begin(), kept.end(),
                   [](const auto& x, const auto& y) { return x.bin < y.bin; });
  return kept;
}

/// Shortest time until all of these different ways have answered at the residence, without queues.
double tables::shortest(const layer_facts& facts, const std::uint32_t* ways, std::size_t count,
                        std::size_t server, std::size_t residence) const {
  const auto only =
      policy_.residence == residence_choice::with_slot ? server_bit(residence) : ~server_mask{0};
  const auto time = [&](std::size_t m, double run) {
    return hidden(server, m) + run * costs_.expert_ns[m] + hidden(m, residence);
  };
  if (count <= 2) {
    // The best host of each expert, the same with both experts there, and the second best.
    std::array<double, 2> first{infinity, infinity}, second{infinity, infinity};
    std::array<std::size_t, 2> host{};
    for (std::size_t i = 0; i < count; ++i)
      for_each_server(hosts_from(facts, ways[i], server) & only, [&](std::size_t m) {
        const double t = time(m, 1);
        if (t < first[i]) {
          second[i] = first[i];
          first[i] = t;
          host[i] = m;
        } else if (t < second[i]) {
          second[i] = t;
        }
      });
    if (count == 1) return first[0];
    if (host[0] != host[1]) return std::max(first[0], first[1]);
    return std::min(time(host[0], 2), std::min(second[0], second[1]));
  }
  std::array<std::uint8_t, 64> run{};
  double best = infinity;
  const auto assign = [&](auto&& self, std::size_t i, double longest) -> void {
    if (longest >= best) return;
    if (i == count) {
      best = longest;
      return;
    }
    for_each_server(hosts_from(facts, ways[i], server) & only, [&](std::size_t m) {
      ++run[m];
      self(self, i + 1, std::max(longest, time(m, run[m])));
      --run[m];
    });
  };
  assign(assign, 0, 0);
  return best;
}

/// omega_T / d_ref * (time + later) of running each set of ways.
void tables::fill_steps(const layer_facts& facts, std::size_t server, std::size_t residence,
                        double later, std::vector<double>& steps) const {
  const double stays = hidden(server, residence);
  const auto& sets = steps_.empty() ? keys_ : steps_;
  steps.resize(sets.size());
  for (std::size_t set = 0; set < sets.size(); ++set) {
    const double time = shortest(facts, sets[set].data(), sets[set].size(), server, residence);
    steps[set] = time == infinity ? infinity : per_ns_ * (std::max(stays, time) + later);
  }
}

/// Lowers values [leaves, bins] by the choices at one residence. onward: W at the residence, [key
/// stride] apart.
void tables::relax(const std::vector<combination>& choices, const std::vector<double>& steps,
                   const double* onward, std::size_t key_stride, double* values) const {
  for (const auto& choice : choices) {
    const double cost = steps[choice.step] + choice.quality;
    const double* row = onward + choice.key * key_stride;
    double* out = values + choice.leaves * n_bins_ + choice.bin;
    const std::size_t count = n_bins_ - choice.bin;
    for (std::size_t b = 0; b < count; ++b) out[b] = std::min(out[b], cost + row[b]);
  }
}

/// The value of each bin: of the fewest slots that leave, the lowest cost.
void tables::settle(const double* levels, double* values) const {
  for (std::size_t b = 0; b < n_bins_; ++b) {
    values[b] = infinity;
    for (std::size_t leaves = 0; leaves <= top_k_ && values[b] == infinity; ++leaves)
      values[b] = levels[leaves * n_bins_ + b];
  }
}

/// What each set of ways loses at least in place of a target set for a token at `server`, as cost [steps]; infinity
/// where it cannot run. What combinations() says where no budget is indexed and no slot has to leave.
void tables::fill_qualities(const layer_facts& facts, std::size_t set, std::size_t server,
                            std::span<double> qualities) const {
  std::fill(qualities.begin(), qualities.end(), infinity);
  for_each_combination(facts, set, server, [&](const combination& found) {
    qualities[found.step] = std::min(qualities[found.step], found.quality);
  });
}

}  // namespace ordermoe::planning::selection
