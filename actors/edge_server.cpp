#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <unordered_map>

#include "actors/request.hpp"
#include "actors/server_actors.hpp"
#include "actors/token.hpp"
#include "actors/virtual_time_worker.hpp"

namespace ordermoe::actors {

void server_view::send(std::uint32_t to, frame content) const {
  caf::anon_send(links[to], std::move(content));
}

std::uint32_t server_view::start_server(std::uint32_t access, std::uint32_t from,
                                        std::uint32_t layer) const {
  const auto members = placed->plan.residence[access].layers[layer];
  std::uint32_t best = 0;
  double best_ns = -1;
  for (std::uint32_t m = 0; m < run->servers.size(); ++m) {
    if (!((members >> m) & 1u)) continue;
    const auto ns = run->prices.message(from, m);
    if (best_ns < 0 || ns < best_ns) {
      best = m;
      best_ns = ns;
    }
  }
  return best;
}

namespace {

struct hash_of_key {
  std::size_t operator()(const token_key& key) const {
    return std::hash<std::uint64_t>{}(key.request * 0x9e3779b97f4a7c15u ^
                                      (std::uint64_t{key.attempt} << 32 | key.first));
  }
};

struct edge_server_state {
  edge_server_actor::pointer self = nullptr;
  std::uint32_t id = 0;
  std::shared_ptr<const server_view> view;
  std::unordered_map<token_key, token_actor, hash_of_key> tokens;
  std::map<token_key, std::vector<expert_output>> early;  ///< Outputs that came before their token.
  std::map<std::uint64_t, request_actor> requests;        ///< Those whose user is connected here.
  std::unordered_map<std::uint64_t, std::int64_t> reserved;  ///< Bytes by request.
  std::deque<reservation> reservation_queue;
  std::int64_t reserved_bytes = 0;
  caf::typed_response_promise<caf::ok_atom> drained;  ///< To the planner that holds admission.
  std::size_t n_answers_missing = 0;                  ///< Of requests, until it is.

  const run_context& run() const { return *view->run; }

  void install(const install_plan& message) {
    auto next = std::make_shared<server_view>(*view);
    const bool same_plan = view->placed && view->placed->plan.epoch == message.content->plan.epoch;
    next->placed = message.content;
    if (!same_plan) host_experts(next);
    view = next;
    self->send(view->compute, attach_view{view});
    self->send(view->selector, attach_view{view});
  }

  /// Shards of the plan in place of those before it, which nobody calls any more: a new plan comes
  /// while no request is in flight.
  void host_experts(const std::shared_ptr<server_view>& next) {
    for (const auto& shard : next->shards)
      if (shard) self->send_exit(shard, caf::exit_reason::user_shutdown);
    const auto n_layers = run().shape().n_layers;
    next->shards.assign(n_layers, shard_actor{});
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < run().shape().n_experts; ++expert)
        if (next->placed->index.hosts(id, layer, expert)) {
          next->shards[layer] = spawn_shard(self->system(), next, layer);
          break;
        }
  }

  // -------------------------------------------------------------------------------------------------
  // changes of plan

  /// Answers when no request of a user of this server is in flight; none begins until resume().
  caf::typed_response_promise<caf::ok_atom> hold() {
    drained = self->make_response_promise<caf::ok_atom>();
    n_answers_missing = requests.size();
    if (requests.empty()) drained.deliver(caf::ok_atom::value);
    for (const auto& [number, request] : requests)
      self->request(request, caf::infinite, hold_admission{})
          .then([this](caf::ok_atom) { count_answer(); },
                [this, n = number](const caf::error&) {  // It was done before it was asked.
                  requests.erase(n);
                  count_answer();
                });
    return drained;
  }

  void count_answer() {
    if (--n_answers_missing == 0) drained.deliver(caf::ok_atom::value);
  }

  void resume() {
    for (const auto& [number, request] : requests) self->send(request, resume_request{view});
  }

  // -------------------------------------------------------------------------------------------------
  // arrivals

