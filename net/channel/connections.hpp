#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "config/error.hpp"
#include "net/channel/address.hpp"
#include "net/channel/tls.hpp"
#include "net/session/session.hpp"

/// What carries the bytes of sessions between hosts. The book of peers (peer_book.hpp) decides whom to dial, whom to
/// speak with and when; what a connection is made of stays below: tls_connections.hpp is one way.
namespace ordermoe::net {

struct peer;

/// One connection. Before it belongs to a peer only the connections' thread touches it, afterwards whoever holds the
/// peer's lock.
class connection {
 public:
  virtual ~connection() = default;

  /// Whether it is known who is there: peer() says so then. A connection that was dialled knows which() at once.
  virtual bool established() const = 0;
  virtual const certificate_name& peer() const = 0;
  virtual stream which() const = 0;
  /// Whether its other end dialled to ask for the plan in force (dial_purpose); once established.
  virtual bool joins() const = 0;
  /// Of its certificate, once established; empty: not known here.
  virtual std::string serial() const { return {}; }
  /// What peer() goes by, for messages: "its certificate is".
  virtual const char* proof() const = 0;

  /// What came on the wire: appends what was put at the other end to `plain`. Error: it is of no use any more.
  virtual result<void> take(std::string_view wire, std::string& plain) = 0;
  /// The other end said that it says no more.
  virtual bool ended() const = 0;

  /// For the wire, with the next write(). Error: it is of no use any more.
  virtual result<void> put(std::string_view plain) = 0;
  /// Writes what was put; whether all of it is gone. Where it is not, has_room() is told later, or `problem` is set.
  virtual bool write() = 0;
  /// Nothing is put behind it.
  virtual void end() = 0;
  /// Once write() has written what was put and end() was said, or else loses that.
  virtual void close() = 0;
  /// In the place of everything else, once this end stops: writes, drops what comes, and tells nobody. Whether all was
  /// said and the other end is closed.
  virtual bool see_off() = 0;

  // ----------------------------------------------------------------------------- what it tells its owner
  std::string remote;               ///< For messages.
  std::string problem;              ///< That writing met; whoever reads finds its end.
  std::uint64_t written_bytes = 0;  ///< On the wire; its owner counts them and begins again.

  // ------------------------------------------------------------------------------- what its owner keeps
  session::connection_id id = 0;
  bool dialled = false;
  std::int64_t since_ns = 0;
  std::shared_ptr<net::peer> owner;
  bool closing = false;  ///< Once everything is written.
  std::int64_t closing_since_ns = 0;
  bool closed = false;
};
using connection_ptr = std::shared_ptr<connection>;

/// Told on the connections' thread, one thing at a time.
class connections_user {
 public:
  virtual ~connections_user() = default;
  /// Somebody came. Reading begins when this returns.
  virtual void accepted(connection_ptr with) = 0;
  /// `drained`: there was nothing more to read. Valid during the call.
  virtual void came(const connection_ptr& with, std::string_view wire, bool drained) = 0;
  virtual void has_room(const connection_ptr& with) = 0;
  /// By its other end, or by what is between.
  virtual void was_closed(const connection_ptr& with, std::string_view why) = 0;
  /// Somebody came and could not be let in: who, and why.
  virtual void could_not_accept(const std::string& who, const error& why) = 0;
};

struct connections_options {
  std::shared_ptr<const tls_identity> identity;
  std::int64_t silent_ns = 0;  ///< How long what was written may wait to be taken at the other end.
  std::int64_t dial_ns = 0;    ///< That an attempt to connect may take.
  dial_purpose dials_for = dial_purpose::session;
  std::int64_t busy_poll_ns = 0;  ///< transport_options::busy_poll_ns.
};

class connections {
 public:
  virtual ~connections() = default;

  /// Before start(). Where it listens, with the port that it got. Error: io, naming the address and what to do.
  virtual result<address> listen(const address& where) = 0;
  virtual void start() = 0;
  /// From any thread; `what` runs on the connections' own.
  virtual void post(std::function<void()> what) = 0;

  // On the connections' own thread:
  /// Connections that begin from now on are by this one, of the same name; others stay. Error: what keeps it from that;
  /// nothing has changed then.
  virtual result<void> use(std::shared_ptr<const tls_identity> identity) = 0;
  virtual void after(std::int64_t ns, std::function<void()> what) = 0;
  /// Tells `done` once, within dial_ns. Reading begins when that returns. Error: io, why there is no connection;
  /// others where whoever answers is not one of ours.
  virtual void dial(const address& to, stream which,
                    std::function<void(result<connection_ptr>)> done) = 0;
  virtual void stop_listening() = 0;
  /// That last words to everybody may take where this end stops.
  virtual std::int64_t farewell_ns() const { return 300'000'000; }
  /// Until one of these may get on with see_off(), or the time is over.
  virtual void await(const std::vector<connection_ptr>& open, std::int64_t ns,
                     std::function<void()> then) = 0;
  /// Nothing is told any more, and start()'s thread ends.
  virtual void halt() = 0;
  /// From another thread, once it was halted.
  virtual void join() = 0;

  bool on_own_thread() const { return std::this_thread::get_id() == thread_id_; }

 protected:
  std::atomic<std::thread::id> thread_id_;
};

/// Error: what keeps it from starting.
using connections_maker =
    std::function<result<std::unique_ptr<connections>>(connections_options, connections_user&)>;

}  // namespace ordermoe::net
