#include "actors/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "model/text/answer_text.hpp"
#include "planning/selection/budget.hpp"
#include "planning/serving/phases.hpp"
#include "planning/serving/request_progress.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

using wire::progress_report;
using wire::reserve_step;
using wire::token_state;

/// What a member keeps a sequence for beyond the request's own deadline.
constexpr std::int64_t lease_slack_ns = 10'000'000'000;

constexpr transition<request_phase> request_steps[] = {
    {request_phase::held, request_phase::reserving, "admitted"},
    {request_phase::reserving, request_phase::queueing, "refused somewhere"},
    {request_phase::reserving, request_phase::running, "granted everywhere"},
    {request_phase::queueing, request_phase::running, "granted everywhere"},
    {request_phase::running, request_phase::fencing, "restart"},
    {request_phase::fencing, request_phase::fencing, "restart"},
    {request_phase::fencing, request_phase::running, "fenced everywhere"},
    {request_phase::running, request_phase::settling, "answer complete"},
    {request_phase::settling, request_phase::ended, "every chunk reported"},
    {request_phase::held, request_phase::ended, "cancel, deadline, failure"},
    {request_phase::reserving, request_phase::ended, "cancel, deadline, failure"},
    {request_phase::queueing, request_phase::ended, "cancel, deadline, failure"},
    {request_phase::fencing, request_phase::ended, "cancel, deadline, failure"},
    {request_phase::running, request_phase::ended, "cancel, deadline, failure"},
};

/// A server that keeps KV rows of the request.
struct member {
  std::uint32_t server = 0;
  std::int64_t bytes = 0;
  std::uint32_t ask = 0;  ///< The newest.
  bool answered = false;  ///< That ask.
  bool granted = false;
};

struct request_data {
  request_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  std::shared_ptr<const request_spec> spec;
  client_actor client;
  request_outcome outcome;
  std::unique_ptr<model::answer_text> text;
  phase_of<request_phase> phase{request_phase::held, request_steps};
  std::int64_t deadline_ns = 0;
  bool admitted = false;
  std::int64_t admitted_ns = 0;
  decoding_policy decoding;  ///< Of the plan, with this request's own budget.
  std::uint32_t attempt = 0;
  std::vector<member> members;  ///< By server, ascending.
  std::size_t waiting_for = 0;  ///< While queueing: index into members.
  std::uint32_t asks = 0;
  bool refused = false;
  request_progress progress;
  std::vector<std::int32_t> answered;  ///< Every id in order, an end of text too.
  std::uint32_t handed_out = 0;        ///< Tokens that the client has.
  loss_units pool_left = 0;            ///< After the latest position that is known.
  loss_units chain_spent = 0;          ///< By the positions that are known, and the last chunk.
  loss_units spent_before = 0;  ///< By chunks of earlier attempts that the answer is made of.

  const service_context& context() const { return *view->context; }
  std::int64_t now() const { return view->time_ns(self); }
  std::uint32_t n_prompt() const { return prompt_tokens(*spec); }
  std::uint32_t n_new() const { return max_new_tokens(*spec); }
  std::uint32_t positions() const { return n_prompt() + n_new(); }
  bool over() const { return phase.is(request_phase::ended) || phase.is(request_phase::settling); }

  void move(request_phase next) {
    phase.move(next);
    self->send(view->server, request_moved{outcome.request, phase.now(), attempt});
  }

  wire::request_terms terms() const {
    wire::request_terms t;
    t.request = outcome.request;
    t.attempt = attempt;
    t.access = view->id;
    t.prompt_tokens = n_prompt();
    t.max_new_tokens = n_new();
    t.given_tokens = n_prompt();
    t.sampling_stream = spec->sampling_stream.value_or(outcome.request);
    t.sampling_seed = spec->sampling_seed;
    t.temperature = spec->temperature;
    t.continue_in_place = decoding.continue_in_place && spec->stop_strings.empty();
    t.score = spec->score;
    t.ignore_end_of_text = spec->ignore_end_of_text || spec->score;
    return t;
  }

