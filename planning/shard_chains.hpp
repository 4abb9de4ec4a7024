#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "config/cluster.hpp"
#include "planning/cost_model.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Chains of layer shards side by side: EdgeShard with more chains than one, with layers that two neighbours share, and with
/// copies of the stages where positions queue.
///
/// A chain passes through all layers in order; each of its servers holds a stretch of them. Stretches are counted in units: a
/// layer has so many of them, each an equal part of its experts, those that are chosen most first. With one unit a layer servers
/// hold whole layers; with more a layer may lie on two neighbours of a chain, and then its attention is with the first of them
/// and positions go on to the second whatever the layer chose, so that the split costs no hop. Chains may share servers,
/// and where their stretches overlap there the memory is needed once: two chains that differ in one server are a
/// copy of that stage. The users of an access server go through one chain.
namespace ordermoe::planning {

/// What one server holds of a chain: so many units behind those of the stages before.
struct chain_stage {
  std::size_t server = 0, units = 0;
  friend bool operator==(const chain_stage&, const chain_stage&) = default;
};

/// Stages of at least one unit each, no server twice, all units in order.
using shard_chain = std::vector<chain_stage>;

struct chain_layout {
  std::vector<shard_chain> chains;
  std::vector<std::size_t> chain_of;  ///< [n_servers] by access server
  friend bool operator==(const chain_layout&, const chain_layout&) = default;
};

struct shard_chain_options {
  /// 1: whole layers. Else the largest divisor of the number of experts up to this.
  std::size_t units_per_layer = 8;
  /// Requests in flight that one of them meets, itself included; 1: nobody else.
  double concurrency = 1;
  /// What nobody's router may choose, which no server holds; without layers: none. A layer has so many units fewer, its
  /// last one perhaps of fewer experts.
  pruned_experts pruned = {};
  /// Asked often by a search, which then gives the best found so far.
  std::function<bool()> should_stop = {};
};

/// Layouts of one model on one cluster: what they cost, what may follow from one by a small change, and plans of them.
///
/// A position of a chain costs at each server attention of the layers that begin there, experts one after another as often as
/// they are chosen there, and on the last one the output projection; between servers a hidden state; and a small message from the
/// last to the first, where the next position starts. A server's part of it is taken 1 + n times as long where n of the other
/// requests are there on average, which follows from how long they are everywhere: concurrency - 1 others, in the proportion of
/// arrivals and of their own positions' time (mean value analysis with arrivals that do not depend on each other). The way of a
/// prompt to the first server and of the text back counts by a 32nd, for requests of 32 positions.
class shard_chain_planner {
 public:
  shard_chain_planner(const profile& profile, const cluster& servers, const cost_profile& costs,
                      const shard_chain_options& options);

  std::size_t n_servers() const { return prices_.n_servers; }
  std::size_t n_units() const { return units_.size(); }
  std::size_t units_per_layer() const { return units_per_layer_; }
  /// Units that fit a server, at most n_units().
  std::size_t capacity(std::size_t server) const { return capacity_[server]; }

  bool fits(const chain_layout& layout) const;
  /// Mean nanoseconds of a decoded position over arrivals.
  double cost_ns(const chain_layout& layout) const;
  /// Deals the access servers to the chains anew, so that no other chain is better for one of them.
  void assign(chain_layout& layout) const;
  /// Everything that one change makes of a layout and that fits: units from a stage to the next or back, a stage on another
  /// server, a server more or fewer, two servers exchanged, a copy of a stage, a chain less, users of another chain.
  std::vector<chain_layout> neighbours(const chain_layout& layout) const;
  /// The best layouts found, best first, all different; empty where the servers cannot hold a chain.
  std::vector<chain_layout> search(std::size_t n_most) const;

  plan to_plan(const chain_layout& layout) const;

 private:
  void cut_units(const profile& profile, const pruned_experts& pruned);
  /// What a position of one chain costs: at servers, and between them.
  struct chain_times {
    struct at_server {
      std::size_t server;
      double busy_ns;
    };
    std::vector<at_server> stages;
    double between_ns = 0;
    double alone_ns() const;
  };
  /// What a position costs in the mean over some shares of the arrivals.
  struct mean_times {
    explicit mean_times(std::size_t n_servers) : n(n_servers) {
      std::fill_n(busy_ns.begin(), n, 0);
    }
    mean_times(const mean_times& other) : n(other.n), between_ns(other.between_ns) {
      std::copy_n(other.busy_ns.begin(), n, busy_ns.begin());
    }
    void add(double share, const chain_times& chain);

    std::size_t n;
    std::array<double, max_servers> busy_ns;  ///< The first n.
    double between_ns = 0;
  };
  using all_times = std::vector<const chain_times*>;
  chain_times times_of(const shard_chain& chain) const;
  double mean_ns(const mean_times& of_all) const { return means_ns<1>({&of_all})[0]; }
  /// Of several at once, which takes hardly longer than of one.
  template <std::size_t N>
  std::array<double, N> means_ns(const std::array<const mean_times*, N>& of_all) const;
  double shared_out_ns(const all_times& chains) const;
  double entry_ns(std::size_t access, std::size_t first, std::size_t last) const;
  double layer_ns(std::size_t server) const {
    return prices_.attention_ns[server] + top_k_ * prices_.expert_ns[server];
  }
  shard_chain filled(const std::vector<std::size_t>& order) const;
  shard_chain along_near_servers(std::size_t first) const;
  void add_chains_of(const std::vector<std::size_t>& pool, std::vector<shard_chain>& found) const;
  std::vector<shard_chain> single_chains() const;
  std::vector<chain_layout> side_by_side(const std::vector<shard_chain>& singles) const;
  chain_layout improved(chain_layout start) const;
  bool stopped() const { return should_stop_ && should_stop_(); }

  cost_model prices_;
  std::vector<double> arrival_share_;
  std::size_t n_layers_ = 0, n_experts_ = 0, units_per_layer_ = 1;
  double top_k_ = 1, others_ = 0;
  std::vector<std::size_t> capacity_;
  std::vector<std::int64_t> limit_bytes_;
  std::int64_t expert_bytes_ = 0;
  std::function<bool()> should_stop_;
  /// Some of a layer's experts, those chosen most in its first unit.
  struct unit {
    std::size_t layer = 0;
    std::vector<std::uint32_t> experts;
  };
  std::vector<unit> units_;            ///< In the order of layers.
  std::vector<std::size_t> begun_;     ///< [n_units + 1] layers that begin before the unit.
  std::vector<double> chosen_before_;  ///< [n_units + 1] slots of the units before, of all layers
};

/// Plans of the best layouts that a search finds, best first. It starts from the best chain over every set of servers, on
/// clusters of more than ten over sets of near neighbours and from each server on to the nearest that is left until all fits, takes chains with no server in common side by side, and goes on from
/// the best by small changes as long as one helps. R_l of an access server = {the server of l on its users' chain}. Error:
/// infeasible, with the bytes that each server lacks, where no chain fits.
result<std::vector<plan>> place_shard_chains(const profile& profile, const cluster& servers,
                                             const cost_profile& costs,
                                             const shard_chain_options& options,
                                             std::size_t n_most);

}  // namespace ordermoe::planning
