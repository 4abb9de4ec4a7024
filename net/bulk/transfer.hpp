#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "config/error.hpp"
#include "config/sha256.hpp"
#include "net/session/header.hpp"

/// What is large crosses in parts over lane bulk, and goes on where it was when one end or both started again. Frames go in
/// and come out; whoever has the session sends and feeds them.
///
///   receiver                                 sender
///   ask {offset, bytes, name}       ->
///                                   <-       part {offset, bytes}, in order, the last one shorter
///                                   <-       refusal {why}, in the place of parts
///   stop                            ->
///
/// The receiver knows beforehand how large the thing is and its SHA-256 (of a plan, a manifest), keeps what came, and asks
/// again from there whenever a session begins: the sender keeps nothing of a session that is over. Nothing is believed: a
/// part has the next offset and no more bytes than are missing, and the whole has the digest or is an error.
///
/// `request` of a frame names the transfer among those of its receiver, `attempt` counts how often it was asked for, so
/// that what comes late of an earlier attempt is dropped by its header.
namespace ordermoe::net {

enum class bulk_kind : std::uint8_t { ask = 1, part, refusal, stop };

/// Whole frames are one TLS record.
inline constexpr std::size_t bulk_part_bytes = 16 * 1024 - header_bytes - sizeof(std::uint64_t);
inline constexpr std::size_t most_bulk_name_bytes = 256, most_bulk_refusal_bytes = 512;

/// For session::send on lane bulk.
struct bulk_frame {
  bulk_kind kind = bulk_kind::ask;
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::string payload;
};

/// What a sender has.
class bulk_shelf {
 public:
  virtual ~bulk_shelf() = default;
  /// Bytes; an error says why this peer does not get it. The name is as the peer says it: it may be anything.
  virtual result<std::uint64_t> find(const std::string& name) = 0;
  /// Exactly so many bytes from there, which find() said there are.
  virtual result<std::string> read(const std::string& name, std::uint64_t offset,
                                   std::size_t bytes) = 0;
};

/// To one peer. What was asked for first goes first.
class bulk_sender {
 public:
  static constexpr std::size_t most_asked = 64;  ///< At once; more are refused.

  explicit bulk_sender(bulk_shelf& shelf) : shelf_(shelf) {}

  /// An ask or a stop of the peer. Error: malformed, which is the peer's fault and changes nothing.
  result<void> take(const frame_header& header, std::string_view payload);
  bool has_next() const { return !refusals_.empty() || !asked_.empty(); }
  /// To be sent when the lane has room: its session keeps what is sent until the peer has it.
  std::optional<bulk_frame> next();
  /// The session is over.
  void forget();

 private:
  struct transfer {
    std::uint64_t request = 0;
    std::uint32_t attempt = 0;
    std::string name;
    std::uint64_t offset = 0, bytes = 0;
  };
  void refuse(std::uint64_t request, std::uint32_t attempt, std::string_view why);
  result<void> take_ask(const frame_header& header, std::string_view payload);

  bulk_shelf& shelf_;
  std::deque<transfer> asked_;
  std::deque<bulk_frame> refusals_;
};

/// Of a transfer's bytes what is known beforehand.
struct bulk_item {
  std::string name;  ///< 1 to most_bulk_name_bytes.
  std::uint64_t bytes = 0;
  std::string sha256;  ///< Hexadecimal.
};

/// One transfer from one peer.
class bulk_receiver {
 public:
  using sink = std::function<result<void>(std::string_view bytes)>;

  /// `into` gets the bytes in order.
  bulk_receiver(bulk_item wanted, std::uint64_t request, sink into);

  /// What a process before this one kept, from the beginning and in order; does not go to the sink. Before ask().
  /// Error: out_of_range, where it is more than the whole.
  result<void> keep(std::string_view bytes);
  /// When a session begins, and to ask again within one. Precondition: not done().
  bulk_frame ask();
  bulk_frame stop() const;
  /// What is not of this attempt is dropped. Error, after which it is over: failed, the peer refuses; malformed, a
  /// part that is not the next; mismatch, the whole has another digest: what was kept is of no use; the sink's own.
  result<void> take(const frame_header& header, std::string_view payload);

  bool done() const { return done_; }
  std::uint64_t bytes_there() const { return there_; }
  const bulk_item& wanted() const { return wanted_; }

 private:
  result<void> take_part(std::string_view payload);
  result<void> check_whole();
  error over(errc code, std::string text);

  bulk_item wanted_;
  std::uint64_t request_;
  std::uint32_t attempt_ = 0;
  sink into_;
  sha256 digest_;
  std::uint64_t there_ = 0;
  bool done_ = false, over_ = false;
};

}  // namespace ordermoe::net
