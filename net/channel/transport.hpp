#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "net/channel/address.hpp"
#include "net/channel/connections.hpp"
#include "net/channel/tls.hpp"
#include "net/session/session.hpp"

/// Sessions over connections, of TLS over TCP where nothing else is said: listens, dials, dials again, and keeps one
/// session with every peer.
///
/// One thread reads and dispatches. Sending writes to the connection on the thread that sends, where it takes that;
/// what it does not take is written when it does, the first lane first.
///
/// Of two nodes that both have an address the one with the lower name dials; a node without one dials everybody who
/// has. A client (a console, an embedder: any role but node) dials, and is known for as long as its connection lasts.
namespace ordermoe::net {

/// A node that this end has a session with.
struct transport_peer {
  std::string name;           ///< Empty: any node of the cluster that answers there.
  std::optional<address> at;  ///< None: it dials.
  bool absent = false;        ///< No member for now: neither dialled nor let in, until admit().
};

struct transport_options {
  std::shared_ptr<const tls_identity> identity;
  std::vector<address> listen;  ///< Port 0: any that is free.
  std::vector<transport_peer> peers;
  bool takes_clients = false;
  bool is_client = false;
  /// joining: a client with a node's certificate, which the others take for as long as that node is a member.
  dial_purpose dials_for = dial_purpose::session;
  std::uint64_t boot = 1;         ///< Counts the starts of this end; a later one is larger.
  std::vector<agreement> agreed;  ///< Between nodes.
  session_limits limits;
  /// How long the thread that reads looks for more at most before it sleeps, where that pays (busy_poll.hpp); 0: it sleeps.
  std::int64_t busy_poll_ns = 0;
  bool rests = true;  ///< Whether transport_user::rest() is called.
  /// What carries the bytes; left out: TLS over TCP (tls_connections.hpp). Nodes that meet must have the same.
  connections_maker carried_by;
};

/// Peers are numbered as in the options; clients from there on, no number twice.
using peer_id = std::uint32_t;

/// What happens is told here, on the transport's thread, one thing at a time. A user may send from within.
class transport_user {
 public:
  virtual ~transport_user() = default;
  /// Of one peer, in order. A client's session ends with `down`, and its number with it.
  virtual void take(peer_id from, std::vector<session_event> events) = 0;
  /// Some time after take(), once for all of them that followed each other: what else had come was told as well. Work
  /// that may take longer belongs here, where it is done for all of it together. Where transport_options::rests.
  virtual void rest() {}
  /// A client came; its events follow.
  virtual void client_came(peer_id id, const certificate_name& who) = 0;
  /// Somebody was turned away, or cannot be reached: who, and why.
  virtual void problem(const std::string& who, const error& why) = 0;
  /// Behind problem(), where a node of the list cannot be reached: which one.
  virtual void could_not_reach(peer_id, const error&) {}
};

struct peer_figures {
  bool up = false;
  std::string name;
  std::string serial;  ///< Of the certificate of its latest connection; empty: not known.
  end_identity self;   ///< The peer's.
  std::int64_t round_trip_ns = -1;  ///< Without waits (session::round_trip_ns).
  double bytes_per_s = 0;           ///< That the link to it carries; 0: not known yet.
  struct lane_figures {
    std::uint64_t sent_bytes = 0, received_bytes = 0;  ///< Of frames, headers included.
    std::uint64_t outstanding_bytes = 0, waiting_bytes = 0;
  };
  std::array<lane_figures, n_lanes> lanes{};
  std::uint64_t resent_frames = 0;
  std::uint64_t written_bytes = 0, read_bytes = 0;  ///< On the wire, TLS included.
  std::uint64_t writes = 0, reads = 0;              ///< In how many parts.
  std::uint64_t connections = 0;                    ///< So far.
};

class peer_book;

class transport {
 public:
  /// Listens when it returns. `user` must outlive it. Error: io, naming the address and what to do.
  static result<std::unique_ptr<transport>> start(transport_options options, transport_user& user);
  ~transport();

  /// From any thread. False where the peer is away: nothing is kept. `padding` as session::send has it.
  bool send(peer_id to, lane of, std::uint8_t kind, std::uint64_t request, std::uint32_t attempt,
            std::uint32_t epoch, std::string payload, std::uint64_t stamp = 0,
            std::size_t padding = 0);
  /// Its user is done with so many bytes of frames (session::used). From any thread.
  void used(peer_id from, lane of, std::uint64_t bytes);
  /// What the calling thread sends from now on waits for flush(), so that what belongs together is written together; other
  /// threads write what waits for the same peer along with theirs. Within the user it is so by itself, until it returns.
  /// Of another thread the turn ends before the transport, or with the thread.
  void begin_turn();
  /// Whether something that the calling thread has sent waits.
  bool holds() const;
  /// Writes what the calling thread has sent in its turn, if the first of it has waited for so long.
  void flush(std::int64_t held_ns = 0);
  /// That too, and what it sends from now on is written at once.
  void end_turn();
  /// Calls what() so much later on the transport's thread, as if it were the user, and the user's rest() after it. Never
  /// once stop() has returned. From any thread.
  void after(std::int64_t ns, std::function<void()> what);
  /// From now on nodes that connect are to agree in this; what is connected stays. From any thread.
  void agree(std::string_view what, const std::string& value);
  /// Connections from now on are by this identity, of the same name. Those that there are stay, but for peers whose
  /// certificate is revoked by it: these are closed, told to the user once, and let in again only with another. A node's
  /// session is over when it has found none for as long as one may be silent, a client's at once. From any thread.
  void use(std::shared_ptr<const tls_identity> identity);
  /// Whether a node of the list is a member from now on; `at`: where it is dialled, none: as before. One that is none any
  /// more hears so, and its session ends. From any thread.
  void admit(peer_id node, bool member, std::optional<address> at);
  /// Ends a client's session.
  void leave(peer_id client, std::string_view why);

  peer_figures figures(peer_id of) const;
  /// Where it listens, with the ports that it got.
  const std::vector<address>& listens_at() const;
  /// Says goodbye to everybody and ends; nothing is told any more when it returns. Not from within the user.
  void stop();

 private:
  explicit transport(std::unique_ptr<peer_book> book);
  std::unique_ptr<peer_book> book_;
};

}  // namespace ordermoe::net
