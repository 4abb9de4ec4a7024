#include "planning/strategies/adaptation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "config/error.hpp"
#include "config/json.hpp"
#include "planning/search/search.hpp"

namespace ordermoe::planning {

bool has_budget_use(loss_units budget) {
  return budget > 0 && budget < unbounded_budget;
}

observed_request observe(const answered_request& request, std::size_t chunk_rows,
                         std::span<const double> exact_position_ns) {
  const auto chunks = (request.prompt_tokens + chunk_rows - 1) / chunk_rows;
  const auto after_first = request.new_tokens > 0 ? request.new_tokens - 1 : 0;
  const auto reference_ns =
      static_cast<double>(chunks + after_first) * exact_position_ns[request.access];
  return {static_cast<double>(request.spent) / static_cast<double>(request.budget),
          static_cast<double>(request.done_ns - request.admitted_ns) / reference_ns};
}

std::vector<double> exact_position_ns(const profile& profile, const plan& placed,
                                      const cluster& servers, const cost_profile& costs) {
  std::vector<double> position_ns;
  for (std::size_t access = 0; access < servers.size(); ++access)
    position_ns.push_back(estimate_trajectory(profile, placed, servers, costs, access,
                                              std::numeric_limits<double>::infinity())
                              .token_ns);
  return position_ns;
}

selection_weights adapt_to_window(double omega_quality, double kappa,
                                  std::span<const observed_request> window) {
  ORDERMOE_CHECK(!window.empty(), "a window holds at least one request");
  double use = 0, delay = 0;
  for (const auto& request : window) {
    use += request.budget_use;
    delay += request.normalised_delay;
  }
  const auto n = static_cast<double>(window.size());
  return adapt_weights(omega_quality, kappa, use / n, delay / n);
}

activation_statistics::activation_statistics(std::size_t n_layers, std::size_t n_experts,
                                             double half_life_rows)
    : n_experts_(n_experts),
      half_life_rows_(half_life_rows),
      counts_(n_layers * n_experts),
      rows_(n_layers),
      seen_(n_layers) {}

void activation_statistics::add(std::span<const std::uint32_t> counts,
                                std::span<const std::uint32_t> rows) {
  ORDERMOE_CHECK(counts.size() == counts_.size() && rows.size() == rows_.size(),
                 "counts have the shape of the statistics");
  for (std::size_t l = 0; l < rows_.size(); ++l) {
    const auto fade = std::exp2(-static_cast<double>(rows[l]) / half_life_rows_);
    rows_[l] = rows_[l] * fade + rows[l];
    seen_[l] += rows[l];
    for (std::size_t e = l * n_experts_; e < (l + 1) * n_experts_; ++e)
      counts_[e] = counts_[e] * fade + counts[e];
  }
}

std::uint64_t activation_statistics::rows_seen() const {
  return seen_.empty() ? 0 : *std::min_element(seen_.begin(), seen_.end());
}

std::vector<double> activation_statistics::shares(std::size_t layer) const {
  const auto begin = counts_.begin() + static_cast<std::ptrdiff_t>(layer * n_experts_);
  std::vector<double> shares(begin, begin + static_cast<std::ptrdiff_t>(n_experts_));
  const auto total = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (total <= 0) return {};
  for (auto& share : shares) share /= total;
  return shares;
}

measured_activation activation_statistics::now() const {
  measured_activation told{rows_, {}};
  for (std::size_t l = 0; l < rows_.size(); ++l) told.shares.push_back(shares(l));
  return told;
}

double measured_activation::least_rows() const {
  return rows.empty() ? 0 : *std::min_element(rows.begin(), rows.end());
}

measured_activation sum_of(std::span<const measured_activation> parts, std::size_t n_layers,
                           std::size_t n_experts) {
  measured_activation all{std::vector<double>(n_layers), {}};
  for (std::size_t l = 0; l < n_layers; ++l) {
    std::vector<double> counts(n_experts);
    for (const auto& part : parts) {
      if (part.shares[l].empty()) continue;
      all.rows[l] += part.rows[l];
      for (std::size_t e = 0; e < n_experts; ++e) counts[e] += part.rows[l] * part.shares[l][e];
    }
    if (all.rows[l] > 0)
      for (auto& count : counts) count /= all.rows[l];
    else
      counts.clear();
    all.shares.push_back(std::move(counts));
  }
  return all;
}

std::string activation_json(const measured_activation& measured) {
  return nlohmann::ordered_json{{"rows", measured.rows}, {"shares", measured.shares}}.dump();
}

result<measured_activation> parse_activation(const std::string& text, const std::string& place,
                                             std::size_t n_layers, std::size_t n_experts) {
  constexpr double most_rows = 1e18, rounding = 1e-6;
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"rows", "shares"});
  measured_activation made;
  for (const auto& rows : root.at("rows").items()) made.rows.push_back(rows.number(0, most_rows));
  bool sums = true;
  for (const auto& layer : root.at("shares").items()) {
    auto& shares = made.shares.emplace_back();
    for (const auto& share : layer.items()) shares.push_back(share.number(0, 1));
    const auto sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    sums = sums && (shares.empty() || std::abs(sum - 1) <= rounding);
  }
  if (auto read = (*document)->finish(0); !read) return read.error();
  const auto fits = [&](const std::vector<double>& shares) {
    return shares.empty() || shares.size() == n_experts;
  };
  if (made.rows.size() != n_layers || made.shares.size() != n_layers ||
      !std::ranges::all_of(made.shares, fits))
    return error{
        errc::mismatch,
        fmt::format("{}: found another shape, expected rows of {} layers and for each of them "
                    "shares of no expert or of {}",
                    place, n_layers, n_experts)};
  if (!sums)
    return error{errc::malformed,
                 place + ": found shares of a layer that do not sum to 1; measure anew"};
  return made;
}

