#include "actors/token.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "actors/passage.hpp"
#include "model/sampling.hpp"
#include "planning/serving/awaited_outputs.hpp"
#include "planning/serving/phases.hpp"
#include "planning/serving/token_visits.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

using wire::executed_slot;
using wire::expert_call;
using wire::token_state;

constexpr double least_logprob = -1e6;

enum class token_phase { starting, attending, collecting, collecting_here, sampling, gone };

constexpr transition<token_phase> token_steps[] = {
    {token_phase::starting, token_phase::attending, "a layer begins"},
    {token_phase::starting, token_phase::collecting, "outputs are awaited here"},
    {token_phase::starting, token_phase::sampling, "only the output projection is left"},
    {token_phase::attending, token_phase::attending, "no row of the layer runs an expert"},
    {token_phase::attending, token_phase::collecting, "decided: the residence is here"},
    {token_phase::attending, token_phase::collecting_here,
     "decided: rows run here, then it leaves"},
    {token_phase::attending, token_phase::sampling,
     "no row of the last layer runs an expert, or it rode past it"},
    {token_phase::attending, token_phase::gone, "decided: the residence is elsewhere"},
    {token_phase::collecting, token_phase::attending, "all outputs are in"},
    {token_phase::collecting, token_phase::sampling, "all outputs of the last layer are in"},
    {token_phase::collecting, token_phase::gone, "the end of a chunk"},
    {token_phase::collecting_here, token_phase::gone, "the rows that ran here are complete"},
    {token_phase::sampling, token_phase::gone, "sampled"},
    {token_phase::sampling, token_phase::starting, "sampled: the next position starts here"},
    {token_phase::attending, token_phase::starting, "likewise, behind an encoder's prompt"},
    {token_phase::collecting, token_phase::starting, "likewise"},
    {token_phase::starting, token_phase::gone, "the end of a chunk"},
    {token_phase::attending, token_phase::gone, "the end of a chunk"},
};

struct token_data {
  token_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  token_state state;
  phase_of<token_phase> phase{token_phase::starting, token_steps};
  awaited_outputs awaited;
  std::shared_ptr<passage> lent;  ///< To be used again.
  std::uint32_t residence = 0;    ///< Where it goes from collecting_here.

  const service_context& context() const { return *view->context; }
  std::size_t n() const { return state.ids.size(); }
  std::size_t width() const { return context().wire.hidden_size; }
  token_key key() const {
    return {state.terms.request, state.terms.attempt, state.terms.access, state.first};
  }
  token_actor handle() const { return caf::actor_cast<token_actor>(self); }
  bool behind_last_layer() const { return state.layer >= context().decoding.n_layers; }

  void start(std::vector<arrived_output> early) {
    if (state.slots_of_row.empty()) return go_on();
    phase.move(token_phase::collecting);
    awaited.expect(state.layer, state.slots_of_row, state.slots, width());
    for (auto& output : early) awaited.take(std::move(output));
    go_on_with_outputs();
  }

  /// With the layers before `state.layer` behind it.
  void go_on() {
    if (behind_last_layer()) return end_of_layers();
    phase.move(token_phase::attending);
    auto work = attention_of(handle(), *view, state);
    if (may_ride(*view, state)) lend(work);
    self->send(view->compute, std::move(work));
  }

  /// What names this token stays.
  void lend(attend_work& work) {
    auto taken = std::exchange(lent, nullptr);
    if (!taken) taken = std::make_shared<passage>();
    taken->token = work.token;
    taken->view = view;
    taken->state = std::move(state);
    work.lent = std::move(taken);
  }

  /// Null where nothing was lent.
  void take_back(std::shared_ptr<passage> back) {
    if (!back) return;
    state = std::move(back->state);
    back->token = nullptr;
    lent = std::move(back);
  }

  // ------------------------------------------------------------------------------------- executing

