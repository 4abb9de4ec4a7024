#include "planning/trajectory.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "planning/slot_sweep.hpp"
#include "planning/target_sets.hpp"

namespace ordermoe::planning {

namespace {

/// Stands for a loss that may not be taken; finite, so that sums and differences stay numbers.
constexpr double never = 1e30;
/// Between choices of equal time the smaller loss wins, even where nats are free.
constexpr double least_price = 1.0;
/// Losses of more than two slots are counted in whole thousandths of a nanosecond.
constexpr double units_per_ns = 1000;

template <class Function>
void for_each_server(server_mask servers, Function&& visit) {
  for (; servers != 0; servers &= servers - 1)
    visit(static_cast<std::size_t>(std::countr_zero(servers)));
}

/// The target sets kept of a layer, what they count for together, and which set counts for which.
struct kept_sets {
  representatives which;
  std::vector<double> probability;  ///< [kept]

  kept_sets(const layer_profile& layer, std::size_t max_sets) {
    std::vector<std::vector<std::uint32_t>> sets;
    std::vector<double> weights;
    for (const auto& set : layer.sets) {
      sets.push_back(set.experts);
      weights.push_back(set.probability);
    }
    which = choose_representatives(sets, weights, max_sets);
    probability.assign(which.kept.size(), 0);
    for (std::size_t s = 0; s < sets.size(); ++s) probability[which.counts[s]] += weights[s];
  }
  bool is_all() const { return which.kept.size() == which.counts.size(); }
};

}  // namespace

trajectory_model::trajectory_model(const profile& experts, const cost_model& prices,
                                   slot_sharing shares, std::size_t max_sets)
    : n_layers(experts.n_layers),
      n_experts(experts.n_experts),
      n_servers(prices.n_servers),
      n_slots(experts.top_k),
      n_candidates(shares == slot_sharing::allowed ? n_experts : n_experts - n_slots + 1),
      sharing(shares),
      costs(prices) {
  ORDERMOE_CHECK(n_slots >= 1 && n_slots <= max_trajectory_slots, "a token has 1 to 8 slots");
  ORDERMOE_CHECK(n_servers >= 1 && n_servers <= 64, "a plan has 1 to 64 servers");
  ORDERMOE_CHECK(n_servers * n_experts <= 65536,
                 "servers times experts of a layer are at most 65536");
  constexpr auto metric = static_cast<std::size_t>(loss_metric::token_gate);
  if (max_sets == 0) max_sets = n_slots <= 2 || n_experts <= 16 ? 64 : 24;
  std::vector<kept_sets> kept;
  for (const auto& source : experts.layers) kept.emplace_back(source, max_sets);
  for (std::size_t l = 0; l < n_layers; ++l) {
    const auto& source = experts.layers[l];
    layer target;
    target.n_sets = kept[l].which.kept.size();
    ORDERMOE_CHECK(target.n_sets > 0, "a profile lists at least one target set for each layer");
    double total = 0;
    for (const double p : kept[l].probability) total += p;
    for (std::size_t q = 0; q < target.n_sets; ++q) {
      const auto& set = source.sets[kept[l].which.kept[q]];
      target.probability.push_back(total > 0 ? kept[l].probability[q] / total
                                             : 1.0 / static_cast<double>(target.n_sets));
      for (std::size_t j = 0; j < n_slots; ++j) {
        const auto r = set.experts[j];
        target.targets.push_back(r);
        // An expert that runs for another slot anyway adds nothing: taking it is priced as losing
        // the slot, by the largest regret of the target.
        double dropped = 0;
        for (std::size_t k = 0; k < n_experts; ++k)
          dropped = std::max(dropped, source.token_gate_regret(r, k));
        for (std::size_t k = 0; k < n_experts; ++k) {
          const bool wanted =
              std::find(set.experts.begin(), set.experts.end(), k) != set.experts.end();
          const double regret = k == r   ? 0
                                : wanted ? dropped
                                         : std::max(0.0, source.token_gate_regret(r, k));
          target.nats.push_back(source.damage[metric] * regret);
        }
        const double* nats = target.nats.data() + (q * n_slots + j) * n_experts;
        std::vector<std::uint32_t> order;
        for (std::uint32_t k = 0; k < n_experts; ++k) {
          const bool taken =
              k != r && std::find(set.experts.begin(), set.experts.end(), k) != set.experts.end();
          if (sharing == slot_sharing::allowed || !taken) order.push_back(k);
        }
        std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
          return std::pair{a != r, nats[a]} < std::pair{b != r, nats[b]};
        });
        target.candidates.insert(target.candidates.end(), order.begin(), order.end());
      }
    }
    if (l + 1 < n_layers) {
      const auto& after = kept[l + 1];
      const auto n_after = after.which.kept.size();
      // Rows of the kept sets, over the kept sets of the next layer: of what counts for them.
      std::vector<double> rows(target.n_sets * n_after, 0);
      for (std::size_t s = 0; s < source.sets.size(); ++s) {
        const double weight = kept[l].is_all() ? 1 : source.sets[s].probability;
        double* row = rows.data() + kept[l].which.counts[s] * n_after;
        for (std::size_t to = 0; to < after.which.counts.size(); ++to)
          row[after.which.counts[to]] += weight * source.set_transition(s, to);
      }
      double marginal = 0;
      for (const double p : after.probability) marginal += p;
      target.incoming.assign(n_after * target.n_sets, 0);
      for (std::size_t q = 0; q < target.n_sets; ++q) {
        double sum = 0;
        for (std::size_t p = 0; p < n_after; ++p) sum += rows[q * n_after + p];
        for (std::size_t p = 0; p < n_after; ++p)
          target.incoming[p * target.n_sets + q] =
              sum > 0 ? rows[q * n_after + p] / sum : after.probability[p] / marginal;
      }
    }
    layers.push_back(std::move(target));
  }
}

