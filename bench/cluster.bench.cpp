// A cluster of processes against local mode: the same plan, requests and threads.
//
// bench_cluster MODEL CLUSTER STRATEGY [rounds [requests [new tokens [costs]]]]: `ordermoe cluster up` starts a process for each server; in each
// round the requests (16 of 128 new tokens, given as ids to the servers that local mode would give them to) are answered
// by the processes and by local mode, in turn, all at once; then one alone. Answers must be equal.
// The same is asked with every token told as it comes, where the processes send them one by one.
// Prints tokens/s, their ratio, the frames a token that the plan sends, for one stream the time a token beside the
// round trips of its frames, for both ways what a token takes of processors, threads, devices and connections, and what
// nodes take afterwards, when nobody asks, for ten seconds.

#include <fmt/format.h>

#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "actors/service/runtime.hpp"
#include "bench/processes.hpp"
#include "bench/spread.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;
using bench::take;

actors::run_setup local_setup(const std::string& model, const std::string& cluster,
                              const fs::path& plan, const std::string& costs, job& work) {
  setup::world_options options;
  options.costs = costs;
  options.model = model;
  options.cluster = cluster;
  auto world = take(setup::load_world(options, work));
  const auto file = take(setup::read_plan_file(plan));
  setup::preparation_request request;
  request.strategy = file.origin.strategy;
  request.options.quality_percent = file.origin.quality_percent;
  request = take(setup::request_with(file, std::move(request)));
  actors::run_setup made;
  static_cast<actors::service_options&>(made) = take(setup::prepare(world, request, work)).service;
  made.mode = actors::run_mode::local;
  made.threads_per_server = 1;
  return made;
}

/// The same by local mode, in a service that lives as long.
class local_mode {
 public:
  explicit local_mode(actors::service_options options)
      : service_(take(actors::service::start(std::move(options)))) {}
  bench::answers ask(const std::vector<actors::request_spec>& requests, bool as_they_come = false) {
    bench::answers made;
    made.ids.resize(requests.size());
    std::atomic<std::size_t> told = 0;
    actors::answer_sink listening;
    if (as_they_come) listening.on_token = [&told](const auto&) { ++told; };
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto spec = requests[i];
      spec.sampling_stream = i;
      auto sink = listening;
      sink.on_end = [&made, i](const auto& outcome) { made.ids[i] = outcome.token_ids; };
      service_->submit(std::move(spec), std::move(sink));
    }
    service_->run_until([&] { return service_->outstanding() == 0; });
    made.seconds = bench::seconds_since(begin);
    for (const auto& each : made.ids) made.tokens += each.size();
    made.told = told;
    return made;
  }

  bench::work_counts work() {
    bench::work_counts all;
    for (const auto& server : take(service_->status()).servers) {
      all.batches += static_cast<double>(server.ledger.batches);
      all.rows += static_cast<double>(server.ledger.rows);
    }
    return all;
  }

 private:
  std::unique_ptr<actors::service> service_;
};

/// What answers take, by token.
class meter {
 public:
  using threads = std::function<bench::thread_counts()>;
  using work = std::function<bench::work_counts()>;
  meter(threads of_threads, work of_work) : threads_(of_threads), work_(of_work) {}

  bench::answers measure(const std::function<bench::answers()>& ask, bool counts) {
    const auto work = work_();
    const auto own = bench::threads_of(::getpid());
    const auto threads = threads_();
    auto made = ask();
    const auto threads_after = threads_();
    const auto own_after = bench::threads_of(::getpid());
    last_ = work_() - work;
    const auto n = static_cast<double>(made.tokens);
    if (!counts) return made;
    costs_.add(threads_after - threads, last_, n);
    asking_us_.push_back((own_after - own).processor_us / n);
    frames_.push_back(last_.frames / n);
    return made;
  }
  const bench::costs_of_tokens& costs() const { return costs_; }
  /// Of this process.
  const std::vector<double>& asking_us() const { return asking_us_; }
  const std::vector<double>& frames() const { return frames_; }

 private:
  threads threads_;
  work work_;
  bench::work_counts last_;
  bench::costs_of_tokens costs_;
  std::vector<double> asking_us_, frames_;
};

