// Connects to a cluster that runs (`ordermoe cluster up`), asks every prompt that the command line has, prints the answers.
//
//   cluster_client HOST:PORT FOLDER PROMPT...

#include <ordermoe/node.hpp>

#include <cstdio>
#include <future>
#include <vector>

namespace api = ordermoe::api;

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: cluster_client HOST:PORT FOLDER PROMPT...\n");
    return 2;
  }
  // The folder's certificates say who the nodes are, and to them who this is.
  auto node = api::node::connect({.address = argv[1], .folder = argv[2]});
  if (!node) {
    std::fprintf(stderr, "cluster_client: %s\n", node.problem().message.c_str());
    return 1;
  }
  std::vector<std::promise<api::answer>> answers(static_cast<std::size_t>(argc - 3));
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto asked =
        node->submit({.text = argv[i + 3], .max_tokens = 48},
                     {{}, [&, i](const api::answer& told) { answers[i].set_value(told); }});
    if (!asked) {
      std::fprintf(stderr, "cluster_client: %s\n", asked.problem().message.c_str());
      return 1;
    }
  }
  int failed = 0;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto told = answers[i].get_future().get();
    // Also where the node goes away meanwhile: every answer ends.
    if (told.why) std::fprintf(stderr, "cluster_client: %s\n", told.why->message.c_str());
    failed += told.why ? 1 : 0;
    std::printf("%s%s\n", argv[i + 3], told.text.c_str());
  }
  return failed == 0 ? 0 : 1;
}
