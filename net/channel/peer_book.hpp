#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "config/random.hpp"
#include "net/channel/peer.hpp"

/// The nodes and clients that a transport has sessions with: who is dialled and when, who is let in, which bytes go to
/// which session, and what the user hears. Of sockets it knows nothing (connections.hpp).
namespace ordermoe::net {

class peer_book final : public connections_user {
 public:
  peer_book(transport_options options, transport_user& user)
      : options_(std::move(options)), user_(user) {}

  /// As transport::start.
  result<void> begin();
  void stop();

  // As of transport:
  bool send(peer_id to, lane of, std::uint8_t kind, std::uint64_t request, std::uint32_t attempt,
            std::uint32_t epoch, std::string payload, std::uint64_t stamp, std::size_t padding);
  void used(peer_id from, lane of, std::uint64_t bytes);
  void begin_turn();
  bool holds() const;
  void flush(std::int64_t held_ns = 0);
  void end_turn();
  void after(std::int64_t ns, std::function<void()> what);
  void agree(std::string_view what, const std::string& value);
  void use(std::shared_ptr<const tls_identity> identity);
  void admit(peer_id node, bool member, std::optional<address> at);
  void leave(peer_id client, std::string_view why);
  peer_figures figures(peer_id of) const;
  const std::vector<address>& listens_at() const { return listens_at_; }

 private:
  // ------------------------------------------------------------- peer_book.cpp: peers, sending, telling
  void add_member(std::size_t i);
  bool dials(const transport_peer& to) const;
  void make_session(peer& of, const std::string& name, std::vector<agreement> agreed,
                    std::uint64_t generation);
  peer_ptr find(peer_id id) const;
  /// A copy: what happens to one may end others.
  std::vector<peer_ptr> everybody() const;
  std::unique_lock<reader_first> hold(peer& which) const;

  /// Lock held. Writes now, or within a turn when that is flushed.
  void push(const peer_ptr& to);
  /// Calls the user, on the connections' thread and as a turn of it.
  template <class Call>
  void call_user(Call call) {
    begin_turn();
    call();
    end_turn();
  }
  void tell_user(const peer& of, std::vector<session_event> events);
  void rest_later();
  void rest();
  /// What the session has to tell, with its lock not held.
  void dispatch(const peer_ptr& of);
  /// Lock held. Once, however much is sent until then.
  void dispatch_later(const peer_ptr& of);
  void give_up(const peer_ptr& of, const std::string& why);
  void forget(const peer_ptr& client);
  void tell(const std::string& who, const error& why);
  /// Of somebody who came from outside: the same of one host once in a while.
  void tell_once(const std::string& who, const error& why);

  /// Lock held.
  void write_all(const peer_ptr& to);
  /// Lock held. Everything that the session has for this connection and it takes.
  void write(peer& to, const connection_ptr& with);
  /// Lock held. Bulk that waits for its pace is written when it may be.
  void await_pace(const peer_ptr& of);
  /// Lock held. The last words come behind what is not written yet.
  static void begin_closing(peer& to, connection& with);
  /// Lock held. Whether all of it is gone.
  static bool put_out(peer& to, connection& with);

  // ------------------------------------------- peer_connections.cpp: connections that come, go and are made
  void accepted(connection_ptr with) override;
  void came(const connection_ptr& with, std::string_view wire, bool drained) override;
  void has_room(const connection_ptr& with) override;
  void was_closed(const connection_ptr& with, std::string_view why) override;
  void could_not_accept(const std::string& who, const error& why) override { tell_once(who, why); }

  /// Nobody has said who is there yet.
  void add(connection_ptr with, peer_ptr expected);
  /// The oldest of those that came in goes; what was dialled here is little.
  void make_room();
  void greet(const connection_ptr& with, std::string_view wire);
  /// These two take it out of those that greet, so they have a pointer of their own.
  void turn_away(connection_ptr with, const error& why);
  /// To somebody of whom it is known who it is: its session tells it.
  static void say_why(connection& with, std::string_view why);
  void drop(connection_ptr with);
  peer_ptr expected_of(const connection_ptr& with) const;
  /// It is known who is there.
  void attach(const connection_ptr& with);
  void attach_to(const peer_ptr& owner, const connection_ptr& with);
  /// Of a connection that came in; a new one for a client; none where it may not speak here.
  peer_ptr owner_of(const connection& with);
  /// It is closed, here or there.
  void finish(const connection_ptr& with, std::string_view why);
  /// A client whose session never began.
  void forget_unborn(const peer_ptr& client, std::string_view why);

  void adopt(std::shared_ptr<const tls_identity> identity);
  bool is_revoked(const connection& with) const {
    return options_.identity->is_revoked(with.serial());
  }
  void end_revoked(const peer_ptr& of);
  void dismiss(const peer_ptr& whom);

  void dial_where_due();
  void dial(const peer_ptr& to, stream which);
  void could_not_reach(const peer_ptr& to, stream which, const error& why);
  void retry_later(peer& to, stream which);

  void tick();
  void end();
  /// Until all was said and the other ends have closed, or the time for that is over.
  void see_off(std::vector<connection_ptr> open, std::int64_t until_ns);
  void end_now();

  /// A connection that has not said who it is; `expected`: whom this end dialled.
  struct greeting {
    connection_ptr with;
    peer_ptr expected;
  };

  transport_options options_;
  transport_user& user_;
  const std::uint64_t life_ = random_life();
  static std::uint64_t random_life();
  /// Outlives whatever holds a connection below.
  std::unique_ptr<connections> connections_;
  std::vector<address> listens_at_;
  std::vector<peer_ptr> members_;  ///< Fixed once it listens.
  mutable std::mutex clients_mutex_;
  std::map<peer_id, peer_ptr> clients_;
  bool started_ = false;
  // Of the connections' thread alone:
  std::uint32_t n_clients_ = 0;
  session::connection_id next_connection_ = 1;
  std::vector<greeting> greeting_;  ///< The oldest first.
  std::string plain_;
  std::map<std::string, std::int64_t> told_;  ///< By tell_once, and when.
  std::int64_t tick_due_ns_ = 0;              ///< 0: there was none.
  bool ending_ = false;
  bool rest_is_due_ = false;  ///< The user is called again once what has come is told.
  random_stream jitter_{static_cast<std::uint64_t>(steady_ns())};
};

}  // namespace ordermoe::net
