#include "model/training/text_source.hpp"

#include <algorithm>

#include <fmt/format.h>

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

 private:
  std::shared_ptr<const piece_encoder> pieces_;
  std::uint64_t seed_;
};

class user final : public text_source {
 public:
  std::vector<std::int32_t> training, kept_back;
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
  auto cut = text.find('\n', text.size() - text.size() / 10);
  cut = cut == std::string::npos ? text.size() - text.size() / 10 : cut + 1;
  auto source = std::make_unique<user>();
  source->seed = seed;
  source->training = {bos_id};
  for (const auto id : pieces->encode(std::string_view(text).substr(0, cut)))
    source->training.push_back(id);
  source->kept_back = {bos_id};
  for (const auto id : pieces->encode(std::string_view(text).substr(cut)))
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
