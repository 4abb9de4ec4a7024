#include <fmt/format.h>
#include <histedit.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/common.hpp"
#include "config/json_text.hpp"
#include "net/http/client.hpp"

// `ordermoe chat`: a conversation with anything that speaks OpenAI's interface.

namespace ordermoe::cli {

namespace {

using nlohmann::ordered_json;

struct chat_options {
  std::string connect = "http://127.0.0.1:8080";
  std::string model, system, once, authority;
  double temperature = 0;
  std::uint64_t seed = 0;
  std::uint32_t max_tokens = 0;
  std::string quality;  ///< Empty: the server's choice.
  std::optional<double> quality_percent;
  bool has_once = false, has_seed = false, json = false;
};

/// Lines "data: ..." of a stream, however it is cut.
class event_reader {
 public:
  explicit event_reader(std::function<void(std::string_view)> told) : told_(std::move(told)) {}
  void take(std::string_view part) {
    line_ += part;
    std::size_t begin = 0;
    for (auto end = line_.find('\n'); end != std::string::npos; end = line_.find('\n', begin)) {
      std::string_view line(line_.data() + begin, end - begin);
      begin = end + 1;
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      told_(line);
    }
    line_.erase(0, begin);
  }

 private:
  std::function<void(std::string_view)> told_;
  std::string line_;
};

/// Of a server that may be anybody's: a member of an object, or null.
ordered_json member_of(const ordered_json& of, const char* name) {
  const auto found = of.is_object() ? of.find(name) : of.end();
  return found != of.end() ? *found : ordered_json();
}

/// Likewise the first of an array.
ordered_json first_of(const ordered_json& list) {
  return list.is_array() && !list.empty() ? list.front() : ordered_json();
}

/// Empty where the member is no text.
std::string text_in(const ordered_json& of, const char* name) {
  const auto member = member_of(of, name);
  return member.is_string() ? member.get<std::string>() : std::string();
}

/// What a server says went wrong; empty where that is not to be found.
std::string problem_in(const ordered_json& reply) {
  const auto said = text_in(reply, "error");
  return said.empty() ? text_in(member_of(reply, "error"), "message") : said;
}

class conversation {
 public:
  conversation(const chat_options& options, net::http_url to)
      : options_(options), to_(std::move(to)) {
    // As OpenAI's own clients are given the path of the version.
    if (to_.path.empty()) to_.path = "/v1";
    forget();
  }

  void forget() {
    messages_ = ordered_json::array();
    if (!options_.system.empty())
      messages_.push_back({{"role", "system"}, {"content", options_.system}});
  }

  result<void> find_model() {
    model_ = options_.model;
    if (!model_.empty()) return {};
    const auto reply = net::http_fetch(ask("GET", "/models"), {}, stop_requested);
    if (!reply) return reply.error();
    const auto read = ordered_json::parse(reply->body, nullptr, false);
    if (reply->status != 200) return problem_of(reply->status, read);
    model_ = text_in(first_of(member_of(read, "data")), "id");
    if (!model_.empty()) return {};
    return error{errc::malformed,
                 fmt::format("{}: its list of models makes no sense; name one with --model",
                             options_.connect)};
  }
  const std::string& model() const { return model_; }

  /// The answer, whose text is shown as it comes where `shows`.
  result<std::string> say(const std::string& text, bool shows) {
    messages_.push_back({{"role", "user"}, {"content", text}});
    std::string answer, problem;
    bool is_whole = false;
    event_reader events([&](std::string_view event) {
      if (event == "[DONE]") {
        is_whole = true;
        return;
      }
      const auto read = ordered_json::parse(event, nullptr, false);
      if (auto said = problem_in(read); !said.empty()) problem = std::move(said);
      take_usage(read);
      const auto piece = piece_of(read);
      answer += piece;
      if (!shows || piece.empty()) return;
      std::fputs(piece.c_str(), stdout);
      std::fflush(stdout);
    });
    auto wanted = ask("POST", "/chat/completions");
    wanted.fields.emplace_back("Content-Type", "application/json");
    wanted.body = json_text(body());
    const auto reply = net::http_fetch(
        wanted, [&](std::string_view part) { events.take(part); }, stop_requested);
    const bool good = reply && reply->status == 200 && problem.empty() && is_whole;
    if (good)
      messages_.push_back({{"role", "assistant"}, {"content", answer}});
    else
      messages_.erase(messages_.size() - 1);
    if (!reply) return reply.error();
    if (reply->status != 200)
      return problem_of(reply->status, ordered_json::parse(reply->body, nullptr, false));
    if (!problem.empty()) return error{errc::failed, problem};
    if (!is_whole)
      return error{errc::io, fmt::format("{}: the answer broke off before its end; ask again",
                                         options_.connect)};
    tell_of_less();
    return answer;
  }

