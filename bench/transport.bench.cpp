// What it costs to reach an actor on another node.
//
// bench_transport [rounds]: both ends in this process, each with its own threads and actor system, over loopback.
// In each round, in turn:
//   round trip   8 KiB to the other node's actor and back, over TLS over TCP and over CAF's middleman, against the
//                same bytes echoed by asynchronous Boost.Asio over TLS 1.3 with the same certificates: the median of 2,000
//   processor    frames of 1.3 KB, 64 in flight each way: user and system time of both ends together, a frame; half of it is
//                the sender's, what `--costs NAME:message-us=N` charges
// Prints medians and quartiles over the rounds.

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/caf_channel/caf_connections.hpp"
#include "actors/scheduling/lending_unit.hpp"
#include "bench/spread.hpp"
#include "net/channel/tls_connections.hpp"
#include "net/channel/transport.hpp"
#include "net/identity/certificates.hpp"

namespace {

using namespace ordermoe;
namespace fs = std::filesystem;
namespace asio = boost::asio;
using asio::ip::tcp;
using clock = std::chrono::steady_clock;
using tls_socket = asio::ssl::stream<tcp::socket>;

constexpr std::size_t echo_bytes = 8 * 1024, small_bytes = 1300;
constexpr int n_echoes = 2000, n_small = 200'000, in_flight = 64;

template <class T>
T take(result<T> value) {
  if (value) return std::move(*value);
  fmt::print(stderr, "bench_transport: {}\n", value.error().message);
  std::exit(1);
}
void take(const result<void>& done) {
  if (done) return;
  fmt::print(stderr, "bench_transport: {}\n", done.error().message);
  std::exit(1);
}

double us_since(clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(clock::now() - begin).count();
}

double processor_us() {
  rusage use{};
  ::getrusage(RUSAGE_SELF, &use);
  const auto us = [](const timeval& t) {
    return 1e6 * static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec);
  };
  return us(use.ru_utime) + us(use.ru_stime);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

struct certificates {
  fs::path folder =
      fs::temp_directory_path() / fmt::format("ordermoe-bench-transport-{}", ::getpid());
  certificates() {
    take(net::make_authority(folder, "bench", 1));
    for (const char* name : {"a", "b"}) {
      net::certificate_request wanted;
      wanted.name = name;
      take(net::issue(folder, wanted));
    }
  }
  ~certificates() { fs::remove_all(folder); }
  std::shared_ptr<const net::tls_identity> identity(const std::string& name) const {
    return take(net::tls_identity::load(folder / "ca.crt", folder / (name + ".crt"),
                                        folder / (name + ".key")));
  }
};

// ------------------------------------------------------------------------------------- bare Boost.Asio

asio::ssl::context context_of(const fs::path& folder, const std::string& name) {
  asio::ssl::context made(asio::ssl::context::tlsv13);
  made.load_verify_file((folder / "ca.crt").string());
  made.use_certificate_file((folder / (name + ".crt")).string(), asio::ssl::context::pem);
  made.use_private_key_file((folder / (name + ".key")).string(), asio::ssl::context::pem);
  made.set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert);
  return made;
}

class bare_echo {
 public:
  explicit bare_echo(const fs::path& folder)
      : contexts_{context_of(folder, "a"), context_of(folder, "b")},
        acceptor_(io_b_, {asio::ip::address_v4::loopback(), 0}) {
    near_ = std::make_unique<tls_socket>(io_a_, contexts_[0]);
    far_ = std::make_unique<tls_socket>(io_b_, contexts_[1]);
    std::thread accepting([&] {
      acceptor_.accept(far_->lowest_layer());
      far_->handshake(tls_socket::server);
    });
    near_->lowest_layer().connect(acceptor_.local_endpoint());
    near_->handshake(tls_socket::client);
    accepting.join();
    for (auto* each : {near_.get(), far_.get()})
      each->lowest_layer().set_option(tcp::no_delay(true));
    echo();
    thread_ = std::thread([this] { io_b_.run(); });
  }
  ~bare_echo() {
    io_b_.stop();
    thread_.join();
  }

  double round_trip_us() {
    std::vector<double> times;
    begin_ = clock::now();
    once(times);
    io_a_.restart();
    io_a_.run();
    return median(std::move(times));
  }

 private:
  void echo() {
    asio::async_read(*far_, asio::buffer(far_bytes_), [this](auto failed, std::size_t) {
      if (failed) return;
      asio::async_write(*far_, asio::buffer(far_bytes_), [this](auto why, std::size_t) {
        if (!why) echo();
      });
    });
  }
  void once(std::vector<double>& times) {
    begin_ = clock::now();
    asio::async_write(*near_, asio::buffer(near_bytes_), [this, &times](auto failed, std::size_t) {
      if (failed) return;
      asio::async_read(*near_, asio::buffer(near_bytes_), [this, &times](auto why, std::size_t) {
        if (why) return;
        times.push_back(us_since(begin_));
        if (times.size() < n_echoes) once(times);
      });
    });
  }

  asio::io_context io_a_, io_b_;
  asio::ssl::context contexts_[2];
  tcp::acceptor acceptor_;
  std::unique_ptr<tls_socket> near_, far_;
  std::vector<char> near_bytes_ = std::vector<char>(echo_bytes),
                    far_bytes_ = std::vector<char>(echo_bytes);
  clock::time_point begin_;
  std::thread thread_;
};

// --------------------------------------------------------------------------------------------- actors

struct arrived {
  std::string payload;
};

}  // namespace

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(arrived)

namespace {

using frame_actor = caf::typed_actor<caf::reacts_to<arrived>>;

/// A node: a transport whose frames go to one actor, on the thread that read them.
class end_of_link final : public net::transport_user {
 public:
  using on_frame = std::function<void(std::string)>;