  void execute(decided& answer) {
    if (!phase.is(token_phase::attending)) return;
    take_back(std::move(answer.lent));
    state.hidden = std::move(answer.hidden);
    state.allowance = std::move(answer.allowance);
    const auto& choice = answer.choice;
    take_decision(*view, choice, state);
    residence = choice.residence;
    const bool stays = residence == view->id;
    bool any_here_alone = false;
    state.slots_of_row.clear();
    state.slots.clear();
    call_list calls;
    for (std::uint32_t i = 0; i < n(); ++i) {
      const std::span<const executed_slot> slots{choice.rows[i].executed.data(),
                                                 choice.rows[i].executed.size()};
      state.slots_of_row.push_back(static_cast<std::uint32_t>(slots.size()));
      state.slots.insert(state.slots.end(), slots.begin(), slots.end());
      const bool here_alone = !stays && runs_at(slots, view->id);
      any_here_alone = any_here_alone || here_alone;
      add_row(calls, i, slots, answer.normed, here_alone);
    }
    if (calls.empty()) return end_layer_without_outputs();
    if (!stays && !any_here_alone) leave(called_elsewhere());
    for (auto& call : calls) send_call(call, stays);
    if (stays) {
      phase.move(token_phase::collecting);
      awaited.expect(state.layer, state.slots_of_row, state.slots, width());
    } else if (any_here_alone) {
      collect_here();
    } else {
      go_to_residence();
    }
  }

  /// In a cluster; a run of one process is timed as if nobody counted.
  void go_to_residence() {
    if (!context().seat) state.chosen.clear();
    view->send(self, residence, wire::encode(state));
  }

  /// A call to one server; `here_alone`: of the rows whose outputs this token adds itself before it
  /// leaves.
  struct server_call {
    std::uint32_t server = 0;
    bool here_alone = false;
    expert_call content;
  };
  using call_list = std::vector<server_call>;

  /// Calls stand by server, ascending: a decision names few.
  expert_call& call_to(call_list& calls, std::uint32_t server, bool here_alone) const {
    auto at = calls.begin();
    while (at != calls.end() &&
           std::pair(at->server, at->here_alone) < std::pair(server, here_alone))
      ++at;
    if (at == calls.end() || at->server != server || at->here_alone != here_alone) {
      at = calls.insert(at, {server, here_alone, {}});
      auto& call = at->content;
      call.rows.reserve(n());
      call.whole.reserve(n());
      call.items.reserve(n() * context().shape().top_k);
      call.x.reserve(n() * width());
    }
    return at->content;
  }

