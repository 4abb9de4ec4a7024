// What embedding costs: a node in this program's actor system against the same node in a process of its own.
//
// bench_embedding MODEL CLUSTER [strategy [requests [rounds [new tokens]]]]: two clusters of processes by the same file. In the second the
// first server's process ends, and the node starts from the same node.toml in an actor system of this program
// (api::start_in). In each round both answer the same requests, all asked of the first server at once, over a session; the
// second also without one (node::submit). Answers must be equal. Prints tokens/s and the ratio, and for both the
// processor time a token of all nodes and of this program together.

#include <fmt/format.h>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "bench/processes.hpp"
#include "bench/spread.hpp"
#include "ordermoe/actors.hpp"

namespace {

using namespace ordermoe;
using bench::take;

template <class T>
T take(api::result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "{}\n", value.problem().message);
  std::exit(1);
}

struct host_config : caf::actor_system_config {
  // As docs/EMBEDDING.md advises: naps of 50 us would be in tokens' times.
  host_config() { set("work-stealing.moderate-poll-attempts", 0); }
};

/// A node that runs here.
class guest {
 public:
  explicit guest(const std::string& config)
      : node_(take(api::start_in(host_, api::member_options{.config = config}))) {}
  ~guest() { static_cast<void>(node_.stop()); }
  guest(const guest&) = delete;
  guest& operator=(const guest&) = delete;

  bench::answers ask(const std::vector<actors::request_spec>& requests) {
    std::vector<std::promise<api::answer>> ends(requests.size());
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      const auto& wanted = requests[i];
      take(node_.submit({.ids = wanted.prompt, .max_tokens = wanted.max_new_tokens, .stream = i},
                        {{}, [&ends, i](const api::answer& told) { ends[i].set_value(told); }}));
    }
    bench::answers made;
    for (auto& each : ends) made.ids.push_back(each.get_future().get().ids);
    made.seconds = bench::seconds_since(begin);
    for (const auto& each : made.ids) made.tokens += each.size();
    return made;
  }

 private:
  host_config config_;
  caf::actor_system host_{config_};
  api::node node_;
};

/// What one way of asking gave, round by round.
struct way {
  std::vector<double> tokens_per_s, processor_us;
  std::vector<std::vector<std::int32_t>> ids;

  template <class Ask>
  void measure(bench::processes& nodes, const Ask& ask, bool counts) {
    const auto all_threads = [&] {
      auto all = nodes.threads();
      all += bench::threads_of(::getpid());
      return all;
    };
    const auto before = all_threads();
    const auto made = ask();
    const auto spent = all_threads() - before;
    ids = made.ids;
    if (!counts) return;
    tokens_per_s.push_back(static_cast<double>(made.tokens) / made.seconds);
    processor_us.push_back(spent.processor_us / static_cast<double>(made.tokens));
  }
};

std::vector<double> ratios(const way& of, const way& to) {
  std::vector<double> all;
  for (std::size_t i = 0; i < of.tokens_per_s.size(); ++i)
    all.push_back(of.tokens_per_s[i] / to.tokens_per_s[i]);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(
        stderr,
        "usage: bench_embedding MODEL CLUSTER [strategy [requests [rounds [new tokens]]]]\n");
    return 2;
  }
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
  };
  const std::string strategy = argc > 3 ? argv[3] : "layer-shards";
  // An embedded node ends where text ends, and so do both.
  const auto requests =
      bench::requests_of(*bench::world_of(argv[1]).tokens, static_cast<std::size_t>(number(4, 16)),
                         static_cast<std::uint32_t>(number(6, 128)), false);
  const int rounds = number(5, 21);
  bench::processes apart({argv[1], argv[2], strategy, "mixtral-8x7b", 7900});
  bench::processes around({argv[1], argv[2], strategy, "mixtral-8x7b", 7920});
  const auto config = around.end(0);
  guest embedded(config.string());
  around.connect_again(0);
  way process, in_host, unasked;
  for (int round = 0; round <= rounds; ++round) {
    const bool counts = round > 0;
    const auto first = [&] {
      process.measure(
          apart, [&] { return apart.ask(requests); }, counts);
    };
    const auto second = [&] {
      in_host.measure(
          around, [&] { return around.ask(requests); }, counts);
    };
    // Neither always comes after the other's work.
    if (round % 2 == 0) first();
    second();
    if (round % 2 == 1) first();
    unasked.measure(
        around, [&] { return embedded.ask(requests); }, counts);
    if (process.ids != in_host.ids || process.ids != unasked.ids) {
      fmt::print(stderr, "bench_embedding: answers differ\n");
      return 1;
    }
  }
  fmt::print("{}, {} requests at once, {} rounds: medians (quartiles)\n", strategy, requests.size(),
             rounds);
  bench::print("all nodes processes", process.tokens_per_s, "tokens/s");
  bench::print("the first embedded", in_host.tokens_per_s, "tokens/s");
  bench::print("ratio", ratios(in_host, process), "");
  bench::print("asked without a session", unasked.tokens_per_s, "tokens/s");
  bench::print("ratio, asked without a session", ratios(unasked, process), "");
  bench::print("all nodes processes, processor time", process.processor_us, "us a token");
  bench::print("the first embedded, processor time", in_host.processor_us, "us a token");
}
