// Two answers token by token as they come; the second is cancelled after six.
//
//   streaming MODEL CLUSTER.toml

#include <ordermoe/node.hpp>

#include <cstdio>
#include <future>

namespace api = ordermoe::api;

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: streaming MODEL CLUSTER.toml\n");
    return 2;
  }
  auto started = api::node::start({.model = argv[1], .cluster = argv[2], .strategy = "local-only"});
  if (!started) {
    std::fprintf(stderr, "streaming: %s\n", started.problem().message.c_str());
    return 1;
  }
  api::node node = std::move(*started);

  // Callbacks come on threads that serve: they hand over what matters and return.
  std::promise<api::answer> whole, part;
  const auto show = [](const api::token& token) {
    std::printf("[%llu] %s\n", static_cast<unsigned long long>(token.request), token.text.c_str());
  };
  const auto first = node.submit({.text = "In early spring", .max_tokens = 12},
                                 {show, [&](const api::answer& told) { whole.set_value(told); }});
  if (!first) {
    std::fprintf(stderr, "streaming: %s\n", first.problem().message.c_str());
    return 1;
  }
  const auto second = node.submit({.text = "Fedon is known", .max_tokens = 400},
                                  {[&](const api::token& token) {
                                     show(token);
                                     // From a callback one may submit and cancel, and nothing that waits.
                                     if (token.index == 5) node.cancel(token.request);
                                   },
                                   [&](const api::answer& told) { part.set_value(told); }});
  if (!second) {
    std::fprintf(stderr, "streaming: %s\n", second.problem().message.c_str());
    return 1;
  }
  for (auto* each : {&whole, &part}) {
    const auto told = each->get_future().get();
    std::printf("request %llu: %zu tokens, %s, first after %.1f ms\n",
                static_cast<unsigned long long>(told.request), told.ids.size(), told.finish.c_str(),
                static_cast<double>(told.first_token.count()) * 1e-6);
    if (told.why) std::fprintf(stderr, "streaming: %s\n", told.why->message.c_str());
  }
  if (const auto status = node.status()) std::printf("%s\n", status->c_str());
  if (const auto stopped = node.stop(); !stopped) return 1;
  return 0;
}
