#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "actors/cluster/client.hpp"
#include "bench/spread.hpp"
#include "bench/work_counts.hpp"
#include "config/files.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/node_setup.hpp"
#include "setup/world.hpp"

/// A cluster of processes on this machine, as benchmarks ask it.
namespace ordermoe::bench {

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "{}\n", value.error().message);
  std::exit(1);
}

/// A model as benchmarks of processes need it: its shape and its tokens, and no experts.
inline setup::world world_of(const std::string& model) {
  setup::world_options options;
  options.model = model;
  options.costs = "measured";
  options.runs_model = false;
  options.use = setup::profile_use::none;
  job work;
  return take(setup::load_world(options, work));
}

/// Prompts of 16 tokens of the held-out text, one behind the other, asked of the first server.
inline std::vector<actors::request_spec> requests_of(const model::tokenizer& tokens, std::size_t n,
                                                     std::uint32_t new_tokens,
                                                     bool ignores_end_of_text) {
  const auto ids = tokens.encode(take(read_file(ORDERMOE_DATA "/eval/held-out.txt")));
  constexpr std::size_t prompt = 16;
  std::vector<actors::request_spec> requests(n);
  for (std::size_t i = 0; i < n; ++i) {
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(i * prompt % (ids.size() - prompt));
    requests[i].prompt.assign(at, at + prompt);
    requests[i].max_new_tokens = new_tokens;
    requests[i].ignore_end_of_text = ignores_end_of_text;
  }
  return requests;
}

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct answers {
  double seconds = 0;
  std::size_t tokens = 0;
  std::size_t told = 0;                        ///< Of them as they came.
  std::vector<std::vector<std::int32_t>> ids;  ///< By request.
};

/// Of a node's process.
struct usage {
  double processor_s = 0;                    ///< So far.
  double resident_mib = 0, weights_mib = 0;  ///< In memory; of it the model, as its plan hosts it.
};

struct processes_options {
  std::string model, cluster, strategy;
  std::string costs = "mixtral-8x7b";
  int port = 7900;  ///< Of the first; the others follow.
};

