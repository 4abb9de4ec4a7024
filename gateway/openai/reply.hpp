#pragma once

#include <boost/container/static_vector.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Answers as OpenAI's interface says them: whole, or in chunks of a stream.
namespace ordermoe::gateway {

enum class reply_kind { completion, chat };

/// What all chunks of a reply say.
struct reply_head {
  reply_kind kind = reply_kind::chat;
  std::string id, model, fingerprint;
  std::int64_t created_s = 0;
};

/// One token of those that might have come.
struct token_choice {
  std::int32_t id = 0;
  std::string text;  ///< U+FFFD where it is a part of a character; its bytes are not told then.
  double logprob = 0;
};

/// What is said of one token where `logprobs` asks for it.
struct token_report {
  token_choice chosen;
  std::vector<token_choice> top;
};

/// Names are of constants. Without memory of its own: each token may have one.
using named_counts = boost::container::static_vector<std::pair<std::string_view, std::uint64_t>, 8>;

struct reply_choice {
  std::uint32_t index = 0;
  std::string text;
  std::string finish;  ///< stop or length.
  std::optional<std::vector<token_report>> logprobs;
};

/// What answers were let lose of quality, and did.
struct reply_quality {
  /// Perplexity of each, in per cent: as the request stated it, or the plan's where that is less; negative: without limit.
  /// None: not known.
  std::optional<double> percent;
  double budget_nats = 0, spent_nats = 0;  ///< Allowed, infinite without limit; and predicted.
};

/// Besides OpenAI's three counts, what of it is ours.
struct reply_usage {
  std::uint64_t prompt_tokens = 0, completion_tokens = 0;
  std::uint32_t attempts = 1;  ///< The most of any choice.
  bool is_reproducible = true;
  reply_quality quality;  ///< Of all choices together.
  named_counts ran;       ///< Expert slots, by where and what ran; empty: not known.
};

std::string reply_json(const reply_head& head, const std::vector<reply_choice>& choices,
                       const reply_usage& usage);

/// One chunk of a choice.
struct chunk_content {
  std::uint32_t index = 0;
  bool begins = false;  ///< Of a chat: says whose turn it is.
  std::string_view text;
  std::string_view finish;  ///< Empty: not yet.
  const std::vector<token_report>* logprobs = nullptr;
  std::size_t text_offset = 0;            ///< Of a completion's logprobs: bytes before this chunk.
  std::optional<std::int32_t> traced_id;  ///< Of the token, where "trace" asks for it.
  named_counts ran;                       ///< As in reply_usage, of this token.
  std::optional<reply_quality>
      quality;  ///< Of the whole choice, at its end, where the request states a budget.
};

/// Server-sent events, line ends and all.
class chunk_writer {
 public:
  /// `says_usage`: every chunk has a member for it.
  chunk_writer(const reply_head& head, bool says_usage);
  std::string chunk(const chunk_content& content) const;
  /// Behind what stands there.
  void append_chunk(std::string& to, const chunk_content& content) const;
  std::string usage(const reply_usage& usage) const;

 private:
  std::string head_, begin_, end_;  ///< Of all events; of chunks, before and behind what is theirs.
  bool is_chat_ = false;
};

std::string problem_event(std::string_view problem_json);
inline constexpr std::string_view last_event = "data: [DONE]\n\n";

std::string model_json(const std::string& id, std::int64_t created_s, std::size_t context);
std::string models_json(const std::string& model);

}  // namespace ordermoe::gateway
