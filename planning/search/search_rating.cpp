#include <algorithm>
#include <cmath>
#include <optional>

#include "planning/search/searcher.hpp"

/// What a layout costs.
namespace ordermoe::planning::searching {

double searcher::chain_share(const layout& content, std::size_t chain) const {
  double share = 0;
  for (std::size_t a = 0; a < n_servers(); ++a) {
    if (content.chain_of[a] == chain) share += share_[a];
  }
  return share;
}

/// KV rows that a position streams from the attending member of each layer to the others.
double searcher::kv_cost(const std::vector<server_mask>& chain) const {
  double rows = 0;
  for (const auto members : chain) rows += std::popcount(members) - 1;
  return rows * kv_row_price_;
}

double searcher::kv_cost(const layout& content) const {
  double total = 0;
  for (std::size_t c = 0; c < content.chains.size(); ++c) {
    total += chain_share(content, c) * kv_cost(content.chains[c]);
  }
  return total;
}

/// The least mean time whose mean nats keep the budget, where positions may mix two policies: the
/// maximum over the price of  time + price * (nats - budget). Found by intersecting the lines of
/// the policies on either side.
searcher::chain_price searcher::meet_budget(const layout& content, std::size_t chain, double hint) {
  const auto at_price = [&](double price) {
    scratch_.set_price(price);
    scratch_.rebuild(content.hosts, content.chains[chain]);
    return scratch_.solve();
  };
  const double budget = options_.quality_nats;
  if (!(budget > 0)) return {infinity, at_price(infinity).token_ns};
  if (cutoff_ns_ < infinity && !std::isinf(budget)) {
    // At any price the cost is a lower bound.
    const auto bound = at_price(cutoff_price_);
    const double least = bound.token_ns + cutoff_price_ * (bound.token_nats - budget);
    if (least > cutoff_ns_) return {cutoff_price_, least};
  }
  std::optional<trajectory_estimate> over, under;
  const auto try_price = [&](double price) {
    const auto estimate = at_price(price);
    (estimate.token_nats > budget ? over : under) = estimate;
  };
  if (hint > 0 && !std::isinf(hint)) {
    try_price(hint);
    double factor = 1.2, price = hint;
    for (int i = 0; i < 4 && !(over && under); ++i, factor *= factor) {
      price = over ? price * factor : price / factor;
      try_price(price);
    }
  }
  if (!over) {
    const auto free = at_price(0);
    if (free.token_nats <= budget) return {0, free.token_ns};
    over = free;
  }
  auto spends = *over;
  auto saves = under ? *under : at_price(infinity);
  double price = 0;
  for (int round = 0; round < 40; ++round) {
    price = (saves.token_ns - spends.token_ns) / (spends.token_nats - saves.token_nats);
    const double line = saves.token_ns + price * saves.token_nats;
    const auto between = at_price(price);
    if (between.token_ns + price * between.token_nats >= line * (1 - 1e-9)) break;
    (between.token_nats > budget ? spends : saves) = between;
  }
  return {price, saves.token_ns + price * (saves.token_nats - budget)};
}

trajectory_usage searcher::usage_of(const layout& content, std::size_t chain, double price) {
  scratch_.track_usage(true);
  scratch_.set_price(price);
  scratch_.rebuild(content.hosts, content.chains[chain]);
  scratch_.track_usage(false);
  scratch_.solve();
  return scratch_.usage();
}

score searcher::evaluate(const layout& content, const std::vector<double>& hints) {
  score best;
  std::vector<double> wait_ns(n_servers(), 0);
  // Queues and the policies that avoid them answer each other; the best of a few rounds is kept.
  const int n_rounds = is_loaded() ? 4 : 1;
  for (int round = 0; round < n_rounds; ++round) {
    scratch_.set_waits(wait_ns);
    score rated;
    rated.token_ns = 0;
    rated.wait_ns = wait_ns;
    trajectory_usage usage;
    for (std::size_t c = 0; c < content.chains.size(); ++c) {
      const double share = chain_share(content, c);
      if (share == 0 && is_loaded()) {
        rated.prices.push_back(0);
        continue;
      }
      const auto met = meet_budget(content, c, c < hints.size() ? hints[c] : 0);
      rated.prices.push_back(met.price);
      rated.token_ns += share * met.token_ns;
      if (is_loaded()) {
        usage.add(share, usage_of(content, c, met.price));
      }
    }
    if (is_loaded()) {
      const auto queues =
          estimate_queues(model_, usage, rated.token_ns, options_.concurrency, wait_ns);
      rated.token_ns = queues.token_ns;
      for (std::size_t m = 0; m < n_servers(); ++m) {
        wait_ns[m] = round == 0 ? queues.wait_ns[m] : 0.5 * (wait_ns[m] + queues.wait_ns[m]);
      }
    }
    rated.cost = rated.token_ns + kv_cost(content);
    if (rated.cost < best.cost) best = std::move(rated);
  }
  scratch_.set_waits(best.wait_ns);
  return best;
}

/// Where no queue is priced, the time of a position does not depend on the access server: every
/// request may use the fastest residency.
layout searcher::merge_chains(const layout& content) {
  layout out = content;
  if (content.chains.size() < 2 || is_loaded()) return out;
  double least = infinity;
  for (std::size_t c = 0; c < content.chains.size(); ++c) {
    const double cost = meet_budget(content, c).token_ns + kv_cost(content.chains[c]);
    if (cost >= least) continue;
    least = cost;
    out.chains = {content.chains[c]};
  }
  std::fill(out.chain_of.begin(), out.chain_of.end(), 0u);
  return out;
}

}  // namespace ordermoe::planning::searching
