#include "net/channel/tls_connections.hpp"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "net/channel/busy_poll.hpp"
#include "net/channel/peer.hpp"

namespace ordermoe::net {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t most_read_at_once = 64 * 1024;  ///< Bytes read in one go.

class tls_connection;

/// Whom a connection tells that its socket is full.
class room_keeper {
 public:
  virtual ~room_keeper() = default;
  virtual void await_room(std::shared_ptr<tls_connection> with) = 0;
};

class tls_connection final : public connection,
                             public std::enable_shared_from_this<tls_connection> {
 public:
  tls_connection(tcp::socket socket, std::unique_ptr<tls_channel> tls, room_keeper& keeper)
      : socket_(std::move(socket)), tls_(std::move(tls)), keeper_(keeper) {
    tls_->take_output(out_);
  }

  bool established() const override { return tls_->established(); }
  const certificate_name& peer() const override { return tls_->peer(); }
  stream which() const override { return tls_->which(); }
  bool joins() const override { return tls_->joins(); }
  std::string serial() const override { return tls_->peer_serial(); }
  const char* proof() const override { return "its certificate is"; }
  bool ended() const override { return tls_->ended(); }

  result<void> take(std::string_view wire, std::string& plain) override {
    const bool greeted = tls_->established();
    auto taken = tls_->take(wire, plain);
    // The handshake's next words go before anything else.
    if (!greeted) {
      tls_->take_output(out_);
      write();
    }
    return taken;
  }

  result<void> put(std::string_view plain) override {
    auto sealed = tls_->put(plain);
    tls_->take_output(out_);
    return sealed;
  }

  bool write() override {
    while (sent_ < out_.size()) {
      const auto n = ::send(socket_.native_handle(), out_.data() + sent_, out_.size() - sent_,
                            MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        sent_ += static_cast<std::size_t>(n);
        written_bytes += static_cast<std::uint64_t>(n);
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else {
        meet_problem(n < 0 ? errno : EAGAIN);
        return false;
      }
    }
    out_.clear();
    sent_ = 0;
    return true;
  }

  void end() override {
    tls_->end();
    tls_->take_output(out_);
  }

  void close() override {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_both, ignored);
    socket_.close(ignored);
  }

  /// A socket that is closed with something unread in it forgets what it has not sent.
  bool see_off() override {
    error_code ignored;
    waits_for_room_ = !write();
    if (!waits_for_room_) socket_.shutdown(tcp::socket::shutdown_send, ignored);
    std::array<char, 16 * 1024> dropped;
    for (;;) {
      const auto n = ::recv(socket_.native_handle(), dropped.data(), dropped.size(), MSG_DONTWAIT);
      if (n > 0 || (n < 0 && errno == EINTR)) continue;
      return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }
  pollfd waits_for() {
    const int events = waits_for_room_ ? POLLIN | POLLOUT : POLLIN;
    return {socket_.native_handle(), static_cast<short>(events), 0};
  }

  tcp::socket& socket() { return socket_; }
  std::atomic<bool> awaits_room{false};

 private:
  void meet_problem(int code) {
    if (code == EAGAIN || code == EWOULDBLOCK) return keeper_.await_room(shared_from_this());
    if (code == ENOBUFS || code == ENOMEM) return;  // The next tick tries again.
    if (problem.empty()) problem = std::strerror(code);
  }

  tcp::socket socket_;
  std::unique_ptr<tls_channel> tls_;
  room_keeper& keeper_;
  std::string out_;       ///< For the wire.
  std::size_t sent_ = 0;  ///< Of it.
  bool waits_for_room_ = false;
};
using tls_connection_ptr = std::shared_ptr<tls_connection>;

/// `silent_ns`: how long what was sent may wait to be taken at the other end.
void prepare(tcp::socket& socket, std::int64_t silent_ns) {
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.set_option(tcp::no_delay(true), ignored);
  // What the kernel has not sent yet cannot be overtaken any more by a more urgent lane.
  const int lowat = 32 * 1024;
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &lowat, sizeof(lowat));
  // Only the fast connection has heartbeats; one that carries nothing any more is closed for what waits on it.
  const auto limit_ms = static_cast<unsigned>(silent_ns / 1'000'000);
  ::setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, sizeof(limit_ms));
}

