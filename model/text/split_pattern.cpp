#include "model/text/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "model/text/utf8.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t most_expression_bytes = std::size_t{1} << 14;
constexpr std::uint32_t most_nesting = 64;
constexpr std::uint32_t least_step_limit = 10'000'000;
constexpr std::uint64_t steps_per_byte = 64;
constexpr std::uint32_t most_heap_kib = std::uint32_t{1} << 16;

/// White space as Oniguruma (and the Unicode standard) has it, inside a set.
constexpr std::string_view white_space = R"(\p{Z}\x{9}-\x{d}\x{85})";

constexpr std::array<std::string_view, 37> categories = {
    "L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc", "Me", "N",  "Nd", "Nl",
    "No", "P",  "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk",
    "So", "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co", "Cn", "Cs"};
constexpr std::array<std::string_view, 4> scripts = {"Han", "Hangul", "Hiragana", "Katakana"};
constexpr std::array<std::string_view, 7> group_openings = {"(?:",  "(?i:", "(?=", "(?!",
                                                            "(?<=", "(?<!", "(?>"};
/// Pairs of letters that one character folds to, as U+FB05 does to "st".
constexpr std::array<std::string_view, 5> folding_pairs = {"ff", "fi", "fl", "ss", "st"};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Rewrites an expression from Oniguruma's syntax to PCRE2's; see the header.
class translation {
 public:
  explicit translation(std::string_view expression) : whole_(expression), rest_(expression) {}

  result<std::string> run() {
    while (!rest_.empty() && !problem_) item();
    if (!problem_ && !open_.empty()) refuse("(", "it to be closed", errc::malformed);
    if (problem_) return *problem_;
    return std::move(made_);
  }

 private:
  void refuse(std::string_view found, std::string_view expected, errc code = errc::unsupported) {
    if (problem_) return;
    problem_ = error{code, fmt::format("found '{}' at byte {}, expected {}", found,
                                       whole_.size() - rest_.size(), expected)};
  }

  char next() const { return rest_.empty() ? '\0' : rest_.front(); }

  void take(std::size_t n) {
    made_ += rest_.substr(0, n);
    rest_.remove_prefix(n);
  }

  bool in_caseless() const { return !open_.empty() && open_.back().caseless; }

  void item() {
    const char c = next();
    const char before = previous_letter_;
    previous_letter_ = '\0';
    switch (c) {
      case '(':
        return open();
      case ')':
        return close();
      case '|':
        return take(1);
      case '[':
        if (in_caseless()) return refuse("[", "no set where letter case is ignored");
        set();
        return quantifier();
      case '\\': {
        if (in_caseless() && rest_.substr(1, 1) == "x")
          return refuse("\\x", "no character code where letter case is ignored");
        std::optional<char32_t> one;
        escape(made_, false, one);
        return quantifier();
      }
      case '.':
        take(1);
        return quantifier();
      case '^':
      case '$':
        return refuse(std::string(1, c), "an expression without anchors");
      case '*':
      case '+':
      case '?':
      case '{':
        return refuse(std::string(1, c), "something before it that can be repeated",
                      errc::malformed);
      default:
        return character(before);
    }
  }

  void character(char before) {
    const std::size_t n = character_bytes(rest_);
    if (n == 0) return refuse("a byte that is no UTF-8", "UTF-8", errc::malformed);
    if (in_caseless()) {
      if (n > 1) return refuse(rest_.substr(0, n), "only ASCII where letter case is ignored");
      const std::array<char, 2> pair = {before, lower(next())};
      if (std::ranges::find(folding_pairs, std::string_view(pair.data(), 2)) != folding_pairs.end())
        return refuse(std::string_view(pair.data(), 2),
                      "no letters that one character folds to where letter case is ignored");
    }
    const char letter = n == 1 && is_letter(next()) ? lower(next()) : '\0';
    take(n);
    const std::size_t size = made_.size();
    quantifier();
    // A repeated letter may stand beside itself.
    if (made_.size() == size)
      previous_letter_ = letter;
    else if (in_caseless())
      refuse(std::string(1, next()), "no repeated letter where letter case is ignored");
  }

  void open() {
    if (open_.size() == most_nesting)
      return refuse("(", fmt::format("at most {} groups inside each other", most_nesting));
    if (in_caseless()) return refuse("(", "no group where letter case is ignored");
    if (!rest_.starts_with("(?")) {
      if (rest_.starts_with("(*")) return refuse("(*", "a group without a verb");
      open_.push_back({});
      return take(1);
    }
    for (const std::string_view opening : group_openings)
      if (rest_.starts_with(opening)) {
        open_.push_back({opening == "(?i:", opening.ends_with('=') || opening.ends_with('!')});
        return take(opening.size());
      }
    refuse(rest_.substr(0, 3), fmt::format("one of {}", fmt::join(group_openings, " ")));
  }

  void close() {
    if (open_.empty()) return refuse(")", "a '(' before it", errc::malformed);
    const group closed = open_.back();
    open_.pop_back();
    take(1);
    const std::size_t size = made_.size();
    quantifier();
    if (closed.looks_around && made_.size() != size)
      refuse(made_.substr(size), "no repetition of what only looks around");
  }

