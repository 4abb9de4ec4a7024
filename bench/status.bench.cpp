// What it takes to ask a cluster how all its nodes do (`status` of the admin console).
//
// bench_status MODEL CLUSTER [rounds]: `ordermoe cluster up` starts a process for each server. Measured are the time of one
// answer over a session that is there, while nothing is served and while requests are, and of a whole `ordermoe admin
// status`, process and certificates included; the processor time that an answer takes of all nodes and of who asks; and
// tokens/s with and without a question every 100 ms, in rounds that take turns.

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "actors/cluster/client.hpp"
#include "bench/spread.hpp"
#include "config/files.hpp"
#include "setup/cluster_folder.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;
using clock = std::chrono::steady_clock;

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "bench_status: {}\n", value.error().message);
  std::exit(1);
}

double seconds_since(clock::time_point begin) {
  return std::chrono::duration<double>(clock::now() - begin).count();
}

void run(const std::string& command) {
  if (std::system((ORDERMOE_PROGRAM " " + command).c_str()) == 0) return;
  fmt::print(stderr, "bench_status: `ordermoe {}` failed\n", command);
  std::exit(1);
}

/// User and system time of a process so far.
double processor_s(const std::string& pid) {
  std::ifstream stat("/proc/" + pid + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 2));
  std::string word;
  double ticks = 0;
  for (int i = 3; i <= 15 && fields >> word; ++i)
    if (i >= 14) ticks += std::stod(word);
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// Processes of a folder of their own, ended with it.
class processes {
 public:
  processes(const std::string& model, const std::string& cluster) {
    run(
        fmt::format("cluster up --model {} --cluster {} --dir {} --strategy layer-shards "
                    "--threads 1 --port 7900 > /dev/null",
                    model, cluster, folder_.string()));
    const setup::cluster_folder folder{folder_};
    const auto identity = take(setup::console_identity(folder));
    for (const auto& file : take(setup::read_cluster_folder(folder))) {
      clients_.push_back(take(actors::cluster_client::connect(
          identity, take(net::parse_address(file.listen.front())), std::chrono::seconds(5))));
      pids_.push_back(take(read_file(folder.pid(file.name), 64)));
      pids_.back().erase(pids_.back().find_last_not_of('\n') + 1);
    }
  }
  ~processes() {
    clients_.clear();
    run(fmt::format("cluster down --dir {}", folder_.string()));
    fs::remove_all(folder_);
  }
  const fs::path& folder() const { return folder_; }
  std::size_t size() const { return clients_.size(); }

  /// Milliseconds of one answer, from all nodes.
  double ask_ms() {
    const auto begin = clock::now();
    const auto reply = take(clients_[0]->order("status", "{}", false, std::chrono::seconds(5)));
    const auto ms = 1e3 * seconds_since(begin);
    const auto told = nlohmann::json::parse(reply);
    if (told.at("result").at("answering") == clients_.size()) return ms;
    fmt::print(stderr, "bench_status: not every node answered\n");
    std::exit(1);
  }

  /// Of all nodes, and of this process.
  double processor_s() const {
    double sum = ::processor_s(std::to_string(::getpid()));
    for (const auto& pid : pids_) sum += ::processor_s(pid);
    return sum;
  }

  /// tokens/s of requests at all nodes at once; `beside` is called until they have ended.
  double serve(const std::function<void()>& beside) {
    std::atomic<std::size_t> tokens = 0;
    const auto begin = clock::now();
    for (std::size_t i = 0; i < 2 * clients_.size(); ++i) {
      actors::remote_request wanted;
      for (int k = 0; k < 16; ++k)
        wanted.spec.prompt.push_back(100 + static_cast<std::int32_t>(i) + 7 * k);
      wanted.spec.max_new_tokens = 128;
      wanted.spec.ignore_end_of_text = true;
      clients_[i % clients_.size()]->submit(
          std::move(wanted),
          {{}, [&](const auto& outcome) { tokens += outcome.token_ids.size(); }});
    }
    for (const auto& client : clients_)
      while (client->outstanding() > 0) {
        beside();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
    return static_cast<double>(tokens) / seconds_since(begin);
  }

 private:
  fs::path folder_ =
      fs::temp_directory_path() / fmt::format("ordermoe-bench-status-{}", ::getpid());
  std::vector<std::unique_ptr<actors::cluster_client>> clients_;
  std::vector<std::string> pids_;
};

void print(const std::string& what, const std::vector<double>& values, const char* unit) {
  const auto s = bench::spread_of(values);
  fmt::print("{:<52}{:>9.2f} ({:.2f} to {:.2f}), most {:.2f} {}\n", what, s.middle, s.low, s.high,
             *std::ranges::max_element(values), unit);
}

/// Processor time of a question, beyond what the nodes take without any.
double processor_ms_of_one(processes& cluster) {
  constexpr int n = 400;
  const auto begin = clock::now();
  const auto before = cluster.processor_s();
  for (int i = 0; i < n; ++i) cluster.ask_ms();
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
  processes cluster(argv[1], argv[2]);
  std::vector<double> idle, loaded, whole, alone, asked, ratio;
  for (int i = 0; i < 200; ++i) idle.push_back(cluster.ask_ms());
  const auto processor_ms = processor_ms_of_one(cluster);
  for (int i = 0; i < rounds; ++i) {
    const auto begin = clock::now();
    run(fmt::format("admin --dir {} status > /dev/null", cluster.folder().string()));
    whole.push_back(1e3 * seconds_since(begin));
  }
  cluster.serve([] {});
  for (int round = 0; round < rounds; ++round) {
    alone.push_back(cluster.serve([] {}));
    auto next = clock::now();
    asked.push_back(cluster.serve([&] {
      if (clock::now() < next) return;
      next = clock::now() + std::chrono::milliseconds(100);
      loaded.push_back(cluster.ask_ms());
    }));
    ratio.push_back(asked.back() / alone.back());
  }
  fmt::print("status of {} nodes on {} processors, {} rounds: medians (quartiles)\n",
             cluster.size(), std::thread::hardware_concurrency(), rounds);
  print("an answer, nothing served", idle, "ms");
  print("an answer under load", loaded, "ms");
  print("`ordermoe admin status`", whole, "ms");
  fmt::print("{:<52}{:>9.3f} ms; every 100 ms: {:.3f} % of the machine\n",
             "processor time of an answer, all processes", processor_ms,
             processor_ms / std::thread::hardware_concurrency());
  print("tokens/s without questions", alone, "");
  print("tokens/s, asked every 100 ms", asked, "");
  print("ratio", ratio, "");
}
