#include "gateway/openai/request.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "gateway/openai/fields.hpp"

namespace ordermoe::gateway {

using nlohmann::json;

namespace {

constexpr std::size_t most_stop_strings = 16;
constexpr std::size_t longest_stop_string = 1024;
constexpr std::int64_t most_chat_logprobs = 20, most_completion_logprobs = 5;
constexpr std::size_t most_biases = 1024;
constexpr std::uint32_t default_completion_tokens = 16;
constexpr double most_quality_percent = 100;

bool is_id(const json& value, std::size_t vocabulary) {
  return value.is_number_unsigned() && value.get<std::uint64_t>() < vocabulary;
}

/// Of the array `name`, or of one inside it.
std::vector<std::int32_t> ids_of(const fields& of, const char* name, const json& array,
                                 std::size_t vocabulary) {
  std::vector<std::int32_t> ids;
  ids.reserve(array.size());
  for (const auto& each : array) {
    if (!is_id(each, vocabulary)) {
      of.refuse(name,
                fmt::format("Invalid value for '{}': found {} at place {}, expected token ids from "
                            "0 to {}.",
                            of.path_of(name), each.is_number() ? each.dump() : kind_of(each),
                            ids.size(), vocabulary - 1),
                "invalid_value");
      return {};
    }
    ids.push_back(each.get<std::int32_t>());
  }
  return ids;
}

void read_stop(const fields& of, generation& how) {
  const auto* value = of.find("stop");
  if (value == nullptr) return;
  const auto take = [&](const json& text) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > longest_stop_string)
      return of.refuse(
          "stop",
          fmt::format("Invalid value for 'stop': expected a string of 1 to {} bytes, or "
                      "an array of such.",
                      longest_stop_string),
          "invalid_value");
    how.stop.push_back(text.get<std::string>());
  };
  if (!value->is_array()) return take(*value);
  if (value->size() > most_stop_strings)
    return of.refuse("stop",
                     fmt::format("Invalid value for 'stop': found {} strings, expected {} at most.",
                                 value->size(), most_stop_strings),
                     "invalid_value");
  for (const auto& each : *value) take(each);
}

void read_bias(const fields& of, const request_limits& limits, generation& how) {
  const auto* value = of.find("logit_bias");
  if (value == nullptr) return;
  const auto refuse = [&](const std::string& found) {
    of.refuse("logit_bias",
              fmt::format("Invalid value for 'logit_bias': found {}, expected an object of at most "
                          "{} numbers from -100 to 100, named by token ids from 0 to {}.",
                          found, most_biases, limits.vocabulary - 1),
              "invalid_value");
  };
  if (!value->is_object()) return refuse(kind_of(*value));
  if (value->size() > most_biases) return refuse(fmt::format("{} members", value->size()));
  for (const auto& [name, bias] : value->items()) {
    std::uint32_t id = 0;
    const auto read = std::from_chars(name.data(), name.data() + name.size(), id);
    // Not also "07", which would be another name of 7.
    const bool is_named = read.ec == std::errc() && read.ptr == name.data() + name.size() &&
                          id < limits.vocabulary && (name.size() == 1 || name.front() != '0');
    if (!is_named) return refuse(fmt::format("the name '{}'", name));
    if (!bias.is_number() || !(bias.get<double>() >= -100 && bias.get<double>() <= 100))
      return refuse(bias.is_number() ? bias.dump() : kind_of(bias));
    how.logit_bias.emplace_back(static_cast<std::int32_t>(id), bias.get<double>());
  }
  std::ranges::sort(how.logit_bias);
}

void read_ours(const fields& of, generation& how) {
  const auto ours = of.object("ordermoe");
  ours.only({"trace", "quality_budget_percent"});
  how.trace = ours.boolean("trace", false);
  if (ours.has("quality_budget_percent"))
    how.quality_percent = ours.number("quality_budget_percent", 0, most_quality_percent, 0);
}

/// Members that read_generation reads.
constexpr std::string_view generation_names[] = {"temperature",
                                                 "top_p",
                                                 "top_k",
                                                 "presence_penalty",
                                                 "frequency_penalty",
                                                 "seed",
                                                 "n",
                                                 "ignore_eos",
                                                 "stream",
                                                 "stream_options",
                                                 "stop",
                                                 "logit_bias",
                                                 "ordermoe",
                                                 "user"};

