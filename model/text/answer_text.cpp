#include "model/text/answer_text.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

namespace ordermoe::model {

answer_text::answer_text(std::shared_ptr<const tokenizer> tokens,
                         std::vector<std::string> stop_strings,
                         std::span<const std::int32_t> before)
    : stop_strings_(std::move(stop_strings)) {
  if (tokens) decoder_ = std::make_unique<streaming_decoder>(std::move(tokens), before);
  std::erase(stop_strings_, "");
}

std::string answer_text::push(std::int32_t id) {
  if (!decoder_ || stopped_) return {};
  add(decoder_->push(id));
  return hand_out(text_.size() - held_back());
}

std::string answer_text::finish() {
  if (decoder_ && !stopped_) add(decoder_->finish());
  return hand_out(text_.size());
}

void answer_text::add(std::string piece) {
  // A stop string may begin in what was held back.
  const auto from = handed_out_;
  text_ += piece;
  auto first = std::string::npos;
  for (const auto& stop : stop_strings_) first = std::min(first, text_.find(stop, from));
  if (first == std::string::npos) return;
  text_.resize(first);
  stopped_ = true;
}

std::string answer_text::hand_out(std::size_t up_to) {
  const auto from = std::exchange(handed_out_, std::max(handed_out_, up_to));
  return text_.substr(from, handed_out_ - from);
}

std::size_t answer_text::held_back() const {
  if (stopped_) return 0;
  const auto open = std::string_view(text_).substr(handed_out_);
  std::size_t most = 0;
  for (const auto& stop : stop_strings_)
    for (auto n = std::min(open.size(), stop.size() - 1); n > most; --n)
      if (open.ends_with(std::string_view(stop).substr(0, n))) {
        most = n;
        break;
      }
  return most;
}

}  // namespace ordermoe::model
