// What bulk costs the tokens beside it, on a link of a known rate.
//
// bench_bulk [--rounds N] [--mib N] [--mbit N] [--delay-ms X] [--shaper-kb N] [--token-bytes N]    (as root)
//
// Two processes in two network namespaces, with `tc tbf` both ways between them: one sends tokens, which the other sends
// back, every millisecond or so. In each round, in turn: nothing else; then a transfer of `--mib` MiB (net/bulk) the
// way that the tokens go; then, in its place, plain TCP on a connection of its own, as fast as it goes. Prints JSON: of
// each round, and medians with their range, the round trips of the tokens, bytes of bulk against the link's rate, and
// processor time of both processes.

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bench/spread.hpp"
#include "config/random.hpp"
#include "net/bulk/transfer.hpp"
#include "net/channel/transport.hpp"
#include "net/identity/certificates.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;
using json = nlohmann::ordered_json;
using clock = std::chrono::steady_clock;

struct settings {
  int rounds = 5;
  std::uint64_t mib = 1024;
  double mbit = 1000, delay_ms = 0;
  int shaper_kb = 32;
  std::size_t token_bytes = 8 * 1024;
};

constexpr int idle_s = 4, plain_s = 4;
constexpr std::uint16_t port = 7400, plain_port = 7401;
constexpr std::size_t block_bytes = 1u << 20;

[[noreturn]] void fail(const std::string& why) {
  fmt::print(stderr, "bench_bulk: {}\n", why);
  std::exit(1);
}
template <class T>
T take(result<T> value) {
  if (!value) fail(value.error().message);
  return std::move(*value);
}
void take(const result<void>& done) {
  if (!done) fail(done.error().message);
}

double processor_s() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto s = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return s(use.ru_utime) + s(use.ru_stime);
}

/// A thing of any size that no memory holds: a block that repeats.
class repeated_block final : public net::bulk_shelf {
 public:
  explicit repeated_block(std::uint64_t bytes) : bytes_(bytes), block_(block_bytes, '\0') {
    random_stream draws(1);
    for (auto& each : block_) each = static_cast<char>(draws.bits());
  }
  result<std::uint64_t> find(const std::string&) override { return bytes_; }
  result<std::string> read(const std::string&, std::uint64_t offset, std::size_t n) override {
    const auto at = static_cast<std::size_t>(offset % block_bytes);
    auto part = block_.substr(at, n);
    part += block_.substr(0, n - part.size());
    return part;
  }
  net::bulk_item item() const {
    sha256 digest;
    for (std::uint64_t at = 0; at < bytes_; at += block_bytes) digest.update(block_);
    return {"block", bytes_, digest.finish()};
  }

 private:
  std::uint64_t bytes_;
  std::string block_;
};

net::transport_options options_of(const fs::path& folder, const std::string& name) {
  net::transport_options options;
  options.identity = take(net::tls_identity::load(folder / "ca.crt", folder / (name + ".crt"),
                                                  folder / (name + ".key")));
  return options;
}

enum token_kind : std::uint8_t { echo = 1, go, done };

// ------------------------------------------------------------------------------------------ far end

/// Sends tokens back, and asks for the thing when it is told to.
class far_end final : public net::transport_user {
 public:
  far_end(const fs::path& folder, const settings& how)
      : item_(repeated_block(how.mib << 20).item()) {
    auto options = options_of(folder, "b");
    options.listen = {{"0.0.0.0", port}};
    options.peers = {{"a", std::nullopt}};
    auto begun = ::take(net::transport::start(std::move(options), *this));
    const std::lock_guard lock(mutex_);
    transport_ = std::move(begun);
    there_.notify_all();
  }

  void take(net::peer_id, std::vector<net::session_event> events) override {
    {
      std::unique_lock lock(mutex_);
      there_.wait(lock, [this] { return transport_ != nullptr; });
    }
    for (auto& event : events) {
      if (event.kind != net::session_event::what::frame) continue;
      const auto of = event.header.of;
      const auto bytes = net::session::frame_bytes(event.header);
      of == net::lane::bulk ? take_bulk(event) : take_token(std::move(event));
      transport_->used(0, of, bytes);
    }
  }
  void client_came(net::peer_id, const net::certificate_name&) override {}
  void problem(const std::string& who, const error& why) override {
    fmt::print(stderr, "{}: {}\n", who, why.message);
  }

