#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "net/wire/messages.hpp"
#include "planning/cost_model.hpp"
#include "planning/plan.hpp"
#include "planning/strategies/quality_terms.hpp"

/// How tokens follow each other: which rows a chunk has, what a token may spend, where the next
/// position starts. Shared with the trace checker.
namespace ordermoe::serving {

/// What the rules need of the model.
struct decoding_shape {
  std::uint32_t n_layers = 0;
  /// Rows between a prompt and the first sampled token: an encoder-decoder's decoder reads its start
  /// token there.
  std::uint32_t start_rows = 0;
  std::uint32_t decoded_layer = 0;  ///< Where decoded positions begin.
  std::uint32_t max_context = 0;
};

/// What a policy says of budgets and of where positions begin.
struct decoding_policy {
  loss_units token_budget = 0;    ///< Average units per token; unbounded_budget: no limit.
  double allowance_factor = 1;    ///< A token may spend this many even shares of what is left.
  bool continue_in_place = true;  ///< The next position starts where the last one ended.
  planning::quality_terms quality = {};  ///< Of the plan, of which a request may have less.
};

/// Budget of a request of so many positions. Saturates at unbounded_budget.
loss_units request_budget(loss_units token_budget, std::uint64_t positions);

/// Tokens that share the pool of the rows [first, first + rows) before layer `layer` of `n_layers`:
/// those rows, less the layers that they have behind them, and the positions that may follow them.
double tokens_left(const wire::request_terms& terms, std::uint32_t first, std::uint32_t rows,
                   std::size_t layer, std::size_t n_layers);

/// The decoding position that computes a sampled id: its state before the embedding. It shares the
/// pool with the positions that may still follow it.
wire::token_state successor(const wire::request_terms& terms, std::int32_t id,
                            std::uint32_t position, loss_units pool, loss_units spent,
                            double allowance_factor, const decoding_shape& shape);

/// What a chunk of given positions may spend.
struct chunk_budget {
  loss_units pool = 0;
  loss_units allowance = 0;  ///< Of each row.
};
/// In the first attempt: rows spend their even shares, and the last chunk also carries what the new
/// tokens may spend.
chunk_budget first_chunk_budget(const decoding_policy& policy, std::uint32_t rows,
                                std::uint32_t new_tokens, bool last);

/// The member of `members` that is reached first from `from` (ties: the lower). Precondition: one at
/// least.
std::uint32_t nearest_member(planning::server_mask members, std::uint32_t from,
                             const planning::cost_model& prices);

/// KV bytes that a request needs at each server under a residency; [n_servers].
std::vector<std::int64_t> kv_need(const planning::residency& residence, std::size_t n_servers,
                                  std::size_t positions, std::int64_t kv_row_bytes);

}  // namespace ordermoe::serving
