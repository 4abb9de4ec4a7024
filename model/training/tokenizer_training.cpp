#include "model/training/tokenizer_training.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

namespace ordermoe::training {
namespace {

constexpr std::string_view space_symbol = "\xe2\x96\x81";  // U+2581

enum class sign { space, digit, letter, other };

struct character {
  std::string text;
  sign kind;
};

/// UTF-8 characters of a line, spaces as U+2581. A byte that begins no character is left out: byte
/// fallback has it.
std::vector<character> characters_of(const std::string& line) {
  std::vector<character> all;
  for (std::size_t at = 0; at < line.size();) {
    const auto first = static_cast<unsigned char>(line[at]);
    const std::size_t n = first < 0x80    ? 1
                          : first >= 0xf0 ? 4
                          : first >= 0xe0 ? 3
                          : first >= 0xc2 ? 2
                                          : 0;
    bool whole = n > 0 && at + n <= line.size();
    for (std::size_t i = 1; whole && i < n; ++i)
      whole = (static_cast<unsigned char>(line[at + i]) & 0xc0) == 0x80;
    if (!whole) {
      ++at;
      continue;
    }
    if (first == ' ')
      all.push_back({std::string(space_symbol), sign::space});
    else if (first >= '0' && first <= '9')
      all.push_back({line.substr(at, 1), sign::digit});
    else if (n > 1 || (first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z'))
      all.push_back({line.substr(at, n), sign::letter});
    else if (first >= 0x20)
      all.push_back({line.substr(at, 1), sign::other});
    at += n;
  }
  return all;
}

/// Whether a piece may span the place between two neighbouring characters. A space joins what
/// follows it; a run of spaces stays together but for its last.
bool joined(const std::vector<character>& all, std::size_t i) {
  const auto left = all[i].kind, right = all[i + 1].kind;
  if (left == sign::digit || right == sign::digit) return false;
  if (right == sign::space)
    return left == sign::space && i + 2 < all.size() && all[i + 2].kind == sign::space;
  if (left == sign::space) return true;
  return left == right;
}

void put_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}
void put_number(std::string& out, unsigned field, std::uint64_t value) {
  put_varint(out, field << 3);
  put_varint(out, value);
}
void put_bytes(std::string& out, unsigned field, std::string_view bytes) {
  put_varint(out, field << 3 | 2);
  put_varint(out, bytes.size());
  out += bytes;
}

/// The protobuf messages of SentencePiece's model file, by their field numbers.
class model_file {
 public:
  enum class kind { normal = 1, unknown = 2, control = 3, byte = 6 };
  void add(std::string_view text, float score, kind what) {
    std::string piece;
    put_bytes(piece, 1, text);
    put_varint(piece, 2 << 3 | 5);
    const auto bits = std::bit_cast<std::uint32_t>(score);
    for (int i = 0; i < 4; ++i) piece += static_cast<char>(bits >> (8 * i) & 0xff);
    put_number(piece, 3, static_cast<std::uint64_t>(what));
    put_bytes(pieces_, 1, piece);
    ++n_;
  }
  std::string bytes() const {
    std::string trainer, normalizer;
    put_number(trainer, 3, 2);  // model_type: BPE
    put_number(trainer, 4, n_);
    put_number(trainer, 25, 1);                                             // split_digits
    put_number(trainer, 35, 1);                                             // byte_fallback
    put_number(trainer, 40, 0);                                             // unk_id
    put_number(trainer, 41, 1);                                             // bos_id
    put_number(trainer, 42, 2);                                             // eos_id
    put_number(trainer, 43, static_cast<std::uint64_t>(std::int64_t{-1}));  // pad_id
    put_bytes(normalizer, 1, "identity");
    put_number(normalizer, 3, 0);  // add_dummy_prefix
    put_number(normalizer, 4, 0);  // remove_extra_whitespaces
    put_number(normalizer, 5, 1);  // escape_whitespaces
    std::string all = pieces_;
    put_bytes(all, 2, trainer);
    put_bytes(all, 3, normalizer);
    return all;
  }

 private:
  std::string pieces_;
  std::size_t n_ = 0;
};

}  // namespace

result<std::string> train_tokenizer(const std::vector<std::string>& lines,
                                    const tokenizer_options& options) {
  // Words in text order of first appearance, as lists of symbols with a count.
  std::vector<std::string> symbols;
  std::unordered_map<std::string, std::uint32_t> symbol_ids;
  std::vector<std::uint64_t> frequency;
  const auto symbol = [&](const std::string& text) {
    const auto [found, fresh] =
        symbol_ids.emplace(text, static_cast<std::uint32_t>(symbols.size()));
    if (fresh) {
      symbols.push_back(text);
      frequency.push_back(0);
    }
    return found->second;
  };
  std::map<std::vector<std::uint32_t>, std::uint64_t> counted;
  for (const auto& line : lines) {
    const auto all = characters_of(line);
    std::vector<std::uint32_t> word;
    for (std::size_t i = 0; i < all.size(); ++i) {
      word.push_back(symbol(all[i].text));
      ++frequency[word.back()];
      if (i + 1 == all.size() || !joined(all, i)) {
        ++counted[word];
        word.clear();
      }
    }
  }
  if (counted.empty())
    return error{errc::out_of_range,
                 "the training text has no characters; give a text of at least a few kilobytes"};

  constexpr std::size_t fixed_pieces = 3 + 256;
  const std::size_t room =
      options.vocab_size > fixed_pieces ? options.vocab_size - fixed_pieces : 0;
  // The commonest characters become pieces, up to half of the room; the rest goes by bytes.
  std::vector<std::uint32_t> characters(symbols.size());
  for (std::size_t i = 0; i < characters.size(); ++i) characters[i] = static_cast<std::uint32_t>(i);
  std::sort(characters.begin(), characters.end(), [&](auto a, auto b) {
    return frequency[a] != frequency[b] ? frequency[a] > frequency[b] : symbols[a] < symbols[b];
  });
  const std::size_t n_characters =
      std::min(characters.size(), std::max<std::size_t>(room / 2, std::min<std::size_t>(room, 64)));
  std::vector<bool> known(symbols.size(), false);
  for (std::size_t i = 0; i < n_characters; ++i) known[characters[i]] = true;

  std::vector<std::pair<std::vector<std::uint32_t>, std::uint64_t>> words(counted.begin(),
                                                                          counted.end());
  std::vector<std::string> merges;
  while (merges.size() + n_characters < room) {
    std::unordered_map<std::uint64_t, std::uint64_t> pairs;
    for (const auto& [word, count] : words)
      for (std::size_t i = 0; i + 1 < word.size(); ++i)
        if (known[word[i]] && known[word[i + 1]])
          pairs[std::uint64_t{word[i]} << 32 | word[i + 1]] += count;
    std::uint64_t best = 0, most = 1;
    std::string best_text;
    for (const auto& [pair, count] : pairs) {
      if (count < most || count < 2) continue;
      const auto text = symbols[pair >> 32] + symbols[pair & 0xffffffff];
      // Ties: the shorter piece, then the alphabet, then the split; so the order of the table does
      // not matter.
      if (count > most || text.size() < best_text.size() ||
          (text.size() == best_text.size() &&
           (text < best_text || (text == best_text && pair < best)))) {
        best = pair;
        most = count;
        best_text = text;
      }
    }
    if (best_text.empty()) break;
    const bool is_new = symbol_ids.find(best_text) == symbol_ids.end();
    const auto merged = symbol(best_text);
    if (is_new) {
      known.push_back(true);
      merges.push_back(best_text);
    }
    const auto left = static_cast<std::uint32_t>(best >> 32),
               right = static_cast<std::uint32_t>(best & 0xffffffff);
    for (auto& [word, count] : words) {
      std::size_t to = 0;
      for (std::size_t i = 0; i < word.size(); ++i) {
        if (i + 1 < word.size() && word[i] == left && word[i + 1] == right) {
          word[to++] = merged;
          ++i;
        } else {
          word[to++] = word[i];
        }
      }
      word.resize(to);
    }
  }

  model_file file;
  file.add("<unk>", 0, model_file::kind::unknown);
  file.add("<s>", 0, model_file::kind::control);
  file.add("</s>", 0, model_file::kind::control);
  for (int b = 0; b < 256; ++b) file.add(fmt::format("<0x{:02X}>", b), 0, model_file::kind::byte);
  float score = 0;
  for (const auto& text : merges) file.add(text, score--, model_file::kind::normal);
  for (std::size_t i = 0; i < n_characters; ++i)
    file.add(symbols[characters[i]], score--, model_file::kind::normal);
  return file.bytes();
}

}  // namespace ordermoe::training
