#include "actors/passage.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "model/transformer.hpp"
#include "planning/serving/token_rules.hpp"

namespace ordermoe::actors {

namespace {

/// What is left out does not run.
void count_slots(std::uint32_t server, const chunk_decision& choice, wire::ran_slots& ran) {
  for (const auto& row : choice.rows)
    for (std::uint32_t j = 0; j < row.choice.n_slots; ++j) {
      const auto kind =
          static_cast<std::size_t>(classify(server, row.targets[j], row.choice.slots[j]));
      if (kind < ran.size()) ++ran[kind];
    }
}

/// For whoever counts what is chosen after it.
void note_chosen(const server_view& view, const chunk_decision& choice, wire::token_state& state) {
  state.chosen.clear();
  const bool decodes = state.terms.decodes(state.first);
  if (!view.monitor || !decodes || choice.rows.size() != 1) return;
  const auto& targets = choice.rows.front().targets;
  state.chosen.assign(targets.begin(), targets.end());
  std::ranges::sort(state.chosen);
}

}  // namespace

bool may_ride(const server_view& view, const wire::token_state& state) {
  return view.context->clock == clock_kind::wall && state.ids.size() == 1 &&
         state.first >= state.terms.prompt_tokens && state.first + 1 >= state.terms.given_tokens;
}

attend_work attention_of(const token_actor& token, const server_view& view,
                         wire::token_state& state) {
  const auto& context = *view.context;
  const auto members = view.members(state.terms.access, state.layer);
  attend_work work;
  work.token = token;
  work.terms = state.terms;
  work.epoch = view.placed->plan.epoch;
  work.layer = state.layer;
  work.first = state.first;
  work.n = static_cast<std::uint32_t>(state.ids.size());
  if (state.hidden.empty()) work.ids = state.ids;
  work.hidden = std::move(state.hidden);
  work.stream = context.stream_kv && (members & (members - 1)) != 0 &&
                context.shape().kv_row_size(layer_id{state.layer}) > 0;
  work.chosen = std::move(state.chosen);
  work.allowance = std::move(state.allowance);
  work.pool = state.pool;
  work.tokens_left = serving::tokens_left(state.terms, state.first, work.n, state.layer,
                                          context.decoding.n_layers);
  return work;
}

void take_decision(const server_view& view, const chunk_decision& choice,
                   wire::token_state& state) {
  state.spent += state.pool - choice.pool_left;
  state.pool = choice.pool_left;
  for (std::size_t i = 0; i < state.allowance.size(); ++i)
    state.allowance[i] -= choice.rows[i].loss;
  if (state.ran) count_slots(view.id, choice, *state.ran);
  note_chosen(view, choice, state);
}

bool runs_at(std::span<const wire::executed_slot> slots, std::uint32_t server) {
  return !slots.empty() && std::ranges::all_of(slots, [&](const wire::executed_slot& slot) {
    return slot.server == server;
  });
}

std::optional<wire::expert_call> call_of_rider(const chunk_decision& choice, passage& rider,
                                               std::vector<float>& normed) {
  const auto here = rider.view->id;
  const auto& slots = choice.rows.front().executed;
  if (choice.residence != here || !runs_at({slots.data(), slots.size()}, here)) return std::nullopt;
  const auto& state = rider.state;
  auto call = std::move(rider.call);
  call.token = {state.terms.request, state.terms.attempt, state.terms.access, state.first};
  call.layer = state.layer;
  call.reply_to = here;
  call.rows.assign(1, 0);
  call.whole.assign(1, 1);
  call.items.clear();
  for (std::uint32_t j = 0; j < slots.size(); ++j)
    call.items.push_back({0, j, slots[j].expert, slots[j].gate});
  call.x = std::move(normed);
  return call;
}

void add_outputs_of_rider(running_call& done, passage& rider) {
  auto& hidden = rider.state.hidden;
  const auto& items = done.work.call.items;
  std::array<float, planning::max_slots> gates{};
  std::array<const float*, planning::max_slots> outputs{};
  for (std::size_t j = 0; j < items.size(); ++j) {
    gates[j] = items[j].gate;
    outputs[j] = done.outputs.data() + j * hidden.size();
  }
  model::add_slots(hidden, std::span(gates).first(items.size()),
                   std::span(outputs).first(items.size()));
  rider.call = std::move(done.work.call);
  ++rider.state.layer;
}

}  // namespace ordermoe::actors
