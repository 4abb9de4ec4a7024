#include "planning/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>

#include "config/random.hpp"
#include "planning/cost_model.hpp"
#include "planning/placement.hpp"
#include "planning/trajectory.hpp"

namespace ordermoe::planning {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

constexpr server_mask bit(std::size_t server) {
  return server_mask{1} << server;
}

/// A placement and the residencies that requests use over it. Items are layer * n_experts + expert.
struct layout {
  std::vector<server_mask> hosts;                 ///< [n_items]
  std::vector<std::vector<std::uint32_t>> items;  ///< [n_servers] -> what it hosts
  std::vector<std::vector<server_mask>> chains;   ///< Distinct residencies, each [n_layers]
  std::vector<std::uint32_t> chain_of;            ///< [n_servers] by access server
};

struct score {
  double cost = infinity;  ///< What is minimised: mean time of a position, and the priced KV bytes.
  double token_ns = infinity;   ///< Mean time of a position alone.
  std::vector<double> prices;   ///< [chains] ns per nat at which the budget is met.
  std::vector<double> wait_ns;  ///< [n_servers] mean waits of the queues that are priced.
};

class searcher {
 public:
  using rated_layout = std::pair<layout, score>;

  searcher(const profile& experts, const cluster& servers, const cost_profile& costs,
           const search_options& options)
      : profile_(experts),
        options_(options),
        model_(experts, make_cost_model(servers, costs), options.sharing),
        kv_row_price_(options.kv_price * static_cast<double>(costs.kv_row_bytes)),
        scratch_(model_) {
    for (const auto& server : servers.servers) {
      const auto bytes =
          std::max<std::int64_t>(0, expert_memory_bytes(server, costs, model_.n_layers));
      capacity_.push_back(
          costs.expert_bytes > 0 ? static_cast<std::size_t>(bytes / costs.expert_bytes) : 0);
      share_.push_back(server.arrival_share);
    }
    n_items_ = model_.n_layers * model_.n_experts;
    scratch_.forbid_losses(is_exact());
  }

  std::size_t n_servers() const { return model_.n_servers; }
  bool is_loaded() const { return options_.concurrency > 1; }
  bool is_exact() const { return !(options_.quality_nats > 0); }
  std::size_t n_layers() const { return model_.n_layers; }
  std::size_t n_experts() const { return model_.n_experts; }

  layout layout_of(const plan& placed) const;
  void fill_free_memory(layout& content) const;
  std::vector<layout> pipelines(std::size_t n_most) const;
  std::vector<layout> parallel(const std::vector<rated_layout>& starts);
  /// `hints` [chains]: prices near those that meet the budget; they only save time.
  score evaluate(const layout& content, const std::vector<double>& hints = {});
  rated_layout anneal(layout start, std::size_t n_steps, random_stream& random);
  std::vector<rated_layout> diverse(const std::vector<rated_layout>& sorted, std::size_t n) const;
  layout merge_chains(const layout& content);
  /// From now on a residency that cannot be faster than this is rated by a lower bound only, at
  /// this price of nats; infinity: every one is rated in full.
  void set_cutoff(double token_ns, double price) {
    cutoff_ns_ = token_ns;
    cutoff_price_ = price;
  }
  void tidy(layout& content, score& rated);
  plan to_plan(const layout& content, const score& rated, const cluster& servers,
               const cost_profile& costs);

