#include "model/text/byte_level_bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

struct alphabet {
  std::array<char32_t, 256> of_byte{};
  std::array<std::int16_t, 0x144> byte_of{};  ///< By code point; -1: no byte.
};

constexpr alphabet make_alphabet() {
  alphabet made;
  for (auto& byte : made.byte_of) byte = -1;
  char32_t other = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    made.of_byte[byte] = printable ? static_cast<char32_t>(byte) : other++;
    made.byte_of[made.of_byte[byte]] = static_cast<std::int16_t>(byte);
  }
  return made;
}

constexpr alphabet byte_alphabet = make_alphabet();

bool occurs_in_utf8(unsigned byte) {
  return byte != 0xc0 && byte != 0xc1 && byte <= 0xf4;
}

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view token) {
  std::string bytes;
  while (!token.empty()) {
    const std::size_t n = character_bytes(token);
    if (n == 0) return std::nullopt;
    const char32_t c = first_code_point(token);
    if (c >= byte_alphabet.byte_of.size() || byte_alphabet.byte_of[c] < 0) return std::nullopt;
    bytes += static_cast<char>(byte_alphabet.byte_of[c]);
    token.remove_prefix(n);
  }
  return bytes;
}

std::string token_of_bytes(std::string_view bytes) {
  std::string token;
  for (const char c : bytes)
    append_utf8(token, byte_alphabet.of_byte[static_cast<unsigned char>(c)]);
  return token;
}

result<byte_level_bpe> byte_level_bpe::make(const std::vector<std::string>& tokens,
                                            const std::vector<merge>& merges, whole_tokens rule) {
  byte_level_bpe made;
  made.byte_ids_.fill(-1);
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    auto bytes = bytes_of_token(tokens[id]);
    if (!bytes || bytes->empty()) continue;
    if (bytes->size() == 1)
      made.byte_ids_[static_cast<unsigned char>(bytes->front())] = static_cast<std::int32_t>(id);
    if (rule == whole_tokens::before_merges)
      made.whole_.emplace(std::move(*bytes), static_cast<std::int32_t>(id));
  }
  for (unsigned byte = 0; byte < 256; ++byte)
    if (occurs_in_utf8(byte) && made.byte_ids_[byte] < 0)
      return error{errc::malformed,
                   fmt::format("found no token '{}' for the byte 0x{:02x}, expected one",
                               token_of_bytes(std::string(1, static_cast<char>(byte))), byte)};
  made.merges_.reserve(merges.size());
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right, joined] = merges[rank];
    const bool is_new =
        made.merges_
            .try_emplace(pair_of(left, right), ranked{static_cast<std::int32_t>(rank), joined})
            .second;
    ORDERMOE_CHECK(is_new, "a pair is merged twice");
  }
  return made;
}

const byte_level_bpe::ranked* byte_level_bpe::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_of(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void byte_level_bpe::encode(std::string_view piece, std::vector<std::int32_t>& ids) const {
  if (!whole_.empty())
    if (const auto found = whole_.find(std::string(piece)); found != whole_.end()) {
      ids.push_back(found->second);
      return;
    }
  ORDERMOE_CHECK(piece.size() < std::numeric_limits<std::int32_t>::max(), "a piece of 2 GiB");
  struct symbol {
    std::int32_t id;  ///< -1: merged into its left neighbour.
    std::int32_t left;
    std::int32_t right;
  };
  struct candidate {
    std::int32_t rank;
    std::int32_t at;
    std::int32_t left_id;
    std::int32_t right_id;
    std::int32_t joined;
    bool operator>(const candidate& other) const {
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto n = static_cast<std::int32_t>(piece.size());
  std::vector<symbol> symbols(piece.size());
  const auto symbol_at = [&](std::int32_t i) -> symbol& {
    return symbols[static_cast<std::size_t>(i)];
  };
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t id =
        byte_ids_[static_cast<unsigned char>(piece[static_cast<std::size_t>(i)])];
    ORDERMOE_CHECK(id >= 0, "a byte that does not occur in UTF-8");
    symbol_at(i) = {id, i - 1, i + 1 < n ? i + 1 : -1};
  }

  std::vector<candidate> agenda;  // A heap, the lowest rank on top.
  const auto candidate_at = [&](std::int32_t at) -> std::optional<candidate> {
    if (at < 0 || symbol_at(at).right < 0) return std::nullopt;
    const std::int32_t left_id = symbol_at(at).id;
    const std::int32_t right_id = symbol_at(symbol_at(at).right).id;
    const ranked* merge = find(left_id, right_id);
    if (merge == nullptr) return std::nullopt;
    return candidate{merge->rank, at, left_id, right_id, merge->joined};
  };
  const auto propose = [&](std::int32_t at) {
    if (const auto proposed = candidate_at(at)) {
      agenda.push_back(*proposed);
      std::ranges::push_heap(agenda, std::greater<>());
    }
  };
  for (std::int32_t i = 0; i + 1 < n; ++i)
    if (const auto proposed = candidate_at(i)) agenda.push_back(*proposed);
  std::ranges::make_heap(agenda, std::greater<>());
  while (!agenda.empty()) {
    std::ranges::pop_heap(agenda, std::greater<>());
    const candidate best = agenda.back();
    agenda.pop_back();
    symbol& left = symbol_at(best.at);
    if (left.id != best.left_id || left.right < 0) continue;  // A neighbour was merged since.
    symbol& right = symbol_at(left.right);
    if (right.id != best.right_id) continue;
    left.id = best.joined;
    left.right = right.right;
    right.id = -1;
    if (left.right >= 0) symbol_at(left.right).left = best.at;
    propose(left.left);
    propose(best.at);
  }
  for (std::int32_t i = n > 0 ? 0 : -1; i >= 0; i = symbol_at(i).right)
    ids.push_back(symbol_at(i).id);
}

}  // namespace ordermoe::model
