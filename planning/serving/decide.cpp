#include "planning/serving/decide.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "planning/selection/budget.hpp"

namespace ordermoe::serving {

namespace {

/// Softmax over all experts of one row, in double, rounded, then times what losses at its position are multiplied by. weights
/// [n_experts]: overwritten.
void router_probabilities(std::span<const float> logits, double position_damage,
                          std::span<double> weights, std::span<float> out) {
  model::softmax(logits, weights);
  for (std::size_t i = 0; i < logits.size(); ++i)
    out[i] =
        static_cast<float>(static_cast<double>(static_cast<float>(weights[i])) * position_damage);
}

void find_executed(row_decision& row, std::span<const float> logits, planning::gating rule,
                   model::gate_rule gates_rule) {
  for (std::uint32_t j = 0; j < row.choice.n_slots; ++j) {
    const auto& slot = row.choice.slots[j];
    if (slot.expert == planning::left_out) continue;
    const auto same = [&](const wire::executed_slot& e) {
      return e.server == slot.server && e.expert == slot.expert;
    };
    const auto found = std::find_if(row.executed.begin(), row.executed.end(), same);
    if (found == row.executed.end())
      row.executed.push_back({slot.server, slot.expert, row.target_gates[j]});
    else
      found->gate += row.target_gates[j];
  }
  if (rule == planning::gating::target) return;
  slot_list<model::route_slot> weighed;
  for (const auto& e : row.executed) weighed.push_back({expert_id{e.expert}, 0});
  model::weigh_experts(logits, gates_rule, {weighed.data(), weighed.size()});
  for (std::size_t j = 0; j < weighed.size(); ++j) row.executed[j].gate = weighed[j].gate;
}

/// What one chunk needs besides its result; kept for its memory by each thread.
struct scratch {
  std::vector<float> probabilities;         ///< [n, n_experts] by which losses go.
  std::vector<double> weights;              ///< [n_experts]
  std::vector<loss_units> losses;           ///< [n, k, n_experts]
  std::vector<planning::slot_query> slots;  ///< [n, k]
  std::vector<float> kept_logits;           ///< [n, n_experts] where experts are pruned
  std::vector<loss_units> pruned_losses;    ///< [n, k] likewise
};

/// What a row's slots ask for where experts are pruned. kept_logits [n_experts]: overwritten with the logits of the others, minus
/// infinity for these; losses [k]: of the slots. probabilities: of all experts.
struct pruned_row {
  std::span<const float> logits;
  std::span<const float> probabilities;
  std::span<float> kept_logits;
  std::span<planning::slot_query> slots;
  std::span<loss_units> losses;
};

void redirect(const planning::selection_tables& tables, const decide_input& input,
              std::span<const std::uint8_t> pruned, const pruned_row& row) {
  for (std::size_t e = 0; e < pruned.size(); ++e)
    row.kept_logits[e] = pruned[e] != 0 ? -INFINITY : row.logits[e];
  std::array<model::route_slot, planning::max_slots> best;
  model::choose_experts(row.kept_logits, input.gates, std::span(best).first(row.slots.size()));
  // What is wanted and kept is among the best, so that the others are as many as the slots without one.
  slot_list<std::uint32_t> others;
  for (std::size_t j = 0; j < row.slots.size(); ++j) {
    const auto expert = best[j].expert.value;
    if (std::ranges::none_of(row.slots, [&](const auto& slot) { return slot.target == expert; }))
      others.push_back(expert);
  }
  auto other = others.begin();
  for (std::size_t j = 0; j < row.slots.size(); ++j) {
    auto& target = row.slots[j].target;
    row.losses[j] = 0;
    if (pruned[target] == 0) continue;
    row.losses[j] = tables.pruned_loss(
        input.layer, static_cast<double>(row.probabilities[target]) - row.probabilities[*other]);
    target = *other++;
  }
}

}  // namespace

chunk_decision decide(const planning::selection_tables& tables, const decide_input& input) {
  const auto n = input.allowance.size();
  const auto n_experts = input.n_experts;
  chunk_decision chunk;
  chunk.rows.resize(n);
  const auto k = input.top_k;
  // A rule that never substitutes asks for no loss.
  const bool substitutes = tables.policy().candidates != planning::candidate_rule::exact;
  const bool asks_losses = tables.reads_losses();
  thread_local scratch memory;
  auto& [probabilities, weights, losses, slots, kept_logits, pruned_losses] = memory;
  slots.assign(n * k, {});
  const auto pruned = tables.pruned(input.access, input.layer);
  const bool prunes = !pruned.empty();
  // Of a budget it was taken beforehand.
  const bool charges_pruning = tables.token_budget() >= planning::unbounded_budget;
  if (prunes) {
    kept_logits.resize(n * n_experts);
    pruned_losses.resize(n * k);
  }
  if (substitutes || prunes) {
    probabilities.resize(n * n_experts);
    weights.resize(n_experts);
    if (asks_losses) losses.resize(n * k * n_experts);
  }
  const auto probabilities_of = [&](std::size_t i) {
    return substitutes || prunes ? std::span(probabilities).subspan(i * n_experts, n_experts)
                                 : std::span<float>();
  };
  const auto kept_of = [&](std::size_t i) {
    return std::span(kept_logits).subspan(i * n_experts, n_experts);
  };
  for (std::size_t i = 0; i < n; ++i) {
    const auto logits = input.logits.subspan(i * n_experts, n_experts);
    if (!model::has_slots(logits)) continue;
    auto& row = chunk.rows[i];
    std::array<model::route_slot, planning::max_slots> wanted;
    model::choose_experts(logits, input.gates, std::span(wanted).first(k));
    for (std::size_t j = 0; j < k; ++j) {
      row.targets.push_back(wanted[j].expert.value);
      row.target_gates.push_back(wanted[j].gate);
      slots[i * k + j] = {row.targets[j], row.target_gates[j], {}};
    }
    if (!substitutes && !prunes) continue;
    const auto position = input.first + i;
    const double position_damage =
        tables.position_damage(position, position >= input.unread_before);
    const auto of_gate = static_cast<float>(std::sqrt(position_damage));
    for (std::size_t j = 0; j < k; ++j) slots[i * k + j].gate *= of_gate;
    router_probabilities(logits, position_damage, weights, probabilities_of(i));
    if (prunes)
      redirect(tables, input, pruned,
               {logits, probabilities_of(i), kept_of(i), std::span(slots).subspan(i * k, k),
                std::span(pruned_losses).subspan(i * k, k)});
    if (!asks_losses) continue;
    for (std::size_t j = 0; j < k; ++j) {
      const auto loss = std::span(losses).subspan((i * k + j) * n_experts, n_experts);
      tables.slot_losses(input.layer, row.targets[j], slots[i * k + j].gate, probabilities_of(i),
                         loss);
      slots[i * k + j].loss = loss;
    }
  }

  planning::decision_query query;
  query.layer = input.layer;
  query.server = input.server;
  query.access = input.access;
  query.wait_ns = input.wait_ns;
  query.link_ns = input.link_ns;
  if (tables.policy().price_follows_budget)
    query.price_scale = planning::price_scale(input.pool, input.tokens_left, tables.token_budget());
  const auto choose = [&](std::size_t i, loss_units pool) {
    query.slots = std::span(slots).subspan(i * k, k);
    query.probabilities = probabilities_of(i);
    query.budget_left = std::min(input.allowance[i], pool);
    return tables.select(query);
  };
  const auto loss_of = [](const planning::decision& choice) {
    loss_units total = 0;
    for (std::uint32_t j = 0; j < choice.n_slots; ++j) total += choice.slots[j].loss;
    return total;
  };

  // Where only one residence may follow, the rows need not be asked.
  if (n > 1 && std::popcount(input.next_members) != 1) {
    std::array<std::size_t, 64> votes{};
    auto pool = input.pool;
    for (std::size_t i = 0; i < n; ++i) {
      if (chunk.rows[i].targets.empty()) continue;
      const auto choice = choose(i, pool);
      ++votes[choice.residence];
      pool -= loss_of(choice);
    }
    const auto winner = std::max_element(votes.begin(), votes.end()) - votes.begin();
    query.residences = planning::server_bit(static_cast<std::size_t>(winner));
  }
  chunk.pool_left = input.pool;
  const bool may_stay = input.next_members == 0 || ((input.next_members >> input.server) & 1u) != 0;
  chunk.residence = static_cast<std::uint32_t>(
      may_stay ? input.server : static_cast<std::size_t>(std::countr_zero(input.next_members)));
  for (std::size_t i = 0; i < n; ++i) {
    auto& row = chunk.rows[i];
    if (row.targets.empty()) continue;
    row.choice = choose(i, chunk.pool_left);
    for (std::size_t j = 0; prunes && charges_pruning && j < k; ++j)
      row.choice.slots[j].loss += pruned_losses[i * k + j];
    row.loss = loss_of(row.choice);
    chunk.pool_left -= row.loss;
    chunk.residence = row.choice.residence;
    if (prunes)
      find_executed(row, kept_of(i), planning::gating::executed, input.gates);
    else
      find_executed(row, input.logits.subspan(i * n_experts, n_experts), tables.policy().gates,
                    input.gates);
  }
  // Behind the last layer a chunk that awaits nothing goes nowhere.
  const bool is_last = input.next_members == 0;
  if (is_last &&
      std::ranges::all_of(chunk.rows, [](const auto& row) { return row.executed.empty(); }))
    chunk.residence = static_cast<std::uint32_t>(input.server);
  return chunk;
}

}  // namespace ordermoe::serving