 private:
  struct chain_price {
    double price = 0, token_ns = 0;
  };
  chain_price meet_budget(const layout& content, std::size_t chain, double hint = 0);
  trajectory_usage usage_of(const layout& content, std::size_t chain, double price);
  double chain_share(const layout& content, std::size_t chain) const;
  double kv_cost(const std::vector<server_mask>& chain) const;
  double kv_cost(const layout& content) const;
  bool has_copies_to_spare(const layout& content, std::uint32_t item) const {
    return static_cast<std::size_t>(std::popcount(content.hosts[item])) > options_.min_copies;
  }
  void put(layout& content, std::size_t server, std::uint32_t item) const {
    content.hosts[item] |= bit(server);
    content.items[server].push_back(item);
  }
  void replace(layout& content, std::size_t server, std::size_t at, std::uint32_t item) const {
    content.hosts[content.items[server][at]] &= ~bit(server);
    content.hosts[item] |= bit(server);
    content.items[server][at] = item;
  }
  using homes = std::vector<std::size_t>;
  layout pipeline(const std::vector<homes>& chains) const;
  double rough_cost(const homes& home) const;
  bool propose(layout& content, random_stream& random) const;
  bool pull(layout& content, std::size_t server, std::uint32_t wanted, random_stream& random) const;
  bool move_residence(layout& content, random_stream& random) const;
  std::uint32_t wanted_item(const layout& content, std::size_t& server,
                            random_stream& random) const;
  std::vector<std::uint32_t> by_activation(std::size_t layer) const;

  const profile& profile_;
  const search_options& options_;
  trajectory_model model_;
  double kv_row_price_ = 0;
  trajectory scratch_;
  std::vector<std::size_t> capacity_;  ///< [n_servers] experts that fit
  std::vector<double> share_;
  std::size_t n_items_ = 0;
  double cutoff_ns_ = infinity, cutoff_price_ = 0;
};

layout searcher::layout_of(const plan& placed) const {
  layout out;
  out.hosts.assign(n_items_, 0);
  out.items.resize(n_servers());
  for (const auto& entry : placed.experts) {
    put(out, entry.server.index(),
        static_cast<std::uint32_t>(entry.layer.index() * n_experts() + entry.expert.index()));
  }
  for (const auto& by_access : placed.residence) {
    const auto found = std::find(out.chains.begin(), out.chains.end(), by_access.layers);
    out.chain_of.push_back(static_cast<std::uint32_t>(found - out.chains.begin()));
    if (found == out.chains.end()) out.chains.push_back(by_access.layers);
  }
  return out;
}

std::vector<std::uint32_t> searcher::by_activation(std::size_t layer) const {
  const auto& activation = profile_.layers[layer].activation;
  std::vector<std::uint32_t> order(n_experts());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](auto a, auto b) { return activation[a] > activation[b]; });
  return order;
}

/// Replicas for memory that is left: first what the residencies can use at a server, then the
/// rarest experts.
void searcher::fill_free_memory(layout& content) const {
  for (std::size_t m = 0; m < n_servers(); ++m) {
    if (content.items[m].size() >= capacity_[m]) continue;
    std::vector<std::pair<double, std::uint32_t>> worth;
    for (std::uint32_t item = 0; item < n_items_; ++item) {
      if (content.hosts[item] & bit(m)) continue;
      const auto l = item / n_experts();
      bool near = false;
      for (const auto& chain : content.chains) {
        near |= (chain[l] & bit(m)) != 0 || (chain[(l + 1) % n_layers()] & bit(m)) != 0;
      }
      const double activation = profile_.layers[l].activation[item % n_experts()];
      worth.emplace_back((near ? 100.0 : 0.0) + activation / std::popcount(content.hosts[item]),
                         item);
    }
    std::stable_sort(worth.begin(), worth.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& entry : worth) {
      if (content.items[m].size() >= capacity_[m]) break;
      put(content, m, entry.second);
    }
  }
}

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

