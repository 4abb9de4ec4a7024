#include <algorithm>
#include <optional>
#include <utility>

#include "actors/scheduling/virtual_time_worker.hpp"
#include "actors/server_actors.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

struct link_state {
  link_actor::pointer self = nullptr;
  std::shared_ptr<const service_context> context;
  edge_server_actor near_end, far_end;
  std::optional<emulated_link> emulated;  ///< Virtual time.
  std::shared_ptr<frame_outlet> outlet;   ///< Where servers talk over sessions.
  link_ledger ledger;
  std::int64_t told_free_ns = 0;  ///< When the near end believes that it is free.

  std::int64_t time_ns() const { return now_ns(self) - context->start_ns; }

  void send(frame& content) {
    auto charged = charged_traffic(content, context->costs);
    const auto now = time_ns();
    transmission sent{now, now, now, {}};
    if (emulated) sent = emulated->send(content.kind, charged.charged(), now);
    charged.busy_ns = sent.end_ns - sent.start_ns;
    ledger.total += charged;
    ledger.charged_by_kind[static_cast<std::size_t>(content.kind)] += charged.charged();
    if (context->trace)
      context->trace->line(trace::transfer_line(
          {ledger.from, ledger.to, content.kind, charged.hidden_bytes, charged.kv_bytes,
           charged.other_bytes, content.uncharged_bytes, charged.serialised_bytes, now,
           sent.start_ns, sent.end_ns, sent.arrival_ns}));
    content.from = ledger.from;
    content.to = ledger.to;
    if (outlet) return send_out(content);
    if (!emulated) return self->send(far_end, std::move(content));
    tell_load(now);
    for (std::size_t i = 1; i < sent.deliveries.size(); ++i)
      deliver(frame(content), sent.deliveries[i] - now);
    if (!sent.deliveries.empty()) deliver(std::move(content), sent.deliveries[0] - now);
  }

  void send_out(frame& content) {
    const undeliverable lost{content.kind, content.to, content.request, content.attempt};
    if (outlet->send(std::move(content))) return;
    if (context->trace)
      context->trace->line(trace::lost_line(ledger.from, ledger.to, lost.kind, time_ns()));
    self->send(near_end, lost);
  }

  void deliver(frame content, std::int64_t delay_ns) {
    emulated->deliver(content);
    send_later(self, far_end, delay_ns, std::move(content));
  }

  std::int64_t wait_ns() const { return emulated ? emulated->wait_ns(time_ns()) : 0; }

  /// The near end knows how a wait passes: it is told of frames that made it longer.
  void tell_load(std::int64_t now) {
    if (context->load_period_ns <= 0) return;
    const auto wait = emulated->wait_ns(now);
    if (now + wait - std::max(told_free_ns, now) < context->load_tolerance_ns()) return;
    told_free_ns = now + wait;
    self->send(near_end, link_load{ledger.from, ledger.to, now, ledger.total.busy_ns, wait});
  }
};

}  // namespace

link_actor spawn_link(caf::actor_system& system, std::shared_ptr<const service_context> context,
                      std::uint32_t from, std::uint32_t to) {
  return system.spawn(
      [=](link_actor::stateful_pointer<link_state> self) -> link_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.context = context;
        state.ledger.from = from;
        state.ledger.to = to;
        state.outlet = context->outlet(from, to);
        if (context->clock == clock_kind::virtual_time && !state.outlet)
          state.emulated.emplace(context->servers.link(server_id{from}, server_id{to}),
                                 context->bad_links, from, to, context->uplinks);
        return {
            [&state](frame& content) { state.send(content); },
            [&state, from](attach_view& message) {
              const auto& end = message.view;
              (end->id == from ? state.near_end : state.far_end) = end->server;
            },
            [&state](status_query) {
              return link_status{state.ledger, state.wait_ns()};
            },
        };
      });
}

}  // namespace ordermoe::actors
