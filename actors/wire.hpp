#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "planning/selector.hpp"

/// What crosses between servers, and its bytes.
///
/// Goals: every number has one encoding (little-endian, floating point as bit patterns, so that
/// infinities, denormals and -0 survive), sizes are checked against what is left before anything is
/// allocated, and a malformed frame is an error and never a crash. The same bytes are used between
/// actors of one process (tests and emulation encode and decode every frame) and between processes.
namespace ordermoe::actors {

using planning::loss_units;

/// What a token needs to know of its request; travels with it.
struct request_terms {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;  ///< Fences copies of an earlier try.
  std::uint32_t access = 0;   ///< Server that the user is connected to.
  std::uint32_t prompt_tokens = 0;
  std::uint32_t max_new_tokens = 0;
  std::uint64_t sampling_seed = 0;
  double temperature = 0;
  std::uint8_t continue_in_place =
      0;  ///< 1: the next position starts where the last one ended; 0: at the access server.
  std::uint8_t score = 0;  ///< 1: teacher-forced, ids are given and their losses are reported.
  std::uint32_t ignore_end_of_text = 0;
  friend bool operator==(const request_terms&, const request_terms&) = default;
};

/// One expert that runs for one row, in rank order of the slots that it serves.
struct executed_slot {
  std::uint32_t server = 0;
  std::uint32_t expert = 0;
  float gate = 0;
  friend bool operator==(const executed_slot&, const executed_slot&) = default;
};

/// A token in flight: one decoding position, or one chunk of a prompt.
struct token_state {
  request_terms terms;
  std::uint32_t first = 0;  ///< Position of row 0.
  std::uint32_t layer = 0;  ///< The layer that it runs next, or whose expert outputs it awaits.
  std::vector<std::int32_t> ids;     ///< [n] tokens at these positions.
  std::vector<std::int32_t> forced;  ///< Teacher-forced: the ids that follow the rows, in order.
  loss_units pool = 0;               ///< Exact budget left for this token and those that follow it.
  std::vector<loss_units> allowance;  ///< [n] what each row may still spend.
  loss_units spent = 0;               ///< Of this request so far, along this chain.
  std::vector<float> hidden;          ///< [n, hidden_size]; empty before the embedding.
  std::uint32_t calls_outstanding =
      0;  ///< Expert calls whose outputs come to where the token goes.
  std::vector<std::uint32_t>
      slots_of_row;                  ///< [n] executed slots of each row while outputs are awaited.
  std::vector<executed_slot> slots;  ///< Of all rows, row after row.
  friend bool operator==(const token_state&, const token_state&) = default;
};

/// Names the token that an expert's output belongs to.
struct token_key {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t first = 0;
  friend auto operator<=>(const token_key&, const token_key&) = default;
};

struct call_item {
  std::uint32_t x_row = 0;  ///< Row of `x`.
  std::uint32_t slot = 0;   ///< Executed slot of the token's row.
  std::uint32_t expert = 0;
  float gate = 0;
  friend bool operator==(const call_item&, const call_item&) = default;
};

/// Rows to run through experts of one layer on one server. A row whose executed slots all run here
/// comes back as one row, gates applied and summed in rank order; otherwise each slot comes back by
/// itself.
struct expert_call {
  token_key token;
  std::uint32_t layer = 0;
  std::uint32_t reply_to = 0;       ///< Server that the outputs go to.
  std::vector<std::uint32_t> rows;  ///< [x rows] row of the token.
  std::vector<std::uint8_t> whole;  ///< [x rows] 1: all of the row's slots are here.
  std::vector<call_item> items;     ///< Ordered by x_row, then slot.
  std::vector<float> x;             ///< [x rows, hidden_size], normed hidden states.
  friend bool operator==(const expert_call&, const expert_call&) = default;
};

inline constexpr std::uint32_t whole_row = 0xffffffffu;

struct output_row {
  std::uint32_t row = 0;
  std::uint32_t slot = 0;  ///< whole_row: the weighted sum over all slots of the row.
  friend bool operator==(const output_row&, const output_row&) = default;
};

struct expert_output {
  token_key token;
  std::uint32_t layer = 0;
  std::vector<output_row> rows;
  std::vector<float> y;  ///< [rows, hidden_size]
  friend bool operator==(const expert_output&, const expert_output&) = default;
};

/// KV rows of one sequence at one layer, written at another member of R_l.
struct kv_block {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t first = 0;
  std::uint32_t n = 0;
  std::vector<std::uint8_t> rows;  ///< [n, kv_row_bytes] as the cache keeps them
  friend bool operator==(const kv_block&, const kv_block&) = default;
};

struct kv_rows {
  std::uint32_t layer = 0;
  std::vector<kv_block> blocks;
  friend bool operator==(const kv_rows&, const kv_rows&) = default;
};

/// A sampled token, or the end of a teacher-forced chunk, on its way to the request's actor.
struct progress_report {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t access = 0;  ///< Where the request's actor is.
  std::uint32_t position =
      0;                  ///< Position of the new token; of the chunk's first row when scoring.
  std::int32_t id = -1;   ///< -1: a chunk of the prompt ended, nothing was sampled.
  std::uint8_t last = 0;  ///< 1: the chain ends here (end of text, length or context).
  loss_units pool = 0;    ///< Budget left, for a chain that continues at the access server.
  loss_units spent = 0;   ///< By the chain so far.
  std::vector<double> losses;  ///< Teacher-forced negative log-likelihoods in nats.
  friend bool operator==(const progress_report&, const progress_report&) = default;
};

/// Asks a server to set KV memory aside, answers, and gives it back.
enum class reserve_step : std::uint8_t { attempt, wait, granted, refused, release };
struct reservation {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  reserve_step step = reserve_step::attempt;
  std::uint32_t server = 0;  ///< The server whose memory it is about.
  std::uint32_t access = 0;  ///< Where answers go.
  std::int64_t bytes = 0;
  friend bool operator==(const reservation&, const reservation&) = default;
};

/// How long work that arrives now would wait, told by a server to the others' selectors.
struct load_report {
  std::uint32_t server = 0;
  std::int64_t time_ns = 0;  ///< When it was true.
  std::int64_t wait_ns = 0;
  friend bool operator==(const load_report&, const load_report&) = default;
};

enum class frame_kind : std::uint8_t { token, call, output, kv, progress, reservation, load };
const char* to_string(frame_kind kind);

/// One encoded message between two servers. `values` counts the floats of hidden states or KV rows
/// inside: what a cost profile charges for is told apart from the rest.
struct frame {
  frame_kind kind = frame_kind::token;
  std::uint32_t from = 0, to = 0;
  std::uint32_t hidden_rows = 0;  ///< Rows of hidden state inside.
  std::uint32_t kv_rows = 0;      ///< KV rows inside.
  std::int64_t value_bytes = 0;   ///< Bytes of those rows as serialised.
  std::string bytes;
};

frame encode(const token_state& message);
frame encode(const expert_call& message);
frame encode(const expert_output& message);
frame encode(const kv_rows& message);
frame encode(const progress_report& message);
frame encode(const reservation& message);
frame encode(const load_report& message);

/// Error: malformed, naming the message and the byte where it stops making sense. Checks shapes
/// against `hidden_size` and `kv_row_bytes`.
struct wire_shape {
  std::size_t hidden_size = 0;
  std::size_t kv_row_bytes = 0;
};
result<token_state> decode_token(const frame& content, const wire_shape& shape);
result<expert_call> decode_call(const frame& content, const wire_shape& shape);
result<expert_output> decode_output(const frame& content, const wire_shape& shape);
result<kv_rows> decode_kv(const frame& content, const wire_shape& shape);
result<progress_report> decode_progress(const frame& content);
result<reservation> decode_reservation(const frame& content);
result<load_report> decode_load(const frame& content);

}  // namespace ordermoe::actors
