#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "actors/compute.hpp"
#include "actors/edge_server_state.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "planning/serving/load_board.hpp"

/// Requests of this server's users, deadlines, load reports, and what it says of itself.
namespace ordermoe::actors {

void edge_server_state::begin(std::uint32_t own_id, const service_context& given) {
  id = own_id;
  limits = given.limits(id);
  memory = {id, limits.kv_bytes};
  refused_frames.resize(limits.n_servers, 0);
  link_free_ns.resize(limits.n_servers, 0);
  told.server = told_links.server = id;
  told_links.links.resize(limits.n_servers);
  if (given.over_sessions()) {
    // A later start's reports are newer.
    told.number = told_links.number = std::uint64_t{given.boot(id)} << 32;
    for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
      if (peer != id) away |= planning::server_mask{1} << peer;
  }
  told.link_wait_ns.resize(limits.n_servers, 0);
}

// -------------------------------------------------------------------------------------- requests

void edge_server_state::submit(const submit_request& message) {
  work();
  if (requests.contains(message.request))
    return refuse(message, {errc::usage, "a request of this number is being answered"});
  if (message.spec->access != id)
    return refuse(message, {errc::out_of_range, fmt::format("access server {} was asked for, this "
                                                            "is server {}",
                                                            message.spec->access, id)});
  if (drained)
    return refuse(message, {errc::failed, fmt::format("server {} ({}) is drained; ask another node",
                                                      id, context().servers.servers[id].name)});
  if (auto fits = check_prompt(*message.spec, context()); !fits)
    return refuse(message, fits.error());
  owned_request request;
  request.handle = spawn_request(self->system(), view, message);
  auto& status = request.status;
  status.request = message.request;
  status.access = id;
  status.prompt_tokens = prompt_tokens(*message.spec);
  status.arrival_ns = now();
  request.deadline_ns = now() + (message.spec->deadline_ns > 0 ? message.spec->deadline_ns
                                                               : context().request_timeout_ns);
  deadlines.emplace(request.deadline_ns, message.request);
  set_timer();
  const auto place = requests.emplace(message.request, std::move(request)).first;
  if (may_admit()) admit(place->second);
}

void edge_server_state::refuse(const submit_request& message, error why) {
  ++ended_requests;
  request_outcome outcome;
  outcome.request = message.request;
  outcome.access = id;
  outcome.finish = "failed";
  outcome.problem = at(fmt::format("request {}", message.request), std::move(why));
  outcome.arrival_ns = outcome.done_ns = now();
  if (message.client)
    self->send(message.client,
               answer_end{std::make_shared<const request_outcome>(std::move(outcome))});
}

void edge_server_state::end_all(const end_requests& message) {
  for (const auto& [number, request] : requests) {
    if (!request.view || epoch_of(*request.view) >= message.before_epoch) continue;
    self->send(request.handle,
               wire::failure_report{number, request.status.attempt, id,
                                    static_cast<std::uint8_t>(errc::failed), message.why});
  }
}

void edge_server_state::follow(const request_moved& message) {
  const auto found = requests.find(message.request);
  if (found == requests.end()) return;
  found->second.status.phase = message.phase;
  found->second.status.attempt = message.attempt;
  if (message.phase != request_phase::ended) return;
  deadlines.erase({found->second.deadline_ns, message.request});
  requests.erase(found);
  ++ended_requests;
  check_drained();
  check_ended();
}

// ---------------------------------------------------------------------------------------- timers

void edge_server_state::set_timer() {
  auto earliest = memory.next_expiry_ns();
  if (!deadlines.empty()) earliest = std::min(earliest, deadlines.begin()->first);
  if (earliest == std::numeric_limits<std::int64_t>::max()) return;
  if (!timers.empty() && *timers.begin() <= earliest) return;
  timers.insert(earliest);
  send_later(self, handle(), std::max<std::int64_t>(0, earliest - now()), timer_tick{earliest},
             later::timer);
}

void edge_server_state::ring(const timer_tick& which) {
  timers.erase(which.due_ns);
  while (!deadlines.empty() && deadlines.begin()->first <= now()) {
    const auto number = deadlines.begin()->second;
    deadlines.erase(deadlines.begin());
    tell_request(number, request_deadline{});
  }
  apply(memory.expire(now()));
  set_timer();
}

// ------------------------------------------------------------------------------------------ load

void edge_server_state::work() {
  worked = true;
  set_tick();
}

void edge_server_state::set_tick() {
  if (tick_is_set || !tells_load || context().load_period_ns <= 0) return;
  tick_is_set = true;
  const auto delay_ns = context().on_clock(context().load_period_ns);
  const auto& seat = context().seat;
  if (seat && seat->look_at_load && seat->look_at_load(delay_ns)) return;
  send_later(self, handle(), delay_ns, load_tick{}, later::timer);
}

void edge_server_state::tick() {
  tick_is_set = false;
  if (!tells_load) return;
  goes_on = std::exchange(worked, false);
  self->send(view->compute, tell_load{});
}

void edge_server_state::take(const link_load& load) {
  link_free_ns[load.to] = load.time_ns + load.wait_ns;
  if (view->monitor) self->send(view->monitor, load);
  set_tick();
}

void edge_server_state::take(const compute_load& load) {
  const auto time = now();
  const auto tolerance = context().load_tolerance_ns();
  bool waits = load.wait_ns > 0;
  bool changed = tell_wait(told.wait_ns, load.wait_ns, tolerance);
  for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer) {
    if ((away >> peer) & 1u) continue;  // As was told when it went.
    const auto wait = std::max<std::int64_t>(0, link_free_ns[peer] - time);
    waits |= wait > 0;
    changed |= tell_wait(told.link_wait_ns[peer], wait, tolerance);
  }
  if (changed) tell_everybody();
  if (goes_on || waits) set_tick();
}

