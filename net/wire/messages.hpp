#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "config/loss_units.hpp"

/// What servers tell each other. codec.hpp has the bytes.
///
/// A frame may come late, twice, or in any order, and from a peer that means no good. So every message
/// says to which request and attempt it belongs, and what it is about (position, layer, ask), and
/// who receives it takes each thing once (planning/serving).
namespace ordermoe::wire {

/// Servers number requests apart: the first byte is their access server's, one more than its id, and three bytes its start. A
/// process that has all servers leaves that out.
constexpr std::uint64_t first_request(std::uint32_t access, std::uint64_t boot) {
  return (std::uint64_t{access} + 1) << 56 | (boot & 0xffffff) << 32;
}
constexpr bool may_number(std::uint32_t access, std::uint64_t request) {
  return request >> 56 == 0 || request >> 56 == std::uint64_t{access} + 1;
}

/// What a token needs to know of its request; travels with it.
struct request_terms {
  std::uint64_t request = 0;
  /// Which try at the request this is. A server works for the highest one that it has heard of.
  std::uint32_t attempt = 0;
  std::uint32_t access = 0;  ///< Server that the user is connected to.
  std::uint32_t prompt_tokens = 0;
  std::uint32_t max_new_tokens = 0;
  /// Leading positions whose ids are given: the prompt, and in a later attempt also what was
  /// answered before it.
  std::uint32_t given_tokens = 0;
  std::uint64_t sampling_stream = 0;
  std::uint64_t sampling_seed = 0;
  double temperature = 0;
  /// 1: the next position starts where the last one ended; 0: at the access server.
  std::uint8_t continue_in_place = 0;
  std::uint8_t score = 0;  ///< 1: teacher-forced, ids are given and their losses are reported.
  std::uint8_t ignore_end_of_text = 0;
  friend bool operator==(const request_terms&, const request_terms&) = default;

