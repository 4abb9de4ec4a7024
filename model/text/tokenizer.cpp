#include "model/text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "config/files.hpp"
#include "model/text/added_token_files.hpp"
#include "model/text/added_tokens.hpp"
#include "model/text/sentencepiece_model.hpp"
#include "model/text/tokenizer_json.hpp"
#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t most_model_bytes = std::size_t{256} << 20;
constexpr std::string_view replacement = utf8_replacement;

class sentencepiece_tokenizer final : public tokenizer {
 public:
  /// `added` have ids beyond the pieces.
  explicit sentencepiece_tokenizer(sentencepiece_model content,
                                   const std::vector<added_token>& added = {})
      : content_(std::move(content)) {
    for (const added_token& token : added) {
      const auto place = static_cast<std::size_t>(token.id) - content_.size();
      shown_.resize(std::max(shown_.size(), place + 1));
      shown_[place] = token.special ? std::string() : token.content;
      special_ids_.emplace(token.content, token.id);
      finder_.add(token);
    }
  }

  std::size_t vocab_size() const override { return content_.size() + shown_.size(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids = encode_inside(text);
    // T5's models have nothing to begin a text with, and end it instead.
    if (content_.bos_id() >= 0)
      ids.insert(ids.begin(), content_.bos_id());
    else
      ids.push_back(content_.eos_id());
    return ids;
  }

  /// What lies between added tokens is a text of its own: the space before it, too.
  std::vector<std::int32_t> encode_inside(std::string_view given) const override {
    if (finder_.empty()) return content_.encode(given);
    const std::string text = replace_ill_formed(given);
    std::vector<std::int32_t> ids;
    for (const auto& part : finder_.split(text)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      const auto inside = content_.encode(part.text);
      ids.insert(ids.end(), inside.begin(), inside.end());
    }
    return ids;
  }

  std::optional<std::int32_t> special_id(std::string_view token) const override {
    const auto found = special_ids_.find(std::string(token));
    return found == special_ids_.end() ? content_.special_id(token) : found->second;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    return decoded(ids, text_place::beginning);
  }
  std::string decode_further(std::span<const std::int32_t> ids) const override {
    return decoded(ids, text_place::further);
  }

  bool has_begun(std::span<const std::int32_t> ids) const override {
    for (std::size_t n = ids.size(); n > 0; --n) {
      const std::int32_t id = ids[n - 1];
      if (!is_piece(id) && !is_hidden(id)) return false;
      if (is_piece(id) && content_.begins_text(id)) return true;
    }
    return false;
  }

 private:
  bool is_piece(std::int32_t id) const {
    return id >= 0 && static_cast<std::size_t>(id) < content_.size();
  }
  /// Of an id beyond the pieces; nothing where no token has it: a model may have more rows than its tokenizer has ids.
  const std::optional<std::string>& shown(std::int32_t id) const {
    static const std::optional<std::string> none;
    const auto place = static_cast<std::size_t>(id) - content_.size();
    return id >= 0 && place < shown_.size() ? shown_[place] : none;
  }
  bool is_hidden(std::int32_t id) const { return shown(id) && shown(id)->empty(); }

  std::string decoded(std::span<const std::int32_t> ids, text_place place) const {
    std::string text;
    std::vector<std::int32_t> run;
    for (const std::int32_t id : ids) {
      if (is_piece(id)) {
        run.push_back(id);
      } else if (!is_hidden(id)) {
        text += content_.decode(run, place);
        text += shown(id) ? std::string_view(*shown(id)) : replacement;
        run.clear();
        place = text_place::beginning;
      }
    }
    return text + content_.decode(run, place);
  }

  sentencepiece_model content_;
  added_token_finder finder_;
  std::vector<std::optional<std::string>> shown_;  ///< By id beyond the pieces; empty: hidden.
  std::unordered_map<std::string, std::int32_t> special_ids_;
};

/// Bytes at the end that later ids may still change: a character of up to four bytes shows as up to
/// three replacement characters until its last byte arrives.
std::size_t unsettled_bytes(std::string_view text) {
  std::size_t bytes = 0;
  while (bytes < 3 * replacement.size() &&
         text.substr(0, text.size() - bytes).ends_with(replacement))
    bytes += replacement.size();
  return bytes;
}

result<sentencepiece_model> parsed(std::string_view bytes, std::string_view place) {
  auto content = sentencepiece_model::parse(bytes);
  if (content) return content;
  return error{content.error().code,
               fmt::format("{}: not a usable SentencePiece model: {}; fetch or train it again",
                           place, content.error().message)};
}

/// With the tokens that were added to it.
result<std::shared_ptr<const tokenizer>> read_sentencepiece(const std::filesystem::path& folder,
                                                            const char* name) {
  const auto bytes = read_file(folder / name, most_model_bytes);
  if (!bytes) return bytes.error();
  auto content = parsed(*bytes, (folder / name).string());
  if (!content) return content.error();
  const auto added = read_added_tokens(folder, *content);
  if (!added) return added.error();
  return std::shared_ptr<const tokenizer>(
      std::make_shared<sentencepiece_tokenizer>(std::move(*content), *added));
}

}  // namespace

result<std::shared_ptr<const tokenizer>> tokenizer::parse_sentencepiece(std::string_view bytes,
                                                                        std::string_view place) {
  auto content = parsed(bytes, place);
  if (!content) return content.error();
  return std::shared_ptr<const tokenizer>(
      std::make_shared<sentencepiece_tokenizer>(std::move(*content)));
}

result<std::shared_ptr<const tokenizer>> tokenizer::load(const std::filesystem::path& folder) {
  const auto exists = [](const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  };
  // A folder that has both holds a SentencePiece model and a conversion of it.
  for (const char* name : {"tokenizer.model", "spiece.model"})
    if (exists(folder / name)) return read_sentencepiece(folder, name);
  if (exists(folder / "tokenizer.json")) return read_tokenizer_json(folder / "tokenizer.json");
  return error{errc::not_found,
               fmt::format("{}: found neither tokenizer.model, spiece.model nor tokenizer.json, "
                           "expected one of them; copy it there from where the model came from",
                           folder.string())};
}

streaming_decoder::streaming_decoder(std::shared_ptr<const tokenizer> tokens,
                                     std::span<const std::int32_t> before)
    : tokens_(std::move(tokens)), has_begun_(tokens_->has_begun(before)) {}

std::string streaming_decoder::decoded(std::span<const std::int32_t> ids) const {
  return has_begun_ ? tokens_->decode_further(ids) : tokens_->decode(ids);
}

std::string streaming_decoder::push(std::int32_t id) {
  ids_.push_back(id);
  const std::string text = decoded(ids_);
  const std::size_t unsettled = unsettled_bytes(text);
  const std::size_t settled = text.size() - unsettled;
  if (settled <= handed_out_) return {};
  std::string news = text.substr(handed_out_, settled - handed_out_);
  handed_out_ = settled;
  // A settled piece alone is context enough for what follows; a long list is cut back to it.
  constexpr std::size_t longest = 32;
  if (ids_.size() > longest && unsettled == 0) {
    const std::string last = decoded(std::span(&id, 1));
    if (!last.empty() && last.find(replacement) == std::string::npos) {
      ids_.assign(1, id);
      handed_out_ = last.size();
    }
  }
  return news;
}

std::string streaming_decoder::finish() {
  const std::string text = decoded(ids_);
  std::string rest = text.size() > handed_out_ ? text.substr(handed_out_) : std::string();
  ids_.clear();
  handed_out_ = 0;
  return rest;
}

}  // namespace ordermoe::model
