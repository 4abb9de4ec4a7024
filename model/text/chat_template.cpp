#include "model/text/chat_template.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "config/files.hpp"
#include "config/json.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t most_file_bytes = std::size_t{16} << 20;

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string made;
  for (std::size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    made += text.substr(0, at);
    made += to;
    text.remove_prefix(at + from.size());
  }
  made += text;
  return made;
}

/// The program with one way to write what Jinja lets one write in several: quotes, members, line
/// ends within texts, spaces around operators.
std::string normalised(std::string_view program) {
  std::string text(program);
  const std::pair<std::string_view, std::string_view> rules[] = {
      {"\"", "'"},
      {"\\n", "\n"},
      {" + ", "+"},
      {" +", "+"},
      {"+ ", "+"},
      {"message.role", "message['role']"},
      {"message.content", "message['content']"}};
  for (const auto& [from, to] : rules) text = replaced(text, from, to);
  return text;
}

/// The first special marker of a program, for messages.
std::string first_marker(std::string_view program) {
  constexpr std::size_t longest = 40;
  for (const auto& [open, close] : {std::pair<std::string_view, std::string_view>{"<|", "|>"},
                                    {"<start", ">"},
                                    {"[", "]'"},
                                    {"<<", ">>"}}) {
    const std::size_t begin = program.find(open);
    if (begin == std::string_view::npos) continue;
    const std::size_t end = program.find(close, begin);
    if (end != std::string_view::npos && end - begin < longest)
      return fmt::format("with '{}'", program.substr(begin, end + close.size() - begin));
  }
  return fmt::format("of {} bytes", program.size());
}

/// A text between the system marker and the end of its turn that no expression interrupts.
std::string default_system_of(std::string_view program) {
  constexpr std::string_view open = "<|im_start|>system\n";
  for (std::size_t at = program.find(open); at != std::string_view::npos;
       at = program.find(open, at + 1)) {
    const std::string_view rest = program.substr(at + open.size());
    const std::string_view text = rest.substr(0, rest.find("<|im_end|>"));
    if (text.size() < rest.size() && text.find_first_of("'{}+") == std::string_view::npos)
      return std::string(text);
  }
  return {};
}

/// bos_token and eos_token are texts, or objects with the text as content.
std::string special_token(const json_value& root, std::string_view key) {
  const auto value = root.find(key);
  if (!value) return {};
  return value->is_object() ? value->at("content").string() : value->string();
}

constexpr std::string_view remedy =
    "write the prompts out as the model's card says and leave --chat out";

}  // namespace

const char* to_string(chat_role role) {
  switch (role) {
    case chat_role::system:
      return "system";
    case chat_role::user:
      return "user";
    case chat_role::assistant:
      return "assistant";
  }
  return "?";
}

