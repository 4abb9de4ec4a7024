// What a gateway costs beside `ordermoe run --connect`.
//
// bench_gateway MODEL CLUSTER [rounds] [--costs NAME] [--speed STREAMS [TOKENS]]: `ordermoe cluster up` starts a process for each server, and
// `ordermoe serve` a gateway before them. As many streams as it says are asked of it at once, all of the same length; measured are
// tokens/s and, for each token that came, the processor time of the gateway, of whoever asks, and of both ends together. They are asked
// twice: by a thread for each stream, each of which is woken for each of its tokens, and by one thread for all of them, as clients with
// an event loop and `run --connect` have it. In the same rounds `ordermoe run --connect` asks the same cluster the same prompts, as many
// at once: its processor time a token, less what it takes to ask for a single one.
//
// With --speed: tokens/s of both and the time to the first token, in turns, for models whose tokens take long: so many streams at once,
// of 64 tokens if nothing else is said. Connecting to the gateway counts, the connection of `run` to its node does not.

#include <sys/resource.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <thread>

#include "bench/http_streams.hpp"
#include "bench/processes.hpp"
#include "net/http/client.hpp"

namespace {

using namespace ordermoe;
using namespace ordermoe::bench;

constexpr std::size_t n_tokens = 64;  ///< Of a stream.
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

  struct heard {
    std::size_t tokens = 0;  ///< 0 where the stream did not come to its end.
    double first_ms = 0;     ///< From before the connection until the first token is here.
  };
  heard stream(std::size_t wanted) const {
    net::http_ask ask;
    ask.to = take(net::parse_url(url_));
    ask.method = "POST";
    ask.path = "/v1/completions";
    ask.fields = {{"Content-Type", "application/json"}};
    ask.body = body(wanted);
    std::string all;
    heard made;
    const auto begin = std::chrono::steady_clock::now();
    const auto reply = net::http_fetch(ask, [&](std::string_view part) {
      if (all.empty()) made.first_ms = 1e3 * seconds_since(begin);
      all += part;
    });
    if (reply && reply->status == 200) made.tokens = tokens_in(all);
    return made;
  }