 private:
  void say(token_kind kind, std::string payload) {
    transport_->send(0, net::lane::token, kind, 0, 0, 0, std::move(payload));
  }
  void take_token(net::session_event event) {
    if (event.header.kind == echo) {
      transport_->send(0, net::lane::token, echo, 0, 0, 0, std::move(event.text),
                       event.header.stamp);
      return;
    }
    receiver_.emplace(item_, ++n_, [](std::string_view) { return result<void>{}; });
    const auto ask = receiver_->ask();
    transport_->send(0, net::lane::bulk, static_cast<std::uint8_t>(ask.kind), ask.request,
                     ask.attempt, 0, ask.payload);
  }
  void take_bulk(const net::session_event& event) {
    ::take(receiver_->take(event.header, event.text));
    if (receiver_->done()) say(done, "");
  }

  net::bulk_item item_;
  std::uint64_t n_ = 0;
  std::optional<net::bulk_receiver> receiver_;
  std::mutex mutex_;
  std::condition_variable there_;
  std::unique_ptr<net::transport> transport_;
};

/// Drops what comes on plain connections, one after the other.
[[noreturn]] void drain_plain() {
  const int at = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in here{};
  here.sin_family = AF_INET;
  here.sin_port = htons(plain_port);
  if (::bind(at, reinterpret_cast<sockaddr*>(&here), sizeof here) != 0 || ::listen(at, 1) != 0)
    fail("cannot listen for plain TCP");
  std::vector<char> into(256 * 1024);
  for (;;) {
    const int with = ::accept(at, nullptr, nullptr);
    while (::recv(with, into.data(), into.size(), 0) > 0) continue;
    ::close(with);
  }
}

[[noreturn]] void be_far(const fs::path& folder, const settings& how) {
  const far_end end(folder, how);
  drain_plain();
}

// ----------------------------------------------------------------------------------------- near end

/// Sends tokens and takes the time until they are back, and gives the thing where it is asked for.
class near_end final : public net::transport_user {
 public:
  near_end(const fs::path& folder, const settings& how, const std::string& far)
      : shelf_(how.mib << 20), token_bytes_(how.token_bytes) {
    auto options = options_of(folder, "a");
    options.peers = {{"b", net::address{far, port}}};
    auto begun = ::take(net::transport::start(std::move(options), *this));
    {
      const std::lock_guard lock(mutex_);
      transport_ = std::move(begun);
    }
    changed_.notify_all();
    while (!figures().up || figures().bytes_per_s == 0) pause(10);
    tokens_ = std::thread([this] { send_tokens(); });
    parts_ = std::thread([this] { send_parts(); });
  }
  ~near_end() override {
    ends_ = true;
    tokens_.join();
    parts_.join();
    transport_->stop();
  }

  net::peer_figures figures() const { return transport_->figures(0); }
  /// Of tokens from now on; microseconds.
  void begin_times() {
    const std::lock_guard lock(mutex_);
    times_us_.clear();
  }
  std::vector<double> times_us() {
    const std::lock_guard lock(mutex_);
    return times_us_;
  }
  /// Until the other end has all of it, checked.
  void transfer() {
    std::unique_lock lock(mutex_);
    done_ = false;
    transport_->send(0, net::lane::token, go, 0, 0, 0, "");
    if (!changed_.wait_for(lock, std::chrono::minutes(5), [this] { return done_; }))
      fail("the transfer does not end");
  }

  void take(net::peer_id, std::vector<net::session_event> events) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return transport_ != nullptr; });
    for (const auto& event : events) {
      if (event.kind == net::session_event::what::down) fail(event.text);
      if (event.kind != net::session_event::what::frame) continue;
      if (event.header.of == net::lane::bulk)
        ::take(sender_.take(event.header, event.text));
      else if (event.header.kind == echo)
        times_us_.push_back(now_us() - static_cast<double>(event.header.stamp) * 1e-3);
      else
        done_ = true;
      transport_->used(0, event.header.of, net::session::frame_bytes(event.header));
    }
    changed_.notify_all();
  }
  void client_came(net::peer_id, const net::certificate_name&) override {}
  void problem(const std::string& who, const error& why) override {
    fmt::print(stderr, "{}: {}\n", who, why.message);
  }

 private:
  static double now_us() {
    return std::chrono::duration<double, std::micro>(clock::now().time_since_epoch()).count();
  }
  static void pause(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

  void send_tokens() {
    random_stream draws(2);
    const std::string token(token_bytes_, 't');
    while (!ends_) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(static_cast<int>(draws.uniform(500, 1500))));
      // The stamp comes back.
      auto payload = token;
      transport_->send(0, net::lane::token, echo, 0, 0, 0, std::move(payload),
                       static_cast<std::uint64_t>(now_us() * 1e3));
    }
  }
  /// A little at a time, so that what is read is sent soon.
  void send_parts() {
    constexpr std::uint64_t most_waiting = 512 * 1024;
    for (; !ends_; pause(1))
      while (figures().lanes[static_cast<std::size_t>(net::lane::bulk)].waiting_bytes <
             most_waiting) {
        std::optional<net::bulk_frame> part;
        {
          const std::lock_guard lock(mutex_);
          part = sender_.next();
        }
        if (!part) break;
        transport_->send(0, net::lane::bulk, static_cast<std::uint8_t>(part->kind), part->request,
                         part->attempt, 0, std::move(part->payload));
      }
  }

  repeated_block shelf_;
  net::bulk_sender sender_{shelf_};
  std::size_t token_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<double> times_us_;
  bool done_ = false;
  std::atomic<bool> ends_{false};
  std::unique_ptr<net::transport> transport_;
  std::thread tokens_, parts_;
};

