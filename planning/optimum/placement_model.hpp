#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "config/cluster.hpp"
#include "planning/hindsight/row_front.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/search/trajectory_model.hpp"
#include "planning/server_mask.hpp"

/// What a placement costs: the expected time of one decoded position whose residences are a path that does not depend on what
/// routers choose, and whose slots each run their target.
///
///   cost(x, s) = sum over layers l of [ attention(s_l) + sum over target sets q of P_l(q) time(s_l, s_{l+1}, q; x) ]
///   time(s, n, q; x) = min over hosts m_j of the targets of  max( d(s, n), max over m [ d(s, m) + u(m) c(m) + d(m, n) ] )
///
/// with u(m) the experts that run at m. After the last layer n is s_{L-1} or s_0, whichever is better for the set, and adds head(n) and
/// message(n, s_0), where the next position starts. P_l is what the profile's first layer and its transitions make of layer l.
///
/// That is facility location: a placement opens hosts, and each target set is served by the best open ones. It is the planner's own
/// estimate (estimate_trajectory at an infinite price), to rounding, of a plan that has one server in R_l for each layer and access
/// server and keeps experts as the model has them, with up to two slots. It is not in three cases. With more servers in R_l the estimate chooses
/// among them when it knows the set, which is faster or as fast. With more than two slots the estimate places slots by slot_sweep.hpp,
/// which may be slower. With queues, KV prices or substitutes (search_options) planning counts what this does not.
namespace ordermoe::planning {

/// One server for each layer.
using residence_path = std::vector<std::uint8_t>;

struct placed_path {
  double ns = 0;
  residence_path path;
};

/// Not thread-safe.
class placement_model {
 public:
  /// max_sets: target sets kept of each layer; 0: 64, as the planner's estimate has them.
  placement_model(const profile& profile, const cluster& servers, const cost_profile& costs,
                  std::size_t max_sets = 0);

  std::size_t n_servers() const { return model_.n_servers; }
  std::size_t n_layers() const { return model_.n_layers; }
  std::size_t n_experts() const { return model_.n_experts; }
  std::size_t n_slots() const { return model_.n_slots; }
  std::size_t n_sets(std::size_t layer) const { return model_.layers[layer].n_sets; }
  /// P_l(q)
  double probability(std::size_t layer, std::size_t set) const {
    return model_.layers[layer].visits[set];
  }
  std::span<const std::uint32_t> targets(std::size_t layer, std::size_t set) const {
    return std::span(model_.layers[layer].targets).subspan(set * n_slots(), n_slots());
  }
  const cost_model& prices() const { return model_.costs; }
  /// [n_servers] experts that a server has room for, all layers together; 0 where it keeps them coarser than the model.
  const std::vector<std::size_t>& room() const { return room_; }
  double arrival_share(std::size_t server) const { return arrival_share_[server]; }

  /// Time of a set whose slots run at these servers.
  double way_ns(std::size_t from, std::size_t to, std::span<const std::uint8_t> servers) const;
  /// Behind the last layer: output projection at n and the id's way to the start.
  double end_ns(std::size_t at, std::size_t start) const {
    return prices().head_ns[at] + prices().message(at, start);
  }

  /// hosts [n_layers, n_experts]: none empty. Cost of a path.
  double path_ns(std::span<const server_mask> hosts, const residence_path& path);
  /// The best path with s_l in members[l]; ties to the lower server. Complexity: O(L M^3) and O(L M^2) times the sets.
  placed_path best_path(std::span<const server_mask> hosts, std::span<const server_mask> members);

  /// Which server has which expert: [n_layers, n_experts].
  std::vector<server_mask> hosts_of(const plan& placed) const;
  /// Of a plan by its own residences: the best path of each access server, by arrival share.
  double plan_ns(const plan& placed);
  /// Of its experts alone: every position stays at its access server, by arrival share.
  double at_access_ns(std::span<const server_mask> hosts);

 private:
  /// Expected time of a layer's sets between two residences; behind the last layer with what follows.
  double layer_ns(std::span<const server_mask> hosts, std::size_t layer, std::size_t from,
                  std::size_t to);
  void set_times(std::span<const server_mask> hosts, std::size_t layer, std::size_t from,
                 std::size_t to, std::vector<double>& ns);

  trajectory_model model_;
  std::vector<std::size_t> room_;
  std::vector<double> arrival_share_;
  row_fronts fronts_;
  row_choices row_;
  std::vector<double> stay_, return_;
};

}  // namespace ordermoe::planning