  const ordered_json& usage() const { return usage_; }

 private:
  /// Once: nobody takes an answer for one that had more than the plan allows, or a budget that the server does not know.
  void tell_of_less() {
    if (!options_.quality_percent || told_of_less_) return;
    const auto in_force = member_of(member_of(usage_, "ordermoe"), "quality_budget_percent");
    const bool is_told = in_force.is_number();
    if (is_told &&
        (in_force.get<double>() < 0 || in_force.get<double>() >= *options_.quality_percent))
      return;
    told_of_less_ = true;
    fmt::print(stderr, "ordermoe: --quality-budget {:g}: {}\n", *options_.quality_percent,
               is_told
                   ? fmt::format("the plan's is less, {:g} % is in force", in_force.get<double>())
                   : std::string("the server does not say which budget was in force"));
  }

  net::http_ask ask(std::string method, std::string path) const {
    net::http_ask made;
    made.to = to_;
    made.method = std::move(method);
    made.path = std::move(path);
    made.authority = options_.authority;
    for (const char* name : {"ORDERMOE_API_KEY", "OPENAI_API_KEY"})
      if (const char* key = std::getenv(name); key != nullptr && *key != '\0') {
        made.fields.emplace_back("Authorization", fmt::format("Bearer {}", key));
        break;
      }
    return made;
  }

  ordered_json body() const {
    ordered_json made{{"model", model_},
                      {"messages", messages_},
                      {"stream", true},
                      {"stream_options", {{"include_usage", true}}},
                      {"temperature", options_.temperature}};
    if (options_.has_seed) made["seed"] = options_.seed;
    if (options_.max_tokens > 0) made["max_tokens"] = options_.max_tokens;
    if (options_.quality_percent)
      made["ordermoe"] = {{"quality_budget_percent", *options_.quality_percent}};
    return made;
  }

  static std::string piece_of(const ordered_json& event) {
    return text_in(member_of(first_of(member_of(event, "choices")), "delta"), "content");
  }

  void take_usage(const ordered_json& event) {
    if (auto told = member_of(event, "usage"); told.is_object()) usage_ = std::move(told);
  }

  error problem_of(int status, const ordered_json& reply) const {
    const auto said = problem_in(reply);
    return {status == 401 ? errc::usage : errc::failed,
            fmt::format("{}: {} {}{}{}", options_.connect, status, net::reason_of(status),
                        said.empty() ? "" : ": ", said)};
  }

  const chat_options& options_;
  net::http_url to_;
  std::string model_;
  ordered_json messages_, usage_;
  bool told_of_less_ = false;
};

result<void> say_once(const chat_options& options, conversation& with) {
  const auto answer = with.say(options.once, !options.json);
  if (!answer) return answer.error();
  if (options.json)
    fmt::print("{}\n", json_text(ordered_json{{"model", with.model()},
                                              {"content", *answer},
                                              {"usage", with.usage()}},
                                 2));
  else
    fmt::print("\n");
  return {};
}

/// Lines with history, from a terminal.
class line_editor {
 public:
  line_editor() : editor_(el_init("ordermoe", stdin, stdout, stderr)), history_(history_init()) {
    history(history_, &event_, H_SETSIZE, 200);
    el_set(
        editor_, EL_PROMPT, +[](EditLine*) -> char* {
          static char prompt[] = "> ";
          return prompt;
        });
    el_set(editor_, EL_EDITOR, "emacs");
    el_set(editor_, EL_SIGNAL, 1);
    el_set(editor_, EL_HIST, history, history_);
  }
  ~line_editor() {
    history_end(history_);
    el_end(editor_);
  }
  line_editor(const line_editor&) = delete;
  line_editor& operator=(const line_editor&) = delete;

