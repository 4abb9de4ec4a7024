#include "model/text/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "config/files.hpp"
#include "model/text/sentencepiece_model.hpp"
#include "model/text/tokenizer_json.hpp"
#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t most_model_bytes = std::size_t{256} << 20;
constexpr std::string_view replacement = utf8_replacement;

class sentencepiece_tokenizer final : public tokenizer {
 public:
  explicit sentencepiece_tokenizer(sentencepiece_model content) : content_(std::move(content)) {}

  std::size_t vocab_size() const override { return content_.size(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids = content_.encode(text);
    // T5's models have nothing to begin a text with, and end it instead.
    if (content_.bos_id() >= 0)
      ids.insert(ids.begin(), content_.bos_id());
    else
      ids.push_back(content_.eos_id());
    return ids;
  }

  std::vector<std::int32_t> encode_inside(std::string_view text) const override {
    return content_.encode(text);
  }

  std::optional<std::int32_t> special_id(std::string_view token) const override {
    return content_.control_id(token);
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::vector<std::int32_t> run;
    for (const std::int32_t id : ids) {
      if (id >= 0 && static_cast<std::size_t>(id) < vocab_size()) {
        run.push_back(id);
        continue;
      }
      // A model may have more rows than its tokenizer has pieces.
      text += content_.decode(run);
      text += replacement;
      run.clear();
    }
    return text + content_.decode(run);
  }

 private:
  sentencepiece_model content_;
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

result<std::shared_ptr<const tokenizer>> read_sentencepiece(const std::filesystem::path& path) {
  const auto bytes = read_file(path, most_model_bytes);
  if (!bytes) return bytes.error();
  return tokenizer::parse_sentencepiece(*bytes, path.string());
}

}  // namespace

result<std::shared_ptr<const tokenizer>> tokenizer::parse_sentencepiece(std::string_view bytes,
                                                                        std::string_view place) {
  auto content = sentencepiece_model::parse(bytes);
  if (!content)
    return error{content.error().code,
                 fmt::format("{}: not a usable SentencePiece model: {}; fetch or train it again",
                             place, content.error().message)};
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
    if (exists(folder / name)) return read_sentencepiece(folder / name);
  if (exists(folder / "tokenizer.json")) return read_tokenizer_json(folder / "tokenizer.json");
  return error{errc::not_found,
               fmt::format("{}: found neither tokenizer.model, spiece.model nor tokenizer.json, "
                           "expected one of them; copy it there from where the model came from",
                           folder.string())};
}

streaming_decoder::streaming_decoder(std::shared_ptr<const tokenizer> tokens)
    : tokens_(std::move(tokens)) {}

std::string streaming_decoder::push(std::int32_t id) {
  ids_.push_back(id);
  const std::string text = tokens_->decode(ids_);
  const std::size_t unsettled = unsettled_bytes(text);
  const std::size_t settled = text.size() - unsettled;
  if (settled <= handed_out_) return {};
  std::string news = text.substr(handed_out_, settled - handed_out_);
  handed_out_ = settled;
  // A settled piece alone is context enough for what follows; a long list is cut back to it.
  constexpr std::size_t longest = 32;
  if (ids_.size() > longest && unsettled == 0) {
    const std::string last = tokens_->decode(std::span(&id, 1));
    if (!last.empty() && last.find(replacement) == std::string::npos) {
      ids_.assign(1, id);
      handed_out_ = last.size();
    }
  }
  return news;
}

std::string streaming_decoder::finish() {
  const std::string text = tokens_->decode(ids_);
  std::string rest = text.size() > handed_out_ ? text.substr(handed_out_) : std::string();
  ids_.clear();
  handed_out_ = 0;
  return rest;
}

}  // namespace ordermoe::model