/// What both kinds have. Their names for the number of tokens and for logprobs differ.
generation read_generation(const fields& of, const request_limits& limits) {
  generation how;
  how.temperature = of.number("temperature", 0, 2, 1);
  how.top_p = of.number("top_p", 0, 1, 1);
  if (of.has("top_p") && how.top_p == 0)
    of.refuse("top_p", "Invalid value for 'top_p': found 0, expected more than 0 and 1 at most.",
              "invalid_value");
  // -1 is vLLM's word for all.
  how.top_k = static_cast<std::uint32_t>(
      std::max<std::int64_t>(0, of.integer("top_k", -1, std::int64_t{1} << 31, 0)));
  how.presence_penalty = of.number("presence_penalty", -2, 2, 0);
  how.frequency_penalty = of.number("frequency_penalty", -2, 2, 0);
  how.seed = of.seed("seed");
  how.n =
      static_cast<std::uint32_t>(of.integer("n", 1, static_cast<std::int64_t>(limits.choices), 1));
  how.ignore_eos = of.boolean("ignore_eos", false);
  how.stream = of.boolean("stream", false);
  const auto stream_options = of.object("stream_options");
  stream_options.only({"include_usage"});
  how.include_usage = stream_options.boolean("include_usage", false);
  if (of.has("stream_options") && !how.stream)
    of.refuse("stream_options",
              "The 'stream_options' parameter is only allowed when 'stream' is "
              "enabled.");
  read_stop(of, how);
  read_bias(of, limits, how);
  read_ours(of, how);
  // What is fine as long as it asks for nothing.
  static_cast<void>(of.string("user", {}));
  return how;
}

std::optional<std::uint32_t> read_max(const fields& of, const char* name,
                                      const request_limits& limits) {
  if (!of.has(name)) return std::nullopt;
  return static_cast<std::uint32_t>(of.integer(name, 1, limits.max_tokens, 1));
}

prompt_content text_prompt(const fields& of, const json& value) {
  prompt_content made{value.get<std::string>(), {}};
  if (made.text.empty())
    of.refuse("prompt", "Invalid value for 'prompt': found an empty string, expected a text.",
              "invalid_value");
  return made;
}

std::vector<prompt_content> read_prompts(const fields& of, const request_limits& limits) {
  const auto* value = of.find("prompt");
  const auto refuse = [&](const std::string& found) {
    of.refuse("prompt",
              fmt::format("Invalid value for 'prompt': found {}, expected a string, an array of "
                          "strings, an array of token ids, or an array of such arrays.",
                          found),
              value == nullptr ? "missing_required_parameter" : "invalid_type");
    return std::vector<prompt_content>();
  };
  if (value == nullptr) return refuse("nothing");
  if (value->is_string()) return {text_prompt(of, *value)};
  if (!value->is_array()) return refuse(kind_of(*value));
  if (value->empty()) return refuse("an empty array");
  if (value->front().is_number()) return {{{}, ids_of(of, "prompt", *value, limits.vocabulary)}};
  std::vector<prompt_content> prompts;
  for (const auto& each : *value) {
    if (each.is_string())
      prompts.push_back(text_prompt(of, each));
    else if (each.is_array() && !each.empty())
      prompts.push_back({{}, ids_of(of, "prompt", each, limits.vocabulary)});
    else
      return refuse(
          fmt::format("{} in an array", each.is_array() ? "an empty array" : kind_of(each)));
  }
  return prompts;
}

/// A text, or parts that are texts.
std::string content_of(const fields& message, std::optional<api_problem>& problem) {
  const auto* value = message.find("content");
  if (value != nullptr && value->is_array()) {
    std::string text;
    for (std::size_t i = 0; i < value->size(); ++i) {
      const auto& part = (*value)[i];
      const auto path = fmt::format("{}[{}]", message.path_of("content"), i);
      if (!part.is_object()) {
        message.refuse("content",
                       fmt::format("Invalid type for '{}': expected an object, found {}.", path,
                                   kind_of(part)),
                       "invalid_type");
        break;
      }
      const fields of(part, path, problem);
      if (const auto kind = of.string("type", {}); kind != "text")
        of.refuse(
            "type",
            fmt::format("Invalid value: '{}'. This model reads parts of the type 'text' alone.",
                        kind),
            "invalid_value");
      text += of.string("text", {});
    }
    return text;
  }
  if (value == nullptr)
    message.refuse("content",
                   fmt::format("Missing required parameter: '{}'.", message.path_of("content")),
                   "missing_required_parameter");
  return message.string("content", {});
}