trajectory::trajectory(const trajectory_model& model)
    : model_(model),
      wait_ns_(model.n_servers, 0),
      layers_(model.n_layers),
      value_(model.n_layers),
      value_nats_(model.n_layers),
      next_(model.n_layers) {}

void trajectory::set_price(double ns_per_nat) {
  price_ = std::max(ns_per_nat, least_price);
}

void trajectory::set_waits(std::vector<double> wait_ns) {
  wait_ns_ = std::move(wait_ns);
  wait_ns_.resize(model_.n_servers, 0);
}

void trajectory::rebuild(std::span<const server_mask> hosts,
                         std::span<const server_mask> residence) {
  commit();
  for (std::size_t l = 0; l < model_.n_layers; ++l) rebuild_layer(l, hosts, residence);
  commit();
}

void trajectory::rebuild_layer(std::size_t layer, std::span<const server_mask> hosts,
                               std::span<const server_mask> residence) {
  const bool seen = std::any_of(replaced_.begin(), replaced_.end(),
                                [&](const auto& entry) { return entry.first == layer; });
  if (!seen) {
    tables fresh;
    if (!spare_.empty()) {
      fresh = std::move(spare_.back());
      spare_.pop_back();
    }
    std::swap(fresh, layers_[layer]);
    replaced_.emplace_back(layer, std::move(fresh));
  }
  auto& out = layers_[layer];
  out.from.clear();
  out.to.clear();
  for_each_server(residence[layer],
                  [&](std::size_t s) { out.from.push_back(static_cast<std::uint8_t>(s)); });
  const bool last = layer + 1 == model_.n_layers;
  const auto onward = last ? residence[layer] | residence[0] : residence[layer + 1];
  for_each_server(onward, [&](std::size_t s) { out.to.push_back(static_cast<std::uint8_t>(s)); });
  fill(layer, hosts, out);
}

void trajectory::commit() {
  for (auto& [layer, old] : replaced_) spare_.push_back(std::move(old));
  replaced_.clear();
}

void trajectory::roll_back() {
  for (auto& [layer, old] : replaced_) {
    std::swap(layers_[layer], old);
    spare_.push_back(std::move(old));
  }
  replaced_.clear();
}

void trajectory::rank_candidates(std::size_t layer, std::size_t set,
                                 std::span<const server_mask> hosts) {
  const auto n_servers = model_.n_servers, n_slots = model_.n_slots, n_experts = model_.n_experts;
  const auto n_candidates = model_.n_candidates;
  const auto& content = model_.layers[layer];
  const double* nats = content.nats.data() + set * n_slots * n_experts;
  const bool exact = std::isinf(price_);
  std::array<std::uint8_t, 64> held;
  for (std::size_t j = 0; j < n_slots; ++j) {
    auto* slot = ranked_.data() + (set * n_slots + j) * n_servers * n_ranks_;
    std::fill_n(slot, n_servers * n_ranks_, candidate{never, 0});
    held.fill(0);
    std::size_t n_open = n_open_ranks_;
    const auto* order = content.candidates.data() + (set * n_slots + j) * n_candidates;
    for (std::size_t i = 0; i < (exact ? 1 : n_candidates); ++i) {
      const auto k = order[i];
      const double loss = i == 0 ? 0 : price_ * nats[j * n_experts + k];
      for_each_server(hosts[layer * n_experts + k], [&](std::size_t m) {
        if (held[m] == n_ranks_) return;
        slot[m * n_ranks_ + held[m]++] = {loss, k};
        --n_open;
      });
      if (n_open == 0) break;
    }
  }
  if (n_slots > 2) {
    const auto units = [](double loss_ns) {
      return static_cast<loss_units>(
          std::min(loss_ns * units_per_ns, static_cast<double>(selection::largest_loss)));
    };
    for (std::size_t at = set * n_slots * n_servers; at < (set + 1) * n_slots * n_servers; ++at) {
      std::uint8_t n = 0;
      for (; n < n_ranks_ && ranked_[at * n_ranks_ + n].loss < never; ++n) {
        const auto& here = ranked_[at * n_ranks_ + n];
        ways_[at * n_ranks_ + n] = {units(here.loss), here.expert};
      }
      n_ways_[at] = n;
    }
    if (model_.sharing == slot_sharing::forbidden) return;
    for (std::size_t j = 0; j < n_slots; ++j)
      for (std::size_t k = 0; k < n_experts; ++k)
        losses_[(set * n_slots + j) * n_experts + k] =
            k == content.targets[set * n_slots + j] ? 0
            : exact                                 ? forbidden
                                                    : units(price_ * nats[j * n_experts + k]);
    return;
  }
  if (model_.sharing == slot_sharing::forbidden || exact || n_slots == 1) return;
  auto* joint = joint_.data() + set * n_servers;
  std::fill_n(joint, n_servers, candidate{never, 0});
  for (std::uint32_t k = 0; k < n_experts; ++k) {
    double sum = 0;
    for (std::size_t j = 0; j < n_slots; ++j) sum += nats[j * n_experts + k];
    for_each_server(hosts[layer * n_experts + k], [&](std::size_t m) {
      if (price_ * sum < joint[m].loss) joint[m] = {price_ * sum, k};
    });
  }
}

