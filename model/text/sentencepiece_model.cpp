#include "model/text/sentencepiece_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <queue>
#include <set>

#include "model/text/tokenizer.hpp"
#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

constexpr std::string_view space_symbol = "\xe2\x96\x81";  // U+2581
constexpr std::size_t most_pieces = std::size_t{1} << 22;
/// Of what a character map puts in the place of a character; the longest in use, of U+FDFA, has 33.
constexpr std::size_t most_replacement_bytes = 256;

/// One field of a protobuf message.
struct field {
  std::uint32_t number = 0;
  std::uint32_t wire = 0;
  std::uint64_t value = 0;  ///< Wire types 0, 1 and 5.
  std::string_view bytes;   ///< Wire type 2.

  bool is_bytes() const { return wire == 2; }
  bool is_varint() const { return wire == 0; }
  bool is_float() const { return wire == 5; }
};

/// Walks over a message's fields; after next() has returned false, broken() says whether that was
/// the end.
class field_walk {
 public:
  explicit field_walk(std::string_view message) : rest_(message) {}
  bool broken() const { return broken_; }

  bool next(field& found) {
    if (rest_.empty() || broken_) return false;
    std::uint64_t tag = 0;
    if (!varint(tag) || (tag >> 3) == 0 || (tag >> 3) > 0x1fffffff) return fail();
    found = {};
    found.number = static_cast<std::uint32_t>(tag >> 3);
    found.wire = static_cast<std::uint32_t>(tag & 7);
    switch (found.wire) {
      case 0:
        return varint(found.value) || fail();
      case 1:
        return fixed(8, found.value) || fail();
      case 5:
        return fixed(4, found.value) || fail();
      case 2: {
        std::uint64_t length = 0;
        if (!varint(length) || length > rest_.size()) return fail();
        found.bytes = rest_.substr(0, static_cast<std::size_t>(length));
        rest_.remove_prefix(static_cast<std::size_t>(length));
        return true;
      }
      default:
        return fail();
    }
  }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }
  bool varint(std::uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return true;
    }
    return false;
  }
  bool fixed(std::size_t n, std::uint64_t& value) {
    if (rest_.size() < n) return false;
    std::memcpy(&value, rest_.data(), n);
    rest_.remove_prefix(n);
    return true;
  }

  std::string_view rest_;
  bool broken_ = false;
};

/// Model types as the trainer's part numbers them.
constexpr int unigram = 1, bpe = 2;
/// The byte that a piece of the form <0xAB> stands for.
std::optional<std::uint8_t> byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text.back() != '>') return std::nullopt;
  std::uint8_t byte = 0;
  const auto [end, problem] = std::from_chars(text.data() + 3, text.data() + 5, byte, 16);
  if (problem != std::errc() || end != text.data() + 5) return std::nullopt;
  return byte;
}

error broken(const char* part) {
  return {errc::malformed, fmt::format("{} is cut short or no protobuf message", part)};
}

}  // namespace

result<void> sentencepiece_model::parse_piece(std::string_view message) {
  piece read;
  field_walk walk(message);
  for (field f; walk.next(f);) {
    if (f.number == 1 && f.is_bytes()) read.text = f.bytes;
    if (f.number == 2 && f.is_float())
      read.score = std::bit_cast<float>(static_cast<std::uint32_t>(f.value));
    if (f.number == 3 && f.is_varint()) {
      if (f.value < 1 || f.value > 6)
        return error{errc::malformed,
                     fmt::format("piece {} is of unknown type {}", pieces_.size(), f.value)};
      read.type = static_cast<kind>(f.value);
    }
  }
  if (walk.broken()) return broken("a piece");
  if (read.text.empty())
    return error{errc::malformed, fmt::format("piece {} has no text", pieces_.size())};
  if (read.text.size() > most_token_bytes)
    return error{errc::out_of_range,
                 fmt::format("piece {} has {} bytes, expected at most {}", pieces_.size(),
                             read.text.size(), most_token_bytes)};
  if (!is_utf8(read.text))
    return error{errc::malformed, fmt::format("piece {} is no UTF-8", pieces_.size())};
  if (!std::isfinite(read.score))
    return error{errc::malformed, fmt::format("piece {} has no finite score", pieces_.size())};
  if (pieces_.size() == most_pieces)
    return error{errc::out_of_range, fmt::format("more than {} pieces", most_pieces)};
  pieces_.push_back(std::move(read));
  return {};
}