/// One home for each layer of each chain; a home takes the most frequent experts of its layers,
/// what no home holds goes where the detour is shortest, and replicas fill the rest. Access servers
/// are dealt to the chains so that each gets about the same share of the arrivals.
layout searcher::pipeline(const std::vector<homes>& chains) const {
  layout out;
  out.hosts.assign(n_items_, 0);
  out.items.resize(n_servers());
  for (const auto& home : chains) {
    out.chains.emplace_back();
    for (const auto h : home) out.chains.back().push_back(bit(h));
  }
  out.chain_of.assign(n_servers(), 0);
  std::vector<std::size_t> accesses(n_servers());
  std::iota(accesses.begin(), accesses.end(), 0u);
  std::stable_sort(accesses.begin(), accesses.end(),
                   [&](auto a, auto b) { return share_[a] > share_[b]; });
  std::vector<double> dealt(chains.size(), 0);
  for (const auto a : accesses) {
    const auto least = std::min_element(dealt.begin(), dealt.end()) - dealt.begin();
    out.chain_of[a] = static_cast<std::uint32_t>(least);
    dealt[static_cast<std::size_t>(least)] += share_[a];
  }

  const auto& costs = model_.costs;
  std::vector<std::size_t> layers_left(n_servers(), 0), room = capacity_;
  for (std::size_t l = 0; l < n_layers(); ++l) {
    server_mask here = 0;
    for (const auto& home : chains) here |= bit(home[l]);
    for (std::size_t m = 0; m < n_servers(); ++m) layers_left[m] += (here >> m) & 1u;
  }
  for (std::size_t l = 0; l < n_layers(); ++l) {
    const auto order = by_activation(l);
    server_mask done = 0;
    for (const auto& home : chains) {
      const auto h = home[l];
      if (done & bit(h)) continue;
      done |= bit(h);
      auto quota = std::min(n_experts(), room[h] / layers_left[h]);
      --layers_left[h];
      for (const auto e : order) {
        if (quota == 0) break;
        put(out, h, static_cast<std::uint32_t>(l * n_experts() + e));
        --quota;
        --room[h];
      }
    }
  }
  for (std::size_t copy = 1; copy <= options_.min_copies; ++copy) {
    for (std::size_t l = 0; l < n_layers(); ++l) {
      for (const auto e : by_activation(l)) {
        const auto item = static_cast<std::uint32_t>(l * n_experts() + e);
        if (static_cast<std::size_t>(std::popcount(out.hosts[item])) >= copy) continue;
        std::size_t best = n_servers();
        double least = infinity;
        for (std::size_t m = 0; m < n_servers(); ++m) {
          if (room[m] == 0 || (out.hosts[item] & bit(m))) continue;
          double detour = 0;
          for (const auto& home : chains) {
            detour += costs.hidden(home[l], m) + costs.expert_ns[m] +
                      costs.hidden(m, home[(l + 1) % n_layers()]);
          }
          if (detour < least) {
            least = detour;
            best = m;
          }
        }
        if (best != n_servers()) {
          put(out, best, item);
          --room[best];
          continue;
        }
        // Homes filled the memory with second copies: one of them makes way.
        for (std::size_t m = 0; m < n_servers() && best == n_servers(); ++m) {
          if (out.hosts[item] & bit(m)) continue;
          for (std::size_t at = out.items[m].size(); at-- > 0;) {
            if (!has_copies_to_spare(out, out.items[m][at])) continue;
            replace(out, m, at, item);
            best = m;
            break;
          }
        }
        if (best == n_servers()) return {};
      }
    }
  }
  fill_free_memory(out);
  return out;
}