void trajectory::arrivals(std::size_t from, std::size_t to, server_mask hosting) {
  const auto& costs = model_.costs;
  order_.clear();
  for_each_server(hosting, [&](std::size_t m) {
    one_ns_[m] = costs.hidden(from, m) + wait_ns_[m] + costs.expert_ns[m] + costs.hidden(m, to);
    if (model_.n_slots > 2)
      first_ns_[m] = costs.hidden(from, m) + wait_ns_[m] + costs.hidden(m, to);
    order_.push_back(static_cast<std::uint32_t>(m));
    for (auto i = order_.size() - 1; i > 0 && one_ns_[order_[i]] < one_ns_[order_[i - 1]]; --i) {
      std::swap(order_[i], order_[i - 1]);
    }
  });
}

void trajectory::fill(std::size_t layer, std::span<const server_mask> hosts, tables& out) {
  const auto n_sets = model_.layers[layer].n_sets, n_slots = model_.n_slots;
  n_ranks_ = model_.sharing == slot_sharing::allowed && n_slots <= 2 ? 1 : n_slots;
  ranked_.resize(n_sets * n_slots * model_.n_servers * n_ranks_);
  joint_.assign(n_sets * model_.n_servers, candidate{never, 0});
  one_ns_.resize(model_.n_servers);
  if (n_slots > 2) {
    ways_.resize(ranked_.size());
    n_ways_.resize(n_sets * n_slots * model_.n_servers);
    losses_.resize(n_sets * n_slots * model_.n_experts);
    first_ns_.resize(model_.n_servers);
    const auto here = hosts.subspan(layer * model_.n_experts, model_.n_experts);
    hosts_.assign(here.begin(), here.end());
  }
  server_mask hosting = 0;
  std::array<std::size_t, 64> n_hosted{};
  for (std::size_t k = 0; k < model_.n_experts; ++k) {
    const auto on = hosts[layer * model_.n_experts + k];
    hosting |= on;
    for_each_server(on, [&](std::size_t m) { ++n_hosted[m]; });
  }
  n_open_ranks_ = 0;
  for (const auto n : n_hosted) n_open_ranks_ += std::min(n, n_ranks_);
  for (std::size_t q = 0; q < n_sets; ++q) rank_candidates(layer, q, hosts);
  hosting_ = hosting;
  out.cost.resize(out.from.size() * out.to.size() * n_sets);
  out.nats.resize(out.cost.size());
  if (tracks_usage_) out.runs.resize(out.cost.size() * n_slots);
  std::size_t at = 0;
  for (const auto from : out.from) {
    for (const auto to : out.to) {
      arrivals(from, to, hosting);
      const double residual_ns = model_.costs.hidden(from, to);
      for (std::size_t q = 0; q < n_sets; ++q, ++at) {
        const auto best = best_slots(q, residual_ns);
        const double* nats = model_.layers[layer].nats.data() + q * n_slots * model_.n_experts;
        out.cost[at] = best.cost;
        out.nats[at] = 0;
        for (std::size_t j = 0; j < n_slots; ++j) {
          out.nats[at] += nats[j * model_.n_experts + best.experts[j]];
          if (!tracks_usage_) continue;
          out.runs[at * n_slots + j] =
              static_cast<std::uint16_t>(best.servers[j] * model_.n_experts + best.experts[j]);
        }
      }
    }
  }
}

trajectory::choice trajectory::best_slots(std::size_t set, double residual_ns) const {
  if (model_.n_slots == 1) return best_one(set, residual_ns);
  if (model_.n_slots > 2) return best_of_many(set, residual_ns);
  return model_.sharing == slot_sharing::allowed
             ? best_two<slot_sharing::allowed>(set, residual_ns)
             : best_two<slot_sharing::forbidden>(set, residual_ns);
}

