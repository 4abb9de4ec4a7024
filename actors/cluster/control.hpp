#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "actors/protocol/requests.hpp"
#include "config/error.hpp"

/// What a client and a node say to each other on the control lane: JSON texts, one kind each.
///
///   client            node
///   submit  ------->          `ref` is the client's own number of the request
///           <-------  token   once for each, in order, where somebody wants them as they come
///           <-------  ended   exactly once, whatever happens, while the session lasts
///   cancel  ------->          the answer ends at once
///   ask     ------->
///           <-------  status  how the node is
///   order   ------->          of an operator, as admin.hpp has it
///           <-------  reply   once, in any order
///   run_expert ---->          on the lane of tokens, as expert_messages.hpp has it; a node asks another likewise, on
///           <--- expert_ran   that of KV rows. Once for each ask, in any order
///
/// Nodes say `admin` to each other: what one admin tells another. A node that joins says `plan_asked` and what follows from
/// it, as plan_messages.hpp has it, and nothing else.
namespace ordermoe::actors {

/// Kinds of frames; below 64 are those between servers.
enum class control_kind : std::uint8_t {
  submit = 64,
  cancel,
  token,
  ended,
  ask,
  status,
  run_expert,
  expert_ran,
  order,
  reply,
  admin,
  plan_asked,
  plan_told,
  paper_asked,
  paper_part,
  paper_refused
};

/// A request as a client sends it: a text, which the node's tokenizer encodes, or ids.
struct remote_request {
  std::uint64_t ref = 0;
  std::string text;
  request_spec
      spec;  ///< Of it prompt (where there is no text), lengths, sampling, stop strings, deadline.
  bool tells_tokens = true;  ///< As they come; otherwise the whole answer alone is sent.
};

/// An order for whoever has a token: it counts by the token's role alone, not by that of who hands it on.
struct bearer_order {
  std::string verb;
  std::string arguments = "{}";  ///< JSON: an object.
  std::string token;             ///< The secret.
  bool dry_run = false;
};
/// The reply's JSON without its ref, as admin.hpp has it: with a result or a problem. Error: io where the node went away.
using order_sink = std::function<void(const result<std::string>& reply)>;

std::string submit_text(const remote_request& content);
std::string order_text(std::uint64_t ref, const bearer_order& content);
std::string cancel_text(std::uint64_t ref);
/// The tokens' and outcomes' `request` is the client's ref.
std::string token_text(const answer_token& token);
/// Where it would be longer than a message may be, the end without the tokens where these were told as they came; else the end without the
/// answer, of which the problem is that.
std::string ended_text(const request_outcome& outcome, bool tells_tokens = false);

/// Bytes of a message at most, which is the largest frame of the control lane; nobody hears of a longer one.
std::size_t most_message_bytes();
/// A reply as it is, or where it is longer, the problem that it is, with the reply's ref.
std::string reply_that_fits(std::string text);
/// A status likewise, without a ref.
std::string status_that_fits(std::string text);
/// A status as it came: the text of an object. Problem: malformed, or failed with what the node says why it has none to tell.
result<std::string> read_status(const std::string& text);

// Errors: malformed or out_of_range, naming the member, what was found and what is expected.
result<remote_request> parse_submit(std::string_view text);
result<std::uint64_t> parse_cancel(std::string_view text);
result<answer_token> parse_token(std::string_view text);
result<request_outcome> parse_ended(std::string_view text);

}  // namespace ordermoe::actors