  void arrive(const submit_request& submitted) {
    spec = submitted.spec;
    client = submitted.client;
    outcome.request = submitted.request;
    outcome.access = view->id;
    outcome.arrival_ns = now();
    const auto limit = spec->deadline_ns > 0 ? spec->deadline_ns : context().request_timeout_ns;
    deadline_ns = now() + limit;
    // An encoder-decoder's answer is a text of its own.
    const bool goes_on = !context().shape().encoder_decoder;
    text = std::make_unique<model::answer_text>(
        spec->score ? nullptr : context().tokens, spec->stop_strings,
        goes_on ? std::span(spec->prompt) : std::span<const std::int32_t>());
  }

  // ------------------------------------------------------------------------------------ reserving

  void resume(std::shared_ptr<const server_view> current) {
    if (!phase.is(request_phase::held)) return;
    view = std::move(current);
    if (auto stated = take_budget(); !stated) return fail(stated.error());
    admitted = true;
    admitted_ns = now();
    if (view->tracing()) view->trace(trace::request_line(begun(), admitted_ns));
    const auto need = kv_need(view->placed->plan.residence[view->id], context().n_servers(),
                              positions(), context().costs.kv_row_bytes);
    for (std::uint32_t m = 0; m < need.size(); ++m) {
      if (need[m] == 0) continue;
      const auto& server = context().servers.servers[m];
      if (need[m] > server.kv_bytes)
        return fail(
            {errc::infeasible,
             fmt::format("the KV rows of {} positions need {} bytes on server {} ({}), which "
                         "keeps {} for KV; raise kv memory in the cluster file or shorten "
                         "the request",
                         positions(), need[m], m, server.name, server.kv_bytes)});
      members.push_back({m, need[m], 0, false, false});
    }
    move(request_phase::reserving);
    ++asks;
    for (auto& each : members) ask(each, reserve_step::attempt);
  }

  /// For all attempts.
  result<void> take_budget() {
    decoding = view->placed->decoding;
    const auto granted =
        planning::grant_quality(decoding.quality, decoding.token_budget, spec->quality_percent);
    if (!granted) return granted.error();
    decoding.token_budget = granted->token_budget;
    outcome.quality_percent = granted->percent;
    outcome.budget = request_budget(decoding.token_budget, positions());
    pool_left = request_budget(decoding.token_budget, n_new());
    return {};
  }

  trace::begun_request begun() const {
    trace::begun_request line{outcome.request, view->id,
                              n_prompt(),      n_new(),
                              spec->score,     spec->stop_strings.size(),
                              outcome.budget,  view->placed->plan.epoch};
    if (spec->quality_percent) line.token_budget = decoding.token_budget;
    if (const auto made = rules({}))
      line.sampling.emplace(static_cast<std::uint32_t>(made->bias_ids.size()),
                            made->presence_penalty != 0 || made->frequency_penalty != 0,
                            n_logprobs(*made));
    line.tells_executions = spec->tells_executions;
    return line;
  }

  /// A new ask of the number `asks`, or a release of all before it.
  void ask(member& each, reserve_step step) {
    if (step != reserve_step::release) {
      each.ask = asks;
      each.answered = false;
    }
    wire::reservation message;
    message.request = outcome.request;
    message.attempt = attempt;
    message.ask = each.ask;
    message.step = step;
    message.server = each.server;
    message.access = view->id;
    if (step == reserve_step::attempt || step == reserve_step::wait) message.bytes = each.bytes;
    message.lease_ns = std::max<std::int64_t>(0, deadline_ns - now()) + lease_slack_ns;
    self->send(view->server, message);
  }

  void answer(const wire::reservation& message) {
    const auto found = std::ranges::find(members, message.server, &member::server);
    if (found == members.end()) return;
    // Memory at a server whose turn has not come, by an ask that came again: whoever waits in order
    // must not hold it.
    if (phase.is(request_phase::queueing) && message.step == reserve_step::granted &&
        found - members.begin() > static_cast<std::ptrdiff_t>(waiting_for))
      return ask(*found, reserve_step::release);
    if (message.ask != found->ask) return;
    // An ask that came again may be granted where it was refused before, and is then given back with
    // the others.
    found->granted = found->granted || message.step == reserve_step::granted;
    if (found->answered) return;
    found->answered = true;
    switch (phase.now()) {
      case request_phase::reserving:
        if (message.step == reserve_step::refused) refused = true;
        if (all_answered()) refused ? queue() : run();
        return;
      case request_phase::queueing:
        if (message.step != reserve_step::granted) return;
        if (++waiting_for == members.size()) return run();
        return wait_for_next();
      case request_phase::fencing:
        if (message.step == reserve_step::refused)
          return fail({errc::timed_out, fmt::format("server {} no longer keeps the request's rows",
                                                    message.server)});
        if (all_answered()) run();
        return;
      default:
        return;
    }
  }