trajectory::choice trajectory::best_one(std::size_t set, double residual_ns) const {
  choice best;
  best.cost = never;
  for (const auto m : order_) {
    if (one_ns_[m] >= best.cost) break;
    const auto& here = ranked(set, 0, m, 0);
    const double cost = std::max(residual_ns, one_ns_[m]) + here.loss;
    if (cost >= best.cost) continue;
    best.cost = cost;
    best.servers[0] = m;
    best.experts[0] = here.expert;
  }
  return best;
}

/// With the servers in order of arrival, the later of two different ones decides the time and the
/// earlier one is the cheapest of the prefix. Without sharing the prefix keeps its two cheapest
/// experts, since the other slot may want the same one.
template <slot_sharing Sharing>
trajectory::choice trajectory::best_two(std::size_t set, double residual_ns) const {
  constexpr bool apart = Sharing == slot_sharing::forbidden;
  struct way {
    double loss = never;
    std::uint32_t expert = 0, server = 0;
  };
  struct ways {
    way first, second;  ///< Of different experts.
    void add(const way& other) {
      if (other.loss < first.loss) {
        if (other.expert != first.expert) second = first;
        first = other;
      } else if (other.expert != first.expert && other.loss < second.loss) {
        second = other;
      }
    }
  };
  choice best;
  best.cost = never;
  const auto offer = [&](double time, const way& a, const way& b) {
    const double cost = time + a.loss + b.loss;
    if (cost >= best.cost) return;
    best.cost = cost;
    best.servers[0] = a.server;
    best.servers[1] = b.server;
    best.experts[0] = a.expert;
    best.experts[1] = b.expert;
  };
  const auto offer_ways = [&](double time, const ways& a, const ways& b) {
    if (!apart || a.first.expert != b.first.expert) {
      offer(time, a.first, b.first);
      return;
    }
    offer(time, a.first, b.second);
    offer(time, a.second, b.first);
  };
  const auto at = [&](std::size_t slot, std::uint32_t m) {
    const auto& one = ranked(set, slot, m, 0);
    ways out{{one.loss, one.expert, m}, {never, one.expert, m}};
    if constexpr (apart) {
      const auto& two = ranked(set, slot, m, 1);
      out.second = {two.loss, two.expert, m};
    }
    return out;
  };
  ways first_before, second_before;
  for (const auto m : order_) {
    if (one_ns_[m] >= best.cost) break;
    const double time = std::max(residual_ns, one_ns_[m]);
    const double both = std::max(residual_ns, one_ns_[m] + model_.costs.expert_ns[m]);
    const auto first = at(0, m), second = at(1, m);
    if constexpr (!apart) {
      const auto& joint = joint_[set * model_.n_servers + m];
      const way one{joint.loss, joint.expert, m};
      offer(time, one, {0, joint.expert, m});
    }
    offer_ways(both, first, second);
    offer_ways(time, first, second_before);
    offer_ways(time, first_before, second);
    first_before.add(first.first);
    second_before.add(second.first);
    if constexpr (apart) {
      first_before.add(first.second);
      second_before.add(second.second);
    }
  }
  return best;
}

/// More than two slots: the cheapest of the assignments that a sweep over time meets.
trajectory::choice trajectory::best_of_many(std::size_t set, double residual_ns) const {
  const auto n_slots = model_.n_slots, n_experts = model_.n_experts;
  const bool apart = model_.sharing == slot_sharing::forbidden;
  const auto* losses = losses_.data() + set * n_slots * n_experts;
  struct {
    const selection::slot_way* ways;
    const std::uint8_t* counts;
    const loss_units* losses;
    std::size_t n_servers, n_ranks, n_experts;
    std::span<const selection::slot_way> operator()(std::size_t slot, std::size_t server) const {
      const auto at = slot * n_servers + server;
      return {ways + at * n_ranks, counts[at]};
    }
    loss_units loss(std::size_t slot, std::size_t, std::uint32_t expert) const {
      return losses[slot * n_experts + expert];
    }
  } ways{ways_.data() + set * n_slots * model_.n_servers * n_ranks_,
         n_ways_.data() + set * n_slots * model_.n_servers,
         losses,
         model_.n_servers,
         n_ranks_,
         n_experts};
  selection::slot_sweep sweep(ways, n_slots, hosting_, hosts_.data(), apart, first_ns_.data(),
                              model_.costs.expert_ns.data());
  choice best;
  best.cost = never;
  for (double opens = sweep.next(); opens < never; opens = sweep.next()) {
    if (std::max(residual_ns, opens) >= best.cost) break;
    if (!sweep.open() || !sweep.is_complete()) continue;
    const auto& now = sweep.now();
    const double cost = sweep.time(residual_ns) + static_cast<double>(now.loss) / units_per_ns;
    if (cost < best.cost) {
      best.cost = cost;
      for (std::size_t j = 0; j < n_slots; ++j) best.servers[j] = now.servers[j];
      best.experts = now.experts;
    }
    if (now.loss == 0) break;
  }
  return best;
}

