#include "planning/search/trajectory_fronts.hpp"

#include <algorithm>
#include <bit>

namespace ordermoe::planning {

/// Lists of the set at hand, found when the sweep first asks for them.
struct front_builder::ways_of_set {
  front_builder& builder;
  std::uint16_t* reach;  ///< [n_slots, n_servers]

  std::span<const selection::slot_way> operator()(std::size_t slot, std::size_t server) const {
    const auto at = slot * builder.model_.n_servers + server;
    auto& list =
        builder.lists_[builder.set_ * builder.model_.n_slots * builder.model_.n_servers + at];
    if (list.made_by != builder.n_builds_) builder.find_ways(slot, server, list);
    reach[at] = list.reach;
    return {list.ways.data(), list.size};
  }
};

front_builder::front_builder(const trajectory_model& model)
    : model_(model), pairs_(model.n_servers * model.n_servers) {}

bool front_builder::is_for(const layer_fronts& made, std::span<const server_mask> hosts,
                           std::span<const std::uint8_t> from, std::span<const std::uint8_t> to,
                           std::span<const double> wait_ns, bool exact) {
  return made.exact == exact && std::ranges::equal(made.hosts, hosts) &&
         std::ranges::equal(made.from, from) && std::ranges::equal(made.to, to) &&
         std::ranges::equal(made.wait_ns, wait_ns);
}

/// When work is back at `to`, and in which order places open.
void front_builder::open_pair(std::size_t from, std::size_t to, std::span<const double> wait_ns) {
  const auto n_servers = model_.n_servers;
  auto& pair = pairs_[from * n_servers + to];
  if (pair.known) return;
  pair.known = true;
  pair.first_ns.resize(n_servers);
  pair.places.clear();
  for (std::size_t m = 0; m < n_servers; ++m) {
    pair.first_ns[m] = model_.costs.hidden(from, m) + wait_ns[m] + model_.costs.hidden(m, to);
    for (std::size_t q = 1; q <= model_.n_slots; ++q)
      pair.places.push_back(
          {pair.first_ns[m] + static_cast<double>(q) * model_.costs.expert_ns[m], m});
  }
  std::stable_sort(pair.places.begin(), pair.places.end(),
                   [](const auto& a, const auto& b) { return a.ns < b.ns; });
}

/// A slot whose target is at the server never wants anything else there.
void front_builder::find_ways(std::size_t slot, std::size_t server, reached_ways& list) const {
  const auto& content = model_.layers[layer_];
  const auto at = set_ * model_.n_slots + slot;
  const auto* order = content.candidates.data() + at * model_.n_candidates;
  const auto* losses = content.losses.data() + at * model_.n_candidates;
  list.size = 0;
  std::size_t i = 0;
  for (const auto n = exact_ ? 1 : model_.n_candidates; i < n && list.size < model_.n_slots;) {
    const auto k = order[i++];
    if (((hosts_[k] >> server) & 1u) == 0) continue;
    if (exact_ && ((model_.coarse >> server) & 1u) != 0) continue;
    list.ways[list.size++] = {losses[i - 1] + copy_loss(slot, server, k), k};
    if (i == 1) break;
  }
  // Coarser copies are the first by what their experts lose as the model has them.
  if (((model_.coarse >> server) & 1u) != 0)
    std::stable_sort(list.ways.begin(), list.ways.begin() + list.size,
                     [](const auto& a, const auto& b) { return a.loss < b.loss; });
  list.reach = static_cast<std::uint16_t>(i);
  list.made_by = n_builds_;
}

/// Whether a change of the placement may change what a sweep met.
bool front_builder::concerns(std::size_t set, const std::uint16_t* reach) const {
  const auto n_slots = model_.n_slots, n_servers = model_.n_servers;
  const auto* ranks = model_.layers[layer_].ranks.data() + set * n_slots * model_.n_experts;
  for (const auto& [expert, hosts] : changes_)
    for (std::size_t j = 0; j < n_slots; ++j) {
      const auto rank = ranks[j * model_.n_experts + expert];
      for (auto servers = hosts; servers != 0; servers &= servers - 1)
        if (rank < reach[j * n_servers + static_cast<std::size_t>(std::countr_zero(servers))])
          return true;
    }
  return false;
}

/// The lower left hull of what the sweep met.
void front_builder::keep_hull(layer_fronts& out) {
  std::sort(met_.begin(), met_.end(), [](const auto& a, const auto& b) {
    return a.ns < b.ns || (a.ns == b.ns && a.nats < b.nats);
  });
  const auto begin = out.points.size();
  for (const auto& point : met_) {
    if (out.points.size() > begin && point.nats >= out.points.back().nats) continue;
    while (out.points.size() > begin + 1) {
      const auto &a = out.points[out.points.size() - 2], &b = out.points.back();
      const bool is_above =
          (b.nats - a.nats) * (point.ns - a.ns) >= (point.nats - a.nats) * (b.ns - a.ns);
      if (!is_above) break;
      out.points.pop_back();
    }
    out.points.push_back(point);
  }
}

void front_builder::sweep(std::size_t from, std::size_t to, std::size_t set, layer_fronts& out,
                          std::uint16_t* reach) {
  const auto n_slots = model_.n_slots, n_experts = model_.n_experts;
  const auto& pair = pairs_[from * model_.n_servers + to];
  const double residual_ns = model_.costs.hidden(from, to);
  ++n_sweeps_;
  ways_of_set ways{*this, reach};
  selection::slot_sweep sweep(ways, n_slots, hosting_, hosts_.data(), true, pair.first_ns.data(),
                              model_.costs.expert_ns.data(), pair.places);
  met_.clear();
  for (double opens = sweep.next(); opens < infinity; opens = sweep.next()) {
    if (!sweep.open() || !sweep.is_complete()) continue;
    const auto& now = sweep.now();
    auto& point = met_.emplace_back();
    point.ns = sweep.time(residual_ns);
    point.nats = static_cast<double>(now.loss) / units_per_loss;
    for (std::size_t j = 0; j < n_slots; ++j)
      point.runs[j] = static_cast<std::uint16_t>(now.servers[j] * n_experts + now.experts[j]);
    if (now.loss == 0) break;
  }
  keep_hull(out);
}

void front_builder::build(std::size_t layer, std::span<const server_mask> hosts,
                          std::span<const std::uint8_t> from, std::span<const std::uint8_t> to,
                          std::span<const double> wait_ns, bool exact, const layer_fronts& known,
                          layer_fronts& out) {
  const auto n_sets = model_.layers[layer].n_sets, n_slots = model_.n_slots;
  const auto stride = n_slots * model_.n_servers;
  layer_ = layer;
  exact_ = exact;
  ++n_builds_;
  if (lists_.size() < n_sets * stride) lists_.resize(n_sets * stride);
  out.hosts.assign(hosts.begin(), hosts.end());
  out.wait_ns.assign(wait_ns.begin(), wait_ns.end());
  out.exact = exact;
  out.from.assign(from.begin(), from.end());
  out.to.assign(to.begin(), to.end());
  hosts_ = out.hosts;
  hosting_ = 0;
  for (const auto on : hosts) hosting_ |= on;
  if (!std::ranges::equal(known_wait_ns_, wait_ns)) {
    known_wait_ns_ = out.wait_ns;
    for (auto& pair : pairs_) pair.known = false;
  }

  const auto n_pairs = from.size() * to.size();
  const bool takes_over =
      known.exact == exact && known.hosts.size() == hosts.size() && known.wait_ns == out.wait_ns;
  changes_.clear();
  for (std::size_t k = 0; takes_over && k < hosts.size(); ++k)
    if (hosts[k] != known.hosts[k])
      changes_.push_back({static_cast<std::uint32_t>(k), hosts[k] | known.hosts[k]});
  constexpr auto nowhere = ~std::size_t{0};
  const auto known_pair = [&](std::size_t s, std::size_t n) {
    const auto i = std::find(known.from.begin(), known.from.end(), from[s]) - known.from.begin();
    const auto j = std::find(known.to.begin(), known.to.end(), to[n]) - known.to.begin();
    if (!takes_over || static_cast<std::size_t>(i) == known.from.size() ||
        static_cast<std::size_t>(j) == known.to.size())
      return nowhere;
    return static_cast<std::size_t>(i) * known.to.size() + static_cast<std::size_t>(j);
  };

  out.points.clear();
  out.first.assign(1, 0);
  out.reach.resize(n_pairs * n_sets * stride);
  std::size_t at = 0;
  for (std::size_t s = 0; s < from.size(); ++s)
    for (std::size_t n = 0; n < to.size(); ++n) {
      const auto before = known_pair(s, n);
      open_pair(from[s], to[n], wait_ns);
      for (std::size_t q = 0; q < n_sets; ++q, ++at) {
        auto* reach = out.reach.data() + at * stride;
        const auto old = before * n_sets + q;
        if (before != nowhere && !concerns(q, known.reach.data() + old * stride)) {
          std::copy_n(known.reach.data() + old * stride, stride, reach);
          out.points.insert(out.points.end(), known.points.begin() + known.first[old],
                            known.points.begin() + known.first[old + 1]);
        } else {
          std::fill_n(reach, stride, std::uint16_t{0});
          set_ = q;
          sweep(from[s], to[n], q, out, reach);
        }
        out.first.push_back(static_cast<std::uint32_t>(out.points.size()));
      }
    }
}

}  // namespace ordermoe::planning
