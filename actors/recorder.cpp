#include <deque>
#include <utility>

#include "actors/server_actors.hpp"

namespace ordermoe::actors {

namespace {

struct recorder_state {
  static constexpr std::size_t most_problems = 256, most_changes = 4096;

  std::deque<problem> problems;
  std::deque<plan_change> plan_changes;
  std::deque<policy_change> policy_changes;

  template <class Event>
  static void keep(std::deque<Event>& kept, Event&& event, std::size_t most) {
    if (kept.size() == most) kept.pop_front();
    kept.push_back(std::move(event));
  }

  history tell() const {
    return {{problems.begin(), problems.end()},
            {plan_changes.begin(), plan_changes.end()},
            {policy_changes.begin(), policy_changes.end()}};
  }
};

}  // namespace

const char* to_string(problem::scope scope) {
  switch (scope) {
    case problem::scope::request:
      return "request";
    case problem::scope::peer:
      return "peer";
    case problem::scope::server:
      return "server";
    case problem::scope::service:
      return "service";
  }
  return "unknown";
}

recorder_actor spawn_recorder(caf::actor_system& system) {
  return system.spawn(
      [](recorder_actor::stateful_pointer<recorder_state> self) -> recorder_actor::behavior_type {
        auto& state = self->state;
        return {
            [&state](problem& found) {
              recorder_state::keep(state.problems, std::move(found), recorder_state::most_problems);
            },
            [&state](plan_change& change) {
              recorder_state::keep(state.plan_changes, std::move(change),
                                   recorder_state::most_changes);
            },
            [&state](policy_change& change) {
              recorder_state::keep(state.policy_changes, std::move(change),
                                   recorder_state::most_changes);
            },
            [&state](history_query) { return state.tell(); },
        };
      });
}

}  // namespace ordermoe::actors