  /// Nothing at the end.
  std::optional<std::string> next() {
    int length = 0;
    const char* line = el_gets(editor_, &length);
    if (line == nullptr || length <= 0) return std::nullopt;
    history(history_, &event_, H_ENTER, line);
    std::string text(line, static_cast<std::size_t>(length));
    while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
    return text;
  }

 private:
  EditLine* editor_;
  History* history_;
  HistEvent event_{};
};

std::optional<std::string> next_line(line_editor* editor) {
  if (editor != nullptr) return editor->next();
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

result<void> talk(conversation& with) {
  std::unique_ptr<line_editor> editor;
  if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
    fmt::print("{}. An empty line ends it, /new begins another conversation.\n", with.model());
    editor = std::make_unique<line_editor>();
  }
  while (!stop_requested()) {
    const auto line = next_line(editor.get());
    if (stop_requested()) break;  // It may be half of one.
    if (!line || line->empty()) return {};
    if (*line == "/new") {
      with.forget();
      continue;
    }
    const auto answer = with.say(*line, true);
    fmt::print("\n");
    if (answer) continue;
    // A conversation at a terminal survives what went wrong with one answer.
    if (!editor) return answer.error();
    report(answer.error());
  }
  return error{errc::interrupted, "interrupted"};
}

result<void> chat(const chat_options& options) {
  auto to = net::parse_url(options.connect);
  if (!to) return at("--connect", to.error());
  conversation with(options, std::move(*to));
  if (auto found = with.find_model(); !found) return found;
  return options.has_once ? say_once(options, with) : talk(with);
}

}  // namespace

void add_chat(CLI::App& app) {
  auto& command = *app.add_subcommand("chat", "Talk with a model that is served");
  auto options = std::make_shared<chat_options>();
  command
      .add_option("--connect", options->connect,
                  "URL of `ordermoe serve`, or of anything with OpenAI's interface")
      ->capture_default_str();
  const auto* once = command.add_option("--once", options->once, "Say this, print the answer, end");
  command.add_option("--model", options->model, "Name; none: the first of the server's list");
  command.add_option("--system", options->system, "What the conversation begins with");
  command.add_option("--temperature", options->temperature, "0 is greedy")
      ->check(number_from(0, 2))
      ->capture_default_str();
  const auto* seed = add_seed(command, options->seed, "Of sampling; none: the server's choice");
  command.add_option("--max-tokens", options->max_tokens, "Of an answer; 0: the server's choice")
      ->check(whole_from(0, 1 << 20))
      ->capture_default_str();
  command.add_option(
      "--quality-budget", options->quality,
      "Perplexity that an answer may lose, in per cent, 0 to 100, of a server of OrderMoE; 0: "
      "exact; none: the server's choice");
  command
      .add_option("--ca", options->authority,
                  "PEM: who signed the server's certificate; none: whom this system trusts")
      ->type_name(file_value);
  const auto* json = command.add_flag("--json", options->json, "With --once: print JSON");
  command.footer(
      "A key is read from ORDERMOE_API_KEY, or else from OPENAI_API_KEY.\n"
      "Examples, while `ordermoe serve` runs:\n"
      "  ordermoe chat\n"
      "  ordermoe chat --once '75 * 5'");
  set_body(command, [options, once, seed, json]() -> result<void> {
    options->has_once = once->count() > 0;
    options->has_seed = seed->count() > 0;
    if (json->count() > 0 && !options->has_once)
      return error{errc::usage,
                   "--json: a conversation is for people; give --once, or leave it out"};
    if (!options->quality.empty()) {
      const auto percent = parse_stated_quality(options->quality);
      if (!percent) return percent.error();
      options->quality_percent = *percent;
    }
    return chat(*options);
  });
}

}  // namespace ordermoe::cli
