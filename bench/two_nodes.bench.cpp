// What a second node costs where it brings nothing: two nodes with one thread each against one node with one.
//
// bench_two_nodes MODEL [rounds [new tokens]]: a cluster of one server that holds the whole model, and one of two servers with
// memory for half of the layers each (`layer-shards`), so that every token crosses to the other node and back. In each round
// both answer the same single request, in turn; answers must be equal. Prints the time a token of both, their ratio, and the
// frames a token.

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "bench/processes.hpp"
#include "bench/spread.hpp"
#include "config/cluster.hpp"
#include "config/files.hpp"
#include "setup/world.hpp"

namespace {

using namespace ordermoe;
using bench::take;
namespace fs = std::filesystem;

/// Equal servers of which each has room for that many layers' experts.
cluster equal_servers(std::size_t n, std::size_t layers_each, const setup::world& of) {
  const auto& shape = of.model->config();
  constexpr std::int64_t kv_bytes = 64'000'000;
  cluster made;
  made.name = fmt::format("equal{}", n);
  for (std::size_t i = 0; i < n; ++i) {
    server_spec server;
    server.name = fmt::format("s{}", i);
    server.flops_per_s = 1e11;
    server.memory_bandwidth_bytes_per_s = 1e10;
    server.kv_bytes = kv_bytes;
    server.memory_bytes =
        kv_bytes + of.costs.resident_bytes(shape.n_layers) +
        static_cast<std::int64_t>(layers_each * shape.n_experts) * of.costs.expert_bytes;
    server.arrival_share = i == 0 ? 1 : 0;
    made.servers.push_back(std::move(server));
  }
  made.links.resize(n * n);
  for (std::size_t i = 0; i < n * n; ++i)
    if (i / n != i % n) made.links[i] = {1.25e9, 20'000};
  return made;
}

/// Processes of a cluster file that is written for them.
struct nodes {
  nodes(const std::string& model, const cluster& servers, int port)
      : file(fs::temp_directory_path() / fmt::format("ordermoe-two-nodes-{}.toml", port)) {
    if (auto written = write_file(file, cluster_toml(servers)); !written)
      take<int>(written.error());
    running = std::make_unique<bench::processes>(
        bench::processes_options{model, file.string(), "layer-shards", "measured", port});
  }
  ~nodes() { fs::remove(file); }

  fs::path file;
  std::unique_ptr<bench::processes> running;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    fmt::print(stderr, "usage: bench_two_nodes MODEL [rounds [new tokens]]\n");
    return 2;
  }
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
  };
  const int rounds = number(2, 9);
  const auto world = bench::world_of(argv[1]);
  const auto n_layers = world.model->config().n_layers;
  const auto requests =
      bench::requests_of(*world.tokens, 1, static_cast<std::uint32_t>(number(3, 128)), true);
  nodes one(argv[1], equal_servers(1, n_layers, world), 7900);
  nodes two(argv[1], equal_servers(2, (n_layers + 1) / 2, world), 7910);
  std::vector<double> by_one, by_two, ratio, frames;
  bench::costs_of_tokens costs_of_one, costs_of_two;
  for (int round = 0; round <= rounds; ++round) {
    const auto tokens = static_cast<double>(requests[0].max_new_tokens);
    const auto threads_of_one = one.running->threads();
    const auto work_of_one = one.running->work();
    const auto alone = one.running->ask(requests);
    const auto one_threads = one.running->threads() - threads_of_one;
    const auto one_work = one.running->work() - work_of_one;
    const auto threads_of_two = two.running->threads();
    const auto work_of_two = two.running->work();
    const auto together = two.running->ask(requests);
    const auto two_threads = two.running->threads() - threads_of_two;
    const auto two_work = two.running->work() - work_of_two;
    if (alone.ids != together.ids || alone.tokens == 0) {
      fmt::print(stderr, "bench_two_nodes: answers differ\n");
      return 1;
    }
    if (round == 0) continue;
    by_one.push_back(1e6 * alone.seconds / static_cast<double>(alone.tokens));
    by_two.push_back(1e6 * together.seconds / static_cast<double>(together.tokens));
    ratio.push_back(by_two.back() / by_one.back());
    frames.push_back(two_work.frames / tokens);
    costs_of_one.add(one_threads, one_work, tokens);
    costs_of_two.add(two_threads, two_work, tokens);
  }
  fmt::print("{}: {} layers, one request of {} tokens, {} rounds: medians (quartiles)\n", argv[1],
             n_layers, requests[0].max_new_tokens, rounds);
  bench::print("one node of one thread", by_one, "us a token");
  bench::print("two nodes of one thread each", by_two, "us a token");
  bench::print("ratio", ratio, "");
  bench::print("two nodes, frames a token", frames, "");
  costs_of_one.print("one node");
  costs_of_two.print("two nodes");
}
