#include "net/http/server.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "net/http/connection.hpp"
#include "net/http/open_files.hpp"

namespace ordermoe::net {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using http_detail::connection;

namespace {

constexpr std::chrono::milliseconds accept_again(100);

/// A group may read it, as certificates of a system are handed to a service.
result<void> check_not_everybodys(const std::string& key) {
  struct stat found {};
  if (::stat(key.c_str(), &found) != 0 || (found.st_mode & S_IROTH) == 0) return {};
  return error{errc::mismatch,
               fmt::format("{}: found mode {:o}, expected a key that not everybody can read: "
                           "chmod 600, or 640 for a group",
                           key, found.st_mode & 0777)};
}

result<std::unique_ptr<asio::ssl::context>> context_of(const http_tls_files& files) {
  auto made = std::make_unique<asio::ssl::context>(asio::ssl::context::tls_server);
  error_code problem;
  made->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_sslv2 |
                        asio::ssl::context::no_sslv3 | asio::ssl::context::no_tlsv1 |
                        asio::ssl::context::no_tlsv1_1,
                    problem);
  if (!problem) made->use_certificate_chain_file(files.certificate, problem);
  if (problem)
    return error{errc::malformed,
                 fmt::format("{}: no certificate in PEM can be read ({}); expected "
                             "that of this server, its chain behind it",
                             files.certificate, problem.message())};
  if (auto kept = check_not_everybodys(files.key); !kept) return kept.error();
  made->use_private_key_file(files.key, asio::ssl::context::pem, problem);
  if (problem)
    return error{
        errc::malformed,
        fmt::format("{}: no key in PEM that fits {} can be read ({}); expected that of the "
                    "certificate",
                    files.key, files.certificate, problem.message())};
  return made;
}

result<tcp::endpoint> endpoint_of(asio::io_context& io, const address& at) {
  error_code problem;
  tcp::resolver names(io);
  const auto found =
      names.resolve(at.host, std::to_string(at.port), tcp::resolver::numeric_service, problem);
  if (problem || found.empty()) return cannot_listen(at, problem.message());
  return found.begin()->endpoint();
}

/// Where others may reach it only if they are meant to.
result<tcp::endpoint> allowed_endpoint(asio::io_context& io, const http_server_options& options) {
  const auto at = endpoint_of(io, options.listen);
  if (!at || at->address().is_loopback() || options.allows_remote) return at;
  return error{errc::usage,
               fmt::format("{}: other hosts may reach it; expected a loopback address such as "
                           "127.0.0.1:{}",
                           to_string(options.listen), options.listen.port)};
}

result<void> listen_at(tcp::acceptor& acceptor, const tcp::endpoint& at, const address& name) {
  error_code problem;
  acceptor.open(at.protocol(), problem);
  if (!problem) acceptor.set_option(tcp::acceptor::reuse_address(true), problem);
  if (!problem) acceptor.bind(at, problem);
  if (!problem) acceptor.listen(asio::socket_base::max_listen_connections, problem);
  if (problem) return cannot_listen(name, problem.message());
  return {};
}

}  // namespace

result<void> check_listen(const http_server_options& options) {
  if (options.tls)
    if (auto made = context_of(*options.tls); !made) return made.error();
  asio::io_context io;
  const auto at = allowed_endpoint(io, options);
  if (!at) return at.error();
  tcp::acceptor acceptor(io);
  return listen_at(acceptor, *at, options.listen);
}

class http_server::content {
 public:
  content(http_server_options options, http_handler handler)
      : options_(std::move(options)),
        handler_(std::move(handler)),
        side_{io_, options_, handler_, {}, [this](const connection* of) { forget(of); }} {}

  ~content() { stop(); }

  result<void> begin() {
    if (options_.tls) {
      auto made = context_of(*options_.tls);
      if (!made) return made.error();
      tls_ = std::move(*made);
    }
    const auto at = allowed_endpoint(io_, options_);
    if (!at) return at.error();
    if (auto listens = listen_at(acceptor_, *at, options_.listen); !listens) return listens.error();
    error_code problem;
    listens_at_ = {options_.listen.host, acceptor_.local_endpoint(problem).port()};
    accept();
    thread_ = std::thread([this] {
      side_.own = std::this_thread::get_id();
      io_.run();
    });
    return {};
  }