  bool all_answered() const { return std::ranges::all_of(members, &member::answered); }

  void queue() {
    give_back();
    move(request_phase::queueing);
    ++asks;
    wait_for_next();
  }

  void wait_for_next() { ask(members[waiting_for], reserve_step::wait); }

  /// What is held, and what may still be granted.
  void give_back() {
    for (auto& each : members) {
      if (each.ask > 0 && (each.granted || !each.answered)) ask(each, reserve_step::release);
      each.granted = false;
    }
  }

  // -------------------------------------------------------------------------------------- running

  void restart() {
    if (!phase.is(request_phase::running) && !phase.is(request_phase::fencing)) return;
    // Where nothing is answered nothing of it is left; and it may begin again before it has begun again.
    const auto of_chunks = progress.take_chunks_spent();
    if (!answered.empty()) spent_before += of_chunks;
    ++attempt;
    ++asks;
    move(request_phase::fencing);
    for (auto& each : members) ask(each, reserve_step::fence);
  }

  void run() {
    move(request_phase::running);
    start_chunks();
  }

  /// All ids that are known: an encoder reads the prompt at once and its decoder what follows, position
  /// by position; a decoder alone reads both in chunks.
  void start_chunks() {
    const bool two_stacks = context().shape().encoder_decoder.has_value();
    std::vector<std::int32_t> known(spec->prompt.begin(), spec->prompt.begin() + n_prompt());
    std::vector<std::int32_t> following;
    if (spec->score) following.assign(spec->prompt.begin() + n_prompt(), spec->prompt.end());
    auto& answer = two_stacks ? following : known;
    if (two_stacks && !spec->score) answer = answered;
    if (!two_stacks) {
      answer.insert(answer.end(), answered.begin(), answered.end());
      if (spec->score)
        following.erase(following.begin(),
                        following.begin() + static_cast<std::ptrdiff_t>(answered.size()));
    }
    const auto n = static_cast<std::uint32_t>(known.size());
    const auto chunk = two_stacks ? n : static_cast<std::uint32_t>(context().chunk_rows);
    std::vector<std::uint32_t> before_last;
    for (std::uint32_t first = 0; first + chunk < n; first += chunk) before_last.push_back(first);
    progress.begin(attempt, n_prompt() + context().decoding.start_rows + n_answered(), before_last);
    const auto start = view->start_server(view->id, view->id, 0);
    for (std::uint32_t first = 0; first < n; first += chunk)
      start_at(start, chunk_of(known, following, first, std::min(chunk, n - first)));
  }

  std::uint32_t n_answered() const { return static_cast<std::uint32_t>(answered.size()); }

  /// What a token is chosen by, where that is more than a temperature; after these ids of the answer.
  /// That come back with each token.
  std::uint32_t n_logprobs(const wire::sampling_rules& rules) const {
    const auto most = static_cast<std::uint32_t>(context().shape().vocab_size) + 1;
    return std::min(rules.logprobs, most);
  }

  std::optional<wire::sampling_rules> rules(std::span<const std::int32_t> after) const {
    const auto& choice = spec->choice;
    if (choice == sampling_choice()) return std::nullopt;
    wire::sampling_rules made;
    made.top_p = choice.top_p;
    made.top_k = choice.top_k;
    made.presence_penalty = choice.presence_penalty;
    made.frequency_penalty = choice.frequency_penalty;
    if (choice.logprobs) made.logprobs = *choice.logprobs + 1;
    for (const auto& [id, bias] : choice.bias) {
      made.bias_ids.push_back(id);
      made.bias.push_back(bias);
    }
    if (choice.presence_penalty != 0 || choice.frequency_penalty != 0)
      made.answered.assign(after.begin(), after.end());
    return made;
  }

