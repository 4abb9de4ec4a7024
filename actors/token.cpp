#include "actors/token.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/trace_lines.hpp"
#include "model/sampling.hpp"
#include "planning/ledger.hpp"

namespace ordermoe::actors {

namespace {

struct token_data {
  token_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  token_state state;
  std::vector<expert_output> outputs;  ///< Collected so far.
  // While outputs are combined; kept from layer to layer for their memory.
  std::vector<std::uint32_t> first_slot;  ///< [n] index of each row's first executed slot
  std::vector<const float*> part;         ///< [slots] where each slot's output is
  std::vector<const float*> whole;        ///< [n] where the sum over a row's slots is
  std::vector<float> gates;

  const run_context& run() const { return *view->run; }
  std::size_t n() const { return state.ids.size(); }
  std::size_t width() const { return run().shape().hidden_size; }
  token_key key() const { return {state.terms.request, state.terms.attempt, state.first}; }
  token_actor handle() const { return caf::actor_cast<token_actor>(self); }
  bool last_layer() const { return state.layer + 1 == run().shape().n_layers; }

  void start() {
    if (state.calls_outstanding == 0)
      attend();
    else if (outputs.size() == state.calls_outstanding)
      combine();
  }

  void attend() {
    const auto members = view->placed->plan.residence[state.terms.access].layers[state.layer];
    attend_work work;
    work.token = handle();
    work.terms = state.terms;
    work.layer = state.layer;
    work.first = state.first;
    work.n = static_cast<std::uint32_t>(n());
    if (state.hidden.empty()) work.ids = state.ids;
    work.hidden = std::move(state.hidden);
    work.stream = run().stream_kv && (members & (members - 1)) != 0 &&
                  run().shape().kv_row_size(layer_id{state.layer}) > 0;
    work.allowance = std::move(state.allowance);
    work.pool = state.pool;
    work.tokens_left =
        tokens_left(state.terms, state.first, work.n, state.layer, run().shape().n_layers);
    self->send(view->compute, std::move(work));
  }

  void execute(decided& answer) {
    state.hidden = std::move(answer.hidden);
    state.allowance = std::move(answer.allowance);
    const auto& normed = answer.normed;
    const auto& choice = answer.choice;
    state.spent += state.pool - choice.pool_left;
    state.pool = choice.pool_left;
    state.slots_of_row.clear();
    state.slots.clear();
    state.slots_of_row.reserve(n());
    state.slots.reserve(n() * run().shape().top_k);
    // By server, ascending: a decision names few.
    std::vector<std::pair<std::uint32_t, expert_call>> calls;
    const auto call_to = [&](std::uint32_t server) -> expert_call& {
      auto at = calls.begin();
      while (at != calls.end() && at->first < server) ++at;
      if (at == calls.end() || at->first != server) {
        at = calls.insert(at, {server, {}});
        auto& call = at->second;
        call.rows.reserve(n());
        call.whole.reserve(n());
        call.items.reserve(n() * run().shape().top_k);
        call.x.reserve(n() * width());
      }
      return at->second;
    };
    for (std::uint32_t i = 0; i < n(); ++i) {
      const auto& row = choice.rows[i];
      state.allowance[i] -= row.loss;
      state.slots_of_row.push_back(static_cast<std::uint32_t>(row.executed.size()));
      const bool whole =
          std::all_of(row.executed.begin(), row.executed.end(),
                      [&](const executed_slot& e) { return e.server == row.executed[0].server; });
      for (std::uint32_t j = 0; j < row.executed.size(); ++j) {
        const auto& slot = row.executed[j];
        state.slots.push_back(slot);
        auto& call = call_to(slot.server);
        if (call.rows.empty() || call.rows.back() != i) {
          call.rows.push_back(i);
          call.whole.push_back(whole ? 1 : 0);
          const auto x = normed.begin() + static_cast<std::ptrdiff_t>(i * width());
          call.x.insert(call.x.end(), x, x + static_cast<std::ptrdiff_t>(width()));
        }
        call.items.push_back(
            {static_cast<std::uint32_t>(call.rows.size() - 1), j, slot.expert, slot.gate});
      }
    }
    state.calls_outstanding = static_cast<std::uint32_t>(calls.size());
    if (calls.empty()) return pass_on(choice.residence);
    const bool stays = choice.residence == view->id;
    if (!stays) leave();
    for (auto& [server, call] : calls) {
      call.token = key();
      call.layer = state.layer;
      call.reply_to = choice.residence;
      if (server == view->id)
        self->send(view->shards[state.layer],
                   expert_work{std::move(call), stays ? handle() : token_actor{}});
      else
        view->send(server, encode(call));
    }
    if (!stays) view->send(choice.residence, encode(state));
  }

  /// The end of a layer at which no row runs an expert.
  void pass_on(std::uint32_t residence) {
    state.slots_of_row.clear();
    if (last_layer()) return head();
    ++state.layer;
    if (residence == view->id) return attend();
    leave();
    view->send(residence, encode(state));
  }

  void collect(expert_output& output) {
    outputs.push_back(std::move(output));
    if (outputs.size() == state.calls_outstanding) combine();
  }

