#pragma once

#include <cstddef>

#include "config/error.hpp"
#include "net/wire/messages.hpp"

/// The bytes of the messages between servers.
///
/// Goals: every number has one encoding (little-endian, floating point as bit patterns, so that
/// denormals and -0 survive), sizes are checked against what is left before anything is allocated, and
/// a malformed frame is an error and never a crash. Decoding allocates at most twice the frame. The
/// same bytes are used between actors of one process and between processes.
///
/// What a decoded message says is not to be believed yet: whether its ids, positions and counts make
/// sense where it arrives is checked by planning/serving/arrivals.hpp.
namespace ordermoe::wire {

frame encode(const token_state& message);
/// What token_state::chosen of that many experts adds to a token's frame; 0 for none.
std::int64_t choice_bytes(std::size_t n_chosen);
frame encode(const expert_call& message);
frame encode(const expert_output& message);
frame encode(const kv_rows& message);
frame encode(const progress_report& message);
frame encode(const reservation& message);
frame encode(const load_report& message);
frame encode(const link_report& message);
frame encode(const failure_report& message);

struct wire_shape {
  std::size_t hidden_size = 0;
  std::size_t kv_row_bytes = 0;
};

/// Error: malformed, naming the message and the byte where it stops making sense, or the field that
/// contradicts another: row counts and sizes, order of rows and items, numbers that are not finite.
result<token_state> decode_token(const frame& content, const wire_shape& shape);
result<expert_call> decode_call(const frame& content, const wire_shape& shape);
result<expert_output> decode_output(const frame& content, const wire_shape& shape);
result<kv_rows> decode_kv(const frame& content, const wire_shape& shape);
result<progress_report> decode_progress(const frame& content);
result<reservation> decode_reservation(const frame& content);
result<load_report> decode_load(const frame& content);
result<link_report> decode_links(const frame& content);
result<failure_report> decode_failure(const frame& content);

}  // namespace ordermoe::wire
