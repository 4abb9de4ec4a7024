#include "model/text/tokenizer_json.hpp"

#include <fmt/format.h>
#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "config/files.hpp"
#include "config/json.hpp"
#include "model/text/added_tokens.hpp"
#include "model/text/byte_level_bpe.hpp"
#include "model/text/split_pattern.hpp"
#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t most_json_bytes = std::size_t{128} << 20;
constexpr std::size_t most_tokens = std::size_t{1} << 22;
constexpr std::size_t most_merges = std::size_t{1} << 22;
constexpr std::size_t most_added_tokens = std::size_t{1} << 16;
constexpr std::size_t most_steps = 16;

/// How ByteLevel cuts text where `use_regex` is set; the expression of GPT-2.
constexpr std::string_view gpt2_expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// One step of the pre_tokenizer: puts a space before each part, and cuts it.
struct cut {
  bool add_space = false;
  std::optional<split_pattern> pattern;
};

struct content {
  std::vector<std::string> tokens;  ///< By id: as written in the file.
  std::vector<added_token> added;
  bool nfc = false;
  std::vector<cut> cuts;
  std::vector<byte_level_bpe::merge> merges;
  byte_level_bpe::whole_tokens whole = byte_level_bpe::whole_tokens::after_merges;
  std::vector<std::int32_t> before;  ///< Ids that the post_processor puts before the text.
  std::vector<std::int32_t> after;
};

using token_ids = std::unordered_map<std::string, std::int32_t>;

std::string to_nfc(std::string_view text) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(status);
  ORDERMOE_CHECK(U_SUCCESS(status), "ICU has no data for NFC");
  ORDERMOE_CHECK(text.size() <= std::size_t{std::numeric_limits<std::int32_t>::max()},
                 "a text of more than 2 GiB");
  std::string normalized;
  icu::StringByteSink<std::string> sink(&normalized);
  nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())), sink,
                     nullptr, status);
  ORDERMOE_CHECK(U_SUCCESS(status), "ICU could not normalise valid UTF-8");
  return normalized;
}

class reader {
 public:
  explicit reader(json_document& document) : document_(document) {}

  result<content> run() {
    const json_value root = document_.root();
    root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
    if (const auto version = root.find("version")) version->one_of({"1.0"});
    refuse_unless_null(root, "truncation", "null: texts are never cut here");
    refuse_unless_null(root, "padding", "null: texts are never padded here");
    const json_value model = root.at("model");
    read_model_options(model);
    read_added_tokens(root);
    read_vocabulary(model.at("vocab"));
    check_added_tokens(root);
    read_merges(model.at("merges"));
    if (const auto normalizer = root.find("normalizer")) read_normalizer(*normalizer);
    read_pre_tokenizer(root.at("pre_tokenizer"), true);
    read_decoder(root.at("decoder"));
    if (const auto processor = root.find("post_processor")) read_post_processor(*processor);
    return document_.finish(std::move(made_));
  }

 private:
  static void refuse_unless_null(const json_value& parent, std::string_view key,
                                 std::string_view expected) {
    if (const auto value = parent.find(key)) value->refuse("a value", expected, errc::unsupported);
  }

  static bool flag(const json_value& parent, std::string_view key, bool otherwise) {
    const auto value = parent.find(key);
    return value ? value->boolean() : otherwise;
  }

  /// The index of the object's "type" among the names; refuses another as unsupported.
  std::size_t type_of(const json_value& value, const std::vector<std::string_view>& names) const {
    const json_value type = value.at("type");
    const std::string found = type.string();
    const auto name = std::ranges::find(names, found);
    if (name != names.end()) return static_cast<std::size_t>(name - names.begin());
    type.refuse(fmt::format("'{}'", found), fmt::format("one of {}", fmt::join(names, ", ")),
                errc::unsupported);
    return names.size();
  }

