#include "model/text/added_token_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>

#include "config/json.hpp"
#include "model/text/tokenizer.hpp"

namespace ordermoe::model {

namespace {

namespace fs = std::filesystem;

constexpr std::size_t most_file_bytes = std::size_t{128} << 20;
constexpr std::size_t most_added_tokens = std::size_t{1} << 16;
constexpr std::string_view sentinel = "<extra_id_";

/// Nothing where there is no such file.
result<std::unique_ptr<json_document>> open(const fs::path& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return std::unique_ptr<json_document>();
  auto document = read_json(path, most_file_bytes);
  if (!document) return document.error();
  (*document)->set_remedy("copy the tokenizer's files from where the model came from");
  return std::move(*document);
}

/// A token is written as its text or as an object with the text as content.
std::string content_of(const json_value& value) {
  return value.is_object() ? value.at("content").string() : value.string();
}

bool flag(const json_value& parent, std::string_view key) {
  const auto value = parent.find(key);
  return value && value->boolean();
}

added_token with_flags(const json_value& value) {
  added_token made;
  made.content = value.at("content").string();
  made.single_word = flag(value, "single_word");
  made.lstrip = flag(value, "lstrip");
  made.rstrip = flag(value, "rstrip");
  made.special = flag(value, "special");
  return made;
}

/// Takes tokens one by one and holds them against the pieces and each other.
class collector {
 public:
  explicit collector(const sentencepiece_model& pieces) : pieces_(pieces) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      ids_of_pieces_.emplace(pieces.text_of(id), id);
    }
  }

  /// `value` is what a problem is found at.
  void take(const json_value& value, added_token token, std::uint64_t id) {
    if (token.content.empty() || token.content.size() > most_token_bytes)
      return value.refuse(fmt::format("a token of {} bytes", token.content.size()),
                          fmt::format("1 to {} bytes", most_token_bytes));
    if (id >= pieces_.size() + most_added_tokens)
      return value.refuse(
          fmt::format("the id {} for '{}'", id, token.content),
          fmt::format("one below {}: there are {} pieces, and at most {} tokens may be added",
                      pieces_.size() + most_added_tokens, pieces_.size(), most_added_tokens));
    token.id = static_cast<std::int32_t>(id);
    const auto piece = ids_of_pieces_.find(token.content);
    if (piece != ids_of_pieces_.end()) {
      if (piece->second == token.id) return;
      return value.refuse(fmt::format("the id {} for '{}'", id, token.content),
                          fmt::format("{}, as in the SentencePiece model", piece->second),
                          errc::mismatch);
    }
    if (id < pieces_.size())
      return value.refuse(fmt::format("the id {} for '{}'", id, token.content),
                          fmt::format("{} or more: the SentencePiece model has '{}' there",
                                      pieces_.size(), pieces_.text_of(token.id)),
                          errc::mismatch);
    if (const auto [earlier, is_new] = ids_.try_emplace(token.content, token.id); !is_new)
      return value.refuse(fmt::format("'{}' again", token.content), "every added token once",
                          errc::malformed);
    if (const auto [there, is_new] = made_.try_emplace(token.id, token); !is_new)
      return value.refuse(fmt::format("the id {} for '{}', which '{}' has", id, token.content,
                                      there->second.content),
                          "an id of its own", errc::malformed);
  }

  bool has_sentinels() const {
    return std::ranges::any_of(ids_,
                               [](const auto& each) { return each.first.starts_with(sentinel); });
  }
  bool is_piece(std::string_view text) const { return ids_of_pieces_.contains(text); }
  std::size_t n_pieces() const { return pieces_.size(); }

  std::vector<added_token> run() {
    std::vector<added_token> tokens;
    for (auto& [id, token] : made_) tokens.push_back(std::move(token));
    return tokens;
  }

 private:
  const sentencepiece_model& pieces_;
  std::unordered_map<std::string_view, std::int32_t> ids_of_pieces_;
  std::map<std::string, std::int32_t> ids_;
  std::map<std::int32_t, added_token> made_;
};

