// A program with an actor system of its own: OrderMoE's servers run in it, and eight of its actors ask them at once.
//
//   host_actors MODEL CLUSTER.toml

#include <ordermoe/actors.hpp>

#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/stateful_actor.hpp>

#include <cstdio>
#include <string>

namespace api = ordermoe::api;

namespace {

struct reader_state {
  std::size_t n_tokens = 0;
};

/// Asks one prompt, counts tokens as they come, and tells its parent how the answer ended.
caf::behavior reader(caf::stateful_actor<reader_state>* self, api::gateway_actor gateway,
                     caf::actor parent, std::string text) {
  self->send(gateway, api::submit_prompt{1,
                                         {.text = std::move(text), .max_tokens = 16},
                                         caf::actor_cast<api::answer_receiver>(self)});
  return {
      [=](const api::streamed_token&) { ++self->state.n_tokens; },
      [=](const api::ended_answer& told) {
        const auto& answer = told.content;
        self->send(parent, std::string(answer.why ? answer.why->message : answer.finish) + ", " +
                               std::to_string(self->state.n_tokens) + " tokens:" + answer.text);
        self->quit();
      },
  };
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: host_actors MODEL CLUSTER.toml\n");
    return 2;
  }
  caf::actor_system_config config;
  config.set("work-stealing.moderate-poll-attempts",
             0);  // Naps of 50 us would be in tokens' times.
  caf::actor_system host(config);

  auto node = api::start_in(
      host, api::cluster_options{.model = argv[1], .cluster = argv[2], .strategy = "local-only"});
  if (!node) {
    std::fprintf(stderr, "host_actors: %s\n", node.problem().message.c_str());
    return 1;
  }
  const auto gateway = api::open_gateway(host, *node);
  if (!gateway) {
    std::fprintf(stderr, "host_actors: %s\n", gateway.problem().message.c_str());
    return 1;
  }
  {
    caf::scoped_actor self{host};
    constexpr int n = 8;
    for (int i = 0; i < n; ++i)
      host.spawn(reader, *gateway, caf::actor_cast<caf::actor>(self.ptr()),
                 "Q: " + std::to_string(12 + i) + " * 3\nA:");
    for (int i = 0; i < n; ++i)
      self->receive([](const std::string& told) { std::printf("%s\n", told.c_str()); });
    self->request(*gateway, caf::infinite, api::ask_node_status{})
        .receive([](const api::node_status& told) { std::printf("%s\n", told.json.c_str()); },
                 [](const caf::error&) { std::printf("no status\n"); });
  }
  // Before the system ends, and not on a thread of its scheduler.
  const auto stopped = node->stop();
  std::printf("%zu actors are left\n", host.registry().running());
  return stopped ? 0 : 1;
}
