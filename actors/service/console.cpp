#include "actors/service/console.hpp"

namespace ordermoe::actors {

console_actor spawn_console(caf::actor_system& system) {
  return system.spawn(
      [](console_actor::stateful_pointer<caf::unit_t> self) -> console_actor::behavior_type {
        return {[self](const console_job& job) { job.run(self); }};
      });
}

namespace {

using pending_status = std::shared_ptr<pending_answer<service_status>>;

/// Asks one actor; use(status, its answer) when it comes.
template <class Answer, class Handle, class Use>
void ask(console_self* self, const pending_status& pending, const Handle& whom, Use use) {
  self->request(whom, caf::infinite, status_query{}).then([pending, use](const Answer& answer) {
    pending->fill([&](service_status& status) { use(status, answer); });
  });
}

/// `m`: its place among the servers of the status.
void ask_server(console_self* self, const pending_status& pending, const server_view& view,
                std::size_t m) {
  ask<edge_status>(self, pending, view.server, [m](service_status& status, const auto& answer) {
    // What compute and selector say of it may have come before.
    auto& into = status.servers[m];
    const auto parts = std::move(into);
    into = answer.content;
    into.kv_sequences = parts.kv_sequences;
    into.waiting_batches = parts.waiting_batches;
    into.wait_ns = parts.wait_ns;
    into.executions = parts.executions;
    into.layer_executions = parts.layer_executions;
    into.snapshot = parts.snapshot;
    const auto peak = into.ledger.kv_peak_bytes;
    into.ledger = parts.ledger;
    into.ledger.kv_peak_bytes = peak;
  });
  ask<compute_status>(self, pending, view.compute, [m](service_status& status, const auto& answer) {
    auto& into = status.servers[m];
    const auto peak = into.ledger.kv_peak_bytes;
    into.ledger = answer.ledger;
    into.ledger.kv_peak_bytes = peak;
    into.kv_sequences = answer.sequences;
    into.waiting_batches = answer.waiting_batches;
    into.wait_ns = answer.wait_ns;
  });
  ask<selector_status>(self, pending, view.selector,
                       [m](service_status& status, const auto& answer) {
                         status.servers[m].executions = answer.executions;
                         status.servers[m].layer_executions = answer.layer_executions;
                         status.servers[m].snapshot = answer.snapshot;
                       });
}

}  // namespace

void ask_status(const pending_status& pending,
                const std::vector<std::shared_ptr<server_view>>& views,
                const planner_actor& planner, const monitor_actor& monitor,
                const console_actor& console) {
  const auto n = views.size();
  std::size_t n_links = 0;
  for (const auto& view : views) n_links += view->links.size() - 1;
  service_status empty;
  empty.servers.resize(n);
  empty.links.resize(n_links);
  pending->begin(std::move(empty), 3 * n + n_links + (planner ? 1 : 0) + (monitor ? 1 : 0));
  caf::anon_send(
      console, console_job{[=](console_self* self) {
        if (planner)
          ask<planner_status>(
              self, pending, planner,
              [](service_status& status, const auto& answer) { status.planner = answer; });
        if (monitor)
          ask<observations>(self, pending, monitor, [](service_status& status, const auto& answer) {
            status.observed = answer;
          });
        std::size_t i = 0;
        for (std::size_t m = 0; m < views.size(); ++m) {
          const auto& view = views[m];
          ask_server(self, pending, *view, m);
          for (const auto& link : view->links)
            if (link)
              ask<link_status>(self, pending, link,
                               [at = i++](service_status& status, const auto& answer) {
                                 status.links[at] = answer;
                               });
        }
      }});
}

void ask_history(const std::shared_ptr<pending_answer<history>>& pending,
                 const recorder_actor& recorder, const console_actor& console) {
  pending->begin({}, 1);
  caf::anon_send(console, console_job{[=](console_self* self) {
                   self->request(recorder, caf::infinite, history_query{})
                       .then([pending](const history& known) {
                         pending->fill([&](history& into) { into = known; });
                       });
                 }});
}

}  // namespace ordermoe::actors
