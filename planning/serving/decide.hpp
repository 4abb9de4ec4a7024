#pragma once

#include <boost/container/static_vector.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "model/architecture/routing.hpp"
#include "net/wire/messages.hpp"
#include "planning/plan.hpp"
#include "planning/selection/selector.hpp"

/// From a token's router scores to what runs where. Pure: the selector actor and the trace verifier
/// call the same function, so that a decision in a trace can be recomputed from what the trace
/// records.
namespace ordermoe::serving {

/// One for each slot of a row at most; never allocates.
template <class T>
using slot_list = boost::container::static_vector<T, planning::max_slots>;

struct row_decision {
  slot_list<std::uint32_t> targets;  ///< [k], rank order
  slot_list<float> target_gates;     ///< [k]
  planning::decision choice;         ///< slots in rank order of the targets
  slot_list<wire::executed_slot>
      executed;  ///< Distinct (server, expert), by first slot that they serve; slots that are left
                 ///< out are not among them.
  loss_units loss = 0;  ///< Sum over the slots.
};

struct chunk_decision {
  std::uint32_t residence = 0;
  loss_units pool_left = 0;
  std::vector<row_decision> rows;
};

struct decide_input {
  std::size_t layer = 0;
  std::size_t server = 0;
  std::size_t access = 0;
  std::size_t first = 0;  ///< Position of the first row; the others follow it.
  /// Nobody reads what the model says behind the positions before this one.
  std::size_t unread_before = 0;
  std::size_t n_experts = 0;
  std::size_t top_k = 0;
  /// Of the model: both the targets' gates and those of what is executed in their place follow it.
  model::gate_rule gates = model::gate_rule::renormalised;
  std::span<const float> logits;          ///< [n, n_experts]
  std::span<const loss_units> allowance;  ///< [n]
  loss_units pool = 0;
  double tokens_left = 1;                 ///< That share the pool, these rows' layers included.
  std::span<const std::int64_t> wait_ns;  ///< [n_servers] or empty
  std::span<const double> link_ns;        ///< [to, from] as decision_query has it, or empty.
  /// R_{l+1}; empty at the last layer.
  planning::server_mask next_members = 0;
};

/// Where the plan prunes experts for the access server, the router chooses among the others: a slot whose target is pruned runs
/// the best of them that no other slot has, gates are those of a model without the pruned ones, and the slot loses what it would
/// where that expert stood in for the target; nothing where the plan has a budget, of which that was taken beforehand.
///
/// One residence for the whole chunk: the rows first choose freely, the residence with most rows
/// wins (ties: the lower server), then every row chooses its slots with that residence given. A row
/// spends at most its allowance and what the rows before it left in the pool.
///
/// Rows without slots (model::has_slots) choose nothing and have no say. Where no row has any, the
/// chunk stays where it is if it may, else it goes to the lowest server of R_{l+1}. At the last layer a chunk
/// of which nothing runs stays, too.
chunk_decision decide(const planning::selection_tables& tables, const decide_input& input);

}  // namespace ordermoe::serving
