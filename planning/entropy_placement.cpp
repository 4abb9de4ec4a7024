#include "planning/entropy_placement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "planning/packing.hpp"

namespace ordermoe::planning {

namespace {

double entropy_of(const std::vector<double>& shares) {
  double entropy = 0;
  for (const double p : shares)
    if (p > 0) entropy -= p * std::log(p);
  return entropy;
}

/// [n_servers][n_layers] how many experts of a layer a server gets.
using expert_counts = std::vector<std::vector<std::size_t>>;

/// Until every layer has as many as there are. Precondition: all have together.
void give_to_short_layers(expert_counts& counts, std::size_t n_layers, std::size_t n_experts) {
  std::vector<std::size_t> total(n_layers, 0);
  for (const auto& of_server : counts)
    for (std::size_t l = 0; l < n_layers; ++l) total[l] += of_server[l];
  for (std::size_t l = 0; l < n_layers; ++l)
    while (total[l] < n_experts) {
      const auto from = static_cast<std::size_t>(std::ranges::max_element(total) - total.begin());
      std::vector<std::size_t>* giver = nullptr;
      for (auto& of_server : counts)
        if (of_server[from] > 0 && of_server[l] < n_experts &&
            (giver == nullptr || of_server[from] > (*giver)[from]))
          giver = &of_server;
      ORDERMOE_CHECK(giver != nullptr && total[from] > n_experts, "a layer has experts to spare");
      --(*giver)[from];
      ++(*giver)[l];
      --total[from];
      ++total[l];
    }
}

/// One layer's experts: [n_servers, n_experts] whether a server has an expert.
class layer_choice {
 public:
  layer_choice(const std::vector<double>& activation, const std::vector<double>& arrival_share)
      : activation_(activation),
        arrival_share_(arrival_share),
        n_experts_(activation.size()),
        has_(arrival_share.size() * n_experts_, 0),
        copies_(n_experts_, 0),
        by_activation_(n_experts_) {
    std::iota(by_activation_.begin(), by_activation_.end(), std::size_t{0});
    std::ranges::stable_sort(by_activation_,
                             [&](auto a, auto b) { return activation[a] > activation[b]; });
  }

  void take_most_invoked(std::size_t server, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) put(server, by_activation_[i]);
  }

  /// Experts that nobody has, the most invoked first, in the place of copies.
  void cover() {
    for (const auto e : by_activation_)
      if (copies_[e] == 0) replace_a_copy(e);
  }

  bool has(std::size_t server, std::size_t expert) const {
    return has_[server * n_experts_ + expert] != 0;
  }

 private:
  void put(std::size_t server, std::size_t expert) {
    has_[server * n_experts_ + expert] = 1;
    ++copies_[expert];
  }

  void replace_a_copy(std::size_t expert) {
    double least = std::numeric_limits<double>::infinity();
    std::size_t at = 0, in_place_of = n_experts_;
    for (std::size_t m = 0; m < arrival_share_.size(); ++m)
      for (std::size_t e = 0; e < n_experts_; ++e) {
        if (!has(m, e) || copies_[e] < 2) continue;
        const double lost = arrival_share_[m] * (activation_[e] - activation_[expert]);
        if (lost >= least) continue;
        least = lost;
        at = m;
        in_place_of = e;
      }
    ORDERMOE_CHECK(in_place_of < n_experts_,
                   "a layer with room for all experts has a copy to spare");
    has_[at * n_experts_ + in_place_of] = 0;
    --copies_[in_place_of];
    put(at, expert);
  }

  const std::vector<double>& activation_;
  const std::vector<double>& arrival_share_;
  std::size_t n_experts_;
  std::vector<std::uint8_t> has_;
  std::vector<std::size_t> copies_;         ///< [n_experts]
  std::vector<std::size_t> by_activation_;  ///< Experts, those invoked most first.
};

void place_layer(packing& state, const profile& profile, std::size_t layer,
                 const expert_counts& counts) {
  const auto& problem = state.problem();
  const auto& activation = profile.layers[layer].activation;
  layer_choice choice(activation, problem.arrival_share);
  for (std::size_t m = 0; m < problem.n_servers; ++m) choice.take_most_invoked(m, counts[m][layer]);
  choice.cover();
  for (std::size_t e = 0; e < problem.n_experts; ++e)
    for (std::size_t m = 0; m < problem.n_servers; ++m)
      if (choice.has(m, e))
        state.place(
            m, layer, e,
            state.hosts(layer, e) == 0 ? placement_reason::mandatory : placement_reason::replica,
            problem.arrival_share[m] * activation[e]);
}

}  // namespace

std::vector<std::size_t> shares_by_entropy(const std::vector<double>& entropy, std::size_t room,
                                           std::size_t n_experts) {
  const bool is_flat = std::ranges::all_of(entropy, [](double h) { return h <= 0; });
  std::vector<std::size_t> counts(entropy.size(), 0);
  for (std::size_t i = 0; i < std::min(room, entropy.size() * n_experts); ++i) {
    std::size_t best = entropy.size();
    double most = -1;
    for (std::size_t l = 0; l < entropy.size(); ++l) {
      const double of_each = (is_flat ? 1 : entropy[l]) / static_cast<double>(counts[l] + 1);
      if (counts[l] == n_experts || of_each <= most) continue;
      most = of_each;
      best = l;
    }
    ++counts[best];
  }
  return counts;
}

result<plan> place_by_entropy(const profile& profile, const cluster& servers,
                              const cost_profile& costs, const placement_options& options) {
  if (auto checked = validate(profile); !checked) return at("profile", checked.error());
  auto problem = make_packing_problem(profile.n_layers, profile.n_experts, servers, costs, 1);
  if (!problem) return problem.error();
  std::vector<double> entropy;
  for (const auto& layer : profile.layers) entropy.push_back(entropy_of(layer.activation));
  expert_counts counts;
  std::size_t room = 0;
  for (const auto bytes : problem->limit_bytes) {
    const auto fits = static_cast<std::size_t>(bytes / costs.expert_bytes);
    counts.push_back(shares_by_entropy(entropy, fits, profile.n_experts));
    room += std::min(fits, profile.n_layers * profile.n_experts);
  }
  // The other one fails, too, and says by how many bytes.
  if (room < profile.n_layers * profile.n_experts)
    return place_by_popularity(profile, servers, costs, options);
  give_to_short_layers(counts, profile.n_layers, profile.n_experts);
  packing state(*problem);
  for (std::size_t l = 0; l < profile.n_layers; ++l) place_layer(state, profile, l, counts);

  plan made;
  made.strategy = "prism";
  made.n_servers = problem->n_servers;
  made.n_layers = problem->n_layers;
  made.n_experts = problem->n_experts;
  made.experts = state.placed();
  made.expert_bytes_used = state.used();
  made.expert_bytes_limit = problem->limit_bytes;
  made.residence = access_residency(problem->n_servers, problem->n_layers);
  return made;
}

}  // namespace ordermoe::planning
