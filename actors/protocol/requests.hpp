#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "config/loss_units.hpp"

/// What a client asks and what it is told. No CAF type in this header.
namespace ordermoe::actors {

/// How tokens are chosen besides by temperature (model/sampling.hpp has what each does). By default none of it does anything.
struct sampling_choice {
  double top_p = 1;
  std::uint32_t top_k = 0;
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<std::int32_t, float>> bias;  ///< By id, ascending, 1024 at most.
  /// Of how many likely tokens, 32 at most, the logprobs are told beside the chosen one's; none: of none.
  std::optional<std::uint32_t> logprobs;
  friend bool operator==(const sampling_choice&, const sampling_choice&) = default;
};

/// The logprob that a token had, in nats, by the model's logits as they are.
struct told_logprob {
  std::int32_t id = 0;
  double logprob = 0;
};

/// Expert slots that ran: here as it was chosen, here another, elsewhere likewise.
using told_executions = std::array<std::uint64_t, 4>;

/// One user's request as it enters the system.
struct request_spec {
  std::uint32_t access = 0;     ///< Server that the user is connected to.
  std::int64_t arrival_ns = 0;  ///< After the start of the service; before now: now.
  std::vector<std::int32_t> prompt;
  std::uint32_t max_new_tokens = 64;
  double temperature = 0;
  std::uint64_t sampling_seed = 0;
  /// Stream of the sampler; where none is given, the request's number. Requests with one seed and
  /// stream draw the same numbers.
  std::optional<std::uint64_t> sampling_stream;
  sampling_choice choice;
  bool tells_executions = false;  ///< Tokens and outcome say what ran for them.
  std::vector<std::string> stop_strings;
  bool ignore_end_of_text = false;
  /// Teacher-forced: decodes `prompt` from its first token on, one position after the other, with
  /// the next id given instead of sampled, and reports each one's loss.
  bool score = false;
  /// Of a scored text: how many of its ids are computed in chunks as a prompt is, so that they have no loss; below its length.
  std::uint32_t scored_after = 1;
  /// Perplexity that the answer may lose, in per cent, 0 to 100: 0 is exact. What is above the plan's budget counts as
  /// that; none: the plan's.
  std::optional<double> quality_percent;
  /// From arrival to the end of the answer at most; 0: what the service allows.
  std::int64_t deadline_ns = 0;
};

/// One token of an answer. Tokens come once each and in order.
struct answer_token {
  std::uint64_t request = 0;
  std::uint32_t index = 0;  ///< Counts the answer's tokens from 0.
  std::int32_t id = 0;
  std::string text;            ///< What is certain of the answer's text now and was not before.
  std::optional<double> loss;  ///< Teacher-forced, in nats.
  std::int64_t time_ns = 0;
  std::vector<told_logprob> logprobs;  ///< Where asked for: its own, then those of the likeliest.
  /// Where asked for: of the position that it was computed from; of the first, of the last chunk of the prompt.
  std::optional<told_executions> executions;
};

/// How an answer ended.
struct request_outcome {
  std::uint64_t request = 0;
  std::uint32_t access = 0;
  std::vector<std::int32_t> token_ids;
  std::string text;
  std::string text_tail;  ///< What of it came with no token: held back until the end.
  /// length, end_of_text, stop_string, context or scored; cancelled, or failed with a problem.
  std::string finish;
  std::optional<error> problem;
  std::uint32_t attempts = 1;
  std::int64_t arrival_ns = 0;
  std::int64_t first_token_ns = 0;  ///< When the first new token was at the access server.
  std::int64_t done_ns = 0;
  /// What was in force: as it was stated, or the plan's where that is less; negative: without limit. None: it never began.
  std::optional<double> quality_percent;
  loss_units budget = 0;  ///< Whole request.
  loss_units spent = 0;
  std::optional<told_executions> executions;  ///< Where asked for: of all that was computed for it.
  std::vector<double> losses;                 ///< Teacher-forced, nats.
  /// After the last layer at the last computed position, where kept.
  std::vector<float> final_hidden;
};

/// New tokens behind the first one that were computed, the end of the text among them, which no answer shows: what the time from
/// first_token_ns to done_ns is of.
inline std::size_t further_tokens(const request_outcome& of) {
  const std::size_t shown = of.token_ids.size(), end = of.finish == "end_of_text" ? 1 : 0;
  return shown + end > 0 ? shown + end - 1 : 0;
}

/// Where an answer goes. Called by the actors' threads on the wall clock, by the driving thread in virtual
/// time; must return soon and not wait for the service.
struct answer_sink {
  std::function<void(const answer_token&)> on_token;   ///< May be empty.
  std::function<void(const request_outcome&)> on_end;  ///< Exactly once. May be empty.
};

}  // namespace ordermoe::actors
