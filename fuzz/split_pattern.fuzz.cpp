#include "model/text/split_pattern.hpp"

#include "fuzz/support.hpp"

/// The bytes up to the first line end are an expression, those after it the text to cut. Of that a
/// few only: expressions that backtrack take exponentially long, up to the limit of steps.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace om = ordermoe::model;
  const auto whole = fuzz::text_of(data, size);
  const std::size_t end = whole.find('\n');
  const auto pattern = om::split_pattern::compile(whole.substr(0, end));
  if (!pattern) {
    fuzz::check_refusal(pattern.error(), ", expected ");
    return 0;
  }
  const std::string text = om::replace_ill_formed(
      end == std::string_view::npos ? std::string_view() : whole.substr(end + 1, 24));
  std::vector<std::string_view> pieces;
  pattern->split(text, pieces);
  std::string together;
  for (const auto piece : pieces) {
    ORDERMOE_CHECK(!piece.empty() && fuzz::is_utf8(piece), "a piece that is empty or no UTF-8");
    together += piece;
  }
  ORDERMOE_CHECK(together == text, "the pieces are not the text");
  return 0;
}