/// As much as goes, on a connection that nobody paces; bytes a second.
double send_plain(const std::string& far) {
  const int to = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in there{};
  there.sin_family = AF_INET;
  there.sin_port = htons(plain_port);
  ::inet_pton(AF_INET, far.c_str(), &there.sin_addr);
  if (::connect(to, reinterpret_cast<sockaddr*>(&there), sizeof there) != 0)
    fail("cannot connect for plain TCP");
  const std::string block(256 * 1024, 'x');
  const auto begin = clock::now();
  double bytes = 0, s = 0;
  while (s < plain_s) {
    bytes += static_cast<double>(::send(to, block.data(), block.size(), MSG_NOSIGNAL));
    s = std::chrono::duration<double>(clock::now() - begin).count();
  }
  ::close(to);
  return bytes / s;
}

// ------------------------------------------------------------------------------------------- rounds

double quantile(std::vector<double> values, double share) {
  if (values.empty()) fail("no token came back");
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(share * static_cast<double>(values.size() - 1))];
}

/// User and system time of another process so far.
double processor_s_of(pid_t other) {
  const auto path = fmt::format("/proc/{}/stat", other);
  auto* file = std::fopen(path.c_str(), "r");
  unsigned long user = 0, system = 0;
  if (file == nullptr ||
      std::fscanf(file, "%*d (%*[^)]) %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                  &system) != 2)
    fail("cannot read " + path);
  std::fclose(file);
  return static_cast<double>(user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// Of the tokens while something else happens: their times, and what both processes computed a second.
template <class Something>
json measured(near_end& near, pid_t far, Something something) {
  const auto before_s = processor_s() + processor_s_of(far);
  const auto begin = clock::now();
  near.begin_times();
  something();
  const auto times = near.times_us();
  const auto s = std::chrono::duration<double>(clock::now() - begin).count();
  return {{"seconds", s},
          {"tokens", times.size()},
          {"p50_us", quantile(times, 0.5)},
          {"p99_us", quantile(times, 0.99)},
          {"worst_us", quantile(times, 1)},
          {"processor_s_a_second", (processor_s() + processor_s_of(far) - before_s) / s}};
}

json round_of(near_end& near, pid_t far, const settings& how, const std::string& address) {
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::seconds(1)); };
  const auto link = how.mbit * 1e6 / 8;
  auto idle =
      measured(near, far, [] { std::this_thread::sleep_for(std::chrono::seconds(idle_s)); });
  const auto wire_before = near.figures().written_bytes;
  auto bulk = measured(near, far, [&] { near.transfer(); });
  const auto s = bulk["seconds"].get<double>();
  bulk["share_of_link"] = static_cast<double>(how.mib << 20) / s / link;
  bulk["share_of_link_with_tokens_and_tls"] =
      static_cast<double>(near.figures().written_bytes - wire_before) / s / link;
  bulk["measured_share_of_link"] = near.figures().bytes_per_s / link;
  bulk["p50_over_idle"] = bulk["p50_us"].get<double>() / idle["p50_us"].get<double>();
  sleep();
  double plain_bytes_per_s = 0;
  auto plain = measured(near, far, [&] { plain_bytes_per_s = send_plain(address); });
  plain["share_of_link"] = plain_bytes_per_s / link;
  plain["p50_over_idle"] = plain["p50_us"].get<double>() / idle["p50_us"].get<double>();
  sleep();
  return {{"idle", idle}, {"bulk", bulk}, {"plain_tcp", plain}};
}

json summary_of(const std::vector<json>& rounds) {
  json all;
  for (const char* what : {"idle", "bulk", "plain_tcp"})
    for (const auto& [name, ignored] : rounds.front()[what].items()) {
      std::vector<double> values;
      for (const auto& each : rounds) values.push_back(each[what][name].get<double>());
      const auto range = bench::range_of(values);
      all[what][name] = {{"median", range.middle}, {"least", range.low}, {"most", range.high}};
    }
  return all;
}

// ------------------------------------------------------------------------------------------ network

void run(const std::string& command) {
  if (std::system(command.c_str()) != 0)
    fail(fmt::format("`{}` failed; it needs root, ip and tc", command));
}

/// Two namespaces and a wire between them; what is in them ends with it.
class two_namespaces {
 public:
  explicit two_namespaces(const settings& how) {
    // Of a run that was cut short.
    for (const auto* end : {"a", "b"})
      run(fmt::format("ip netns del {} 2> /dev/null; ip netns add {}", name(end), name(end)));
    run(fmt::format("ip link add eth0 netns {} type veth peer name eth0 netns {}", name("a"),
                    name("b")));
    for (const auto* end : {"a", "b"}) {
      const auto in = name(end);
      run(fmt::format("ip -n {} addr add {}/24 dev eth0", in, address(end)));
      for (const auto* device : {"lo", "eth0"})
        run(fmt::format("ip -n {} link set {} up", in, device));
      run(
          fmt::format("tc -n {} qdisc add dev eth0 root handle 1: tbf rate {}mbit burst {}kb "
                      "latency 200ms",
                      in, how.mbit, how.shaper_kb));
      if (how.delay_ms > 0)
        run(fmt::format("tc -n {} qdisc add dev eth0 parent 1:1 netem delay {}ms limit 100000", in,
                        how.delay_ms));
    }
  }
  ~two_namespaces() {
    for (const auto* end : {"a", "b"}) run(fmt::format("ip netns del {}", name(end)));
  }
  /// The calling thread, and those that it makes, are there from now on.
  static void enter(const std::string& end) {
    const auto path = "/run/netns/" + name(end);
    const int space = ::open(path.c_str(), O_RDONLY);
    if (space < 0 || ::setns(space, CLONE_NEWNET) != 0) fail("cannot enter " + path);
    ::close(space);
  }
  static std::string address(const std::string& end) {
    return end == "a" ? "10.78.0.1" : "10.78.0.2";
  }

 private:
  static std::string name(const std::string& end) { return "ombulk-" + end; }
};

settings settings_of(int argc, char** argv) {
  settings how;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    const double value = i + 1 < argc ? std::atof(argv[i + 1]) : -1;
    if (value < 0) fail(flag + ": found no number, expected one");
    if (flag == "--rounds")
      how.rounds = std::max(1, static_cast<int>(value));
    else if (flag == "--mib")
      how.mib = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(value));
    else if (flag == "--mbit")
      how.mbit = value;
    else if (flag == "--delay-ms")
      how.delay_ms = value;
    else if (flag == "--shaper-kb")
      how.shaper_kb = static_cast<int>(value);
    else if (flag == "--token-bytes")
      how.token_bytes = std::max<std::size_t>(8, static_cast<std::size_t>(value));
    else
      fail(flag + ": expected --rounds, --mib, --mbit, --delay-ms, --shaper-kb or --token-bytes");
  }
  return how;
}

}  // namespace

