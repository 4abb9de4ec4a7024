#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

/// Strict reading of one trace line: the fields in the order in which they are written, each once,
/// no space, whole numbers in their one decimal form. So a line reads back only if the actors could
/// have written it.
namespace ordermoe::trace {

/// The type of a line, or nothing where it does not open with one.
inline std::string_view line_type(std::string_view text) {
  constexpr std::string_view opening = R"({"type":")";
  if (!text.starts_with(opening)) return {};
  const auto rest = text.substr(opening.size());
  const auto end = rest.find('"');
  return end == std::string_view::npos ? std::string_view{} : rest.substr(0, end);
}

/// Remembers the first problem; every getter after it returns a harmless value, so that whoever
/// reads asks once, with `end`.
class line_fields {
 public:
  /// The text must open with its type.
  explicit line_fields(std::string_view text)
      : text_(text), at_(std::string_view(R"({"type":"")").size() + line_type(text).size()) {}

  template <std::integral T>
  T integer(std::string_view name, T low = std::numeric_limits<T>::lowest(),
            T high = std::numeric_limits<T>::max()) {
    open(name);
    return element<T>(name, low, high);
  }

  /// A time, a count or a size: zero or more, far from overflow.
  std::int64_t amount(std::string_view name) {
    return integer<std::int64_t>(name, 0, std::int64_t{1} << 60);
  }

  bool boolean(std::string_view name) {
    open(name);
    if (take("true")) return true;
    if (!take("false")) refuse(name, "true or false");
    return false;
  }

  /// Lower-case letters, digits and underscores in quotes.
  std::string_view word(std::string_view name) {
    open(name);
    if (failed()) return {};
    const auto begin = at_ + 1;
    auto end = begin;
    while (end < text_.size() && is_word(text_[end])) ++end;
    if (at_ >= text_.size() || text_[at_] != '"' || end >= text_.size() || text_[end] != '"') {
      refuse(name, "a word in quotes");
      return {};
    }
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }

  float number(std::string_view name) {
    open(name);
    return decimal<float>(name);
  }

  double real(std::string_view name) {
    open(name);
    return decimal<double>(name);
  }

  /// An array of so many.
  std::vector<double> reals(std::string_view name, std::size_t n) {
    std::vector<double> found;
    open_array(name);
    for (std::size_t i = 0; i < n && !failed(); ++i) {
      if (i > 0 && !take(",")) refuse(name, "a comma between numbers");
      if (!failed()) found.push_back(decimal<double>(name));
    }
    if (!failed() && !take("]")) refuse(name, "the end of the array");
    return found;
  }

  /// An array of any number of distinct whole numbers.
  std::vector<std::uint64_t> ids(std::string_view name) {
    std::vector<std::uint64_t> found;
    open_array(name);
    while (!failed() && !take("]")) {
      if (!found.empty() && !take(",")) {
        refuse(name, "a comma or the end of the array");
        break;
      }
      found.push_back(element<std::uint64_t>(name, 0, std::numeric_limits<std::uint64_t>::max()));
    }
    return found;
  }

  /// The member that ends the line: the text of a JSON value, not looked into.
  std::string_view last_value(std::string_view name) {
    open(name);
    if (failed()) return {};
    const auto value = text_.substr(at_, text_.size() - at_ - (text_.ends_with('}') ? 1 : 0));
    at_ += value.size();
    return value;
  }

  /// An array of exactly `count` numbers, appended.
  void numbers(std::string_view name, std::size_t count, std::vector<float>& into) {
    open_array(name);
    for (std::size_t i = 0; i < count && !failed(); ++i) {
      if (i > 0 && !take(",")) return refuse(name, fmt::format("{} numbers", count));
      into.push_back(decimal<float>(name));
    }
    if (!failed() && !take("]")) refuse(name, fmt::format("{} numbers", count));
  }

  void amounts(std::string_view name, std::size_t count, std::vector<std::int64_t>& into) {
    open_array(name);
    for (std::size_t i = 0; i < count && !failed(); ++i) {
      if (i > 0 && !take(",")) return refuse(name, fmt::format("{} whole numbers", count));
      into.push_back(element<std::int64_t>(name, 0, std::int64_t{1} << 60));
    }
    if (!failed() && !take("]")) refuse(name, fmt::format("{} whole numbers", count));
  }

  /// Whether this field comes next.
  bool has(std::string_view name) const {
    const auto rest = text_.substr(std::min(at_, text_.size()));
    return !failed() && rest.starts_with(",\"") && rest.substr(2).starts_with(name) &&
           rest.substr(2 + name.size()).starts_with("\":");
  }

  /// True where every field was read and nothing follows.
  bool end() {
    if (!failed() && (!take("}") || at_ != text_.size()))
      refuse("end", "} and the end of the line");
    return !failed();
  }

  bool failed() const { return !problem_.empty(); }
  const std::string& problem() const { return problem_; }

 private:
  static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  }

  bool take(std::string_view literal) {
    if (failed() || text_.substr(at_, literal.size()) != literal) return false;
    at_ += literal.size();
    return true;
  }

  void open(std::string_view name) {
    if (failed()) return;
    const auto before = at_;
    if (take(",\"") && take(name) && take("\":")) return;
    at_ = before;
    refuse(name, fmt::format(",\"{}\":", name));
  }

  void open_array(std::string_view name) {
    open(name);
    if (!failed() && !take("[")) refuse(name, "an array");
  }

  template <std::integral T>
  T element(std::string_view name, T low, T high) {
    if (failed()) return 0;
    const auto* begin = text_.data() + at_;
    const auto* end = text_.data() + text_.size();
    T value = 0;
    const auto [rest, code] = std::from_chars(begin, end, value);
    const auto digits = *begin == '-' ? begin + 1 : begin;
    const bool canonical = code == std::errc{} && (*digits != '0' || rest == begin + 1);
    if (!canonical || value < low || value > high) {
      refuse(name, fmt::format("a whole number from {} to {}", low, high));
      return 0;
    }
    at_ += static_cast<std::size_t>(rest - begin);
    return value;
  }

  /// In the shortest form that reads back to the same number: the only one that is written.
  template <std::floating_point T>
  T decimal(std::string_view name) {
    if (failed()) return 0;
    const auto* begin = text_.data() + at_;
    T value = 0;
    const auto [rest, code] = std::from_chars(begin, text_.data() + text_.size(), value);
    const auto size = static_cast<std::size_t>(rest - begin);
    std::array<char, 32> shortest;
    const auto written = fmt::format_to_n(shortest.data(), shortest.size(), "{}", value).size;
    if (code != std::errc{} || !std::isfinite(value) || written > shortest.size() ||
        std::string_view(shortest.data(), written) != text_.substr(at_, size)) {
      refuse(name, "a finite number in its shortest form");
      return 0;
    }
    at_ += size;
    return value;
  }

  void refuse(std::string_view name, std::string_view expected) {
    if (failed()) return;
    problem_ = fmt::format("field {} at column {}: found '{}', expected {}", name, at_ + 1,
                           text_.substr(std::min(at_, text_.size()), 24), expected);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::string problem_;
};

}  // namespace ordermoe::trace
