#include <algorithm>
#include <cmath>

#include "planning/search/searcher.hpp"

/// Random changes of a layout, and annealing over them.
namespace ordermoe::planning::searching {

namespace {

/// Of 100 random changes, how many are of each kind; the others move a residence and bring experts
/// along. Chosen by hand: most are the smallest there are, and there are some of each kind that
/// small ones reach only by getting worse first.
constexpr std::uint64_t n_single = 50, n_swaps = 25, n_residences = 10, n_layer_parts = 8;
/// Of as many changes one gives an access server another of the residencies.
constexpr std::uint64_t between_new_chains = 16;
/// Prices and waits are found anew so many times in an annealing, which costs a full rating each,
/// but never after fewer steps than pay for it.
constexpr std::size_t n_repricings = 48, least_period = 64;
/// Heat at the start and at the end, of the cost at the start. Where experts are many a move
/// changes little, and more heat would take apart what whole layers were put together for.
constexpr double hot_share = 0.005, hot_share_of_many = 0.0005, cold_share = 0.0001;
/// A full rating is due when the cost has fallen by more than this share.
constexpr double worth_rating = 1e-4;

}  // namespace

/// An expert that a server near the residencies lacks, and that server.
std::uint32_t searcher::wanted_item(const layout& content, std::size_t& server,
                                    random_stream& random) const {
  const auto l = random.below(n_layers());
  if (random.below(4) == 0) {
    server = random.below(n_servers());
  } else {
    const auto& chain = content.chains[random.below(content.chains.size())];
    auto members = chain[l] | (l + 1 < n_layers() ? chain[l + 1] : chain[0]);
    for (auto skip = random.below(static_cast<std::uint64_t>(std::popcount(members))); skip > 0;
         --skip) {
      members &= members - 1;
    }
    server = static_cast<std::size_t>(std::countr_zero(members));
  }
  const auto e = random.below(n_experts());
  return static_cast<std::uint32_t>(l * n_experts() + e);
}

/// Brings an expert to a full server: something leaves it, and if that was a last copy it takes the
/// place of a replica elsewhere or changes places with the wanted expert.
bool searcher::pull(layout& content, std::size_t server, std::uint32_t wanted,
                    random_stream& random) const {
  if (content.hosts[wanted] & server_bit(server)) return false;
  auto& here = content.items[server];
  if (here.size() < capacity_[server]) {
    put(content, server, wanted);
    return true;
  }
  if (here.empty()) return false;
  const auto at = random.below(here.size());
  const auto leaving = here[at];
  if (may_leave(content, server, leaving) && random.below(4) != 0) {
    replace(content, server, at, wanted);
    return true;
  }
  for (int attempt = 0; attempt < 4; ++attempt) {
    const auto other = random.below(n_servers());
    if (other == server || content.items[other].empty() ||
        (content.hosts[leaving] & server_bit(other)))
      continue;
    const auto other_at = random.below(content.items[other].size());
    const auto displaced = content.items[other][other_at];
    if (!may_move(content, leaving, server, other)) continue;
    if (displaced == wanted ? !may_move(content, wanted, other, server)
                            : !may_leave(content, other, displaced))
      continue;
    replace(content, other, other_at, leaving);
    replace(content, server, at, wanted);
    return true;
  }
  return false;
}

bool searcher::move_residence(layout& content, random_stream& random) const {
  auto& chain = content.chains[random.below(content.chains.size())];
  const auto l = random.below(n_layers());
  auto until = l + 1;
  if (random.below(2) == 0) until = l + 1 + random.below(n_layers() - l);
  const auto s = random.below(4) == 0
                     ? random.below(n_servers())
                     : static_cast<std::size_t>(std::countr_zero(chain[random.below(n_layers())]));
  const auto kind = random.below(4);
  bool changed = false;
  for (auto i = l; i < until; ++i) {
    auto members = chain[i];
    if (kind < 2) {
      members = server_bit(s);
    } else if (kind == 2) {
      members |= server_bit(s);
    } else if (std::popcount(members) > 1) {
      members &= ~server_bit(s);
    }
    // Several members of R_0 make every solve many; they do not pay for that where experts are
    // many.
    if (i == 0 && has_many_experts() && std::popcount(members) > 1) members = chain[i];
    changed |= members != chain[i] && members != 0;
    if (members != 0) chain[i] = members;
  }
  return changed;
}

/// Changes the layout at random; false where the draw changes nothing.
bool searcher::propose(layout& content, random_stream& random) const {
  const auto kind = random.below(100);
  if (content.chains.size() > 1 && random.below(between_new_chains) == 0) {
    auto& chain = content.chain_of[random.below(n_servers())];
    const auto other = static_cast<std::uint32_t>(random.below(content.chains.size()));
    const bool changed = chain != other;
    chain = other;
    return changed;
  }
  if (kind < n_single) {
    std::size_t server = 0;
    const auto wanted = wanted_item(content, server, random);
    return pull(content, server, wanted, random);
  }
  if (kind < n_single + n_swaps) {
    const auto a = random.below(n_servers()), b = random.below(n_servers());
    if (a == b || content.items[a].empty() || content.items[b].empty()) return false;
    const auto at = random.below(content.items[a].size()),
               bt = random.below(content.items[b].size());
    const auto x = content.items[a][at], y = content.items[b][bt];
    if ((content.hosts[x] & server_bit(b)) || (content.hosts[y] & server_bit(a))) return false;
    if (!may_move(content, x, a, b) || !may_move(content, y, b, a)) return false;
    replace(content, a, at, y);
    replace(content, b, bt, x);
    return true;
  }
  if (kind < n_single + n_swaps + n_residences) return move_residence(content, random);
  if (kind < n_single + n_swaps + n_residences + n_layer_parts) {
    // Several experts of one layer to one server, with or without its home.
    const auto l = random.below(n_layers());
    std::size_t server = 0;
    wanted_item(content, server, random);
    bool changed = false;
    if (random.below(2) == 0) {
      auto& members = content.chains[random.below(content.chains.size())][l];
      changed = members != server_bit(server);
      members = server_bit(server);
    }
    const auto n_pulled = 1 + random.below(n_experts());
    for (std::uint64_t i = 0; i < n_pulled; ++i) {
      changed |=
          pull(content, server,
               static_cast<std::uint32_t>(l * n_experts() + random.below(n_experts())), random);
    }
    return changed;
  }
  bool changed = move_residence(content, random);
  std::size_t server = 0;
  for (int i = 0; i < 2; ++i) {
    const auto wanted = wanted_item(content, server, random);
    changed |= pull(content, server, wanted, random);
  }
  return changed;
}

searcher::rated_layout searcher::anneal(layout start, std::size_t n_steps, random_stream& random) {
  auto current = std::move(start);
  auto best = current;
  auto best_score = evaluate(current);
  auto prices = best_score.prices;
  const auto n_chains = current.chains.size();
  std::vector<trajectory> problems(n_chains, trajectory(model_));
  for (auto& problem : problems) {
    problem.track_usage(is_loaded());
    problem.forbid_losses(is_exact());
  }
  const bool priced = options_.quality_nats > 0 && !std::isinf(options_.quality_nats);
  auto wait_ns = best_score.wait_ns;
  const auto cost_now = [&](const layout& content) {
    double cost = kv_cost(content);
    const auto over_budget = [&](std::size_t c, double nats) {
      return priced ? problems[c].price() * (nats - options_.quality_nats) : 0.0;
    };
    if (!is_loaded()) {
      for (std::size_t c = 0; c < n_chains; ++c) {
        cost += problems[c].solve_cost();
        if (priced) cost -= problems[c].price() * options_.quality_nats;
      }
      return cost;
    }
    trajectory_usage usage;
    double token_ns = 0;
    for (std::size_t c = 0; c < n_chains; ++c) {
      const double share = chain_share(content, c);
      if (share == 0) continue;
      const auto estimate = problems[c].solve();
      token_ns += share * estimate.token_ns;
      cost += share * over_budget(c, estimate.token_nats);
      usage.add(share, problems[c].usage());
    }
    return cost + estimate_queues(model_, usage, token_ns, options_.concurrency, wait_ns).token_ns;
  };
  const auto restart = [&] {
    for (std::size_t c = 0; c < n_chains; ++c) {
      problems[c].set_price(prices[c]);
      problems[c].set_waits(wait_ns);
      problems[c].rebuild(current.hosts, current.chains[c]);
    }
    return cost_now(current);
  };
  double current_cost = restart();
  const double hot = (has_many_experts() ? hot_share_of_many : hot_share) * best_score.cost,
               cold = cold_share * best_score.cost;
  const std::size_t period = std::max(least_period, n_steps / n_repricings);
  layout trial = current;
  for (std::size_t step = 0; step < n_steps; ++step) {
    if (step % 16 == 0 && stopped()) break;
    if ((priced || is_loaded()) && step % period == period - 1) {
      const auto rated = evaluate(current, prices);
      prices = rated.prices;
      wait_ns = rated.wait_ns;
      current_cost = restart();
    }
    const double heat =
        hot * std::pow(cold / hot, static_cast<double>(step) / static_cast<double>(n_steps));
    const double threshold = current_cost - heat * std::log(1.0 - random.unit());
    if (!propose(trial, random)) {
      trial = current;
      continue;
    }
    for (std::size_t c = 0; c < n_chains; ++c) {
      for (std::size_t l = 0; l < n_layers(); ++l) {
        const auto offset = static_cast<std::ptrdiff_t>(l * n_experts());
        const bool moved =
            !std::equal(trial.hosts.begin() + offset,
                        trial.hosts.begin() + offset + static_cast<std::ptrdiff_t>(n_experts()),
                        current.hosts.begin() + offset);
        const auto next = (l + 1) % n_layers();
        const bool rehomed = trial.chains[c][l] != current.chains[c][l] ||
                             trial.chains[c][next] != current.chains[c][next];
        if (moved || rehomed) problems[c].rebuild_layer(l, trial.hosts, trial.chains[c]);
      }
    }
    const double trial_cost = cost_now(trial);
    if (trial_cost > threshold) {
      for (auto& problem : problems) problem.roll_back();
      trial = current;
      continue;
    }
    for (auto& problem : problems) problem.commit();
    current = trial;
    current_cost = trial_cost;
    // At any price the cost is a lower bound of the cost at the price that meets the budget.
    if (current_cost < best_score.cost * (1 - worth_rating)) {
      auto rated = evaluate(current, prices);
      if (rated.cost < best_score.cost) {
        best = current;
        best_score = rated;
      }
      if (priced || is_loaded()) {
        prices = rated.prices;
        wait_ns = rated.wait_ns;
        current_cost = restart();
      }
    }
  }
  if (current_cost < best_score.cost) {
    auto rated = evaluate(current, prices);
    if (rated.cost < best_score.cost) return {std::move(current), std::move(rated)};
  }
  return {std::move(best), std::move(best_score)};
}

}  // namespace ordermoe::planning::searching
