#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/training/corpus.hpp"

namespace ordermoe::training {

/// Text to ids with a tokenizer.model held in memory; adds neither beginning nor end.
class piece_encoder {
 public:
  static result<std::shared_ptr<const piece_encoder>> from_bytes(std::string tokenizer_model);
  virtual ~piece_encoder() = default;
  virtual std::size_t vocab_size() const = 0;
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
};

inline constexpr std::int32_t bos_id = 1;
inline constexpr std::int32_t eos_id = 2;

/// Where training rows come from. Row (step, index) is a function of the seed, the step and the
/// index alone, so a run resumes without any position to remember.
class text_source {
 public:
  virtual ~text_source() = default;
  /// Fills `row` with ids of training text.
  virtual void fill(std::uint64_t step, std::uint64_t index, std::span<std::int64_t> row) const = 0;
  /// Ids of training text there are; 0 where it has no end.
  virtual std::uint64_t size() const { return 0; }
  /// Held-out ids, documents with their beginning and end, at most `limit`.
  virtual std::vector<std::int32_t> held_out(std::size_t limit) const = 0;
  /// Texts of `longest` ids at most, at most `limit` in all, from all over the whole, that are in
  /// neither: what the model is calibrated on.
  virtual std::vector<std::vector<std::int32_t>> left_out(std::size_t limit,
                                                          std::size_t longest) const = 0;
};

/// Rows of whole synthetic documents (the last one cut): <bos> document <eos> <bos> document ...
std::unique_ptr<text_source> synthetic_source(std::shared_ptr<const piece_encoder> pieces,
                                              std::uint64_t seed);

/// Rows at random places of a user's text. The last tenth of its lines is held out, and of the rest
/// a twentieth is left out, 48 KB at most, in pieces of a kilobyte that are spread over it.
/// Error: out_of_range where the text is too short to hold one row of `row_length` and as much
/// again.
result<std::unique_ptr<text_source>> user_source(std::shared_ptr<const piece_encoder> pieces,
                                                 const std::string& text, std::size_t row_length,
                                                 std::uint64_t seed);

/// Ids of a split's documents in order, at most `limit`.
std::vector<std::int32_t> corpus_ids(const piece_encoder& pieces, split part, std::uint64_t seed,
                                     std::size_t limit);

}  // namespace ordermoe::training
