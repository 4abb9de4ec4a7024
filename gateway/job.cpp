#include "gateway/job.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "planning/serving/ledgers.hpp"

namespace ordermoe::gateway {

namespace {

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// In OpenAI's words; empty where it is no end of a complete answer.
std::string finish_of(const std::string& finish) {
  if (finish == "length" || finish == "context") return "length";
  if (finish == "end_of_text" || finish == "stop_string") return "stop";
  return {};
}

/// Infinite where there is no limit.
double nats(loss_units units) {
  if (units >= unbounded_budget) return std::numeric_limits<double>::infinity();
  return static_cast<double>(units) / units_per_loss;
}

/// Of two budgets in per cent, of which a negative one is without limit.
std::optional<double> larger(std::optional<double> a, std::optional<double> b) {
  if (!a || !b) return a ? a : b;
  return *a < 0 || *b < 0 ? -1 : std::max(*a, *b);
}

reply_quality quality_of(const actors::request_outcome& outcome) {
  return {outcome.quality_percent, nats(outcome.budget), nats(outcome.spent)};
}

named_counts named(const actors::told_executions& told) {
  named_counts made;
  for (std::size_t i = 0; i < told.size(); ++i)
    made.emplace_back(serving::to_string(static_cast<serving::execution_kind>(i)), told[i]);
  return made;
}

double seconds(std::int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

job::job(desk& at, std::shared_ptr<net::http_exchange> from, order what)
    : desk_(at), from_(std::move(from)), order_(std::move(what)) {
  const auto& served = at.options().model;
  head_.kind = order_.kind;
  head_.id = at.new_id(order_.kind == reply_kind::chat ? "chatcmpl" : "cmpl");
  head_.model = served.id;
  // It says that the same seed gives the same answer, which it need not where experts may be
  // replaced or servers round differently.
  if (served.computes_alike && (served.quality.percent == 0 || order_.how.quality_percent == 0.0))
    head_.fingerprint = "fp_" + served.digest.substr(0, 12);
  head_.created_s = now_s();
  seed_ = order_.how.seed ? *order_.how.seed : at.random();
  choices_.resize(order_.prompts.size() * order_.how.n);
  for (std::size_t i = 0; i < choices_.size(); ++i) choices_[i].prompt = i / order_.how.n;
}

void job::watch_peer() {
  from_->on_gone([of = weak_from_this()] {
    if (const auto self = of.lock()) self->gone();
  });
}

void job::start() {
  if (is_over_) return desk_.ended(answers());
  has_started_ = true;
  waited_s_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - came_).count();
  for (std::size_t i = 0; i < choices_.size(); ++i)
    choices_[i].request = desk_.behind().submit(request_of(i), sink_of(i));
}

actors::remote_request job::request_of(std::size_t i) {
  actors::remote_request made;
  auto& spec = made.spec;
  spec.prompt = order_.prompts[choices_[i].prompt];
  spec.max_new_tokens = order_.max_tokens;
  spec.temperature = order_.how.temperature;
  spec.sampling_seed = seed_;
  // Of its place in the request, not of the request: the same seed draws the same wherever it is asked.
  spec.sampling_stream = i;
  const auto& how = order_.how;
  auto& choice = spec.choice;
  choice.top_p = how.top_p;
  choice.top_k = how.top_k;
  choice.presence_penalty = how.presence_penalty;
  choice.frequency_penalty = how.frequency_penalty;
  choice.logprobs = how.logprobs;
  for (const auto& [id, bias] : how.logit_bias)
    choice.bias.emplace_back(id, static_cast<float>(bias));
  spec.quality_percent = how.quality_percent;
  spec.tells_executions = true;
  spec.stop_strings = order_.how.stop;
  spec.ignore_end_of_text = order_.how.ignore_eos;
  spec.deadline_ns = std::chrono::nanoseconds(desk_.options().longest_answer).count();
  return made;
}

actors::answer_sink job::sink_of(std::size_t i) {
  auto& server = desk_.server();
  actors::answer_sink made;
  if (order_.how.stream || order_.how.logprobs)
    made.on_token = [self = shared_from_this(), i](const actors::answer_token& told) {
      self->hear(i, told);
    };
  made.on_end = [self = shared_from_this(), &server, i](const actors::request_outcome& told) {
    server.post([self, i, told] { self->end(i, told); });
  };
  return made;
}

void job::hear(std::size_t i, const actors::answer_token& told) {
  const std::size_t counts = desk_.tells_in_turns() ? 1 : 0;
  if (counts > 0) {
    const std::lock_guard lock(mutex_);
    if (writer_ && n_posted_ == 0) return take(i, told);
    ++n_posted_;
  }
  desk_.server().post([self = shared_from_this(), i, told, counts] {
    const std::lock_guard lock(self->mutex_);
    self->n_posted_ -= counts;
    self->take(i, told);
  });
}

// ------------------------------------------------------------------------------------- what comes

token_report job::report_of(const actors::answer_token& told) const {
  const auto choice_of = [&](const actors::told_logprob& each) {
    return token_choice{each.id, desk_.piece_of(each.id), each.logprob};
  };
  token_report made;
  for (std::size_t i = 0; i < told.logprobs.size(); ++i)
    if (i == 0)
      made.chosen = choice_of(told.logprobs[i]);
    else
      made.top.push_back(choice_of(told.logprobs[i]));
  return made;
}

/// The space that stands between a prompt and its answer is no part of a message.
std::string_view job::text_of(choice& of, std::string_view text) const {
  if (text.empty() || std::exchange(of.has_text, true)) return text;
  if (order_.kind == reply_kind::chat && text.starts_with(' ')) text.remove_prefix(1);
  return text;
}

void job::begin_stream() {
  if (writer_) return;
  writer_.emplace(head_, order_.how.include_usage);
  from_->begin_stream(200, {{"Content-Type", "text/event-stream; charset=utf-8"},
                            {"Cache-Control", "no-cache"},
                            {"X-Accel-Buffering", "no"}});
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    chunk_content first;
    first.begins = true;
    if (!order_.echoed.empty()) first.text = order_.echoed[choices_[i].prompt];
    if (order_.kind == reply_kind::chat || !first.text.empty()) put(i, first);
  }
}

void job::put(std::size_t i, chunk_content& content) {
  // Every token of every answer that the thread tells comes by here.
  static thread_local std::string chunk;
  content.index = static_cast<std::uint32_t>(i);
  auto& bytes = choices_[i].bytes;
  content.text_offset = bytes;
  if (content.logprobs != nullptr)
    for (const auto& each : *content.logprobs) bytes += each.chosen.text.size();
  chunk.clear();
  writer_->append_chunk(chunk, content);
  from_->write(chunk);
}

void job::take(std::size_t i, const actors::answer_token& told) {
  if (is_over_) return;
  auto& of = choices_[i];
  if (order_.how.logprobs) of.reports.push_back(report_of(told));
  if (!order_.how.stream) return;
  begin_stream();
  const auto text = text_of(of, told.text);
  chunk_content content;
  content.text = text;
  if (order_.how.trace) {
    content.traced_id = told.id;
    if (told.executions) content.ran = named(*told.executions);
  }
  if (text.empty() && !content.traced_id && of.reports.empty()) return;
  if (order_.how.logprobs) content.logprobs = &of.reports;
  put(i, content);
  of.reports.clear();
}

void job::end(std::size_t i, actors::request_outcome told) {
  auto& of = choices_[i];
  of.has_ended = true;
  of.outcome = std::move(told);
  desk_.ended(1);
  if (is_over_) return;
  const auto finish = finish_of(of.outcome.finish);
  if (finish.empty())
    return fail(of.outcome.problem
                    ? problem_of(*of.outcome.problem)
                    : api_problem{.status = 503,
                                  .message = "the answer was cancelled by an operator",
                                  .type = "server_error",
                                  .code = "cancelled"});
  count(of);
  if (order_.how.stream) {
    const std::lock_guard lock(mutex_);
    begin_stream();
    put_end(i, finish);
  }
  if (std::ranges::all_of(choices_, &choice::has_ended)) this->finish();
}

void job::put_end(std::size_t i, const std::string& finish) {
  auto& of = choices_[i];
  const auto tail = text_of(of, of.outcome.text_tail);
  chunk_content last;
  if (!tail.empty()) {
    last.text = tail;
    put(i, last);
  }
  last.text = {};
  last.finish = finish;
  // Whoever states a budget learns which one was in force, with or without the usage of all.
  if (order_.how.quality_percent) last.quality = quality_of(of.outcome);
  put(i, last);
}

void job::finish() {
  set_over();
  if (order_.how.stream) {
    if (order_.how.include_usage) from_->write(writer_->usage(usage()));
    from_->write(last_event);
    return from_->end();
  }
  std::vector<reply_choice> list;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    auto& of = choices_[i];
    reply_choice made;
    made.index = static_cast<std::uint32_t>(i);
    if (!order_.echoed.empty()) made.text = order_.echoed[of.prompt];
    made.text += text_of(of, of.outcome.text);
    made.finish = finish_of(of.outcome.finish);
    if (order_.how.logprobs) made.logprobs = std::move(of.reports);
    list.push_back(std::move(made));
  }
  reply(*from_, reply_json(head_, list, usage()));
}

