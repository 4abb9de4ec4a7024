#pragma once

#include <atomic>
#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "actors/caf_channel/messages.hpp"
#include "net/channel/connections.hpp"

namespace ordermoe::actors {

/// One end of a connection over CAF. An actor of the channel's thread speaks for it; who sends hands bytes to that of the
/// other end directly.
///
/// What was sent and has not come to the other end's session stays within a window, so that neither CAF's buffers nor the
/// other end's mailbox grow, and what is urgent waits behind no more than that.
class caf_connection final : public net::connection,
                             public std::enable_shared_from_this<caf_connection> {
 public:
  /// CAF keeps one TCP connection for all between two processes: a token waits behind the bulk that is on its way.
  static constexpr std::uint64_t fast_window_bytes = 1u << 20, bulk_window_bytes = 256u << 10;

  caf_connection(net::stream which, std::uint64_t key, net::connections_user& user,
                 bool joins = false)
      : which_(which), joins_(joins), key_(key), user_(user) {}

  /// The actor that speaks for it, a caf_speaker.
  void speaks(caf::actor self) { self_ = std::move(self); }
  /// It is known who is there, as that one says.
  void meet(net::certificate_name who, caf::actor other);

  bool established() const override { return established_; }
  const net::certificate_name& peer() const override { return peer_; }
  net::stream which() const override { return which_; }
  bool joins() const override { return joins_; }
  const char* proof() const override { return "it says that it is"; }
  result<void> take(std::string_view wire, std::string& plain) override;
  bool ended() const override { return false; }
  result<void> put(std::string_view plain) override;
  bool write() override;
  void end() override { ends_ = true; }
  void close() override;
  bool see_off() override;

  // Of the actor that speaks for it:
  std::uint64_t key() const { return key_; }
  const caf::actor& self() const { return self_; }
  void took(caf::event_based_actor* speaker, const std::string& bytes);
  void was_taken(std::uint64_t bytes);
  /// The other end says no more, or is gone.
  void lost(std::string_view why);
  bool is_lost() const { return lost_; }

 private:
  bool has_window() const;
  void say_end();

  net::stream which_;
  bool joins_;
  std::uint64_t key_;
  net::connections_user& user_;
  bool established_ = false;
  net::certificate_name peer_;
  caf::actor self_, other_;
  std::deque<std::string> out_;
  bool ends_ = false, end_said_ = false;
  std::atomic<std::uint64_t> sent_bytes_{0}, taken_bytes_{0};
  std::atomic<bool> awaits_room_{false};
  // Of the channel's thread alone:
  std::uint64_t came_bytes_ = 0, told_bytes_ = 0;
  bool lost_ = false;
};
using caf_connection_ptr = std::shared_ptr<caf_connection>;

/// What becomes of a connection that this end dialled.
struct caf_dial_outcome {
  caf::actor listener;  ///< That was asked.
  // One of the two:
  std::function<void(const caf_welcome&)> welcomed;
  std::function<void(const error& why)> failed;
};

/// Speaks for a connection until both ends are closed.
caf::behavior caf_speaker(caf::event_based_actor* self, caf_connection_ptr with, caf::actor other);
/// Likewise, once whoever was dialled has answered.
caf::behavior caf_dialling_speaker(caf::event_based_actor* self, caf_connection_ptr with,
                                   std::shared_ptr<caf_dial_outcome> dialled);

}  // namespace ordermoe::actors