/// Members of an answer, as OpenAI's library writes one that it says again, where they hold nothing.
std::vector<std::string_view> empty_members(const json& message) {
  std::vector<std::string_view> names;
  for (const char* name : {"tool_calls", "function_call", "audio", "annotations"})
    if (const auto found = message.find(name);
        found != message.end() && (found->is_null() || *found == json::array()))
      names.emplace_back(name);
  return names;
}

std::vector<model::chat_message> read_messages(const fields& of,
                                               std::optional<api_problem>& problem) {
  const auto* value = of.find("messages");
  if (value == nullptr || !value->is_array() || value->empty()) {
    of.refuse("messages",
              fmt::format("Invalid value for 'messages': found {}, expected an array of messages.",
                          value == nullptr    ? "nothing"
                          : value->is_array() ? "an empty array"
                                              : kind_of(*value)),
              value == nullptr ? "missing_required_parameter" : "invalid_type");
    return {};
  }
  std::vector<model::chat_message> messages;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const auto& each = (*value)[i];
    const auto path = fmt::format("messages[{}]", i);
    if (!each.is_object()) {
      of.refuse(
          path,
          fmt::format("Invalid type for '{}': expected an object, found {}.", path, kind_of(each)),
          "invalid_type");
      return {};
    }
    const fields message(each, path, problem);
    message.only({"role", "content", "name", "refusal", "reasoning_content"}, empty_members(each));
    const auto role = message.string("role", {});
    model::chat_message made;
    if (role == "system" || role == "developer")
      made.role = model::chat_role::system;
    else if (role == "assistant")
      made.role = model::chat_role::assistant;
    else if (role != "user")
      message.refuse("role",
                     fmt::format("Invalid value: '{}'. Supported values are: 'system', "
                                 "'developer', 'user' and 'assistant'.",
                                 role),
                     "invalid_value");
    made.content = content_of(message, problem);
    messages.push_back(std::move(made));
  }
  return messages;
}

/// Members of OpenAI's that ask for what this server does not do, unless they have this value.
void refuse_unsupported(const fields& of,
                        std::initializer_list<std::pair<const char*, json>> harmless) {
  for (const auto& [name, value] : harmless)
    if (const auto* found = of.find(name); found != nullptr && *found != value)
      of.refuse(name,
                fmt::format("Unsupported parameter: '{}'{}.", of.path_of(name),
                            value.is_null() ? std::string(" is not supported by this server")
                                            : fmt::format(" can only be {}", value.dump())),
                "unsupported_parameter");
}

void check_choices(const fields& of, std::size_t prompts, const generation& how,
                   const request_limits& limits) {
  if (prompts * how.n <= limits.choices) return;
  const char* const name = how.n == 1 ? "prompt" : "n";
  of.refuse(name,
            fmt::format("Invalid value for '{}': {} prompts with {} answers each are more than {}; "
                        "ask for fewer.",
                        name, prompts, how.n, limits.choices),
            "invalid_value");
}

/// A body whose members are among `own` and `shared`, and what `read(of, content, problem)` makes of them.
template <class Content, class Read>
parsed<Content> read_body(std::string_view body, std::initializer_list<std::string_view> own,
                          std::span<const std::string_view> shared, const Read& read) {
  parsed<Content> made;
  const auto tree = parse_body(body, made.problem);
  const fields of(tree, {}, made.problem);
  of.only(own, shared);
  made.content.model = of.string("model", {});
  read(of, made.content, made.problem);
  return made;
}

using problem_place = std::optional<api_problem>;

