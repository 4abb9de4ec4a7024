#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "actors/compute.hpp"
#include "actors/edge_server_state.hpp"
#include "trace/lines.hpp"

/// Sequences that hold KV memory here: their tokens, rows and reservations.
namespace ordermoe::actors {

live_sequence* edge_server_state::sequence_of(std::uint64_t request, std::uint32_t attempt,
                                              std::uint32_t access) {
  auto* sequence = sequence_of(request, attempt);
  return sequence != nullptr && sequence->access == access ? sequence : nullptr;
}

live_sequence* edge_server_state::sequence_of(std::uint64_t request, std::uint32_t attempt) {
  const auto found = sequences.find(request);
  return found != sequences.end() && found->second.attempt == attempt ? &found->second : nullptr;
}

live_sequence* edge_server_state::sequence_of(const token_key& key) {
  return sequence_of(key.request, key.attempt, key.access);
}

void edge_server_state::start(token_state state) {
  work();
  auto* sequence = sequence_of(state.terms.request, state.terms.attempt, state.terms.access);
  if (sequence == nullptr || state.first + state.ids.size() > sequence->positions) return late();
  auto outputs = sequence->visits.arrive(state.first, step_of(state));
  if (!outputs) return late();
  const auto first = state.first;
  sequence->forget_calls(first, first >= state.terms.given_tokens);
  auto token = spawn_token(*self, sequence->view, std::move(state), std::move(*outputs));
  // What it awaits from there was lost before it came.
  for (auto lost = away; lost != 0; lost &= lost - 1)
    self->send(token, server_lost{static_cast<std::uint32_t>(std::countr_zero(lost))});
  if (const auto before = sequence->token_at(first); before != sequence->tokens.end())
    before->second = std::move(token);
  else
    sequence->tokens.emplace_back(first, std::move(token));
}

void edge_server_state::depart(const token_departed& message) {
  auto* sequence = sequence_of(message.key);
  if (sequence == nullptr) return;
  if (const auto token = sequence->token_at(message.key.first); token != sequence->tokens.end())
    sequence->remove(token);
  sequence->visits.leave(message.key.first, message.step);
  sequence->forget_calls(message.key.first, false);
  if (message.called != 0) sequence->called.emplace_back(message.key.first, message.called);
}

void edge_server_state::succeed(const token_succeeded& message) {
  work();
  auto* sequence = sequence_of(message.key);
  if (sequence == nullptr) return end(message.token);
  const auto token = sequence->token_at(message.key.first);
  if (token == sequence->tokens.end() || token->second != message.token) return end(message.token);
  sequence->visits.leave(message.key.first, message.step);
  sequence->forget_calls(message.next_first, true);
  if (message.next_first < sequence->positions &&
      sequence->visits.arrive(message.next_first, message.next_step)) {
    token->first = message.next_first;
    return;
  }
  end(message.token);
  sequence->remove(token);
}

void edge_server_state::deliver(arrived_output output) {
  const auto& key = output.content.token;
  auto* sequence = sequence_of(key);
  if (sequence == nullptr || key.first >= sequence->positions) return late();
  const auto token = sequence->token_at(key.first);
  if (token != sequence->tokens.end()) return self->send(token->second, std::move(output));
  if (!sequence->visits.park(std::move(output))) late();
}

void edge_server_state::forward(wire::progress_report report) {
  const auto found = requests.find(report.request);
  if (found == requests.end()) return late();
  count(report, found->second.status);
  self->send(found->second.handle, std::move(report));
}

void edge_server_state::count(const wire::progress_report& report, request_status& status) const {
  const auto before = status.prompt_tokens + context().decoding.start_rows;
  if (report.id >= 0 && report.position >= before)
    status.new_tokens = std::max(status.new_tokens, report.position - before + 1);
}

// -------------------------------------------------------------------------------------------- KV

planning::server_mask edge_server_state::receivers(const kv_written& written, std::size_t i) const {
  const auto* by = find_view(written.epochs[i]);
  const auto own = planning::server_mask{1} << id;
  return by != nullptr ? by->members(written.access[i], written.content.layer) & ~own : 0;
}

void edge_server_state::stream(const kv_written& written) {
  const auto epoch = std::ranges::max(written.epochs);
  const auto first = receivers(written, 0);
  bool all_alike = true;
  for (std::size_t i = 1; i < written.content.blocks.size(); ++i)
    all_alike = all_alike && receivers(written, i) == first;
  if (all_alike) return send_rows(first, written.content, epoch);
  std::map<std::uint32_t, wire::kv_rows> by_peer;
  for (std::size_t i = 0; i < written.content.blocks.size(); ++i) {
    const auto members = receivers(written, i);
    for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer) {
      if (!((members >> peer) & 1u)) continue;
      auto& rows = by_peer[peer];
      rows.layer = written.content.layer;
      rows.blocks.push_back(written.content.blocks[i]);
    }
  }
  for (const auto& [peer, rows] : by_peer) send_rows(planning::server_mask{1} << peer, rows, epoch);
}