class all_tls_connections final : public connections, public room_keeper {
 public:
  all_tls_connections(connections_options options, connections_user& user)
      : options_(std::move(options)), user_(user) {}
  ~all_tls_connections() override { join(); }

  result<address> listen(const address& where) override {
    error_code failed;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(where.host, std::to_string(where.port), tcp::resolver::passive, failed);
    if (failed || found.empty())
      return cannot_listen(where, failed ? failed.message() : "no such host");
    const tcp::endpoint at = *found.begin();
    auto acceptor = std::make_unique<tcp::acceptor>(io_);
    acceptor->open(at.protocol(), failed);
    if (!failed) acceptor->set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed && at.address().is_v6()) acceptor->set_option(asio::ip::v6_only(true), failed);
    if (!failed) acceptor->bind(at, failed);
    if (!failed) acceptor->listen(tcp::acceptor::max_listen_connections, failed);
    if (failed) return cannot_listen(where, failed.message());
    acceptors_.push_back(std::move(acceptor));
    return address{where.host, acceptors_.back()->local_endpoint().port()};
  }

  void start() override {
    for (auto& acceptor : acceptors_) accept(*acceptor);
    thread_ = std::thread([this] {
      thread_id_ = std::this_thread::get_id();
      // What its user throws ends the program here, with what() on standard error: nobody could say what was lost with it.
      run();
    });
  }

  void post(std::function<void()> what) override { asio::post(io_, std::move(what)); }

  result<void> use(std::shared_ptr<const tls_identity> identity) override {
    options_.identity = std::move(identity);
    return {};
  }

  void after(std::int64_t ns, std::function<void()> what) override {
    auto timer = std::make_shared<asio::steady_timer>(io_, std::chrono::nanoseconds(ns));
    timer->async_wait([timer, what = std::move(what)](error_code over) {
      if (!over) what();
    });
  }

  void dial(const address& to, stream which,
            std::function<void(result<connection_ptr>)> done) override {
    struct attempt {
      tcp::resolver resolver;
      tcp::socket socket;
      asio::steady_timer limit;
      std::function<void(result<connection_ptr>)> done;
      void fail(error_code why) const {
        const bool silent = why == asio::error::operation_aborted;
        done(error{errc::io, silent ? "it does not answer" : why.message()});
      }
    };
    auto now = std::make_shared<attempt>(
        attempt{tcp::resolver(io_), tcp::socket(io_), asio::steady_timer(io_), std::move(done)});
    now->limit.expires_after(std::chrono::nanoseconds(options_.dial_ns));
    now->limit.async_wait([now](error_code over) {
      error_code ignored;
      if (!over) now->socket.close(ignored);
      if (!over) now->resolver.cancel();
    });
    const auto connected = [this, which, now](error_code why) {
      now->limit.cancel();
      if (why) return now->fail(why);
      const auto made = made_or_none(std::move(now->socket), [&] {
        return std::make_unique<tls_channel>(options_.identity, which, options_.dials_for);
      });
      if (!made) return now->fail(no_memory());
      now->done(connection_ptr(made));
      begin(made);
    };
    // Names are looked up one after the other: an address waits for none that nobody answers for.
    error_code is_name;
    const auto numbers = asio::ip::make_address(to.host, is_name);
    if (!is_name) {
      now->socket.async_connect(tcp::endpoint(numbers, to.port), connected);
      return;
    }
    now->resolver.async_resolve(
        to.host, std::to_string(to.port),
        [now, connected](error_code problem, const tcp::resolver::results_type& found) {
          if (problem) return now->fail(problem);
          asio::async_connect(
              now->socket, found,
              [connected](error_code why, const tcp::endpoint&) { connected(why); });
        });
  }

  void stop_listening() override {
    error_code ignored;
    for (const auto& acceptor : acceptors_) acceptor->close(ignored);
  }

  void await(const std::vector<connection_ptr>& open, std::int64_t ns,
             std::function<void()> then) override {
    std::vector<pollfd> sockets;
    for (const auto& each : open)
      sockets.push_back(static_cast<tls_connection&>(*each).waits_for());
    ::poll(sockets.data(), sockets.size(), static_cast<int>(ns / 1'000'000) + 1);
    post(std::move(then));
  }

  void halt() override { io_.stop(); }
  void join() override {
    if (thread_.joinable()) thread_.join();
  }

 private:
  /// Until it is halted.
  void run() {
    if (options_.busy_poll_ns <= 0) {
      io_.run();
      return;
    }
    busy_poll waits(options_.busy_poll_ns);
    while (!io_.stopped()) {
      if (io_.poll() > 0) continue;
      waits.begin(steady_ns());
      const auto taken = waits.looks() ? times_taken() : 0;
      std::size_t n = 0;
      while (n == 0 && !io_.stopped() && waits.goes_on(steady_ns())) {
        std::this_thread::yield();
        n = io_.poll();
      }
      const bool others_ran = waits.looks() && times_taken() > taken;
      if (n == 0) io_.run_one();
      waits.end(steady_ns(), others_ran);
    }
  }

  /// How often others were run in the calling thread's place though it did not sleep.
  static long times_taken() {
    rusage used{};
    ::getrusage(RUSAGE_THREAD, &used);
    return used.ru_nivcsw;
  }

  tls_connection_ptr make(tcp::socket socket, std::unique_ptr<tls_channel> tls) {
    prepare(socket, options_.silent_ns);
    return std::make_shared<tls_connection>(std::move(socket), std::move(tls), *this);
  }

  /// Null where memory is exhausted: the socket is closed then, and nobody else is hurt.
  template <class Channel>
  tls_connection_ptr made_or_none(tcp::socket socket, Channel channel) {
    try {
      return make(std::move(socket), channel());
    } catch (const std::bad_alloc&) {
      return nullptr;
    }
  }
  static error_code no_memory() { return make_error_code(boost::system::errc::not_enough_memory); }

  void begin(const tls_connection_ptr& with) {
    if (with->closed) return;
    with->write();
    watch(with);
  }

  // --------------------------------------------------------------------------------------- accepting

  void accept(tcp::acceptor& from) {
    from.async_accept([this, &from](error_code failed, tcp::socket socket) {
      if (failed == asio::error::operation_aborted) return;
      if (failed) return accept_later(from, failed);
      error_code ignored;
      const auto remote = socket.remote_endpoint(ignored);
      const auto made = made_or_none(
          std::move(socket), [this] { return std::make_unique<tls_channel>(options_.identity); });
      if (!made) return accept_later(from, no_memory());
      made->remote = to_string(address{remote.address().to_string(), remote.port()});
      user_.accepted(made);
      begin(made);
      accept(from);
    });
  }

  /// Out of descriptors or memory: others may give some back.
  void accept_later(tcp::acceptor& from, error_code failed) {
    user_.could_not_accept("a connection", {errc::io, failed.message()});
    after(100'000'000, [this, &from] {
      if (from.is_open()) accept(from);
    });
  }

  // ----------------------------------------------------------------------------------------- writing

  void await_room(tls_connection_ptr with) override {
    if (with->awaits_room.exchange(true)) return;
    asio::post(io_, [this, with] {
      if (with->closed) return;
      with->socket().async_wait(tcp::socket::wait_write, [this, with](error_code) {
        with->awaits_room = false;
        user_.has_room(with);
      });
    });
  }

  // ----------------------------------------------------------------------------------------- reading

  void watch(const tls_connection_ptr& with) {
    if (with->closed) return;
    with->socket().async_wait(tcp::socket::wait_read, [this, with](error_code failed) {
      if (!failed) read(with);
    });
  }

  void read(const tls_connection_ptr& with) {
    // A fair share: others wait meanwhile.
    constexpr int most_rounds = 4;
    for (int round = 0; round < most_rounds && !with->closed; ++round) {
      const auto n =
          ::recv(with->socket().native_handle(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n == 0) return user_.was_closed(with, "closed by the peer");
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n < 0) return user_.was_closed(with, std::strerror(errno));
      const bool drained = static_cast<std::size_t>(n) < buffer_.size();
      user_.came(with, {buffer_.data(), static_cast<std::size_t>(n)}, drained);
      if (drained) break;
    }
    watch(with);
  }

  connections_options options_;
  connections_user& user_;
  asio::io_context io_;
  std::vector<std::unique_ptr<tcp::acceptor>> acceptors_;
  std::thread thread_;
  std::array<char, most_read_at_once> buffer_;  ///< Of its own thread alone.
};

}  // namespace

result<std::unique_ptr<connections>> tls_connections(connections_options options,
                                                     connections_user& user) {
  return std::unique_ptr<connections>(
      std::make_unique<all_tls_connections>(std::move(options), user));
}

}  // namespace ordermoe::net