reply_usage job::usage() const {
  reply_usage made;
  made.is_reproducible = desk_.options().model.computes_alike;
  for (const auto& prompt : order_.prompts) made.prompt_tokens += prompt.size();
  std::optional<actors::told_executions> ran;
  for (const auto& each : choices_) {
    made.completion_tokens += each.outcome.token_ids.size();
    made.attempts = std::max(made.attempts, each.outcome.attempts);
    made.is_reproducible = made.is_reproducible && each.outcome.budget == 0;
    const auto quality = quality_of(each.outcome);
    made.quality.percent = larger(made.quality.percent, quality.percent);
    made.quality.budget_nats += quality.budget_nats;
    made.quality.spent_nats += quality.spent_nats;
    if (each.outcome.executions) {
      if (!ran) ran.emplace();
      for (std::size_t i = 0; i < ran->size(); ++i) (*ran)[i] += (*each.outcome.executions)[i];
    }
  }
  if (ran) made.ran = named(*ran);
  return made;
}

void job::count(choice& of) {
  of.is_counted = true;
  auto& figures = desk_.figures();
  const auto& outcome = of.outcome;
  const auto n = outcome.token_ids.size();
  ++figures.finished[finish_of(outcome.finish)];
  figures.prompt_tokens += order_.prompts[of.prompt].size();
  figures.generation_tokens += n;
  if (const auto allowed = nats(outcome.budget); std::isfinite(allowed))
    figures.budget_nats += allowed;
  figures.spent_nats += nats(outcome.spent);
  const auto whole = seconds(outcome.done_ns - outcome.arrival_ns);
  figures.whole.add(waited_s_ + whole);
  constexpr double share_of_new = 0.1;
  figures.recent_answer_s += share_of_new * (whole - figures.recent_answer_s);
  if (outcome.first_token_ns <= 0) return;
  figures.first_token.add(waited_s_ + seconds(outcome.first_token_ns - outcome.arrival_ns));
  if (const auto further = actors::further_tokens(outcome); further > 0)
    figures.per_token.add(seconds(outcome.done_ns - outcome.first_token_ns) /
                          static_cast<double>(further));
}

// ------------------------------------------------------------------------------------- what goes wrong

/// No token is written any more.
void job::set_over() {
  const std::lock_guard lock(mutex_);
  is_over_ = true;
}

void job::fail(const api_problem& why) {
  set_over();
  count_the_rest("error");
  cancel_the_rest();
  if (!writer_) return refuse(*from_, why);
  from_->write(problem_event(problem_json(why)));
  from_->write(last_event);
  from_->end();
}

void job::turn_away(const api_problem& why) {
  set_over();
  refuse(*from_, why);
}

void job::gone() {
  if (is_over_) return;
  set_over();
  count_the_rest("abort");
  has_started_ ? cancel_the_rest() : desk_.forget(this);
}

/// Choices whose end was not counted: the one that failed among them.
void job::count_the_rest(const char* reason) {
  desk_.figures().finished[reason] += static_cast<std::uint64_t>(
      std::ranges::count_if(choices_, [](const choice& each) { return !each.is_counted; }));
}

void job::cancel_the_rest() {
  for (const auto& each : choices_)
    if (!each.has_ended) desk_.behind().cancel(each.request);
}

}  // namespace ordermoe::gateway