result<chat_template> chat_template::recognise(std::string_view program, std::string bos_token,
                                               std::string eos_token, const std::string& place) {
  const std::string text = normalised(program);
  const auto has = [&](std::string_view part) { return text.find(part) != std::string::npos; };
  chat_template made;
  const bool begins_with_bos = has("{{ bos_token }}") || has("{{- bos_token }}") ||
                               has("{{bos_token}}") || has("{{ bos_token+");
  const bool begins_with_eos = has("{{ eos_token }}{% for") || has("{{ eos_token }}{%- for");
  if (begins_with_bos)
    made.begin_ = bos_token;
  else if (begins_with_eos)
    made.begin_ = eos_token;
  if (has("[INST] '+message['content']+' [/INST]'") && has("message['content']+eos_token") &&
      !has("<<SYS>>") && !has("[AVAILABLE_TOOLS]")) {
    made.format_ = chat_format::inst;
    made.end_ = std::move(eos_token);
    // Some relatives of Mixtral's template put the system message before the last question.
    made.takes_system_ =
        has("[INST] '+system_message+'\n\n'+message['content']+' [/INST]'") && !has("loop.last");
    if (made.begin_.empty() || made.end_.empty())
      return error{errc::malformed,
                   fmt::format("{}: found no bos_token and eos_token for its chat template, "
                               "expected both; copy the file from where the model came from",
                               place)};
    return made;
  }
  if (has("'<|im_start|>'+message['role']+'\n'+") && has("'<|im_start|>assistant\n'") &&
      (has("'<|im_end|>'+'\n'") || has("'<|im_end|>\n'"))) {
    made.format_ = chat_format::chatml;
    made.end_ = "<|im_end|>";
    made.default_system_ = default_system_of(text);
    made.drops_thoughts_ = has("</think>");
    return made;
  }
  // The line ends are the program's own, or written into its texts.
  const bool own_lines = has("'<|user|>\n'+message['content'] }}") &&
                         has("'<|system|>\n'+message['content'] }}") &&
                         has("'<|assistant|>\n'+message['content']+eos_token }}");
  const bool written_lines = has("'<|user|>\n'+message['content']+'\n' }}") &&
                             has("'<|system|>\n'+message['content']+'\n' }}") &&
                             has("'<|assistant|>\n'+message['content']+eos_token+'\n' }}");
  if ((own_lines || written_lines) && !eos_token.empty()) {
    made.format_ = chat_format::tulu;
    made.end_ = std::move(eos_token);
    return made;
  }
  if (has("'Q: '+message['content']+'\n'") && has("'A: '+message['content']+'\n'") &&
      has("{{ 'A:' }}")) {
    made.format_ = chat_format::question;
    return made;
  }
  return error{errc::unsupported,
               fmt::format("{}: chat_template: found a template {}, expected that of "
                           "Mixtral-Instruct ([INST]), Qwen (<|im_start|>) or OLMoE-Instruct "
                           "(<|user|>); {}",
                           place, first_marker(program), remedy)};
}

result<chat_template> chat_template::parse_config(std::string_view text, const std::string& place) {
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  (*document)->set_remedy("copy the file from where the model came from");
  const json_value root = (*document)->root();
  const auto found = root.find("chat_template");
  std::optional<std::string> program;
  if (found && found->is_array()) {
    // Several by name; the default is for plain conversations.
    for (const json_value& item : found->items())
      if (item.at("name").string() == "default") program = item.at("template").string();
  } else if (found) {
    program = found->string();
  }
  auto bos_token = special_token(root, "bos_token");
  auto eos_token = special_token(root, "eos_token");
  if (const auto read = (*document)->outcome(); !read) return read.error();
  if (!program)
    return error{
        errc::not_found,
        fmt::format("{}: found no chat_template, expected one: this is a base model, which "
                    "continues text; name an instruct variant or leave --chat out",
                    place)};
  return recognise(*program, std::move(bos_token), std::move(eos_token), place);
}

result<chat_template> chat_template::load(const std::filesystem::path& folder) {
  const auto config = folder / "tokenizer_config.json";
  auto text = read_file(config, most_file_bytes);
  if (!text && text.error().code == errc::not_found)
    return error{errc::not_found,
                 fmt::format("{}: no such file, expected one with a chat_template; copy it from "
                             "where the model came from or leave --chat out",
                             config.string())};
  if (!text) return text.error();
  const auto beside = folder / "chat_template.jinja";
  std::error_code ignored;
  if (!std::filesystem::exists(beside, ignored)) return parse_config(*text, config.string());
  const auto program = read_file(beside, most_file_bytes);
  if (!program) return program.error();
  auto document = json_document::parse(*text, config.string());
  if (!document) return document.error();
  const json_value root = (*document)->root();
  auto bos_token = special_token(root, "bos_token");
  auto eos_token = special_token(root, "eos_token");
  if (const auto read = (*document)->outcome(); !read) return read.error();
  return recognise(*program, std::move(bos_token), std::move(eos_token), beside.string());
}

result<void> chat_template::check(std::span<const chat_message> messages) const {
  const auto wrong = [](std::size_t i, std::string_view what, std::string_view expected) {
    return error{errc::out_of_range, fmt::format("message {}: found {}, expected {}; correct the "
                                                 "conversation",
                                                 i + 1, what, expected)};
  };
  if (messages.empty())
    return error{errc::out_of_range, "found no messages, expected one of the user; add it"};
  bool users_turn = true;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto role = messages[i].role;
    if (role == chat_role::system) {
      if (i > 0) return wrong(i, "a system message", "it to be the first");
      if (!takes_system_)
        return error{
            errc::unsupported,
            "message 1: found a system message, expected none, as the model's template has "
            "no place for it; put it into the user's first message"};
      continue;
    }
    if ((role == chat_role::user) != users_turn)
      return wrong(i, fmt::format("a message of the {}", to_string(role)),
                   users_turn ? "the user's turn" : "the assistant's turn");
    users_turn = !users_turn;
  }
  if (users_turn)
    return wrong(messages.size() - 1, "the conversation's end", "it to end with the user");
  return {};
}

