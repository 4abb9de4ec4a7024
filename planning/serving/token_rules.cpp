#include "planning/serving/token_rules.hpp"

#include "config/error.hpp"
#include "planning/selection/budget.hpp"

namespace ordermoe::serving {

loss_units request_budget(loss_units token_budget, std::uint64_t positions) {
  if (token_budget >= unbounded_budget) return unbounded_budget;
  loss_units budget = 0;
  if (__builtin_mul_overflow(token_budget, positions, &budget) || budget >= unbounded_budget)
    return unbounded_budget;
  return budget;
}

double tokens_left(const wire::request_terms& terms, std::uint32_t first, std::uint32_t rows,
                   std::size_t layer, std::size_t n_layers) {
  const auto end = first + rows;
  const double following = end < terms.given_tokens ? 0
                                                    : static_cast<double>(terms.prompt_tokens) +
                                                          terms.max_new_tokens - end;
  return following + rows * (1 - static_cast<double>(layer) / static_cast<double>(n_layers));
}

wire::token_state successor(const wire::request_terms& terms, std::int32_t id,
                            std::uint32_t position, loss_units pool, loss_units spent,
                            double allowance_factor, const decoding_shape& shape) {
  const auto generated = position + 1 - terms.prompt_tokens - shape.start_rows;
  wire::token_state next;
  next.terms = terms;
  next.first = position;
  next.layer = shape.decoded_layer;
  next.ids = {id};
  next.pool = pool;
  const auto sharers = generated < terms.max_new_tokens ? terms.max_new_tokens - generated : 0;
  next.allowance = {planning::fair_allowance(pool, sharers, allowance_factor)};
  next.spent = spent;
  return next;
}

chunk_budget first_chunk_budget(const decoding_policy& policy, std::uint32_t rows,
                                std::uint32_t new_tokens, bool last) {
  const auto sharers = rows + (last ? new_tokens : 0);
  chunk_budget budget;
  budget.pool = request_budget(policy.token_budget, sharers);
  budget.allowance = planning::fair_allowance(budget.pool, sharers, policy.allowance_factor);
  return budget;
}

std::uint32_t nearest_member(planning::server_mask members, std::uint32_t from,
                             const planning::cost_model& prices) {
  ORDERMOE_CHECK(members != 0, "a residency has a member");
  std::uint32_t best = 0;
  double best_ns = -1;
  for (std::uint32_t m = 0; m < prices.n_servers; ++m) {
    if (!((members >> m) & 1u)) continue;
    const auto ns = prices.message(from, m);
    if (best_ns < 0 || ns < best_ns) {
      best = m;
      best_ns = ns;
    }
  }
  return best;
}

std::vector<std::int64_t> kv_need(const planning::residency& residence, std::size_t n_servers,
                                  std::size_t positions, std::int64_t kv_row_bytes) {
  std::vector<std::int64_t> need(n_servers, 0);
  for (const auto members : residence.layers)
    for (std::size_t m = 0; m < n_servers; ++m)
      if ((members >> m) & 1u) need[m] += static_cast<std::int64_t>(positions) * kv_row_bytes;
  return need;
}

}  // namespace ordermoe::serving