  token_state chunk_of(const std::vector<std::int32_t>& known,
                       const std::vector<std::int32_t>& following, std::uint32_t first,
                       std::uint32_t rows) const {
    token_state state;
    state.terms = terms();
    state.terms.given_tokens = static_cast<std::uint32_t>(known.size());
    state.first = first;
    state.ids.assign(known.begin() + first, known.begin() + first + rows);
    const bool last = first + rows == known.size();
    if (last) state.forced = following;
    chunk_budget budget;
    if (attempt == 0)
      budget = first_chunk_budget(decoding, rows, n_new(), last);
    else if (last)
      budget.pool = pool_left;
    state.pool = budget.pool;
    state.allowance.assign(rows, budget.allowance);
    if (last) state.spent = chain_spent;
    // What an encoder-decoder answered before comes once more, and is counted as it comes.
    const bool comes_again = context().shape().encoder_decoder.has_value();
    if (last) state.sampling = rules(comes_again ? std::span<const std::int32_t>() : answered);
    if (spec->tells_executions) state.ran.emplace();
    return state;
  }

  void start_at(std::uint32_t server, token_state state) {
    if (server == view->id)
      self->send(view->server, start_token{std::move(state)});
    else
      view->send(self, server, wire::encode(state));
  }

  void take(progress_report& report) {
    if (phase.is(request_phase::ended)) return;
    const auto ran = report.ran;
    if (progress.take(std::move(report), positions() + context().decoding.start_rows))
      count_executions(ran);
    while (phase.is(request_phase::running)) {
      auto next = progress.next();
      if (!next) break;
      accept(*next);
    }
    if (phase.is(request_phase::settling) && progress.chunks_done()) end();
  }

  void count_executions(const std::optional<wire::ran_slots>& ran) {
    if (!ran || !spec->tells_executions) return;
    if (!outcome.executions) outcome.executions.emplace();
    for (std::size_t i = 0; i < ran->size(); ++i) (*outcome.executions)[i] += (*ran)[i];
  }

  void accept(progress_report& report) {
    if (answered.empty()) outcome.first_token_ns = now();
    answered.push_back(report.id);
    outcome.losses.insert(outcome.losses.end(), report.losses.begin(), report.losses.end());
    outcome.final_hidden = std::move(report.hidden);
    chain_spent = report.spent;
    // What is left of a budget never grows, whoever says so.
    report.pool = std::min(report.pool, std::max<loss_units>(0, outcome.budget - report.spent));
    pool_left = report.pool;
    if (context().shape().ends_text(report.id) && terms().ignore_end_of_text == 0)
      return finish("end_of_text");
    outcome.token_ids.push_back(report.id);
    hand_out(report);
    if (text->stopped()) return finish("stop_string");
    if (report.last && spec->score) return finish("scored");
    if (report.last)
      return finish(outcome.token_ids.size() >= spec->max_new_tokens ? "length" : "context");
    if (terms().continue_in_place) return;
    auto next = successor(terms(), report.id, report.position, report.pool, report.spent,
                          decoding.allowance_factor, context().decoding);
    if (spec->score) {
      const auto known = report.position + 1 - context().decoding.start_rows;
      next.forced.assign(spec->prompt.begin() + known, spec->prompt.end());
    }
    next.sampling = rules(answered);
    if (spec->tells_executions) next.ran.emplace();
    start_at(view->start_server(view->id, view->id, next.layer), std::move(next));
  }

  void hand_out(const progress_report& report) {
    answer_token token;
    token.request = outcome.request;
    token.index = handed_out++;
    token.id = report.id;
    token.text = text->push(report.id);
    if (!report.losses.empty()) token.loss = report.losses.front();
    token.time_ns = now();
    for (const auto& each : report.logprobs) token.logprobs.push_back({each.id, each.logprob});
    if (report.ran)
      token.executions.emplace(
          told_executions{(*report.ran)[0], (*report.ran)[1], (*report.ran)[2], (*report.ran)[3]});
    if (client) self->send(client, std::move(token));
  }

  /// The answer is complete.
  void finish(std::string reason) {
    outcome.text_tail = text->finish();
    if (text->stopped()) reason = "stop_string";
    outcome.text = text->text();
    outcome.finish = std::move(reason);
    outcome.done_ns = now();
    move(request_phase::settling);
  }

