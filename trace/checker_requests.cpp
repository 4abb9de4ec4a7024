#include <algorithm>

#include "planning/selection/budget.hpp"
#include "trace/checker.hpp"

namespace ordermoe::trace {

bool verifier::can_be_counted(std::int64_t positions) {
  // Of a layer: sums over a trace stay far from overflow.
  constexpr std::int64_t most = INT64_MAX >> 8;
  const auto& costs = header_.costs;
  const auto squared = product_of(positions, positions);
  const auto largest =
      std::max({product_of(squared, costs.attention_flops_per_context),
                product_of(positions, std::max({costs.attention_flops, costs.kv_row_bytes,
                                                costs.expert_flops, costs.head_flops}))});
  return largest <= most ||
         refuse(
             "found a request of {} positions, whose work at these costs is beyond what can be "
             "counted, expected fewer or lower costs",
             positions);
}

bool verifier::on_request(std::string_view text) {
  line_fields fields(text);
  request_state request;
  auto& terms = request.terms;
  terms.request = fields.integer<std::uint64_t>("request");
  terms.access = fields.integer<std::uint32_t>("access", 0, n() - 1);
  terms.prompt_tokens = fields.integer<std::uint32_t>("prompt_tokens", 1, most_tokens);
  terms.max_new_tokens = fields.integer<std::uint32_t>("max_new_tokens", 0, most_tokens);
  const bool score = fields.boolean("score");
  request.has_stop_strings = fields.integer<std::uint32_t>("stop_strings") != 0;
  begun_request travels;
  read_travelling(fields, travels);
  request.sampling = travels.sampling;
  request.tells_executions = travels.tells_executions;
  request.budget = fields.integer<loss_units>("budget", 0);
  request.decoding = {header_.token_budget, header_.allowance_factor, header_.continue_in_place};
  if (fields.has("token_budget"))
    request.decoding.token_budget =
        fields.integer<loss_units>("token_budget", 0, header_.token_budget);
  const auto epoch = fields.integer<std::uint64_t>("epoch");
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  if (requests_.contains(terms.request) || done_.contains(terms.request))
    return refuse("found request {} a second time, expected each once", terms.request);
  std::int64_t own = 0;
  if (!in_order(time, own)) return false;
  if (!take_plan(request, epoch)) return false;
  servers_[terms.access].request_ns = time;
  request.admitted_ns = time;
  terms.score = score;
  terms.continue_in_place = header_.continue_in_place && !request.has_stop_strings;

  terms.given_tokens = terms.prompt_tokens;
  const auto positions = std::uint64_t{terms.prompt_tokens} + terms.max_new_tokens;
  if (!can_be_counted(static_cast<std::int64_t>(positions))) return false;
  if (!same("budget", request.budget, request_budget(request.decoding.token_budget, positions)))
    return false;
  request.kv_need = kv_need(request.placed->plan.residence[terms.access], n(),
                            static_cast<std::size_t>(positions), header_.costs.kv_row_bytes);
  for (std::uint32_t m = 0; m < n(); ++m)
    if (m != terms.access && request.kv_need[m] > 0) ++members_[terms.access * n() + m];
  request.attended.resize(n_layers());

  ++summary.requests;
  summary.scored_requests += score;
  summary.prompt_tokens += terms.prompt_tokens;
  requests_.emplace(terms.request, std::move(request));
  return true;
}

bool verifier::take_plan(request_state& request, std::uint64_t epoch) {
  const auto plan = plans_.find(epoch);
  if (plan == plans_.end())
    return refuse("epoch: found {}, expected that of a plan in force, {} or {}", epoch,
                  plans_.begin()->first, plans_.rbegin()->first);
  auto& newest = servers_[request.terms.access].newest_request;
  if (epoch < newest)
    return refuse("epoch: found {}, expected {}, by which a request of server {} went before",
                  epoch, newest, request.terms.access);
  newest = epoch;
  request.placed = plan->second;
  return true;
}

chunk_state* verifier::find_chunk(request_state& request, std::uint32_t first) const {
  if (const auto found = request.chunks.find(first); found != request.chunks.end())
    return &found->second;
  const auto rows_of_chunk = static_cast<std::uint32_t>(header_.chunk_rows);
  if (first >= request.terms.prompt_tokens || first % rows_of_chunk != 0 ||
      !request.begun.insert(first).second)
    return nullptr;
  return &request.chunks.emplace(first, begin_chunk(request, first)).first->second;
}

chunk_state verifier::begin_chunk(const request_state& request, std::uint32_t first) const {
  const auto& terms = request.terms;
  const auto rows_of_chunk = static_cast<std::uint32_t>(header_.chunk_rows);
  chunk_state chunk;
  chunk.first = first;
  chunk.rows = std::min(rows_of_chunk, terms.prompt_tokens - first);
  chunk.came_from = terms.access;
  chunk.server = start_server(request, terms.access);
  const bool last = first + chunk.rows == terms.prompt_tokens;
  const auto budget = first_chunk_budget(request.decoding, chunk.rows, terms.max_new_tokens, last);
  chunk.pool = budget.pool;
  chunk.allowance.assign(chunk.rows, budget.allowance);
  chunk.time_ns = request.admitted_ns;
  return chunk;
}

std::optional<std::uint32_t> verifier::first_waiting(const request_state& request) const {
  const auto rows_of_chunk = static_cast<std::uint32_t>(header_.chunk_rows);
  std::uint32_t first = 0;
  for (auto begun = request.begun.begin(); begun != request.begun.end() && *begun == first; ++begun)
    first += rows_of_chunk;
  if (first >= request.terms.prompt_tokens) return std::nullopt;
  return first;
}

bool verifier::on_token(std::string_view text) {
  line_fields fields(text);
  const auto number = fields.integer<std::uint64_t>("request");
  const auto attempt = fields.integer<std::uint32_t>("attempt");
  const auto position = fields.integer<std::uint32_t>("position");
  const auto id = fields.integer<std::int32_t>("id", 0);
  const auto server = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto pool_left = fields.integer<loss_units>("pool_left", 0);
  const auto spent = fields.integer<loss_units>("spent", 0);
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  if (given_up_.contains(number)) return true;
  auto* request = find_request(number);
  if (request == nullptr) return false;
  if (!request->sampled)
    return refuse("found a token of request {}, expected the last layer of its position first",
                  number);
  const auto ready = *request->sampled;
  auto own = ready.time_ns;
  if (!same("attempt", attempt, 0u) || !same("position", position, ready.position) ||
      !same("server", server, ready.server) || !same("pool_left", pool_left, ready.pool) ||
      !same("spent", spent, ready.spent) || !in_order(time, own))
    return false;
  if (emulated() && servers_[server].head_end_ns != time)
    return refuse("time_ns: found {}, expected {}, the end of server {}'s latest head batch", time,
                  servers_[server].head_end_ns, server);
  request->sampled.reset();
  request->tokens.emplace_back(server, time);
  ++summary.new_tokens;
  const auto access = request->terms.access;
  if (server != access) expect_progress(*request, server, true);

  begin_position(*request, id, ready, time);
  return true;
}

void verifier::begin_position(request_state& request, std::int32_t id, const sampled_position& from,
                              std::int64_t time_ns) const {
  const auto access = request.terms.access;
  const auto next = successor(request.terms, id, from.position, from.pool, from.spent,
                              header_.allowance_factor, {n_layers(), 0, 0, 0});
  chunk_state chunk;
  chunk.first = from.position;
  chunk.rows = 1;
  chunk.came_from = request.in_place() ? from.server : access;
  chunk.server = start_server(request, chunk.came_from);
  chunk.allowance = next.allowance;
  chunk.pool = next.pool;
  chunk.spent = next.spent;
  chunk.time_ns = time_ns;
  request.chunks.emplace(from.position, std::move(chunk));
}

bool verifier::on_done(std::string_view text) {
  line_fields fields(text);
  const auto number = fields.integer<std::uint64_t>("request");
  const auto finish = fields.word("finish");
  const auto tokens = fields.integer<std::uint64_t>("tokens");
  const auto spent = fields.integer<loss_units>("spent", 0);
  const auto first_token = fields.amount("first_token_ns");
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto* request = find_request(number);
  if (request == nullptr) return false;
  // The time is that of the last token at the access server; the line waits for the reports of
  // all chunks of the prompt.
  if (closing_) return refuse("found a request done, expected nothing but ledgers at the end");
  if (finish == "cancelled" || finish == "failed") return give_up(*request, spent, time);
  if (!nothing_open(*request) || !check_finish(*request, finish, tokens)) return false;
  if (!same("spent", spent, request->spent)) return false;
  if (spent > request->budget)
    return refuse("spent: found {}, expected at most {}, the request's budget", spent,
                  request->budget);
  if (emulated() && !check_arrivals(*request, first_token, time)) {
    return false;
  } else if (first_token < request->tokens.front().second || time < first_token ||
             time < request->tokens.back().second) {
    return refuse(
        "first_token_ns and time_ns: found {} and {}, expected at least {} and {}, when "
        "the tokens were sampled",
        first_token, time, request->tokens.front().second, request->tokens.back().second);
  }
  summary.loss += spent;
  remember_done(*request, tokens, spent, time);
  summary.duration_ns = std::max(summary.duration_ns, time);
  done_.insert(number);
  requests_.erase(number);
  return true;
}

bool verifier::nothing_open(const request_state& request) {
  for (const auto& [first, chunk] : request.chunks) {
    const bool successor = first >= request.terms.prompt_tokens && chunk.layer == 0;
    if (!successor)
      return refuse("found request {} done, expected layer {} of its position {} first",
                    request.terms.request, chunk.layer, first);
  }
  if (const auto waiting = first_waiting(request))
    return refuse("found request {} done, expected layer 0 of its position {} first",
                  request.terms.request, *waiting);
  return !request.sampled ||
         refuse("found request {} done, expected the token of position {} first",
                request.terms.request, request.sampled->position);
}

bool verifier::give_up(const request_state& request, loss_units spent, std::int64_t time_ns) {
  strict_ = false;
  if (spent > request.budget)
    return refuse("spent: found {}, expected at most {}, the request's budget", spent,
                  request.budget);
  summary.duration_ns = std::max(summary.duration_ns, time_ns);
  const auto number = request.terms.request;
  given_up_.insert(number);
  done_.insert(number);
  requests_.erase(number);
  return true;
}

bool verifier::check_finish(const request_state& request, std::string_view finish,
                            std::uint64_t tokens) {
  const auto sampled = request.tokens.size();
  const auto most = std::max<std::size_t>(1, request.terms.max_new_tokens);
  if (sampled == 0) return refuse("found request done, expected a token at least");
  if (sampled > most) return refuse("found {} token lines, expected at most {}", sampled, most);
  if (request.terms.score) return same("finish", finish, "scored") && same("tokens", tokens, most);
  if (finish == "end_of_text") return same("tokens", tokens, sampled - 1);
  if (finish == "stop_string") {
    if (!request.has_stop_strings)
      return refuse("finish: found stop_string, expected another reason: there is none to stop at");
    return same("tokens", tokens, sampled);
  }
  if (!same("tokens", tokens, sampled)) return false;
  return same("finish", finish, sampled >= request.terms.max_new_tokens ? "length" : "context");
}

bool verifier::check_arrivals(const request_state& request, std::int64_t first_token,
                              std::int64_t done) {
  std::int64_t earliest = 0, latest = 0;
  for (std::size_t i = 0; i < request.tokens.size(); ++i) {
    const auto [server, sampled] = request.tokens[i];
    auto low = sampled, high = sampled;
    if (server != request.terms.access) {
      const auto found = progress_.find({server, request.terms.access, sampled});
      if (found == progress_.end())
        return refuse(
            "found no progress frame from server {} to {} at {} ns, expected the one "
            "that carries a token",
            server, request.terms.access, sampled);
      std::tie(low, high) = found->second;
    }
    earliest = std::max(earliest, low);
    latest = std::max(latest, high);
    if (i == 0 && (first_token < earliest || first_token > latest))
      return refuse("first_token_ns: found {}, expected {}, when the token was at server {}",
                    first_token, latest, request.terms.access);
  }
  if (done < earliest || done > latest)
    return refuse("time_ns: found {}, expected {}, when the last token was at server {}", done,
                  latest, request.terms.access);
  return true;
}

void verifier::expect_progress(const request_state& request, std::uint32_t from, bool of_token) {
  auto& frames = expected(from, request.terms.access, frame_kind::progress);
  ++frames.frames;
  progress_report report;
  if (of_token && request.terms.score) report.losses.resize(1);
  if (of_token && request.sampling) report.logprobs.resize(request.sampling->logprobs);
  if (request.tells_executions) report.ran.emplace();
  frames.other_bytes += size_of(report);
}

void verifier::add_travelling(const request_state& request, token_state& state) const {
  const auto& terms = request.terms;
  if (request.tells_executions) state.ran.emplace();
  if (!request.sampling || chunk_->first + chunk_->rows < terms.prompt_tokens) return;
  auto& rules = state.sampling.emplace();
  rules.bias_ids.resize(request.sampling->biases);
  rules.bias.resize(request.sampling->biases);
  if (request.sampling->counts_answered) rules.answered.resize(request.tokens.size());
}

}  // namespace ordermoe::trace