  void read_model_options(const json_value& model) {
    model.only({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    // Old files leave the type out; what has merges is BPE.
    if (model.find("type")) type_of(model, {"BPE"});
    if (const auto dropout = model.find("dropout"); dropout && dropout->number() != 0)
      dropout->refuse("a dropout", "null or 0: encoding is deterministic", errc::unsupported);
    // Every byte has a token (make checks it), so the unknown token and its fusing never occur.
    if (const auto unknown = model.find("unk_token")) unknown->string();
    flag(model, "fuse_unk", false);
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const auto mark = model.find(key); mark && !mark->string().empty())
        mark->refuse(fmt::format("'{}'", mark->string()), "null or nothing between the quotes",
                     errc::unsupported);
    if (const auto fallback = model.find("byte_fallback"); fallback && fallback->boolean())
      fallback->refuse("true", "false: byte-level tokens need none", errc::unsupported);
    if (flag(model, "ignore_merges", false))
      made_.whole = byte_level_bpe::whole_tokens::before_merges;
  }

  void read_added_tokens(const json_value& root) {
    const auto list = root.find("added_tokens");
    if (!list) return;
    const auto items = list->items();
    if (items.size() > most_added_tokens)
      return list->refuse(fmt::format("{} tokens", items.size()),
                          fmt::format("at most {}", most_added_tokens));
    for (const json_value& item : items) {
      item.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      added_token token;
      token.id = static_cast<std::int32_t>(item.at("id").count(0, most_tokens - 1));
      token.content = item.at("content").string();
      token.single_word = item.at("single_word").boolean();
      token.lstrip = item.at("lstrip").boolean();
      token.rstrip = item.at("rstrip").boolean();
      token.normalized = item.at("normalized").boolean();
      token.special = item.at("special").boolean();
      if (document_.failed()) return;
      if (token.content.empty() || token.content.size() > most_token_bytes)
        return item.at("content").refuse(fmt::format("a text of {} bytes", token.content.size()),
                                         fmt::format("1 to {} bytes", most_token_bytes));
      if (!added_ids_.try_emplace(token.content, token.id).second)
        return item.at("content").refuse(fmt::format("'{}' again", token.content),
                                         "every added token once", errc::malformed);
      made_.added.push_back(std::move(token));
    }
  }

  /// Puts a token at its id; says which other one is there already.
  void place(const json_value& value, const std::string& text, std::size_t id) {
    std::string& there = made_.tokens[id];
    if (!there.empty() && there != text)
      return value.refuse(fmt::format("the id {}, which '{}' has", id, there), "an id of its own",
                          errc::malformed);
    there = text;
  }

  void read_vocabulary(const json_value& vocab) {
    const auto texts = vocab.keys();
    if (document_.failed()) return;
    if (texts.size() > most_tokens - most_added_tokens)
      return vocab.refuse(fmt::format("{} tokens", texts.size()),
                          fmt::format("at most {}", most_tokens - most_added_tokens));
    std::size_t n = texts.size();
    for (const auto& token : made_.added)
      if (!std::ranges::binary_search(texts, token.content)) ++n;
    if (n == 0) return vocab.refuse("no tokens", "some", errc::malformed);
    made_.tokens.resize(n);
    ids_.reserve(texts.size());
    for (const std::string& text : texts) {
      const json_value value = vocab.at(text);
      // As many ids as tokens, none twice and none beyond: so none is missing.
      const std::size_t id = value.count(0, n - 1);
      if (document_.failed()) return;
      if (text.empty() || text.size() > most_token_bytes)
        return value.refuse(fmt::format("a token of {} bytes", text.size()),
                            fmt::format("1 to {} bytes", most_token_bytes));
      place(value, text, id);
      ids_.emplace(text, static_cast<std::int32_t>(id));
    }
  }

  void check_added_tokens(const json_value& root) {
    if (document_.failed() || made_.added.empty()) return;
    const auto items = root.at("added_tokens").items();
    for (std::size_t i = 0; i < made_.added.size(); ++i) {
      const added_token& token = made_.added[i];
      const json_value id = items[i].at("id");
      const auto known = ids_.find(token.content);
      if (known != ids_.end() && known->second != token.id)
        return id.refuse(fmt::format("the id {} for '{}'", token.id, token.content),
                         fmt::format("{}, as in model.vocab", known->second), errc::mismatch);
      const auto place_at = id.count(0, made_.tokens.size() - 1);
      if (document_.failed()) return;
      place(id, token.content, place_at);
    }
  }

  std::int32_t id_in(const json_value& merge, const std::string& text) const {
    const auto found = ids_.find(text);
    if (found != ids_.end()) return found->second;
    merge.refuse(fmt::format("the token '{}'", text), "a token of model.vocab", errc::mismatch);
    return 0;
  }

  void read_merges(const json_value& list) {
    const auto items = list.items();
    if (document_.failed()) return;
    if (items.size() > most_merges)
      return list.refuse(fmt::format("{} merges", items.size()),
                         fmt::format("at most {}", most_merges));
    made_.merges.reserve(items.size());
    std::unordered_map<std::uint64_t, std::size_t> first;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const json_value& item = items[i];
      std::string left;
      std::string right;
      if (item.is_string()) {
        const std::string both = item.string();
        const std::size_t space = both.find(' ');
        if (space == std::string::npos || space == 0 || space + 1 == both.size() ||
            both.find(' ', space + 1) != std::string::npos)
          return item.refuse(fmt::format("'{}'", both), "two tokens with one space between them",
                             errc::malformed);
        left = both.substr(0, space);
        right = both.substr(space + 1);
      } else {
        const auto both = item.strings(2);
        if (both.size() != 2) return;
        left = both[0];
        right = both[1];
      }
      const byte_level_bpe::merge merge{id_in(item, left), id_in(item, right),
                                        id_in(item, left + right)};
      if (document_.failed()) return;
      const auto key =
          static_cast<std::uint64_t>(merge.left) << 32 | static_cast<std::uint32_t>(merge.right);
      if (const auto [earlier, is_new] = first.try_emplace(key, i); !is_new)
        return item.refuse(fmt::format("'{}' and '{}' again", left, right),
                           fmt::format("them once, as merge {}", earlier->second), errc::malformed);
      made_.merges.push_back(merge);
    }
  }

