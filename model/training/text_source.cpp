#include "model/training/text_source.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "config/random.hpp"
#include "model/text/sentencepiece_model.hpp"

namespace ordermoe::training {
namespace {

class bpe_encoder final : public piece_encoder {
 public:
  explicit bpe_encoder(model::sentencepiece_model content) : content_(std::move(content)) {}
  std::size_t vocab_size() const override { return content_.size(); }
  std::vector<std::int32_t> encode(std::string_view text) const override {
    return content_.encode(text);
  }
  std::string decode(std::span<const std::int32_t> ids) const override {
    return content_.decode({ids.begin(), ids.end()});
  }

 private:
  model::sentencepiece_model content_;
};

/// The first `limit` ids of some texts, in texts of `longest` at most.
std::vector<std::vector<std::int32_t>> cut(const std::vector<std::vector<std::int32_t>>& texts,
                                           std::size_t limit, std::size_t longest) {
  std::vector<std::vector<std::int32_t>> made;
  for (const auto& ids : texts)
    for (std::size_t at = 0; at < ids.size() && limit > 0;) {
      const auto n = std::min({longest, ids.size() - at, limit});
      const auto first = ids.begin() + static_cast<std::ptrdiff_t>(at);
      if (n > 1) made.emplace_back(first, first + static_cast<std::ptrdiff_t>(n));
      at += n;
      limit -= n;
    }
  return made;
}

class synthetic final : public text_source {
 public:
  synthetic(std::shared_ptr<const piece_encoder> pieces, std::uint64_t seed)
      : pieces_(std::move(pieces)), seed_(seed) {}
  void fill(std::uint64_t step, std::uint64_t index, std::span<std::int64_t> row) const override {
    std::size_t at = 0;
    for (std::uint64_t d = 0; at < row.size(); ++d) {
      const auto text =
          make_document(split::train, seed_, mix64(step * 0x10001 + index) + d).text();
      row[at++] = bos_id;
      for (const auto id : pieces_->encode(text))
        if (at < row.size()) row[at++] = id;
      if (at < row.size()) row[at++] = eos_id;
    }
  }
  std::vector<std::int32_t> held_out(std::size_t limit) const override {
    return corpus_ids(*pieces_, split::eval, seed_, limit);
  }
  std::vector<std::vector<std::int32_t>> left_out(std::size_t limit,
                                                  std::size_t longest) const override {
    return cut({corpus_ids(*pieces_, split::calibration, seed_, limit)}, limit, longest);
  }

 private:
  std::shared_ptr<const piece_encoder> pieces_;
  std::uint64_t seed_;
};

struct text_part {
  std::string_view text;
  bool left_out = false;
};

/// Alternately what is trained on and a piece that is left out; both end behind a line where there
/// is one in reach.
std::vector<text_part> parts_of(std::string_view text) {
  constexpr std::size_t piece = 1024, most_left_out = 48 * piece, share = 20;
  const std::size_t n_pieces = std::min(text.size() / share, most_left_out) / piece;
  if (n_pieces == 0) return {{text, false}};
  const auto behind_line = [&](std::size_t at) {
    const auto end = text.find('\n', at);
    return end != std::string_view::npos && end < at + piece / 2 ? end + 1
                                                                 : std::min(at, text.size());
  };
  const std::size_t period = text.size() / n_pieces;
  std::vector<text_part> parts;
  std::size_t at = 0;
  for (std::size_t i = 0; i < n_pieces; ++i) {
    const auto begin = behind_line(i * period + (period - piece) / 2);
    const auto end = behind_line(begin + piece);
    parts.push_back({text.substr(at, begin - at), false});
    parts.push_back({text.substr(begin, end - begin), true});
    at = end;
  }
  parts.push_back({text.substr(at), false});
  return parts;
}

class user final : public text_source {
 public:
  std::vector<std::int32_t> training, kept_back;
  std::vector<std::vector<std::int32_t>> pieces;
  std::uint64_t seed = 0;
  std::uint64_t size() const override { return training.size(); }
  void fill(std::uint64_t step, std::uint64_t index, std::span<std::int64_t> row) const override {
    const auto begin = random_bits(seed, step, index) % (training.size() - row.size() + 1);
    std::copy_n(training.begin() + static_cast<std::ptrdiff_t>(begin), row.size(), row.begin());
  }
  std::vector<std::int32_t> held_out(std::size_t limit) const override {
    return {kept_back.begin(),
            kept_back.begin() + static_cast<std::ptrdiff_t>(std::min(limit, kept_back.size()))};
  }
  std::vector<std::vector<std::int32_t>> left_out(std::size_t limit,
                                                  std::size_t longest) const override {
    return cut(pieces, limit, longest);
  }
};

}  // namespace

result<std::shared_ptr<const piece_encoder>> piece_encoder::from_bytes(
    std::string tokenizer_model) {
  auto content = model::sentencepiece_model::parse(tokenizer_model);
  if (!content) return content.error();
  return std::shared_ptr<const piece_encoder>(std::make_shared<bpe_encoder>(std::move(*content)));
}

std::unique_ptr<text_source> synthetic_source(std::shared_ptr<const piece_encoder> pieces,
                                              std::uint64_t seed) {
  return std::make_unique<synthetic>(std::move(pieces), seed);
}

result<std::unique_ptr<text_source>> user_source(std::shared_ptr<const piece_encoder> pieces,
                                                 const std::string& text, std::size_t row_length,
                                                 std::uint64_t seed) {
  // The cut falls behind a line where there is one, so that no sentence is on both sides.
  const auto tenth = text.size() / 10;
  auto end = text.find('\n', text.size() - tenth);
  if (end != std::string::npos) ++end;
  // Lines may be as long as that.
  if (end == std::string::npos || text.size() - end < tenth / 2) {
    end = text.size() - tenth;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0u) == 0x80u) --end;
  }
  auto source = std::make_unique<user>();
  source->seed = seed;
  source->training = {bos_id};
  for (const auto& [part, left_out] : parts_of(std::string_view(text).substr(0, end))) {
    const auto ids = pieces->encode(part);
    if (left_out)
      source->pieces.push_back(ids);
    else
      source->training.insert(source->training.end(), ids.begin(), ids.end());
  }
  // Those that come first count most where not all are used: in an order of the seed.
  random_stream random(seed, 1);
  for (std::size_t i = source->pieces.size(); i > 1; --i)
    std::swap(source->pieces[i - 1], source->pieces[random.below(i)]);
  source->kept_back = {bos_id};
  for (const auto id : pieces->encode(std::string_view(text).substr(end)))
    source->kept_back.push_back(id);
  if (source->training.size() < 2 * row_length || source->kept_back.size() < 8)
    return error{errc::out_of_range,
                 fmt::format("the text has {} tokens for training and {} held out; at least {} and "
                             "8 are needed; give a longer text",
                             source->training.size(), source->kept_back.size(), 2 * row_length)};
  return std::unique_ptr<text_source>(std::move(source));
}

std::vector<std::int32_t> corpus_ids(const piece_encoder& pieces, split part, std::uint64_t seed,
                                     std::size_t limit) {
  std::vector<std::int32_t> ids;
  for (std::uint64_t d = 0; ids.size() < limit; ++d) {
    ids.push_back(bos_id);
    for (const auto id : pieces.encode(make_document(part, seed, d).text())) ids.push_back(id);
    ids.push_back(eos_id);
  }
  ids.resize(limit);
  return ids;
}

}  // namespace ordermoe::training
