#include <algorithm>
#include <deque>
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
  struct frame_in_parts {
    frame content;
    serving::traffic charged;
    std::int64_t left = 0;  ///< Charged bytes that are still to be sent.
  };
  std::deque<frame_in_parts> in_parts;
  std::int64_t next_part_ns = 0;  ///< When the first one's next part may be sent.

  std::int64_t time_ns() const { return now_ns(self) - context->start_ns; }

  void send(frame& content) {
    const auto charged = charged_traffic(content, context->costs);
    const auto bytes = charged.charged();
    const auto now = time_ns();
    if (emulated && emulated->is_in_parts(content.kind, bytes)) {
      in_parts.push_back({std::move(content), charged, bytes});
      if (in_parts.size() == 1) send_when_due(now);
      return;
    }
    transmission sent{now, now, now, {}};
    if (emulated) sent = emulated->send(content.kind, bytes, now);
    pass_on(content, charged, sent, now);
  }

  void send_when_due(std::int64_t now) {
    if (next_part_ns <= now) return send_part();
    send_later(self, caf::actor_cast<link_actor>(self), next_part_ns - now, part_is_due{});
  }

  void send_part() {
    const auto now = time_ns();
    auto& first = in_parts.front();
    const auto bytes = std::min<std::int64_t>(first.left, part_rule{}.part_bytes);
    first.left -= bytes;
    if (first.left > 0) {
      const auto sent = emulated->send_part(bytes, now);
      next_part_ns = emulated->next_part_ns(sent, bytes, now);
      ledger.total.busy_ns += sent.end_ns - sent.start_ns;
      if (context->trace)
        context->trace->line(
            trace::part_line(ledger.from, ledger.to, bytes, now, sent.start_ns, sent.end_ns));
      tell_load(now);
    } else {
      auto whole = std::move(first);
      in_parts.pop_front();
      const auto sent = emulated->send(whole.content.kind, bytes, now);
      next_part_ns = emulated->next_part_ns(sent, bytes, now);
      pass_on(whole.content, whole.charged, sent, now);
    }
    if (!in_parts.empty()) send_when_due(now);
  }

  void pass_on(frame& content, serving::traffic charged, const transmission& sent,
               std::int64_t now) {
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
    const undeliverable lost{content.kind, content.to, content.request, content.attempt,
                             content.bytes.size()};
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
            [&state](part_is_due) { state.send_part(); },
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