/// One backward sweep from the end of a position to the starts of it; bias [R_0] values a start of
/// the next one.
template <bool WithNats>
void trajectory::backward(std::span<const double> bias) {
  const auto& costs = model_.costs;
  const auto last = model_.n_layers - 1;
  const auto& starts = layers_[0].from;
  restart_.assign(model_.n_servers, 0);
  onward_.clear();
  onward_nats_.clear();
  for (std::size_t l = model_.n_layers; l-- > 0;) {
    const auto& table = layers_[l];
    const auto& content = model_.layers[l];
    const auto n_sets = content.n_sets, n_to = table.to.size();
    // W_{l+1}(n, q) for every n: [n_to, n_sets].
    onward_.assign(n_to * n_sets, 0);
    if constexpr (WithNats) onward_nats_.assign(n_to * n_sets, 0);
    if (l == last) {
      for (std::size_t i = 0; i < n_to; ++i) {
        const std::size_t n = table.to[i];
        double least = never;
        for (std::size_t r = 0; r < starts.size(); ++r) {
          const double cost = costs.message(n, starts[r]) + bias[r];
          if (cost >= least) continue;
          least = cost;
          restart_[n] = static_cast<std::uint8_t>(r);
        }
        least += wait_ns_[n] + costs.head_ns[n];
        for (std::size_t q = 0; q < n_sets; ++q) {
          onward_[i * n_sets + q] = least;
        }
      }
    } else {
      const auto n_after = model_.layers[l + 1].n_sets;
      for (std::size_t i = 0; i < n_to; ++i) {
        const std::size_t n = table.to[i];
        double* out = onward_.data() + i * n_sets;
        const double arrive = wait_ns_[n] + costs.attention_ns[n];
        for (std::size_t q = 0; q < n_sets; ++q) out[q] = arrive;
        const double* value = value_[l + 1].data() + i * n_after;
        for (std::size_t p = 0; p < n_after; ++p) {
          const double* weight = content.incoming.data() + p * n_sets;
          const double v = value[p];
          for (std::size_t q = 0; q < n_sets; ++q) out[q] += weight[q] * v;
        }
        if constexpr (WithNats) {
          double* out_nats = onward_nats_.data() + i * n_sets;
          const double* nats = value_nats_[l + 1].data() + i * n_after;
          for (std::size_t p = 0; p < n_after; ++p) {
            const double* weight = content.incoming.data() + p * n_sets;
            for (std::size_t q = 0; q < n_sets; ++q) out_nats[q] += weight[q] * nats[p];
          }
        }
      }
    }
    const auto n_from = table.from.size();
    value_[l].resize(n_from * n_sets);
    if constexpr (WithNats) {
      value_nats_[l].resize(n_from * n_sets);
      next_[l].resize(n_from * n_sets);
    }
    for (std::size_t s = 0; s < n_from; ++s) {
      double* value = value_[l].data() + s * n_sets;
      for (std::size_t i = 0; i < n_to; ++i) {
        const double* cost = table.cost.data() + (s * n_to + i) * n_sets;
        const double* after = onward_.data() + i * n_sets;
        if constexpr (WithNats) {
          const double* nats = table.nats.data() + (s * n_to + i) * n_sets;
          for (std::size_t q = 0; q < n_sets; ++q) {
            const double total = cost[q] + after[q];
            if (i != 0 && total >= value[q]) continue;
            value[q] = total;
            value_nats_[l][s * n_sets + q] = nats[q] + onward_nats_[i * n_sets + q];
            next_[l][s * n_sets + q] = static_cast<std::uint8_t>(i);
          }
        } else if (i == 0) {
          for (std::size_t q = 0; q < n_sets; ++q) value[q] = cost[q] + after[q];
        } else {
          for (std::size_t q = 0; q < n_sets; ++q)
            value[q] = std::min(value[q], cost[q] + after[q]);
        }
      }
    }
  }
  const auto& first = model_.layers[0];
  start_cost_.assign(starts.size(), 0);
  start_nats_.assign(starts.size(), 0);
  for (std::size_t r = 0; r < starts.size(); ++r) {
    double cost = wait_ns_[starts[r]] + costs.attention_ns[starts[r]], nats = 0;
    for (std::size_t q = 0; q < first.n_sets; ++q) {
      cost += first.probability[q] * value_[0][r * first.n_sets + q];
      if constexpr (WithNats) nats += first.probability[q] * value_nats_[0][r * first.n_sets + q];
    }
    start_cost_[r] = cost;
    start_nats_[r] = nats;
  }
}