std::vector<double> moved_shares(const profile& profile, const measured_activation& measured) {
  std::vector<double> moved(profile.n_layers);
  for (std::size_t l = 0; l < profile.n_layers; ++l)
    for (std::size_t e = 0; e < measured.shares[l].size(); ++e)
      moved[l] += std::abs(measured.shares[l][e] - profile.layers[l].activation[e]) / 2;
  return moved;
}

namespace {

/// Scales the sets' probabilities towards `shares`, expert by expert; each set has top_k experts,
/// so an expert is in share * top_k of the positions.
void fit_sets(layer_profile& layer, std::span<const double> shares, std::size_t top_k) {
  constexpr int n_rounds = 50;
  for (int round = 0; round < n_rounds; ++round)
    for (std::uint32_t expert = 0; expert < shares.size(); ++expert) {
      double in = 0, out = 0;
      const auto has = [&](const target_set& set) {
        return std::binary_search(set.experts.begin(), set.experts.end(), expert);
      };
      for (const auto& set : layer.sets) (has(set) ? in : out) += set.probability;
      const auto wanted = std::min(1.0, shares[expert] * static_cast<double>(top_k));
      if (in <= 0 || out <= 0) continue;
      for (auto& set : layer.sets) set.probability *= has(set) ? wanted / in : (1 - wanted) / out;
    }
  double total = 0;
  for (const auto& set : layer.sets) total += set.probability;
  for (auto& set : layer.sets) set.probability /= total;
}

}  // namespace

profile with_measured_activation(const profile& profile, const measured_activation& measured) {
  auto made = profile;
  // A row of the old profile keeps every expert and set above zero.
  constexpr double prior_rows = 1;
  for (std::size_t l = 0; l < made.n_layers; ++l) {
    auto shares = measured.shares[l];
    if (shares.empty()) continue;
    auto& layer = made.layers[l];
    const auto weight = measured.rows[l] / (measured.rows[l] + prior_rows);
    for (std::size_t e = 0; e < shares.size(); ++e)
      shares[e] = weight * shares[e] + (1 - weight) * layer.activation[e];
    layer.activation = shares;
    fit_sets(layer, shares, made.top_k);

    // The most frequent set comes first, and what is indexed by sets follows.
    std::vector<std::size_t> order(layer.sets.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return layer.sets[a].probability > layer.sets[b].probability;
    });
    const auto old = layer;
    for (std::size_t i = 0; i < order.size(); ++i) {
      layer.sets[i] = old.sets[order[i]];
      for (std::size_t c = 0; c < old.set_transition.columns; ++c)
        layer.set_transition(i, c) = old.set_transition(order[i], c);
    }
    if (l == 0) continue;
    auto& before = made.layers[l - 1].set_transition;
    const auto columns = before;
    for (std::size_t r = 0; r < before.rows; ++r)
      for (std::size_t i = 0; i < order.size(); ++i) before(r, i) = columns(r, order[i]);
  }
  return made;
}

double placement_cost_ns(const profile& profile, const plan& placed, const cluster& servers,
                         const cost_profile& costs) {
  return estimate_plan(profile, placed, servers, costs, search_options{});
}

weight_move weights_to_move(const plan& from, const plan& to, const cluster& servers,
                            const cost_profile& costs) {
  const placement_index before(from);
  std::vector<std::int64_t> busy_ns(servers.size(), 0);
  weight_move move;
  for (const auto& placed : to.experts) {
    const auto target = placed.server.index();
    const auto hosts = before.hosts(placed.layer.index(), placed.expert.index());
    if ((hosts >> target) & 1u) continue;
    const auto bytes = expert_bytes(servers.servers[target], costs);
    auto best = std::numeric_limits<std::int64_t>::max();
    for (std::uint32_t host = 0; host < servers.size(); ++host)
      if ((hosts >> host) & 1u) {
        const auto& link = servers.link(server_id{host}, placed.server);
        best = std::min(best, transfer_ns(link, bytes) + link.latency_ns);
      }
    move.bytes += bytes;
    busy_ns[target] += best;
  }
  move.ns = *std::max_element(busy_ns.begin(), busy_ns.end());
  return move;
}

}  // namespace ordermoe::planning
