#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/ids.hpp"
#include "planning/profile.hpp"
#include "planning/server_mask.hpp"

namespace ordermoe::planning {

/// Experts of one layer that may stand in for each other, eq. (26).
struct expert_group {
  std::uint32_t dominant = 0;
  std::vector<std::uint32_t> members;  ///< Ascending, the dominant expert included.
};

struct layer_grouping {
  double threshold = 0;  ///< theta_l, eq. (6)
  std::vector<expert_group> groups;
  std::vector<std::uint32_t> group_of;     ///< [E] -> index into groups
  std::vector<double> representativeness;  ///< rho_l^j, eq. (27), [E]
  std::vector<double> importance;          ///< I_l^j, eq. (28), [E]
};

enum class placement_reason {
  mandatory,
  waiting_list,
  repair,
  replica,
  min_copies,
  layer_shard,
  search,
  offload  ///< In the server's host memory: it runs there and takes nothing of the server's memory.
};
const char* to_string(placement_reason reason);

/// One expert on one server and why it is there.
struct placed_expert {
  server_id server;
  layer_id layer;
  expert_id expert;
  placement_reason reason = placement_reason::mandatory;
  /// Score (30) or benefit (33) or the planner's own estimate when it was chosen.
  double score = 0;
};

/// Where attention of each layer may run for the requests of one access server: R_l. Attention of
/// layer l runs only at a member; KV rows are streamed to the other members.
struct residency {
  std::vector<server_mask> layers;  ///< [n_layers], none empty
};

/// Experts that do not exist for the router of the requests of one access server: it chooses among the others, and gates
/// are those of a model without them.
struct pruned_experts {
  std::vector<std::vector<std::uint32_t>> layers;  ///< [n_layers], each ascending
  friend bool operator==(const pruned_experts&, const pruned_experts&) = default;
};

/// Grouping, placement, replicas and residency: plan.json, version 1.
struct plan {
  std::string strategy;  ///< Which planner made it.
  std::uint64_t epoch = 0;
  std::size_t n_servers = 0, n_layers = 0, n_experts = 0;
  std::vector<layer_grouping> grouping;  ///< [n_layers]; empty where the strategy does not group
  std::vector<placed_expert> experts;    ///< In the order chosen.
  std::vector<residency> residence;      ///< [n_servers], by access server
  /// [n_servers], by access server; empty: the router chooses among all experts for everybody. What it may choose for
  /// anybody has a server.
  std::vector<pruned_experts> pruned;
  /// [n_servers] how each server keeps its experts; empty: all as the model has them. Every expert
  /// has a copy that is stored so.
  std::vector<precision> expert_precision;
  std::vector<std::int64_t> expert_bytes_used;   ///< [n_servers]
  std::vector<std::int64_t> expert_bytes_limit;  ///< [n_servers]
  /// The planner's estimate of the time of one decoded token, averaged over arrivals; 0 where the
  /// planner makes none (Algorithm 1, popularity).
  double estimated_token_ns = 0;

  bool hosts(server_id server, layer_id layer, expert_id expert) const;
  bool offloads() const;  ///< Some expert is in a host's memory.
  precision precision_at(std::size_t server) const {
    return expert_precision.empty() ? precision::stored : expert_precision[server];
  }
};

/// Writes the precisions of a cluster's servers into a plan for them; none where all are stored.
void note_precisions(plan& content, const cluster& servers);
/// The servers as the plan has them. Precondition: as many servers.
cluster with_precisions(cluster servers, const plan& content);

/// Fast look-up of who hosts what.
class placement_index {
 public:
  explicit placement_index(const plan& content);
  /// Servers that host this expert, as a mask; empty in a valid plan only where it is pruned for everybody.
  server_mask hosts(std::size_t layer, std::size_t expert) const {
    return hosts_[layer * n_experts_ + expert];
  }
  bool hosts(std::size_t server, std::size_t layer, std::size_t expert) const {
    return (hosts(layer, expert) >> server) & 1u;
  }

 private:
  std::size_t n_experts_ = 0;
  std::vector<server_mask> hosts_;
};

/// What holds of a plan by itself: shapes, ids in range, no expert twice on a server, every expert
/// on some server (c.2) unless nobody's router may choose it, groups that cover each layer once, residency sets that are
/// neither empty nor name unknown servers, an expert left in each layer where some are pruned, a copy of every expert as the model has it. The message opens with the
/// JSON path. Errors: mismatch, out_of_range, infeasible (an expert that no server hosts).
result<void> validate(const plan& content);

/// The same, and that the plan fits the cluster: number of servers, bytes counted right, memory
/// limits (c.1), precisions. Error: mismatch or infeasible besides those above.
result<void> validate(const plan& content, const cluster& servers, const cost_profile& costs);

result<plan> read_plan(const std::filesystem::path& path);
result<plan> parse_plan(const std::string& json, const std::string& place);
std::string plan_json(const plan& content);

/// [n_servers], each [n_layers, n_experts]: 1 where a server has an expert in its host's memory; empty where none has.
std::vector<std::vector<std::uint8_t>> offloaded_flags(const plan& content);

/// [n_experts] whether a list of pruned experts has it.
std::vector<std::uint8_t> pruned_flags(std::span<const std::uint32_t> pruned,
                                       std::size_t n_experts);

/// Residency rules that need no planner.
/// R_l = {access}
std::vector<residency> access_residency(std::size_t n_servers, std::size_t n_layers);
/// R_l = all servers
std::vector<residency> roaming_residency(std::size_t n_servers, std::size_t n_layers);

}  // namespace ordermoe::planning
