// What it takes to ask a cluster how all its nodes do (`status` of the admin console).
//
// bench_status MODEL CLUSTER [rounds]: `ordermoe cluster up` starts a process for each server. Measured are the time of one
// answer over a session that is there, while nothing is served and while requests are, and of a whole `ordermoe admin
// status`, process and certificates included; the processor time that an answer takes of all nodes and of who asks; and
// tokens/s with and without a question every 100 ms, in rounds that take turns.

#include <algorithm>
#include <functional>
#include <thread>

#include "bench/processes.hpp"

namespace {

using namespace ordermoe;
using namespace ordermoe::bench;
using clock = std::chrono::steady_clock;

/// Milliseconds of one answer, from all nodes.
double ask_ms(const processes& cluster) {
  const auto& clients = cluster.clients();
  const auto begin = clock::now();
  const auto reply = take(clients[0]->order("status", "{}", false, std::chrono::seconds(5)));
  const auto ms = 1e3 * seconds_since(begin);
  if (nlohmann::json::parse(reply).at("result").at("answering") == clients.size()) return ms;
  fmt::print(stderr, "bench_status: not every node answered\n");
  std::exit(1);
}

/// tokens/s of requests at all nodes at once; `beside` is called until they have ended.
double serve(const processes& cluster, const std::function<void()>& beside) {
  const auto& clients = cluster.clients();
  std::atomic<std::size_t> tokens = 0;
  const auto begin = clock::now();
  for (std::size_t i = 0; i < 2 * clients.size(); ++i) {
    actors::remote_request wanted;
    for (int k = 0; k < 16; ++k)
      wanted.spec.prompt.push_back(100 + static_cast<std::int32_t>(i) + 7 * k);
    wanted.spec.max_new_tokens = 128;
    wanted.spec.ignore_end_of_text = true;
    clients[i % clients.size()]->submit(
        std::move(wanted), {{}, [&](const auto& outcome) { tokens += outcome.token_ids.size(); }});
  }
  for (const auto& client : clients)
    while (client->outstanding() > 0) {
      beside();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  return static_cast<double>(tokens) / seconds_since(begin);
}

void print_most(const std::string& what, const std::vector<double>& values) {
  print(what, values, fmt::format("ms, most {:.1f}", *std::ranges::max_element(values)).c_str());
}

/// Processor time of a question, beyond what the nodes take without any.
double processor_ms_of_one(const processes& cluster) {
  constexpr int n = 400;
  const auto begin = clock::now();
  const auto before = cluster.processor_s();
  for (int i = 0; i < n; ++i) ask_ms(cluster);
  const auto asked_s = cluster.processor_s() - before;
  const auto passed_s = seconds_since(begin);
  const auto rested = cluster.processor_s();
  std::this_thread::sleep_for(std::chrono::duration<double>(4 * passed_s));
  const auto idle_s = (cluster.processor_s() - rested) / 4;
  return 1e3 * (asked_s - idle_s) / n;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: bench_status MODEL CLUSTER [rounds]\n");
    return 2;
  }
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 9;
  const processes cluster({.model = argv[1], .cluster = argv[2], .strategy = "layer-shards"});
  std::vector<double> idle, loaded, whole, alone, asked, ratio;
  for (int i = 0; i < 200; ++i) idle.push_back(ask_ms(cluster));
  const auto processor_ms = processor_ms_of_one(cluster);
  for (int i = 0; i < rounds; ++i) {
    const auto begin = clock::now();
    processes::run(fmt::format("admin --dir {} status > /dev/null", cluster.folder().string()));
    whole.push_back(1e3 * seconds_since(begin));
  }
  serve(cluster, [] {});
  for (int round = 0; round < rounds; ++round) {
    alone.push_back(serve(cluster, [] {}));
    auto next = clock::now();
    asked.push_back(serve(cluster, [&] {
      if (clock::now() < next) return;
      next = clock::now() + std::chrono::milliseconds(100);
      loaded.push_back(ask_ms(cluster));
    }));
    ratio.push_back(asked.back() / alone.back());
  }
  fmt::print("status of {} nodes on {} processors, {} rounds: medians (quartiles)\n",
             cluster.clients().size(), std::thread::hardware_concurrency(), rounds);
  print_most("an answer, nothing served", idle);
  print_most("an answer under load", loaded);
  print_most("`ordermoe admin status`", whole);
  fmt::print("{:<52}{:>9.3f} ms; every 100 ms: {:.3f} % of the machine\n",
             "processor time of an answer, all processes", processor_ms,
             processor_ms / std::thread::hardware_concurrency());
  print("tokens/s without questions", alone, "");
  print("tokens/s, asked every 100 ms", asked, "");
  print("ratio", ratio, "");
}