result<std::vector<chat_template::part>> chat_template::parts(
    std::span<const chat_message> messages) const {
  if (auto checked = check(messages); !checked) return checked.error();
  std::vector<part> made;
  if (!begin_.empty()) made.push_back({begin_, true});
  std::string text;
  std::string system;
  switch (format_) {
    case chat_format::inst:
      for (const auto& [role, content] : messages) {
        if (role == chat_role::system) {
          system = content + "\n\n";
        } else if (role == chat_role::user) {
          made.push_back({fmt::format("[INST] {}{} [/INST]", system, content)});
          system.clear();
        } else {
          made.push_back({content});
          made.push_back({end_, true});
        }
      }
      return made;
    case chat_format::chatml:
      if (messages.front().role != chat_role::system && !default_system_.empty())
        text += fmt::format("<|im_start|>system\n{}{}\n", default_system_, end_);
      for (const auto& [role, content] : messages) {
        std::string_view shown = content;
        if (role == chat_role::assistant && drops_thoughts_)
          if (const auto at = shown.rfind("</think>"); at != std::string_view::npos) {
            shown.remove_prefix(at + std::string_view("</think>").size());
            shown.remove_prefix(std::min(shown.find_first_not_of('\n'), shown.size()));
          }
        text += fmt::format("<|im_start|>{}\n{}{}\n", to_string(role), shown, end_);
      }
      text += "<|im_start|>assistant\n";
      break;
    case chat_format::tulu:
      for (const auto& [role, content] : messages)
        text += fmt::format("<|{}|>\n{}{}\n", to_string(role), content,
                            role == chat_role::assistant ? end_ : "");
      text += "<|assistant|>\n";
      break;
    case chat_format::question:
      for (const auto& [role, content] : messages)
        text += fmt::format("{}{}\n",
                            role == chat_role::user        ? "Q: "
                            : role == chat_role::assistant ? "A: "
                                                           : "",
                            content);
      text += "A:";
      break;
  }
  made.push_back({std::move(text)});
  return made;
}

result<std::string> chat_template::render(std::span<const chat_message> messages) const {
  const auto made = parts(messages);
  if (!made) return made.error();
  std::string text;
  for (const auto& [content, special] : *made) {
    if (format_ == chat_format::inst && !special) text += ' ';
    text += content;
  }
  return text;
}

result<std::vector<std::int32_t>> chat_template::encode(
    const tokenizer& tokens, std::span<const chat_message> messages) const {
  const auto made = parts(messages);
  if (!made) return made.error();
  if (format_ == chat_format::chatml)
    for (const std::string_view marker : {std::string_view("<|im_start|>"), std::string_view(end_)})
      if (const auto id = tokens.special_id(marker);
          !id || std::ranges::count(tokens.encode_inside(marker), *id) != 1)
        return error{errc::mismatch,
                     fmt::format("the chat template writes '{}', the tokenizer has no such token "
                                 "and would take it for plain text; copy added_tokens.json, "
                                 "tokenizer_config.json and tokenizer.json from where the model "
                                 "came from, or {}",
                                 marker, remedy)};
  // A plain text, as a prompt is one.
  if (format_ == chat_format::question) return tokens.encode(made->front().text);
  std::vector<std::int32_t> ids;
  for (const auto& [content, special] : *made) {
    if (!special) {
      const auto inside = tokens.encode_inside(content);
      ids.insert(ids.end(), inside.begin(), inside.end());
      continue;
    }
    const auto id = tokens.special_id(content);
    if (!id)
      return error{errc::mismatch,
                   fmt::format("the chat template has the special token '{}', the tokenizer has no "
                               "such; use the files of one model",
                               content)};
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace ordermoe::model