/// When nobody asks: processor time, and memory besides weights.
void print_idle(const bench::processes& cluster) {
  constexpr double seconds = 10;
  const auto before = cluster.usages();
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  const auto after = cluster.usages();
  std::vector<double> percent, memory;
  for (std::size_t i = 0; i < after.size(); ++i) {
    percent.push_back(100 * (after[i].processor_s - before[i].processor_s) / seconds);
    memory.push_back(after[i].resident_mib - after[i].weights_mib);
  }
  bench::print("idle node", percent, "% of a core");
  bench::print("memory of a node besides weights", memory, "MiB");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(
        stderr,
        "usage: bench_cluster MODEL CLUSTER STRATEGY [rounds [requests [new tokens [costs]]]]\n");
    return 2;
  }
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::max(1, std::atoi(argv[at])) : otherwise;
  };
  const int rounds = number(4, 9);
  const std::string costs = argc > 7 ? argv[7] : "mixtral-8x7b";
  bench::processes cluster({argv[1], argv[2], argv[3], costs});
  job work;
  const auto setup = local_setup(argv[1], argv[2], cluster.plan(), costs, work);
  auto requests = bench::requests_of(*setup.tokens, static_cast<std::size_t>(number(5, 16)),
                                     static_cast<std::uint32_t>(number(6, 128)), true);
  actors::draw_arrivals(requests, setup.servers, 0, 1);
  const std::vector<actors::request_spec> alone(requests.begin(), requests.begin() + 1);
  local_mode local(setup);
  std::vector<double> by_cluster, by_local, ratio, by_cluster_streamed, by_local_streamed,
      ratio_streamed, one_cluster, one_local, round_trip;
  const auto of_nodes = [&] { return cluster.threads(); };
  const auto of_this = [] { return bench::threads_of(::getpid()); };
  const auto work_of_nodes = [&] { return cluster.work(); };
  const auto work_here = [&] { return local.work(); };
  meter many(of_nodes, work_of_nodes), many_here(of_this, work_here);
  meter single(of_nodes, work_of_nodes), single_here(of_this, work_here);
  for (int round = 0; round <= rounds; ++round) {
    const bool counts = round > 0;
    const auto theirs = many.measure([&] { return cluster.ask(requests); }, counts);
    const auto ours = many_here.measure([&] { return local.ask(requests); }, counts);
    const auto streamed = cluster.ask(requests, true), streamed_here = local.ask(requests, true);
    const auto one = single.measure([&] { return cluster.ask(alone); }, counts);
    const auto one_here = single_here.measure([&] { return local.ask(alone); }, counts);
    if (theirs.ids != ours.ids || one.ids != one_here.ids || streamed.ids != ours.ids ||
        streamed.told != streamed.tokens || streamed_here.told != streamed_here.tokens) {
      fmt::print(stderr, "bench_cluster: answers differ\n");
      return 1;
    }
    if (!counts) continue;
    by_cluster.push_back(static_cast<double>(theirs.tokens) / theirs.seconds);
    by_local.push_back(static_cast<double>(ours.tokens) / ours.seconds);
    ratio.push_back(by_cluster.back() / by_local.back());
    by_cluster_streamed.push_back(static_cast<double>(streamed.tokens) / streamed.seconds);
    by_local_streamed.push_back(static_cast<double>(streamed_here.tokens) / streamed_here.seconds);
    ratio_streamed.push_back(by_cluster_streamed.back() / by_local_streamed.back());
    one_cluster.push_back(1e6 * one.seconds / static_cast<double>(one.tokens));
    one_local.push_back(1e6 * one_here.seconds / static_cast<double>(one_here.tokens));
    round_trip.push_back(cluster.mean_round_trip_us());
  }
  fmt::print("{} on {} servers, {} requests at once, {} rounds: medians (quartiles)\n", argv[3],
             setup.servers.size(), requests.size(), rounds);
  bench::print("processes", by_cluster, "tokens/s");
  bench::print("local mode", by_local, "tokens/s");
  bench::print("ratio", ratio, "");
  bench::print("processes, each token told", by_cluster_streamed, "tokens/s");
  bench::print("local mode, each token told", by_local_streamed, "tokens/s");
  bench::print("ratio, each token told", ratio_streamed, "");
  bench::print("frames a token", many.frames(), "");
  bench::print("one stream, processes", one_cluster, "us a token");
  bench::print("one stream, local mode", one_local, "us a token");
  bench::print("one stream, frames a token", single.frames(), "");
  bench::print("round trip of a pulse", round_trip, "us");
  many.costs().print("nodes");
  bench::print("who asks them, processor time", many.asking_us(), "us a token");
  many_here.costs().print("local mode");
  single.costs().print("one stream, nodes");
  single_here.costs().print("one stream, local mode");
  print_idle(cluster);
}