  void read_normalizer(const json_value& value) {
    switch (type_of(value, {"NFC", "Sequence"})) {
      case 0:
        value.only({"type"});
        made_.nfc = true;
        break;
      case 1:
        value.only({"type", "normalizers"});
        for (const json_value& step : value.at("normalizers").items()) read_normalizer(step);
        break;
      default:
        break;
    }
  }

  /// `last`: nothing follows, so this must be ByteLevel; what goes before must not.
  void read_pre_tokenizer(const json_value& value, bool last) {
    if (made_.cuts.size() == most_steps)
      return value.refuse("one more step", fmt::format("at most {}", most_steps));
    std::vector<std::string_view> names = {"Sequence", "Split"};
    if (last) names = {"Sequence", "ByteLevel"};
    const std::size_t type = type_of(value, names);
    if (document_.failed()) return;
    if (type == 0) {
      value.only({"type", "pretokenizers"});
      const auto steps = value.at("pretokenizers").items();
      if (last && steps.empty() && !document_.failed())
        return value.at("pretokenizers")
            .refuse("no steps", "some, the last of them ByteLevel", errc::unsupported);
      for (std::size_t i = 0; i < steps.size(); ++i)
        read_pre_tokenizer(steps[i], last && i + 1 == steps.size());
    } else if (last) {
      read_byte_level(value);
    } else {
      read_split(value);
    }
  }

  void read_byte_level(const json_value& value) {
    value.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    cut step;
    step.add_space = flag(value, "add_prefix_space", true);
    flag(value, "trim_offsets", true);
    if (flag(value, "use_regex", true)) {
      auto pattern = split_pattern::compile(gpt2_expression);
      ORDERMOE_CHECK(pattern.has_value(), "the expression of GPT-2 is refused");
      step.pattern = std::move(*pattern);
    }
    made_.cuts.push_back(std::move(step));
  }

  void read_split(const json_value& value) {
    value.only({"type", "pattern", "behavior", "invert"});
    const json_value behavior = value.at("behavior");
    if (const std::string found = behavior.string(); found != "Isolated")
      return behavior.refuse(fmt::format("'{}'", found), "'Isolated'", errc::unsupported);
    flag(value, "invert", false);  // What matches and what does not are pieces alike.
    const json_value pattern = value.at("pattern");
    pattern.only({"Regex"});
    const json_value expression = pattern.at("Regex");
    const std::string text = expression.string();
    if (document_.failed()) return;
    auto compiled = split_pattern::compile(text);
    if (!compiled) {
      problem_at(expression, compiled.error());
      return;
    }
    made_.cuts.push_back({false, std::move(*compiled)});
  }

