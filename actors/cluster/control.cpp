#include "actors/cluster/control.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "config/json.hpp"
#include "net/session/session.hpp"
#include "planning/strategies/quality_terms.hpp"

namespace ordermoe::actors {

namespace {

using nlohmann::ordered_json;

constexpr std::uint32_t most_ids = 0x7fffffffu;
constexpr std::uint64_t most_executions = std::uint64_t{1} << 53;
constexpr auto last_code = static_cast<std::int64_t>(errc::failed);
constexpr std::int64_t longest_ns = std::int64_t{365} * 24 * 3600 * 1'000'000'000;

std::string text_of(const ordered_json& content) {
  return content.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::vector<std::int32_t> ids(const json_value& from) {
  const auto read = from.indices(most_ids);
  return {read.begin(), read.end()};
}

ordered_json choice_json(const sampling_choice& choice) {
  ordered_json j{{"top_p", choice.top_p},
                 {"top_k", choice.top_k},
                 {"presence_penalty", choice.presence_penalty},
                 {"frequency_penalty", choice.frequency_penalty}};
  if (choice.logprobs) j["logprobs"] = *choice.logprobs;
  j["bias"] = ordered_json::array();
  for (const auto& [id, bias] : choice.bias) j["bias"].push_back({id, bias});
  return j;
}

/// What is in range check_prompt() says.
sampling_choice choice_of(const json_value& from) {
  from.only({"top_p", "top_k", "presence_penalty", "frequency_penalty", "logprobs", "bias"});
  sampling_choice choice;
  choice.top_p = from.at("top_p").number();
  choice.top_k = static_cast<std::uint32_t>(from.at("top_k").unsigned_integer(0, UINT32_MAX));
  choice.presence_penalty = from.at("presence_penalty").number();
  choice.frequency_penalty = from.at("frequency_penalty").number();
  if (const auto logprobs = from.find("logprobs"))
    choice.logprobs = static_cast<std::uint32_t>(logprobs->unsigned_integer(0, UINT32_MAX - 1));
  for (const auto& each : from.at("bias").items()) {
    const auto pair = each.items(2);
    if (pair.size() != 2) break;
    choice.bias.emplace_back(static_cast<std::int32_t>(pair[0].integer(0, most_ids)),
                             static_cast<float>(pair[1].number(-1e6, 1e6)));
  }
  return choice;
}

told_executions executions_of(const json_value& from) {
  told_executions told{};
  const auto numbers = from.items(told.size());
  for (std::size_t i = 0; i < numbers.size(); ++i)
    told[i] = numbers[i].unsigned_integer(0, most_executions);
  return told;
}

/// Whether it stands in JSON as it is.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text,
                             [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
}

/// Takes a text apart from its front, for as long as it is what is expected.
class expected_text {
 public:
  explicit expected_text(std::string_view text) : rest_(text) {}

  expected_text& words(std::string_view expected) {
    good_ = good_ && rest_.starts_with(expected);
    if (good_) rest_.remove_prefix(expected.size());
    return *this;
  }
  template <class Number>
  expected_text& number(std::uint64_t most, Number& into) {
    std::uint64_t value = 0;
    const auto* begin = rest_.data();
    const auto [end, problem] = std::from_chars(begin, begin + rest_.size(), value);
    const auto size = static_cast<std::size_t>(end - begin);
    good_ = good_ && problem == std::errc() && value <= most && (size == 1 || rest_[0] != '0');
    if (good_) rest_.remove_prefix(size);
    into = static_cast<Number>(value);
    return *this;
  }
  expected_text& plain(std::string& into) {
    const auto size = std::min(rest_.find('"'), rest_.size());
    good_ = good_ && is_plain(rest_.substr(0, size));
    if (good_) into = rest_.substr(0, size);
    if (good_) rest_.remove_prefix(size);
    return *this;
  }
  bool stands_before(std::string_view expected) const { return rest_.starts_with(expected); }
  bool ended() const { return good_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool good_ = true;
};

/// Most tokens are a number and a few letters, told by the thousand a second: these need no tree. Of any other text, right
/// or wrong, nothing.
std::optional<answer_token> parse_plain_token(std::string_view text) {
  answer_token token;
  expected_text read(text);
  read.words(R"({"ref":)")
      .number(std::numeric_limits<std::uint64_t>::max(), token.request)
      .words(R"(,"index":)")
      .number(most_ids, token.index)
      .words(R"(,"id":)")
      .number(most_ids, token.id)
      .words(R"(,"text":")")
      .plain(token.text)
      .words(R"(","time_ns":)")
      .number(std::numeric_limits<std::int64_t>::max(), token.time_ns);
  if (!read.stands_before("}")) {
    read.words(R"(,"executions":)");
    for (auto& each : token.executions.emplace())
      read.words(&each == token.executions->data() ? "[" : ",").number(most_executions, each);
    read.words("]");
  }
  return read.words("}").ended() ? std::optional(std::move(token)) : std::nullopt;
}

/// read(root), with the first problem that it met.
template <class Content, class Read>
result<Content> parsed(std::string_view text, const char* what, Read read) {
  auto document = json_document::parse(text, what);
  if (!document) return document.error();
  auto content = read((*document)->root());
  return (*document)->finish(std::move(content));
}

}  // namespace

std::string submit_text(const remote_request& content) {
  const auto& spec = content.spec;
  ordered_json j{{"ref", content.ref}};
  if (spec.prompt.empty())
    j["text"] = content.text;
  else
    j["prompt"] = spec.prompt;
  j["max_new_tokens"] = spec.max_new_tokens;
  j["temperature"] = spec.temperature;
  j["seed"] = spec.sampling_seed;
  if (spec.sampling_stream) j["stream"] = *spec.sampling_stream;
  if (spec.choice != sampling_choice()) j["choice"] = choice_json(spec.choice);
  if (spec.tells_executions) j["executions"] = true;
  if (!content.tells_tokens) j["tokens"] = false;
  j["stop"] = spec.stop_strings;
  j["ignore_end_of_text"] = spec.ignore_end_of_text;
  j["score"] = spec.score;
  if (spec.scored_after != 1) j["scored_after"] = spec.scored_after;
  if (spec.quality_percent) j["quality_percent"] = *spec.quality_percent;
  j["deadline_ns"] = spec.deadline_ns;
  return text_of(j);
}

result<remote_request> parse_submit(std::string_view text) {
  return parsed<remote_request>(text, "submit", [](const json_value& root) {
    root.only({"ref", "text", "prompt", "max_new_tokens", "temperature", "seed", "stream", "choice",
               "executions", "tokens", "stop", "ignore_end_of_text", "score", "scored_after",
               "quality_percent", "deadline_ns"});
    remote_request content;
    content.ref = root.at("ref").unsigned_integer();
    auto& spec = content.spec;
    if (const auto prompt = root.find("prompt"))
      spec.prompt = ids(*prompt);
    else
      content.text = root.at("text").string();
    spec.max_new_tokens =
        static_cast<std::uint32_t>(root.at("max_new_tokens").unsigned_integer(1, 1u << 20));
    spec.temperature = root.at("temperature").number(0, 1e6);
    spec.sampling_seed = root.at("seed").unsigned_integer();
    if (const auto stream = root.find("stream")) spec.sampling_stream = stream->unsigned_integer();
    if (const auto choice = root.find("choice")) spec.choice = choice_of(*choice);
    if (const auto executions = root.find("executions"))
      spec.tells_executions = executions->boolean();
    if (const auto tokens = root.find("tokens")) content.tells_tokens = tokens->boolean();
    spec.stop_strings = root.at("stop").strings();
    spec.ignore_end_of_text = root.at("ignore_end_of_text").boolean();
    spec.score = root.at("score").boolean();
    if (const auto after = root.find("scored_after"))
      spec.scored_after = static_cast<std::uint32_t>(after->unsigned_integer(1, 1u << 20));
    // A number that is none is written as null, and asks for nothing: not for all that the plan allows.
    if (std::ranges::count(root.keys(), "quality_percent") > 0)
      spec.quality_percent = root.at("quality_percent").number(0, planning::most_stated_percent);
    spec.deadline_ns = root.at("deadline_ns").integer(0, longest_ns);
    return content;
  });
}

std::string cancel_text(std::uint64_t ref) {
  return text_of({{"ref", ref}});
}

result<std::uint64_t> parse_cancel(std::string_view text) {
  return parsed<std::uint64_t>(text, "cancel", [](const json_value& root) {
    root.only({"ref"});
    return root.at("ref").unsigned_integer();
  });
}

std::string order_text(std::uint64_t ref, const bearer_order& content) {
  return text_of({{"ref", ref},
                  {"verb", content.verb},
                  {"arguments", ordered_json::parse(content.arguments)},
                  {"dry_run", content.dry_run},
                  {"token", content.token},
                  {"by_token_alone", true}});
}

std::string token_text(const answer_token& token) {
  if (!token.loss && token.logprobs.empty() && is_plain(token.text))
    return fmt::format(R"({{"ref":{},"index":{},"id":{},"text":"{}","time_ns":{}{}}})",
                       token.request, token.index, token.id, token.text, token.time_ns,
                       token.executions
                           ? fmt::format(R"(,"executions":[{}])", fmt::join(*token.executions, ","))
                           : std::string());
  ordered_json j{{"ref", token.request},
                 {"index", token.index},
                 {"id", token.id},
                 {"text", token.text},
                 {"time_ns", token.time_ns}};
  if (token.loss) j["loss"] = *token.loss;
  for (const auto& each : token.logprobs) j["logprobs"].push_back({each.id, each.logprob});
  if (token.executions) j["executions"] = *token.executions;
  return text_of(j);
}

result<answer_token> parse_token(std::string_view text) {
  if (auto plain = parse_plain_token(text)) return std::move(*plain);
  return parsed<answer_token>(text, "token", [](const json_value& root) {
    answer_token token;
    token.request = root.at("ref").unsigned_integer();
    token.index = static_cast<std::uint32_t>(root.at("index").unsigned_integer(0, most_ids));
    token.id = static_cast<std::int32_t>(root.at("id").integer(0, most_ids));
    token.text = root.at("text").string();
    if (const auto loss = root.find("loss")) token.loss = loss->number();
    token.time_ns = root.at("time_ns").integer();
    if (const auto logprobs = root.find("logprobs"))
      for (const auto& each : logprobs->items()) {
        const auto pair = each.items(2);
        if (pair.size() == 2)
          token.logprobs.push_back(
              {static_cast<std::int32_t>(pair[0].integer(0, most_ids)), pair[1].number()});
      }
    if (const auto told = root.find("executions")) token.executions = executions_of(*told);
    return token;
  });
}

std::size_t most_message_bytes() {
  static const std::size_t most =
      net::session_limits{}.largest_frame[static_cast<std::size_t>(net::lane::control)];
  return most;
}

namespace {

std::string whole_ended_text(const request_outcome& outcome) {
  ordered_json j{{"ref", outcome.request},
                 {"access", outcome.access},
                 {"ids", outcome.token_ids},
                 {"text", outcome.text},
                 {"tail", outcome.text_tail},
                 {"finish", outcome.finish},
                 {"attempts", outcome.attempts},
                 {"arrival_ns", outcome.arrival_ns},
                 {"first_token_ns", outcome.first_token_ns},
                 {"done_ns", outcome.done_ns},
                 {"budget", outcome.budget},
                 {"spent", outcome.spent},
                 {"losses", outcome.losses}};
  if (outcome.quality_percent) j["quality_percent"] = *outcome.quality_percent;
  if (outcome.executions) j["executions"] = *outcome.executions;
  if (outcome.problem)
    j["problem"] = {{"code", static_cast<int>(outcome.problem->code)},
                    {"message", outcome.problem->message}};
  return text_of(j);
}

std::string too_long(const char* what, std::size_t bytes) {
  return fmt::format("{} takes {} bytes, expected at most {}", what, bytes, most_message_bytes());
}

}  // namespace

std::string ended_text(const request_outcome& outcome, bool tells_tokens) {
  auto text = whole_ended_text(outcome);
  if (text.size() <= most_message_bytes()) return text;
  auto told = outcome;
  told.token_ids.clear();
  told.text.clear();
  told.text_tail.clear();
  // Whoever was told all tokens has them.
  if (tells_tokens)
    if (auto rest = whole_ended_text(told); rest.size() <= most_message_bytes()) return rest;
  told.losses.clear();
  told.finish = "failed";
  told.problem =
      error{errc::out_of_range, too_long("the whole answer", text.size()) +
                                    "; ask for fewer tokens, or score the text in parts"};
  return whole_ended_text(told);
}

std::string reply_that_fits(std::string text) {
  if (text.size() <= most_message_bytes()) return text;
  const auto whole = ordered_json::parse(text, nullptr, false);
  ordered_json short_one{{"ref", 0}};
  if (whole.is_object() && whole.contains("ref")) short_one["ref"] = whole["ref"];
  const bool is_refused = whole.is_object() && whole.contains("problem");
  short_one["problem"] = {
      {"code", static_cast<int>(errc::out_of_range)},
      {"message",
       too_long(is_refused ? "it is refused, and why" : "it is done, and what is to be told of it",
                text.size())}};
  return text_of(short_one);
}

std::string status_that_fits(std::string text) {
  if (text.size() <= most_message_bytes()) return text;
  return text_of({{"problem", too_long("how it is", text.size())}});
}

result<std::string> read_status(const std::string& text) {
  const auto told = parse_told(text);
  if (!told.is_object()) return error{errc::malformed, "its status makes no sense"};
  const auto problem = told.find("problem");
  if (told.size() == 1 && problem != told.end() && problem->is_string())
    return error{errc::failed, problem->get<std::string>()};
  return text;
}

result<request_outcome> parse_ended(std::string_view text) {
  return parsed<request_outcome>(text, "ended", [](const json_value& root) {
    request_outcome outcome;
    outcome.request = root.at("ref").unsigned_integer();
    outcome.access = static_cast<std::uint32_t>(root.at("access").unsigned_integer(0, most_ids));
    outcome.token_ids = ids(root.at("ids"));
    outcome.text = root.at("text").string();
    outcome.text_tail = root.at("tail").string();
    outcome.finish = root.at("finish").string();
    outcome.attempts =
        static_cast<std::uint32_t>(root.at("attempts").unsigned_integer(0, most_ids));
    outcome.arrival_ns = root.at("arrival_ns").integer();
    outcome.first_token_ns = root.at("first_token_ns").integer();
    outcome.done_ns = root.at("done_ns").integer();
    outcome.budget = root.at("budget").integer();
    outcome.spent = root.at("spent").integer();
    outcome.losses = root.at("losses").numbers();
    if (const auto quality = root.find("quality_percent"))
      outcome.quality_percent = quality->number();
    if (const auto told = root.find("executions")) outcome.executions = executions_of(*told);
    if (const auto problem = root.find("problem"))
      outcome.problem = error{static_cast<errc>(problem->at("code").integer(0, last_code)),
                              problem->at("message").string()};
    return outcome;
  });
}

}  // namespace ordermoe::actors
