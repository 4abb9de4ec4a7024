#include <algorithm>

#include "trace/checker.hpp"

namespace ordermoe::trace {

std::string verifier::next_slot() const {
  const auto& head = slots_.front();
  return fmt::format("slot {} of request {} position {} layer {}", slots_.size() % top_k(),
                     head.request, head.first + slots_.size() / top_k(), head.layer);
}

bool verifier::read_slot(std::string_view text, slot_record& s, std::string_view& kind) {
  line_fields fields(text);
  s.request = fields.integer<std::uint64_t>("request");
  s.attempt = fields.integer<std::uint32_t>("attempt");
  s.first = fields.integer<std::uint32_t>("first");
  s.position = fields.integer<std::uint32_t>("position");
  s.layer = fields.integer<std::uint32_t>("layer", 0, n_layers() - 1);
  s.slot = fields.integer<std::uint32_t>("slot", 0, top_k() - 1);
  s.access = fields.integer<std::uint32_t>("access", 0, n() - 1);
  s.server = fields.integer<std::uint32_t>("server", 0, n() - 1);
  s.residence = fields.integer<std::uint32_t>("residence", 0, n() - 1);
  s.target = fields.integer<std::uint32_t>("target", 0, n_experts() - 1);
  s.gate = fields.number("gate");
  s.expert = fields.integer<std::uint32_t>("expert", 0, n_experts() - 1);
  s.executor = fields.integer<std::uint32_t>("executor", 0, n() - 1);
  kind = fields.word("kind");
  s.loss = fields.integer<loss_units>("loss", 0, planning::unbounded_budget);
  s.allowance_left = fields.integer<loss_units>("allowance_left");
  s.pool_left = fields.integer<loss_units>("pool_left");
  s.snapshot = fields.integer<std::uint64_t>("snapshot");
  s.time_ns = fields.amount("time_ns");
  if (s.slot == 0) fields.numbers("logits", n_experts(), logits_);
  return fields.end() || malformed(fields);
}

bool verifier::on_slot(std::string_view text) {
  slot_record s;
  std::string_view kind;
  if (!read_slot(text, s, kind)) return false;
  if (given_up_.contains(s.request)) {
    if (!slots_.empty())
      return refuse("found a slot of request {}, expected {}", s.request, next_slot());
    logits_.clear();
    return true;
  }
  // Such a line names the target.
  if (kind == to_string(execution_kind::left_out) && s.expert == s.target && s.executor == s.server)
    s.expert = planning::left_out;
  const auto expected_kind = classify(s.server, s.target, {s.executor, s.expert, s.loss});
  if (!same("kind", kind, to_string(expected_kind))) return false;
  ++summary.slots[static_cast<std::size_t>(expected_kind)];
  if (slots_.empty()) {
    if (!begin_decision(s)) return false;
  } else if (!continues(s)) {
    return false;
  }
  if (s.expert != planning::left_out &&
      !request_->placed->index.hosts(s.executor, s.layer, s.expert))
    return refuse(
        "executor: found server {}, expected one where the plan places expert {} of "
        "layer {}",
        s.executor, s.expert, s.layer);
  slots_.push_back(s);
  if (slots_.size() < static_cast<std::size_t>(chunk_->rows) * top_k()) return true;
  const bool holds = end_decision();
  slots_.clear();
  logits_.clear();
  return holds;
}

bool verifier::begin_decision(const slot_record& s) {
  request_ = find_request(s.request);
  if (request_ == nullptr) return false;
  chunk_ = find_chunk(*request_, s.first);
  if (chunk_ == nullptr) {
    auto next = first_waiting(*request_);
    if (!request_->chunks.empty())
      next = std::min(next.value_or(UINT32_MAX), request_->chunks.begin()->first);
    return refuse("found a slot of request {} from position {}, expected {}", s.request, s.first,
                  next ? fmt::format("position {}", *next) : std::string("a token line first"));
  }
  auto& at_server = servers_[s.server];
  if (!same("attempt", s.attempt, 0u) || !same("layer", s.layer, chunk_->layer) ||
      !same("position", s.position, chunk_->first) || !same("slot", s.slot, 0u) ||
      !same("access", s.access, request_->terms.access))
    return false;
  if (s.server != chunk_->server)
    return refuse("server: found {}, expected {}, {}", s.server, chunk_->server,
                  s.layer == 0 ? "the member of R_0 where the position starts"
                               : "the residence after the layer before");
  if (!((attention_members(*request_, s.layer) >> s.server) & 1u))
    return refuse("server: found {}, expected a member of R_{} for access server {}", s.server,
                  s.layer, s.access);
  const auto held = held_.find({s.request, s.server});
  if (held == held_.end())
    return refuse(
        "found attention of request {} on server {}, expected KV memory reserved there "
        "first",
        s.request, s.server);
  if (at_server.snapshot == 0) return refuse("found a decision, expected a begin line first");
  const auto epoch = request_->placed->plan.epoch;
  if (!at_server.placed.contains(epoch))
    return refuse(
        "found a decision by the plan of epoch {}, expected a line that server {} installs its "
        "tables first",
        epoch, s.server);
  if (!same("snapshot", s.snapshot, at_server.snapshot)) return false;
  if (s.time_ns < chunk_->time_ns)
    return refuse("time_ns: found {}, expected at least {}, that of the step before", s.time_ns,
                  chunk_->time_ns);
  if (emulated() && !check_attention(s)) return false;
  return in_order(s.time_ns, at_server.snapshot_ns);
}

bool verifier::continues(const slot_record& s) {
  const auto& head = slots_.front();
  const auto index = slots_.size();
  const bool belongs = s.request == head.request && s.attempt == head.attempt &&
                       s.first == head.first && s.layer == head.layer && s.access == head.access &&
                       s.server == head.server && s.residence == head.residence &&
                       s.snapshot == head.snapshot && s.time_ns == head.time_ns &&
                       s.slot == index % top_k() && s.position == head.first + index / top_k();
  return belongs ||
         refuse(
             "found slot {} of request {} position {} layer {} at server {}, expected {} of "
             "the same decision",
             s.slot, s.request, s.position, s.layer, s.server, next_slot());
}

bool verifier::check_attention(const slot_record& s) {
  const auto& batch = servers_[s.server].attention;
  if (batch.end_ns != s.time_ns || batch.layer != s.layer)
    return refuse(
        "time_ns: found a decision of layer {} at {} ns, expected an attention batch of "
        "server {} to end then",
        s.layer, s.time_ns, s.server);
  const auto& before = request_->attended[s.layer];
  if (!same("position", s.first, before.next)) return false;
  if (before.next == 0 || before.server == s.server) return true;
  const auto& path = header_.servers.link(server_id{before.server}, server_id{s.server});
  if (s.time_ns <= before.time_ns + path.latency_ns)
    return refuse(
        "time_ns: found {}, expected later than {} + {}, when KV rows of position {} "
        "can be here from server {}",
        s.time_ns, before.time_ns, path.latency_ns, before.next - 1, before.server);
  return true;
}

chunk_decision verifier::decide_again(const slot_record& head) const {
  decide_input input;
  input.layer = head.layer;
  input.server = head.server;
  input.access = head.access;
  input.first = chunk_->first;
  input.unread_before = request_->terms.unread_before();
  input.n_experts = n_experts();
  input.top_k = top_k();
  input.gates = header_.router_gates;
  input.logits = logits_;
  input.allowance = chunk_->allowance;
  input.pool = chunk_->pool;
  input.tokens_left =
      tokens_left(request_->terms, chunk_->first, chunk_->rows, chunk_->layer, n_layers());
  input.wait_ns = servers_[head.server].loads.wait_ns();
  input.link_ns = servers_[head.server].loads.link_ns();
  if (head.layer + 1 < n_layers())
    input.next_members = attention_members(*request_, head.layer + 1);
  const auto epoch = request_->placed->plan.epoch;
  return decide(*servers_[head.server].placed.at(epoch)->tables, input);
}

bool verifier::check_row(std::uint32_t i, const chunk_decision& choice, loss_units& pool) {
  const auto& row = choice.rows[i];
  auto& allowance = chunk_->allowance[i];
  if (!same("slots of the recomputed decision", row.choice.n_slots, top_k())) return false;
  for (std::uint32_t j = 0; j < top_k(); ++j, ++number_) {
    const auto& s = slots_[i * top_k() + j];
    const auto& slot = row.choice.slots[j];
    if (!same("target of the router", s.target, row.targets[j]) ||
        !same("gate of the router", s.gate, row.target_gates[j]) ||
        !same("residence of the recomputed decision", s.residence, choice.residence) ||
        !same("expert of the recomputed decision", s.expert, slot.expert) ||
        !same("executor of the recomputed decision", s.executor, slot.server) ||
        !same("loss of the recomputed decision", s.loss, slot.loss))
      return false;
    allowance -= s.loss;
    pool -= s.loss;
    if (!same("allowance_left", s.allowance_left, allowance) ||
        !same("pool_left", s.pool_left, pool))
      return false;
    if (allowance < 0 || pool < 0)
      return refuse(
          "loss: found {}, which leaves an allowance of {} and a pool of {}; expected "
          "none below 0",
          s.loss, allowance, pool);
  }
  return true;
}

bool verifier::end_decision() {
  const auto& head = slots_.front();
  const auto choice = decide_again(head);
  auto pool = chunk_->pool;
  // A refusal names the line of its slot: the chunk's slots were just read.
  const auto last = number_;
  number_ = last - slots_.size() + 1;
  for (std::uint32_t i = 0; i < chunk_->rows; ++i)
    if (!check_row(i, choice, pool)) return false;
  number_ = last;
  summary.decisions += chunk_->rows;
  chunk_->spent += chunk_->pool - pool;
  request_->spent += chunk_->pool - pool;
  chunk_->pool = pool;
  expect_attention(head);
  if (emulated() && strict_ && !take_from_batch(head)) return false;
  expect_experts(head, choice);
  request_->attended[head.layer] = {chunk_->first + chunk_->rows, head.server, head.time_ns};
  chunk_->time_ns = head.time_ns;
  chunk_->server = choice.residence;
  if (++chunk_->layer == n_layers()) end_chunk();
  return true;
}

work_totals verifier::attention_work() const {
  const std::int64_t rows = chunk_->rows, first = chunk_->first;
  const auto& costs = header_.costs;
  return {rows,
          rows * costs.attention_flops +
              costs.attention_flops_per_context * (rows * first + rows * (rows + 1) / 2),
          (first + rows) * costs.kv_row_bytes, 0};
}

std::int64_t verifier::forced_bytes() const {
  const auto& terms = request_->terms;
  const std::int64_t end = std::int64_t{chunk_->first} + chunk_->rows;
  if (terms.score == 0 || end < terms.prompt_tokens) return 0;
  const auto left = std::int64_t{terms.prompt_tokens} + terms.max_new_tokens - end;
  constexpr std::int64_t id_bytes = sizeof(std::int32_t);
  return std::max<std::int64_t>(0, left) * id_bytes;
}

void verifier::expect_attention(const slot_record& s) {
  if (s.layer == 0 && chunk_->came_from != s.server) {
    token_state state;
    state.ids.resize(chunk_->rows);
    state.allowance.resize(chunk_->rows);
    add_travelling(*request_, state);
    auto& frames = expected(chunk_->came_from, s.server, frame_kind::token);
    ++frames.frames;
    frames.other_bytes += size_of(state) + forced_bytes();
  }
  const auto work = attention_work();
  auto& total = servers_[s.server].attend_expected[s.layer];
  total.rows += work.rows;
  total.flops += work.flops;
  total.bytes += work.bytes;
  const auto members = attention_members(*request_, s.layer);
  for (std::uint32_t peer = 0; peer < n(); ++peer) {
    if (peer == s.server || !((members >> peer) & 1u)) continue;
    expected(s.server, peer, frame_kind::kv).rows += chunk_->rows;
    ++link(s.server, peer).kv_blocks;
  }
}

bool verifier::take_from_batch(const slot_record& s) {
  auto& batch = servers_[s.server].attention;
  const auto work = attention_work();
  batch.left.rows -= work.rows;
  batch.left.flops -= work.flops;
  batch.left.bytes -= work.bytes;
  batch.peers |= attention_members(*request_, s.layer) & ~(server_mask{1} << s.server);
  if (batch.left.rows < 0)
    return refuse("rows: found {} more decided here than line {} attended, expected as many",
                  -batch.left.rows, batch.line);
  return true;
}

bool verifier::close_batch(std::uint32_t id) {
  auto& batch = servers_[id].attention;
  if (batch.end_ns < 0 || !strict_) return true;
  if (batch.left.rows != 0 || batch.left.flops != 0 || batch.left.bytes != 0)
    return refuse(
        "found {} rows, {} FLOPs and {} bytes of the batch at line {} left over, expected "
        "decisions that account for all of it",
        batch.left.rows, batch.left.flops, batch.left.bytes, batch.line);
  for (std::uint32_t peer = 0; peer < n(); ++peer)
    if ((batch.peers >> peer) & 1u) ++expected(id, peer, frame_kind::kv).frames;
  batch = {};
  return true;
}

void verifier::expect_experts(const slot_record& s, const chunk_decision& choice) {
  const auto residence = choice.residence;
  std::vector<expert_call> calls(n());
  std::vector<expert_output> outputs(n());
  token_state state;
  for (const auto& row : choice.rows) {
    const bool whole = std::all_of(row.executed.begin(), row.executed.end(), [&](const auto& e) {
      return e.server == row.executed[0].server;
    });
    // Such a row's outputs are added before it leaves: they do not travel.
    const bool here_alone = residence != s.server && whole && !row.executed.empty() &&
                            row.executed[0].server == s.server;
    server_mask visited = 0;
    for (const auto& e : row.executed) {
      ++servers_[e.server].expert_expected[s.layer * n_experts() + e.expert];
      if (here_alone) continue;
      const bool first_here = !((visited >> e.server) & 1u);
      visited |= server_mask{1} << e.server;
      auto& call = calls[e.server];
      call.items.emplace_back();
      if (first_here) {
        call.rows.push_back(0);
        call.whole.push_back(0);
      }
      if (first_here || !whole) outputs[e.server].rows.emplace_back();
      state.slots.emplace_back();
    }
  }
  for (std::uint32_t m = 0; m < n(); ++m) {
    if (calls[m].items.empty()) continue;
    if (m != s.server)
      expect_frame(s.server, m, frame_kind::call, calls[m].rows.size(), size_of(calls[m]));
    if (m != residence)
      expect_frame(m, residence, frame_kind::output, outputs[m].rows.size(), size_of(outputs[m]));
  }
  if (residence == s.server) return;
  state.ids.resize(chunk_->rows);
  state.allowance.resize(chunk_->rows);
  if (!state.slots.empty()) state.slots_of_row.resize(chunk_->rows);
  add_travelling(*request_, state);
  expect_frame(s.server, residence, frame_kind::token, chunk_->rows,
               size_of(state) + forced_bytes());
  const bool decodes = request_->terms.decodes(chunk_->first);
  if (header_.tells_choices && decodes && chunk_->rows == 1)
    expected(s.server, residence, frame_kind::token).uncharged_bytes +=
        wire::choice_bytes(choice.rows.front().targets.size());
}

void verifier::expect_frame(std::uint32_t from, std::uint32_t to, frame_kind kind, std::size_t rows,
                            std::int64_t other_bytes) {
  auto& frames = expected(from, to, kind);
  ++frames.frames;
  frames.rows += static_cast<std::int64_t>(rows);
  frames.other_bytes += other_bytes;
}

void verifier::end_chunk() {
  const auto& terms = request_->terms;
  const auto end = chunk_->first + chunk_->rows;
  const auto server = chunk_->server;
  const bool prompt_ends = end >= terms.prompt_tokens;
  if (prompt_ends) {
    servers_[server].head_expected += 1;
    request_->sampled = {end, server, chunk_->pool, chunk_->spent, chunk_->time_ns};
  } else if (server != terms.access) {
    expect_progress(*request_, server, false);
  }
  request_->chunks.erase(chunk_->first);
  chunk_ = nullptr;
}

bool verifier::on_begin(std::string_view text) {
  line_fields fields(text);
  const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto snapshot = fields.integer<std::uint64_t>("snapshot", 1, 1);
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto& server = servers_[id];
  if (!same("snapshots of the server before", server.snapshot, 0u) ||
      !in_order(time, server.snapshot_ns))
    return false;
  // Virtual time stands still until the first request.
  if (emulated() && !same("time_ns", time, 0)) return false;
  server.snapshot = snapshot;
  ++summary.snapshots;
  return true;
}

bool verifier::on_snapshot(std::string_view text) {
  line_fields fields(text);
  const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto snapshot = fields.integer<std::uint64_t>("snapshot");
  load_report report;
  report.server = fields.integer<std::uint32_t>("reporter", 0, n() - 1);
  report.number = fields.integer<std::uint64_t>("number");
  report.wait_ns = fields.amount("wait_ns");
  fields.amounts("link_wait_ns", n(), report.link_wait_ns);
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto& server = servers_[id];
  if (server.snapshot == 0) return refuse("found a load report, expected a begin line first");
  if (!same("snapshot", snapshot, server.snapshot + 1) || !in_order(time, server.snapshot_ns))
    return false;
  if (!server.loads.take(report))
    return refuse("number: found {}, expected one above the latest of server {}", report.number,
                  report.server);
  if (!same_as_told(report)) return false;
  if (report.server == id) {
    server.told_ns = time;
  } else if (emulated()) {
    const auto taken_in = server.load_arrivals.find(time);
    if (taken_in == server.load_arrivals.end())
      return refuse("time_ns: found {}, expected the arrival of a load frame at server {}", time,
                    id);
    server.load_arrivals.erase(taken_in);
  }
  server.snapshot = snapshot;
  ++server.reports[report.server];
  ++summary.snapshots;
  return true;
}

bool verifier::same_as_told(const load_report& report) {
  auto& [told, n_taken] = told_[{report.server, report.number}];
  if (n_taken == 0) told = report;
  if (!same("wait_ns", report.wait_ns, told.wait_ns)) return false;
  if (report.link_wait_ns != told.link_wait_ns)
    return refuse("link_wait_ns: found other waits than server {} told the others", report.server);
  if (++n_taken == n()) told_.erase({report.server, report.number});
  return true;
}

}  // namespace ordermoe::trace
