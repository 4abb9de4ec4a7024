#include "setup/texts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>

#include "config/files.hpp"
#include "config/json.hpp"
#include "planning/strategies/quality_terms.hpp"

namespace ordermoe::setup {

namespace fs = std::filesystem;

fs::path data_folder() {
  if (const char* named = std::getenv("ORDERMOE_DATA")) return named;
  std::error_code status;
  const auto program = fs::read_symlink("/proc/self/exe", status);
  const auto installed = program.parent_path().parent_path() / "share" / "ordermoe";
  if (!status && fs::is_directory(installed, status)) return installed;
  return ORDERMOE_SOURCE_DATA;
}

result<token_documents> read_documents(const fs::path& path, const model::tokenizer& tokens,
                                       std::size_t document_tokens, std::size_t max_tokens) {
  const auto text = read_file(path);
  if (!text) return text.error();
  token_documents documents;
  std::size_t total = 0;
  const auto ids = tokens.encode(*text);
  for (std::size_t at = 0; at < ids.size() && total < max_tokens; at += document_tokens) {
    const auto n = std::min({document_tokens, ids.size() - at, max_tokens - total});
    if (n < 2) break;
    documents.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(at),
                           ids.begin() + static_cast<std::ptrdiff_t>(at + n));
    total += n;
  }
  if (documents.empty())
    return error{errc::out_of_range,
                 fmt::format("{}: the text is too short, it has {} tokens; give at least 2",
                             path.string(), ids.size())};
  return documents;
}

namespace {

result<std::string> read_all(const std::string& path) {
  constexpr std::size_t most_bytes = std::size_t{64} << 20;
  if (path != "-") return read_file(path, most_bytes);
  std::string all;
  char some[1 << 16];
  while (std::cin.read(some, sizeof some) || std::cin.gcount() > 0) {
    all.append(some, static_cast<std::size_t>(std::cin.gcount()));
    if (all.size() > most_bytes)
      return error{errc::out_of_range,
                   fmt::format("standard input: larger than the {} bytes allowed", most_bytes)};
  }
  if (std::ferror(stdin) != 0) return error{errc::io, "standard input: reading failed"};
  return all;
}

std::vector<model::chat_message> read_messages(const json_value& list) {
  std::vector<model::chat_message> messages;
  for (const json_value& item : list.items()) {
    constexpr model::chat_role roles[] = {model::chat_role::system, model::chat_role::user,
                                          model::chat_role::assistant};
    item.only({"role", "content"});
    const auto role = item.at("role").one_of({"system", "user", "assistant"});
    messages.push_back({roles[role], item.at("content").string()});
  }
  if (messages.empty()) list.refuse("no messages", "one at least");
  return messages;
}

/// A line of a prompts file that is a JSON object.
result<prompt> read_prompt(const std::string& line, std::string place) {
  auto document = json_document::parse(line, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  // Of data sets: what was expected, and names.
  root.only({"prompt", "messages", "quality_budget_percent", "answer", "id"});
  prompt read;
  read.place = std::move(place);
  if (const auto messages = root.find("messages")) {
    read.messages = read_messages(*messages);
    if (!read.messages.empty()) read.text = read.messages.back().content;
  } else {
    read.text = root.at("prompt").string();
  }
  if (const auto quality = root.find("quality_budget_percent"))
    read.quality_percent = quality->number(0, planning::most_stated_percent);
  if (const auto outcome = (*document)->outcome(); !outcome) return outcome.error();
  if (read.text.empty())
    return error{errc::out_of_range,
                 fmt::format("{}: `{}` is empty; remove the line or give a text", read.place,
                             read.messages.empty() ? "prompt" : "content")};
  return read;
}

}  // namespace

result<std::vector<prompt>> read_prompts(const std::string& path) {
  constexpr std::string_view byte_order_mark = "\xef\xbb\xbf";
  auto text = read_all(path);
  if (!text) return text.error();
  if (text->starts_with(byte_order_mark)) text->erase(0, byte_order_mark.size());
  const auto place = path == "-" ? std::string("standard input") : path;
  std::vector<prompt> prompts;
  std::istringstream lines(*text);
  std::size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    auto where = fmt::format("{}:{}", place, number);
    if (line.front() != '{') {
      prompts.push_back({std::move(line), {}, std::move(where)});
      continue;
    }
    auto read = read_prompt(line, std::move(where));
    if (!read) return read.error();
    prompts.push_back(std::move(*read));
  }
  if (prompts.empty())
    return error{
        errc::out_of_range,
        place + ": no prompts; give one a line, as plain text or as {\"prompt\": \"...\"}"};
  return prompts;
}

result<token_documents> encode_prompts(const std::vector<prompt>& prompts,
                                       const model::tokenizer& tokens,
                                       const std::optional<model::chat_template>& chat) {
  token_documents encoded;
  for (const auto& [text, messages, place, quality] : prompts) {
    if (chat) {
      const model::chat_message alone[] = {{model::chat_role::user, text}};
      auto ids = messages.empty() ? chat->encode(tokens, alone) : chat->encode(tokens, messages);
      if (!ids) return at(place, ids.error());
      encoded.push_back(std::move(*ids));
    } else if (!messages.empty()) {
      return error{errc::usage, place +
                                    ": found `messages`, expected `prompt`, as --chat is not "
                                    "given; give it"};
    } else {
      encoded.push_back(tokens.encode(text));
    }
    if (encoded.back().empty())
      return error{errc::out_of_range,
                   place +
                       ": the tokenizer makes no tokens of it, expected one at least; give it "
                       "a text"};
  }
  return encoded;
}

}  // namespace ordermoe::setup