void edge_server_state::send_rows(planning::server_mask to, const wire::kv_rows& rows,
                                  std::uint64_t epoch) {
  constexpr std::size_t most_bytes = 4 << 20;
  const auto send = [&](const wire::kv_rows& some) {
    const auto content = wire::encode(some);
    for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
      if ((to >> peer) & 1u) view->send(self, peer, content, epoch);
  };
  // As long as it is in a rehearsal, where rows are charged for.
  const auto bytes_of = [&](const wire::kv_block& block) {
    const auto charged = static_cast<std::size_t>(block.n * context().costs.kv_row_bytes);
    return std::max(block.rows.size(), charged);
  };
  std::size_t bytes = 0;
  for (const auto& block : rows.blocks) bytes += bytes_of(block);
  if (bytes <= most_bytes || !context().over_sessions()) return send(rows);
  wire::kv_rows some;
  some.layer = rows.layer;
  bytes = 0;
  for (const auto& block : rows.blocks) {
    if (!some.blocks.empty() && bytes + bytes_of(block) > most_bytes) {
      send(some);
      some.blocks.clear();
      bytes = 0;
    }
    bytes += bytes_of(block);
    some.blocks.push_back(block);
  }
  send(some);
}

void edge_server_state::store(wire::kv_rows rows, std::uint32_t sender) {
  const auto before = rows.blocks.size();
  std::erase_if(rows.blocks, [&](const wire::kv_block& block) {
    const auto* sequence = sequence_of(block.request, block.attempt);
    if (sequence == nullptr || block.first + block.n > sequence->positions) return true;
    return ((sequence->view->members(sequence->access, rows.layer) >> sender) & 1u) == 0;
  });
  late_frames += before - rows.blocks.size();
  if (!rows.blocks.empty())
    self->send(view->compute, store_kv{std::move(rows), limits.most_positions});
}

// ---------------------------------------------------------------------------------- reservations

std::uint64_t edge_server_state::epoch_of_request(std::uint64_t request) const {
  if (const auto own = requests.find(request); own != requests.end() && own->second.view)
    return epoch_of(*own->second.view);
  const auto held = memory.sequences().find(request);
  return held != memory.sequences().end() ? held->second.epoch : epoch_of(*view);
}

void edge_server_state::reserve(const reservation& message, std::uint64_t epoch) {
  const bool answer = message.step == reserve_step::granted ||
                      message.step == reserve_step::refused || message.step == reserve_step::fenced;
  const auto addressee = answer ? message.access : message.server;
  if (addressee != id) return view->send(self, addressee, wire::encode(message), epoch);
  if (answer) return answer_request(message);
  // What waits is its owner's, too.
  const auto held = memory.sequences().find(message.request);
  if (held != memory.sequences().end() && held->second.access != message.access) return late();
  apply(memory.take(message, now(), epoch));
  set_timer();
}

void edge_server_state::answer_request(const reservation& message) {
  if (requests.contains(message.request)) return tell_request(message.request, message);
  late();
  // Granted to a request that is over: an ask that came late, or again.
  if (message.step != reserve_step::granted) return;
  auto release = message;
  release.step = reserve_step::release;
  reserve(release);
}

void edge_server_state::apply(const kv_reservations::outcome& outcome) {
  using what = kv_reservations::event::what;
  for (const auto& event : outcome.events) {
    if (event.kind != what::granted) end_tokens(event.request);
    if (event.kind == what::ended) {
      sequences.erase(event.request);
      self->send(view->compute, drop_sequence{event.request});
    } else {
      open(event.request, event.attempt);
    }
    if (event.change_bytes != 0 && view->tracing())
      view->trace(
          trace::memory_line(id, event.request, event.change_bytes, event.reserved_bytes, now()));
  }
  for (const auto& answer : outcome.answers) reserve(answer);
  // The last that was under a plan may be gone, also one that still waited for memory.
  if (awaits_end) install(*std::exchange(awaits_end, std::nullopt));
}

void edge_server_state::open(std::uint64_t request, std::uint32_t attempt) {
  const auto* held = memory.find(request);
  live_sequence sequence;
  sequence.view = view_of(held->epoch);
  std::int64_t layers = 0;
  for (std::uint32_t layer = 0; layer < limits.n_layers; ++layer)
    layers += (sequence.view->members(held->access, layer) >> id) & 1u;
  const auto row_bytes = std::max<std::int64_t>(1, layers * context().costs.kv_row_bytes);
  sequence.attempt = attempt;
  sequence.access = held->access;
  sequence.positions = static_cast<std::uint32_t>(std::min<std::int64_t>(
      held->bytes / row_bytes + context().decoding.start_rows, limits.most_positions));
  sequence.visits = token_visits(std::size_t{sequence.positions} * limits.top_k);
  sequences[request] = std::move(sequence);
  self->send(view->compute, open_sequence{request, attempt});
}

void edge_server_state::end_tokens(std::uint64_t request) {
  const auto found = sequences.find(request);
  if (found == sequences.end()) return;
  for (const auto& [first, token] : found->second.tokens) end(token);
  found->second.tokens.clear();
}

}  // namespace ordermoe::actors
