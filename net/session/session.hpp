#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/frame_parts.hpp"
#include "net/session/arrival_rate.hpp"
#include "net/session/bulk_pace.hpp"
#include "net/session/header.hpp"
#include "net/session/hello.hpp"

/// What two nodes say to each other over connections that may break, as a state machine without sockets: bytes and
/// time go in, bytes, frames and events come out, so that a test can cut the wire wherever it likes.
///
///             hello fits, none known                     silent for dead_ns, or goodbye
///   away ------------------------------> up <-----------------------------------------+----> away
///                                        |  ^                                         |
///          the fast connection is closed |  | another one, and both ends are the same |
///                                        v  |                                         |
///                                        cut ---------------------------------------- +
///
/// A session whose ends do not fit together, whatever connection they get, is given up after a few.
///
/// up, cut: frames that the peer has not confirmed are kept. A new connection says which frame of each lane its end
/// takes next, and the other goes on there: each frame arrives once and in the order of its lane, however often
/// connections break. What is said while cut waits.
/// away: nothing is kept. Whoever gives a session up changes its identity, so that the peer, which may not have
/// noticed, gives it up at the next hello. A second process with the same name and boot is refused until the first was
/// silent for dead_ns.
///
/// Silence is counted while this end runs: what it slept through, because its host stood still, is nobody's.
///
/// A lane has a credit in bytes: what was written and not yet used up by the peer's user stays within it, but for a
/// single frame. What is sent beyond it waits here; the user hears of it and stops what is new, never what is begun.
/// An unbounded user makes this queue unbounded.
///
/// The link is measured by what passes. Heartbeats are echoed: the least of the round trips of the last seconds is the
/// link's own, without waits. How fast it is shows in large frames (arrival_rate.hpp); where there are none, a burst of
/// filler goes over the bulk stream once in a while, rarely where nothing else is sent.
///
/// Frames of bulk are small, and go at a pace that leaves the link's queue empty (bulk_pace.hpp). What is large is many of
/// them (net/bulk).
///
/// A frame of a token or of KV rows that would hold its stream up for longer than part_rule::longest_ns, as the rows of a prompt do on a slow
/// link, goes in parts over lane bulk, before what is bulk and at a share of the link's rate, so that what is short does not wait
/// behind it. Its user takes it whole, of lane bulk with a word of is_in_parts(); what was sent later in its own lane may come before
/// it. Until the link was measured, without a bulk stream, and to a peer of the first protocol it goes as all others do.
namespace ordermoe::net {

/// Both ends must have the same `largest_frame` and `credit`: the hello compares them.
struct session_limits {
  std::array<std::uint32_t, n_lanes> largest_frame{1u << 20, 64u << 20, 64u << 20, 1u << 16,
                                                   1u << 16};  ///< Bytes.
  std::array<std::uint64_t, n_lanes> credit{4u << 20, 64u << 20, 64u << 20, 1u << 20,
                                            4u << 20};  ///< Bytes.
  std::int64_t heartbeat_ns = 200'000'000;
  std::int64_t suspect_ns = 1'000'000'000;
  std::int64_t dead_ns = 2'500'000'000;
  std::int64_t hello_ns = 5'000'000'000;  ///< That a connection may take to say who it is.
  /// Without a large frame for so long, the link is timed by filler: while frames are sent, and while none are. 0: never.
  std::int64_t burst_busy_ns = 15'000'000'000, burst_idle_ns = 600'000'000'000;
  part_rule parts;  ///< Each end has its own. A frame's take at most half of the credit of bulk.
};

struct session_config {
  hello self;        ///< `which`, `other` and `expected` are the session's to fill in.
  std::string peer;  ///< Name of the node at the other end.
  session_limits limits;
};

struct session_event {
  enum class what {
    up,         ///< A session begins; peer() says with whom.
    resumed,    ///< Another fast connection: it goes on where it was.
    cut,        ///< No fast connection any more. text: why.
    suspect,    ///< Nothing was heard for suspect_ns.
    heard,      ///< After that, something was.
    down,       ///< The session is over and what was not confirmed is lost. text: why.
    refused,    ///< A connection was not accepted, here or there. text: why.
    fault,      ///< A connection is closed for what its peer sent. text: place, found, expected.
    frame,      ///< header and text, of a lane.
    congested,  ///< More waits for header.of than its credit, and for no other lane did so before.
    relieved,   ///< Of no lane does any more, and of this less than half again.
  };
  what kind = what::frame;
  frame_header header;
  std::string text;
};
const char* to_string(session_event::what kind);

class session {
 public:
  using connection_id = std::uint32_t;

  session(session_config config, std::int64_t now_ns);

  // --------------------------------------------------------------------- below: connections and bytes