/// v of v = cost + discount * onward v, by elimination; the matrix is diagonally dominant.
static std::vector<double> discounted(const std::vector<double>& onward, std::vector<double> cost,
                                      double discount) {
  const auto n = cost.size();
  std::vector<double> a(n * n);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t t = 0; t < n; ++t)
      a[r * n + t] = (r == t ? 1.0 : 0.0) - discount * onward[r * n + t];
  }
  for (std::size_t p = 0; p < n; ++p) {
    for (std::size_t r = p + 1; r < n; ++r) {
      const double factor = a[r * n + p] / a[p * n + p];
      for (std::size_t t = p; t < n; ++t) a[r * n + t] -= factor * a[p * n + t];
      cost[r] -= factor * cost[p];
    }
  }
  for (std::size_t p = n; p-- > 0;) {
    for (std::size_t t = p + 1; t < n; ++t) cost[p] -= a[p * n + t] * cost[t];
    cost[p] /= a[p * n + p];
  }
  return cost;
}

/// Where positions start in the long run, the first of them at `from`: powers of the damped matrix.
static std::vector<double> settled(const std::vector<double>& onward, std::size_t from) {
  const auto n =
      static_cast<std::size_t>(std::lround(std::sqrt(static_cast<double>(onward.size()))));
  std::vector<double> power(n * n), square(n * n);
  for (std::size_t i = 0; i < n * n; ++i)
    power[i] = 0.5 * (onward[i] + (i % (n + 1) == 0 ? 1.0 : 0.0));
  constexpr int max_squarings = 40;
  for (int round = 0; round < max_squarings; ++round) {
    double change = 0;
    for (std::size_t r = 0; r < n; ++r) {
      double sum = 0;
      for (std::size_t t = 0; t < n; ++t) {
        double entry = 0;
        for (std::size_t i = 0; i < n; ++i) entry += power[r * n + i] * power[i * n + t];
        square[r * n + t] = entry;
        sum += entry;
      }
      for (std::size_t t = 0; t < n; ++t) {
        square[r * n + t] /= sum;
        change = std::max(change, std::abs(square[r * n + t] - power[r * n + t]));
      }
    }
    std::swap(power, square);
    if (change < 1e-13) break;
  }
  const auto row = power.begin() + static_cast<std::ptrdiff_t>(from * n);
  return {row, row + static_cast<std::ptrdiff_t>(n)};
}

/// With one member in R_0 every position is like the last. With more, policy iteration over the
/// starts of positions, with a discount close to 1 so that starts that keep to themselves can be
/// compared.
template <bool WithNats>
trajectory_estimate trajectory::solve_as() {
  const auto n = layers_[0].from.size();
  std::vector<double> bias(n, 0);
  start_share_.assign(n, 0);
  if (n == 1) {
    backward<WithNats>(bias);
    start_share_[0] = 1;
    return {start_cost_[0], start_nats_[0]};
  }
  constexpr double discount = 1 - 1e-7;
  constexpr int max_rounds = 40;
  std::vector<double> onward, cost(n);
  for (int round = 0; round < max_rounds; ++round) {
    backward<true>(bias);
    onward = restarts();
    for (std::size_t r = 0; r < n; ++r) {
      cost[r] = start_cost_[r];
      for (std::size_t t = 0; t < n; ++t) cost[r] -= onward[r * n + t] * bias[t];
    }
    const auto value = discounted(onward, cost, discount);
    double change = 0, scale = 0;
    for (std::size_t r = 0; r < n; ++r) {
      const double relative = value[r] - value[0];
      change = std::max(change, std::abs(relative - bias[r]));
      scale = std::max(scale, start_cost_[r]);
      bias[r] = relative;
    }
    if (change <= 1e-7 * scale) break;
  }
  start_share_ = settled(
      onward, static_cast<std::size_t>(std::min_element(bias.begin(), bias.end()) - bias.begin()));
  double mean_cost = 0, mean_nats = 0;
  for (std::size_t r = 0; r < n; ++r) {
    mean_cost += start_share_[r] * cost[r];
    mean_nats += start_share_[r] * start_nats_[r];
  }
  return {mean_cost, mean_nats};
}

/// How often a position that starts at r leads to one that starts at t: [R_0, R_0].
std::vector<double> trajectory::restarts() const {
  const auto n = layers_[0].from.size();
  const auto last = model_.n_layers - 1;
  std::vector<double> onward(n * n, 0);
  for (std::size_t r = 0; r < n; ++r) {
    std::vector<double> only(n, 0);
    only[r] = 1;
    sweep_forward(std::move(only),
                  [&](std::size_t l, std::size_t, std::size_t, std::size_t i, double weight) {
                    if (l == last) onward[r * n + restart_[layers_[l].to[i]]] += weight;
                  });
  }
  return onward;
}

double trajectory::solve_cost() {
  return solve_as<false>().token_ns;
}

trajectory_estimate trajectory::solve() {
  auto estimate = solve_as<true>();
  if (!std::isinf(price_)) estimate.token_ns -= price_ * estimate.token_nats;
  return estimate;
}