  const address& listens_at() const { return listens_at_; }
  http_detail::server_side& side() { return side_; }
  http_figures figures() const {
    auto now = side_.figures;
    now.connections = connections_.size();
    return now;
  }

  void post(std::function<void()> what) {
    {
      const std::lock_guard lock(posted_mutex_);
      posted_.push_back(std::move(what));
      // The thread is on its way to what was posted before.
      if (posted_.size() > 1) return;
    }
    asio::post(io_, [this] { do_posted(); });
  }

  void stop() {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
      accept_timer_.cancel();
      for (const auto left = connections_; const auto& [key, each] : left) each->close();
      stops_ = true;
      io_.stop();
    });
    thread_.join();
  }

 private:
  void do_posted() {
    std::vector<std::function<void()>> all;
    {
      const std::lock_guard lock(posted_mutex_);
      all.swap(posted_);
    }
    side_.begin_turn();
    for (const auto& each : all)
      if (!stops_) each();
    side_.end_turn();
  }

  void accept() {
    acceptor_.async_accept([this](const error_code& problem, tcp::socket socket) {
      if (problem == asio::error::operation_aborted) return;
      if (problem) {
        // Most likely too many files are open: later there may be fewer.
        accept_timer_.expires_after(accept_again);
        accept_timer_.async_wait([this](const error_code& over) {
          if (!over) accept();
        });
        return;
      }
      accepted(std::move(socket));
      accept();
    });
  }

  void accepted(tcp::socket socket) {
    error_code problem;
    const auto peer = socket.remote_endpoint(problem);
    if (problem) return;
    ++side_.figures.accepted;
    // A crowd is not given a handshake each only to be turned away.
    const bool is_full = connections_.size() - turned_away_.size() >= room_.served;
    if (is_full && (tls_ || turned_away_.size() >= room_.turned_away)) return;
    const auto made = std::make_shared<connection>(
        side_,
        tls_ ? http_detail::accepted_tls_stream(std::move(socket), *tls_)
             : http_detail::plain_stream(std::move(socket)),
        peer.address().to_string());
    connections_[made.get()] = made;
    if (is_full) turned_away_.insert(made.get());
    if (is_full)
      made->refuse(503, fmt::format("{} connections are open, no more are taken; try again later",
                                    room_.served));
    else
      made->open();
  }

  void forget(const connection* of) {
    connections_.erase(of);
    turned_away_.erase(of);
  }

  http_server_options options_;
  const connection_room room_ = room_for_connections(options_.limits.connections);
  http_handler handler_;
  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_ = asio::make_work_guard(io_);
  std::unique_ptr<asio::ssl::context> tls_;
  tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_timer_{io_};
  http_detail::server_side side_;
  std::map<const connection*, std::shared_ptr<connection>> connections_;
  /// Those of them that are only told so, and take nobody's place; as many more at most.
  std::set<const connection*> turned_away_;
  address listens_at_;
  bool stops_ = false;  ///< Of the thread.
  std::mutex posted_mutex_;
  std::vector<std::function<void()>> posted_;  ///< Not done yet.
  std::thread thread_;
};

http_server::http_server(std::unique_ptr<content> made) : content_(std::move(made)) {}
http_server::~http_server() = default;

result<std::unique_ptr<http_server>> http_server::start(http_server_options options,
                                                        http_handler handler) {
  auto made = std::make_unique<content>(std::move(options), std::move(handler));
  if (auto begun = made->begin(); !begun) return begun.error();
  return std::unique_ptr<http_server>(new http_server(std::move(made)));
}

address http_server::listens_at() const {
  return content_->listens_at();
}
void http_server::post(std::function<void()> what) {
  content_->post(std::move(what));
}
void http_server::begin_turn() {
  content_->side().begin_turn();
}
void http_server::end_turn() {
  content_->side().end_turn();
}
http_figures http_server::figures() const {
  return content_->figures();
}
void http_server::stop() {
  content_->stop();
}

}  // namespace ordermoe::net