void edge_server_state::tell_everybody() {
  ++told.number;
  self->send(view->selector, told);
  if (view->monitor) self->send(view->monitor, told);
  const auto content = wire::encode(told);
  for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
    if (peer != id) view->send(self, peer, content);
}

// -------------------------------------------------------------------------------- status and end

edge_status edge_server_state::tell() const {
  server_status status;
  status.server = id;
  status.name = context().servers.servers[id].name;
  status.device = context().servers.servers[id].device;
  if (view->placed) {
    status.epoch = view->placed->plan.epoch;
    status.policy = view->placed->policy;
  }
  for (const auto& [epoch, each] : live) status.epochs.push_back(epoch);
  status.admitting = admitting.is(admission::open);
  status.drained = drained;
  for (const auto& [number, request] : requests) status.requests.push_back(request.status);
  for (const auto& [request, held] : memory.sequences()) {
    sequence_status sequence{request, held.attempt, held.bytes, held.granted, 0, 0};
    if (const auto live = sequences.find(request); live != sequences.end()) {
      sequence.tokens = static_cast<std::uint32_t>(live->second.tokens.size());
      sequence.parked_rows = static_cast<std::uint32_t>(live->second.visits.parked_rows());
    }
    status.sequences.push_back(sequence);
  }
  std::ranges::sort(status.sequences, {}, &sequence_status::request);
  status.reserved_bytes = memory.reserved_bytes();
  status.kv_bytes = memory.capacity_bytes();
  status.ledger.kv_peak_bytes = memory.peak_bytes();
  status.ended_requests = ended_requests;
  for (const auto count : refused_frames) status.refused_frames += count;
  status.late_frames = late_frames;
  for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
    if (((away >> peer) & 1u) != 0) status.away.push_back(peer);
  return {std::move(status)};
}

void edge_server_state::stop() {
  for (const auto& [request, sequence] : sequences)
    for (const auto& [first, token] : sequence.tokens) end(token);
  for (const auto& [number, request] : requests) end(request.handle);
  for (const auto& [epoch, each] : live)
    for (const auto& shard : each->shards) end(shard);
  for (const auto& link : view->links) end(link);
  end(view->compute);
  end(view->selector);
  self->quit();
}

edge_server_actor spawn_edge_server(caf::actor_system& system,
                                    std::shared_ptr<const service_context> context,
                                    std::uint32_t id) {
  return system.spawn([context, id](edge_server_actor::stateful_pointer<edge_server_state> self)
                          -> edge_server_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.begin(id, *context);
    return {
        // CAF tries one after the other, so the most frequent come first.
        [&state](const frame& content) { state.receive(content); },
        [&state](peer_event& event) { state.take(event); },
        [&state](const kv_written& written) { state.stream(written); },
        [&state](arrived_output& message) { state.deliver(std::move(message)); },
        [&state](const token_departed& message) { state.depart(message); },
        [&state](const token_succeeded& message) { state.succeed(message); },
        [&state](start_token& message) { state.start(std::move(message.state)); },
        [&state](wire::progress_report& report) { state.forward(std::move(report)); },
        [&state](const reservation& message) { state.reserve(message); },
        [&state](const request_moved& message) { state.follow(message); },
        [&state](const submit_request& message) { state.submit(message); },
        [&state](const link_load& load) { state.take(load); },
        [&state](const compute_load& load) { state.take(load); },
        [&state](const undeliverable& lost) { state.take(lost); },
        [&state](load_tick) { state.tick(); },
        [&state](const timer_tick& which) { state.ring(which); },
        [&state](wire::failure_report& report) {
          state.tell_request(report.request, std::move(report));
        },
        [&state](const cancel_request& message) { state.tell_request(message.request, message); },
        [&state](const restart_request& message) { state.tell_request(message.request, message); },
        [&state](attach_view& message) { state.attach(std::move(message.view)); },
        [&state](const install_plans& message) { state.install(message); },
        [&state](const hold_admission& message) { state.stop_admitting(message); },
        [&state](resume_admission) { state.resume(); },
        [&state](const end_requests& message) { state.end_all(message); },
        [&state](drain_server message) { state.drained = message.on; },
        [&state](settle_down) { state.tells_load = false; },
        [&state](status_query) { return state.tell(); },
        [&state](stop_server) { state.stop(); },
    };
  });
}

}  // namespace ordermoe::actors
