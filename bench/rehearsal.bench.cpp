// A rehearsal against the emulation of the same plan and arrivals: what both say a token takes, and what crossed the links.
//
// bench_rehearsal MODEL CLUSTER STRATEGY [--budget PERCENT] [--no-reports] [--dilation X] [--requests N] [--new-tokens N]
//                 [--in-flight K]... [--costs NAME] [--most-time-percent P] [--most-bytes-percent P] [--only-emulated]
//
// `ordermoe cluster up --netns --rehearse` starts a process for each server (as root); for each K (1 and 4) the requests
// are asked in K rows, each request of a row when the one before it has ended, of the nodes and of the emulation alike.
// Prints for both the mean time of an output token after the first, that to the first, and the charged bytes by kind
// of frame, how far the nodes' are from the emulation's, and by how much the devices' time exceeded what was charged.
// Nothing of the nodes' is corrected, but that the dilation is taken out of times. With --no-reports nothing that is
// measured is decided by: no load reports, and links as the cluster file states them, as the emulation has them. Exit code 1 where the time of a token, or
// the bytes of tokens, calls, outputs or KV rows, are further from the emulation's than given. --only-emulated starts nothing and
// prints what the emulation says, of the plan that `cluster up` would make: anybody may, on any machine.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "actors/cluster/client.hpp"
#include "actors/service/runtime.hpp"
#include "bench/spread.hpp"
#include "config/files.hpp"
#include "config/freed_memory.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;
using bytes_by_kind = std::array<std::int64_t, wire::n_frame_kinds>;

/// Of the cluster that runs; empty: none does.
std::string running;

bool ordermoe_does(const std::string& command) {
  return std::system((ORDERMOE_PROGRAM " " + command).c_str()) == 0;
}

/// From any thread. No namespaces are left behind.
[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "bench_rehearsal: {}\n", why);
  if (!running.empty()) ordermoe_does(fmt::format("cluster down --dir {}", running));
  std::_Exit(1);
}

void run(const std::string& command) {
  if (!ordermoe_does(command)) give_up(fmt::format("`ordermoe {}` failed", command));
}

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  give_up(value.error().message);
}

struct options {
  std::string model, cluster, strategy, budget, costs = "mixtral-8x7b";
  bool reports = true, only_emulated = false;
  double dilation = 1;
  std::size_t requests = 12;
  std::uint32_t new_tokens = 48;
  std::vector<std::size_t> in_flight;
  double most_time_percent = -1, most_bytes_percent = -1;  ///< Negative: anything will do.
};

/// What was answered and sent.
struct outcome {
  std::vector<actors::request_outcome> answers;  ///< By request.
  bytes_by_kind bytes{};
};

struct times {
  double token_ms = 0, first_ms = 0;
};

times mean_times(const outcome& of, double dilation) {
  times mean;
  for (const auto& each : of.answers) {
    const auto n = static_cast<double>(actors::further_tokens(each));
    const auto ms = [&](std::int64_t ns) { return static_cast<double>(ns) * 1e-6 / dilation; };
    mean.token_ms += ms(each.done_ns - each.first_token_ns) / std::max(1.0, n);
    mean.first_ms += ms(each.first_token_ns - each.arrival_ns);
  }
  const auto n = static_cast<double>(of.answers.size());
  return {mean.token_ms / n, mean.first_ms / n};
}

/// Asks in rows: ask(i, ended) asks request i and has `ended` called with what came of it.
class rows {
 public:
  using ask_function =
      std::function<void(std::size_t, std::function<void(const actors::request_outcome&)>)>;
  rows(std::size_t n, std::size_t in_flight, ask_function ask)
      : in_flight_(in_flight), ask_(std::move(ask)), answers_(n) {}

  void begin() {
    for (std::size_t row = 0; row < std::min(in_flight_, answers_.size()); ++row) next(row);
  }
  bool done() const {
    const std::lock_guard lock(mutex_);
    return n_ended_ == answers_.size();
  }
  std::vector<actors::request_outcome> take_answers() { return std::move(answers_); }

 private:
  void next(std::size_t i) {
    ask_(i, [this, i](const actors::request_outcome& ended) {
      if (ended.problem) give_up(ended.problem->message);
      // Once the last has ended nobody may look here any more.
      const bool more = i + in_flight_ < answers_.size();
      {
        const std::lock_guard lock(mutex_);
        answers_[i] = ended;
        ++n_ended_;
      }
      if (more) next(i + in_flight_);
    });
  }

  std::size_t in_flight_;
  ask_function ask_;
  mutable std::mutex mutex_;
  std::vector<actors::request_outcome> answers_;
  std::size_t n_ended_ = 0;
};

