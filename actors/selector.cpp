#include <utility>

#include "actors/server_actors.hpp"
#include "planning/serving/load_board.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

struct selector_state {
  selector_actor::pointer self = nullptr;
  std::uint32_t id = 0;
  std::shared_ptr<const server_view> view;
  load_board loads;
  /// Counts the load reports and tables taken in; names the snapshot with the server.
  std::uint64_t snapshot = 0;
  execution_counts executions{};
  activation_report seen;  ///< Where a monitor runs.
  std::uint32_t seen_rows = 0;

  const service_context& context() const { return *view->context; }

  void take_in(std::shared_ptr<const server_view> next) {
    const auto before = std::exchange(view, std::move(next));
    const auto& placed = *view->placed;
    if (snapshot == 0) loads = load_board(context().n_servers());
    loads.price_by(placed.tables->link_ns());
    if (snapshot == 0) {
      ++snapshot;
      return trace(trace::first_snapshot_line(id, view->time_ns(self)));
    }
    const auto& old = *before->placed;
    if (placed.plan.epoch != old.plan.epoch || placed.policy != old.policy)
      trace(trace::install_line(id, ++snapshot, {placed.plan.epoch, placed.policy},
                                view->time_ns(self)));
    if (placed.links != old.links)
      trace(trace::links_line(id, ++snapshot, *placed.links, view->time_ns(self)));
  }

  void trace(std::string line) const { view->trace(std::move(line)); }

  void take_in(const wire::load_report& report) {
    // Before the first plan there is nothing to decide by.
    if (!view || !loads.take(report)) return;
    ++snapshot;
    if (report.server == id) tell_monitor();
    if (view->tracing())
      view->trace(trace::snapshot_line(id, snapshot, view->time_ns(self), report));
  }

  void answer(select_query& query) {
    const auto& shape = context().shape();
    decide_input input;
    input.layer = query.layer;
    input.server = id;
    input.access = query.access;
    input.n_experts = shape.n_experts;
    input.top_k = shape.top_k;
    input.gates = shape.gates;
    input.logits = query.logits;
    input.allowance = query.allowance;
    input.pool = query.pool;
    input.tokens_left = query.tokens_left;
    input.wait_ns = loads.wait_ns();
    input.link_ns = loads.link_ns();
    const auto& members = view->placed->plan.residence[query.access].layers;
    if (query.layer + 1 < members.size()) input.next_members = members[query.layer + 1];
    auto choice = decide(*view->placed->tables, input);
    for (const auto& row : choice.rows)
      for (std::uint32_t j = 0; j < row.choice.n_slots; ++j)
        ++executions[static_cast<std::size_t>(classify(id, row.targets[j], row.choice.slots[j]))];
    if (view->monitor) observe(query.layer, choice);
    if (view->tracing())
      view->trace(trace::decision_line(
          {query.key, query.access, query.layer, query.logits, query.allowance, query.pool}, id,
          snapshot, view->time_ns(self), choice));
    self->send(query.token, decided{std::move(choice), std::move(query.hidden),
                                    std::move(query.normed), std::move(query.allowance)});
  }

  /// Targets of the rows decided on, told to the monitor when they are many and with each load
  /// report of this server.
  void observe(std::uint32_t layer, const chunk_decision& choice) {
    const auto& shape = context().shape();
    seen.counts.resize(shape.n_layers * shape.n_experts);
    seen.rows.resize(shape.n_layers);
    std::uint32_t rows = 0;
    for (const auto& row : choice.rows) {
      rows += row.targets.empty() ? 0 : 1;
      for (const auto target : row.targets) ++seen.counts[layer * shape.n_experts + target];
    }
    seen.rows[layer] += rows;
    seen_rows += rows;
    if (seen_rows >= context().activation_report_rows) tell_monitor();
  }

  void tell_monitor() {
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
        state.self = self;
        state.id = id;
        return {
            // CAF tries one after the other, so the most frequent come first.
            [&state](select_batch& batch) {
              for (auto& query : batch.queries) state.answer(query);
            },
            [&state](const wire::load_report& report) { state.take_in(report); },
            [&state](attach_view& message) { state.take_in(std::move(message.view)); },
            [&state](status_query) {
              return selector_status{state.executions, state.snapshot};
            },
        };
      });
}

}  // namespace ordermoe::actors
