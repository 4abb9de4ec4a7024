#include "embedding/host/gateway.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "config/threads.hpp"

namespace ordermoe::api {

namespace {

using status_actor = caf::typed_actor<caf::replies_to<ask_node_status>::with<node_status>>;

/// Waits for the status on a thread of its own, which the scheduler's must not.
status_actor::behavior_type tell_status(const std::shared_ptr<node_content>& node) {
  return {[node](ask_node_status) -> node_status {
    const auto told = without_exceptions([&] { return node->status(); });
    return told ? node_status{*told, std::nullopt} : node_status{{}, told.problem()};
  }};
}

struct gateway_state {
  struct submitted {
    std::uint64_t ref = 0;
    caf::actor_addr to;
  };

  inner_gateway_actor::pointer self = nullptr;
  std::shared_ptr<node_content> node;
  std::shared_ptr<actors::actor_census> census;
  std::map<std::uint64_t, submitted> requests;  ///< By the node's number.
  status_actor asker;

  /// Nobody is left who could ask for it.
  ~gateway_state() {
    for (const auto& [request, about] : requests) node->cancel(request);
    if (asker) caf::anon_send_exit(asker, caf::exit_reason::user_shutdown);
  }

  void submit(submit_prompt& message) {
    const auto ref = message.ref;
    const auto to = message.to;
    if (!to) return;
    const auto watched = std::ranges::any_of(
        requests, [&](const auto& each) { return each.second.to == to.address(); });
    const auto me = caf::actor_cast<inner_gateway_actor>(self);
    // Without the sender's thread: the receiver runs on its own system's, whoever tells it.
    const auto asked = without_exceptions([&] {
      return node->submit(message.wanted, {[ref, to](const token& told) {
                                             caf::anon_send(to, streamed_token{ref, told});
                                           },
                                           [ref, to, me](const answer& told) {
                                             caf::anon_send(to, ended_answer{ref, told});
                                             caf::anon_send(me, forget_prompt{told.request});
                                           }});
    });
    if (!asked) {
      answer refused;
      refused.finish = "failed";
      refused.why = asked.problem();
      return caf::anon_send(to, ended_answer{ref, std::move(refused)});
    }
    // Its end may have been told already; then forget_prompt is in the mailbox.
    requests[*asked] = {ref, to.address()};
    if (!watched) self->monitor(to);
  }

  void cancel(const cancel_prompt& message) {
    for (const auto& [request, about] : requests)
      if (about.ref == message.ref && about.to == message.to.address()) node->cancel(request);
  }

  void lose(const caf::actor_addr& receiver) {
    for (const auto& [request, about] : requests)
      if (about.to == receiver) node->cancel(request);
  }

  void forget(std::uint64_t request) {
    const auto found = requests.find(request);
    if (found == requests.end()) return;
    const auto to = found->second.to;
    requests.erase(found);
    if (std::ranges::none_of(requests, [&](const auto& each) { return each.second.to == to; }))
      self->demonitor(to);
  }

  /// Whether there is a thread for it is tried first: one that CAF 0.17 could not start counts for its system, which never ends then.
  result<void> begin_asking() {
    if (asker) return {};
    if (!check_threads(1))
      return problem{problem_code::failed,
                     "the system gives no thread to wait for the status on; raise its limits"};
    asker = self->spawn<caf::detached>(
        [node = node](status_actor::pointer) { return tell_status(node); });
    actors::actor_census::count(census, asker);
    return {};
  }

  caf::result<node_status> tell(ask_node_status question) {
    if (auto begun = without_exceptions([this] { return begin_asking(); }); !begun)
      return node_status{{}, begun.problem()};
    return self->delegate(asker, question);
  }
};

}  // namespace

inner_gateway_actor spawn_gateway(caf::actor_system& host, std::shared_ptr<node_content> node,
                                  std::shared_ptr<actors::actor_census> census) {
  const actors::spawning_scope scope;
  const auto gateway = host.spawn(
      [node = std::move(node), census](inner_gateway_actor::stateful_pointer<gateway_state> self)
          -> inner_gateway_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.node = node;
        state.census = census;
        self->set_down_handler([&state](const caf::down_msg& down) { state.lose(down.source); });
        return {
            [&state](submit_prompt& message) { state.submit(message); },
            [&state](const cancel_prompt& message) { state.cancel(message); },
            [&state](ask_node_status question) { return state.tell(question); },
            [&state](forget_prompt message) { state.forget(message.request); },
        };
      });
  actors::actor_census::count(census, gateway);
  return gateway;
}

}  // namespace ordermoe::api