result<void> sentencepiece_model::parse_trainer(std::string_view message) {
  field_walk walk(message);
  for (field f; walk.next(f);) {
    if (f.number == 3 && f.is_varint()) model_type_ = static_cast<int>(f.value & 0xff);
    if (f.number == 24 && f.is_varint()) whitespace_as_suffix_ = f.value != 0;
    if (f.number == 35 && f.is_varint()) byte_fallback_ = f.value != 0;
    if (f.number == 44 && f.is_bytes()) unknown_surface_ = f.bytes;
    if (f.number == 46 && f.is_bytes()) bos_text_ = f.bytes;
    if (f.number == 47 && f.is_bytes()) eos_text_ = f.bytes;
  }
  if (walk.broken()) return broken("the trainer's part");
  if (!is_utf8(unknown_surface_))
    return error{errc::malformed, "what the unknown piece decodes to is no UTF-8"};
  return {};
}

result<void> sentencepiece_model::parse_normalizer(std::string_view message) {
  std::string_view charsmap;
  field_walk walk(message);
  for (field f; walk.next(f);) {
    if (f.number == 2 && f.is_bytes()) charsmap = f.bytes;
    if (f.number == 3 && f.is_varint()) add_dummy_prefix_ = f.value != 0;
    if (f.number == 4 && f.is_varint()) remove_extra_whitespaces_ = f.value != 0;
    if (f.number == 5 && f.is_varint()) escape_whitespaces_ = f.value != 0;
  }
  if (walk.broken()) return broken("the normaliser's part");
  if (charsmap.empty()) return {};
  std::uint32_t trie_bytes = 0;
  if (charsmap.size() < 4) return broken("the normaliser's character map");
  std::memcpy(&trie_bytes, charsmap.data(), 4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > charsmap.size() - 4)
    return broken("the normaliser's character map");
  charsmap_trie_.resize(trie_bytes / 4);
  std::memcpy(charsmap_trie_.data(), charsmap.data() + 4, trie_bytes);
  charsmap_texts_ = charsmap.substr(4 + trie_bytes);
  // A last replacement without its NUL would be read beyond the end.
  charsmap_texts_.push_back('\0');
  for (std::size_t at = 0; at < charsmap_texts_.size();) {
    const auto n = charsmap_texts_.find('\0', at) - at;
    if (n > most_replacement_bytes)
      return error{errc::out_of_range,
                   fmt::format("the normaliser's character map has a replacement of {} bytes, "
                               "expected at most {}",
                               n, most_replacement_bytes)};
    at += n + 1;
  }
  return {};
}

