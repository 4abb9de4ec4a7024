#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gateway/openai/problem.hpp"
#include "model/text/chat_template.hpp"

/// What is asked over OpenAI's interface, checked. Members that this server does not know are refused, so that nobody takes an
/// answer for one that regards them.
namespace ordermoe::gateway {

/// What a request may ask for at most.
struct request_limits {
  std::size_t choices = 128;  ///< Of all prompts together.
  std::size_t vocabulary = 0;
  std::int64_t max_tokens = 1 << 20;
};

/// How answers are made.
struct generation {
  std::optional<std::uint32_t> max_tokens;
  double temperature = 1;
  double top_p = 1;
  std::uint32_t top_k = 0;  ///< 0: all.
  double presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<std::int32_t, double>> logit_bias;
  std::optional<std::uint32_t> logprobs;  ///< Of how many tokens beside the chosen one.
  std::optional<std::uint64_t> seed;
  std::vector<std::string> stop;
  std::uint32_t n = 1;
  bool ignore_eos = false;
  bool stream = false, include_usage = false;
  // Ours, of the member "ordermoe":
  bool trace = false;                     ///< Chunks say how their token's experts ran.
  std::optional<double> quality_percent;  ///< Perplexity that each answer may lose; 0: exact.
};

/// A text or ids.
struct prompt_content {
  std::string text;
  std::vector<std::int32_t> ids;
};

struct completion_request {
  std::string model;
  std::vector<prompt_content> prompts;
  bool echo = false;
  generation how;
};

struct chat_request {
  std::string model;
  std::vector<model::chat_message> messages;
  generation how;
};

struct tokenize_request {
  std::string model;
  std::string text;
  std::vector<model::chat_message> messages;  ///< Where there are some, there is no text.
  bool add_special_tokens = true, return_pieces = false;
};

struct detokenize_request {
  std::string model;
  std::vector<std::int32_t> ids;
};

/// Either a value or a problem.
template <class T>
struct parsed {
  T content;
  std::optional<api_problem> problem;
};

parsed<completion_request> parse_completion(std::string_view body, const request_limits& limits);
parsed<chat_request> parse_chat(std::string_view body, const request_limits& limits);
parsed<tokenize_request> parse_tokenize(std::string_view body, const request_limits& limits);
parsed<detokenize_request> parse_detokenize(std::string_view body, const request_limits& limits);

}  // namespace ordermoe::gateway