int main(int argc, char** argv) {
  const auto how = settings_of(argc, argv);
  if (::geteuid() != 0) fail("makes network namespaces, which needs root; run it as root");
  const auto folder = fs::temp_directory_path() / fmt::format("ordermoe-bench-bulk-{}", ::getpid());
  take(net::make_authority(folder, "bench", 1));
  for (const char* name : {"a", "b"}) {
    net::certificate_request wanted;
    wanted.name = name;
    take(net::issue(folder, wanted));
  }
  std::vector<json> rounds;
  {
    const two_namespaces network(how);
    const auto far = ::fork();
    if (far == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      two_namespaces::enter("b");
      be_far(folder, how);
    }
    two_namespaces::enter("a");
    {
      near_end near(folder, how, two_namespaces::address("b"));
      for (int i = 0; i < how.rounds; ++i)
        rounds.push_back(round_of(near, far, how, two_namespaces::address("b")));
    }
    ::kill(far, SIGKILL);
    ::waitpid(far, nullptr, 0);
  }
  fs::remove_all(folder);
  const json all{{"link_mbit", how.mbit},
                 {"delay_ms", how.delay_ms},
                 {"shaper_burst_kb", how.shaper_kb},
                 {"transfer_mib", how.mib},
                 {"token_bytes", how.token_bytes},
                 {"processors", std::thread::hardware_concurrency()},
                 {"medians", summary_of(rounds)},
                 {"rounds", rounds}};
  fmt::print("{}\n", all.dump(2));
}