  end_of_link(net::transport_options options, on_frame use) : system_(config_), lending_(&system_) {
    actor_ = system_.spawn([use](frame_actor::pointer) -> frame_actor::behavior_type {
      return {[use](arrived& message) { use(std::move(message.payload)); }};
    });
    transport_ = ::take(net::transport::start(std::move(options), *this));
  }
  ~end_of_link() override {
    transport_->stop();
    caf::anon_send_exit(actor_, caf::exit_reason::user_shutdown);
    actor_ = nullptr;
    system_.await_all_actors_done();
  }

  void send(std::string payload) {
    transport_->send(0, net::lane::token, 0, 0, 0, 0, std::move(payload));
  }
  bool up() const { return transport_->figures(0).up; }
  std::uint16_t port() const { return transport_->listens_at().front().port; }

  void take(net::peer_id, std::vector<net::session_event> events) override {
    for (auto& event : events) {
      if (event.kind != net::session_event::what::frame) continue;
      const auto bytes = net::session::frame_bytes(event.header);
      caf::actor_cast<caf::strong_actor_ptr>(actor_)->enqueue(
          caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                    arrived{std::move(event.text)}),
          &lending_);
      transport_->used(0, net::lane::token, bytes);
    }
    lending_.lend([this] {
      if (transport_) transport_->flush();
    });
  }
  void client_came(net::peer_id, const net::certificate_name&) override {}
  void problem(const std::string&, const error&) override {}

 private:
  caf::actor_system_config config_;
  caf::actor_system system_;
  actors::lending_unit lending_;
  frame_actor actor_;
  std::unique_ptr<net::transport> transport_;
};

/// Counts down; whoever waits is woken at 0.
struct countdown {
  std::mutex mutex;
  std::condition_variable over;
  std::atomic<int> left{0};
  void begin(int n) { left = n; }
  bool one() {
    const auto now = --left;
    if (now == 0) {
      const std::lock_guard lock(mutex);
      over.notify_all();
    }
    return now > 0;
  }
  void wait() {
    std::unique_lock lock(mutex);
    over.wait(lock, [this] { return left <= 0; });
  }
};

class two_nodes {
 public:
  two_nodes(const certificates& from, const net::connections_maker& carried_by) {
    net::transport_options options;
    options.carried_by = carried_by;
    options.identity = from.identity("b");
    options.listen = {{"127.0.0.1", 0}};
    options.peers = {{"a", std::nullopt}};
    // The far end gives back what it gets.
    b_ = std::make_unique<end_of_link>(
        options, [this](std::string payload) { b_->send(std::move(payload)); });
    options.identity = from.identity("a");
    options.listen = {};
    options.peers = {{"b", net::address{"127.0.0.1", b_->port()}}};
    a_ = std::make_unique<end_of_link>(options,
                                       [this](std::string payload) { back(std::move(payload)); });
    while (!a_->up() || !b_->up()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  double round_trip_us() {
    times_.clear();
    left_.begin(n_echoes);
    measures_ = true;
    begin_ = clock::now();
    a_->send(std::string(echo_bytes, 'x'));
    left_.wait();
    measures_ = false;
    return median(times_);
  }

  /// Of both ends, a frame.
  double processor_us_a_frame() {
    left_.begin(n_small);
    const auto before = processor_us();
    for (int i = 0; i < in_flight; ++i) a_->send(std::string(small_bytes, 'x'));
    left_.wait();
    // Each went there and back.
    return (processor_us() - before) / (2.0 * n_small);
  }

 private:
  void back(std::string payload) {
    if (measures_) times_.push_back(us_since(begin_));
    const bool more = left_.one();
    begin_ = clock::now();
    if (more) a_->send(std::move(payload));
  }

  std::unique_ptr<end_of_link> a_, b_;
  countdown left_;
  std::atomic<bool> measures_ = false;
  clock::time_point begin_;
  std::vector<double> times_;
};

void print(const char* what, const std::vector<double>& values, const char* unit) {
  const auto s = bench::spread_of(values);
  fmt::print("{:<58}{:>8.2f} ({:.2f} to {:.2f}) {}\n", what, s.middle, s.low, s.high, unit);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 9;
  const certificates from;
  bare_echo bare(from.folder);
  two_nodes nodes(from, net::tls_connections), caf_nodes(from, actors::caf_connections);
  std::vector<double> bare_us, actor_us, ratio, processor, caf_us, caf_ratio, caf_processor;
  for (int round = 0; round <= rounds; ++round) {
    const auto bare_one = bare.round_trip_us(), actor_one = nodes.round_trip_us(),
               use = nodes.processor_us_a_frame();
    const auto caf_one = caf_nodes.round_trip_us(), caf_use = caf_nodes.processor_us_a_frame();
    if (round == 0) continue;
    bare_us.push_back(bare_one);
    actor_us.push_back(actor_one);
    ratio.push_back(actor_one / bare_one);
    processor.push_back(use);
    caf_us.push_back(caf_one);
    caf_ratio.push_back(caf_one / bare_one);
    caf_processor.push_back(caf_use);
  }
  fmt::print("{} rounds: medians (quartiles)\n", rounds);
  print("8 KiB there and back, asynchronous Boost.Asio over TLS", bare_us, "us");
  print("8 KiB to another node's actor and back", actor_us, "us");
  print("ratio", ratio, "; we aim for 1.25");
  print("processor time of a frame of 1.3 KB, both ends", processor, "us; we aim for 5");
  print("8 KiB to another node's actor and back, channel caf", caf_us, "us");
  print("ratio, channel caf", caf_ratio, "");
  print("processor time of a frame of 1.3 KB, channel caf", caf_processor, "us");
}