void trajectory_usage::add(double share, const trajectory_usage& other) {
  const auto sum = [&](std::vector<double>& mine, const std::vector<double>& theirs) {
    mine.resize(theirs.size(), 0);
    for (std::size_t i = 0; i < theirs.size(); ++i) mine[i] += share * theirs[i];
  };
  sum(visits, other.visits);
  sum(expert_runs, other.expert_runs);
  sum(busy_ns, other.busy_ns);
  sum(head_runs, other.head_runs);
  sum(jobs, other.jobs);
  hidden_transfers += share * other.hidden_transfers;
  kv_transfers += share * other.kv_transfers;
}

/// Follows the policy of the last solve() through one position. Calls visit(layer, index of the
/// member in R_l, set, index of n, probability); returns nothing but what visit gathers.
template <class Visit>
void trajectory::sweep_forward(std::vector<double> start, Visit&& visit) const {
  const auto& first = model_.layers[0];
  std::vector<double> mass(start.size() * first.n_sets), after;
  for (std::size_t r = 0; r < start.size(); ++r) {
    for (std::size_t q = 0; q < first.n_sets; ++q)
      mass[r * first.n_sets + q] = start[r] * first.probability[q];
  }
  for (std::size_t l = 0; l < model_.n_layers; ++l) {
    const auto& table = layers_[l];
    const auto n_sets = model_.layers[l].n_sets, n_to = table.to.size();
    const bool last = l + 1 == model_.n_layers;
    const auto n_after = last ? 0 : model_.layers[l + 1].n_sets;
    // By the residence chosen, then on to the next layer's sets.
    std::vector<double> moved(n_to * n_sets, 0);
    for (std::size_t s = 0; s < table.from.size(); ++s) {
      for (std::size_t q = 0; q < n_sets; ++q) {
        const double weight = mass[s * n_sets + q];
        if (weight == 0) continue;
        const std::size_t i = next_[l][s * n_sets + q];
        visit(l, s, q, i, weight);
        moved[i * n_sets + q] += weight;
      }
    }
    if (last) return;
    after.assign(n_to * n_after, 0);
    for (std::size_t i = 0; i < n_to; ++i) {
      const double* from = moved.data() + i * n_sets;
      for (std::size_t p = 0; p < n_after; ++p) {
        const double* weight = model_.layers[l].incoming.data() + p * n_sets;
        double sum = 0;
        for (std::size_t q = 0; q < n_sets; ++q) sum += weight[q] * from[q];
        after[i * n_after + p] = sum;
      }
    }
    std::swap(mass, after);
  }
}

trajectory_usage trajectory::usage() {
  const auto n_servers = model_.n_servers, n_layers = model_.n_layers;
  const auto n_experts = model_.n_experts, n_slots = model_.n_slots;
  const auto& costs = model_.costs;
  ORDERMOE_CHECK(!layers_[0].runs.empty(), "usage() was asked for without track_usage()");
  trajectory_usage out;
  out.visits.assign(n_layers * n_servers, 0);
  out.expert_runs.assign(n_servers * n_layers * n_experts, 0);
  out.busy_ns.assign(n_servers, 0);
  out.head_runs.assign(n_servers, 0);
  out.jobs.assign(n_servers, 0);
  sweep_forward(
      start_share_, [&](std::size_t l, std::size_t s, std::size_t q, std::size_t i, double weight) {
        const auto& table = layers_[l];
        const std::size_t from = table.from[s], to = table.to[i];
        const auto n_sets = model_.layers[l].n_sets;
        out.visits[l * n_servers + from] += weight;
        out.busy_ns[from] += weight * costs.attention_ns[from];
        out.jobs[from] += weight;
        out.kv_transfers += weight * static_cast<double>(table.from.size() - 1);
        const auto* runs = table.runs.data() + ((s * table.to.size() + i) * n_sets + q) * n_slots;
        server_mask visited = server_mask{1} << from;
        for (std::size_t j = 0; j < n_slots; ++j) {
          if (std::find(runs, runs + j, runs[j]) != runs + j) continue;
          const std::size_t m = runs[j] / n_experts;
          visited |= server_mask{1} << m;
          out.expert_runs[(m * n_layers + l) * n_experts + runs[j] % n_experts] += weight;
          out.busy_ns[m] += weight * costs.expert_ns[m];
          out.jobs[m] += weight;
        }
        // One copy out to each other server, one result on to n from each server that is not n, and
        // the residual.
        for_each_server(visited, [&](std::size_t m) {
          out.hidden_transfers += weight * ((m != from ? 1.0 : 0.0) + (m != to ? 1.0 : 0.0));
        });
        if (l + 1 == n_layers) {
          out.busy_ns[to] += weight * costs.head_ns[to];
          out.head_runs[to] += weight;
          out.jobs[to] += weight;
        }
      });
  return out;
}

