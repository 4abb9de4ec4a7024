#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/text/tokenizer.hpp"

namespace ordermoe::model {

/// The text of an answer while its ids come: handed out as soon as it is certain, and cut before the
/// first stop string in it.
///
/// Text that may be the beginning of a stop string is held back until more is known.
class answer_text {
 public:
  /// `tokens` may be null: the answer has no text then, and no stop string is ever found.
  /// `before`: the ids that the answer goes on behind (streaming_decoder).
  answer_text(std::shared_ptr<const tokenizer> tokens, std::vector<std::string> stop_strings,
              std::span<const std::int32_t> before = {});

  /// Adds an id. Returns the text that can be handed out now and was not before.
  std::string push(std::int32_t id);
  /// The answer is over. Returns what is left of its text.
  std::string finish();

  /// Whether a stop string was found; nothing is handed out any more.
  bool stopped() const { return stopped_; }
  /// All text that is certain or held back, without a stop string.
  const std::string& text() const { return text_; }

 private:
  void add(std::string piece);
  std::string hand_out(std::size_t up_to);
  /// Bytes at the end of the text that a stop string may begin with.
  std::size_t held_back() const;

  std::unique_ptr<streaming_decoder> decoder_;
  std::vector<std::string> stop_strings_;
  std::string text_;
  std::size_t handed_out_ = 0;
  bool stopped_ = false;
};

}  // namespace ordermoe::model