  void quantifier() {
    if (problem_ || rest_.empty()) return;
    const char c = next();
    if (c == '*' || c == '+' || c == '?') {
      take(1);
      if (next() == '?' || next() == '+') take(1);
    } else if (c == '{') {
      if (!braces()) return;
    } else {
      return;
    }
    const char more = next();
    if (more == '*' || more == '+' || more == '?' || more == '{')
      refuse(std::string(1, more), "at most one repetition of the same thing");
  }

  /// {n}, {n,} or {n,m}, the latter two also with '?'.
  bool braces() {
    std::size_t i = 1;
    const auto number = [&]() -> std::optional<int> {
      int value = 0;
      const std::size_t begin = i;
      while (i < rest_.size() && is_digit(rest_[i]) && i - begin < 5)
        value = value * 10 + (rest_[i++] - '0');
      if (i == begin) return std::nullopt;
      return value;
    };
    const auto low = number();
    std::optional<int> high = low;
    bool fixed = true;
    if (low && i < rest_.size() && rest_[i] == ',') {
      ++i;
      high = number().value_or(1000);
      fixed = false;
    }
    if (!low || i >= rest_.size() || rest_[i] != '}' || *low > *high || *high > 1000) {
      refuse("{", "a repetition such as {1,3}, of at most 1000");
      return false;
    }
    take(i + 1);
    if (!fixed && next() == '?') take(1);
    return true;
  }

  /// `one` is the single character that the escape stands for, where it does.
  void escape(std::string& out, bool inside_set, std::optional<char32_t>& one) {
    one.reset();
    const char c = rest_.size() > 1 ? rest_[1] : '\0';
    const auto simple = [&](char32_t code_point) {
      one = code_point;
      out += fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(code_point));
      rest_.remove_prefix(2);
    };
    switch (c) {
      case 't':
        return simple('\t');
      case 'n':
        return simple('\n');
      case 'v':
        return simple('\v');
      case 'f':
        return simple('\f');
      case 'r':
        return simple('\r');
      case 's':
        out += inside_set ? std::string(white_space) : fmt::format("[{}]", white_space);
        return rest_.remove_prefix(2);
      case 'S':
        if (inside_set) return refuse("\\S", "no complement inside a set");
        out += fmt::format("[^{}]", white_space);
        return rest_.remove_prefix(2);
      case 'd':
      case 'D':
        out += fmt::format("\\{}{{Nd}}", c == 'd' ? 'p' : 'P');
        return rest_.remove_prefix(2);
      case 'p':
      case 'P':
        return property(out);
      case 'x':
        return hexadecimal(out, one);
      default:
        break;
    }
    if (c > ' ' && c < 0x7f && !is_letter(c) && !is_digit(c))
      return simple(static_cast<char32_t>(c));
    refuse(rest_.substr(0, 2),
           "an escape among \\t \\n \\v \\f \\r \\s \\S \\d \\D \\p{..} \\P{..} "
           "\\x.. \\x{..} or a sign");
  }

  void property(std::string& out) {
    const std::size_t end = rest_.substr(0, 16).find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == std::string_view::npos)
      return refuse(rest_.substr(0, 3), "a property such as \\p{L}");
    const std::string_view name = rest_.substr(3, end - 3);
    if (std::ranges::find(categories, name) != categories.end())
      out += rest_.substr(0, end + 1);
    else if (std::ranges::find(scripts, name) != scripts.end())
      out += fmt::format("\\{}{{sc:{}}}", rest_[1], name);
    else
      return refuse(
          rest_.substr(0, end + 1),
          fmt::format("a general category (L, Lu, ...) or one of {}", fmt::join(scripts, ", ")));
    rest_.remove_prefix(end + 1);
  }

  void hexadecimal(std::string& out, std::optional<char32_t>& one) {
    const bool braced = rest_.size() > 2 && rest_[2] == '{';
    std::size_t i = braced ? 3 : 2;
    const std::size_t begin = i;
    std::uint32_t value = 0;
    while (i < rest_.size() && i - begin < (braced ? 6u : 2u)) {
      const char c = lower(rest_[i]);
      if (is_digit(c))
        value = value * 16 + static_cast<std::uint32_t>(c - '0');
      else if (c >= 'a' && c <= 'f')
        value = value * 16 + static_cast<std::uint32_t>(c - 'a' + 10);
      else
        break;
      ++i;
    }
    const bool closed = !braced || (i < rest_.size() && rest_[i] == '}');
    const bool character = value <= 0x10ffff && (value < 0xd800 || value > 0xdfff);
    if (i == begin || !closed || !character || (!braced && (i != begin + 2 || value > 0x7f)))
      return refuse(rest_.substr(0, std::min<std::size_t>(i, rest_.size())),
                    "a character such as \\x41 or \\x{1f600}");
    one = value;
    out += fmt::format("\\x{{{:x}}}", value);
    rest_.remove_prefix(i + (braced ? 1 : 0));
  }

  void set() {
    std::string out = "[";
    rest_.remove_prefix(1);
    if (next() == '^') {
      out += '^';
      rest_.remove_prefix(1);
    }
    if (next() == ']') return refuse("]", "a set with something in it");
    std::optional<char32_t> low;  ///< What a range may begin with.
    bool first = true;
    while (next() != ']') {
      if (rest_.empty()) return refuse("[", "a set that is closed with ]", errc::malformed);
      if (next() == '[' || rest_.starts_with("&&"))
        return refuse(rest_.substr(0, rest_.starts_with("&&") ? 2 : 1),
                      "no set inside a set; escape a literal sign");
      if (next() == '-') {
        if (first || rest_.substr(1, 1) == "]") {
          out += "\\-";
          rest_.remove_prefix(1);
          low.reset();
        } else if (low) {
          rest_.remove_prefix(1);
          out += '-';
          if (next() == '[' || next() == '-' || rest_.empty())
            return refuse(rest_.substr(0, 1), "the end of a range; escape a literal sign");
          std::optional<char32_t> high;
          member(out, high);
          if (problem_) return;
          if (!high || *high < *low)
            return refuse("-", "a range between two characters in their order");
          low.reset();
        } else {
          return refuse("-", "a range between two characters, or '\\-' for the sign itself");
        }
      } else {
        member(out, low);
      }
      if (problem_) return;
      first = false;
    }
    rest_.remove_prefix(1);
    made_ += out + "]";
  }

  void member(std::string& out, std::optional<char32_t>& one) {
    if (next() == '\\') return escape(out, true, one);
    const std::size_t n = character_bytes(rest_);
    if (n == 0) return refuse("a byte that is no UTF-8", "UTF-8", errc::malformed);
    one = first_code_point(rest_);
    out += fmt::format("\\x{{{:x}}}", static_cast<std::uint32_t>(*one));
    rest_.remove_prefix(n);
  }

  std::string_view whole_;
  std::string_view rest_;
  std::string made_;
  struct group {
    bool caseless = false;
    bool looks_around = false;
  };
  std::vector<group> open_;
  char previous_letter_ = '\0';
  std::optional<error> problem_;
};

