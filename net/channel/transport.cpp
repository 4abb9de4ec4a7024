#include "net/channel/transport.hpp"

#include <fmt/format.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <utility>

#include "config/random.hpp"

namespace ordermoe::net {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t most_at_once = 64 * 1024;  ///< Bytes read or written in one go.
constexpr std::size_t most_greeting = 64;        ///< Connections that have not said who they are.
constexpr std::int64_t tick_ns = 50'000'000;
constexpr std::int64_t least_backoff_ns = 50'000'000, most_backoff_ns = 2'000'000'000;
constexpr std::int64_t dial_ns = 5'000'000'000;     ///< That an attempt to connect may take.
constexpr std::int64_t closing_ns = 1'000'000'000;  ///< That last words may wait for room.
constexpr std::int64_t farewell_ns = 300'000'000;   ///< Likewise, of all, where this end stops.
constexpr std::int64_t quiet_ns = 60'000'000'000;   ///< That the same problem is not told again.
constexpr std::size_t most_told = 64;               ///< Problems that are told in this time.

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct peer;

/// One TCP connection. Before it belongs to a peer only the transport's thread touches it, afterwards whoever holds
/// the peer's lock.
struct connection {
  session::connection_id id = 0;
  tcp::socket socket;
  std::unique_ptr<tls_channel> tls;
  bool dialled = false;
  std::string remote;  ///< For messages.
  std::int64_t since_ns = 0;
  std::shared_ptr<peer> owner;
  std::string out;       ///< For the wire.
  std::size_t sent = 0;  ///< Of it.
  bool awaits_room = false;
  bool closing = false;  ///< Once `out` is written.
  std::int64_t closing_since_ns = 0;
  bool closed = false;
  std::string problem;  ///< That writing met.

  explicit connection(tcp::socket from) : socket(std::move(from)) {}
};
using connection_ptr = std::shared_ptr<connection>;

/// A lock for many threads that send and the one that reads, which would hardly ever get it from them.
class reader_first {
 public:
  void lock() {
    while (wanted_.load(std::memory_order_relaxed)) std::this_thread::yield();
    mutex_.lock();
  }
  void lock_first() {
    wanted_.store(true, std::memory_order_relaxed);
    mutex_.lock();
    wanted_.store(false, std::memory_order_relaxed);
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::atomic<bool> wanted_{false};
};

/// Whoever fails tries again and fails again, for one reason or a few in turn: each is told once.
class told_reasons {
 public:
  bool is_new(const std::string& why) { return told_.size() < most && told_.insert(why).second; }
  void clear() { told_.clear(); }

 private:
  static constexpr std::size_t most = 8;
  std::set<std::string> told_;
};

/// When one stream of a peer is dialled; of the transport's thread alone.
struct dialling {
  bool busy = false;
  std::int64_t next_ns = 0, backoff_ns = least_backoff_ns;
  told_reasons told;
};

struct peer {
  peer_id id = 0;
  transport_peer spec;
  bool is_client = false;
  bool dials = false;  ///< This end dials.
  std::array<dialling, n_streams> dialled;
  told_reasons told;  ///< Why it was refused; of the transport's thread alone.

  reader_first mutex;  ///< Of everything below.
  std::optional<session> link;
  std::vector<connection_ptr> connections;
  std::string scratch;
  bool dispatches = false;  ///< Soon, on the transport's thread.
  std::uint64_t written_bytes = 0, read_bytes = 0, n_connections = 0;
};
using peer_ptr = std::shared_ptr<peer>;

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

}  // namespace

class transport::impl {
 public:
  impl(transport_options options, transport_user& user)
      : options_(std::move(options)), user_(user), timer_(io_) {}

  result<void> begin() {
    for (std::size_t i = 0; i < options_.peers.size(); ++i) add_member(i);
    for (const auto& where : options_.listen)
      if (auto open = listen(where); !open) return open;
    for (auto& acceptor : acceptors_) accept(*acceptor);
    asio::post(io_, [this] { tick(); });
    thread_ = std::thread([this] { run(); });
    return {};
  }

  const std::vector<address>& listens_at() const { return listens_at_; }

