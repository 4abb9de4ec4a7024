#include "actors/service/client_bridge.hpp"

#include <exception>
#include <unordered_map>
#include <utility>

namespace ordermoe::actors {

namespace {

struct bridge_state {
  std::shared_ptr<answer_book> book;
  std::unordered_map<std::uint64_t, answer_sink> sinks;

  void expect(expected_answer& message) { sinks.emplace(message.request, std::move(message.sink)); }

  void take(const answer_token& token) {
    book->count_token();
    const auto found = sinks.find(token.request);
    if (found == sinks.end() || !found->second.on_token) return;
    try {
      found->second.on_token(token);
    } catch (const std::exception&) {
    }
  }

  void take(const answer_end& end) {
    const auto found = sinks.find(end.outcome->request);
    if (found == sinks.end()) return;
    const auto sink = std::move(found->second);
    sinks.erase(found);
    try {
      if (sink.on_end) sink.on_end(*end.outcome);
    } catch (const std::exception&) {
    }
    book->end();
  }
};

}  // namespace

client_bridge_actor spawn_client_bridge(caf::actor_system& system,
                                        std::shared_ptr<answer_book> book) {
  return system.spawn(
      [book = std::move(book)](client_bridge_actor::stateful_pointer<bridge_state> self) mutable
      -> client_bridge_actor::behavior_type {
        auto& state = self->state;
        state.book = std::move(book);
        return {
            [&state](const answer_token& token) { state.take(token); },
            [&state](const answer_end& end) { state.take(end); },
            [&state](expected_answer& message) { state.expect(message); },
        };
      });
}

}  // namespace ordermoe::actors
