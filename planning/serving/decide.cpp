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
  float of_gate = 1;  ///< What gates are multiplied by where the row is.
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
  // What runs has the weight that the router gives it among those that are left.
  for (auto& slot : row.slots)
    for (std::size_t i = 0; i < row.slots.size(); ++i)
      if (best[i].expert.value == slot.target) slot.gate = best[i].gate * row.of_gate;
}

/// How one chunk is decided: first what each row asks for, then where all of them go, then what each runs.
class deciding {
 public:
  deciding(const planning::selection_tables& tables, const decide_input& input, scratch& memory)
      : tables_(tables), input_(input), memory_(memory) {
    if (prunes()) {
      memory_.kept_logits.resize(n_ * n_experts_);
      memory_.pruned_losses.resize(n_ * k_);
    }
    if (reads_probabilities()) {
      memory_.probabilities.resize(n_ * n_experts_);
      memory_.weights.resize(n_experts_);
      if (tables_.reads_losses()) memory_.losses.resize(n_ * k_ * n_experts_);
    }
    memory_.slots.assign(n_ * k_, {});
    query_.layer = input.layer;
    query_.server = input.server;
    query_.access = input.access;
    query_.wait_ns = input.wait_ns;
    query_.link_ns = input.link_ns;
    if (tables_.policy().price_follows_budget)
      query_.price_scale =
          planning::price_scale(input.pool, input.tokens_left, tables_.token_budget());
  }

  void ask(std::size_t i, row_decision& row) {
    const auto logits = logits_of(i);
    if (!model::has_slots(logits)) return;
    std::array<model::route_slot, planning::max_slots> wanted;
    model::choose_experts(logits, input_.gates, std::span(wanted).first(k_));
    for (std::size_t j = 0; j < k_; ++j) {
      row.targets.push_back(wanted[j].expert.value);
      row.target_gates.push_back(wanted[j].gate);
      slots_of(i)[j] = {row.targets[j], row.target_gates[j], {}};
    }
    if (reads_probabilities()) ask_losses(i, row);
  }

  /// Where most rows would go by themselves is where all go. Where only one residence may follow, the rows need not be asked.
  void settle_residence(std::span<const row_decision> rows) {
    if (n_ <= 1 || std::popcount(input_.next_members) == 1) return;
    std::array<std::size_t, 64> votes{};
    auto pool = input_.pool;
    for (std::size_t i = 0; i < n_; ++i) {
      if (rows[i].targets.empty()) continue;
      const auto choice = choose(i, pool);
      ++votes[choice.residence];
      pool -= loss_of(choice);
    }
    const auto winner = std::max_element(votes.begin(), votes.end()) - votes.begin();
    query_.residences = planning::server_bit(static_cast<std::size_t>(winner));
  }

  void decide_row(std::size_t i, row_decision& row, loss_units pool) {
    row.choice = choose(i, pool);
    // Of a budget what pruning loses was taken beforehand, and what runs again was charged the first time.
    const bool charges_pruning =
        tables_.token_budget() >= planning::unbounded_budget && input_.allowance[i] > 0;
    for (std::size_t j = 0; prunes() && charges_pruning && j < k_; ++j)
      row.choice.slots[j].loss += memory_.pruned_losses[i * k_ + j];
    row.loss = loss_of(row.choice);
    if (prunes())
      find_executed(row, kept_of(i), planning::gating::executed, input_.gates);
    else
      find_executed(row, logits_of(i), tables_.policy().gates, input_.gates);
  }

 private:
  bool prunes() const { return !pruned_.empty(); }
  /// A rule that never substitutes asks for no loss.
  bool reads_probabilities() const {
    return prunes() || tables_.policy().candidates != planning::candidate_rule::exact;
  }
  std::span<const float> logits_of(std::size_t i) const {
    return input_.logits.subspan(i * n_experts_, n_experts_);
  }
  std::span<float> probabilities_of(std::size_t i) const {
    return reads_probabilities()
               ? std::span(memory_.probabilities).subspan(i * n_experts_, n_experts_)
               : std::span<float>();
  }
  std::span<float> kept_of(std::size_t i) const {
    return std::span(memory_.kept_logits).subspan(i * n_experts_, n_experts_);
  }
  std::span<planning::slot_query> slots_of(std::size_t i) const {
    return std::span(memory_.slots).subspan(i * k_, k_);
  }
  static loss_units loss_of(const planning::decision& choice) {
    loss_units total = 0;
    for (std::uint32_t j = 0; j < choice.n_slots; ++j) total += choice.slots[j].loss;
    return total;
  }

  /// What each slot would lose by each expert, at the position where the row is.
  void ask_losses(std::size_t i, const row_decision& row) {
    const auto position = input_.first + i;
    const double position_damage = tables_.position_damage(position, input_.unread_before);
    const auto of_gate = static_cast<float>(std::sqrt(position_damage));
    const auto slots = slots_of(i);
    for (auto& slot : slots) slot.gate *= of_gate;
    const auto probabilities = probabilities_of(i);
    router_probabilities(logits_of(i), position_damage, memory_.weights, probabilities);
    if (prunes())
      redirect(tables_, input_, pruned_,
               {logits_of(i), probabilities, kept_of(i), slots,
                std::span(memory_.pruned_losses).subspan(i * k_, k_), of_gate});
    if (!tables_.reads_losses()) return;
    for (std::size_t j = 0; j < k_; ++j) {
      const auto loss = std::span(memory_.losses).subspan((i * k_ + j) * n_experts_, n_experts_);
      tables_.slot_losses(input_.layer, row.targets[j], slots[j].gate, probabilities, loss);
      slots[j].loss = loss;
    }
  }

  planning::decision choose(std::size_t i, loss_units pool) {
    query_.slots = slots_of(i);
    query_.probabilities = probabilities_of(i);
    query_.budget_left = std::min(input_.allowance[i], pool);
    return tables_.select(query_);
  }

  const planning::selection_tables& tables_;
  const decide_input& input_;
  scratch& memory_;
  std::size_t n_ = input_.allowance.size();
  std::size_t n_experts_ = input_.n_experts;
  std::size_t k_ = input_.top_k;
  std::span<const std::uint8_t> pruned_ = tables_.pruned(input_.access, input_.layer);
  planning::decision_query query_;
};

}  // namespace

chunk_decision decide(const planning::selection_tables& tables, const decide_input& input) {
  const auto n = input.allowance.size();
  chunk_decision chunk;
  chunk.rows.resize(n);
  thread_local scratch memory;
  deciding rows(tables, input, memory);
  for (std::size_t i = 0; i < n; ++i) rows.ask(i, chunk.rows[i]);
  rows.settle_residence(chunk.rows);

  chunk.pool_left = input.pool;
  const bool may_stay = input.next_members == 0 || ((input.next_members >> input.server) & 1u) != 0;
  chunk.residence = static_cast<std::uint32_t>(
      may_stay ? input.server : static_cast<std::size_t>(std::countr_zero(input.next_members)));
  for (std::size_t i = 0; i < n; ++i) {
    auto& row = chunk.rows[i];
    if (row.targets.empty()) continue;
    rows.decide_row(i, row, chunk.pool_left);
    chunk.pool_left -= row.loss;
    chunk.residence = row.choice.residence;
  }
  // Behind the last layer a chunk that awaits nothing goes nowhere.
  const bool is_last = input.next_members == 0;
  if (is_last &&
      std::ranges::all_of(chunk.rows, [](const auto& row) { return row.executed.empty(); }))
    chunk.residence = static_cast<std::uint32_t>(input.server);
  return chunk;
}

}  // namespace ordermoe::serving