  bool send(peer_id to, lane of, std::uint8_t kind, std::uint64_t request, std::uint32_t attempt,
            std::uint32_t epoch, std::string payload, std::uint64_t stamp, std::size_t padding) {
    const auto found = find(to);
    if (!found) return false;
    const auto lock = hold(*found);
    if (!found->link ||
        !found->link->send(of, kind, request, attempt, epoch, std::move(payload), stamp, padding))
      return false;
    push(found);
    return true;
  }

  void used(peer_id from, lane of, std::uint64_t bytes) {
    const auto found = find(from);
    if (!found) return;
    const auto lock = hold(*found);
    if (!found->link) return;
    found->link->used(of, bytes);
    push(found);
  }

  void flush() {
    for (const auto& each : std::exchange(dirty_, {})) {
      const auto lock = hold(*each);
      write_all(each);
      dispatch_later(each);
    }
  }

  void leave(peer_id client, std::string_view why) {
    asio::post(io_, [this, client, why = std::string(why)] {
      if (const auto found = find(client)) give_up(found, why);
    });
  }

  peer_figures figures(peer_id of) const {
    peer_figures told;
    const auto found = find(of);
    if (!found) return told;
    const auto lock = hold(*found);
    told.written_bytes = found->written_bytes;
    told.read_bytes = found->read_bytes;
    told.connections = found->n_connections;
    told.name = found->spec.name;
    if (!found->link) return told;
    const auto& link = *found->link;
    told.up = link.now_in() == session::phase::up;
    told.self = link.peer().self;
    told.round_trip_ns = link.round_trip_ns();
    told.bytes_per_s = link.bytes_per_s();
    told.resent_frames = link.resent_frames();
    for (std::size_t i = 0; i < n_lanes; ++i) {
      const auto each = static_cast<lane>(i);
      told.lanes[i] = {link.sent_bytes(each), link.received_bytes(each),
                       link.outstanding_bytes(each), link.waiting_bytes(each)};
    }
    return told;
  }

