#include "planning/selection/selector_tables.hpp"

namespace ordermoe::planning::selection {

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
        else if (of_.is_unindexed())
          weigh_unindexed(l);
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
    for (std::size_t chain = 0; chain < n_chains_; ++chain) {
      gather_values(values_[chain], table.next, n_sets);
      auto& w = full_ ? onward_[0] : onward_[chain + 1];
      w.assign(of_.keys_.size() * row_size, 0);
      const double* p = of_.layers_[l].transition.data();
      for (double* row = w.data(); row != w.data() + w.size(); row += row_size, p += n_sets)
        for (std::size_t to = 0; to < n_sets; ++to) {
          if (p[to] == 0) continue;
          const double* value = gathered_.data() + to * row_size;
          for (std::size_t i = 0; i < row_size; ++i) row[i] += p[to] * value[i];
        }
    }
    table.key_stride = row_size;
    table.w = full_ ? onward_[0] : onward_[n_chains_];
  }

  /// V of the residences at hand, set after set: from [server, set, bins] to [set, next, bins].
  void gather_values(const std::vector<double>& values, const std::vector<std::uint32_t>& next,
                     std::size_t n_sets) {
    const auto n_bins = of_.n_bins_;
    gathered_.resize(n_sets * next.size() * n_bins);
    auto out = gathered_.begin();
    for (std::size_t to = 0; to < n_sets; ++to)
      for (const auto n : next)
        out = std::copy_n(values.begin() + static_cast<std::ptrdiff_t>((n * n_sets + to) * n_bins),
                          n_bins, out);
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

  /// Without a budget index V is one number for each server and set,
  ///
  ///   V = min over n and k of  step(n, k) + quality(k) + W(n, k)
  ///
  /// and a set of ways k is left out where  min over n of [ step(n, k) + W(n, k) ]  +  quality(k)  is above the least
  /// so far, which is told once for all target sets.
  void weigh_unindexed(std::size_t l) {
    const auto& table = content_.layers[l];
    const auto& facts = of_.layers_[l];
    const auto n_sets = facts.sets.size(), n_steps = of_.n_steps();
    const auto fill_qualities = [&](std::size_t s) {
      qualities_.resize(n_sets * n_steps);
      for (std::size_t set = 0; set < n_sets; ++set)
        of_.fill_qualities(facts, set, s, std::span(qualities_).subspan(set * n_steps, n_steps));
    };
    if (!of_.is_local_rule()) fill_qualities(0);
    for_each_server(members_[l], [&](std::size_t s) {
      if (of_.is_local_rule()) fill_qualities(s);
      fill_steps_of(s, facts, table);
      for (std::size_t chain = 0; chain < n_chains_; ++chain) {
        bound_steps(onward(chain, table.next.size()), stride(chain, table), table.next.size());
        for (std::size_t set = 0; set < n_sets; ++set)
          values_[chain][s * n_sets + set] =
              least_of(facts.sets[set], qualities_.data() + set * n_steps, table.next.size());
      }
    });
  }

  /// step_rows_ [steps, next].
  void fill_steps_of(std::size_t s, const layer_facts& facts, const layer_table& table) {
    const auto n_next = table.next.size();
    step_rows_.resize(of_.n_steps() * n_next);
    for (std::size_t i = 0; i < n_next; ++i) {
      of_.fill_steps(facts, s, table.next[i], table.later[i], steps_);
      for (std::size_t k = 0; k < steps_.size(); ++k) step_rows_[k * n_next + i] = steps_[k];
    }
  }

  /// What follows each step, and the least of both over the residences.
  void bound_steps(const double* w, std::size_t key_stride, std::size_t n_next) {
    const auto n_steps = of_.n_steps();
    followed_by_.resize(n_steps);
    bounds_.resize(n_steps);
    for (std::size_t k = 0; k < n_steps; ++k) {
      followed_by_[k] = w + of_.key_of_step(k) * key_stride;
      bounds_[k] = infinity;
      for (std::size_t i = 0; i < n_next; ++i)
        bounds_[k] = std::min(bounds_[k], step_rows_[k * n_next + i] + followed_by_[k][i]);
    }
  }

  /// The targets as the model has them go first.
  double least_of(const std::vector<std::uint32_t>& targets, const double* qualities,
                  std::size_t n_next) const {
    double least = infinity, limit = infinity;
    const auto weigh = [&](std::size_t k) {
      for (std::size_t i = 0; i < n_next; ++i)
        least = std::min(least, (step_rows_[k * n_next + i] + qualities[k]) + followed_by_[k][i]);
      limit = with_slack(least);
    };
    weigh(of_.step_of_targets(targets));
    for (std::size_t k = 0; k < bounds_.size(); ++k)
      if (bounds_[k] + qualities[k] <= limit) weigh(k);
    return least;
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
  std::vector<double> gathered_;             ///< V of the next layer, [set, next, bins]
  std::vector<double> steps_, levels_, nothing_;
  // Without a budget index: [steps, next], [sets, steps], [steps], [steps].
  std::vector<double> step_rows_, qualities_, bounds_;
  std::vector<const double*> followed_by_;
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
  for (auto& table : content.layers) lay_out(table);
}

/// From W [key, next, bins], as it was filled, to what decisions read.
void tables::lay_out(layer_table& table) const {
  const auto n_next = table.next.size(), row_size = n_next * n_bins_;
  std::vector<double> row(row_size);
  table.low.assign(row_size, infinity);
  for (std::size_t at = 0; at < table.w.size(); at += row_size) {
    double* const w = table.w.data() + at;
    std::copy_n(w, row_size, row.begin());
    for (std::size_t i = 0; i < n_next; ++i)
      for (std::size_t b = 0; b < n_bins_; ++b) w[b * n_next + i] = row[i * n_bins_ + b];
    for (std::size_t i = 0; i < row_size; ++i) table.low[i] = std::min(table.low[i], w[i]);
  }
  table.over.assign(keys_.size(), 0);
  for (std::size_t key = 0; table.key_stride != 0 && key < keys_.size(); ++key) {
    const double* const w = table.w.data() + key * table.key_stride;
    auto& over = table.over[key] = infinity;
    for (std::size_t i = 0; i < row_size; ++i)
      over = std::min(over, w[i] == table.low[i] ? 0 : w[i] - table.low[i]);
  }
}

/// W [key, next, bins] again.
std::vector<double> tables::rows_by_residence(const layer_table& table) const {
  const auto n_next = table.next.size(), row_size = n_next * n_bins_;
  std::vector<double> rows(table.w.size());
  for (std::size_t at = 0; at < rows.size(); at += row_size)
    for (std::size_t i = 0; i < n_next; ++i)
      for (std::size_t b = 0; b < n_bins_; ++b)
        rows[at + i * n_bins_ + b] = table.w[at + b * n_next + i];
  return rows;
}

double tables::value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
                     std::size_t bin) const {
  const auto& table = residencies_[residency_of_[access]].layers[layer];
  const auto& facts = layers_[layer];
  const auto onward = rows_by_residence(table);
  if (has_expert_keys()) {
    const auto from = server_bit(server);
    std::vector<double> values(n_servers_ * facts.sets.size() * n_bins_);
    values_of(fronts(facts, table, from), facts, table, from, onward.data(), table.key_stride,
              values.data());
    return values[(server * facts.sets.size() + set) * n_bins_ + bin];
  }
  const auto choices = combinations(facts, set, server);
  std::vector<double> steps, levels((top_k_ + 1) * n_bins_, infinity), values(n_bins_);
  for (std::size_t i = 0; i < table.next.size(); ++i) {
    fill_steps(facts, server, table.next[i], table.later[i], steps);
    relax(choices, steps, onward.data() + i * n_bins_, table.key_stride, levels.data());
  }
  settle(levels.data(), values.data());
  return values[bin];
}

}  // namespace ordermoe::planning::selection