/// Processes in network namespaces, of a folder of their own, ended with it.
class rehearsed_cluster {
 public:
  explicit rehearsed_cluster(const options& given) {
    run(
        fmt::format("cluster up --netns --rehearse --model {} --cluster {} --dir {} --strategy {} "
                    "--costs {} --threads 1 "
                    "--dilation {}{}{} > /dev/null",
                    given.model, given.cluster, folder_.string(), given.strategy, given.costs,
                    given.dilation, given.budget.empty() ? "" : " --quality-budget " + given.budget,
                    given.reports ? "" : " --load-period-ms 0 --links stated"));
    running = folder_.string();
    const setup::cluster_folder folder{folder_};
    const auto identity = take(net::tls_identity::load(folder.certificates() / "ca.crt",
                                                       folder.certificates() / "console.crt",
                                                       folder.certificates() / "console.key"));
    for (const auto& file : take(setup::read_cluster_folder(folder)))
      clients_.push_back(take(actors::cluster_client::connect(
          identity, take(net::parse_address(file.listen.front())), std::chrono::seconds(5))));
  }
  ~rehearsed_cluster() {
    clients_.clear();
    running.clear();
    run(fmt::format("cluster down --dir {}", folder_.string()));
    fs::remove_all(folder_);
  }

  fs::path plan() const { return setup::cluster_folder{folder_}.plan(); }

  outcome ask(const std::vector<actors::request_spec>& requests, std::size_t in_flight) {
    const auto before = charged();
    rows all(requests.size(), in_flight, [&](std::size_t i, auto ended) {
      actors::remote_request wanted;
      wanted.spec = requests[i];
      wanted.spec.sampling_stream = i;
      clients_[requests[i].access]->submit(std::move(wanted), {{}, std::move(ended)});
    });
    all.begin();
    clients_.front()->wait([&] { return all.done(); });
    outcome made{all.take_answers(), charged()};
    for (std::size_t i = 0; i < before.size(); ++i) made.bytes[i] -= before[i];
    return made;
  }

  /// By how much the latest round trip of each session was longer than its links' latencies: what processes, sockets and
  /// the relays add.
  bench::spread added_round_trip_us(const cluster& servers, double dilation) {
    std::vector<double> all;
    for (std::size_t m = 0; m < clients_.size(); ++m)
      for (const auto& peer : status_of(*clients_[m]).at("peers")) {
        const server_id here(m), there(peer.at("server").get<std::size_t>());
        const auto latencies = static_cast<double>(servers.link(here, there).latency_ns +
                                                   servers.link(there, here).latency_ns);
        all.push_back((peer.at("round_trip_ns").get<double>() - dilation * latencies) * 1e-3);
      }
    return bench::spread_of(std::move(all));
  }

  /// Of all devices, what each counted so far.
  nlohmann::json rehearsal_figures() {
    nlohmann::json all = nlohmann::json::object();
    for (const auto& client : clients_) {
      const auto status = status_of(*client);
      for (const auto& [name, value] : status.at("rehearsal").items())
        all[name] = name == "most_exceeded_ns" ? std::max(all.value(name, 0.0), value.get<double>())
                                               : all.value(name, 0.0) + value.get<double>();
    }
    return all;
  }

 private:
  static nlohmann::json status_of(actors::cluster_client& node) {
    return nlohmann::json::parse(take(node.status(std::chrono::seconds(10))));
  }
  bytes_by_kind charged() {
    bytes_by_kind all{};
    for (const auto& client : clients_) {
      const auto status = status_of(*client);
      for (const auto& link : status.at("links"))
        for (std::size_t kind = 0; kind < all.size(); ++kind)
          all[kind] += link.at("charged_bytes")
                           .at(wire::to_string(static_cast<wire::frame_kind>(kind)))
                           .get<std::int64_t>();
    }
    return all;
  }
  fs::path folder_ =
      fs::temp_directory_path() / fmt::format("ordermoe-bench-rehearsal-{}", ::getpid());
  std::vector<std::unique_ptr<actors::cluster_client>> clients_;
};

/// The same in virtual time, by the plan that the nodes have.
actors::service_options emulated_options(const options& given, const fs::path& plan, job& work) {
  setup::world_options wanted;
  wanted.costs = given.costs;
  wanted.model = given.model;
  wanted.cluster = given.cluster;
  const auto world = take(setup::load_world(wanted, work));
  const auto file = take(setup::read_plan_file(plan));
  setup::preparation_request request;
  request.strategy = file.origin.strategy;
  request.options.quality_percent = file.origin.quality_percent;
  request = take(setup::request_with(file, std::move(request)));
  auto made = take(setup::prepare(world, request, work)).service;
  made.mode = actors::run_mode::emulated;
  if (!given.reports) made.load_period_ns = 0;
  return made;
}

