#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// What stands before every frame on a connection between two nodes: 40 bytes, little-endian.
///
///   length u32 | version u8 | kind u8 | lane u8 | word u8 | sequence u64 | request u64 | attempt u32 | epoch u32 |
///   stamp u64
///
/// A frame is told apart, ordered, counted and, where it is stale, dropped by its header alone.
namespace ordermoe::net {

/// Frames of a lane come in the order in which they were sent. Among the lanes of one stream the first that has
/// something to send goes first.
enum class lane : std::uint8_t { control, token, kv, load, bulk };
inline constexpr std::size_t n_lanes = 5;
const char* to_string(lane of);

/// The two connections of a pair of nodes: what is large and can wait has one of its own.
enum class stream : std::uint8_t { fast, bulk };
inline constexpr std::size_t n_streams = 2;
const char* to_string(stream which);
constexpr stream stream_of(lane of) {
  return of == lane::bulk ? stream::bulk : stream::fast;
}

/// What the session itself says; everything else is its user's.
enum class session_word : std::uint8_t {
  none,
  hello,
  pulse,
  refusal,
  goodbye,
  /// A user's frame with more behind it, which no user sees: zeros, and in the last padding_mark_bytes how many bytes were
  /// added, themselves included.
  padded,
  /// Nothing: a part of a burst that is timed. `sequence`: how many follow.
  filler,
  /// Of lane bulk: the beginning of a user's frame of another lane, which the next frames of bulk go on with up to the last.
  part,
  last_part,
  last_padded_part  ///< Likewise, and the whole frame has zeros and their mark behind it.
};
constexpr bool is_padded(session_word word) {
  return word == session_word::padded || word == session_word::last_padded_part;
}
/// Whether a frame goes, or came, in parts: of another lane, over lane bulk.
constexpr bool is_in_parts(session_word word) {
  return word >= session_word::part;
}
constexpr bool is_of_user(session_word word) {
  return word == session_word::none || word == session_word::padded || is_in_parts(word);
}
inline constexpr std::size_t padding_mark_bytes = 4;

struct frame_header {
  std::uint32_t length = 0;  ///< Bytes of what follows.
  std::uint8_t version = 0;
  std::uint8_t kind = 0;  ///< The user's; the session does not look at it.
  lane of = lane::control;
  session_word word = session_word::none;
  std::uint64_t sequence =
      0;  ///< Counts the frames of the lane, from 0; 0 for most of the session's own.
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t epoch = 0;  ///< Of the plan that the sender goes by.
  std::uint64_t stamp = 0;  ///< The user's: of a logical clock.
  friend bool operator==(const frame_header&, const frame_header&) = default;
};

inline constexpr std::size_t header_bytes = 40;
inline constexpr std::uint8_t wire_version = 1;

/// Appends the 40 bytes.
void put(const frame_header& header, std::string& into);
/// Of at least 40 bytes. Every field is as found: what makes sense is for the session to say.
frame_header get_header(std::string_view bytes);

}  // namespace ordermoe::net
