#include "actors/planner.hpp"

namespace ordermoe::actors {

namespace {

struct planner_state {
  std::shared_ptr<const run_context> run;
  planner_work work;
  std::uint64_t epoch = 0;
};

}  // namespace

planner_actor spawn_planner(caf::actor_system& system, std::shared_ptr<const run_context> run,
                            planner_work work) {
  return system.spawn([run = std::move(run), work = std::move(work)](
                          planner_actor::stateful_pointer<planner_state> self) mutable
                      -> planner_actor::behavior_type {
    auto& state = self->state;
    state.run = std::move(run);
    state.work = std::move(work);
    return {[self, &state](push_plan) {
      auto placed = state.work.chosen.plan;
      placed.epoch = ++state.epoch;
      auto tables = planning::selection_tables::build(state.work.experts, placed, state.run->prices,
                                                      state.work.chosen.policy,
                                                      state.work.chosen.token_budget);
      if (!tables) return state.run->books->fail(tables.error());
      const planning::placement_index index(placed);
      const auto content = std::make_shared<const deployment>(
          deployment{std::move(placed), index, std::move(*tables)});
      const auto fail = [books = state.run->books](const caf::error&) {
        books->fail({errc::timed_out, "a server did not confirm its plan within 30 s"});
      };
      for (const auto& server : state.work.servers)
        self->request(server, std::chrono::seconds(30), install_plan{content})
            .then([ready = state.work.servers_ready](caf::ok_atom) { ++*ready; }, fail);
    }};
  });
}

}  // namespace ordermoe::actors
