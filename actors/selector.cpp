#include <fmt/format.h>

#include <utility>

#include "actors/server_actors.hpp"
#include "actors/trace_lines.hpp"

namespace ordermoe::actors {

namespace {

struct selector_state {
  std::shared_ptr<const server_view> view;
  std::vector<std::int64_t> wait_ns;  ///< As last reported by each server.
  std::uint64_t snapshot =
      0;  ///< Counts the load reports and tables taken in; names the snapshot with the server.
  activation_report seen;  ///< Where a monitor runs.
  std::uint32_t seen_rows = 0;

  void take_in(std::uint32_t id, std::int64_t time_ns) {
    const auto& run = *view->run;
    ++snapshot;
    if (snapshot == 1) {
      wait_ns.assign(run.servers.size(), 0);
      if (run.books->tracing()) run.books->trace(snapshot_line(id, snapshot, 0, wait_ns));
    } else if (run.books->tracing()) {
      run.books->trace(install_line(id, snapshot, *view->placed, time_ns));
    }
  }

  void answer(selector_actor::pointer self, select_query& query) {
    const auto& run = *view->run;
    decide_input input;
    input.layer = query.layer;
    input.server = view->id;
    input.access = query.access;
    input.n_experts = run.shape().n_experts;
    input.top_k = run.shape().top_k;
    input.gates = run.shape().gates;
    input.logits = query.logits;
    input.allowance = query.allowance;
    input.pool = query.pool;
    input.tokens_left = query.tokens_left;
    input.wait_ns = wait_ns;
    const auto& members = view->placed->plan.residence[query.access].layers;
    if (query.layer + 1 < members.size()) input.next_members = members[query.layer + 1];
    auto choice = decide(*view->placed->tables, input);
    std::array<std::int64_t, 4> kinds{};
    for (const auto& row : choice.rows)
      for (std::uint32_t j = 0; j < row.choice.n_slots; ++j)
        ++kinds[static_cast<std::size_t>(classify(view->id, row.targets[j], row.choice.slots[j]))];
    run.books->count(kinds);
    if (view->monitor) observe(self, query.layer, choice);
    if (run.books->tracing())
      run.books->trace(
          decision_line(query, view->id, snapshot, now_ns(self) - run.start_ns, choice));
    self->send(query.token, decided{std::move(choice), std::move(query.hidden),
                                    std::move(query.normed), std::move(query.allowance)});
  }

  /// Targets of the rows decided on, told to the monitor when they are many and with each load
  /// report of this server.
  void observe(selector_actor::pointer self, std::uint32_t layer, const chunk_decision& choice) {
    const auto& run = *view->run;
    const auto n_experts = run.shape().n_experts;
    seen.counts.resize(run.shape().n_layers * n_experts);
    seen.rows.resize(run.shape().n_layers);
    std::uint32_t rows = 0;
    for (const auto& row : choice.rows) {
      rows += row.targets.empty() ? 0 : 1;
      for (const auto target : row.targets) ++seen.counts[layer * n_experts + target];
    }
    seen.rows[layer] += rows;
    seen_rows += rows;
    if (seen_rows >= run.activation_report_rows) tell_monitor(self);
  }

  void tell_monitor(selector_actor::pointer self) {
    if (seen_rows == 0) return;
    self->send(view->monitor, std::exchange(seen, {}));
    seen_rows = 0;
  }
};

}  // namespace

selector_actor spawn_selector(caf::actor_system& system, std::uint32_t id) {
  return system.spawn(
      [id](selector_actor::stateful_pointer<selector_state> self) -> selector_actor::behavior_type {
        auto& state = self->state;
        return {
            [self, &state, id](attach_view& message) {
              state.view = std::move(message.view);
              state.take_in(id, now_ns(self) - state.view->run->start_ns);
            },
            [self, &state](select_batch& batch) {
              for (auto& query : batch.queries) state.answer(self, query);
            },
            [self, &state, id](load_report& report) {
              const auto& run = *state.view->run;
              state.wait_ns[report.server] = report.wait_ns;
              ++state.snapshot;
              if (report.server == id) state.tell_monitor(self);
              if (run.books->tracing())
                run.books->trace(
                    snapshot_line(id, state.snapshot, now_ns(self) - run.start_ns, state.wait_ns));
            },
        };
      });
}

}  // namespace ordermoe::actors