  void stop() {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] { end(); });
    thread_.join();
  }

 private:
  // ------------------------------------------------------------------------------------------ peers

  void add_member(std::size_t i) {
    auto made = std::make_shared<peer>();
    made->id = static_cast<peer_id>(i);
    made->spec = options_.peers[i];
    const auto& self = options_.identity->name().name;
    made->dials = made->spec.at.has_value() &&
                  (options_.is_client || options_.listen.empty() || self < made->spec.name);
    if (!made->spec.name.empty()) make_session(*made, made->spec.name, options_.agreed, 0);
    members_.push_back(std::move(made));
  }

  void make_session(peer& of, const std::string& name, std::vector<agreement> agreed,
                    std::uint64_t generation) {
    session_config config;
    config.self.cluster = options_.identity->name().cluster;
    config.self.node = options_.identity->name().name;
    config.self.self = {options_.boot, generation};
    config.self.life = life_;
    config.self.agreed = std::move(agreed);
    config.peer = name;
    config.limits = options_.limits;
    of.link.emplace(std::move(config), now_ns());
  }

  peer_ptr find(peer_id id) const {
    if (id < members_.size()) return members_[id];
    const std::lock_guard lock(clients_mutex_);
    const auto found = clients_.find(id);
    return found == clients_.end() ? nullptr : found->second;
  }

  /// A copy: what happens to one may end others.
  std::vector<peer_ptr> everybody() const {
    auto all = members_;
    const std::lock_guard lock(clients_mutex_);
    for (const auto& [id, client] : clients_) all.push_back(client);
    return all;
  }

  // ---------------------------------------------------------------------------------------- dispatch

  bool on_own_thread() const { return std::this_thread::get_id() == thread_id_; }

  std::unique_lock<reader_first> hold(peer& which) const {
    if (!on_own_thread()) return std::unique_lock(which.mutex);
    which.mutex.lock_first();
    return {which.mutex, std::adopt_lock};
  }

  /// Lock held. Writes now, or from within the user when it returns.
  void push(const peer_ptr& to) {
    if (on_own_thread() && in_user_) {
      if (std::ranges::find(dirty_, to) == dirty_.end()) dirty_.push_back(to);
      return;
    }
    write_all(to);
  }

  /// What the session has to tell, with its lock not held.
  void dispatch(const peer_ptr& of) {
    std::vector<session_event> events;
    {
      const auto lock = hold(*of);
      of->dispatches = false;
      if (of->link) events = of->link->take_events();
    }
    bool cut = false, down = false;
    for (const auto& event : events) {
      cut |= event.kind == session_event::what::cut;
      down |= event.kind == session_event::what::down;
      if (event.kind == session_event::what::up || event.kind == session_event::what::resumed)
        trouble_is_over(*of);
    }
    std::erase_if(events, [&](const session_event& each) { return is_stale(*of, each); });
    if (events.empty()) return;
    in_user_ = true;
    user_.take(of->id, std::move(events));
    in_user_ = false;
    flush();
    // Nothing of a client outlives its connection.
    if (of->is_client && cut && !down) return give_up(of, "its connection is closed");
    if (of->is_client && down) forget(of);
  }

  static void trouble_is_over(peer& with) {
    with.told.clear();
    for (auto& each : with.dialled) {
      each.backoff_ns = least_backoff_ns;
      each.told.clear();
    }
  }

  /// A refusal that was told before.
  static bool is_stale(peer& of, const session_event& event) {
    const bool refused =
        event.kind == session_event::what::refused || event.kind == session_event::what::fault;
    return refused && !of.told.is_new(event.text);
  }

  /// Lock held. Once, however much is sent until then.
  void dispatch_later(const peer_ptr& of) {
    if (!of->link->has_events() || std::exchange(of->dispatches, true)) return;
    asio::post(io_, [this, of] { dispatch(of); });
  }

  void give_up(const peer_ptr& of, const std::string& why) {
    {
      const auto lock = hold(*of);
      if (of->link) of->link->leave(why);
      write_all(of);
    }
    dispatch(of);
  }

  void forget(const peer_ptr& client) {
    std::vector<connection_ptr> open;
    {
      const auto lock = hold(*client);
      open = client->connections;
    }
    for (const auto& each : open) finish(each, "the session is over");
    const std::lock_guard lock(clients_mutex_);
    clients_.erase(client->id);
  }

  void tell(const std::string& who, const error& why) {
    in_user_ = true;
    user_.problem(who, why);
    in_user_ = false;
    flush();
  }

  /// Of somebody who came from outside: the same of one host once in a while.
  void tell_once(const std::string& who, const error& why) {
    const auto now = now_ns();
    std::erase_if(told_, [&](const auto& each) { return now - each.second >= quiet_ns; });
    const auto host = who.substr(0, who.rfind(':'));
    if (told_.size() < most_told &&
        told_.emplace(fmt::format("{}: {}", host, why.message), now).second)
      tell(who, why);
  }

  // ----------------------------------------------------------------------------------------- writing

  /// Lock held.
  void write_all(const peer_ptr& to) {
    if (!to->link) return;
    for (const auto& each : to->connections) write(*to, each);
    for (const auto id : to->link->take_closing())
      for (const auto& each : to->connections)
        if (each->id == id) begin_closing(*to, *each);
    for (const auto& each : to->connections)
      if (each->closing && !each->closed && put_out(*to, each))
        asio::post(io_, [this, each] { finish(each, "closed"); });
    if (!on_own_thread()) dispatch_later(to);
  }

  /// Lock held. The last words come behind what the socket has not taken yet.
  static void begin_closing(peer& to, connection& with) {
    with.closing = true;
    with.closing_since_ns = now_ns();
    to.scratch.clear();
    to.link->write(with.id, to.scratch, most_at_once, now_ns());
    if (with.tls->put(to.scratch)) with.tls->end();
    with.tls->take_output(with.out);
  }

  /// Lock held. Everything that the session has for this connection and the socket takes.
  void write(peer& to, const connection_ptr& with) {
    if (with->closed || with->closing || !with->problem.empty()) return;
    auto& link = *to.link;
    while (put_out(to, with) && link.has_output(with->id)) {
      to.scratch.clear();
      link.write(with->id, to.scratch, most_at_once, now_ns());
      if (auto sealed = with->tls->put(to.scratch); !sealed) {
        asio::post(io_, [this, with] { finish(with, "TLS failed"); });
        return;
      }
      with->tls->take_output(with->out);
    }
  }

  /// Writes `out`; whether all of it is gone. What the socket does not take goes when it has room.
  bool put_out(peer& to, const connection_ptr& with) {
    while (with->sent < with->out.size()) {
      const auto n = ::send(with->socket.native_handle(), with->out.data() + with->sent,
                            with->out.size() - with->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) {
        with->sent += static_cast<std::size_t>(n);
        to.written_bytes += static_cast<std::uint64_t>(n);
      } else if (n < 0 && errno == EINTR) {
        continue;
      } else {
        meet_problem(with, n < 0 ? errno : EAGAIN);
        return false;
      }
    }
    with->out.clear();
    with->sent = 0;
    return true;
  }

  void meet_problem(const connection_ptr& with, int code) {
    if (code == EAGAIN || code == EWOULDBLOCK) return await_room(with);
    if (code == ENOBUFS || code == ENOMEM) return;  // The next tick tries again.
    // Whoever reads finds its end, behind what came before it.
    if (with->problem.empty()) with->problem = std::strerror(code);
  }

  void await_room(const connection_ptr& with) {
    if (std::exchange(with->awaits_room, true)) return;
    asio::post(io_, [this, with] {
      if (with->closed) return;
      with->socket.async_wait(tcp::socket::wait_write, [this, with](error_code) {
        const auto owner = with->owner;
        if (!owner) return;
        const auto lock = hold(*owner);
        with->awaits_room = false;
        if (!with->closed) write_all(owner);
      });
    });
  }

  // ----------------------------------------------------------------------------------------- reading

  void watch(const connection_ptr& with) {
    if (with->closed) return;
    with->socket.async_wait(tcp::socket::wait_read, [this, with](error_code failed) {
      if (!failed) read(with);
    });
  }

  void read(const connection_ptr& with) {
    // A fair share: others wait meanwhile.
    constexpr int most_rounds = 4;
    for (int round = 0; round < most_rounds && !with->closed; ++round) {
      const auto n =
          ::recv(with->socket.native_handle(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n == 0) return finish(with, "closed by the peer");
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
      if (n < 0) return finish(with, std::strerror(errno));
      const bool drained = static_cast<std::size_t>(n) < buffer_.size();
      take(with, {buffer_.data(), static_cast<std::size_t>(n)}, drained);
      if (drained) break;
    }
    watch(with);
  }

  void take(const connection_ptr& with, std::string_view wire, bool drained) {
    if (!with->owner) return greet(with, wire);
    const auto owner = with->owner;
    error problem;
    {
      const auto lock = hold(*owner);
      owner->read_bytes += wire.size();
      plain_.clear();
      auto taken = with->tls->take(wire, plain_);
      owner->link->receive(with->id, plain_, now_ns(), drained);
      write_all(owner);
      if (!taken) problem = taken.error();
      if (with->tls->ended()) problem.message = "ended by the peer";
    }
    dispatch(owner);
    if (!problem.message.empty()) finish(with, problem.message);
  }

  // -------------------------------------------------------------------------------------- connections

  /// Nobody has said who is there yet.
  void add(tcp::socket socket, bool dialled, std::unique_ptr<tls_channel> tls, std::string remote,
           peer_ptr dialled_peer) {
    prepare(socket, 4 * options_.limits.dead_ns);
    auto made = std::make_shared<connection>(std::move(socket));
    made->id = next_connection_++;
    made->tls = std::move(tls);
    made->dialled = dialled;
    made->remote = std::move(remote);
    made->since_ns = now_ns();
    if (!dialled) make_room();
    greeting_.push_back({made, std::move(dialled_peer)});
    send_greeting(made);
    watch(made);
  }

  /// The oldest of those that came in goes; what was dialled here is little.
  void make_room() {
    const auto came = [](const greeting& each) { return each.expected == nullptr; };
    if (static_cast<std::size_t>(std::ranges::count_if(greeting_, came)) < most_greeting) return;
    const auto oldest = std::ranges::find_if(greeting_, came)->with;
    drop(oldest);
    tell_once(
        oldest->remote,
        {errc::failed, fmt::format("{} connections have not said who they are", most_greeting)});
  }

  void send_greeting(const connection_ptr& with) {
    with->tls->take_output(with->out);
    // A few kilobytes at most, which a new socket takes.
    const auto n = ::send(with->socket.native_handle(), with->out.data(), with->out.size(),
                          MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) with->out.erase(0, static_cast<std::size_t>(n));
  }

  void greet(const connection_ptr& with, std::string_view wire) {
    plain_.clear();
    const auto taken = with->tls->take(wire, plain_);
    send_greeting(with);
    if (!taken) return turn_away(with, taken.error());
    if (with->tls->established()) attach(with);
  }

  void turn_away(const connection_ptr& with, const error& why) {
    const auto expected = expected_of(with);
    say_why(with, why.message);
    drop(with);
    expected ? could_not_reach(expected, with->tls->which(), why) : tell_once(with->remote, why);
  }

  /// To somebody who showed a certificate: its session tells it.
  void say_why(const connection_ptr& with, std::string_view why) {
    if (!with->tls->established()) return;
    frame_header header;
    header.version = wire_version;
    header.word = session_word::refusal;
    header.of = with->tls->which() == stream::bulk ? lane::bulk : lane::control;
    header.length = static_cast<std::uint32_t>(why.size());
    std::string frame;
    put(header, frame);
    frame += why;
    if (!with->tls->put(frame)) return;
    with->tls->end();
    send_greeting(with);
  }

  void drop(const connection_ptr& with) {
    std::erase_if(greeting_, [&](const greeting& each) { return each.with == with; });
    error_code ignored;
    with->closed = true;
    with->socket.close(ignored);
  }

  peer_ptr expected_of(const connection_ptr& with) const {
    const auto found =
        std::ranges::find_if(greeting_, [&](const greeting& each) { return each.with == with; });
    return found == greeting_.end() ? nullptr : found->expected;
  }

  /// Its certificate says who is there.
  void attach(const connection_ptr& with) {
    const auto& who = with->tls->peer();
    const auto which = with->tls->which();
    const auto expected = expected_of(with);
    auto owner = expected ? expected : owner_of(who, which);
    if (!owner || (expected && !fits(*expected, who)))
      return turn_away(
          with, {errc::mismatch, fmt::format("its certificate is {}, expected {}", uri_of(who),
                                             expected ? fmt::format("node {}", expected->spec.name)
                                                      : "a node of the member list")});
    std::erase_if(greeting_, [&](const greeting& each) { return each.with == with; });
    if (expected) expected->dialled[static_cast<std::size_t>(which)].busy = false;
    {
      const auto lock = hold(*owner);
      if (!owner->link) {
        owner->spec.name = who.name;
        make_session(*owner, who.name, options_.agreed, 0);
      }
      with->owner = owner;
      owner->connections.push_back(with);
      ++owner->n_connections;
      owner->link->connected(with->id, which, with->dialled, who.name, now_ns());
      owner->link->receive(with->id, plain_, now_ns());
      write_all(owner);
    }
    dispatch(owner);
  }

  static bool fits(const peer& expected, const certificate_name& who) {
    return who.of == role::node && (expected.spec.name.empty() || expected.spec.name == who.name);
  }

  /// Of a connection that came in; a new one for a client; none where it may not speak here.
  peer_ptr owner_of(const certificate_name& who, stream which) {
    if (who.of == role::node) {
      const auto found = std::ranges::find_if(
          members_, [&](const peer_ptr& each) { return each->spec.name == who.name; });
      return found == members_.end() ? nullptr : *found;
    }
    if (!options_.takes_clients || which != stream::fast) return nullptr;
    auto made = std::make_shared<peer>();
    made->is_client = true;
    made->spec.name = who.name;
    {
      const std::lock_guard lock(clients_mutex_);
      made->id = static_cast<peer_id>(members_.size()) + n_clients_++;
      clients_[made->id] = made;
    }
    make_session(*made, who.name, {}, made->id);
    in_user_ = true;
    user_.client_came(made->id, who);
    in_user_ = false;
    return made;
  }

  /// It is closed, here or there.
  void finish(const connection_ptr& with, std::string_view why) {
    const auto owner = with->owner;
    if (!owner) {
      if (with->closed) return;
      return turn_away(with, {errc::io, std::string(why)});
    }
    bool unheard = false;
    {
      const auto lock = hold(*owner);
      if (std::exchange(with->closed, true)) return;
      std::erase(owner->connections, with);
      unheard = !with->closing && owner->link->now_in() == session::phase::away;
      owner->link->disconnected(with->id, now_ns(), with->problem.empty() ? why : with->problem);
      error_code ignored;
      with->socket.shutdown(tcp::socket::shutdown_both, ignored);
      with->socket.close(ignored);
      write_all(owner);
    }
    if (with->dialled && unheard)
      could_not_reach(owner, with->tls->which(),
                      {errc::io, fmt::format("{}, before it said who it is", why)});
    else if (with->dialled)
      retry_later(*owner, with->tls->which());
    dispatch(owner);
    if (owner->is_client && owner->connections.empty()) forget_unborn(owner, why);
  }

  /// A client whose session never began.
  void forget_unborn(const peer_ptr& client, std::string_view why) {
    if (!find(client->id)) return;
    {
      const std::lock_guard lock(clients_mutex_);
      clients_.erase(client->id);
    }
    in_user_ = true;
    user_.take(client->id, {{session_event::what::down, {}, std::string(why)}});
    in_user_ = false;
    flush();
  }

  // ------------------------------------------------------------------------------- listening, dialling

  result<void> listen(const address& where) {
    error_code failed;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(where.host, std::to_string(where.port), tcp::resolver::passive, failed);
    const auto problem = [&](const std::string& why) {
      return error{errc::io, fmt::format("cannot listen at {}: {}; choose an address of this host "
                                         "and a port that is free",
                                         to_string(where), why)};
    };
    if (failed || found.empty()) return problem(failed ? failed.message() : "no such host");
    const tcp::endpoint at = *found.begin();
    auto acceptor = std::make_unique<tcp::acceptor>(io_);
    acceptor->open(at.protocol(), failed);
    if (!failed) acceptor->set_option(tcp::acceptor::reuse_address(true), failed);
    if (!failed && at.address().is_v6()) acceptor->set_option(asio::ip::v6_only(true), failed);
    if (!failed) acceptor->bind(at, failed);
    if (!failed) acceptor->listen(tcp::acceptor::max_listen_connections, failed);
    if (failed) return problem(failed.message());
    listens_at_.push_back({where.host, acceptor->local_endpoint().port()});
    acceptors_.push_back(std::move(acceptor));
    return {};
  }

  void accept(tcp::acceptor& from) {
    from.async_accept([this, &from](error_code failed, tcp::socket socket) {
      if (failed == asio::error::operation_aborted) return;
      if (failed) return accept_later(from, failed);
      error_code ignored;
      const auto remote = socket.remote_endpoint(ignored);
      add(std::move(socket), false, std::make_unique<tls_channel>(options_.identity),
          to_string(address{remote.address().to_string(), remote.port()}), nullptr);
      accept(from);
    });
  }

  /// Out of descriptors or memory: others may give some back.
  void accept_later(tcp::acceptor& from, error_code failed) {
    tell_once("a connection", {errc::io, failed.message()});
    auto pause = std::make_shared<asio::steady_timer>(io_, std::chrono::milliseconds(100));
    pause->async_wait([this, &from, pause](error_code) {
      if (!ending_) accept(from);
    });
  }

  void dial_where_due() {
    for (const auto& each : members_) {
      if (!each->dials) continue;
      bool up = false;
      std::array<bool, n_streams> there{};
      {
        const auto lock = hold(*each);
        up = each->link && each->link->now_in() == session::phase::up;
        for (const auto& with : each->connections)
          there[static_cast<std::size_t>(with->tls->which())] |= !with->closing;
      }
      for (const auto which : {stream::fast, stream::bulk}) {
        auto& state = each->dialled[static_cast<std::size_t>(which)];
        if (which == stream::bulk && (!up || options_.is_client)) continue;
        if (there[static_cast<std::size_t>(which)] || state.busy || now_ns() < state.next_ns)
          continue;
        dial(each, which);
      }
    }
  }

  void dial(const peer_ptr& to, stream which) {
    to->dialled[static_cast<std::size_t>(which)].busy = true;
    struct attempt {
      tcp::resolver resolver;
      tcp::socket socket;
      asio::steady_timer limit;
    };
    auto now = std::make_shared<attempt>(
        attempt{tcp::resolver(io_), tcp::socket(io_), asio::steady_timer(io_)});
    now->limit.expires_after(std::chrono::nanoseconds(dial_ns));
    now->limit.async_wait([now](error_code over) {
      error_code ignored;
      if (!over) now->socket.close(ignored);
      if (!over) now->resolver.cancel();
    });
    const auto failed = [this, to, which](error_code why) {
      const bool silent = why == asio::error::operation_aborted;
      if (!ending_)
        could_not_reach(to, which, {errc::io, silent ? "it does not answer" : why.message()});
    };
    now->resolver.async_resolve(
        to->spec.at->host, std::to_string(to->spec.at->port),
        [this, to, which, now, failed](error_code problem, tcp::resolver::results_type found) {
          if (problem) return failed(problem);
          asio::async_connect(now->socket, found,
                              [this, to, which, now, failed](error_code why, const tcp::endpoint&) {
                                now->limit.cancel();
                                if (why) return failed(why);
                                add(std::move(now->socket), true,
                                    std::make_unique<tls_channel>(options_.identity, which),
                                    fmt::format("{} ({})", to->spec.name, to_string(*to->spec.at)),
                                    to);
                              });
        });
  }

  void could_not_reach(const peer_ptr& to, stream which, const error& why) {
    retry_later(*to, which);
    if (to->dialled[static_cast<std::size_t>(which)].told.is_new(why.message))
      tell(fmt::format("{} ({})", to->spec.name, to_string(*to->spec.at)), why);
  }

  void retry_later(peer& to, stream which) {
    auto& state = to.dialled[static_cast<std::size_t>(which)];
    state.busy = false;
    state.next_ns = now_ns() + static_cast<std::int64_t>(static_cast<double>(state.backoff_ns) *
                                                         jitter_.uniform(0.5, 1.5));
    state.backoff_ns = std::min(most_backoff_ns, 2 * state.backoff_ns);
  }

  // -------------------------------------------------------------------------------------------- time

  void run() {
    thread_id_ = std::this_thread::get_id();
    io_.run();
  }

  void tick() {
    if (ending_) return;
    const auto now = now_ns();
    for (const auto& each : everybody()) {
      std::vector<connection_ptr> stuck;
      {
        const auto lock = hold(*each);
        if (!each->link) continue;
        each->link->tick(now);
        write_all(each);
        for (const auto& with : each->connections)
          if (with->closing && now - with->closing_since_ns >= closing_ns) stuck.push_back(with);
      }
      dispatch(each);
      for (const auto& with : stuck) finish(with, "it does not take what is left to say");
    }
    while (!greeting_.empty() && now - greeting_.front().with->since_ns >= options_.limits.hello_ns)
      turn_away(
          greeting_.front().with,
          {errc::timed_out, fmt::format("no TLS handshake within {:g} s",
                                        static_cast<double>(options_.limits.hello_ns) * 1e-9)});
    dial_where_due();
    timer_.expires_after(std::chrono::nanoseconds(tick_ns));
    timer_.async_wait([this](error_code over) {
      if (!over) tick();
    });
  }

  void end() {
    ending_ = true;
    error_code ignored;
    for (const auto& acceptor : acceptors_) acceptor->close(ignored);
    timer_.cancel();
    std::vector<connection_ptr> open;
    for (const auto& each : everybody()) {
      const auto lock = hold(*each);
      if (each->link) each->link->leave("it stops");
      write_all(each);
      open.insert(open.end(), each->connections.begin(), each->connections.end());
    }
    see_off(open);
    for (const auto& each : everybody()) {
      const auto lock = hold(*each);
      for (const auto& with : each->connections) {
        with->closed = true;
        with->socket.close(ignored);
      }
      each->connections.clear();
    }
    for (const auto& each : greeting_) each.with->socket.close(ignored);
    greeting_.clear();
    io_.stop();
  }

  /// Until all was said and the other ends have closed, or the time for that is over. A socket that is closed with
  /// something unread in it forgets what it has not sent.
  void see_off(std::vector<connection_ptr> open) {
    const auto until = now_ns() + farewell_ns;
    for (auto now = now_ns(); !open.empty() && now < until; now = now_ns()) {
      std::vector<pollfd> sockets;
      for (const auto& each : open) {
        const auto lock = hold(*each->owner);
        const int events = each->out.empty() ? POLLIN : POLLIN | POLLOUT;
        sockets.push_back({each->socket.native_handle(), static_cast<short>(events), 0});
      }
      ::poll(sockets.data(), sockets.size(), static_cast<int>((until - now) / 1'000'000) + 1);
      std::erase_if(open, [&](const connection_ptr& each) { return is_seen_off(each); });
    }
  }

  bool is_seen_off(const connection_ptr& with) {
    const auto lock = hold(*with->owner);
    error_code ignored;
    if (put_out(*with->owner, with)) with->socket.shutdown(tcp::socket::shutdown_send, ignored);
    for (;;) {
      const auto n =
          ::recv(with->socket.native_handle(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
      if (n > 0 || (n < 0 && errno == EINTR)) continue;
      return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
  }

  /// A connection that has not said who it is; `expected`: whom this end dialled.
  struct greeting {
    connection_ptr with;
    peer_ptr expected;
  };

  transport_options options_;
  transport_user& user_;
  const std::uint64_t life_ =
      mix64(std::random_device()() | std::uint64_t{std::random_device()()} << 32);
  asio::io_context io_;
  asio::steady_timer timer_;
  std::vector<std::unique_ptr<tcp::acceptor>> acceptors_;
  std::vector<address> listens_at_;
  std::vector<peer_ptr> members_;  ///< Fixed once it listens.
  mutable std::mutex clients_mutex_;
  std::map<peer_id, peer_ptr> clients_;
  std::thread thread_;
  // Of the transport's thread alone:
  std::atomic<std::thread::id> thread_id_;
  std::uint32_t n_clients_ = 0;
  session::connection_id next_connection_ = 1;
  std::vector<greeting> greeting_;  ///< The oldest first.
  std::vector<peer_ptr> dirty_;
  std::array<char, most_at_once> buffer_;
  std::string plain_;
  std::map<std::string, std::int64_t> told_;  ///< By tell_once, and when.
  bool in_user_ = false, ending_ = false;
  random_stream jitter_{static_cast<std::uint64_t>(now_ns())};
};

transport::transport(std::unique_ptr<impl> content) : content_(std::move(content)) {}
transport::~transport() {
  stop();
}

result<std::unique_ptr<transport>> transport::start(transport_options options,
                                                    transport_user& user) {
  auto content = std::make_unique<impl>(std::move(options), user);
  if (auto begun = content->begin(); !begun) return begun.error();
  return std::unique_ptr<transport>(new transport(std::move(content)));
}

bool transport::send(peer_id to, lane of, std::uint8_t kind, std::uint64_t request,
                     std::uint32_t attempt, std::uint32_t epoch, std::string payload,
                     std::uint64_t stamp, std::size_t padding) {
  return content_->send(to, of, kind, request, attempt, epoch, std::move(payload), stamp, padding);
}
void transport::used(peer_id from, lane of, std::uint64_t bytes) {
  content_->used(from, of, bytes);
}
void transport::flush() {
  content_->flush();
}
void transport::leave(peer_id client, std::string_view why) {
  content_->leave(client, why);
}
peer_figures transport::figures(peer_id of) const {
  return content_->figures(of);
}
const std::vector<address>& transport::listens_at() const {
  return content_->listens_at();
}
void transport::stop() {
  content_->stop();
}

}  // namespace ordermoe::net