/// One process with one computing thread for each server, in a folder of their own, and ended with it.
class processes {
 public:
  explicit processes(const processes_options& options)
      : folder_(std::filesystem::temp_directory_path() /
                fmt::format("ordermoe-bench-{}-{}", ::getpid(), options.port)) {
    run(fmt::format(
        "cluster up --model {} --cluster {} --dir {} --strategy {} --costs {} --threads 1 --port "
        "{} {} > /dev/null",
        options.model, options.cluster, folder_.string(), options.strategy, options.costs,
        options.port, further_words()));
    const setup::cluster_folder folder{folder_};
    job work;
    files_ = take(setup::read_cluster_folder(folder));
    clients_.resize(files_.size());
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const auto& file = files_[i];
      connect_again(i);
      std::ifstream(folder.pid(file.name)) >> pids_.emplace_back();
      weight_bytes_.push_back(take(setup::check_node(file, work)).weight_bytes);
    }
  }
  ~processes() {
    clients_.clear();
    run(fmt::format("cluster down --dir {}", folder_.string()));
    std::filesystem::remove_all(folder_);
  }
  processes(const processes&) = delete;
  processes& operator=(const processes&) = delete;

  /// Ends a node's process, so that the node may run elsewhere; its configuration file. connect_again() once it runs.
  std::filesystem::path end(std::size_t i) {
    clients_[i] = nullptr;
    ::kill(pids_[i], SIGTERM);
    while (std::filesystem::exists(fmt::format("/proc/{}", pids_[i])))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    pids_[i] = 0;
    return setup::cluster_folder{folder_}.config(files_[i].name);
  }
  void connect_again(std::size_t i) {
    const auto identity = take(setup::console_identity(setup::cluster_folder{folder_}));
    clients_[i] = take(actors::cluster_client::connect(
        identity, take(net::parse_address(files_[i].listen.front())), std::chrono::seconds(5)));
  }

  /// For `cluster up`, of whoever compares settings.
  static const char* further_words() {
    const char* words = std::getenv("ORDERMOE_UP");
    return words != nullptr ? words : "";
  }

  const std::filesystem::path& folder() const { return folder_; }
  const std::vector<std::unique_ptr<actors::cluster_client>>& clients() const { return clients_; }
  std::filesystem::path plan() const { return setup::cluster_folder{folder_}.plan(); }

  /// All at once, each of the server that it names; whole, or also token by token as they come.
  answers ask(const std::vector<actors::request_spec>& requests, bool as_they_come = false) {
    answers made;
    made.ids.resize(requests.size());
    std::atomic<std::size_t> told = 0;
    actors::answer_sink listening;
    if (as_they_come) listening.on_token = [&told](const auto&) { ++told; };
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < requests.size(); ++i) {
      actors::remote_request wanted;
      wanted.spec = requests[i];
      wanted.spec.sampling_stream = i;
      auto sink = listening;
      sink.on_end = [&made, i](const auto& outcome) { made.ids[i] = outcome.token_ids; };
      clients_[requests[i].access]->submit(std::move(wanted), std::move(sink));
    }
    for (const auto& client : clients_) client->wait([&] { return client->outstanding() == 0; });
    made.seconds = seconds_since(begin);
    for (const auto& each : made.ids) made.tokens += each.size();
    made.told = told;
    return made;
  }

  /// Of all nodes so far.
  work_counts work() {
    work_counts all;
    for (const auto& client : clients_) {
      const auto status = status_of(*client);
      all.batches += status.at("batches").get<double>();
      all.rows += status.at("rows").get<double>();
      for (const auto& link : status.at("links")) all.frames += link.at("frames").get<double>();
      for (const auto& peer : status.at("peers")) {
        all.writes += peer.at("writes").get<double>();
        all.reads += peer.at("reads").get<double>();
      }
    }
    return all;
  }
  thread_counts threads() const {
    thread_counts all;
    for (const auto pid : pids_)
      if (pid != 0) all += threads_of(pid);
    return all;
  }
  std::vector<usage> usages() const {
    std::vector<usage> all;
    for (std::size_t i = 0; i < pids_.size(); ++i)
      if (pids_[i] != 0)
        all.push_back({processor_seconds(pids_[i]), resident_mib(pids_[i]),
                       static_cast<double>(weight_bytes_[i]) / (1 << 20)});
    return all;
  }
  double mean_round_trip_us() {
    std::vector<double> all;
    for (const auto& client : clients_) {
      const auto status = status_of(*client);
      for (const auto& peer : status.at("peers"))
        all.push_back(peer.at("round_trip_ns").get<double>() * 1e-3);
    }
    return spread_of(all).middle;
  }

  /// Of all nodes, and of this process.
  double processor_s() const {
    double sum = processor_seconds(::getpid());
    for (const auto pid : pids_)
      if (pid != 0) sum += processor_seconds(pid);
    return sum;
  }

  static void run(const std::string& command) {
    if (std::system((ORDERMOE_PROGRAM " " + command).c_str()) == 0) return;
    fmt::print(stderr, "`ordermoe {}` failed\n", command);
    std::exit(1);
  }

  /// Of a process so far, to the nanosecond: what proc(5) tells of it counts hundredths of a second.
  static double processor_seconds(int pid) {
    clockid_t clock{};
    timespec used{};
    if (::clock_getcpuclockid(pid, &clock) != 0 || ::clock_gettime(clock, &used) != 0) return 0;
    return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
  }

 private:
  static double resident_mib(int pid) {
    std::ifstream file(fmt::format("/proc/{}/statm", pid));
    double size = 0, resident = 0;
    file >> size >> resident;
    return resident * static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 20);
  }
  static nlohmann::json status_of(actors::cluster_client& node) {
    return nlohmann::json::parse(take(node.status(std::chrono::seconds(5))));
  }
  std::filesystem::path folder_;
  std::vector<std::unique_ptr<actors::cluster_client>> clients_;
  std::vector<node_file> files_;
  std::vector<int> pids_;  ///< 0: ended.
  std::vector<std::int64_t> weight_bytes_;
};

inline void print(const std::string& what, const std::vector<double>& values, const char* unit) {
  const auto s = spread_of(values);
  fmt::print("{:<44}{:>10.2f} ({:.2f} to {:.2f}) {}\n", what, s.middle, s.low, s.high, unit);
}

}  // namespace ordermoe::bench