  void add_row(call_list& calls, std::uint32_t i, std::span<const executed_slot> slots,
               const std::vector<float>& normed, bool here_alone) const {
    const bool whole = !slots.empty() && runs_at(slots, slots[0].server);
    for (std::uint32_t j = 0; j < slots.size(); ++j) {
      const auto& slot = slots[j];
      auto& call = call_to(calls, slot.server, here_alone);
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

  void send_call(server_call& call, bool stays) {
    auto& content = call.content;
    content.token = key();
    content.layer = state.layer;
    content.reply_to = call.here_alone ? view->id : residence;
    if (call.server != view->id) return view->send(self, call.server, wire::encode(content));
    const bool to_me = stays || call.here_alone;
    self->send(view->shards[state.layer],
               expert_work{std::move(content), to_me ? handle() : token_actor{},
                           view->placed->plan.epoch});
  }

  /// Awaits the rows that run here alone; the others' outputs go to the residence.
  void collect_here() {
    phase.move(token_phase::collecting_here);
    auto slots_of_row = state.slots_of_row;
    std::vector<executed_slot> own, others;
    std::size_t slot = 0;
    for (std::size_t i = 0; i < n(); ++i) {
      const auto slots = std::span(state.slots).subspan(slot, slots_of_row[i]);
      slot += slots.size();
      const bool here = runs_at(slots, view->id);
      auto& into = here ? own : others;
      into.insert(into.end(), slots.begin(), slots.end());
      (here ? state.slots_of_row : slots_of_row)[i] = 0;
    }
    state.slots = std::move(others);
    awaited.expect(state.layer, slots_of_row, own, width());
  }

  void end_layer_without_outputs() {
    state.slots_of_row.clear();
    const bool stays = residence == view->id || state.layer + 1 == context().decoding.n_layers;
    if (!stays) leave();
    ++state.layer;
    if (stays) return go_on();
    go_to_residence();
  }

  // ------------------------------------------------------------------------------------ collecting

  void collect(arrived_output& output) {
    if (!phase.is(token_phase::collecting_here) && !phase.is(token_phase::collecting)) return;
    if (output.content.token != key()) return;  // Of the position before.
    awaited.take(std::move(output));
    go_on_with_outputs();
  }

  void go_on_with_outputs() {
    if (awaited.problem()) return fail(*awaited.problem());
    if (!awaited.complete()) return;
    if (phase.is(token_phase::collecting_here))
      move_on();
    else
      add_outputs();
  }

  void add_outputs() {
    awaited.add_to(state.hidden, model::add_slots);
    state.slots.clear();
    state.slots_of_row.clear();
    ++state.layer;
    go_on();
  }

  /// What ran here alone is added; the rest is awaited at the residence.
  void move_on() {
    awaited.add_to(state.hidden, model::add_slots);
    leave(called_elsewhere());
    if (state.slots.empty()) {
      state.slots_of_row.clear();
      ++state.layer;
    }
    go_to_residence();
  }

  // -------------------------------------------------------------------------------------- sampling

  /// Only the last row of what is given and decoding positions need logits.
  void end_of_layers() {
    const auto& two_stacks = context().shape().encoder_decoder;
    if (two_stacks && state.first < state.terms.prompt_tokens)
      return go_on_as(
          successor_of(two_stacks->decoder_start_id, state.terms.prompt_tokens, state.forced));
    if (state.first + n() >= state.terms.given_tokens) {
      phase.move(token_phase::sampling);
      const auto last = state.hidden.end() - static_cast<std::ptrdiff_t>(width());
      return self->send(view->compute, head_work{handle(), {last, state.hidden.end()}});
    }
    leave();
    tell_owner(report_of(state.first));
  }

  /// Over the link under the plan that this token goes by: another one may be in force here by now.
  template <class Report>
  void tell_owner(Report report) {
    if (state.terms.access == view->id) return self->send(view->server, std::move(report));
    view->send(self, state.terms.access, wire::encode(report));
  }

  wire::progress_report report_of(std::uint32_t position) const {
    wire::progress_report report;
    report.request = state.terms.request;
    report.attempt = state.terms.attempt;
    report.access = state.terms.access;
    report.position = position;
    report.spent = state.spent;
    report.ran = state.ran;
    return report;
  }

  void sample(head_done& result) {
    if (result.lent && phase.is(token_phase::attending)) {
      take_back(std::move(result.lent));
      phase.move(token_phase::sampling);
    }
    if (!phase.is(token_phase::sampling)) return;
    const auto& terms = state.terms;
    const auto start_rows = context().decoding.start_rows;
    const auto position = state.first + static_cast<std::uint32_t>(n());
    auto report = report_of(position);
    report.pool = state.pool;
    const bool given = !state.forced.empty();
    // What was answered before this attempt is computed again, one position after the other.
    const bool replayed = given && terms.score == 0;
    if (given)
      report.id = state.forced.front();
    else
      report.id = choose(result.logits(), position);
    if (state.sampling && state.sampling->logprobs > 0 && !replayed)
      for (const auto& each :
           model::chances(result.logits(), report.id, state.sampling->logprobs - 1))
        // A token that cannot be has no logarithm, which no frame would carry.
        report.logprobs.push_back(
            {each.id, each.logprob > least_logprob ? each.logprob : least_logprob});
    if (terms.score != 0)
      report.losses.push_back(model::negative_log_likelihood(result.logits(), report.id));
    const auto generated = position + 1 - terms.prompt_tokens - start_rows;
    const bool end_of_text =
        context().shape().ends_text(report.id) && terms.ignore_end_of_text == 0;
    report.last = end_of_text || generated >= terms.max_new_tokens ||
                  position + 1 - start_rows >= context().decoding.max_context;
    if (context().keep_final_hidden)
      report.hidden.assign(state.hidden.end() - static_cast<std::ptrdiff_t>(width()),
                           state.hidden.end());
    if (view->tracing()) view->trace(trace::token_line(report, view->id, view->time_ns(self)));
    if (!report.last && (terms.continue_in_place != 0 || replayed))
      go_on_as(
          successor_after(report.id, position, std::span(state.forced).subspan(given ? 1 : 0)));
    else
      leave();
    tell_owner(std::move(report));
  }

  std::int32_t choose(std::span<const float> logits, std::uint32_t position) const {
    const auto& terms = state.terms;
    model::sampling_options how{terms.temperature, terms.sampling_seed};
    if (!state.sampling) return model::sample(logits, how, terms.sampling_stream, position);
    const auto& rules = *state.sampling;
    how.frequency_penalty = rules.frequency_penalty;
    how.presence_penalty = rules.presence_penalty;
    how.top_k = rules.top_k;
    how.top_p = rules.top_p;
    for (std::size_t i = 0; i < rules.bias_ids.size(); ++i)
      how.bias.emplace_back(rules.bias_ids[i], rules.bias[i]);
    return model::sample(logits, how, terms.sampling_stream, position, rules.answered);
  }

  /// Takes what it is chosen by along.
  token_state successor_of(std::int32_t id, std::uint32_t position,
                           std::span<const std::int32_t> forced) {
    auto next = successor(state.terms, id, position, state.pool, state.spent,
                          view->placed->decoding.allowance_factor, context().decoding);
    next.forced.assign(forced.begin(), forced.end());
    // What was answered before was charged then.
    if (!forced.empty() && state.terms.score == 0) next.allowance.assign(1, 0);
    next.sampling = std::move(state.sampling);
    next.ran = state.ran;
    return next;
  }

  /// Of a token of the answer, which tells what ran for it.
  token_state successor_after(std::int32_t id, std::uint32_t position,
                              std::span<const std::int32_t> forced) {
    auto next = successor_of(id, position, forced);
    if (next.ran) next.ran.emplace();
    if (next.sampling &&
        (next.sampling->presence_penalty != 0 || next.sampling->frequency_penalty != 0))
      next.sampling->answered.push_back(id);
    return next;
  }

  /// Where the next position starts here, this actor goes on with it: no other is spawned, and the
  /// server is not waited for. It ends this actor where that position must not be here.
  void go_on_as(token_state next) {
    const auto to = view->start_server(next.terms.access, view->id, next.layer);
    if (to != view->id) {
      leave();
      return view->send(self, to, wire::encode(next));
    }
    phase.move(token_phase::starting);
    self->send(view->server, token_succeeded{handle(), key(), step_of(state.layer, true),
                                             next.first, step_of(next)});
    state = std::move(next);
    go_on();
  }

  /// Said before anything else is sent: whatever the departure causes to arrive here comes after
  /// it. `state.layer` is the layer that it was here for.
  void leave(planning::server_mask called = 0) {
    phase.move(token_phase::gone);
    self->send(view->server, token_departed{key(), step_of(state.layer, true), called});
    self->quit();
  }

  /// Of the slots whose outputs go to the residence.
  planning::server_mask called_elsewhere() const {
    planning::server_mask called = 0;
    for (const auto& slot : state.slots) called |= planning::server_mask{1} << slot.server;
    return called & ~(planning::server_mask{1} << view->id);
  }

  /// Nobody at the residence knows whether a call from here came through.
  void lose(std::uint32_t server) {
    const bool leaves = phase.is(token_phase::collecting_here);
    if (!leaves && !phase.is(token_phase::collecting)) return;
    if (awaited.awaits(server) || (leaves && ((called_elsewhere() >> server) & 1u) != 0))
      fail(view->not_connected(server));
  }

  void fail(const error& what) {
    if (phase.is(token_phase::gone)) return;
    tell_owner(wire::failure_report{state.terms.request, state.terms.attempt, view->id,
                                    static_cast<std::uint8_t>(what.code),
                                    what.message.substr(0, wire::most_problem_bytes)});
    leave();
  }
};

}  // namespace

token_actor spawn_token(caf::local_actor& parent, std::shared_ptr<const server_view> view,
                        wire::token_state state, std::vector<arrived_output> early_outputs) {
  auto token = parent.spawn(
      [view = std::move(view), state = std::move(state), outputs = std::move(early_outputs)](
          token_actor::stateful_pointer<token_data> self) mutable -> token_actor::behavior_type {
        auto& data = self->state;
        data.self = self;
        data.view = std::move(view);
        actor_census::count(data.view->context->census, self);
        data.state = std::move(state);
        tell_exceptions(self, [&data](const error& what) { data.fail(what); });
        data.start(std::move(outputs));
        return {
            [&data](decided& answer) { data.execute(answer); },
            [&data](arrived_output& output) { data.collect(output); },
            [&data](head_done& result) { data.sample(result); },
            [&data](const work_failed& message) { data.fail(message.what); },
            [&data](server_lost message) { data.lose(message.server); },
        };
      });
  leave_log();
  return token;
}

}  // namespace ordermoe::actors