/// By the plan that a cluster would get.
actors::service_options emulated_alone(const options& given, job& work) {
  const auto plan =
      fs::temp_directory_path() / fmt::format("ordermoe-bench-rehearsal-{}.json", ::getpid());
  run(fmt::format("plan --model {} --cluster {} --strategy {} --costs {}{} --out {} > /dev/null",
                  given.model, given.cluster, given.strategy, given.costs,
                  given.budget.empty() ? "" : " --quality-budget " + given.budget, plan.string()));
  auto made = emulated_options(given, plan, work);
  fs::remove(plan);
  return made;
}

outcome emulate(const actors::service_options& how,
                const std::vector<actors::request_spec>& requests, std::size_t in_flight) {
  const auto service = take(actors::service::start(how));
  rows all(requests.size(), in_flight, [&](std::size_t i, auto ended) {
    auto spec = requests[i];
    spec.sampling_stream = i;
    service->submit(std::move(spec), {{}, std::move(ended)});
  });
  all.begin();
  if (!service->run_until([&] { return all.done(); })) give_up("the emulation came to rest early");
  if (auto settled = service->settle(); !settled) give_up(settled.error().message);
  outcome made{all.take_answers(), {}};
  for (const auto& link : take(service->status()).links)
    for (std::size_t kind = 0; kind < made.bytes.size(); ++kind)
      made.bytes[kind] += link.ledger.charged_by_kind[kind];
  return made;
}

std::vector<actors::request_spec> requests_of(const actors::service_options& how,
                                              const options& given) {
  const auto ids = how.tokens->encode(take(read_file(ORDERMOE_DATA "/eval/held-out.txt")));
  constexpr std::size_t prompt = 16;
  std::vector<actors::request_spec> requests(given.requests);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto at = ids.begin() + static_cast<std::ptrdiff_t>(i * prompt % (ids.size() - prompt));
    requests[i].prompt.assign(at, at + prompt);
    requests[i].max_new_tokens = given.new_tokens;
    requests[i].ignore_end_of_text = true;
  }
  actors::draw_arrivals(requests, how.servers, 0, 1);
  return requests;
}

bool same_ids(const outcome& a, const outcome& b) {
  return std::ranges::equal(a.answers, b.answers, {}, &actors::request_outcome::token_ids,
                            &actors::request_outcome::token_ids);
}

double percent(double found, double expected) {
  return expected == 0 ? (found == 0 ? 0 : 100) : 100 * (found / expected - 1);
}

constexpr wire::frame_kind data_kinds[] = {wire::frame_kind::token, wire::frame_kind::call,
                                           wire::frame_kind::output, wire::frame_kind::kv};

/// Whether they are as near as they should be.
bool near(const options& given, const outcome& expected, const outcome& found) {
  const auto within = [](double most, double a, double b) {
    return most < 0 || std::abs(percent(a, b)) <= most;
  };
  const bool in_time = within(given.most_time_percent, mean_times(found, given.dilation).token_ms,
                              mean_times(expected, 1).token_ms);
  return in_time && std::ranges::all_of(data_kinds, [&](wire::frame_kind kind) {
           const auto i = static_cast<std::size_t>(kind);
           return within(given.most_bytes_percent, static_cast<double>(found.bytes[i]),
                         static_cast<double>(expected.bytes[i]));
         });
}

std::string difference(double found, double expected) {
  if (expected == 0) return found == 0 ? "0" : "new";
  return fmt::format("{:+.2f} %", percent(found, expected));
}

void print_title(const options& given, std::size_t in_flight) {
  fmt::print("{}{}{}, {} in flight, dilation {:g}\n", given.strategy,
             given.budget.empty() ? "" : fmt::format(" {} %", given.budget),
             given.reports ? "" : ", reports off and links as stated", in_flight, given.dilation);
}

int print_emulated(const options& given) {
  job work;
  const auto how = emulated_alone(given, work);
  for (const auto in_flight : given.in_flight) {
    const auto mean = mean_times(emulate(how, requests_of(how, given), in_flight), 1);
    print_title(given, in_flight);
    fmt::print("  {:<12}{:>14}\n", "", "emulated");
    fmt::print("  {:<12}{:>14.2f} ms, mean after the first\n", "token", mean.token_ms);
    fmt::print("  {:<12}{:>14.2f} ms\n\n", "first", mean.first_ms);
  }
  return 0;
}