struct free_pcre2 {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};
template <class T>
using owned = std::unique_ptr<T, free_pcre2>;

}  // namespace

struct split_pattern::compiled {
  owned<pcre2_code> code;
};

result<split_pattern> split_pattern::compile(std::string_view expression) {
  if (expression.empty())
    return error{errc::malformed, "found an empty expression, expected a regular expression"};
  if (expression.size() > most_expression_bytes)
    return error{errc::out_of_range,
                 fmt::format("found an expression of {} bytes, expected at most {}",
                             expression.size(), most_expression_bytes)};
  auto translated = translation(expression).run();
  if (!translated) return translated.error();

  const owned<pcre2_compile_context> context(pcre2_compile_context_create(nullptr));
  ORDERMOE_CHECK(context != nullptr, "no memory for a regular expression");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), most_nesting);
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto content = std::make_shared<compiled>();
  content->code.reset(pcre2_compile(
      reinterpret_cast<PCRE2_SPTR>(translated->data()), translated->size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get()));
  if (content->code == nullptr) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    return error{errc::malformed,
                 fmt::format("found an expression that PCRE2 refuses ({}), expected a regular "
                             "expression",
                             reinterpret_cast<const char*>(message.data()))};
  }
  std::uint32_t matches_empty = 0;
  pcre2_pattern_info(content->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0)
    return error{errc::unsupported,
                 "found an expression that can match an empty text, expected one that cannot"};
  // Where there is no compiler for this machine, matching interprets: the same pieces, slower.
  pcre2_jit_compile(content->code.get(), PCRE2_JIT_COMPLETE);
  return split_pattern(std::move(content));
}

void split_pattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  if (text.empty()) return;
  const owned<pcre2_match_data> data(pcre2_match_data_create(1, nullptr));
  const owned<pcre2_match_context> context(pcre2_match_context_create(nullptr));
  ORDERMOE_CHECK(data != nullptr && context != nullptr, "no memory for matching");
  pcre2_set_match_limit(context.get(),
                        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
                            steps_per_byte * text.size(), least_step_limit, UINT32_MAX)));
  pcre2_set_heap_limit(context.get(), most_heap_kib);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const pcre2_code* code = code_->code.get();
  std::size_t at = 0;
  while (at < text.size()) {
    int found =
        pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK, data.get(), context.get());
    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
      found = pcre2_match(code, subject, text.size(), at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                          data.get(), context.get());
    if (found < 0) break;  // No further match, or the search gave up.
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(data.get());
    const std::size_t begin = bounds[0];
    const std::size_t end = bounds[1];
    ORDERMOE_CHECK(begin >= at && end > begin && end <= text.size(), "a match is out of place");
    if (begin > at) pieces.push_back(text.substr(at, begin - at));
    pieces.push_back(text.substr(begin, end - begin));
    at = end;
  }
  if (at < text.size()) pieces.push_back(text.substr(at));
}

}  // namespace ordermoe::model