void read_completion(const fields& of, completion_request& request, const request_limits& limits) {
  request.prompts = read_prompts(of, limits);
  request.echo = of.boolean("echo", false);
  request.how = read_generation(of, limits);
  request.how.max_tokens = read_max(of, "max_tokens", limits);
  if (!request.how.max_tokens) request.how.max_tokens = default_completion_tokens;
  if (of.has("logprobs"))
    request.how.logprobs =
        static_cast<std::uint32_t>(of.integer("logprobs", 0, most_completion_logprobs, 0));
  if (request.echo && request.how.logprobs)
    of.refuse("echo", "Unsupported parameter: 'echo' together with 'logprobs'.",
              "unsupported_parameter");
  refuse_unsupported(of, {{"best_of", json(request.how.n)}, {"suffix", json()}});
  check_choices(of, request.prompts.size(), request.how, limits);
}

void read_chat(const fields& of, chat_request& request, problem_place& problem,
               const request_limits& limits) {
  request.messages = read_messages(of, problem);
  request.how = read_generation(of, limits);
  request.how.max_tokens = read_max(of, "max_completion_tokens", limits);
  if (!request.how.max_tokens) request.how.max_tokens = read_max(of, "max_tokens", limits);
  const auto top = of.integer("top_logprobs", 0, most_chat_logprobs, 0);
  if (of.boolean("logprobs", false))
    request.how.logprobs = static_cast<std::uint32_t>(top);
  else if (of.has("top_logprobs"))
    of.refuse("top_logprobs", "'logprobs' must be true where 'top_logprobs' is given.");
  refuse_unsupported(of, {{"store", false},
                          {"response_format", json{{"type", "text"}}},
                          {"tools", json::array()},
                          {"tool_choice", "none"},
                          {"functions", json::array()},
                          {"function_call", "none"},
                          {"modalities", json::array({"text"})},
                          {"audio", json()},
                          {"prediction", json()},
                          {"reasoning_effort", json()},
                          {"verbosity", json()}});
  check_choices(of, 1, request.how, limits);
}

}  // namespace

parsed<completion_request> parse_completion(std::string_view body, const request_limits& limits) {
  return read_body<completion_request>(
      body, {"model", "prompt", "max_tokens", "logprobs", "echo", "best_of", "suffix"},
      generation_names, [&](const fields& of, completion_request& request, problem_place&) {
        read_completion(of, request, limits);
      });
}

parsed<chat_request> parse_chat(std::string_view body, const request_limits& limits) {
  return read_body<chat_request>(
      body,
      {"model",
       "messages",
       "max_tokens",
       "max_completion_tokens",
       "logprobs",
       "top_logprobs",
       "store",
       "metadata",
       "service_tier",
       "response_format",
       "tools",
       "tool_choice",
       "parallel_tool_calls",
       "functions",
       "function_call",
       "modalities",
       "audio",
       "prediction",
       "reasoning_effort",
       "safety_identifier",
       "prompt_cache_key",
       "verbosity"},
      generation_names, [&](const fields& of, chat_request& request, problem_place& problem) {
        read_chat(of, request, problem, limits);
      });
}

parsed<tokenize_request> parse_tokenize(std::string_view body, const request_limits&) {
  return read_body<tokenize_request>(
      body, {"model", "prompt", "messages", "add_special_tokens", "return_token_strs"}, {},
      [](const fields& of, tokenize_request& request, problem_place& problem) {
        if (of.has("messages") == of.has("prompt"))
          of.refuse("prompt", "Expected either 'prompt' or 'messages'.",
                    "missing_required_parameter");
        if (of.has("messages"))
          request.messages = read_messages(of, problem);
        else
          request.text = of.string("prompt", {});
        request.add_special_tokens = of.boolean("add_special_tokens", true);
        request.return_pieces = of.boolean("return_token_strs", false);
      });
}

parsed<detokenize_request> parse_detokenize(std::string_view body, const request_limits& limits) {
  return read_body<detokenize_request>(
      body, {"model", "tokens"}, {},
      [&](const fields& of, detokenize_request& request, problem_place&) {
        const auto* tokens = of.find("tokens");
        if (tokens == nullptr || !tokens->is_array())
          return of.refuse(
              "tokens",
              fmt::format("Invalid type for 'tokens': expected an array of token ids, found {}.",
                          tokens == nullptr ? "nothing" : kind_of(*tokens)),
              tokens == nullptr ? "missing_required_parameter" : "invalid_type");
        request.ids = ids_of(of, "tokens", *tokens, limits.vocabulary);
      });
}

}  // namespace ordermoe::gateway
