#include <fmt/format.h>

#include "actors/server_actors.hpp"
#include "actors/trace_lines.hpp"

namespace ordermoe::actors {

namespace {

struct selector_state {
  std::shared_ptr<const server_view> view;
  std::vector<std::int64_t> wait_ns;  ///< As last reported by each server.
  std::uint64_t snapshot =
      0;  ///< Counts the load reports taken in; names the snapshot with the server.
};

}  // namespace

selector_actor spawn_selector(caf::actor_system& system, std::uint32_t id) {
  return system.spawn(
      [id](selector_actor::stateful_pointer<selector_state> self) -> selector_actor::behavior_type {
        auto& state = self->state;
        return {
            [&state, id](attach_view& message) {
              state.view = std::move(message.view);
              state.wait_ns.assign(state.view->run->servers.size(), 0);
              ++state.snapshot;
              if (state.view->run->books->tracing())
                state.view->run->books->trace(snapshot_line(id, state.snapshot, 0, state.wait_ns));
            },
            [self, &state](select_query& query) {
              const auto& view = *state.view;
              const auto& run = *view.run;
              decide_input input;
              input.layer = query.layer;
              input.server = view.id;
              input.access = query.access;
              input.n_experts = run.shape().n_experts;
              input.top_k = run.shape().top_k;
              input.logits = query.logits;
              input.allowance = query.allowance;
              input.pool = query.pool;
              input.tokens_left = query.tokens_left;
              input.wait_ns = state.wait_ns;
              auto choice = decide(*view.placed->tables, input);
              std::array<std::int64_t, 4> kinds{};
              for (const auto& row : choice.rows)
                for (std::uint32_t j = 0; j < row.choice.n_slots; ++j)
                  ++kinds[static_cast<std::size_t>(
                      classify(view.id, row.targets[j], row.choice.slots[j]))];
              run.books->count(kinds);
              if (run.books->tracing())
                run.books->trace(decision_line(query, view.id, state.snapshot,
                                               now_ns(self) - run.start_ns, choice));
              self->send(query.token, decided{std::move(choice)});
            },
            [self, &state, id](load_report& report) {
              const auto& run = *state.view->run;
              state.wait_ns[report.server] = report.wait_ns;
              ++state.snapshot;
              if (run.books->tracing())
                run.books->trace(
                    snapshot_line(id, state.snapshot, now_ns(self) - run.start_ns, state.wait_ns));
            },
        };
      });
}

}  // namespace ordermoe::actors
