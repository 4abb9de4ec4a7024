#include "net/relay/relay.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <future>
#include <thread>
#include <vector>

#include "config/sleep_lead.hpp"
#include "net/relay/connection.hpp"

namespace ordermoe::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

constexpr auto accept_again = std::chrono::milliseconds(100);

tcp::endpoint to_asio(const endpoint& of) {
  return {asio::ip::make_address(of.address), of.port};
}

result<void> check_endpoint(const char* name, const endpoint& of) {
  error_code bad;
  asio::ip::make_address(of.address, bad);
  if (!bad) return {};
  return error{errc::usage, fmt::format("{}: found '{}', expected an address of IPv4 or IPv6", name,
                                        of.address)};
}

result<void> check_options(const relay_options& options) {
  if (auto good = check_endpoint("listen", options.listen); !good) return good;
  if (auto good = check_endpoint("target", options.target); !good) return good;
  if (options.from == reach::loopback && !is_loopback(options.listen))
    return error{errc::usage,
                 fmt::format("listen: found {}, which other hosts may reach; expected a loopback "
                             "address such as 127.0.0.1, or remote ones allowed",
                             options.listen.address)};
  if (options.target.port == 0)
    return error{errc::usage, "target: found port 0, expected the one that it listens on"};
  for (const auto of : {direction::to, direction::back})
    if (auto good = check(options.conditions[static_cast<std::size_t>(of)]); !good)
      return at(to_string(of), good.error());
  return {};
}

}  // namespace

/// Everything but the constructor, the destructor and run() on its thread.
struct relay::state {
  explicit state(const relay_options& options)
      : target(to_asio(options.target)),
        links{link(options.seed, options.least_buffer_bytes),
              link(~options.seed, options.least_buffer_bytes)} {
    for (std::size_t i = 0; i < n_directions; ++i) links[i].set(options.conditions[i], steady_ns());
  }
  ~state() {
    io.stop();
    if (thread.joinable()) thread.join();
  }

  result<void> listen(const endpoint& on);
  void accept();
  void accepted(const error_code& problem, tcp::socket near);
  void pump(direction of);
  /// The next byte is due then.
  void pump_at(direction of, std::int64_t due_ns);
  void cut(const cut_options& how);
  relay_counters counters() const;
  link& at(direction of) { return links[static_cast<std::size_t>(of)]; }

  /// Does something on the thread, and comes back with what it gives.
  template <class Action>
  auto on_thread(Action action) {
    std::packaged_task<decltype(action())()> task(std::move(action));
    auto done = task.get_future();
    asio::post(io, std::move(task));
    return done.get();
  }

  tcp::endpoint target;
  relayed_connection::links links;
  relay_counters so_far;  ///< Without what is asked for when they are read.
  std::int64_t refused_until_ns = 0;
  std::array<std::size_t, n_directions> first_turn{};
  std::uint16_t port = 0;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
  tcp::acceptor acceptor{io};
  asio::steady_timer accept_timer{io};
  std::array<asio::steady_timer, n_directions> timers{asio::steady_timer(io),
                                                      asio::steady_timer(io)};
  sleep_lead lead;
  std::vector<std::shared_ptr<relayed_connection>> connections;
  std::thread thread;
};

result<void> relay::state::listen(const endpoint& on) {
  const auto wanted = to_asio(on);
  error_code problem;
  const auto step = [&](auto&& action) {
    if (!problem) action();
  };
  step([&] { acceptor.open(wanted.protocol(), problem); });
  step([&] { acceptor.set_option(tcp::acceptor::reuse_address(true), problem); });
  step([&] { acceptor.bind(wanted, problem); });
  step([&] { acceptor.listen(asio::socket_base::max_listen_connections, problem); });
  step([&] { port = acceptor.local_endpoint(problem).port(); });
  if (!problem) return {};
  return error{errc::io,
               fmt::format("listen: {} cannot be listened on ({}); choose another address "
                           "or port, 0 for any that is free",
                           to_string(on), problem.message())};
}

void relay::state::accept() {
  acceptor.async_accept(
      [this](const error_code& problem, tcp::socket near) { accepted(problem, std::move(near)); });
}