void take_list(const json_value& list, collector& into) {
  for (const auto& item : list.items())
    into.take(item, with_flags(item), item.at("id").unsigned_integer());
}

void take_by_id(const json_value& tokens, collector& into) {
  for (const auto& key : tokens.keys()) {
    const auto item = tokens.at(key);
    std::uint64_t id = 0;
    const auto [end, problem] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (problem != std::errc() || end != key.data() + key.size())
      return item.refuse(fmt::format("it under '{}'", key), "an id as its name", errc::malformed);
    into.take(item, with_flags(item), id);
  }
}

void take_by_text(const json_value& tokens, const std::set<std::string>& special, collector& into) {
  for (const auto& text : tokens.keys()) {
    const auto item = tokens.at(text);
    added_token token;
    token.content = text;
    token.special = special.contains(text);
    into.take(item, std::move(token), item.unsigned_integer());
  }
}

/// The tokens that a file names for a purpose, which are not shown.
void add_special(const json_value& root, std::set<std::string>& names) {
  for (const auto& key : root.keys())
    if (key.ends_with("_token"))
      if (const auto value = root.find(key); value && (value->is_string() || value->is_object()))
        names.insert(content_of(*value));
  if (const auto further = root.find("additional_special_tokens"); further && further->is_array())
    for (const auto& each : further->items()) names.insert(content_of(each));
}

/// T5's way: so many sentinels behind the pieces, the first of them last.
void take_sentinels(const json_value& config, collector& into) {
  std::uint64_t n = 0;
  const auto stated = config.find("extra_ids");
  const auto named = config.find("additional_special_tokens");
  if (stated)
    n = stated->unsigned_integer(0, most_added_tokens);
  else if (named && named->is_array())
    n = static_cast<std::uint64_t>(std::ranges::count_if(
        named->items(), [](const auto& each) { return content_of(each).starts_with(sentinel); }));
  for (std::uint64_t i = 0; i < n; ++i) {
    added_token token;
    token.content = fmt::format("{}{}>", sentinel, i);
    // Some models have them among their pieces.
    if (into.is_piece(token.content)) continue;
    token.special = true;
    into.take(stated ? *stated : *named, std::move(token), into.n_pieces() + n - 1 - i);
  }
}

}  // namespace

result<std::vector<added_token>> read_added_tokens(const fs::path& folder,
                                                   const sentencepiece_model& pieces) {
  collector made(pieces);
  bool found = false;
  if (auto whole = open(folder / "tokenizer.json"); !whole) {
    return whole.error();
  } else if (*whole) {
    if (const auto list = (*whole)->root().find("added_tokens")) {
      found = true;
      take_list(*list, made);
    }
    if (const auto read = (*whole)->outcome(); !read) return read.error();
  }
  std::set<std::string> special;
  const auto config = open(folder / "tokenizer_config.json");
  if (!config) return config.error();
  if (*config && !found) {
    if (const auto tokens = (*config)->root().find("added_tokens_decoder")) {
      found = true;
      take_by_id(*tokens, made);
    }
    add_special((*config)->root(), special);
    if (const auto read = (*config)->outcome(); !read) return read.error();
  }
  if (!found) {
    const auto map = open(folder / "special_tokens_map.json");
    if (!map) return map.error();
    const auto added = open(folder / "added_tokens.json");
    if (!added) return added.error();
    if (*map && *added) {
      add_special((*map)->root(), special);
      if (const auto read = (*map)->outcome(); !read) return read.error();
    }
    if (*added) {
      take_by_text((*added)->root(), special, made);
      if (const auto read = (*added)->outcome(); !read) return read.error();
    }
  }
  if (*config && !made.has_sentinels()) {
    take_sentinels((*config)->root(), made);
    if (const auto read = (*config)->outcome(); !read) return read.error();
  }
  return made.run();
}

}  // namespace ordermoe::model
