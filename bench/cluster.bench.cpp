// A cluster of processes against local mode: the same plan, requests and threads.
//
// bench_cluster MODEL CLUSTER STRATEGY [rounds [requests [new tokens [costs]]]]: `ordermoe cluster up` starts a process for each server; in each
// round the requests (16 of 128 new tokens, given as ids to the servers that local mode would give them to) are answered
// by the processes and by local mode, in turn, all at once; then one alone. Answers must be equal.
// Prints tokens/s, their ratio, the frames a token that the plan sends, and for one stream the time a token beside the
// round trips of its frames.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "actors/cluster/client.hpp"
#include "actors/service/runtime.hpp"
#include "bench/spread.hpp"
#include "config/files.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "bench_cluster: {}\n", value.error().message);
  std::exit(1);
}

double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

/// Processes of a folder of their own, ended with it.
class processes {
 public:
  processes(const std::string& model, const std::string& cluster, const std::string& strategy,
            const std::string& costs) {
    run(fmt::format(
        "cluster up --model {} --cluster {} --dir {} --strategy {} --costs {} --threads 1 --port "
        "7900 > /dev/null",
        model, cluster, folder_.string(), strategy, costs));
    const setup::cluster_folder folder{folder_};
    const auto identity = take(net::tls_identity::load(folder.certificates() / "ca.crt",
                                                       folder.certificates() / "console.crt",
                                                       folder.certificates() / "console.key"));
    for (const auto& file : take(setup::read_cluster_folder(folder)))
      clients_.push_back(take(actors::cluster_client::connect(
          identity, take(net::parse_address(file.listen.front())), std::chrono::seconds(5))));
  }
  ~processes() {
    clients_.clear();
    run(fmt::format("cluster down --dir {}", folder_.string()));
    fs::remove_all(folder_);
  }

  fs::path plan() const { return setup::cluster_folder{folder_}.plan(); }

  struct answers {
    double seconds = 0;
    std::size_t tokens = 0;
    std::vector<std::vector<std::int32_t>> ids;
  };
  answers ask(const std::vector<actors::request_spec>& requests) {
    answers made;
    made.ids.resize(requests.size());
    const auto begin = clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      actors::remote_request wanted;
      wanted.spec = requests[i];
      wanted.spec.sampling_stream = i;
      clients_[requests[i].access]->submit(std::move(wanted), {{}, [&made, i](const auto& outcome) {
                                                                 made.ids[i] = outcome.token_ids;
                                                               }});
    }
    for (const auto& client : clients_) client->wait([&] { return client->outstanding() == 0; });
    made.seconds = seconds_since(begin);
    for (const auto& each : made.ids) made.tokens += each.size();
    return made;
  }

  static nlohmann::json status_of(actors::cluster_client& node) {
    return nlohmann::json::parse(take(node.status(std::chrono::seconds(5))));
  }
  /// Frames that all nodes have sent so far.
  std::int64_t frames() {
    std::int64_t all = 0;
    for (const auto& client : clients_) {
      const auto status = status_of(*client);
      for (const auto& link : status.at("links")) all += link.at("frames").get<std::int64_t>();
    }
    return all;
  }
  double mean_round_trip_us() {
    std::vector<double> all;
    for (const auto& client : clients_) {
      const auto status = status_of(*client);
      for (const auto& peer : status.at("peers"))
        all.push_back(peer.at("round_trip_ns").get<double>() * 1e-3);
    }
    return bench::spread_of(all).middle;
  }

 private:
  static void run(const std::string& command) {
    if (std::system((ORDERMOE_PROGRAM " " + command).c_str()) == 0) return;
    fmt::print(stderr, "bench_cluster: `ordermoe {}` failed\n", command);
    std::exit(1);
  }
  fs::path folder_ =
      fs::temp_directory_path() / fmt::format("ordermoe-bench-cluster-{}", ::getpid());
  std::vector<std::unique_ptr<actors::cluster_client>> clients_;
};

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