void relay::state::accepted(const error_code& problem, tcp::socket near) {
  if (problem) {
    // Most likely too many files are open: later there may be fewer.
    accept_timer.expires_after(accept_again);
    accept_timer.async_wait([this](const error_code& over) {
      if (!over) accept();
    });
    return;
  }
  const auto made = std::make_shared<relayed_connection>(std::move(near), links, so_far.accepted,
                                                         [this](direction of) { pump(of); });
  if (steady_ns() < refused_until_ns) {
    ++so_far.refused;
    made->reset();
  } else {
    ++so_far.accepted;
    connections.push_back(made);
    made->open(target, [this] { ++so_far.unreached; });
  }
  accept();
}

/// Each connection has its turn, another one first each time; then this waits for the next byte that is due.
void relay::state::pump(direction of) {
  std::erase_if(connections, [](const auto& each) { return each->closed(); });
  const auto n = connections.size();
  if (n == 0) return;
  auto& first = first_turn[static_cast<std::size_t>(of)];
  first = (first + 1) % n;
  for (std::size_t i = 0; i < n; ++i) connections[(first + i) % n]->pump(of, steady_ns());

  const auto now_ns = steady_ns();
  std::optional<std::int64_t> next_ns;
  for (const auto& each : connections)
    if (const auto then = each->next_ns(of, now_ns))
      next_ns = std::min(next_ns.value_or(*then), *then);
  timers[static_cast<std::size_t>(of)].cancel();
  if (next_ns) pump_at(of, *next_ns);
}

void relay::state::pump_at(direction of, std::int64_t due_ns) {
  const auto asked_ns = due_ns - lead.ns();
  auto& timer = timers[static_cast<std::size_t>(of)];
  timer.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(asked_ns)));
  timer.async_wait([this, of, asked_ns, due_ns](const error_code& cancelled) {
    if (cancelled) return;
    const auto woke_ns = steady_ns();
    lead.woke(asked_ns, woke_ns);
    for (auto now = woke_ns; now < due_ns && now - woke_ns < sleep_lead::most_ns; now = steady_ns())
      std::this_thread::yield();
    pump(of);
  });
}

void relay::state::cut(const cut_options& how) {
  if (how.refuse_ns > 0) refused_until_ns = steady_ns() + how.refuse_ns;
  for (const auto& each : connections) each->close_after(how.of, how.after_bytes);
  std::erase_if(connections, [](const auto& each) { return each->closed(); });
}

relay_counters relay::state::counters() const {
  auto now = so_far;
  for (const auto& each : connections) {
    if (each->closed()) continue;
    ++now.connections;
    for (const auto of : {direction::to, direction::back})
      now.held_bytes[static_cast<std::size_t>(of)] += each->held_bytes(of);
  }
  for (std::size_t i = 0; i < n_directions; ++i) now.links[i] = links[i].counted;
  return now;
}

result<std::unique_ptr<relay>> relay::start(const relay_options& options) {
  if (auto good = check_options(options); !good) return good.error();
  auto made = std::make_unique<state>(options);
  if (auto listens = made->listen(options.listen); !listens) return listens.error();
  made->accept();
  made->thread = std::thread([state = made.get()] {
    // The kernel may let a sleep end later than asked, to save wake-ups: by 50 us where nothing else is said.
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    state->io.run();
  });
  return std::unique_ptr<relay>(new relay(std::move(made)));
}

relay::relay(std::unique_ptr<state> made) : state_(std::move(made)) {}
relay::~relay() = default;

std::uint16_t relay::port() const {
  return state_->port;
}

result<void> relay::set(direction of, const link_conditions& wanted) {
  if (auto good = check(wanted); !good) return at(to_string(of), good.error());
  state_->on_thread([this, of, wanted] {
    state_->at(of).set(wanted, steady_ns());
    state_->pump(of);
  });
  return {};
}

link_conditions relay::conditions(direction of) const {
  return state_->on_thread([this, of] { return state_->at(of).conditions(); });
}

void relay::flip_next(direction of) {
  state_->on_thread([this, of] { state_->at(of).flip_next(); });
}

void relay::cut(const cut_options& how) {
  state_->on_thread([this, &how] { state_->cut(how); });
}

relay_counters relay::counters() const {
  return state_->on_thread([this] { return state_->counters(); });
}

}  // namespace ordermoe::net