  void receive(const frame& content) {
    const auto shape = run().wire();
    switch (content.kind) {
      case frame_kind::token: {
        auto state = decode_token(content, shape);
        if (!state) return broken(content, state.error());
        return start(std::move(*state));
      }
      case frame_kind::call: {
        auto call = decode_call(content, shape);
        if (!call) return broken(content, call.error());
        if (call->layer >= view->shards.size() || !view->shards[call->layer])
          return run().books->fail(
              {errc::mismatch, fmt::format("server {} hosts no expert of layer {} and was sent a "
                                           "call for one",
                                           id, call->layer)});
        return self->send(view->shards[call->layer], expert_work{std::move(*call), token_actor{}});
      }
      case frame_kind::output: {
        auto output = decode_output(content, shape);
        if (!output) return broken(content, output.error());
        return deliver(std::move(*output));
      }
      case frame_kind::kv: {
        auto rows = decode_kv(content, shape);
        if (!rows) return broken(content, rows.error());
        if (rows->layer >= run().shape().n_layers)
          return broken(content,
                        {errc::malformed, fmt::format("KV rows of layer {} of {}", rows->layer,
                                                      run().shape().n_layers)});
        return store(std::move(*rows));
      }
      case frame_kind::progress: {
        auto report = decode_progress(content);
        if (!report) return broken(content, report.error());
        return forward(std::move(*report));
      }
      case frame_kind::reservation: {
        const auto message = decode_reservation(content);
        if (!message) return broken(content, message.error());
        return reserve(*message);
      }
      case frame_kind::load: {
        const auto report = decode_load(content);
        if (!report) return broken(content, report.error());
        return self->send(view->selector, *report);
      }
    }
  }

  void broken(const frame& content, const error& problem) {
    run().books->fail(at(fmt::format("server {}, from server {}", id, content.from), problem));
  }

  void start(token_state state) {
    const token_key key{state.terms.request, state.terms.attempt, state.first};
    std::vector<expert_output> outputs;
    const auto parked = early.find(key);
    if (parked != early.end()) {
      outputs = std::move(parked->second);
      early.erase(parked);
    }
    tokens[key] = spawn_token(*self, view, std::move(state), std::move(outputs));
  }

  void admit(const start_request& message) {
    const auto& spec = *message.spec;
    auto request =
        spawn_request(self->system(), view, spec, message.token_budget, message.continue_in_place);
    requests[spec.number] = request;
    send_later(self, request, spec.arrival_ns, begin_request{});
  }

  void deliver(expert_output output) {
    const auto found = tokens.find(output.token);
    if (found != tokens.end())
      self->send(found->second, std::move(output));
    else
      early[output.token].push_back(std::move(output));
  }

  void forward(progress_report report) {
    if (report.access != id) return view->send(report.access, encode(report));
    const auto found = requests.find(report.request);
    if (found != requests.end()) self->send(found->second, std::move(report));
  }

  // -------------------------------------------------------------------------------------------------------
  // KV

  void stream(const kv_written& written) {
    const auto layer = written.content.layer;
    const auto members_of = [&](std::uint32_t access) {
      return view->placed->plan.residence[access].layers[layer];
    };
    const auto first = members_of(written.access.front());
    if (std::all_of(written.access.begin(), written.access.end(),
                    [&](std::uint32_t access) { return members_of(access) == first; })) {
      const auto content = encode(written.content);
      for (std::uint32_t peer = 0; peer < run().servers.size(); ++peer)
        if (peer != id && ((first >> peer) & 1u)) view->send(peer, content);
      return;
    }
    std::map<std::uint32_t, kv_rows> by_peer;
    for (std::size_t i = 0; i < written.content.blocks.size(); ++i) {
      const auto members = members_of(written.access[i]);
      for (std::uint32_t peer = 0; peer < run().servers.size(); ++peer) {
        if (peer == id || !((members >> peer) & 1u)) continue;
        auto& rows = by_peer[peer];
        rows.layer = layer;
        rows.blocks.push_back(written.content.blocks[i]);
      }
    }
    for (const auto& [peer, rows] : by_peer) view->send(peer, encode(rows));
  }

  void store(kv_rows rows) {
    // Where a request is over, its last rows were still on the way.
    std::erase_if(rows.blocks,
                  [&](const kv_block& block) { return !reserved.contains(block.request); });
    self->send(view->compute,
               store_kv{std::move(rows), static_cast<std::uint32_t>(run().shape().max_context)});
  }

  // --------------------------------------------------------------------------------------------
  // reservations

