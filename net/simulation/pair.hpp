#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "config/random.hpp"
#include "net/session/session.hpp"

/// Two sessions and the connections between them, in simulated time: what a transport does over sockets, without any.
/// Bytes of a direction cross in order and in chunks. Whoever drives it gives it the time, and asks when it has
/// something to do next. What must hold of two sessions whatever happens to connections is checked meanwhile.
namespace ordermoe::net {

enum class wire_fault : std::uint8_t {
  cut,            ///< A connection breaks; of what is on its way a prefix arrives.
  cut_unequally,  ///< And one end hears of it later.
  stall,          ///< Nothing arrives for a while, and then all of it.
  stall_one_way,
  stall_one,  ///< Of one connection one direction alone; others pass it.
  flip,  ///< A bit is another: TLS breaks the connection there; without it the session reads it.
  dial_again,  ///< Another connection of a stream that has one; what is said over it may come late.
  change_rate,  ///< Rate and delay are others from now on.
  silence,      ///< A stall of more than dead_ns: the session dies.
};
inline constexpr std::size_t n_wire_faults = 9;
const char* to_string(wire_fault kind);

/// One direction of the wire.
struct wire_rate {
  double bytes_per_s = 1e9;
  std::int64_t delay_ns = 100'000;
};

struct wire_options {
  std::size_t chunk_bytes = 16 * 1024;   ///< That arrive at once.
  std::size_t read_bytes = 64 * 1024;    ///< That the session is given in one go.
  std::size_t buffer_bytes = 64 * 1024;  ///< On their way in one direction of a connection.
  bool both_dial = false;                ///< Else the first end does.
  /// Off: a bit that is another reaches the session. Only in what it checks itself: its own words, and length, version,
  /// lane, word and sequence of a frame.
  bool tls = true;
  std::int64_t most_stall_ns = 1'500'000'000;
  /// The user is done with a frame up to so much later than it says.
  std::int64_t most_use_delay_ns = 0;
};

/// Of a pair so far.
struct pair_counts {
  std::array<std::uint64_t, n_wire_faults> faults{};
  std::uint64_t frames = 0;  ///< Sent.
  std::uint64_t connections = 0, resumed = 0, downs = 0, congested = 0;
};

class simulated_pair {
 public:
  /// `towards[i]`: to that end. The seed decides what is drawn.
  simulated_pair(std::array<session_config, 2> ends, std::array<wire_rate, 2> towards,
                 wire_options options, std::uint64_t seed);

  // As a transport; `end` is the one that speaks.
  bool send(std::size_t end, lane of, std::uint8_t kind, std::uint64_t request,
            std::uint32_t attempt, std::uint32_t epoch, std::string payload);
  void used(std::size_t end, lane of, std::uint64_t bytes);
  std::vector<session_event> take_events(std::size_t end);

  /// Everything that is due until now happens.
  void advance(std::int64_t now_ns);
  /// When something is due; in the past where something is now.
  std::int64_t next_ns() const;
  /// Of what an end sent in this lane, what the other's user is not done with; 0 where it does not run.
  std::uint64_t unused_bytes(std::size_t end, lane of) const {
    const auto& from = sessions_[end];
    return from ? from->outstanding_bytes(of) + from->waiting_bytes(of) : 0;
  }
  /// Nothing of its users is on its way, waits, or is kept.
  bool at_rest() const;

  /// Happens while what is sent now is on its way and, but for silence, is no reason for the session to end.
  void strike(wire_fault kind) { strikes_.push_back({at_next_advance, kind}); }
  /// An end ends: its process, whose connections close, or its machine, of which nothing is heard any more. What a process
  /// said may come after it has started again, and it may have dialled at last: then a hello of its earlier life does.
  enum class ending : std::uint8_t { process, machine };
  void end(std::size_t which, ending how);
  /// It starts again. A later start has a larger count.
  void start(std::size_t which, std::uint64_t boot);

  const pair_counts& counts() const { return counts_; }
  /// What does not hold of the two sessions; empty: everything does.
  const std::string& broken() const { return broken_; }