  /// What the hellos of connections to come say of this; nothing where they say nothing of it.
  void agree(std::string_view what, const std::string& value);
  /// A new connection. `name`: the peer's by its certificate; empty: nobody vouches for it. A bulk connection
  /// that is not of the session, or comes before it, is closed at its hello.
  void connected(connection_id id, stream which, bool dialled_here, std::string name,
                 std::int64_t now_ns);
  void disconnected(connection_id id, std::int64_t now_ns, std::string_view why);
  /// `drained`: there was nothing more to read.
  void receive(connection_id id, std::string_view bytes, std::int64_t now_ns, bool drained = true);
  /// Appends whole frames, the first lane first, until `most` bytes are reached or nothing is left to say. The
  /// number of bytes.
  std::size_t write(connection_id id, std::string& into, std::size_t most, std::int64_t now_ns);
  /// Whether write() would append anything.
  bool has_output(connection_id id, std::int64_t now_ns) const;
  /// When what waits on the bulk stream for nothing but its pace may be written; the largest number: nothing does.
  std::int64_t next_bulk_ns() const;
  /// Connections to close, once each, after what write() still gives for them.
  std::vector<connection_id> take_closing();

  // ------------------------------------------------------------------------------- above: the user

  /// False while away, when nothing is kept, and for more bytes than the lane's largest frame. `padding`: the frame is
  /// so much longer on the wire, and in every count of bytes; less than padding_mark_bytes is none.
  bool send(lane of, std::uint8_t kind, std::uint64_t request, std::uint32_t attempt,
            std::uint32_t epoch, std::string payload, std::uint64_t stamp = 0,
            std::size_t padding = 0);
  /// The user is done with so many bytes of frames of this lane, headers included (frame_bytes). Whether the peer is to be
  /// told so now.
  bool used(lane of, std::uint64_t bytes);
  static std::uint64_t frame_bytes(const frame_header& header) {
    return header_bytes + header.length;
  }
  /// Says goodbye and gives the session up.
  void leave(std::string_view why);
  /// In the order in which they happened.
  std::vector<session_event> take_events();
  bool has_events() const { return !events_.empty(); }

  // ------------------------------------------------------------------------------------------ time

  /// `late_ns`: this end did not run for so long when it should have called. What it did not hear meanwhile is not its
  /// peer's silence.
  void tick(std::int64_t now_ns, std::int64_t late_ns = 0);
  /// When tick() has something to do, if nothing else happens before.
  std::int64_t next_tick_ns() const;

  // --------------------------------------------------------------------------------------- figures

  enum class phase { away, up, cut };
  phase now_in() const { return phase_; }
  const hello& peer() const { return peer_; }
  const end_identity& self() const { return config_.self.self; }
  /// Written and not confirmed as used up by the peer's user, and sent but not written yet; bytes.
  std::uint64_t outstanding_bytes(lane of) const;
  std::uint64_t waiting_bytes(lane of) const;
  /// The least of the last seconds, without the time that the peer held it; -1: none yet.
  std::int64_t round_trip_ns() const { return round_trip_.value(); }
  /// What the link to the peer carries, as the peer found lately; 0: not known yet.
  double bytes_per_s() const { return bytes_per_s_; }
  /// What bulk is written at, at most; less while much else is.
  double bulk_bytes_per_s() const { return pace_.bytes_per_s(); }
  /// Of frames of this lane, headers included, since the start: written and taken once each.
  std::uint64_t sent_bytes(lane of) const { return total_sent_[index(of)]; }
  std::uint64_t received_bytes(lane of) const { return total_received_[index(of)]; }
  std::uint64_t resent_frames() const { return resent_frames_; }

 private:
  struct out_frame {
    frame_header header;
    std::string payload;
    std::uint64_t end = 0;  ///< Bytes of the lane up to here.
  };
  struct out_lane {
    std::deque<out_frame>
        frames;  ///< That the peer has not confirmed; the front's sequence is `first`.
    std::uint64_t first = 0, unsent = 0, next = 0;
    std::uint64_t furthest = 0;    ///< Sequence behind the last that was ever written.
    std::uint64_t end_bytes = 0;   ///< Of all frames so far.
    std::uint64_t used_bytes = 0;  ///< As the peer says.
    std::uint64_t part_bytes = 0;  ///< Of `frames`, those in parts.
    bool congested = false;
  };
  struct in_lane {
    std::uint64_t expected = 0;
    std::uint64_t received_bytes = 0, used_bytes = 0;
    std::uint64_t told_bytes = 0;  ///< Of used_bytes.
    std::string parts;             ///< That came of a frame.
    std::uint64_t part_bytes = 0;  ///< Theirs, headers included.
  };
  enum class connection_phase { greeting, open, closing };
  struct connection {
    connection_id id = 0;
    stream which = stream::fast;
    bool dialled_here = false;
    std::string name;
    connection_phase state = connection_phase::greeting;
    hello said;
    std::string in, out;
    std::uint64_t received = 0;  ///< Bytes so far.
    arrival_rate arrivals;
    std::int64_t since_ns = 0;
    bool goes_on = false;  ///< With the session that there is.
    bool told_closing = false;
  };
  using what = session_event::what;