  /// The same from the calling thread alone.
  std::vector<heard> streams(std::size_t n, std::size_t wanted) const {
    const auto text = body(wanted);
    const auto at = take(net::parse_url(url_)).at;
    const auto request = fmt::format(
        "POST /v1/completions HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        net::to_string(at), text.size(), text);
    std::vector<std::string> all(n);
    std::vector<heard> made(n);
    const auto begin = std::chrono::steady_clock::now();
    const auto whole = ask_at_once(at.port, request, n, [&](std::size_t i, std::string_view part) {
      if (all[i].empty()) made[i].first_ms = 1e3 * seconds_since(begin);
      all[i] += part;
    });
    if (whole == n)
      for (std::size_t i = 0; i < n; ++i) made[i].tokens = tokens_in(all[i]);
    return made;
  }

 private:
  static std::string body(std::size_t wanted) {
    return nlohmann::json{{"prompt", prompt}, {"max_tokens", wanted},
                          {"temperature", 0}, {"ignore_eos", true},
                          {"stream", true},   {"ordermoe", {{"trace", true}}}}
        .dump();
  }
  /// 0 where it did not come to its end.
  static std::size_t tokens_in(const std::string& stream) {
    std::size_t n = 0;
    if (!stream.ends_with("data: [DONE]\n\n")) return n;
    for (auto at = stream.find("\"ordermoe\""); at != std::string::npos;
         at = stream.find("\"ordermoe\"", at + 1))
      ++n;
    return n;
  }

  std::string url_;
  int pid_ = 0;
};

/// Processor time of this process, or of its children that ended.
double used_s(int whose) {
  rusage used{};
  ::getrusage(whose, &used);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

struct cost {
  double us_a_token = 0;         ///< Of the gateway.
  double client_us_a_token = 0;  ///< Of this process, which asks.
  double tokens_per_s = 0, first_ms = 0;
};

enum class askers { thread_each, one_thread };

/// `streams` at once, each of which must come whole.
cost ask_gateway(const gateway_process& gateway, std::size_t streams, std::size_t wanted,
                 askers who = askers::thread_each) {
  std::vector<gateway_process::heard> heard(streams);
  const auto before = gateway.processor_s(), own_before = used_s(RUSAGE_SELF);
  const auto begin = std::chrono::steady_clock::now();
  if (who == askers::one_thread) {
    heard = gateway.streams(streams, wanted);
  } else {
    std::vector<std::jthread> clients;
    for (auto& each : heard) clients.emplace_back([&] { each = gateway.stream(wanted); });
  }
  const auto seconds = seconds_since(begin);
  const auto own = used_s(RUSAGE_SELF) - own_before;
  std::size_t failed = 0;
  std::vector<double> first_ms;
  for (const auto& each : heard) {
    failed += each.tokens != wanted;
    first_ms.push_back(each.first_ms);
  }
  if (failed > 0) {
    fmt::print(stderr, "bench_gateway: {} of {} streams did not come whole\n", failed, streams);
    std::exit(1);
  }
  const auto n = static_cast<double>(streams * wanted);
  return {1e6 * (gateway.processor_s() - before) / n, 1e6 * own / n, n / seconds,
          spread_of(first_ms).middle};
}

std::string address_of(const processes& cluster) {
  const auto files = take(setup::read_cluster_folder(setup::cluster_folder{cluster.folder()}));
  return files.front().listen.front();
}

struct connected_run {
  double processor_s = 0, tokens = 0;
  double seconds = 0;  ///< From the first question to the last answer's end.
  double first_ms = 0;
};

/// `ordermoe run --connect` with so many requests, and the tokens that it was told.
connected_run run_connected(const processes& cluster, std::size_t requests, std::size_t streams,
                            std::size_t wanted) {
  const auto prompts = cluster.folder() / "prompts.jsonl", out = cluster.folder() / "run.json";
  {
    std::ofstream file(prompts);
    for (std::size_t i = 0; i < requests; ++i)
      file << nlohmann::json{{"prompt", prompt}}.dump() << '\n';
  }
  const auto before = used_s(RUSAGE_CHILDREN);
  processes::run(
      fmt::format("run --connect {} --dir {} --prompts {} --max-new-tokens {} --at-once "
                  "{} --json > {}",
                  address_of(cluster), cluster.folder().string(), prompts.string(), wanted, streams,
                  out.string()));
  connected_run made;
  made.processor_s = used_s(RUSAGE_CHILDREN) - before;
  std::ifstream file(out);
  const auto report = nlohmann::json::parse(file);
  made.seconds = report.at("seconds").get<double>();
  std::vector<double> first_ms;
  for (const auto& answer : report.at("answers")) {
    made.tokens += static_cast<double>(answer.at("token_ids").size());
    first_ms.push_back(answer.at("ttft_ms").get<double>());
  }
  made.first_ms = spread_of(first_ms).middle;
  return made;
}

/// Of rounds.
struct costs {
  std::vector<double> gateway, clients, both, speed;

  /// So many times, of which the mean counts.
  void add(const gateway_process& of, std::size_t streams, std::size_t times, askers who) {
    cost mean;
    for (std::size_t i = 0; i < times; ++i) {
      const auto one = ask_gateway(of, streams, n_tokens, who);
      mean.us_a_token += one.us_a_token / static_cast<double>(times);
      mean.client_us_a_token += one.client_us_a_token / static_cast<double>(times);
      mean.tokens_per_s += one.tokens_per_s / static_cast<double>(times);
    }
    gateway.push_back(mean.us_a_token);
    clients.push_back(mean.client_us_a_token);
    both.push_back(mean.us_a_token + mean.client_us_a_token);
    speed.push_back(mean.tokens_per_s);
  }
};

void measure_processor(const processes& cluster, const gateway_process& gateway,
                       std::size_t streams, int rounds) {
  const std::size_t times = most_streams / streams;
  costs threads, one;
  std::vector<double> run_us, ratio;
  ask_gateway(gateway, streams, n_tokens);
  for (int round = 0; round < rounds; ++round) {
    threads.add(gateway, streams, times, askers::thread_each);
    one.add(gateway, streams, times, askers::one_thread);
    const auto least = run_connected(cluster, most_streams, streams, 1);
    const auto all = run_connected(cluster, most_streams, streams, n_tokens);
    run_us.push_back(1e6 * (all.processor_s - least.processor_s) / (all.tokens - least.tokens));
    ratio.push_back(threads.gateway.back() / run_us.back());
  }
  fmt::print("{} streams at once\n", streams);
  print("  a token, processor time of the gateway", threads.gateway, "us");
  print("  of its clients, a thread each", threads.clients, "us");
  print("  both ends", threads.both, "us");
  print("  of the gateway, one thread asks for all", one.gateway, "us");
  print("  of that client", one.clients, "us");
  print("  both ends", one.both, "us");
  print("  of `run --connect`", run_us, "us");
  print("  ratio, a thread each", ratio, "");
  print("  tokens/s, a thread each", threads.speed, "");
  print("  tokens/s, one thread", one.speed, "");
}

/// Whoever goes first in a round goes second in the next.
void measure_speed(const processes& cluster, const gateway_process& gateway, std::size_t streams,
                   std::size_t wanted, int rounds) {
  std::vector<double> speed, run_speed, ratio, first, run_first, later;
  ask_gateway(gateway, streams, wanted);
  run_connected(cluster, streams, streams, wanted);
  for (int round = 0; round < rounds; ++round) {
    cost one;
    connected_run other;
    for (const bool is_gateway : {round % 2 == 0, round % 2 != 0})
      if (is_gateway)
        one = ask_gateway(gateway, streams, wanted);
      else
        other = run_connected(cluster, streams, streams, wanted);
    speed.push_back(one.tokens_per_s);
    run_speed.push_back(other.tokens / other.seconds);
    ratio.push_back(speed.back() / run_speed.back());
    first.push_back(one.first_ms);
    run_first.push_back(other.first_ms);
    later.push_back(one.first_ms - other.first_ms);
  }
  fmt::print("{} streams of {} tokens at once\n", streams, wanted);
  print("  tokens/s of the gateway", speed, "");
  print("  of `run --connect`", run_speed, "");
  print("  ratio", ratio, "");
  print("  first token of the gateway", first, "ms");
  print("  of `run --connect`", run_first, "ms");
  print("  later by", later, "ms");
}

/// A whole number of at least 1; 0 where it is none.
std::size_t number(const char* text) {
  char* end = nullptr;
  const auto value = std::strtoll(text, &end, 10);
  return *end == 0 && value >= 1 && value <= 10'000 ? static_cast<std::size_t>(value) : 0;
}

struct wish {
  std::string costs = processes_options{}.costs;
  std::size_t rounds = 3;
  std::size_t streams = 0;  ///< Of --speed; 0: processor time is measured.
  std::size_t tokens = n_tokens;
};

/// Of what comes behind the cluster; none where it makes no sense.
std::optional<wish> read(const std::vector<const char*>& words) {
  wish made;
  std::size_t at = 0;
  if (at < words.size() && !std::string_view(words[at]).starts_with("--"))
    made.rounds = number(words[at++]);
  if (at + 1 < words.size() && std::string_view(words[at]) == "--costs") {
    made.costs = words[at + 1];
    at += 2;
  }
  if (at < words.size()) {
    if (std::string_view(words[at++]) != "--speed" || at == words.size()) return std::nullopt;
    made.streams = number(words[at++]);
    if (at < words.size()) made.tokens = number(words[at++]);
    if (made.streams == 0 || made.streams > most_streams || made.tokens == 0) return std::nullopt;
  }
  if (at < words.size() || made.rounds == 0) return std::nullopt;
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  const auto wanted = argc < 3 ? std::nullopt : read({argv + 3, argv + argc});
  if (!wanted) {
    fmt::print(stderr,
               "usage: bench_gateway MODEL CLUSTER [rounds] [--costs NAME] [--speed STREAMS "
               "[TOKENS]]; numbers are "
               "whole and at least 1, streams {} at most\n",
               most_streams);
    return 2;
  }
  const processes cluster(
      {.model = argv[1], .cluster = argv[2], .strategy = "layer-shards", .costs = wanted->costs});
  const gateway_process gateway(cluster, most_streams);
  const auto rounds = static_cast<int>(wanted->rounds);
  fmt::print("a gateway before {} nodes on {} processors, {} rounds: medians (quartiles)\n",
             cluster.clients().size(), std::thread::hardware_concurrency(), rounds);
  if (wanted->streams > 0) {
    measure_speed(cluster, gateway, wanted->streams, wanted->tokens, rounds);
    return 0;
  }
  fmt::print("streams of {} tokens\n", n_tokens);
  for (const std::size_t streams : {std::size_t{8}, most_streams})
    measure_processor(cluster, gateway, streams, rounds);
}