 private:
  enum class what : std::uint8_t { opened, bytes, closed };
  struct item {
    std::int64_t at_ns = 0;
    what kind = what::bytes;
    std::string text;
  };
  struct direction {
    std::deque<item> queue;
    std::size_t in_flight = 0;
    std::int64_t free_ns = 0;  ///< When its sender may put something on the wire.
    std::int64_t stalled_until_ns = 0;
  };
  struct connection {
    session::connection_id id = 0;
    stream which = stream::fast;
    std::size_t dialler = 0;
    std::array<direction, 2> to;
    std::array<bool, 2> attached{};
    bool cut = false;
  };
  struct dialling {
    std::int64_t next_ns = 0, backoff_ns = 0;
  };
  struct struck {
    std::int64_t at_ns = 0;
    wire_fault kind = wire_fault::cut;
  };
  struct late_use {
    std::int64_t at_ns = 0;
    std::size_t end = 0;
    lane of = lane::control;
    std::uint64_t bytes = 0;
  };
  /// What is known of an end's present session, to check what comes.
  struct witness {
    std::uint64_t life = 0;  ///< Counts sessions of this end.
    /// In this one, by the lane that the user sent them in.
    std::array<std::uint32_t, n_lanes> sent{}, taken{};
    /// The least number that may come next, of those that came in their lane, and of those that came as large.
    std::array<std::uint32_t, n_lanes> next{}, next_large{};
    std::array<std::uint32_t, n_lanes>
        n_short{};  ///< That came in their lane, whose sequence they have.
    std::optional<std::uint64_t> life_of_peer;     ///< That the frames of this one are of.
    std::array<std::uint64_t, n_lanes> largest{};  ///< Frame of this end so far, bytes.
  };
  /// Until then it is not known what time it is.
  static constexpr std::int64_t at_next_advance = -1;
  static constexpr std::size_t index(lane of) { return static_cast<std::size_t>(of); }

  void make_session(std::size_t end, std::uint64_t boot);
  static witness next_life(const witness& before);
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(draws_.below(static_cast<std::uint64_t>(bound) + 1));
  }
  bool one_in(std::uint64_t n) { return draws_.below(n) == 0; }

  bool has_way(std::size_t end, stream which) const;
  void dial_where_due();
  connection& dial(std::size_t from, stream which);
  void dial_at_last(std::size_t from);
  void retry_later(std::size_t end, stream which);
  bool deliver(connection& over, std::size_t end);
  void attach(connection& over, std::size_t end);
  void detach(connection& over, std::size_t end, std::string_view why);
  bool write(connection& over, std::size_t end);
  void close_what_ends(std::size_t end);
  void put(connection& over, std::size_t to, std::string_view bytes);
  void put_end(connection& over, std::size_t to, std::int64_t after_ns);
  void tick_and_use();
  void forget_connections();

  void strike_what_is_due();
  void strike_now(wire_fault kind);
  connection* any_connection();
  void stall_one(connection& which, std::size_t towards);
  void cut(connection& which, std::int64_t later_at_one_end_ns);
  void keep_prefix(direction& of, std::size_t bytes);
  void flip(connection& which);
  void flip_a_bit(std::string& frames);

  void watch(std::size_t end, std::vector<session_event>& events);
  void check_frame(std::size_t end, const session_event& event);
  void check_all_came();
  void check_credit();
  void breach(std::string text) {
    if (broken_.empty()) broken_ = std::move(text);
  }

  std::array<session_config, 2> configs_;
  std::array<wire_rate, 2> towards_;
  wire_options options_;
  random_stream draws_;
  std::int64_t now_ns_ = 0;
  std::array<std::optional<session>, 2> sessions_;
  std::list<connection> connections_;
  session::connection_id next_id_ = 1;
  std::array<std::array<dialling, n_streams>, 2> dials_;
  std::array<std::int64_t, 2> stalled_until_ns_{};  ///< Towards that end.
  std::array<bool, 2> flips_next_{};                ///< Towards that end, without TLS.
  std::vector<late_use> uses_;
  std::vector<struck> strikes_;
  std::array<std::vector<session_event>, 2> events_;
  std::array<witness, 2> witnesses_;
  pair_counts counts_;
  std::string broken_, scratch_;
};

}  // namespace ordermoe::net