/// Two or three chains side by side, of the best single ones, for requests that would queue in one.
std::vector<layout> searcher::parallel(const std::vector<rated_layout>& starts) {
  std::vector<homes> singles;
  for (const auto& [content, rated] : starts) {
    if (content.chains.size() != 1) continue;
    homes home;
    for (const auto members : content.chains[0]) {
      if (std::popcount(members) == 1)
        home.push_back(static_cast<std::size_t>(std::countr_zero(members)));
    }
    if (home.size() != n_layers()) continue;
    server_mask servers = 0;
    for (const auto h : home) servers |= bit(h);
    // Chains over the same servers add no room to queue in.
    const bool is_new = std::none_of(singles.begin(), singles.end(), [&](const homes& other) {
      server_mask others = 0;
      for (const auto h : other) others |= bit(h);
      return others == servers;
    });
    if (is_new) singles.push_back(home);
    if (singles.size() == 24) break;
  }
  std::vector<layout> out;
  std::vector<std::pair<double, std::vector<homes>>> pairs;
  const auto offer = [&](const std::vector<homes>& chains) {
    auto content = pipeline(chains);
    if (content.hosts.empty()) return infinity;
    const double cost = evaluate(content).cost;
    out.push_back(std::move(content));
    return cost;
  };
  for (std::size_t a = 0; a < singles.size(); ++a) {
    for (std::size_t b = a + 1; b < singles.size(); ++b) {
      const std::vector<homes> chains{singles[a], singles[b]};
      pairs.emplace_back(offer(chains), chains);
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < std::min<std::size_t>(4, pairs.size()); ++i) {
    for (const auto& third : singles) {
      auto chains = pairs[i].second;
      if (std::find(chains.begin(), chains.end(), third) != chains.end()) continue;
      chains.push_back(third);
      offer(chains);
    }
  }
  return out;
}

/// What a chain of homes costs where the experts that its servers cannot hold are a detour away: to
/// choose which chains are worth a real estimate.
double searcher::rough_cost(const homes& home) const {
  const auto& costs = model_.costs;
  server_mask members = 0;
  for (const auto h : home) members |= bit(h);
  double room = 0;
  for (std::size_t m = 0; m < n_servers(); ++m) {
    if (members & bit(m)) room += static_cast<double>(capacity_[m]);
  }
  const double missing = std::max(0.0, 1 - room / static_cast<double>(n_items_));
  double total = 0;
  for (std::size_t l = 0; l < n_layers(); ++l) {
    const auto h = home[l], next = home[(l + 1) % n_layers()];
    double detour = n_servers() > 1 ? infinity : 0;
    for (std::size_t m = 0; m < n_servers(); ++m) {
      if (m != h) detour = std::min(detour, costs.hidden(h, m) + costs.hidden(m, h));
    }
    total += costs.attention_ns[h] + 2 * costs.expert_ns[h] + costs.hidden(h, next) +
             2 * missing * detour;
  }
  return total;
}

/// Pipelines over every small set of servers in every order, split by what the servers hold; on
/// large clusters only over sets of near neighbours.
std::vector<layout> searcher::pipelines(std::size_t n_most) const {
  std::vector<homes> seen;
  const auto add = [&](const homes& home) {
    if (std::find(seen.begin(), seen.end(), home) == seen.end()) seen.push_back(home);
  };
  const auto split = [&](const std::vector<std::size_t>& order) {
    double total = 0;
    for (const auto m : order) total += static_cast<double>(std::max<std::size_t>(1, capacity_[m]));
    std::vector<std::size_t> home;
    double before = 0;
    for (const auto m : order) {
      before += static_cast<double>(std::max<std::size_t>(1, capacity_[m]));
      const auto until =
          static_cast<std::size_t>(std::lround(before / total * static_cast<double>(n_layers())));
      while (home.size() < until) home.push_back(m);
    }
    home.resize(n_layers(), order.back());
    add(home);
  };
  constexpr std::size_t max_pool = 8, max_members = 4;
  for (std::size_t seed = 0; seed < n_servers(); ++seed) {
    std::vector<std::size_t> pool(n_servers());
    std::iota(pool.begin(), pool.end(), 0u);
    const auto distance = [&](std::size_t m) {
      return model_.costs.hidden(seed, m) + model_.costs.hidden(m, seed);
    };
    std::stable_sort(pool.begin(), pool.end(),
                     [&](auto a, auto b) { return distance(a) < distance(b); });
    // The seed itself stands first; only it may open the order, so that rotations are met once for
    // each seed.
    pool.erase(std::find(pool.begin(), pool.end(), seed));
    if (pool.size() > max_pool - 1) pool.resize(max_pool - 1);
    std::vector<std::size_t> order{seed};
    const auto extend = [&](auto&& self) -> void {
      split(order);
      if (order.size() == 2) {
        for (std::size_t cut = 1; cut < n_layers(); ++cut) {
          std::vector<std::size_t> home(n_layers(), order[1]);
          std::fill_n(home.begin(), cut, order[0]);
          add(home);
        }
      }
      if (order.size() >= std::min(max_members, n_layers())) return;
      for (const auto m : pool) {
        if (std::find(order.begin(), order.end(), m) != order.end()) continue;
        order.push_back(m);
        self(self);
        order.pop_back();
      }
    };
    extend(extend);
  }
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < seen.size(); ++i) order.emplace_back(rough_cost(seen[i]), i);
  std::sort(order.begin(), order.end());
  if (order.size() > n_most) order.resize(n_most);
  std::vector<layout> out;
  for (const auto& entry : order) {
    auto content = pipeline({seen[entry.second]});
    if (!content.hosts.empty()) out.push_back(std::move(content));
  }
  return out;
}

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
  if (content.hosts[wanted] & bit(server)) return false;
  auto& here = content.items[server];
  if (here.size() < capacity_[server]) {
    put(content, server, wanted);
    return true;
  }
  if (here.empty()) return false;
  const auto at = random.below(here.size());
  const auto leaving = here[at];
  if (has_copies_to_spare(content, leaving) && random.below(4) != 0) {
    replace(content, server, at, wanted);
    return true;
  }
  for (int attempt = 0; attempt < 4; ++attempt) {
    const auto other = random.below(n_servers());
    if (other == server || content.items[other].empty() || (content.hosts[leaving] & bit(other)))
      continue;
    const auto other_at = random.below(content.items[other].size());
    const auto displaced = content.items[other][other_at];
    if (displaced != wanted && !has_copies_to_spare(content, displaced)) continue;
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
      members = bit(s);
    } else if (kind == 2) {
      members |= bit(s);
    } else if (std::popcount(members) > 1) {
      members &= ~bit(s);
    }
    changed |= members != chain[i] && members != 0;
    if (members != 0) chain[i] = members;
  }
  return changed;
}