  /// And every chunk of the prompt has said what it spent: one that ran elsewhere may say so after the
  /// last token is here.
  void end() {
    outcome.spent = spent();
    trace_end();
    tell_monitor();
    close();
  }

  loss_units spent() const { return spent_before + progress.chunks_spent() + chain_spent; }

  void trace_end() const {
    if (view->tracing())
      view->trace(trace::done_line({outcome.request, outcome.finish, outcome.token_ids.size(),
                                    outcome.spent, outcome.first_token_ns, outcome.done_ns}));
  }

  void tell_monitor() {
    if (!view->monitor) return;
    auto report = std::make_shared<planning::answered_request>();
    report->request = outcome.request;
    report->access = view->id;
    report->prompt_tokens = n_prompt();
    report->new_tokens = static_cast<std::uint32_t>(outcome.token_ids.size());
    report->budget = outcome.budget;
    report->spent = outcome.spent;
    report->admitted_ns = admitted_ns;
    report->done_ns = outcome.done_ns;
    report->epoch = view->placed->plan.epoch;
    self->send(view->monitor, request_report{std::move(report)});
  }

  // ---------------------------------------------------------------------------- other ways to end

  void cancel() {
    if (over()) return;
    give_up("cancelled", std::nullopt);
  }

  void deadline() {
    if (phase.is(request_phase::ended)) return;
    // The answer is complete; what the missing chunk spent stays unknown.
    if (phase.is(request_phase::settling)) return end();
    fail({errc::timed_out,
          fmt::format("not answered within {:.1f} s",
                      static_cast<double>(deadline_ns - outcome.arrival_ns) * 1e-9)});
  }

  void take(const wire::failure_report& report) {
    if (report.attempt != attempt) return;
    // The answer is complete; what the missing chunk spent stays unknown.
    if (phase.is(request_phase::settling)) return end();
    fail({static_cast<errc>(report.code), report.text});
  }

  void fail(error what) {
    if (phase.is(request_phase::ended)) return;
    give_up("failed", at(fmt::format("request {}", outcome.request), std::move(what)));
  }

  void give_up(std::string reason, std::optional<error> what) {
    if (outcome.text.empty()) outcome.text = text->text();
    outcome.finish = std::move(reason);
    outcome.problem = std::move(what);
    outcome.spent = spent();
    outcome.done_ns = now();
    if (admitted) trace_end();
    close();
  }

  void close() {
    give_back();
    outcome.attempts = attempt + 1;
    move(request_phase::ended);
    if (client)
      self->send(client, answer_end{std::make_shared<const request_outcome>(std::move(outcome))});
    self->quit();
  }
};

}  // namespace

const char* to_string(request_phase phase) {
  switch (phase) {
    case request_phase::held:
      return "held";
    case request_phase::reserving:
      return "reserving";
    case request_phase::queueing:
      return "queueing";
    case request_phase::running:
      return "running";
    case request_phase::fencing:
      return "fencing";
    case request_phase::settling:
      return "settling";
    case request_phase::ended:
      return "ended";
  }
  return "unknown";
}

request_actor spawn_request(caf::actor_system& system, std::shared_ptr<const server_view> view,
                            const submit_request& submitted) {
  return system.spawn([view = std::move(view),
                       submitted](request_actor::stateful_pointer<request_data> self) mutable
                      -> request_actor::behavior_type {
    auto& data = self->state;
    data.self = self;
    data.view = std::move(view);
    actor_census::count(data.view->context->census, self);
    data.arrive(submitted);
    tell_exceptions(self, [&data](const error& what) { data.fail(what); });
    return {
        [&data](progress_report& report) { data.take(report); },
        [&data](const wire::reservation& message) { data.answer(message); },
        [&data](const wire::failure_report& report) { data.take(report); },
        [&data](resume_request& message) { data.resume(std::move(message.view)); },
        [&data](request_deadline) { data.deadline(); },
        [&data](cancel_request) { data.cancel(); },
        [&data](restart_request) { data.restart(); },
    };
  });
}

std::uint32_t prompt_tokens(const request_spec& spec) {
  return spec.score ? spec.scored_after : static_cast<std::uint32_t>(spec.prompt.size());
}

