#include <fmt/format.h>

#include <algorithm>

#include "actors/server_actors.hpp"
#include "actors/virtual_time_worker.hpp"

namespace ordermoe::actors {

namespace {

struct link_state {
  std::shared_ptr<const run_context> run;
  std::uint32_t from = 0, to = 0;
  edge_server_actor far_end;
  monitor_actor monitor;
  std::int64_t free_ns = 0;  ///< When the sender's side is free again.
  link_ledger ledger;
};

}  // namespace

link_actor spawn_link(caf::actor_system& system, std::shared_ptr<const run_context> run,
                      std::uint32_t from, std::uint32_t to) {
  return system.spawn([=](link_actor::stateful_pointer<link_state> self)
                          -> link_actor::behavior_type {
    auto& state = self->state;
    state.run = run;
    state.ledger.from = from;
    state.ledger.to = to;
    return {
        [self, &state, from, to](frame& content) {
          const auto& run = *state.run;
          const auto hidden = content.hidden_rows * run.costs.hidden_bytes;
          const auto kv = content.kv_rows * run.costs.kv_row_bytes;
          const auto serialised = static_cast<std::int64_t>(content.bytes.size());
          const auto other = serialised - content.value_bytes;
          const auto& link = run.servers.link(server_id{from}, server_id{to});
          const auto now = now_ns(self);
          const bool emulated = run.clock == clock_kind::virtual_time;
          const auto start = emulated ? std::max(now, state.free_ns) : now;
          const auto end = emulated ? start + transfer_ns(link, hidden + kv + other) : now;
          const auto arrival = emulated ? end + link.latency_ns : now;
          state.free_ns = end;
          auto& total = state.ledger.total;
          total += {1, hidden, kv, other, serialised, end - start};
          if (run.books->tracing())
            run.books->trace(fmt::format(
                R"({{"type":"transfer","from":{},"to":{},"frame":"{}","hidden_bytes":{},"kv_bytes":{},"other_bytes":{},"serialised_bytes":{},"sent_ns":{},"start_ns":{},"end_ns":{},"arrival_ns":{}}})",
                from, to, to_string(content.kind), hidden, kv, other, serialised,
                now - run.start_ns, start - run.start_ns, end - run.start_ns,
                arrival - run.start_ns));
          content.from = from;
          content.to = to;
          if (emulated)
            send_later(self, state.far_end, arrival - now, std::move(content));
          else
            self->send(state.far_end, std::move(content));
        },
        [&state](attach_view& message) {
          state.far_end = message.view->server;
          state.monitor = message.view->monitor;
        },
        [self, &state, from, to](tell_load) {
          const auto now = now_ns(self);
          self->send(state.monitor,
                     link_load{from, to, now - state.run->start_ns, state.ledger.total.busy_ns,
                               std::max<std::int64_t>(0, state.free_ns - now)});
        },
        [&state](tell_ledger) { state.run->books->add(state.ledger); },
    };
  });
}

}  // namespace ordermoe::actors