  void reserve(const reservation& message) {
    const bool answer =
        message.step == reserve_step::granted || message.step == reserve_step::refused;
    const auto addressee = answer ? message.access : message.server;
    if (addressee != id) return view->send(addressee, encode(message));
    switch (message.step) {
      case reserve_step::granted:
      case reserve_step::refused: {
        const auto found = requests.find(message.request);
        if (found != requests.end()) self->send(found->second, message);
        return;
      }
      case reserve_step::attempt:
        if (!reservation_queue.empty() || !fits(message))
          return reply(message, reserve_step::refused);
        return grant(message);
      case reserve_step::wait:
        reservation_queue.push_back(message);
        return serve_queue();
      case reserve_step::release: {
        const auto held = reserved.find(message.request);
        if (held == reserved.end()) return;
        reserved_bytes -= held->second;
        trace_memory(message.request, -held->second);
        reserved.erase(held);
        self->send(view->compute, drop_sequence{message.request});
        return serve_queue();
      }
    }
  }

  bool fits(const reservation& message) const {
    return reserved_bytes + message.bytes <= run().servers.servers[id].kv_bytes;
  }

  void grant(const reservation& message) {
    reserved[message.request] += message.bytes;
    reserved_bytes += message.bytes;
    run().books->keep_kv_peak(id, reserved_bytes);
    trace_memory(message.request, message.bytes);
    reply(message, reserve_step::granted);
  }

  void serve_queue() {
    while (!reservation_queue.empty() && fits(reservation_queue.front())) {
      const auto message = reservation_queue.front();
      reservation_queue.pop_front();
      grant(message);
    }
  }

  void reply(reservation message, reserve_step step) {
    message.step = step;
    reserve(message);
  }

  void trace_memory(std::uint64_t request, std::int64_t change) {
    if (run().books->tracing())
      run().books->trace(fmt::format(
          R"({{"type":"kv","server":{},"request":{},"change_bytes":{},"reserved_bytes":{},"time_ns":{}}})",
          id, request, change, reserved_bytes, now_ns(self) - run().start_ns));
  }

  // ----------------------------------------------------------------------------------------------------
  // load

  void tick() {
    if (run().books->outstanding() == 0) return;
    self->send(view->compute, tell_load{});
    if (view->monitor)
      for (const auto& link : view->links)
        if (link) self->send(link, tell_load{});
    send_later(self, view->server, run().load_period_ns, load_tick{});
  }

  void stop() {
    const auto end = [this](const auto& actor) {
      if (actor) self->send_exit(actor, caf::exit_reason::user_shutdown);
    };
    for (const auto& [key, token] : tokens) end(token);
    for (const auto& [number, request] : requests) end(request);
    for (const auto& shard : view->shards) end(shard);
    for (const auto& link : view->links) end(link);
    end(view->compute);
    end(view->selector);
    self->quit();
  }

  void tell_everyone(const load_report& report) {
    self->send(view->selector, report);
    if (view->monitor) self->send(view->monitor, report);
    for (std::uint32_t peer = 0; peer < run().servers.size(); ++peer)
      if (peer != id) view->send(peer, encode(report));
  }
};

}  // namespace

edge_server_actor spawn_edge_server(caf::actor_system& system, std::uint32_t id) {
  return system.spawn([id](edge_server_actor::stateful_pointer<edge_server_state> self)
                          -> edge_server_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.id = id;
    return {
        // CAF tries one after the other, so the most frequent come first.
        [&state](frame& content) { state.receive(content); },
        [&state](const kv_written& written) { state.stream(written); },
        [&state](const token_departed& message) { state.tokens.erase(message.key); },
        [&state](start_token& message) { state.start(std::move(message.state)); },
        [&state](const start_request& message) { state.admit(message); },
        [&state](progress_report& report) { state.forward(std::move(report)); },
        [&state](const reservation& message) { state.reserve(message); },
        [&state](const load_report& report) { state.tell_everyone(report); },
        [&state](load_tick) { state.tick(); },
        [&state](attach_view& message) { state.view = std::move(message.view); },
        [&state](stop_server) { state.stop(); },
        [&state](const install_plan& message) {
          state.install(message);
          return caf::ok_atom::value;
        },
        [&state](hold_admission) { return state.hold(); },
        [&state](resume_admission) { state.resume(); },
    };
  });
}

}  // namespace ordermoe::actors