result<void> sentencepiece_model::index_pieces() {
  std::set<std::string_view> seen;
  std::fill(std::begin(byte_ids_), std::end(byte_ids_), -1);
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    const piece& p = pieces_[i];
    const auto id = static_cast<std::int32_t>(i);
    if (!seen.insert(p.text).second)
      return error{errc::malformed, fmt::format("piece {} comes a second time", i)};
    switch (p.type) {
      case kind::normal:
      case kind::unused:
        mergeable_.emplace(p.text, id);
        break;
      case kind::user_defined:
        mergeable_.emplace(p.text, id);
        user_defined_.push_back(p.text);
        break;
      case kind::unknown:
        if (unknown_id_ >= 0)
          return error{errc::malformed, fmt::format("piece {} is a second unknown piece", i)};
        unknown_id_ = id;
        break;
      case kind::control:
        if (p.text == bos_text_) bos_id_ = id;
        if (p.text == eos_text_) eos_id_ = id;
        break;
      case kind::byte: {
        const auto byte = byte_of(p.text);
        if (!byte)
          return error{errc::malformed, fmt::format("piece {} is no byte of the form <0xAB>", i)};
        byte_ids_[*byte] = id;
        break;
      }
    }
  }
  std::ranges::sort(user_defined_, [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  if (unknown_id_ < 0) return error{errc::malformed, "there is no unknown piece"};
  if (bos_id_ < 0 && eos_id_ < 0)
    return error{errc::malformed, fmt::format("there is neither a beginning-of-text piece '{}' nor "
                                              "an end-of-text piece '{}'",
                                              bos_text_, eos_text_)};
  least_score_ = std::numeric_limits<float>::max();
  most_score_ = std::numeric_limits<float>::lowest();
  for (const piece& p : pieces_) {
    if (p.type != kind::normal && p.type != kind::user_defined) continue;
    longest_piece_ = std::max(longest_piece_, p.text.size());
    if (p.type != kind::normal) continue;
    least_score_ = std::min(least_score_, p.score);
    most_score_ = std::max(most_score_, p.score);
  }
  if (byte_fallback_)
    for (int byte = 0; byte < 256; ++byte)
      if (byte_ids_[byte] < 0)
        return error{errc::malformed,
                     fmt::format("it falls back to bytes, but has no piece <0x{:02X}>", byte)};
  return {};
}

result<sentencepiece_model> sentencepiece_model::parse(std::string_view bytes) {
  sentencepiece_model read;
  field_walk walk(bytes);
  for (field f; walk.next(f);) {
    if (!f.is_bytes()) continue;
    result<void> part;
    if (f.number == 1) part = read.parse_piece(f.bytes);
    if (f.number == 2) part = read.parse_trainer(f.bytes);
    if (f.number == 3) part = read.parse_normalizer(f.bytes);
    if (!part) return part.error();
  }
  if (walk.broken()) return broken("the file");
  if (read.pieces_.empty()) return error{errc::malformed, "it has no pieces"};
  if (read.model_type_ != unigram && read.model_type_ != bpe)
    return error{
        errc::unsupported,
        fmt::format("model type {}, supported are 1 (unigram) and 2 (BPE)", read.model_type_)};
  if (auto indexed = read.index_pieces(); !indexed) return indexed.error();
  return read;
}

const std::string& sentencepiece_model::text_of(std::int32_t id) const {
  return pieces_[static_cast<std::size_t>(id)].text;
}

std::optional<std::int32_t> sentencepiece_model::special_id(std::string_view text) const {
  const auto found = std::ranges::find_if(pieces_, [&](const piece& p) {
    return (p.type == kind::control || p.type == kind::user_defined) && p.text == text;
  });
  if (found == pieces_.end()) return std::nullopt;
  return static_cast<std::int32_t>(found - pieces_.begin());
}

std::size_t sentencepiece_model::user_defined_prefix(std::string_view text) const {
  for (const auto& candidate : user_defined_)
    if (text.starts_with(candidate)) return candidate.size();
  return 0;
}

sentencepiece_model::step sentencepiece_model::normalize_prefix(std::string_view text) const {
  if (const std::size_t n = user_defined_prefix(text); n > 0) return {text.substr(0, n), n};
  if (!charsmap_trie_.empty()) {
    // The double array of Darts-clone: a unit holds the label that leads to it, the offset of its
    // children, and whether a key ends there; the value is then the child for label 0.
    const auto offset_of = [](std::uint32_t unit) {
      return (unit >> 10) << ((unit & (1u << 9)) >> 6);
    };
    std::optional<step> longest;
    std::size_t node = offset_of(charsmap_trie_[0]);
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto label = static_cast<unsigned char>(text[i]);
      node ^= label;
      if (node >= charsmap_trie_.size()) break;
      const std::uint32_t unit = charsmap_trie_[node];
      if ((unit & ((1u << 31) | 0xffu)) != label) break;
      node ^= offset_of(unit);
      if (node >= charsmap_trie_.size()) break;
      if (((unit >> 8) & 1u) != 0) {
        const std::size_t at = charsmap_trie_[node] & 0x7fffffffu;
        if (at < charsmap_texts_.size())
          longest = step{std::string_view(charsmap_texts_.c_str() + at), i + 1};
      }
    }
    if (longest) return *longest;
  }
  const std::size_t n = character_bytes(text);
  if (n == 0) return {utf8_replacement, 1};
  return {text.substr(0, n), n};
}