std::uint32_t max_new_tokens(const request_spec& spec) {
  return spec.score ? static_cast<std::uint32_t>(spec.prompt.size()) - spec.scored_after
                    : spec.max_new_tokens;
}

namespace {

result<void> check_choice(const sampling_choice& choice, std::size_t vocabulary) {
  constexpr double most_penalty = 1000;
  const auto refuse = [](std::string what) { return error{errc::out_of_range, std::move(what)}; };
  if (!(choice.top_p > 0 && choice.top_p <= 1))
    return refuse(fmt::format("top_p {}, expected more than 0 and 1 at most", choice.top_p));
  for (const double penalty : {choice.presence_penalty, choice.frequency_penalty})
    if (!(std::abs(penalty) <= most_penalty))
      return refuse(fmt::format("a penalty of {}, expected -1000 to 1000", penalty));
  if (choice.logprobs && *choice.logprobs >= wire::most_logprobs)
    return refuse(fmt::format("logprobs of {} tokens, expected {} at most", *choice.logprobs,
                              wire::most_logprobs - 1));
  if (choice.bias.size() > wire::most_biases)
    return refuse(
        fmt::format("{} biases, expected {} at most", choice.bias.size(), wire::most_biases));
  for (std::size_t i = 0; i < choice.bias.size(); ++i) {
    const auto& [id, bias] = choice.bias[i];
    if (id < 0 || static_cast<std::size_t>(id) >= vocabulary || !(std::abs(bias) <= most_penalty) ||
        (i > 0 && id <= choice.bias[i - 1].first))
      return refuse(
          fmt::format("a bias of {} for token id {}, expected -1000 to 1000 and ids below "
                      "{} in ascending order",
                      bias, id, vocabulary));
  }
  return {};
}

}  // namespace

result<void> check_prompt(const request_spec& spec, const service_context& context) {
  const auto& shape = context.shape();
  const auto refuse = [](std::string what) { return error{errc::out_of_range, std::move(what)}; };
  if (spec.prompt.empty())
    return refuse("the prompt has no tokens, expected one at least; give it a text");
  if (spec.access >= context.n_servers())
    return refuse(fmt::format("access server {} of {}", spec.access, context.n_servers()));
  if (spec.score && spec.prompt.size() < 2)
    return refuse("a text of one token cannot be scored; give two at least");
  if (spec.score && (spec.scored_after < 1 || spec.scored_after >= spec.prompt.size()))
    return refuse(fmt::format("scored after {} tokens of {}, expected 1 to {}", spec.scored_after,
                              spec.prompt.size(), spec.prompt.size() - 1));
  if (spec.prompt.size() + (spec.score ? 0 : 1) > shape.max_context)
    return refuse(fmt::format("the prompt has {} tokens, the model's context is {}; shorten it",
                              spec.prompt.size(), shape.max_context));
  if (prompt_tokens(spec) + std::uint64_t{max_new_tokens(spec)} > context.most_positions)
    return refuse(fmt::format(
        "{} prompt tokens and {} new ones are more than the {} positions that the service allows; "
        "ask for fewer",
        prompt_tokens(spec), max_new_tokens(spec), context.most_positions));
  if (!spec.score && spec.max_new_tokens == 0)
    return refuse("no new tokens are asked for, expected one at least");
  if (spec.deadline_ns < 0)
    return refuse("a deadline that is over, expected 0, which is as long as is allowed, or more");
  if (!(spec.temperature >= 0 && spec.temperature <= 1e6))
    return refuse(fmt::format("temperature {}, expected 0 to 1e6", spec.temperature));
  if (spec.quality_percent &&
      !(*spec.quality_percent >= 0 && *spec.quality_percent <= planning::most_stated_percent))
    return refuse(fmt::format("a quality budget of {} %, expected 0 to {:g}", *spec.quality_percent,
                              planning::most_stated_percent));
  if (auto good = check_choice(spec.choice, shape.vocab_size); !good) return good;
  for (const auto id : spec.prompt)
    if (id < 0 || static_cast<std::size_t>(id) >= shape.vocab_size)
      return refuse(
          fmt::format("token id {} is outside the vocabulary of {}", id, shape.vocab_size));
  return {};
}

}  // namespace ordermoe::actors