namespace {

/// One kind of job at a server: rows for it that wait together are served as one.
struct job_kind {
  double runs = 0;        ///< Rows per position
  double service_ns = 0;  ///< Of one batch
};

/// Mean wait of the first row of a job at a server that serves its jobs in order, where positions
/// pass at `rate` per ns: what is ahead in the queue and in service,
///
///   w = sum over kinds of (jobs per ns) * service * (w + service / 2)
///
/// Rows of the same kind that come while a job waits join it, so that (jobs per ns) is
/// rows / (1 + rows * w): the right side is concave, and Newton's method from beyond the root
/// descends to it.
double first_row_wait(const std::vector<job_kind>& kinds, double rate) {
  double w = 0;
  for (const auto& kind : kinds) w += 2 * kind.service_ns;
  for (int round = 0; round < 30; ++round) {
    double ahead = 0, slope = 0;
    for (const auto& kind : kinds) {
      const double rows = rate * kind.runs, share = 1 / (1 + rows * w);
      ahead += rows * kind.service_ns * (w + 0.5 * kind.service_ns) * share;
      slope += rows * kind.service_ns * (1 - 0.5 * rows * kind.service_ns) * share * share;
    }
    const double step = (w - ahead) / std::max(1 - slope, 1e-3);
    w = std::max(0.0, w - step);
    if (std::abs(step) <= 1e-4 * w + 1) break;
  }
  return w;
}

/// Mean wait of a row: the rows that join a job come half way through its wait on average.
double row_wait(const std::vector<job_kind>& kinds, double rate) {
  if (kinds.empty() || rate <= 0) return 0;
  const double w = first_row_wait(kinds, rate);
  double rows = 0, waited = 0;
  for (const auto& kind : kinds) {
    const double joined = rate * kind.runs * w;
    rows += kind.runs;
    waited += kind.runs * w * (1 + 0.5 * joined) / (1 + joined);
  }
  return waited / rows;
}

}  // namespace

queue_estimate estimate_queues(const trajectory_model& model, const trajectory_usage& usage,
                               double token_ns, double concurrency,
                               std::span<const double> known_wait_ns) {
  const auto n_servers = model.n_servers;
  std::vector<std::vector<job_kind>> kinds(n_servers);
  double bare_ns = token_ns;
  for (std::size_t m = 0; m < n_servers; ++m) {
    const auto add = [&](double runs, double service_ns) {
      if (runs > 0) kinds[m].push_back({runs, service_ns});
    };
    for (std::size_t l = 0; l < model.n_layers; ++l)
      add(usage.visits[l * n_servers + m], model.costs.attention_ns[m]);
    const auto n_items = model.n_layers * model.n_experts;
    for (std::size_t i = 0; i < n_items; ++i)
      add(usage.expert_runs[m * n_items + i], model.costs.expert_ns[m]);
    add(usage.head_runs[m], model.costs.head_ns[m]);
    if (!known_wait_ns.empty()) bare_ns -= usage.jobs[m] * known_wait_ns[m];
  }
  bare_ns = std::max(bare_ns, 1.0);
  queue_estimate out;
  out.wait_ns.assign(n_servers, 0);
  // A position meets the other concurrency - 1; longer positions pass less often and wait less.
  const auto with_waits = [&](double at_ns) {
    double total = bare_ns;
    for (std::size_t m = 0; m < n_servers; ++m) {
      out.wait_ns[m] = row_wait(kinds[m], std::max(0.0, concurrency - 1) / at_ns);
      total += usage.jobs[m] * out.wait_ns[m];
    }
    return total;
  };
  // Regula falsi (Illinois) on with_waits(t) - t, which falls in t.
  double low = bare_ns, low_gap = with_waits(low) - low;
  double high = low + low_gap, high_gap = with_waits(high) - high;
  out.token_ns = high + high_gap;
  for (int round = 0; round < 20 && high - low > 1e-5 * high && low_gap > high_gap; ++round) {
    const double t = (low * high_gap - high * low_gap) / (high_gap - low_gap);
    const double gap = with_waits(t) - t;
    out.token_ns = t + gap;
    if (std::abs(gap) <= 1e-5 * t) break;
    if (gap > 0) {
      low = t;
      low_gap = gap;
      high_gap *= 0.5;
    } else {
      high = t;
      high_gap = gap;
      low_gap *= 0.5;
    }
  }
  return out;
}

trajectory_estimate estimate_trajectory(const profile& experts, const plan& placed,
                                        const cluster& servers, const cost_profile& costs,
                                        std::size_t access, double ns_per_nat,
                                        slot_sharing sharing) {
  const trajectory_model model(experts, make_cost_model(servers, costs), sharing);
  const placement_index index(placed);
  std::vector<server_mask> hosts;
  for (std::size_t l = 0; l < model.n_layers; ++l) {
    for (std::size_t k = 0; k < model.n_experts; ++k) hosts.push_back(index.hosts(l, k));
  }
  trajectory problem(model);
  problem.set_price(ns_per_nat);
  problem.rebuild(hosts, placed.residence[access].layers);
  return problem.solve();
}

}  // namespace ordermoe::planning
