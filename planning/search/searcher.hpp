#pragma once

#include <bit>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "config/random.hpp"
#include "planning/infinity.hpp"
#include "planning/plan.hpp"
#include "planning/search/search.hpp"
#include "planning/search/trajectory.hpp"

/// How placement by search is done behind search.hpp; nothing outside planning/search*.cpp includes
/// this.
///
///   search.cpp         what is started from, and how the steps are shared out
///   search_rating.cpp  what a layout costs, at the prices that meet the budget
///   search_starts.cpp  layouts to start from: pipelines of homes
///   search_homes.cpp   where experts are many: changes of whole layers, and of many experts at once
///   search_moves.cpp   random changes of a layout, and annealing over them
///   search_finish.cpp  what is tidied at the end, and the plan made of it
namespace ordermoe::planning::searching {

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

/// A placement problem and the scratch memory to rate layouts of it. Not thread-safe.
class searcher {
 public:
  using rated_layout = std::pair<layout, score>;

  searcher(const profile& profile, const cluster& servers, const cost_profile& costs,
           const search_options& options);

  std::size_t n_servers() const { return model_.n_servers; }
  /// Whether the best so far is wanted now.
  bool stopped() const { return options_.should_stop && options_.should_stop(); }
  bool is_loaded() const { return options_.concurrency > 1; }
  bool is_exact() const { return !(options_.quality_nats > 0); }
  /// Whether experts are too many for moves of single ones to get anywhere by themselves.
  bool has_many_experts() const { return model_.n_slots > 2 && model_.n_experts > 16; }
  /// Whether these hosts have a copy as the model has it.
  bool is_exact_at(server_mask hosts) const { return (hosts & ~model_.coarse) != 0; }
  std::size_t n_layers() const { return model_.n_layers; }
  std::size_t n_slots() const { return model_.n_slots; }
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
  /// Where no queue is priced: the fastest residency for every request.
  rated_layout with_one_residency(rated_layout start);
  /// Moves whole layers between servers, and servers in and out of a pipeline, as long as that
  /// helps and at most `n_most` times. Layouts that are no single pipeline stay as they are.
  rated_layout improve_homes(rated_layout start, std::size_t n_most);
  /// Lets tokens choose at which of 2 * by layers they pass from server to server, and exchanges
  /// experts for it, where that helps.
  rated_layout widen_boundaries(rated_layout start, std::size_t by, std::size_t n_rounds);
  /// Exchanges many experts at a time, those that gain most for those that are missed least, as
  /// long as that helps. Only for one residency and one position at a time.
  rated_layout exchange_experts(rated_layout start, std::size_t n_rounds);
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
  /// Whether an item may leave a server without coming to another one.
  bool may_leave(const layout& content, std::size_t server, std::uint32_t item) const {
    const auto hosts = content.hosts[item];
    return static_cast<std::size_t>(std::popcount(hosts)) > options_.min_copies &&
           is_exact_at(hosts & ~server_bit(server));
  }
  /// Whether an item may go from one server to another that does not host it.
  bool may_move(const layout& content, std::uint32_t item, std::size_t from, std::size_t to) const {
    return is_exact_at((content.hosts[item] & ~server_bit(from)) | server_bit(to));
  }
  void put(layout& content, std::size_t server, std::uint32_t item) const {
    content.hosts[item] |= server_bit(server);
    content.items[server].push_back(item);
  }
  void replace(layout& content, std::size_t server, std::size_t at, std::uint32_t item) const {
    content.hosts[content.items[server][at]] &= ~server_bit(server);
    content.hosts[item] |= server_bit(server);
    content.items[server][at] = item;
  }
  using homes = std::vector<std::size_t>;
  layout pipeline(const std::vector<homes>& chains) const;
  /// missing_share: of what the homes do not hold, how much costs a detour.
  double rough_cost(const homes& home, double missing_share = 1) const;
  bool propose(layout& content, random_stream& random) const;
  bool pull(layout& content, std::size_t server, std::uint32_t wanted, random_stream& random) const;
  bool move_residence(layout& content, random_stream& random) const;
  std::uint32_t wanted_item(const layout& content, std::size_t& server,
                            random_stream& random) const;
  double worth_of(std::size_t layer, std::size_t expert) const;
  void take_quotas(const std::vector<homes>& chains, layout& out,
                   std::vector<std::size_t>& room) const;
  void take_worthiest(const std::vector<homes>& chains, layout& out,
                      std::vector<std::size_t>& room) const;
  std::vector<homes> neighbours(const homes& home) const;
  /// At `server` one expert makes way for another; a last copy goes to `refuge`, in the place of
  /// an expert there or into free memory.
  struct exchange {
    double gain = 0;  ///< Of both changes, each alone.
    std::uint32_t comes = 0, leaves = 0;
    std::size_t server = 0;
  };
  layout widened(const layout& content, std::size_t by) const;
  std::vector<exchange> find_exchanges(const layout& content, trajectory& problem) const;
  layout exchanged(const layout& content, const std::vector<exchange>& some,
                   const std::vector<std::uint8_t>& idle) const;

  const profile& profile_;
  const search_options& options_;
  trajectory_model model_;
  double kv_row_price_ = 0;
  trajectory scratch_;
  std::vector<std::size_t> capacity_;  ///< [n_servers] experts that fit
  std::vector<double> share_;
  std::size_t n_items_ = 0;
  std::vector<std::vector<std::uint32_t>> by_activation_;  ///< [n_layers] most active first
  std::vector<double> wanted_;   ///< [n_items] by how many slots of the kept sets, each position
  std::vector<double> worth_;    ///< [n_items] of a copy at home; where experts are many
  std::set<homes> tried_homes_;  ///< By improve_homes(), whatever it started from.
  double cutoff_ns_ = infinity, cutoff_price_ = 0;
};

}  // namespace ordermoe::planning::searching
