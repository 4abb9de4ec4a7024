// Starts all servers of a cluster in this process, asks one prompt, prints the answer.
//
//   minimal MODEL CLUSTER.toml

#include <ordermoe/node.hpp>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: minimal MODEL CLUSTER.toml\n");
    return 2;
  }
  // local-only is planned in a moment; left out, the planner searches for the fastest exact plan, which takes longer.
  auto node =
      ordermoe::api::node::start({.model = argv[1], .cluster = argv[2], .strategy = "local-only"});
  if (!node) {
    std::fprintf(stderr, "minimal: %s\n", node.problem().message.c_str());
    return 1;
  }
  const auto answer = node->ask({.text = "Q: 75 * 5\nA:", .max_tokens = 48});
  if (!answer) {
    std::fprintf(stderr, "minimal: %s\n", answer.problem().message.c_str());
    return 1;
  }
  std::printf("%s\n", answer->text.c_str());
  return 0;
}