/// Changes the layout at random; false where the draw changes nothing.
bool searcher::propose(layout& content, random_stream& random) const {
  const auto kind = random.below(100);
  if (content.chains.size() > 1 && random.below(16) == 0) {
    auto& chain = content.chain_of[random.below(n_servers())];
    const auto other = static_cast<std::uint32_t>(random.below(content.chains.size()));
    const bool changed = chain != other;
    chain = other;
    return changed;
  }
  if (kind < 50) {
    std::size_t server = 0;
    const auto wanted = wanted_item(content, server, random);
    return pull(content, server, wanted, random);
  }
  if (kind < 75) {
    const auto a = random.below(n_servers()), b = random.below(n_servers());
    if (a == b || content.items[a].empty() || content.items[b].empty()) return false;
    const auto at = random.below(content.items[a].size()),
               bt = random.below(content.items[b].size());
    const auto x = content.items[a][at], y = content.items[b][bt];
    if ((content.hosts[x] & bit(b)) || (content.hosts[y] & bit(a))) return false;
    replace(content, a, at, y);
    replace(content, b, bt, x);
    return true;
  }
  if (kind < 85) return move_residence(content, random);
  if (kind < 93) {
    // Several experts of one layer to one server, with or without its home.
    const auto l = random.below(n_layers());
    std::size_t server = 0;
    wanted_item(content, server, random);
    bool changed = false;
    if (random.below(2) == 0) {
      auto& members = content.chains[random.below(content.chains.size())][l];
      changed = members != bit(server);
      members = bit(server);
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
  const double hot = 0.005 * best_score.cost, cold = 0.0001 * best_score.cost;
  const std::size_t period = std::max<std::size_t>(64, n_steps / 48);
  layout trial = current;
  for (std::size_t step = 0; step < n_steps; ++step) {
    if (step % 256 == 0 && options_.should_stop && options_.should_stop()) break;
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
    if (current_cost < best_score.cost * (1 - 1e-4)) {
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

/// The best layouts, at most two with the same servers as homes: starts that differ.
std::vector<searcher::rated_layout> searcher::diverse(const std::vector<rated_layout>& sorted,
                                                      std::size_t n) const {
  std::vector<rated_layout> out;
  std::vector<server_mask> used;
  for (const auto& candidate : sorted) {
    server_mask servers = 0;
    for (const auto& chain : candidate.first.chains) {
      for (const auto members : chain) servers |= members;
    }
    if (std::count(used.begin(), used.end(), servers) >= 2) continue;
    used.push_back(servers);
    out.push_back(candidate);
    if (out.size() == n) break;
  }
  return out;
}

/// Members of residencies that do not pay for their KV rows leave; replicas that no expected
/// trajectory uses become further copies of the rarest experts, for failures and drift.
void searcher::tidy(layout& content, score& rated) {
  for (std::size_t c = 0; c < content.chains.size(); ++c) {
    for (std::size_t l = 0; l < n_layers(); ++l) {
      for (std::size_t m = 0; m < n_servers(); ++m) {
        auto members = content.chains[c][l];
        if (!(members & bit(m)) || std::popcount(members) < 2) continue;
        auto fewer = content;
        fewer.chains[c][l] &= ~bit(m);
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
      if (runs[m * n_items_ + item] > 0 || !has_copies_to_spare(trial, item)) continue;
      auto rarest = item;
      const auto rarity = [&](std::uint32_t candidate, int copies) {
        return std::pair{
            copies, -profile_.layers[candidate / n_experts()].activation[candidate % n_experts()]};
      };
      auto least = rarity(item, std::popcount(trial.hosts[item]) - 1);
      for (std::uint32_t candidate = 0; candidate < n_items_; ++candidate) {
        if (trial.hosts[candidate] & bit(m)) continue;
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
  // a last copy.
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
        if (std::popcount(hosts[item]) < 2) continue;
        hosts[item] &= ~bit(m);
        scratch_.rebuild_layer(item / n_experts(), hosts, content.chains[c]);
        longer[m * n_items_ + item] += share * std::max(0.0, scratch_.solve_cost() - with);
        scratch_.roll_back();
        hosts[item] |= bit(m);
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
    out.expert_bytes_used.push_back(static_cast<std::int64_t>(items.size()) * costs.expert_bytes);
    out.expert_bytes_limit.push_back(
        std::max<std::int64_t>(0, expert_memory_bytes(servers.servers[m], costs, n_layers())));
    out.residence.push_back({content.chains[content.chain_of[m]]});
  }
  out.estimated_token_ns = rated.token_ns;
  return out;
}

}  // namespace

double estimate_plan(const profile& experts, const plan& placed, const cluster& servers,
                     const cost_profile& costs, const search_options& options) {
  searcher search(experts, servers, costs, options);
  return search.evaluate(search.layout_of(placed)).token_ns;
}

double price_of_budget(const profile& experts, const plan& placed, const cluster& servers,
                       const cost_profile& costs, std::size_t access,
                       const search_options& options) {
  searcher search(experts, servers, costs, options);
  const auto content = search.layout_of(placed);
  return search.evaluate(content).prices[content.chain_of[access]];
}

namespace {

using rated_layout = searcher::rated_layout;

bool by_cost(const rated_layout& a, const rated_layout& b) {
  return a.second.cost < b.second.cost;
}

/// Half of the steps to the best starts, the rest to the best results among them.
rated_layout anneal_best(searcher& search, std::vector<rated_layout> starts, std::size_t n_steps,
                         random_stream& random) {
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  auto best = starts.front();
  constexpr std::size_t n_first = 8, n_second = 2;
  starts = search.diverse(starts, n_first);
  for (auto& start : starts) {
    start = search.anneal(search.merge_chains(start.first), n_steps / 2 / starts.size(), random);
  }
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  if (starts.size() > n_second) starts.resize(n_second);
  for (auto& start : starts) {
    if (start.second.cost < best.second.cost) best = start;
    auto improved = search.anneal(start.first, n_steps / 2 / starts.size(), random);
    if (improved.second.cost < best.second.cost) best = std::move(improved);
  }
  return best;
}

}  // namespace

result<plan> place_by_search(const profile& experts, const cluster& servers,
                             const cost_profile& costs, const search_options& options) {
  if (experts.top_k > max_trajectory_slots) {
    return error{
        errc::unsupported,
        fmt::format("profile: found top-{}, expected at most top-{}; choose another strategy",
                    experts.top_k, max_trajectory_slots)};
  }
  placement_options simple;
  simple.min_copies = options.min_copies;
  auto popular = place_by_popularity(experts, servers, costs, simple);
  if (!popular) return popular.error();

  const auto plans = [&] {
    std::vector<result<plan>> made;
    made.push_back(std::move(popular));
    made.push_back(place_by_similarity(experts, servers, costs, simple));
    made.push_back(place_layer_shards(experts, servers, costs));
    made.push_back(
        place_layer_shards(experts, servers, costs, {.objective = shard_objective::throughput}));
    return made;
  }();

  // Starts for one position at a time; for a load, what is best without queues is a start as well.
  const auto starts_of = [&](searcher& search, std::vector<layout> more) {
    std::vector<rated_layout> starts;
    double least = infinity, last_price = 0;
    const auto offer = [&](layout content) {
      const auto enough = [&](server_mask hosts) {
        return static_cast<std::size_t>(std::popcount(hosts)) >= options.min_copies;
      };
      if (!std::all_of(content.hosts.begin(), content.hosts.end(), enough)) return;
      auto rated = search.evaluate(content, std::vector<double>(content.chains.size(), last_price));
      last_price = rated.prices.front();
      if (rated.cost < least && !search.is_loaded()) {
        least = rated.cost;
        search.set_cutoff(1.5 * least, last_price);
      }
      starts.emplace_back(std::move(content), std::move(rated));
    };
    for (auto& content : more) offer(std::move(content));
    for (const auto& made : plans) {
      if (!made) continue;
      auto content = search.layout_of(*made);
      offer(content);
      search.fill_free_memory(content);
      offer(content);
      offer(search.merge_chains(content));
      // Every pair of servers at every layer: worth the while only where a layer is quick to solve.
      if (experts.top_k > 2) continue;
      content.chains = {roaming_residency(search.n_servers(), search.n_layers())[0].layers};
      std::fill(content.chain_of.begin(), content.chain_of.end(), 0u);
      offer(std::move(content));
    }
    search.set_cutoff(infinity, 0);
    return starts;
  };

  random_stream random(options.seed, 0x5ea4c4);
  auto alone = options;
  alone.concurrency = 1;
  searcher single(experts, servers, costs, alone);
  auto starts =
      starts_of(single, single.pipelines(std::max<std::size_t>(32, options.n_steps / 10)));
  if (!(options.concurrency > 1)) {
    auto best = anneal_best(single, std::move(starts), options.n_steps, random);
    single.tidy(best.first, best.second);
    return single.to_plan(best.first, best.second, servers, costs);
  }

  // The plan for one position at a time is a start, so that planning for the load never loses to
  // it.
  std::stable_sort(starts.begin(), starts.end(), by_cost);
  auto fastest = anneal_best(single, starts, options.n_steps, random);
  single.tidy(fastest.first, fastest.second);
  searcher search(experts, servers, costs, options);
  auto more = search.parallel(starts);
  constexpr std::size_t n_singles = 64;
  for (std::size_t i = 0; i < std::min(n_singles, starts.size()); ++i)
    more.push_back(starts[i].first);
  more.push_back(fastest.first);
  auto loaded = starts_of(search, std::move(more));
  auto best = anneal_best(search, std::move(loaded), options.n_steps, random);
  search.tidy(best.first, best.second);
  return search.to_plan(best.first, best.second, servers, costs);
}

}  // namespace ordermoe::planning