std::vector<actors::request_spec> requests_of(const actors::run_setup& local, std::size_t n,
                                              std::uint32_t new_tokens) {
  const auto ids = local.tokens->encode(take(read_file(ORDERMOE_DATA "/eval/held-out.txt")));
  constexpr std::size_t prompt = 16;
  std::vector<actors::request_spec> requests(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(i * prompt % (ids.size() - prompt));
    requests[i].prompt.assign(at, at + prompt);
    requests[i].max_new_tokens = new_tokens;
    requests[i].ignore_end_of_text = true;
  }
  actors::draw_arrivals(requests, local.servers, 0, 1);
  return requests;
}

/// The same by local mode, in a service that lives as long.
class local_mode {
 public:
  explicit local_mode(actors::service_options options)
      : service_(take(actors::service::start(std::move(options)))) {}
  processes::answers ask(const std::vector<actors::request_spec>& requests) {
    processes::answers made;
    made.ids.resize(requests.size());
    const auto begin = clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      auto spec = requests[i];
      spec.sampling_stream = i;
      service_->submit(std::move(spec),
                       {{}, [&made, i](const auto& outcome) { made.ids[i] = outcome.token_ids; }});
    }
    service_->run_until([&] { return service_->outstanding() == 0; });
    made.seconds = seconds_since(begin);
    for (const auto& each : made.ids) made.tokens += each.size();
    return made;
  }

 private:
  std::unique_ptr<actors::service> service_;
};

void print(const std::string& what, const std::vector<double>& values, const char* unit) {
  const auto s = bench::spread_of(values);
  fmt::print("{:<44}{:>10.2f} ({:.2f} to {:.2f}) {}\n", what, s.middle, s.low, s.high, unit);
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
  processes cluster(argv[1], argv[2], argv[3], costs);
  job work;
  const auto setup = local_setup(argv[1], argv[2], cluster.plan(), costs, work);
  const auto requests = requests_of(setup, static_cast<std::size_t>(number(5, 16)),
                                    static_cast<std::uint32_t>(number(6, 128)));
  const std::vector<actors::request_spec> alone(requests.begin(), requests.begin() + 1);
  local_mode local(setup);
  std::vector<double> by_cluster, by_local, ratio, frames, one_cluster, one_local, one_frames,
      round_trip;
  for (int round = 0; round <= rounds; ++round) {
    const auto before = cluster.frames();
    const auto theirs = cluster.ask(requests);
    const auto between = cluster.frames();
    const auto ours = local.ask(requests);
    const auto first = cluster.frames();
    const auto one = cluster.ask(alone);
    const auto last = cluster.frames();
    const auto one_here = local.ask(alone);
    if (theirs.ids != ours.ids || one.ids != one_here.ids) {
      fmt::print(stderr, "bench_cluster: answers differ\n");
      return 1;
    }
    if (round == 0) continue;
    by_cluster.push_back(static_cast<double>(theirs.tokens) / theirs.seconds);
    by_local.push_back(static_cast<double>(ours.tokens) / ours.seconds);
    ratio.push_back(by_cluster.back() / by_local.back());
    frames.push_back(static_cast<double>(between - before) / static_cast<double>(theirs.tokens));
    one_cluster.push_back(1e6 * one.seconds / static_cast<double>(one.tokens));
    one_local.push_back(1e6 * one_here.seconds / static_cast<double>(one_here.tokens));
    one_frames.push_back(static_cast<double>(last - first) / static_cast<double>(one.tokens));
    round_trip.push_back(cluster.mean_round_trip_us());
  }
  fmt::print("{} on {} servers, {} requests at once, {} rounds: medians (quartiles)\n", argv[3],
             setup.servers.size(), requests.size(), rounds);
  print("processes", by_cluster, "tokens/s");
  print("local mode", by_local, "tokens/s");
  print("ratio", ratio, "");
  print("frames a token", frames, "");
  print("one stream, processes", one_cluster, "us a token");
  print("one stream, local mode", one_local, "us a token");
  print("one stream, frames a token", one_frames, "");
  print("round trip of a pulse", round_trip, "us");
}