  /// Reports "found X, expected Y" as found by somebody else.
  static void problem_at(const json_value& value, const error& inner) {
    constexpr std::string_view middle = ", expected ";
    constexpr std::string_view begin = "found ";
    const std::string_view message = inner.message;
    const std::size_t cut_at = message.rfind(middle);
    ORDERMOE_CHECK(message.starts_with(begin) && cut_at != std::string_view::npos,
                   "a message without what was found and expected");
    value.refuse(message.substr(begin.size(), cut_at - begin.size()),
                 message.substr(cut_at + middle.size()), inner.code);
  }

  void read_decoder(const json_value& value) {
    switch (type_of(value, {"ByteLevel", "Sequence"})) {
      case 0:
        value.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
        break;
      case 1: {
        value.only({"type", "decoders"});
        const auto steps = value.at("decoders").items(1);
        if (steps.size() == 1) read_decoder(steps[0]);
        break;
      }
      default:
        break;
    }
  }

  void read_post_processor(const json_value& value) {
    switch (type_of(value, {"ByteLevel", "TemplateProcessing", "Sequence"})) {
      case 0:  // It adjusts offsets only.
        value.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
        break;
      case 1:
        read_template(value);
        break;
      case 2:
        value.only({"type", "processors"});
        for (const json_value& step : value.at("processors").items()) read_post_processor(step);
        break;
      default:
        break;
    }
  }

  void read_template(const json_value& value) {
    value.only({"type", "single", "pair", "special_tokens"});
    std::vector<std::int32_t> before;
    std::vector<std::int32_t> after;
    bool text_seen = false;
    const auto single = value.at("single");
    for (const json_value& part : single.items()) {
      part.only({"SpecialToken", "Sequence"});
      if (const auto sequence = part.find("Sequence")) {
        sequence->at("id").one_of({"A"});
        if (text_seen)
          return part.refuse("the text again", "it once in 'single'", errc::unsupported);
        text_seen = true;
        continue;
      }
      const std::string name = part.at("SpecialToken").at("id").string();
      const auto ids = value.at("special_tokens").at(name).at("ids");
      for (const std::uint32_t id : ids.indices(static_cast<std::uint32_t>(made_.tokens.size())))
        (text_seen ? after : before).push_back(static_cast<std::int32_t>(id));
    }
    if (!text_seen && !document_.failed())
      return single.refuse("no text", "a Sequence with the id A", errc::unsupported);
    // Of two templates the later wraps what the earlier made.
    made_.before.insert(made_.before.begin(), before.begin(), before.end());
    made_.after.insert(made_.after.end(), after.begin(), after.end());
  }

  json_document& document_;
  content made_;
  token_ids ids_;        ///< Of model.vocab.
  token_ids added_ids_;  ///< Of added_tokens.
};

class byte_level_tokenizer final : public tokenizer {
 public:
  byte_level_tokenizer(content made, byte_level_bpe merges)
      : nfc_(made.nfc),
        cuts_(std::move(made.cuts)),
        merges_(std::move(merges)),
        before_(std::move(made.before)),
        after_(std::move(made.after)) {
    shown_.reserve(made.tokens.size());
    for (auto& token : made.tokens) {
      auto bytes = bytes_of_token(token);
      shown_.push_back(bytes ? std::move(*bytes) : std::move(token));
    }
    for (const added_token& token : made.added) {
      const auto id = static_cast<std::size_t>(token.id);
      shown_[id] = token.special ? std::string() : token.content;
      special_ids_.emplace(token.content, token.id);
      if (!token.normalized) given_.add(token);
    }
    // Of two whose contents are the same once normalised, the first is found, special ones first.
    std::set<std::string> seen;
    for (const bool special : {true, false})
      for (added_token token : made.added) {
        if (!token.normalized || token.special != special) continue;
        if (nfc_) token.content = to_nfc(token.content);
        if (seen.insert(token.content).second) normalized_.add(token);
      }
  }