  void combine() {
    first_slot.assign(n(), 0);
    for (std::size_t i = 1; i < n(); ++i)
      first_slot[i] = first_slot[i - 1] + state.slots_of_row[i - 1];
    part.assign(state.slots.size(), nullptr);
    whole.assign(n(), nullptr);
    for (const auto& output : outputs)
      for (std::size_t r = 0; r < output.rows.size(); ++r) {
        const float* y = output.y.data() + r * width();
        const auto& row = output.rows[r];
        if (row.slot == whole_row)
          whole[row.row] = y;
        else
          part[first_slot[row.row] + row.slot] = y;
      }
    for (std::size_t i = 0; i < n(); ++i) {
      const auto hidden = std::span(state.hidden).subspan(i * width(), width());
      if (whole[i] != nullptr) {
        for (std::size_t c = 0; c < width(); ++c) hidden[c] += whole[i][c];
        continue;
      }
      if (state.slots_of_row[i] == 0) continue;
      gates.clear();
      for (std::uint32_t j = 0; j < state.slots_of_row[i]; ++j)
        gates.push_back(state.slots[first_slot[i] + j].gate);
      model::add_slots(hidden, gates,
                       std::span(part).subspan(first_slot[i], state.slots_of_row[i]));
    }
    outputs.clear();
    state.slots.clear();
    state.slots_of_row.clear();
    state.calls_outstanding = 0;
    if (last_layer()) return head();
    ++state.layer;
    attend();
  }

  /// Only the last row of a prompt and decoding positions need logits.
  void head() {
    const auto& two_stacks = run().shape().encoder_decoder;
    const bool whole_prompt_done = state.first + n() >= state.terms.prompt_tokens;
    if (two_stacks && state.first < state.terms.prompt_tokens) {
      leave();
      start_successor(two_stacks->decoder_start_id, state.terms.prompt_tokens, state.forced);
    } else if (whole_prompt_done) {
      const auto last = state.hidden.end() - static_cast<std::ptrdiff_t>(width());
      self->send(view->compute, head_work{handle(), {last, state.hidden.end()}});
    } else {
      leave();
      progress_report report;
      report.request = state.terms.request;
      report.attempt = state.terms.attempt;
      report.access = state.terms.access;
      report.position = state.first;
      report.spent = state.spent;
      self->send(view->server, std::move(report));
    }
  }

  void sample(const head_done& result) {
    progress_report report;
    report.request = state.terms.request;
    report.attempt = state.terms.attempt;
    report.access = state.terms.access;
    report.position = state.first;
    const auto position = state.first + static_cast<std::uint32_t>(n());
    report.position = position;
    if (state.terms.score != 0) {
      report.id = state.forced.front();
      report.losses.push_back(model::negative_log_likelihood(result.logits, report.id));
    } else {
      report.id = model::sample(result.logits, {state.terms.temperature, state.terms.sampling_seed},
                                state.terms.request, position);
    }
    const auto generated = position + 1 - state.terms.prompt_tokens - run().start_rows();
    const bool end_of_text = run().shape().ends_text(report.id) && !state.terms.ignore_end_of_text;
    report.last = end_of_text || generated >= state.terms.max_new_tokens ||
                  position + 1 - run().start_rows() >= run().shape().max_context;
    report.pool = state.pool;
    report.spent = state.spent;
    if (run().keep_final_hidden)
      run().books->keep_final_hidden(
          state.terms.request,
          {state.hidden.end() - static_cast<std::ptrdiff_t>(width()), state.hidden.end()});
    if (run().books->tracing())
      run().books->trace(token_line(report, view->id, now_ns(self) - run().start_ns));
    leave();
    if (!report.last && state.terms.continue_in_place)
      start_successor(report.id, position,
                      std::span(state.forced).subspan(state.terms.score != 0 ? 1 : 0));
    self->send(view->server, std::move(report));
  }

  void start_successor(std::int32_t id, std::uint32_t position,
                       std::span<const std::int32_t> forced) {
    auto next = successor(state.terms, id, position, state.pool, state.spent,
                          run().allowance_factor, run().start_rows(), run().decoded_layer());
    next.forced.assign(forced.begin(), forced.end());
    const auto to = view->start_server(state.terms.access, view->id, next.layer);
    if (to == view->id)
      self->send(view->server, start_token{std::move(next)});
    else
      view->send(to, encode(next));
  }

  /// Said before anything else is sent: whatever the departure causes to arrive here comes after
  /// it.
  void leave() {
    self->send(view->server, token_departed{key()});
    self->quit();
  }
};

}  // namespace

token_actor spawn_token(caf::local_actor& parent, std::shared_ptr<const server_view> view,
                        token_state state, std::vector<expert_output> early_outputs) {
  auto token = parent.spawn(
      [view = std::move(view), state = std::move(state), outputs = std::move(early_outputs)](
          token_actor::stateful_pointer<token_data> self) mutable -> token_actor::behavior_type {
        auto& data = self->state;
        data.self = self;
        data.view = std::move(view);
        data.state = std::move(state);
        data.outputs = std::move(outputs);
        data.start();
        return {
            [&data](decided& answer) { data.execute(answer); },
            [&data](expert_output& output) { data.collect(output); },
            [&data](head_done& result) { data.sample(result); },
        };
      });
  leave_log();
  return token;
}

double tokens_left(const request_terms& terms, std::uint32_t first, std::uint32_t rows,
                   std::size_t layer, std::size_t n_layers) {
  const auto end = first + rows;
  const double following = end < terms.prompt_tokens ? 0
                                                     : static_cast<double>(terms.prompt_tokens) +
                                                           terms.max_new_tokens - end;
  return following + rows * (1 - static_cast<double>(layer) / static_cast<double>(n_layers));
}

token_state successor(const request_terms& terms, std::int32_t id, std::uint32_t position,
                      loss_units pool, loss_units spent, double allowance_factor,
                      std::uint32_t start_rows, std::uint32_t layer) {
  const auto generated = position + 1 - terms.prompt_tokens - start_rows;
  token_state next;
  next.terms = terms;
  next.first = position;
  next.layer = layer;
  next.ids = {id};
  next.pool = pool;
  next.allowance = {
      planning::fair_allowance(pool, terms.max_new_tokens - generated, allowance_factor)};
  next.spent = spent;
  return next;
}

}  // namespace ordermoe::actors
