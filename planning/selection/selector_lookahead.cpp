#include <tuple>

#include "planning/selection/selector_tables.hpp"

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

/// Ways to run all slots that the whole budget allows, by ascending bin; dominated ones left out.
std::vector<combination> tables::combinations(const layer_facts& facts, std::size_t set,
                                              std::size_t server) const {
  const auto options = mean_options(facts, set, server);
  const bool ignores_budget = token_budget_ == unbounded_budget || is_priced() || ignores_budgets();
  std::vector<combination> found;
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
      found.push_back(all);
      return;
    }
    for (const auto& choice : options[slot]) {
      const auto sum = loss + choice.loss;
      // ceil(sum / width) beyond the last bin: not within the budget as the tables count it.
      if (!ignores_budget && sum > static_cast<loss_units>(n_bins_ - 1) * width_) continue;
      if (policy_.distinct && policy_.candidates != candidate_rule::router_restricted &&
          std::find(experts.begin(), experts.begin() + slot, choice.expert) !=
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

/// Fills the W of one residency, layer by layer from the last.
class tables::look_ahead {
 public:
  look_ahead(const tables& of, residency_tables& content)
      : of_(of),
        content_(content),
        members_(content.members.layers),
        full_(of.policy_.horizon == 0),
        n_chains_(full_ ? 1 : of.policy_.horizon - 1),
        start_(of.n_servers_, 0),
        fronts_(of.has_expert_keys() ? of.n_layers_ : 0),
        values_(n_chains_),
        onward_(n_chains_ + 1) {}

  void fill() {
    const std::size_t n_rounds = full_ && std::popcount(members_[0]) > 1 ? terminal_rounds : 1;
    for (std::size_t round = 0; round < n_rounds; ++round) {
      if (full_) end_position();
      for (std::size_t l = of_.n_layers_; l-- > 0;) {
        carry_over(l);
        // What a position is worth from its start on is asked for only by another round.
        if (l == 0 && round + 1 == n_rounds) break;
        const auto n_sets = of_.layers_[l].sets.size();
        for (auto& v : values_) v.assign(of_.n_servers_ * n_sets * of_.n_bins_, 0);
        if (of_.has_expert_keys())
          weigh_by_experts(l);
        else
          weigh_by_sets(l);
      }
      if (round + 1 < n_rounds) compare_starts();
    }
  }

 private:
  /// What it costs after the last layer: the output projection, and the way to the member of R_0
  /// where the next position starts best.
  void end_position() {
    auto& end = content_.layers.back();
    for (std::size_t i = 0; i < end.next.size(); ++i) {
      const auto n = end.next[i];
      double best = infinity;
      for_each_server(members_[0], [&](std::size_t r) {
        const double attention = of_.policy_.price_attention ? of_.costs_.attention_ns[r] : 0;
        best = std::min(best, of_.per_ns_ * (of_.costs_.message(n, r) + attention) + start_[r]);
      });
      const double terminal = of_.per_ns_ * of_.costs_.head_ns[n] + best;
      std::fill_n(end.w.begin() + static_cast<std::ptrdiff_t>(i * of_.n_bins_), of_.n_bins_,
                  terminal);
    }
  }

  /// W after a layer from V of the next one.
  void carry_over(std::size_t l) {
    auto& table = content_.layers[l];
    if (l + 1 == of_.n_layers_) {
      for (auto& w : onward_) w = table.w;
      return;
    }
    const auto row_size = table.next.size() * of_.n_bins_;
    const auto n_sets = of_.layers_[l + 1].sets.size();
    const auto n_keys = of_.keys_.size();
    for (std::size_t chain = 0; chain < n_chains_; ++chain) {
      auto& w = full_ ? onward_[0] : onward_[chain + 1];
      w.assign(n_keys * row_size, 0);
      for (std::size_t key = 0; key < n_keys; ++key)
        for (std::size_t to = 0; to < n_sets; ++to) {
          const double p = of_.layers_[l].transition[key * n_sets + to];
          if (p == 0) continue;
          for (std::size_t i = 0; i < table.next.size(); ++i) {
            const double* v = values_[chain].data() + (table.next[i] * n_sets + to) * of_.n_bins_;
            double* out = w.data() + key * row_size + i * of_.n_bins_;
            for (std::size_t b = 0; b < of_.n_bins_; ++b) out[b] += p * v[b];
          }
        }
    }
    table.key_stride = row_size;
    table.w = full_ ? onward_[0] : onward_[n_chains_];
  }

  /// Chain c holds V with c + 1 steps to go, made from W with c: with none that is 0.
  bool is_last_step(std::size_t chain) const { return !full_ && chain == 0; }
  const double* onward(std::size_t chain, std::size_t row_size) {
    if (!is_last_step(chain)) return onward_[chain].data();
    nothing_.assign(row_size, 0);
    return nothing_.data();
  }
  std::size_t stride(std::size_t chain, const layer_table& table) const {
    return is_last_step(chain) ? 0 : table.key_stride;
  }

  void weigh_by_experts(std::size_t l) {
    const auto& table = content_.layers[l];
    const auto& facts = of_.layers_[l];
    auto& choices = fronts_[l];
    if (choices.first.empty()) choices = of_.fronts(facts, table, members_[l]);
    for (std::size_t chain = 0; chain < n_chains_; ++chain)
      of_.values_of(choices, facts, table, members_[l],
                    onward(chain, table.next.size() * of_.n_bins_), stride(chain, table),
                    values_[chain].data());
  }

  void weigh_by_sets(std::size_t l) {
    const auto& table = content_.layers[l];
    const auto& facts = of_.layers_[l];
    const auto n_sets = facts.sets.size(), n_next = table.next.size();
    const auto n_levels = (of_.top_k_ + 1) * of_.n_bins_;
    std::vector<std::vector<combination>> choices(n_sets);
    const auto combine = [&](std::size_t s) {
      for (std::size_t set = 0; set < n_sets; ++set) choices[set] = of_.combinations(facts, set, s);
    };
    if (!of_.is_local_rule()) combine(0);
    for_each_server(members_[l], [&](std::size_t s) {
      if (of_.is_local_rule()) combine(s);
      levels_.assign(n_chains_ * n_sets * n_levels, infinity);
      for (std::size_t i = 0; i < n_next; ++i) {
        of_.fill_steps(facts, s, table.next[i], table.later[i], steps_);
        for (std::size_t chain = 0; chain < n_chains_; ++chain) {
          const double* w = onward(chain, n_next * of_.n_bins_) + i * of_.n_bins_;
          for (std::size_t set = 0; set < n_sets; ++set)
            of_.relax(choices[set], steps_, w, stride(chain, table),
                      levels_.data() + (chain * n_sets + set) * n_levels);
        }
      }
      for (std::size_t chain = 0; chain < n_chains_; ++chain)
        for (std::size_t set = 0; set < n_sets; ++set)
          of_.settle(levels_.data() + (chain * n_sets + set) * n_levels,
                     values_[chain].data() + (s * n_sets + set) * of_.n_bins_);
    });
  }

  /// How much more it costs to start at each member of R_0 than at the best.
  void compare_starts() {
    const auto n_sets = of_.layers_[0].sets.size();
    double lowest = infinity;
    for_each_server(members_[0], [&](std::size_t r) {
      start_[r] = 0;
      for (std::size_t set = 0; set < n_sets; ++set)
        start_[r] += of_.start_probability_[set] *
                     values_[0][(r * n_sets + set) * of_.n_bins_ + of_.n_bins_ - 1];
      lowest = std::min(lowest, start_[r]);
    });
    for_each_server(members_[0], [&](std::size_t r) { start_[r] -= lowest; });
  }

  const tables& of_;
  residency_tables& content_;
  const std::vector<server_mask>& members_;
  bool full_;  ///< On to the end of the position.
  /// One chain of W tables for each number of steps to go that a decision's own table is made from.
  std::size_t n_chains_;
  std::vector<double> start_;        ///< [server] of R_0
  std::vector<step_fronts> fronts_;  ///< [n_layers], where keys are experts
  std::vector<std::vector<double>>
      values_;  ///< [chain] V of the layer at hand, [server, set, bins]
  std::vector<std::vector<double>> onward_;  ///< [chain + 1] W after it, [key, next, bins]
  std::vector<double> steps_, levels_, nothing_;
};

void tables::build_residency(residency_tables& content) const {
  const auto& members = content.members.layers;
  const bool with_slot = policy_.residence == residence_choice::with_slot;
  content.layers.resize(n_layers_);
  for (std::size_t l = 0; l < n_layers_; ++l) {
    auto& table = content.layers[l];
    const bool last = l + 1 == n_layers_;
    table.next_mask = !last       ? members[l + 1]
                      : with_slot ? all_servers(n_servers_)
                                  : members[l] | members[0];
    for_each_server(table.next_mask, [&](std::size_t n) {
      table.next.push_back(static_cast<std::uint32_t>(n));
      table.later.push_back(policy_.price_attention && !last ? costs_.attention_ns[n] : 0);
    });
    table.w.assign(table.next.size() * n_bins_, 0);
  }
  if (policy_.horizon != 1) look_ahead(*this, content).fill();
  for (auto& table : content.layers) {
    const auto row_size = table.next.size() * n_bins_;
    table.low.assign(row_size, infinity);
    for (std::size_t row = 0; row < table.w.size(); row += row_size)
      for (std::size_t i = 0; i < row_size; ++i)
        table.low[i] = std::min(table.low[i], table.w[row + i]);
  }
}

double tables::value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
                     std::size_t bin) const {
  const auto& table = residencies_[residency_of_[access]].layers[layer];
  const auto& facts = layers_[layer];
  if (has_expert_keys()) {
    const auto from = server_bit(server);
    std::vector<double> values(n_servers_ * facts.sets.size() * n_bins_);
    values_of(fronts(facts, table, from), facts, table, from, table.w.data(), table.key_stride,
              values.data());
    return values[(server * facts.sets.size() + set) * n_bins_ + bin];
  }
  const auto choices = combinations(facts, set, server);
  std::vector<double> steps, levels((top_k_ + 1) * n_bins_, infinity), values(n_bins_);
  for (std::size_t i = 0; i < table.next.size(); ++i) {
    fill_steps(facts, server, table.next[i], table.later[i], steps);
    relax(choices, steps, table.w.data() + i * n_bins_, table.key_stride, levels.data());
  }
  settle(levels.data(), values.data());
  return values[bin];
}

}  // namespace ordermoe::planning::selection
