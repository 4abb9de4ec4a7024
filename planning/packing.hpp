#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "planning/placement.hpp"
#include "planning/plan.hpp"

/// The state and the steps of Algorithm 1's deployment, for experts of any size.
///
/// Goals: one function per equation, each step callable alone. The files and the cost profiles know
/// one expert size; these functions take p_l^j for every expert, as the paper does.
namespace ordermoe::planning {

struct packing_problem {
  std::size_t n_servers = 0, n_layers = 0, n_experts = 0;
  std::vector<std::int64_t> expert_bytes;  ///< p_l^j, [n_layers * n_experts]; > 0
  std::vector<std::int64_t> limit_bytes;   ///< C_m, [n_servers]; >= 0
  std::vector<double> arrival_share;       ///< pi_m, [n_servers]
  std::vector<std::string> server_names;   ///< [n_servers], for messages
  std::vector<layer_grouping> grouping;    ///< [n_layers]

  std::int64_t bytes(std::size_t layer, std::size_t expert) const {
    return expert_bytes[layer * n_experts + expert];
  }
};

/// "s0 has 10 bytes for experts and lacks 3; s4 ..." of the servers that lack any, eight at most.
/// missing: [n_servers] bytes.
std::string lacking_servers(const packing_problem& problem,
                            const std::vector<std::int64_t>& missing);

/// Which expert is on which server so far: x and b of the paper.
class packing {
 public:
  explicit packing(const packing_problem& problem);

  const packing_problem& problem() const { return *problem_; }
  /// x_{m,l,j}
  bool hosts(std::size_t server, std::size_t layer, std::size_t expert) const {
    return (hosts(layer, expert) >> server) & 1u;
  }
  server_mask hosts(std::size_t layer, std::size_t expert) const {
    return hosts_[layer * problem_->n_experts + expert];
  }
  std::int64_t used_bytes(std::size_t server) const { return used_[server]; }  ///< b_m
  std::int64_t free_bytes(std::size_t server) const {
    return problem_->limit_bytes[server] - used_[server];
  }
  /// eta_{m,l,g}: experts of the group that the server hosts.
  std::size_t group_count(std::size_t server, std::size_t layer, std::size_t group) const;

  void place(std::size_t server, std::size_t layer, std::size_t expert, placement_reason reason,
             double score);
  /// Moves an expert; its reason becomes `repair`.
  void move(std::size_t from, std::size_t to, std::size_t layer, std::size_t expert);
  void clear();

  const std::vector<placed_expert>& placed() const { return placed_; }
  const std::vector<std::int64_t>& used() const { return used_; }

 private:
  const packing_problem* problem_;
  std::vector<server_mask> hosts_;
  std::vector<std::int64_t> used_;
  std::vector<placed_expert> placed_;
};

/// Eq. (29): F_{l,j} as a mask, without the servers that host the expert already.
server_mask memory_feasible(const packing& state, std::size_t layer, std::size_t expert);
/// Eq. (30)
double packing_score(const packing& state, std::size_t server, std::size_t layer,
                     std::size_t expert, double lambda_load);
/// Eq. (31): the server of the mask with the lowest score, ties to the lower index; the mask is not
/// empty.
std::size_t lowest_score(const packing& state, server_mask feasible, std::size_t layer,
                         std::size_t expert, double lambda_load);
/// Eq. (32): y_{m,l,g}
bool group_is_covered(const packing& state, std::size_t server, std::size_t layer,
                      std::size_t group);
/// Eq. (33): B(m, l, j)
double redundancy_benefit(const packing& state, std::size_t server, std::size_t layer,
                          std::size_t expert);

/// Lines 14 to 24 of Algorithm 1, then copies up to options.min_copies. Where first fit by score
/// leaves an expert over, experts are moved to make room for it, and as the last resort everything
/// is packed anew by exhaustive search. Errors: infeasible, with the bytes that each server lacks;
/// timed_out where the exhaustive search was cut off.
result<void> deploy_mandatory(packing& state, const placement_options& options);

/// Lines 25 to 28 of Algorithm 1, eq. (33) to (35). Ties to the lower server, then layer, then
/// expert.
void deploy_redundant(packing& state);

/// Moves experts along a shortest chain of servers, starting at those with the most free memory, so
/// that the expert fits somewhere that does not host it yet, and places it there. With experts of
/// one size it finds a place wherever any sequence of moves could. False: none found, nothing
/// changed.
bool make_room(packing& state, std::size_t layer, std::size_t expert, placement_reason reason);

enum class packing_outcome { packed, infeasible, cut_off };
/// Branch and bound over whole packings, `copies` of every expert on different servers. Replaces
/// the state when packed.
packing_outcome pack_exactly(packing& state, std::size_t copies, std::size_t max_nodes = 2'000'000);

/// A packing problem without grouping from a cluster: every expert weighs the same.
result<packing_problem> make_packing_problem(std::size_t n_layers, std::size_t n_experts,
                                             const cluster& servers, const cost_profile& costs,
                                             std::size_t min_copies);

}  // namespace ordermoe::planning