void print(const options& given, std::size_t in_flight, const outcome& expected,
           const outcome& found, const nlohmann::json& before, const nlohmann::json& after) {
  const auto emulated = mean_times(expected, 1), rehearsed = mean_times(found, given.dilation);
  print_title(given, in_flight);
  fmt::print("  {:<12}{:>14}{:>14}{:>10}\n", "", "emulated", "rehearsed", "");
  const auto row = [](const char* name, double a, double b, const char* unit) {
    fmt::print("  {:<12}{:>14.2f}{:>14.2f}{:>10} {}\n", name, a, b, difference(b, a), unit);
  };
  row("token", emulated.token_ms, rehearsed.token_ms, "ms, mean after the first");
  row("first", emulated.first_ms, rehearsed.first_ms, "ms");
  using kind = wire::frame_kind;
  for (const auto each : {kind::token, kind::call, kind::output, kind::kv, kind::progress,
                          kind::reservation, kind::load}) {
    const auto i = static_cast<std::size_t>(each);
    if (expected.bytes[i] == 0 && found.bytes[i] == 0) continue;
    fmt::print(
        "  {:<12}{:>14}{:>14}{:>10} bytes\n", wire::to_string(each), expected.bytes[i],
        found.bytes[i],
        difference(static_cast<double>(found.bytes[i]), static_cast<double>(expected.bytes[i])));
  }
  const auto grown = [&](const char* name) {
    return after.value(name, 0.0) - before.value(name, 0.0);
  };
  const auto share = [&](const char* name) {
    return 100 * grown(name) / std::max(1.0, grown("charged_ns"));
  };
  fmt::print(
      "  {} of {} batches took longer than charged: devices' time {:+.1f} %, {:+.1f} % by waking "
      "late; "
      "ids {}\n",
      grown("exceeded"), grown("batches"), share("exceeded_ns"), share("late_ns"),
      same_ids(expected, found) ? "equal" : "differ");
  std::fflush(stdout);
}

options read_arguments(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr,
               "usage: bench_rehearsal MODEL CLUSTER STRATEGY [--budget PERCENT] [--no-reports] "
               "[--dilation X] [--requests N] [--new-tokens N] [--in-flight K]... [--costs NAME] "
               "[--most-time-percent P] [--most-bytes-percent P] [--only-emulated]\n");
    std::exit(2);
  }
  options given;
  given.model = argv[1];
  given.cluster = argv[2];
  given.strategy = argv[3];
  for (int i = 4; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--no-reports" || name == "--only-emulated") {
      (name == "--no-reports" ? given.reports : given.only_emulated) = name != "--no-reports";
      continue;
    }
    if (i + 1 >= argc) give_up(fmt::format("found {} without a value", name));
    const std::string value = argv[++i];
    if (name == "--budget")
      given.budget = value;
    else if (name == "--most-time-percent")
      given.most_time_percent = std::atof(value.c_str());
    else if (name == "--most-bytes-percent")
      given.most_bytes_percent = std::atof(value.c_str());
    else if (name == "--costs")
      given.costs = value;
    else if (name == "--dilation")
      given.dilation = std::atof(value.c_str());
    else if (name == "--requests")
      given.requests = static_cast<std::size_t>(std::max(1, std::atoi(value.c_str())));
    else if (name == "--new-tokens")
      given.new_tokens = static_cast<std::uint32_t>(std::max(2, std::atoi(value.c_str())));
    else if (name == "--in-flight")
      given.in_flight.push_back(static_cast<std::size_t>(std::max(1, std::atoi(value.c_str()))));
    else
      give_up(
          fmt::format("found {}, expected one of those that are printed without arguments", name));
  }
  if (given.in_flight.empty()) given.in_flight = {1, 4};
  return given;
}

}  // namespace

int main(int argc, char** argv) {
  keep_freed_memory();
  const auto given = read_arguments(argc, argv);
  if (given.only_emulated) return print_emulated(given);
  rehearsed_cluster cluster(given);
  job work;
  const auto how = emulated_options(given, cluster.plan(), work);
  const auto requests = requests_of(how, given);
  // Connections and memory are there before anything counts.
  cluster.ask({requests.front()}, 1);
  bool good = true;
  for (const auto in_flight : given.in_flight) {
    const auto expected = emulate(how, requests, in_flight);
    const auto before = cluster.rehearsal_figures();
    const auto found = cluster.ask(requests, in_flight);
    print(given, in_flight, expected, found, before, cluster.rehearsal_figures());
    const auto added = cluster.added_round_trip_us(how.servers, given.dilation);
    fmt::print(
        "  round trips between nodes: {:.0f} us beyond their links' latency (quartiles {:.0f} to "
        "{:.0f})\n\n",
        added.middle, added.low, added.high);
    std::fflush(stdout);
    if (near(given, expected, found)) continue;
    fmt::print("  further from the emulation than {:g} % of time and {:g} % of bytes\n\n",
               given.most_time_percent, given.most_bytes_percent);
    good = false;
  }
  return good ? 0 : 1;
}