  static constexpr std::size_t index(lane of) { return static_cast<std::size_t>(of); }
  connection* find(connection_id id);
  const connection* find(connection_id id) const;
  connection* open_connection(stream which);
  bool is_open(stream which) const;
  void tell(what kind, std::string text = {}, frame_header header = {});

  void say(connection& to, session_word word, std::string_view text);
  void close(connection& which) { which.state = connection_phase::closing; }
  /// Closes it; where it carried the session, that is cut.
  void lose(connection& which, std::string why);
  void fault(connection& from, std::string text);
  void refuse(connection& from, const std::string& why);

  /// How many of the bytes are whole frames, which are taken.
  std::size_t take_input(connection& from, std::string_view bytes, std::int64_t now_ns);
  /// False where the connection is closed by it.
  bool check_header(connection& from, const frame_header& header);
  void take(connection& from, const frame_header& header, std::string_view payload,
            std::int64_t now_ns);
  void take_hello(connection& from, std::string_view text, std::int64_t now_ns);
  void take_pulse(connection& from, std::string_view payload, std::int64_t now_ns);
  /// The next of its lane. The last of several parts is told with the others.
  void take_frame(connection& from, const frame_header& header, std::string_view payload);

  /// Why the peer, or whom it takes this end for, is another process with the same count of starts.
  std::optional<std::string> twin(const hello& theirs) const;
  /// Whether a connection takes the place of one that is open.
  bool supersedes(const connection& newer, const connection& open, std::int64_t now_ns) const;
  void begin(const hello& theirs);
  bool go_on(connection& with, const hello& theirs);
  void open(connection& which, std::int64_t now_ns);
  /// Nothing of the session is left.
  void give_up(std::string why);
  void forget();
  void heard_from_peer(std::int64_t now_ns);

  /// What the frame at this place of what has come lets expect of the bytes behind it.
  static void expect_burst(connection& from, const frame_header& header, std::uint64_t begin);
  bool burst_is_due(std::int64_t now_ns) const;
  void begin_burst(std::int64_t now_ns);
  void write_burst(std::string& into, std::size_t limit, std::int64_t now_ns);

  /// Of the lane, up to the first frame that is still to be written.
  static std::uint64_t written_bytes(const out_lane& out);
  std::size_t largest_part() const;
  bool would_hold_up(lane of, std::size_t bytes) const;
  void append(const frame_header& header, std::string payload);
  void append_parts(frame_header header, std::string_view payload);
  static void insert(out_lane& out, std::size_t place, std::vector<out_frame> some);
  std::size_t next_part_place() const;
  std::int64_t bulk_due_ns() const;
  bool may_write(const out_lane& from, lane of) const;
  /// Likewise, and its pace allows it.
  bool may_write(lane of, std::int64_t now_ns) const;
  void write_pulse(std::string& into, std::int64_t now_ns);
  void wrote_part(std::uint64_t bytes, std::int64_t now_ns);
  void write_lane(lane of, std::string& into, std::size_t limit, std::int64_t now_ns);
  void confirm(lane of, std::uint64_t received);
  void note_congestion(lane of);

  session_config config_;
  phase phase_ = phase::away;
  hello peer_;
  std::array<out_lane, n_lanes> out_;
  std::array<in_lane, n_lanes> in_;
  std::vector<connection> connections_;
  std::vector<session_event> events_;
  std::int64_t heard_ns_ = 0, pulsed_ns_ = 0;
  bool suspected_ = false, pulse_is_due_ = false;
  int faults_ = 0;                              ///< Of its connections, since the latest new frame.
  std::int64_t echo_ = -1, echo_since_ns_ = 0;  ///< The peer's latest time, and when it came.
  recent_least round_trip_{5'000'000'000};
  recent_least mib_ns_{30'000'000'000};  ///< That a MiB from the peer takes.
  double bytes_per_s_ = 0;               ///< To the peer, as it says.
  bulk_pace pace_;
  std::int64_t next_part_ns_ = 0;
  std::int64_t judged_echo_ = -1;  ///< The latest heartbeat of ours that the pace has heard of.
  std::int64_t burst_ns_ = -1;     ///< When the latest burst began; -1: none has.
  std::uint32_t filler_left_ = 0;  ///< Parts of a burst that are still to be written.
  bool sent_since_burst_ = false;
  std::array<std::uint64_t, n_lanes> total_sent_{}, total_received_{};
  std::uint64_t resent_frames_ = 0;
};

}  // namespace ordermoe::net