std::string sentencepiece_model::normalize(std::string_view text) const {
  if (remove_extra_whitespaces_)
    while (!text.empty()) {
      const auto [part, consumed] = normalize_prefix(text);
      if (part != " ") break;
      text.remove_prefix(consumed);
    }
  if (text.empty()) return {};
  const std::string_view space = escape_whitespaces_ ? space_symbol : " ";
  std::string normalized;
  if (!whitespace_as_suffix_ && add_dummy_prefix_) normalized += space;
  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    auto [part, consumed] = normalize_prefix(text);
    while (after_space && part.starts_with(' ')) part.remove_prefix(1);
    for (const char c : part) {
      if (c == ' ')
        normalized += space;
      else
        normalized += c;
    }
    if (!part.empty()) after_space = part.ends_with(' ');
    if (!remove_extra_whitespaces_) after_space = false;
    text.remove_prefix(consumed);
  }
  if (remove_extra_whitespaces_)
    while (normalized.ends_with(space)) normalized.erase(normalized.size() - space.size());
  if (whitespace_as_suffix_ && add_dummy_prefix_) normalized += space;
  return normalized;
}

std::vector<std::string_view> sentencepiece_model::merge_pairs(std::string_view whole) const {
  struct symbol {
    std::size_t begin;
    std::size_t size;  ///< 0: merged into its left neighbour.
    int left;
    int right;
    bool frozen;  ///< User-defined pieces are never merged.
  };
  std::vector<symbol> symbols;
  for (std::size_t at = 0; at < whole.size();) {
    std::size_t n = user_defined_prefix(whole.substr(at));
    const bool frozen = n > 0;
    if (n == 0) n = std::max<std::size_t>(1, character_bytes(whole.substr(at)));
    const int index = static_cast<int>(symbols.size());
    symbols.push_back({at, n, index - 1, index + 1, frozen});
    at += n;
  }
  if (symbols.empty()) return {};
  symbols.back().right = -1;

  struct merge {
    float score;
    int left;
    int right;
    std::size_t size;
    bool operator<(const merge& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };
  std::priority_queue<merge> agenda;
  // How an unused piece came about; it is taken apart again in the result.
  std::unordered_map<std::string_view, std::pair<std::string_view, std::string_view>> parts;
  const auto propose = [&](int left, int right) {
    if (left < 0 || right < 0) return;
    const symbol& a = symbols[static_cast<std::size_t>(left)];
    const symbol& b = symbols[static_cast<std::size_t>(right)];
    if (a.frozen || b.frozen) return;
    const auto joined = whole.substr(a.begin, a.size + b.size);
    const auto found = mergeable_.find(joined);
    if (found == mergeable_.end()) return;
    const piece& p = pieces_[static_cast<std::size_t>(found->second)];
    agenda.push({p.score, left, right, joined.size()});
    if (p.type == kind::unused)
      parts[joined] = {whole.substr(a.begin, a.size), whole.substr(b.begin, b.size)};
  };
  for (int i = 1; i < static_cast<int>(symbols.size()); ++i) propose(i - 1, i);
  while (!agenda.empty()) {
    const merge best = agenda.top();
    agenda.pop();
    symbol& a = symbols[static_cast<std::size_t>(best.left)];
    symbol& b = symbols[static_cast<std::size_t>(best.right)];
    if (a.size == 0 || b.size == 0 || a.size + b.size != best.size) continue;
    a.size += b.size;
    b.size = 0;
    a.right = b.right;
    if (b.right >= 0) symbols[static_cast<std::size_t>(b.right)].left = best.left;
    propose(a.left, best.left);
    propose(best.left, a.right);
  }

  std::vector<std::string_view> result;
  const auto keep = [&](const auto& self, std::string_view part) -> void {
    const auto found = mergeable_.find(part);
    if (found != mergeable_.end() &&
        pieces_[static_cast<std::size_t>(found->second)].type == kind::unused) {
      if (const auto split = parts.find(part); split != parts.end()) {
        const auto halves = split->second;
        self(self, halves.first);
        self(self, halves.second);
        return;
      }
    }
    result.push_back(part);
  };
  for (int i = 0; i >= 0; i = symbols[static_cast<std::size_t>(i)].right) {
    const symbol& s = symbols[static_cast<std::size_t>(i)];
    keep(keep, whole.substr(s.begin, s.size));
  }
  return result;
}

std::vector<std::string_view> sentencepiece_model::likeliest_parts(std::string_view whole) const {
  // The best way to every place, from the left: what follows does not depend on how it came there.
  // Numbers are rounded where the library rounds them, so that ties fall the same way.
  constexpr float unknown_penalty = 10;
  struct way {
    float score = 0;
    std::ptrdiff_t from = -1;
  };
  std::vector<way> best(whole.size() + 1);
  best[0].from = 0;
  const auto offer = [&](std::size_t from, std::size_t to, double score) {
    const double sum = score + best[from].score;
    if (best[to].from < 0 || sum > best[to].score)
      best[to] = {static_cast<float>(sum), static_cast<std::ptrdiff_t>(from)};
  };
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t character = std::max<std::size_t>(1, character_bytes(whole.substr(at)));
    bool has_character = false;
    const std::size_t most = std::min(longest_piece_, whole.size() - at);
    for (std::size_t n = 1; n <= most; ++n) {
      const auto found = mergeable_.find(whole.substr(at, n));
      if (found == mergeable_.end()) continue;
      const piece& p = pieces_[static_cast<std::size_t>(found->second)];
      if (p.type == kind::unused) continue;
      // A user-defined piece is to win against whatever it could be divided into.
      const double score = p.type == kind::user_defined ? static_cast<float>(n) * most_score_ - 0.1
                                                        : static_cast<double>(p.score);
      offer(at, at + n, score);
      has_character = has_character || n == character;
    }
    if (!has_character) {
      const float sum = least_score_ - unknown_penalty + best[at].score;
      way& next = best[at + character];
      if (next.from < 0 || sum > next.score) next = {sum, static_cast<std::ptrdiff_t>(at)};
    }
    at += character;
  }
  std::vector<std::string_view> result;
  for (std::size_t end = whole.size(); end > 0;) {
    const auto from = static_cast<std::size_t>(best[end].from);
    result.push_back(whole.substr(from, end - from));
    end = from;
  }
  std::ranges::reverse(result);
  return result;
}

