#include "planning/search/trajectory.hpp"

#include <algorithm>
#include <cmath>

#include "planning/pruning.hpp"

namespace ordermoe::planning {

namespace {

/// Between choices of equal time the smaller loss wins, even where nats are free.
constexpr double least_price = 1.0;

}  // namespace

trajectory::trajectory(const trajectory_model& model)
    : model_(model),
      wait_ns_(model.n_servers, 0),
      layers_(model.n_layers),
      ranks_(model.n_layers),
      n_ranks_(model.n_slots),
      builder_(model),
      value_(model.n_layers),
      value_nats_(model.n_layers),
      next_(model.n_layers),
      onward_(model.n_layers) {}

void trajectory::set_price(double ns_per_nat) {
  price_ = std::max(ns_per_nat, least_price);
}

void trajectory::set_waits(std::vector<double> wait_ns) {
  wait_ns_ = std::move(wait_ns);
  wait_ns_.resize(model_.n_servers, 0);
}

namespace {

struct ends {
  std::vector<std::uint8_t> from, to;
};

/// Members of R_l, and where a token may go from there.
void set_ends(const trajectory_model& model, std::size_t layer,
              std::span<const server_mask> residence, std::vector<std::uint8_t>& from,
              std::vector<std::uint8_t>& to) {
  from.clear();
  to.clear();
  for_each_server(residence[layer],
                  [&](std::size_t s) { from.push_back(static_cast<std::uint8_t>(s)); });
  const bool last = layer + 1 == model.n_layers;
  const auto onward = last ? residence[layer] | residence[0] : residence[layer + 1];
  for_each_server(onward, [&](std::size_t s) { to.push_back(static_cast<std::uint8_t>(s)); });
}

}  // namespace

void trajectory::rebuild(std::span<const server_mask> hosts,
                         std::span<const server_mask> residence) {
  commit();
  ends now;
  for (std::size_t l = 0; l < model_.n_layers; ++l) {
    auto& known = layers_[l];
    set_ends(model_, l, residence, now.from, now.to);
    const auto here = hosts.subspan(l * model_.n_experts, model_.n_experts);
    // Where only the price changed, the fronts are what they were.
    if (has_fronts() &&
        front_builder::is_for(known.fronts, here, now.from, now.to, wait_ns_, exact_fronts()))
      price_fronts(l, known);
    else
      rebuild_layer(l, hosts, residence);
  }
  commit();
}

void trajectory::rebuild_layer(std::size_t layer, std::span<const server_mask> hosts,
                               std::span<const server_mask> residence) {
  layer_costs fresh;
  if (!spare_.empty()) {
    fresh = std::move(spare_.back());
    spare_.pop_back();
  }
  set_ends(model_, layer, residence, fresh.from, fresh.to);
  auto& known = layers_[layer];
  if (has_fronts()) {
    builder_.build(layer, hosts.subspan(layer * model_.n_experts, model_.n_experts), fresh.from,
                   fresh.to, wait_ns_, exact_fronts(), known.fronts, fresh.fronts);
    price_fronts(layer, fresh);
  } else {
    fill_few(layer, hosts, fresh);
  }
  std::swap(fresh, known);
  const bool seen = std::any_of(replaced_.begin(), replaced_.end(),
                                [&](const auto& entry) { return entry.first == layer; });
  if (seen)
    spare_.push_back(std::move(fresh));
  else
    replaced_.emplace_back(layer, std::move(fresh));
}

/// The cheapest choice of each set; among equals the one with the smaller loss.
void trajectory::price_fronts(std::size_t layer, layer_costs& out) const {
  const auto& fronts = out.fronts;
  const auto n_slots = model_.n_slots;
  const auto n = out.from.size() * out.to.size() * model_.layers[layer].n_sets;
  const bool exact = std::isinf(price_);
  out.cost.resize(n);
  out.nats.resize(n);
  if (tracks_usage_) out.runs.resize(n * n_slots);
  for (std::size_t at = 0; at < n; ++at) {
    auto best = fronts.first[at + 1] - 1;
    double cost = fronts.points[best].ns + (exact ? 0 : price_ * fronts.points[best].nats);
    for (auto i = best; !exact && i-- > fronts.first[at];) {
      const double other = fronts.points[i].ns + price_ * fronts.points[i].nats;
      if (other >= cost) break;  // Along a convex hull it only rises from here.
      cost = other;
      best = i;
    }
    out.cost[at] = cost;
    out.nats[at] = fronts.points[best].nats;
    if (tracks_usage_)
      std::copy_n(fronts.points[best].runs.begin(), n_slots, out.runs.data() + at * n_slots);
  }
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

/// One backward sweep from the end of a position to the starts of it; bias [R_0] values a start of
/// the next one.
template <bool WithNats>
void trajectory::backward(std::span<const double> bias) {
  const auto& costs = model_.costs;
  const auto last = model_.n_layers - 1;
  const auto& starts = layers_[0].from;
  restart_.assign(model_.n_servers, 0);
  onward_nats_.clear();
  for (std::size_t l = model_.n_layers; l-- > 0;) {
    auto& onward = onward_[l];
    const auto& table = layers_[l];
    const auto& content = model_.layers[l];
    const auto n_sets = content.n_sets, n_to = table.to.size();
    // W_{l+1}(n, q) for every n: [n_to, n_sets].
    onward.assign(n_to * n_sets, 0);
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
          onward[i * n_sets + q] = least;
        }
      }
    } else {
      const auto n_after = model_.layers[l + 1].n_sets;
      for (std::size_t i = 0; i < n_to; ++i) {
        const std::size_t n = table.to[i];
        double* out = onward.data() + i * n_sets;
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
        const double* after = onward.data() + i * n_sets;
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

/// Whether no layer leaves a choice of residence. Where experts are few, positions are solved in
/// the one way whatever the residences, so that plans do not depend on this.
bool trajectory::is_pipeline() const {
  return has_fronts() && layers_.front().from.size() == 1 &&
         std::all_of(layers_.begin(), layers_.end(),
                     [](const auto& table) { return table.to.size() == 1; });
}

/// Without choices of residence each layer adds the mean of its sets.
trajectory_estimate trajectory::solve_pipeline() {
  const auto& costs = model_.costs;
  const std::size_t start = layers_.front().from[0], end = layers_.back().to[0];
  trajectory_estimate sum;
  sum.token_ns = wait_ns_[end] + costs.head_ns[end] + costs.message(end, start);
  for (std::size_t l = 0; l < model_.n_layers; ++l) {
    const auto& table = layers_[l];
    const auto& visits = model_.layers[l].visits;
    sum.token_ns += wait_ns_[table.from[0]] + costs.attention_ns[table.from[0]];
    for (std::size_t q = 0; q < visits.size(); ++q) {
      sum.token_ns += visits[q] * table.cost[q];
      sum.token_nats += visits[q] * table.nats[q];
    }
    next_[l].assign(visits.size(), 0);
  }
  restart_.assign(model_.n_servers, 0);
  start_share_.assign(1, 1);
  return sum;
}

void trajectory::hold_policy() {
  held_.assign(model_.n_layers, {});
  const bool pipeline = is_pipeline();
  for (std::size_t l = 0; l < model_.n_layers; ++l) {
    const auto n_sets = model_.layers[l].n_sets;
    held_[l].mass.assign(layers_[l].from.size() * n_sets, 0);
    held_[l].onward = onward_[l];
    if (pipeline) held_[l].onward.assign(n_sets, 0);
  }
  sweep_forward(start_share_,
                [&](std::size_t l, std::size_t s, std::size_t q, std::size_t, double weight) {
                  held_[l].mass[s * model_.layers[l].n_sets + q] += weight;
                });
}

double trajectory::held_cost(std::size_t layer) const {
  const auto& table = layers_[layer];
  const auto& [mass, onward] = held_[layer];
  const auto n_sets = model_.layers[layer].n_sets, n_to = table.to.size();
  ORDERMOE_CHECK(mass.size() == table.from.size() * n_sets && onward.size() == n_to * n_sets,
                 "a held policy is for the residences that it was held with");
  double sum = 0;
  for (std::size_t s = 0; s < table.from.size(); ++s)
    for (std::size_t q = 0; q < n_sets; ++q) {
      double least = never;
      for (std::size_t i = 0; i < n_to; ++i)
        least = std::min(least, table.cost[(s * n_to + i) * n_sets + q] + onward[i * n_sets + q]);
      sum += mass[s * n_sets + q] * least;
    }
  return sum;
}

/// With one member in R_0 every position is like the last. With more, policy iteration over the
/// starts of positions, with a discount close to 1 so that starts that keep to themselves can be
/// compared.
template <bool WithNats>
trajectory_estimate trajectory::solve_as() {
  if (is_pipeline()) return solve_pipeline();
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
      double* out = after.data() + i * n_after;
      for (std::size_t q = 0; q < n_sets; ++q) {
        const double from = moved[i * n_sets + q];
        if (from == 0) continue;  // Most residences are the choice of few sets.
        const double* weight = model_.layers[l].outgoing.data() + q * n_after;
        for (std::size_t p = 0; p < n_after; ++p) out[p] += weight[p] * from;
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
        server_mask visited = server_bit(from);
        for (std::size_t j = 0; j < n_slots; ++j) {
          if (std::find(runs, runs + j, runs[j]) != runs + j) continue;
          const std::size_t m = runs[j] / n_experts;
          visited |= server_bit(m);
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

trajectory_estimate estimate_trajectory(const profile& profile, const plan& placed,
                                        const cluster& servers, const cost_profile& costs,
                                        std::size_t access, double ns_per_nat) {
  const trajectory_model model(
      placed.pruned.empty() ? profile : with_pruned(profile, placed.pruned[access]),
      make_cost_model(servers, costs));
  const placement_index index(placed);
  std::vector<server_mask> hosts;
  for (std::size_t l = 0; l < model.n_layers; ++l) {
    for (std::size_t k = 0; k < model.n_experts; ++k) hosts.push_back(index.hosts(l, k));
  }
  trajectory problem(model);
  problem.set_price(ns_per_nat);
  problem.forbid_losses(std::isinf(ns_per_nat));
  problem.rebuild(hosts, placed.residence[access].layers);
  return problem.solve();
}

}  // namespace ordermoe::planning
