#include <algorithm>

#include "planning/search/searcher.hpp"

/// The plan at the end of a search.
namespace ordermoe::planning::searching {

/// Members of residencies that do not pay for their KV rows leave; replicas that no expected
/// trajectory uses become further copies of the rarest experts, for failures and drift.
void searcher::tidy(layout& content, score& rated) {
  for (std::size_t c = 0; c < content.chains.size(); ++c) {
    for (std::size_t l = 0; l < n_layers(); ++l) {
      for (std::size_t m = 0; m < n_servers(); ++m) {
        if (stopped()) return;
        auto members = content.chains[c][l];
        if (!(members & server_bit(m)) || std::popcount(members) < 2) continue;
        auto fewer = content;
        fewer.chains[c][l] &= ~server_bit(m);
        auto again = evaluate(fewer, rated.prices);
        if (again.cost > rated.cost) continue;
        content = std::move(fewer);
        rated = std::move(again);
      }
    }
  }
  std::vector<double> runs(n_servers() * n_items_, 0);
  scratch_.set_waits(rated.wait_ns);
  for (std::size_t c = 0; c < content.chains.size(); ++c) {
    const auto usage = usage_of(content, c, rated.prices[c]);
    for (std::size_t i = 0; i < runs.size(); ++i) runs[i] += usage.expert_runs[i];
  }
  auto trial = content;
  for (std::size_t m = 0; m < n_servers(); ++m) {
    for (std::size_t at = 0; at < trial.items[m].size(); ++at) {
      const auto item = trial.items[m][at];
      if (runs[m * n_items_ + item] > 0 || !may_leave(trial, m, item)) continue;
      auto rarest = item;
      const auto rarity = [&](std::uint32_t candidate, int copies) {
        return std::pair{
            copies, -profile_.layers[candidate / n_experts()].activation[candidate % n_experts()]};
      };
      auto least = rarity(item, std::popcount(trial.hosts[item]) - 1);
      for (std::uint32_t candidate = 0; candidate < n_items_; ++candidate) {
        if (trial.hosts[candidate] & server_bit(m)) continue;
        const auto rare = rarity(candidate, std::popcount(trial.hosts[candidate]));
        if (rare < least) {
          least = rare;
          rarest = candidate;
        }
      }
      if (rarest != item) replace(trial, m, at, rarest);
    }
  }
  auto again = evaluate(trial, rated.prices);
  if (again.cost > rated.cost) return;
  content = std::move(trial);
  rated = std::move(again);
}

plan searcher::to_plan(const layout& content, const score& rated, const cluster& servers,
                       const cost_profile& costs) {
  plan out;
  out.strategy = "ordermoe";
  out.n_servers = n_servers();
  out.n_layers = n_layers();
  out.n_experts = n_experts();
  out.grouping.clear();
  // Each copy's score: how much longer a position would take without it, at the same prices; 0 for
  // a last copy, or the last as the model has it.
  std::vector<double> longer(n_servers() * n_items_, 0);
  scratch_.set_waits(rated.wait_ns);
  for (std::size_t c = 0; c < content.chains.size(); ++c) {
    const double share = chain_share(content, c);
    auto hosts = content.hosts;
    scratch_.set_price(rated.prices[c]);
    scratch_.rebuild(hosts, content.chains[c]);
    const double with = scratch_.solve_cost();
    for (std::size_t m = 0; m < n_servers(); ++m) {
      for (const auto item : content.items[m]) {
        if (std::popcount(hosts[item]) < 2 || !is_exact_at(hosts[item] & ~server_bit(m))) continue;
        hosts[item] &= ~server_bit(m);
        scratch_.rebuild_layer(item / n_experts(), hosts, content.chains[c]);
        longer[m * n_items_ + item] += share * std::max(0.0, scratch_.solve_cost() - with);
        scratch_.roll_back();
        hosts[item] |= server_bit(m);
      }
    }
  }
  for (std::size_t m = 0; m < n_servers(); ++m) {
    auto items = content.items[m];
    std::sort(items.begin(), items.end());
    for (const auto item : items) {
      out.experts.push_back({server_id{m}, layer_id{item / n_experts()},
                             expert_id{item % n_experts()}, placement_reason::search,
                             longer[m * n_items_ + item]});
    }
    out.expert_bytes_used.push_back(static_cast<std::int64_t>(items.size()) *
                                    expert_bytes(servers.servers[m], costs));
    out.expert_bytes_limit.push_back(
        std::max<std::int64_t>(0, expert_memory_bytes(servers.servers[m], costs, n_layers())));
    out.residence.push_back({content.chains[content.chain_of[m]]});
  }
  out.estimated_token_ns = rated.token_ns;
  return out;
}

}  // namespace ordermoe::planning::searching