std::vector<std::int32_t> sentencepiece_model::encode(std::string_view text) const {
  const std::string normalized = normalize(text);
  std::vector<std::int32_t> ids;
  bool after_unknown = false;
  for (const auto part :
       model_type_ == unigram ? likeliest_parts(normalized) : merge_pairs(normalized)) {
    const auto found = mergeable_.find(part);
    if (found != mergeable_.end() &&
        !(model_type_ == unigram &&
          pieces_[static_cast<std::size_t>(found->second)].type == kind::unused)) {
      ids.push_back(found->second);
      after_unknown = false;
    } else if (byte_fallback_) {
      for (const char c : part) ids.push_back(byte_ids_[static_cast<unsigned char>(c)]);
    } else if (!after_unknown) {
      ids.push_back(unknown_id_);  // A run of unknown characters is one piece.
      after_unknown = true;
    }
  }
  return ids;
}

bool sentencepiece_model::begins_text(std::int32_t id) const {
  const piece& p = pieces_[static_cast<std::size_t>(id)];
  if (p.type == kind::control) return false;
  return !remove_extra_whitespaces_ || p.type == kind::byte || p.type == kind::unknown ||
         p.text != space_symbol;
}

std::string sentencepiece_model::decode(const std::vector<std::int32_t>& ids,
                                        text_place place) const {
  std::string text;
  std::string bytes;
  const auto flush = [&] {
    for (std::string_view rest = bytes; !rest.empty();) {
      const std::size_t n = character_bytes(rest);
      text += n > 0 ? rest.substr(0, n) : utf8_replacement;
      rest.remove_prefix(std::max<std::size_t>(n, 1));
    }
    bytes.clear();
  };
  bool at_start = place == text_place::beginning;
  bool space_taken = false;
  for (const std::int32_t id : ids) {
    const piece& p = pieces_[static_cast<std::size_t>(id)];
    if (p.type == kind::byte) {
      bytes += static_cast<char>(*byte_of(p.text));
      continue;
    }
    flush();
    // The space that encoding put before the text is taken away again.
    if (space_taken || !text.empty()) at_start = false;
    space_taken = false;
    if (p.type == kind::control) continue;
    if (p.type == kind::unknown) {
      text += unknown_surface_;
      continue;
    }
    std::string_view part = p.text;
    if (at_start && (add_dummy_prefix_ || remove_extra_whitespaces_) &&
        part.starts_with(space_symbol)) {
      part.remove_prefix(space_symbol.size());
      space_taken = !remove_extra_whitespaces_;
    }
    while (!part.empty()) {
      if (part.starts_with(space_symbol)) {
        text += ' ';
        part.remove_prefix(space_symbol.size());
      } else {
        text += part.front();
        part.remove_prefix(1);
      }
    }
  }
  flush();
  return text;
}

}  // namespace ordermoe::model