  /// Whether a row is a decoded one and not of a prompt: all of a text that is scored from its beginning are.
  bool decodes(std::uint32_t position) const {
    return position >= prompt_tokens || (score != 0 && prompt_tokens == 1);
  }
  /// Nobody reads what the model says of the next token behind the positions before this one: of the prompt, the last one alone is read.
  std::uint32_t unread_before() const { return prompt_tokens > 0 ? prompt_tokens - 1 : 0; }
};

/// How tokens are chosen where that is more than by a temperature. Travels with the token, so that they are chosen where the
/// logits are; without it a frame has no byte for it.
struct sampling_rules {
  double top_p = 1;
  std::uint32_t top_k = 0;  ///< 0: all.
  double presence_penalty = 0, frequency_penalty = 0;
  /// How many likely tokens are told beside the chosen one, and one more; 0: not even that one's logprob.
  std::uint32_t logprobs = 0;
  std::vector<std::int32_t> bias_ids;  ///< Ascending.
  std::vector<float> bias;             ///< One for each.
  std::vector<std::int32_t> answered;  ///< The answer so far, where a penalty counts it.
  friend bool operator==(const sampling_rules&, const sampling_rules&) = default;
};
inline constexpr std::size_t most_biases = 1024;
inline constexpr std::uint32_t most_logprobs = 33;

/// Expert slots by planning/serving's execution_kind.
using ran_slots = std::array<std::uint32_t, 4>;

/// One expert that runs for one row, in rank order of the slots that it serves.
struct executed_slot {
  std::uint32_t server = 0;
  std::uint32_t expert = 0;
  float gate = 0;
  friend bool operator==(const executed_slot&, const executed_slot&) = default;
};

/// A token in flight: one decoding position, or one chunk of given positions.
struct token_state {
  request_terms terms;
  std::uint32_t first = 0;  ///< Position of row 0.
  /// The layer that it runs next, or, while it awaits outputs, the one they are of; behind the last
  /// layer only the output projection is left.
  std::uint32_t layer = 0;
  std::vector<std::int32_t> ids;  ///< [n] tokens at these positions.
  std::vector<std::int32_t>
      forced;           ///< Given ids that follow the rows, one position each, in order.
  loss_units pool = 0;  ///< Exact budget left for this token and those that follow it.
  std::vector<loss_units> allowance;  ///< [n] what each row may still spend.
  loss_units spent = 0;               ///< Of this request so far, along this chain.
  std::vector<float> hidden;          ///< [n, hidden_size]; empty before the embedding.
  /// [n] executed slots of each row whose outputs are still to be added; empty: none are awaited.
  std::vector<std::uint32_t> slots_of_row;
  std::vector<executed_slot> slots;  ///< Of all rows, row after row.
  std::optional<sampling_rules> sampling = {};
  std::optional<ran_slots> ran = {};  ///< Of these rows, where the request is to be told.
  /// [top_k] what the router chose at the layer decided on last, ascending, where it is counted what follows what: of one
  /// decoded position.
  std::vector<std::uint16_t> chosen = {};
  friend bool operator==(const token_state&, const token_state&) = default;
};

/// Names the token that an expert's output belongs to.
struct token_key {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t access = 0;  ///< Of the request: says which servers have a part in it.
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
  std::vector<std::uint32_t> rows;  ///< [x rows] row of the token, ascending.
  std::vector<std::uint8_t> whole;  ///< [x rows] 1: all of the row's slots are here.
  std::vector<call_item> items;     ///< Ordered by x_row, then slot; one at least for each row.
  std::vector<float> x;             ///< [x rows, hidden_size], normed hidden states.
  friend bool operator==(const expert_call&, const expert_call&) = default;
};

inline constexpr std::uint32_t whole_row = 0xffffffffu;

struct output_row {
  std::uint32_t row = 0;
  std::uint32_t slot = 0;  ///< whole_row: the weighted sum over all slots of the row.
  friend bool operator==(const output_row&, const output_row&) = default;
};

/// Of what went wrong, in words: a longer text is refused where it arrives, so it is cut where it leaves.
inline constexpr std::size_t most_problem_bytes = 1024;

/// What came of a call, or why nothing did.
struct expert_output {
  token_key token;
  std::uint32_t layer = 0;
  std::vector<output_row> rows;
  std::vector<float> y;   ///< [rows, hidden_size]; empty where the rows could not be run.
  std::uint8_t code = 0;  ///< An errc, where they could not.
  std::string problem;    ///< Not empty where they could not.
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

struct token_logprob {
  std::int32_t id = 0;
  double logprob = 0;
  friend bool operator==(const token_logprob&, const token_logprob&) = default;
};

/// A sampled token, or the end of a chunk of given positions, on its way to the request's owner.
struct progress_report {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t access = 0;    ///< Where the owner is.
  std::uint32_t position = 0;  ///< Of the new token; of the chunk's first row where none is.
  std::int32_t id = -1;        ///< -1: a chunk ended and nothing was sampled.
  std::uint8_t last = 0;       ///< 1: the chain ends here (end of text, length or context).
  loss_units pool = 0;         ///< Budget left, for a chain that continues at the access server.
  loss_units spent = 0;        ///< By the chain so far.
  std::vector<double> losses;  ///< Teacher-forced negative log-likelihood in nats: none or one.
  std::vector<float> hidden;   ///< After the last layer, where the run keeps it; else empty.
  /// Where they are asked for: of the new token, then of likely ones.
  std::vector<token_logprob> logprobs = {};
  std::optional<ran_slots> ran = {};  ///< As the token counted them.
  friend bool operator==(const progress_report&, const progress_report&) = default;
};

/// Between a request's owner and the servers that keep its KV rows.
enum class reserve_step : std::uint8_t {
  attempt,  ///< Owner: set memory aside now, or refuse.
  wait,     ///< Owner: set it aside when there is room.
  granted,
  refused,
  release,  ///< Owner: the sequence is over, or this ask is taken back.
  fence,    ///< Owner: work for this attempt from now on and forget what earlier ones left.
  fenced,
};

struct reservation {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  /// Counts what the owner asked in this request; answers carry the number of their ask.
  std::uint32_t ask = 0;
  reserve_step step = reserve_step::attempt;
  std::uint32_t server = 0;  ///< The server whose memory it is about.
  std::uint32_t access = 0;  ///< Where the owner is.
  std::int64_t bytes = 0;
  /// How long the server may keep the sequence without hearing of its end.
  std::int64_t lease_ns = 0;
  friend bool operator==(const reservation&, const reservation&) = default;
};

/// How long work that arrives now would wait, told by a server to the others' selectors.
struct load_report {
  std::uint32_t server = 0;
  std::uint64_t number = 0;  ///< Counts the server's reports; an older one says nothing any more.
  std::int64_t wait_ns = 0;  ///< Of work for its device.
  std::vector<std::int64_t> link_wait_ns;  ///< [n_servers] of frames from it to each server.
  friend bool operator==(const load_report&, const load_report&) = default;
};

/// One direction between two servers, as it was found.
struct link_measure {
  std::int64_t latency_ns = -1;  ///< -1: not known yet.
  double bytes_per_s = 0;        ///< 0: not known yet.
  friend bool operator==(const link_measure&, const link_measure&) = default;
};

/// How links are, told by the server that they leave to everybody who plans or selects.
struct link_report {
  std::uint32_t server = 0;
  std::uint64_t number = 0;  ///< Counts the server's reports; an older one says nothing any more.
  std::vector<link_measure> links;  ///< [n_servers] to each; its own entry says nothing.
  friend bool operator==(const link_report&, const link_report&) = default;
};

/// A token cannot go on. Goes to the request's owner from where the token is.
struct failure_report {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::uint32_t server = 0;  ///< That says so.
  std::uint8_t code = 0;     ///< An errc.
  std::string text;
  friend bool operator==(const failure_report&, const failure_report&) = default;
};

enum class frame_kind : std::uint8_t {
  token,
  call,
  output,
  kv,
  progress,
  reservation,
  load,
  failure,
  links
};
inline constexpr std::size_t n_frame_kinds = 9;
const char* to_string(frame_kind kind);

/// One encoded message between two servers. The rows of hidden states and KV inside are told apart
/// from the rest, because a cost profile charges for them by its own sizes.
struct frame {
  frame_kind kind = frame_kind::token;
  std::uint32_t from = 0, to = 0;
  std::uint64_t epoch = 0;    ///< Of the plan that the sender goes by.
  std::uint64_t request = 0;  ///< Whose it is; of KV rows the first block's; 0 where it is of none.
  std::uint32_t attempt = 0;
  std::uint32_t hidden_rows = 0;  ///< Rows of hidden state inside.
  std::uint32_t kv_rows = 0;      ///< KV rows inside.
  std::int64_t value_bytes = 0;   ///< Bytes of those rows as serialised.
  /// Bytes inside that nodes tell each other and emulation has none of: nobody is charged for them.
  std::int64_t uncharged_bytes = 0;
  std::string bytes;
};

}  // namespace ordermoe::wire
