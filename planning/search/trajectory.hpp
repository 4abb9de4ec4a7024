#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "planning/plan.hpp"
#include "planning/search/search.hpp"
#include "planning/search/trajectory_fronts.hpp"
#include "planning/search/trajectory_model.hpp"

/// The expected time of one decoded position under full look-ahead, fast enough to score every move
/// of a search.
///
/// A token at server s with the target set q of layer l chooses the next residence n of R_{l+1}
/// and, for each slot, a server m_j and an expert k_j hosted there:
///
///   time(n, m)   = max( d(s, n), max_m [ d(s, m) + wait(m) + x(m) c(m) + d(m, n) ] )
///   V_l(s, q)    = min over n, m, k of  time(n, m) + price * nats(k) + W_{l+1}(n, q)
///   W_{l+1}(n, q) = attention(n) + sum over q' of P_l(q -> q') V_{l+1}(n, q')
///
/// with x(m) the number of different experts that run at m. After the last layer n is a member of
/// R_{L-1} or R_0: it runs the output projection and sends the sampled id to the member of R_0
/// where the next position starts. The target sets of a new position do not depend on the last
/// one's, so positions form a renewal process over R_0, solved for its average cost.
///
/// Approximations: the target sets kept are a sample of at most 64 a layer
/// (choose_representatives); a slot's loss is the calibration mean for its target; with more than
/// two slots the servers of one layer are those that slot_sweep.hpp finds (trajectory_fronts.hpp).
/// Links have no queues; servers have those of set_waits(). Where slots may be left out (search_options::may_leave_out), one of two may run alone, and
/// its nats are then those of the calibration mean of what the router gives the other.
namespace ordermoe::planning {

/// Expectations for one decoded position, in the stationary state.
struct trajectory_usage {
  std::vector<double> visits;       ///< [n_layers, n_servers]: attention there
  std::vector<double> expert_runs;  ///< [n_servers, n_layers, n_experts]: rows run there
  /// [n_servers]: attention, experts and output projection, one row at a time
  std::vector<double> busy_ns;
  std::vector<double> head_runs;  ///< [n_servers]: output projections
  std::vector<double> jobs;       ///< [n_servers]: attention, expert and output projection runs
  double hidden_transfers = 0;    ///< Hidden states that cross a link.
  double kv_transfers = 0;        ///< KV rows of one layer that cross a link.

  /// Adds `share` times another usage of the same model; an empty one starts as zeros.
  void add(double share, const trajectory_usage& other);
};

/// Queues at the servers while several positions are in flight.
struct queue_estimate {
  double token_ns = 0;          ///< Mean time of a position with its waits.
  std::vector<double> wait_ns;  ///< [n_servers] mean wait of a row before its job starts.
};

/// Mean waits where `concurrency` positions with this usage are in flight and one of them takes
/// `token_ns` without waits. A server serves its jobs first come, first served; rows for the same
/// expert, layer or projection that wait together are one job. `known_wait_ns` [n_servers] is what
/// token_ns already contains for each job.
queue_estimate estimate_queues(const trajectory_model& model, const trajectory_usage& usage,
                               double token_ns, double concurrency,
                               std::span<const double> known_wait_ns);

/// The trajectory problem of one residency over one placement. Tables are kept per layer, so that a
/// move of the search rebuilds only the layers that it touches. Not thread-safe.
class trajectory {
 public:
  explicit trajectory(const trajectory_model& model);

  /// Nanoseconds that one nat is worth; infinity forbids substitution. Rebuild afterwards.
  void set_price(double ns_per_nat);
  double price() const { return price_; }
  /// Whether more than two slots are built without substitutes, for prices that stay infinite:
  /// quicker. Rebuild afterwards.
  void forbid_losses(bool on) { forbids_losses_ = on; }
  /// [n_servers] time that a job waits before it starts; empty: none. Rebuild afterwards.
  void set_waits(std::vector<double> wait_ns);

  /// hosts [n_layers, n_experts], residence [n_layers]: none may be empty.
  void rebuild(std::span<const server_mask> hosts, std::span<const server_mask> residence);
  /// Rebuilds the tables of one layer after a change of its hosts or of the residence of it or of
  /// the next layer.
  void rebuild_layer(std::size_t layer, std::span<const server_mask> hosts,
                     std::span<const server_mask> residence);
  /// Whether rebuild also keeps which servers and experts the slots take, which usage() needs.
  void track_usage(bool on) { tracks_usage_ = on; }
  /// Keeps, or takes back, what rebuild_layer changed since the last of these calls.
  void commit();
  void roll_back();

  /// Mean cost of a position: time_ns + price * nats. Faster than solve().
  double solve_cost();
  trajectory_estimate solve();
  /// Keeps where positions are and what is ahead of them under the policy of the last solve(), for
  /// held_cost().
  void hold_policy();
  /// What a layer as it is now and all that follows cost where positions reach it as they did when
  /// the policy was held and go on likewise: a change of held_cost() by rebuild_layer() bounds the
  /// change of solve_cost() from above. Only with the residences of that time.
  double held_cost(std::size_t layer) const;
  /// What the policy of the last solve() does; track_usage() must have been on at the rebuild.
  trajectory_usage usage();

