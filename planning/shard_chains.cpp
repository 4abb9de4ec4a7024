#include "planning/shard_chains.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <utility>

#include "planning/packing.hpp"
#include "planning/placement.hpp"
#include "planning/pruning.hpp"

namespace ordermoe::planning {

namespace {

/// The largest divisor of `n` up to `most`.
std::size_t largest_divisor(std::size_t n, std::size_t most) {
  for (auto d = std::min(n, most); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

/// Units [first, end).
struct stretch {
  std::size_t first = 0, end = 0;
};

/// [n_servers] what each holds of all chains, in order and without overlaps.
std::vector<std::vector<stretch>> stretches_of(const chain_layout& layout, std::size_t n_servers) {
  std::vector<std::vector<stretch>> held(n_servers);
  for (const auto& chain : layout.chains) {
    std::size_t at = 0;
    for (const auto& stage : chain) {
      held[stage.server].push_back({at, at + stage.units});
      at += stage.units;
    }
  }
  for (auto& parts : held) {
    std::ranges::sort(parts, {}, [](const stretch& s) { return std::pair(s.first, s.end); });
    std::vector<stretch> merged;
    for (const auto& part : parts) {
      if (merged.empty() || part.first > merged.back().end)
        merged.push_back(part);
      else
        merged.back().end = std::max(merged.back().end, part.end);
    }
    parts = std::move(merged);
  }
  return held;
}

}  // namespace

shard_chain_planner::shard_chain_planner(const profile& profile, const cluster& servers,
                                         const cost_profile& costs,
                                         const shard_chain_options& options)
    : prices_(make_cost_model(servers, costs)),
      n_layers_(profile.n_layers),
      n_experts_(profile.n_experts),
      units_per_layer_(largest_divisor(profile.n_experts, options.units_per_layer)),
      top_k_(static_cast<double>(profile.top_k)),
      others_(std::max(0.0, options.concurrency - 1)),
      expert_bytes_(costs.expert_bytes),
      should_stop_(options.should_stop) {
  cut_units(options.pruned.layers.empty() ? profile : with_pruned(profile, options.pruned),
            options.pruned);
  const auto unit_bytes = expert_bytes_ * static_cast<std::int64_t>(n_experts_ / units_per_layer_);
  for (const auto& server : servers.servers) {
    arrival_share_.push_back(server.arrival_share);
    limit_bytes_.push_back(expert_memory_bytes(server, costs, n_layers_));
    const auto room = std::max<std::int64_t>(0, limit_bytes_.back());
    capacity_.push_back(std::min(n_units(), static_cast<std::size_t>(room / unit_bytes)));
  }
}

void shard_chain_planner::cut_units(const profile& profile, const pruned_experts& pruned) {
  const auto of_unit = n_experts_ / units_per_layer_;
  chosen_before_.assign(1, 0);
  begun_.assign(1, 0);
  for (std::size_t l = 0; l < n_layers_; ++l) {
    const auto& activation = profile.layers[l].activation;
    std::vector<std::uint32_t> order(n_experts_);
    std::iota(order.begin(), order.end(), 0u);
    if (!pruned.layers.empty()) {
      const auto gone = pruned_flags(pruned.layers[l], n_experts_);
      std::erase_if(order, [&](auto e) { return gone[e] != 0; });
    }
    std::ranges::stable_sort(order, [&](auto a, auto b) { return activation[a] > activation[b]; });
    for (std::size_t i = 0; i < order.size(); ++i) {
      if (i % of_unit == 0) {
        units_.push_back({l, {}});
        chosen_before_.push_back(chosen_before_.back());
        begun_.push_back(l + 1);
      }
      units_.back().experts.push_back(order[i]);
      chosen_before_.back() += top_k_ * activation[order[i]];
    }
  }
}

bool shard_chain_planner::fits(const chain_layout& layout) const {
  const auto held = stretches_of(layout, n_servers());
  for (std::size_t m = 0; m < n_servers(); ++m) {
    std::size_t units = 0;
    for (const auto& part : held[m]) units += part.end - part.first;
    if (units > capacity_[m]) return false;
  }
  return true;
}

shard_chain_planner::chain_times shard_chain_planner::times_of(const shard_chain& chain) const {
  chain_times times;
  std::size_t first = 0;
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto m = chain[i].server;
    const auto end = first + chain[i].units;
    times.stages.push_back(
        {m, static_cast<double>(begun_[end] - begun_[first]) * prices_.attention_ns[m] +
                (chosen_before_[end] - chosen_before_[first]) * prices_.expert_ns[m]});
    if (i > 0) times.between_ns += prices_.hidden(chain[i - 1].server, m);
    first = end;
  }
  times.stages.back().busy_ns += prices_.head_ns[chain.back().server];
  times.between_ns += prices_.message(chain.back().server, chain.front().server);
  return times;
}

double shard_chain_planner::chain_times::alone_ns() const {
  double ns = between_ns;
  for (const auto& stage : stages) ns += stage.busy_ns;
  return ns;
}

void shard_chain_planner::mean_times::add(double share, const chain_times& chain) {
  for (const auto& [m, busy] : chain.stages) busy_ns[m] += share * busy;
  between_ns += share * chain.between_ns;
}

/// The mean value analysis. Everybody waits at a server for the same others, so that of all chains only what they bring there in
/// the mean is needed.
template <std::size_t N>
std::array<double, N> shard_chain_planner::means_ns(
    const std::array<const mean_times*, N>& of_all) const {
  constexpr int n_rounds = 12;
  const auto n = n_servers();
  std::array<std::array<double, N>, max_servers> busy, present, spent;
  for (std::size_t m = 0; m < n; ++m)
    for (std::size_t i = 0; i < N; ++i) {
      busy[m][i] = of_all[i]->busy_ns[m];
      present[m][i] = 0;
    }
  for (int round = 0;; ++round) {
    std::array<double, N> mean, met;
    for (std::size_t i = 0; i < N; ++i) mean[i] = of_all[i]->between_ns;
    for (std::size_t m = 0; m < n; ++m)
      for (std::size_t i = 0; i < N; ++i) {
        spent[m][i] = busy[m][i] * (1 + present[m][i]);
        mean[i] += spent[m][i];
      }
    if (others_ == 0 || round == n_rounds) return mean;
    for (std::size_t i = 0; i < N; ++i) met[i] = others_ / mean[i];
    for (std::size_t m = 0; m < n; ++m)
      for (std::size_t i = 0; i < N; ++i)
        present[m][i] = 0.5 * (present[m][i] + met[i] * spent[m][i]);
  }
}

/// As if arrivals could be shared out at will: each chain has the more of them the faster it is.
double shard_chain_planner::shared_out_ns(const all_times& chains) const {
  std::vector<double> shares;
  double sum = 0;
  for (const auto* times : chains) {
    shares.push_back(1 / times->alone_ns());
    sum += shares.back();
  }
  mean_times of_all(n_servers());
  for (std::size_t c = 0; c < chains.size(); ++c) of_all.add(shares[c] / sum, *chains[c]);
  return mean_ns(of_all);
}

double shard_chain_planner::entry_ns(std::size_t access, std::size_t first,
                                     std::size_t last) const {
  return (prices_.message(access, first) + prices_.message(last, access)) / positions_of_request;
}

double shard_chain_planner::cost_ns(const chain_layout& layout) const {
  std::vector<double> shares(layout.chains.size(), 0);
  double entries = 0;
  for (std::size_t a = 0; a < n_servers(); ++a) {
    const auto c = layout.chain_of[a];
    shares[c] += arrival_share_[a];
    entries += arrival_share_[a] *
               entry_ns(a, layout.chains[c].front().server, layout.chains[c].back().server);
  }
  mean_times of_all(n_servers());
  for (std::size_t c = 0; c < layout.chains.size(); ++c)
    of_all.add(shares[c], times_of(layout.chains[c]));
  return mean_ns(of_all) + entries;
}

void shard_chain_planner::assign(chain_layout& layout) const {
  std::vector<chain_times> times;
  for (const auto& chain : layout.chains) times.push_back(times_of(chain));
  std::vector<double> shares(layout.chains.size(), 0);
  std::vector<std::size_t> by_arrivals(n_servers());
  std::iota(by_arrivals.begin(), by_arrivals.end(), std::size_t{0});
  std::ranges::stable_sort(by_arrivals,
                           [&](auto a, auto b) { return arrival_share_[a] > arrival_share_[b]; });
  // The best chain for an access server while the others stay where they are.
  const auto best_for = [&](std::size_t a) {
    mean_times of_others(n_servers());
    for (std::size_t c = 0; c < times.size(); ++c) of_others.add(shares[c], times[c]);
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    constexpr std::size_t at_once = 4;
    for (std::size_t first = 0; first < times.size(); first += at_once) {
      // The last ones are there to make a whole number.
      const auto with = [&](std::size_t i) {
        auto all = of_others;
        all.add(arrival_share_[a], times[std::min(first + i, times.size() - 1)]);
        return all;
      };
      const std::array<mean_times, at_once> of_all{with(0), with(1), with(2), with(3)};
      const auto means = means_ns<at_once>({&of_all[0], &of_all[1], &of_all[2], &of_all[3]});
      for (std::size_t c = first; c < std::min(first + at_once, times.size()); ++c) {
        const auto& chain = layout.chains[c];
        const double ns = means[c - first] + arrival_share_[a] * entry_ns(a, chain.front().server,
                                                                          chain.back().server);
        if (ns >= least) continue;
        least = ns;
        best = c;
      }
    }
    return best;
  };
  layout.chain_of.assign(n_servers(), 0);
  for (const auto a : by_arrivals) {
    layout.chain_of[a] = best_for(a);
    shares[layout.chain_of[a]] += arrival_share_[a];
  }
  if (times.size() < 2) return;
  // Until as many servers in a row stayed where they were as there are.
  constexpr std::size_t most_rounds = 8;
  std::size_t n_stayed = 1;  // The last one has met all others.
  for (std::size_t i = 0; n_stayed < n_servers() && i < most_rounds * n_servers(); ++i) {
    const auto a = by_arrivals[i % n_servers()];
    auto& chain = layout.chain_of[a];
    shares[chain] -= arrival_share_[a];
    const auto best = best_for(a);
    n_stayed = best == chain ? n_stayed + 1 : 1;
    chain = best;
    shares[chain] += arrival_share_[a];
  }
}

plan shard_chain_planner::to_plan(const chain_layout& layout) const {
  plan made;
  made.strategy = "shard-chains";
  made.n_servers = n_servers();
  made.n_layers = n_layers_;
  made.n_experts = n_experts_;
  made.expert_bytes_limit = limit_bytes_;
  made.estimated_token_ns = cost_ns(layout);
  const auto held = stretches_of(layout, n_servers());
  for (std::size_t m = 0; m < n_servers(); ++m) {
    std::int64_t used = 0;
    for (const auto& part : held[m])
      for (auto unit = part.first; unit < part.end; ++unit)
        for (const auto expert : units_[unit].experts) {
          made.experts.push_back({server_id{m}, layer_id{units_[unit].layer}, expert_id{expert},
                                  placement_reason::layer_shard, layer_ns(m)});
          used += expert_bytes_;
        }
    made.expert_bytes_used.push_back(used);
  }
  for (std::size_t a = 0; a < n_servers(); ++a) {
    auto& homes = made.residence.emplace_back();
    std::size_t first = 0;
    for (const auto& stage : layout.chains[layout.chain_of[a]]) {
      const auto end = first + stage.units;
      for (auto unit = first; unit < end; ++unit)
        if (begun_[unit] < begun_[unit + 1]) homes.layers.push_back(server_bit(stage.server));
      first = end;
    }
  }
  return made;
}

}  // namespace ordermoe::planning
