#include <algorithm>
#include <array>
#include <cmath>

#include "planning/search/trajectory.hpp"

/// The tables of a layer where a token has one slot or two: every assignment is weighed.
namespace ordermoe::planning {

/// Of one slot of one set, at every server the cheapest experts that it hosts; n_open is how many there can be.
void trajectory::rank_candidates(std::size_t layer, std::size_t set, std::size_t slot,
                                 std::size_t n_open, layer_ranks& out) const {
  const auto n_servers = model_.n_servers, n_experts = model_.n_experts;
  const auto n_candidates = model_.n_candidates;
  const auto& content = model_.layers[layer];
  const auto of_slot = set * model_.n_slots + slot;
  const auto* order = content.candidates.data() + of_slot * n_candidates;
  const double* nats = content.nats.data() + of_slot * n_experts;
  std::array<std::uint8_t, 64> held{};
  for (std::size_t i = 0; n_open > 0 && i < (out.exact ? 1 : n_candidates); ++i) {
    const auto k = order[i];
    for_each_server(out.hosts[k], [&](std::size_t m) {
      if (held[m] == n_ranks_) return;
      if (out.exact && ((model_.coarse >> m) & 1u) != 0) return;
      const auto at = (of_slot * n_servers + m) * n_ranks_ + held[m]++;
      out.ranked[at].expert = k;
      out.found.push_back({at, i == 0 ? 0 : nats[k], model_.copy_nats(content, set, slot, m, k)});
      --n_open;
    });
  }
}

void trajectory::rank(std::size_t layer, layer_ranks& out) const {
  const auto n_sets = model_.layers[layer].n_sets, n_slots = model_.n_slots;
  out.hosting = 0;
  std::array<std::size_t, 64> n_hosted{};
  for (const auto on : out.hosts) {
    out.hosting |= on;
    for_each_server(on, [&](std::size_t m) { ++n_hosted[m]; });
  }
  std::size_t n_open = 0;
  for (const auto n : n_hosted) n_open += std::min(n, n_ranks_);
  out.found.clear();
  out.ranked.assign(n_sets * n_slots * model_.n_servers * n_ranks_, candidate{never, 0});
  for (std::size_t q = 0; q < n_sets; ++q)
    for (std::size_t j = 0; j < n_slots; ++j) rank_candidates(layer, q, j, n_open, out);
}

/// Found again only where the hosts are others than the last time, or substitutes are forbidden now or no more.
const trajectory::layer_ranks& trajectory::ranks_of(std::size_t layer,
                                                    std::span<const server_mask> hosts) {
  auto& known = ranks_[layer];
  const bool exact = std::isinf(price_);
  const bool is_known = known.exact == exact && std::ranges::equal(known.hosts, hosts);
  if (!is_known) {
    known.hosts.assign(hosts.begin(), hosts.end());
    known.exact = exact;
    rank(layer, known);
  }
  if (!is_known || known.price != price_) {
    known.price = price_;
    for (const auto& [at, nats, besides] : known.found) {
      const double loss = nats == 0 ? 0 : price_ * nats;
      known.ranked[at].loss = besides == 0 ? loss : loss + price_ * besides;
    }
  }
  return known;
}

void trajectory::arrivals(std::size_t from, std::size_t to, server_mask hosting) {
  const auto& costs = model_.costs;
  order_.clear();
  for_each_server(hosting, [&](std::size_t m) {
    one_ns_[m] = costs.hidden(from, m) + wait_ns_[m] + costs.expert_ns[m] + costs.hidden(m, to);
    order_.push_back(static_cast<std::uint32_t>(m));
    for (auto i = order_.size() - 1; i > 0 && one_ns_[order_[i]] < one_ns_[order_[i - 1]]; --i) {
      std::swap(order_[i], order_[i - 1]);
    }
  });
}

void trajectory::fill_few(std::size_t layer, std::span<const server_mask> hosts, layer_costs& out) {
  const auto n_sets = model_.layers[layer].n_sets, n_slots = model_.n_slots;
  at_hand_ = &ranks_of(layer, hosts.subspan(layer * model_.n_experts, model_.n_experts));
  one_ns_.resize(model_.n_servers);
  out.cost.resize(out.from.size() * out.to.size() * n_sets);
  out.nats.resize(out.cost.size());
  if (tracks_usage_) out.runs.resize(out.cost.size() * n_slots);
  std::size_t at = 0;
  for (const auto from : out.from) {
    for (const auto to : out.to) {
      arrivals(from, to, at_hand_->hosting);
      const double residual_ns = model_.costs.hidden(from, to);
      for (std::size_t q = 0; q < n_sets; ++q, ++at) {
        const auto best = best_slots(layer, q, residual_ns);
        const double* nats = model_.layers[layer].nats.data() + q * n_slots * model_.n_experts;
        out.cost[at] = best.cost;
        out.nats[at] = 0;
        for (std::size_t j = 0; j < n_slots; ++j) {
          out.nats[at] += j == best.left ? model_.layers[layer].left_out_nats[q * n_slots + j]
                                         : nats[j * model_.n_experts + best.experts[j]] +
                                               model_.copy_nats(model_.layers[layer], q, j,
                                                                best.servers[j], best.experts[j]);
          if (!tracks_usage_) continue;
          out.runs[at * n_slots + j] =
              static_cast<std::uint16_t>(best.servers[j] * model_.n_experts + best.experts[j]);
        }
      }
    }
  }
}

trajectory::choice trajectory::best_slots(std::size_t layer, std::size_t set,
                                          double residual_ns) const {
  return model_.n_slots == 1 ? best_one(set, residual_ns) : best_two(layer, set, residual_ns);
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
/// earlier one is the cheapest of the prefix. The prefix keeps its two cheapest experts, since the
/// other slot may want the same one.
trajectory::choice trajectory::best_two(std::size_t layer, std::size_t set,
                                        double residual_ns) const {
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
    if (a.first.expert != b.first.expert) {
      offer(time, a.first, b.first);
      return;
    }
    offer(time, a.first, b.second);
    offer(time, a.second, b.first);
  };
  const auto at = [&](std::size_t slot, std::uint32_t m) {
    const auto &one = ranked(set, slot, m, 0), &two = ranked(set, slot, m, 1);
    return ways{{one.loss, one.expert, m}, {two.loss, two.expert, m}};
  };
  ways first_before, second_before;
  for (const auto m : order_) {
    if (one_ns_[m] >= best.cost) break;
    const double time = std::max(residual_ns, one_ns_[m]);
    const double both = std::max(residual_ns, one_ns_[m] + model_.costs.expert_ns[m]);
    const auto first = at(0, m), second = at(1, m);
    // Nothing in which this is the later one of the servers costs less.
    const double least = time + std::min(first.first.loss, first_before.first.loss) +
                         std::min(second.first.loss, second_before.first.loss);
    if (least < best.cost) {
      offer_ways(both, first, second);
      offer_ways(time, first, second_before);
      offer_ways(time, first_before, second);
    }
    first_before.add(first.first);
    second_before.add(second.first);
    first_before.add(first.second);
    second_before.add(second.second);
  }
  if (const auto& left_out = model_.layers[layer].left_out_nats;
      !left_out.empty() && !std::isinf(price_))
    leave_one(left_out.data() + set * 2, set, residual_ns, best);
  return best;
}

/// Whether one slot alone is better than the best of both.
void trajectory::leave_one(const double* left_out_nats, std::size_t set, double residual_ns,
                           choice& best) const {
  const double without[] = {price_ * left_out_nats[1], price_ * left_out_nats[0]};
  for (const auto m : order_) {
    if (one_ns_[m] >= best.cost) break;
    const double time = std::max(residual_ns, one_ns_[m]);
    for (std::size_t j = 0; j < 2; ++j) {
      const auto& runs = ranked(set, j, m, 0);
      const double cost = time + runs.loss + without[j];
      if (cost >= best.cost) continue;
      best.cost = cost;
      best.left = 1 - j;
      best.servers = {m, m};
      best.experts = {runs.expert, runs.expert};
    }
  }
}

}  // namespace ordermoe::planning