  std::size_t vocab_size() const override { return shown_.size(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids = before_;
    const auto inside = encode_inside(text);
    ids.insert(ids.end(), inside.begin(), inside.end());
    ids.insert(ids.end(), after_.begin(), after_.end());
    return ids;
  }

  std::optional<std::int32_t> special_id(std::string_view token) const override {
    const auto found = special_ids_.find(std::string(token));
    if (found == special_ids_.end()) return std::nullopt;
    return found->second;
  }

  std::vector<std::int32_t> encode_inside(std::string_view given) const override {
    const std::string text = replace_ill_formed(given);
    std::vector<std::int32_t> ids;
    for (const auto& part : given_.split(text)) {
      if (part.id >= 0)
        ids.push_back(part.id);
      else
        encode_rest(nfc_ ? to_nfc(part.text) : std::string(part.text), ids);
    }
    return ids;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::string bytes;
    for (const std::int32_t id : ids) {
      if (id >= 0 && static_cast<std::size_t>(id) < shown_.size()) {
        bytes += shown_[static_cast<std::size_t>(id)];
        continue;
      }
      // A model may have more rows than its tokenizer has tokens.
      text += replace_ill_formed(bytes);
      text += utf8_replacement;
      bytes.clear();
    }
    return text + replace_ill_formed(bytes);
  }

 private:
  void encode_rest(const std::string& text, std::vector<std::int32_t>& ids) const {
    std::vector<std::string_view> pieces;
    for (const auto& part : normalized_.split(text)) {
      if (part.id >= 0) {
        ids.push_back(part.id);
        continue;
      }
      pieces.assign(1, part.text);
      encode_pieces(pieces, ids);
    }
  }

  void encode_pieces(std::vector<std::string_view> pieces, std::vector<std::int32_t>& ids) const {
    std::vector<std::string_view> cut_up;
    for (const cut& step : cuts_) {
      if (step.add_space) return encode_spaced(step, pieces, ids);
      if (!step.pattern) continue;
      cut_up.clear();
      for (const std::string_view piece : pieces) step.pattern->split(piece, cut_up);
      std::swap(pieces, cut_up);
    }
    for (const std::string_view piece : pieces) merges_.encode(piece, ids);
  }

  /// The last step, where it puts a space before every piece that has none.
  void encode_spaced(const cut& step, const std::vector<std::string_view>& pieces,
                     std::vector<std::int32_t>& ids) const {
    std::vector<std::string_view> cut_up;
    for (const std::string_view piece : pieces) {
      const std::string spaced =
          piece.starts_with(' ') ? std::string(piece) : ' ' + std::string(piece);
      cut_up.clear();
      if (step.pattern)
        step.pattern->split(spaced, cut_up);
      else
        cut_up.push_back(spaced);
      for (const std::string_view part : cut_up) merges_.encode(part, ids);
    }
  }

  bool nfc_;
  std::vector<cut> cuts_;
  byte_level_bpe merges_;
  std::vector<std::int32_t> before_;
  std::vector<std::int32_t> after_;
  std::vector<std::string> shown_;  ///< By id: the bytes that decoding shows.
  token_ids special_ids_;           ///< Of added tokens.
  added_token_finder given_;
  added_token_finder normalized_;
};

}  // namespace

result<std::shared_ptr<const tokenizer>> parse_tokenizer_json(std::string_view text,
                                                              std::string place) {
  constexpr std::string_view remedy =
      "use the tokenizer.json of a byte-level BPE model as its authors published it";
  auto document = json_document::parse(text, std::move(place));
  if (!document) return document.error();
  (*document)->set_remedy(std::string(remedy));
  auto made = reader(**document).run();
  if (!made) return made.error();
  auto merges = byte_level_bpe::make(made->tokens, made->merges, made->whole);
  if (!merges)
    return error{merges.error().code, fmt::format("{}: model.vocab: {}; {}", (*document)->place(),
                                                  merges.error().message, remedy)};
  return std::shared_ptr<const tokenizer>(
      std::make_shared<byte_level_tokenizer>(std::move(*made), std::move(*merges)));
}

result<std::shared_ptr<const tokenizer>> read_tokenizer_json(const std::filesystem::path& path) {
  const auto text = read_file(path, most_json_bytes);
  if (!text) return text.error();
  return parse_tokenizer_json(*text, path.string());
}

}  // namespace ordermoe::model