 private:
  static constexpr double never = 1e30;  ///< Stands for a loss that may not be taken; finite, so
                                         ///< that sums and differences stay numbers.

  struct layer_costs {
    /// Servers: members of R_l; members of R_{l+1}.
    std::vector<std::uint8_t> from, to;
    std::vector<double> cost;         ///< [from, to, n_sets] of the best slots
    std::vector<double> nats;         ///< The same slots' nats.
    std::vector<std::uint16_t> runs;  ///< [from, to, n_sets, n_slots]: server * n_experts + expert
    layer_fronts fronts;              ///< With more than two slots.
  };
  struct candidate {
    double loss = 0;  ///< price * nats; `never` where there is none.
    std::uint32_t expert = 0;
  };
  /// The cheapest experts of every slot at every server, which go by the hosts and not by the price: prices are tried by the dozen over one placement.
  struct layer_ranks {
    struct held {
      std::size_t at = 0;            ///< In ranked.
      double nats = 0, besides = 0;  ///< Of the expert, and of a coarse copy of it.
    };
    std::vector<server_mask> hosts;  ///< [n_experts] that these are of
    bool exact = false;              ///< Whether without substitutes.
    double price = 0;                ///< That the losses are at.
    server_mask hosting = 0;         ///< Servers with an expert.
    std::vector<held> found;
    std::vector<candidate> ranked;  ///< [set, slot, server, rank]
  };
  struct choice {
    double cost = 0, nats = 0;
    std::array<std::uint32_t, max_trajectory_slots> servers{}, experts{};
    /// Of two slots the one that is left out: where and what the other one runs stands for it.
    std::size_t left = none_left;
  };
  static constexpr std::size_t none_left = max_trajectory_slots;

  void fill_few(std::size_t layer, std::span<const server_mask> hosts, layer_costs& out);
  void price_fronts(std::size_t layer, layer_costs& out) const;
  bool has_fronts() const { return model_.n_slots > 2; }
  bool exact_fronts() const { return forbids_losses_ && std::isinf(price_); }
  const layer_ranks& ranks_of(std::size_t layer, std::span<const server_mask> hosts);
  void rank(std::size_t layer, layer_ranks& out) const;
  void rank_candidates(std::size_t layer, std::size_t set, std::size_t slot, std::size_t n_open,
                       layer_ranks& out) const;
  void arrivals(std::size_t from, std::size_t to, server_mask hosting);
  choice best_slots(std::size_t layer, std::size_t set, double residual_ns) const;
  choice best_one(std::size_t set, double residual_ns) const;
  choice best_two(std::size_t layer, std::size_t set, double residual_ns) const;
  void leave_one(const double* left_out_nats, std::size_t set, double residual_ns,
                 choice& best) const;
  /// The `rank`-th cheapest expert of a slot that a server hosts.
  const candidate& ranked(std::size_t set, std::size_t slot, std::size_t server,
                          std::size_t rank) const {
    return at_hand_
        ->ranked[((set * model_.n_slots + slot) * model_.n_servers + server) * n_ranks_ + rank];
  }
  std::vector<double> restarts() const;
  template <class Visit>
  void sweep_forward(std::vector<double> start, Visit&& visit) const;
  template <bool WithNats>
  trajectory_estimate solve_as();
  bool is_pipeline() const;
  trajectory_estimate solve_pipeline();
  template <bool WithNats>
  void backward(std::span<const double> bias);

  const trajectory_model& model_;
  double price_ = std::numeric_limits<double>::infinity();
  bool tracks_usage_ = false, forbids_losses_ = false;
  std::vector<double> wait_ns_;
  std::vector<layer_costs> layers_;
  std::vector<std::pair<std::size_t, layer_costs>>
      replaced_;  ///< Tables before the moves not yet kept.
  std::vector<layer_costs> spare_;

  std::vector<layer_ranks> ranks_;  ///< [n_layers] as they were last; with two slots or fewer
  std::size_t n_ranks_;  ///< Candidates kept: as many as slots, so that each finds a free one.

  // Of the layer at hand.
  const layer_ranks* at_hand_ = nullptr;
  /// [n_servers] one expert run at a server and back, for the pair at hand
  std::vector<double> one_ns_;
  std::vector<std::uint32_t> order_;  ///< Hosting servers by one_ns_, ascending.
  front_builder builder_;             ///< With more than two slots.

  // Of the last solve.
  std::vector<std::vector<double>> value_, value_nats_;  ///< [n_layers] of [from, n_sets]
  std::vector<std::vector<std::uint8_t>> next_;  ///< [n_layers] of [from, n_sets] -> index into to
  std::vector<std::uint8_t> restart_;            ///< [n_servers] -> index into R_0
  std::vector<double> start_cost_, start_nats_;  ///< [R_0]
  std::vector<double> start_share_;              ///< [R_0] of the positions in the long run
  std::vector<std::vector<double>> onward_;      ///< [n_layers] of [to, n_sets]: W_{l+1}(n, q)
  std::vector<double> onward_nats_;
  struct held_layer {
    std::vector<double> mass;    ///< [from, n_sets] how often a position is there
    std::vector<double> onward;  ///< [to, n_sets]
  };
  std::vector<held_layer> held_;
};

}  // namespace ordermoe::planning
