// What a streamed token costs the gateway.
//
// bench_gateway MODEL CLUSTER [rounds]: `ordermoe cluster up` starts a process for each server, and `ordermoe serve` a gateway before
// them. As many clients as it says ask it at once for a stream each, all of the same length; measured are the processor time of the
// gateway for each token that came, and tokens/s. In the same rounds `ordermoe run --connect` asks the same cluster the same prompts, as
// many at once: its processor time a token, less what it takes to ask for a single one.

#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <thread>

#include "bench/processes.hpp"
#include "net/http/client.hpp"

namespace {

using namespace ordermoe;
using namespace ordermoe::bench;

constexpr std::size_t n_tokens = 64;
/// At once, and in each round, whatever is asked at once.
constexpr std::size_t most_streams = 256;
const char* const prompt = "In early spring";

/// `ordermoe serve` before a cluster, ended with it.
class gateway_process {
 public:
  explicit gateway_process(const processes& cluster, std::size_t most) {
    const auto out = cluster.folder() / "gateway.out", pid = cluster.folder() / "gateway.pid";
    processes::run(fmt::format(
        "serve --listen 127.0.0.1:0 --json --dir {} --most-running {} > {} & echo $! > {}",
        cluster.folder().string(), most, out.string(), pid.string()));
    const auto begin = std::chrono::steady_clock::now();
    while (url_.empty() && seconds_since(begin) < 30) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      std::ifstream file(out);
      const auto told = nlohmann::json::parse(file, nullptr, false);
      if (told.is_object()) url_ = told.at("url").get<std::string>();
    }
    std::ifstream(pid) >> pid_;
    if (!url_.empty()) return;
    fmt::print(stderr, "bench_gateway: `ordermoe serve` does not answer\n");
    std::exit(1);
  }
  ~gateway_process() {
    ::kill(pid_, SIGTERM);
    while (::kill(pid_, 0) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  gateway_process(const gateway_process&) = delete;
  gateway_process& operator=(const gateway_process&) = delete;

  double processor_s() const { return processes::processor_seconds(pid_); }

  /// Tokens that came in one stream; 0 where it did not come to its end.
  std::size_t stream() const {
    net::http_ask ask;
    ask.to = take(net::parse_url(url_));
    ask.method = "POST";
    ask.path = "/v1/completions";
    ask.fields = {{"Content-Type", "application/json"}};
    ask.body = nlohmann::json{{"prompt", prompt}, {"max_tokens", n_tokens},
                              {"temperature", 0}, {"ignore_eos", true},
                              {"stream", true},   {"ordermoe", {{"trace", true}}}}
                   .dump();
    std::string all;
    const auto reply = net::http_fetch(ask, [&](std::string_view part) { all += part; });
    if (!reply || reply->status != 200 || !all.ends_with("data: [DONE]\n\n")) return 0;
    std::size_t tokens = 0;
    for (auto at = all.find("\"ordermoe\""); at != std::string::npos;
         at = all.find("\"ordermoe\"", at + 1))
      ++tokens;
    return tokens;
  }

 private:
  std::string url_;
  int pid_ = 0;
};

struct cost {
  double us_a_token = 0, tokens_per_s = 0;
};

/// `streams` at once, each of which must come whole.
cost ask_gateway(const gateway_process& gateway, std::size_t streams) {
  std::atomic<std::size_t> tokens = 0, failed = 0;
  const auto before = gateway.processor_s();
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::jthread> clients;
  for (std::size_t i = 0; i < streams; ++i)
    clients.emplace_back([&] {
      const auto n = gateway.stream();
      tokens += n;
      failed += n != n_tokens;
    });
  clients.clear();
  if (failed > 0) {
    fmt::print(stderr, "bench_gateway: {} of {} streams did not come whole\n", failed.load(),
               streams);
    std::exit(1);
  }
  const auto n = static_cast<double>(tokens);
  return {1e6 * (gateway.processor_s() - before) / n, n / seconds_since(begin)};
}

double children_s() {
  rusage used{};
  ::getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

std::string address_of(const processes& cluster) {
  const auto files = take(setup::read_cluster_folder(setup::cluster_folder{cluster.folder()}));
  return files.front().listen.front();
}

/// Processor time of `ordermoe run --connect` with so many requests, and the tokens that it was told.
std::pair<double, double> run_connected(const processes& cluster, std::size_t requests,
                                        std::size_t streams, std::size_t tokens) {
  const auto prompts = cluster.folder() / "prompts.jsonl", out = cluster.folder() / "run.json";
  {
    std::ofstream file(prompts);
    for (std::size_t i = 0; i < requests; ++i)
      file << nlohmann::json{{"prompt", prompt}}.dump() << '\n';
  }
  const auto before = children_s();
  processes::run(
      fmt::format("run --connect {} --dir {} --prompts {} --max-new-tokens {} --at-once "
                  "{} --json > {}",
                  address_of(cluster), cluster.folder().string(), prompts.string(), tokens, streams,
                  out.string()));
  const auto used = children_s() - before;
  std::ifstream file(out);
  const auto report = nlohmann::json::parse(file);
  double told = 0;
  for (const auto& answer : report.at("answers"))
    told += static_cast<double>(answer.at("token_ids").size());
  return {used, told};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: bench_gateway MODEL CLUSTER [rounds]\n");
    return 2;
  }
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 3;
  const processes cluster({.model = argv[1], .cluster = argv[2], .strategy = "layer-shards"});
  const gateway_process gateway(cluster, most_streams);
  fmt::print(
      "a gateway before {} nodes on {} processors, streams of {} tokens, {} rounds: medians "
      "(quartiles)\n",
      cluster.clients().size(), std::thread::hardware_concurrency(), n_tokens, rounds);
  for (const std::size_t streams : {std::size_t{8}, most_streams}) {
    const std::size_t times = most_streams / streams;
    std::vector<double> us, speed, run_us, ratio;
    ask_gateway(gateway, streams);
    for (int round = 0; round < rounds; ++round) {
      cost sum;
      for (std::size_t i = 0; i < times; ++i) {
        const auto one = ask_gateway(gateway, streams);
        sum.us_a_token += one.us_a_token / static_cast<double>(times);
        sum.tokens_per_s += one.tokens_per_s / static_cast<double>(times);
      }
      const auto [least, one] = run_connected(cluster, most_streams, streams, 1);
      const auto [used, all] = run_connected(cluster, most_streams, streams, n_tokens);
      us.push_back(sum.us_a_token);
      speed.push_back(sum.tokens_per_s);
      run_us.push_back(1e6 * (used - least) / (all - one));
      ratio.push_back(us.back() / run_us.back());
    }
    fmt::print("{} streams at once\n", streams);
    print("  a token, processor time of the gateway", us, "us");
    print("  of `run --connect`", run_us, "us");
    print("  ratio", ratio, "");
    print("  tokens/s", speed, "");
  }
}
