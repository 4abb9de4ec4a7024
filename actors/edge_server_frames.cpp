#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "actors/compute.hpp"
#include "actors/edge_server_state.hpp"
#include "actors/session_frames.hpp"
#include "planning/serving/link_board.hpp"
#include "trace/lines.hpp"

/// Other servers: that they come and go, and their frames.
namespace ordermoe::actors {

using wire::expert_output;
using wire::frame_kind;

namespace {

/// How a server and its links are, whatever plan it goes by and whether anybody waits for anything.
inline bool is_of_no_request(frame_kind kind) {
  return kind == frame_kind::load || kind == frame_kind::links;
}

}  // namespace

planning::server_mask edge_server_state::members_of(const server_view& by,
                                                    std::uint32_t access) const {
  planning::server_mask all = 0;
  for (std::uint32_t layer = 0; layer < limits.n_layers; ++layer) all |= by.members(access, layer);
  return all;
}

void edge_server_state::take(peer_event& event) {
  const auto peer = event.server;
  if (peer >= limits.n_servers || peer == id) return;
  const auto bit = planning::server_mask{1} << peer;
  switch (event.kind) {
    case peer_event::what::frame:
      return receive(event.content);
    case peer_event::what::up:
      away &= ~bit;
      end_under_plans_of_before(peer);
      return tell_again(peer);
    case peer_event::what::down:
      away |= bit;
      congested &= ~bit;
      if (view->tracing()) view->trace(trace::parted_line(id, peer, now()));
      lose(peer);
      return admit_held();
    case peer_event::what::congested:
      congested |= bit;
      return;
    case peer_event::what::relieved:
      congested &= ~bit;
      return admit_held();
    case peer_event::what::measured:
      return measure(peer, event.link);
  }
}

void edge_server_state::measure(std::uint32_t peer, const wire::link_measure& found) {
  if (!planner) return;
  const auto& stated = context().servers.link(server_id{id}, server_id{peer});
  auto& link = told_links.links[peer];
  const auto chunk_bytes =
      static_cast<std::int64_t>(context().chunk_rows) * context().costs.hidden_bytes;
  if (!serving::worth_telling(serving::measured(stated, link), serving::measured(stated, found),
                              chunk_bytes))
    return;
  link = found;
  ++told_links.number;
  self->send(planner, links_told{told_links});
  for (std::uint32_t to = 0; to < limits.n_servers; ++to) tell_links(to);
}

void edge_server_state::tell_links(std::uint32_t to) {
  if (to == id || ((away >> to) & 1u) != 0) return;
  view->send(self, to, wire::encode(told_links));
}

void edge_server_state::tell_again(std::uint32_t peer) {
  // A first start that has told nothing yet has nothing to take back.
  constexpr std::uint64_t nothing_told = std::uint64_t{1} << 32;
  if (!view->placed) return;
  // Of waits all others hear the same, by which a trace is checked.
  const bool was_told = std::exchange(told.link_wait_ns[peer], 0) != 0;
  if (tells_load && (was_told || told.number > nothing_told)) tell_everybody();
  if (told_links.number > nothing_told) tell_links(peer);
}

void edge_server_state::tell_away(std::uint32_t peer) {
  // Longer than anything else that is weighed, and nobody's time.
  constexpr std::int64_t away_wait_ns = 1'000'000'000'000;
  told.link_wait_ns[peer] = away_wait_ns;
  if (tells_load) tell_everybody();
}

void edge_server_state::end_own_with_rows_at(std::uint32_t peer) {
  for (auto& [number, request] : requests)
    if (request.view && ((members_of(*request.view, id) >> peer) & 1u) != 0)
      end_for_want_of(peer, request);
}

void edge_server_state::lose(std::uint32_t peer) {
  if (!view->placed) return;
  tell_away(peer);
  end_own_with_rows_at(peer);
  std::vector<std::uint64_t> of_peer;
  for (const auto& [request, held] : memory.sequences())
    if (held.access == peer) of_peer.push_back(request);
  std::ranges::sort(of_peer);
  for (const auto request : of_peer) apply(memory.end(request));
  for (const auto& [request, sequence] : sequences)
    for (const auto& [first, token] : sequence.tokens) self->send(token, server_lost{peer});
  // Whoever awaits what a token called here, before it left, may be connected to that one.
  for (const auto& [request, sequence] : sequences)
    if (sequence.has_called(peer)) report_loss(view->not_connected(peer), request, sequence);
  tell_owners(peer);
}

void edge_server_state::end_under_plans_of_before(std::uint32_t peer) {
  if (!view->placed || live.begin()->first == epoch_of(*view)) return;
  for (const auto& [number, request] : requests)
    if (request.view && epoch_of(*request.view) < epoch_of(*view)) end_for_want_of(peer, request);
}

void edge_server_state::tell_owners(std::uint32_t peer) {
  for (const auto& [request, sequence] : sequences)
    if (sequence.access != id && ((members_of(*sequence.view, sequence.access) >> peer) & 1u) != 0)
      report_loss(view->not_connected(peer), request, sequence);
}

void edge_server_state::report_loss(const error& why, std::uint64_t request,
                                    const live_sequence& sequence) {
  wire::failure_report report{request, sequence.attempt, id, static_cast<std::uint8_t>(why.code),
                              why.message};
  if (sequence.access == id) return tell_request(request, std::move(report));
  sequence.view->send(self, sequence.access, wire::encode(report));
}

void edge_server_state::end_for_want_of(std::uint32_t peer, const owned_request& request) {
  const auto why = view->not_connected(peer);
  self->send(request.handle,
             wire::failure_report{request.status.request, request.status.attempt, id,
                                  static_cast<std::uint8_t>(why.code), why.message});
}

void edge_server_state::take(const undeliverable& lost) {
  const auto lane = static_cast<std::size_t>(lane_of(lost.kind));
  const auto most_bytes = net::session_limits{}.largest_frame[lane];
  const bool is_too_large = lost.bytes > most_bytes;
  if (lost.kind == frame_kind::kv && !is_too_large) {
    end_own_with_rows_at(lost.to);
    return tell_owners(lost.to);
  }
  if (lost.kind != frame_kind::token && lost.kind != frame_kind::call &&
      lost.kind != frame_kind::kv)
    return;
  const auto* sequence = sequence_of(lost.request, lost.attempt);
  if (sequence == nullptr) return;
  if (!is_too_large) return report_loss(view->not_connected(lost.to), lost.request, *sequence);
  report_loss({errc::out_of_range,
               fmt::format("a {} frame of {} bytes to server {} ({}): at most {} go over a session",
                           to_string(lost.kind), lost.bytes, lost.to,
                           context().servers.servers[lost.to].name, most_bytes)},
              lost.request, *sequence);
}

// ---------------------------------------------------------------------------------------- frames

void edge_server_state::receive(const frame& content) {
  if (content.from >= limits.n_servers || content.to != id)
    return refuse(content, {errc::malformed,
                            fmt::format("a frame from server {} to {}", content.from, content.to)});
  if (!view->placed) return refuse(content, {errc::malformed, "a frame before the first plan"});
  if (!is_of_no_request(content.kind)) work();
  const auto* by = is_of_no_request(content.kind) ? view.get() : find_view(content.epoch);
  // Memory is given back under any plan.
  if (!by && content.kind != frame_kind::reservation) return take_late(content);
  try {
    if (auto taken = take(content, by ? *by : *view); !taken) refuse(content, taken.error());
  } catch (const std::exception& problem) {
    refuse(content, {errc::failed, problem.what()});
  }
}

void edge_server_state::take_late(const frame& content) {
  late();
  if (content.kind != frame_kind::call || !latest_gone || content.epoch != epoch_of(*latest_gone))
    return;
  const auto call = wire::decode_call(content, context().wire);
  const auto& placed = *latest_gone->placed;
  if (!call || !check(*call, content.from, limits, placed.plan, placed.index)) return;
  const expert_work work{*call, token_actor{}, content.epoch};
  send_output(self, *latest_gone, work,
              failed_output(*call, {errc::failed, fmt::format("server {} has let go of the plan "
                                                              "of epoch {}",
                                                              id, content.epoch)}));
}

bool edge_server_state::is_too_late(const reservation& message, std::uint64_t epoch) const {
  return (message.step == reserve_step::attempt || message.step == reserve_step::wait) &&
         find_view(epoch) == nullptr;
}

result<void> edge_server_state::take(const frame& content, const server_view& by) {
  const auto& shape = context().wire;
  const auto& plan = by.placed->plan;
  const auto& index = by.placed->index;
  switch (content.kind) {
    case frame_kind::token:
      return take(
          wire::decode_token(content, shape),
          [&](token_state& state) { return check(state, content.from, limits, plan); },
          [&](token_state& state) { start(std::move(state)); });
    case frame_kind::call:
      return take(
          wire::decode_call(content, shape),
          [&](const wire::expert_call& call) {
            return check(call, content.from, limits, plan, index);
          },
          [&](wire::expert_call& call) {
            self->send(by.shards[call.layer],
                       expert_work{std::move(call), token_actor{}, content.epoch});
          });
    case frame_kind::output:
      return take(
          wire::decode_output(content, shape),
          [&](const expert_output& output) { return check(output, content.from, limits, index); },
          [&](expert_output& output) {
            deliver({std::move(output), content.from});
          });
    case frame_kind::kv:
      return take(
          wire::decode_kv(content, shape),
          [&](const wire::kv_rows& rows) { return check(rows, limits); },
          [&](wire::kv_rows& rows) { store(std::move(rows), content.from); });
    case frame_kind::progress:
      return take(
          wire::decode_progress(content),
          [&](const wire::progress_report& report) {
            return check(report, content.from, limits, plan);
          },
          [&](wire::progress_report& report) { forward(std::move(report)); });
    case frame_kind::reservation:
      return take(
          wire::decode_reservation(content),
          [&](const reservation& message) {
            if (is_too_late(message, content.epoch)) return result<void>{};
            return check(message, content.from, limits, plan);
          },
          [&](const reservation& message) {
            is_too_late(message, content.epoch) ? late() : reserve(message, content.epoch);
          });
    case frame_kind::load:
      return take(
          wire::decode_load(content),
          [&](const wire::load_report& report) { return check(report, content.from, limits); },
          [&](wire::load_report& report) { self->send(view->selector, std::move(report)); });
    case frame_kind::links:
      return take(
          wire::decode_links(content),
          [&](const wire::link_report& report) { return check(report, content.from, limits); },
          [&](wire::link_report& report) { self->send(planner, links_told{std::move(report)}); });
    case frame_kind::failure:
      return take(
          wire::decode_failure(content),
          [&](const wire::failure_report& report) {
            return check(report, content.from, limits, plan);
          },
          [&](wire::failure_report& report) { tell_request(report.request, std::move(report)); });
  }
  return error{errc::malformed, fmt::format("a frame of kind {}", static_cast<int>(content.kind))};
}

void edge_server_state::refuse(const frame& content, error why) {
  auto& count = refused_frames[content.from < limits.n_servers ? content.from : id];
  if (!std::has_single_bit(++count)) return;
  problem found;
  found.of = problem::scope::peer;
  found.server = id;
  found.peer = content.from;
  found.count = count;
  found.what = at(fmt::format("server {}, from server {}", id, content.from), std::move(why));
  found.time_ns = now();
  self->send(view->recorder, std::move(found));
}

}  // namespace ordermoe::actors
