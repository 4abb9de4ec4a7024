#include "model/datasets.hpp"

#include <fmt/format.h>
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <map>

#include "config/files.hpp"
#include "config/json.hpp"

namespace ordermoe::model {

namespace {

constexpr std::size_t most_bytes = std::size_t{1} << 30;

bool is_utf8(std::string_view text) {
  std::int32_t at = 0;
  const auto size = static_cast<std::int32_t>(text.size());
  while (at < size) {
    UChar32 code = 0;
    U8_NEXT(text.data(), at, size, code);
    if (code < 0) return false;
  }
  return true;
}

bool is_space(UChar32 code) {
  return u_isUWhiteSpace(code) || (code >= 0x1c && code <= 0x1f);
}
/// A letter, number or underscore: what has no word boundary beside it.
bool is_word(UChar32 code) {
  return code == '_' || u_isalnum(code) || (U_GET_GC_MASK(code) & U_GC_N_MASK) != 0;
}
bool is_ascii_punctuation(UChar32 code) {
  return code < 0x80 && code > 0x20 && code != 0x7f && !u_isalnum(code);
}

std::vector<std::string_view> words_of(std::string_view normalised) {
  std::vector<std::string_view> words;
  while (!normalised.empty()) {
    const auto end = std::min(normalised.find(' '), normalised.size());
    words.push_back(normalised.substr(0, end));
    normalised.remove_prefix(std::min(end + 1, normalised.size()));
  }
  return words;
}

double f1_of(std::string_view answer, std::string_view accepted) {
  const auto given = words_of(answer), wanted = words_of(accepted);
  if (given.empty() || wanted.empty()) return given.size() == wanted.size() ? 1 : 0;
  std::map<std::string_view, std::size_t> counts;
  for (const auto word : wanted) ++counts[word];
  double common = 0;
  for (const auto word : given) {
    auto& left = counts[word];
    if (left == 0) continue;
    --left;
    ++common;
  }
  if (common == 0) return 0;
  const double precision = common / static_cast<double>(given.size());
  const double recall = common / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

/// The number at the start of the text, if there is one: digits with thousands separators and
/// decimals. `size`: how many characters it takes.
std::optional<std::string> leading_number(std::string_view text, std::size_t& size) {
  std::string number;
  size = 0;
  if (size < text.size() && text[size] == '-') number += text[size++];
  const auto digit = [&](std::size_t i) {
    return i < text.size() && text[i] >= '0' && text[i] <= '9';
  };
  if (!digit(size)) return std::nullopt;
  bool decimals = false;
  for (; size < text.size(); ++size) {
    if (digit(size))
      number += text[size];
    else if (text[size] == ',' && digit(size + 1) && !decimals)
      continue;
    else if (text[size] == '.' && digit(size + 1) && !decimals) {
      decimals = true;
      number += '.';
    } else
      break;
  }
  if (decimals) {
    number.resize(number.find_last_not_of('0') + 1);
    if (number.back() == '.') number.pop_back();
  }
  return number;
}

}  // namespace

result<std::string> read_wikitext(const std::filesystem::path& path) {
  auto text = read_file(path, most_bytes);
  if (!text) return text.error();
  if (!is_utf8(*text))
    return error{
        errc::malformed,
        fmt::format("{}: found bytes that are not UTF-8, expected the raw text", path.string())};
  if (text->find(" <unk> ") != std::string::npos && text->find(" @-@ ") != std::string::npos)
    return error{
        errc::malformed,
        fmt::format("{}: found <unk>, expected the raw edition of WikiText (wiki.test.raw); "
                    "perplexities on the tokenised edition are not comparable",
                    path.string())};
  return text;
}

result<std::vector<question>> read_squad(const std::filesystem::path& path) {
  auto document = read_json(path, most_bytes);
  if (!document) return document.error();
  std::vector<question> questions;
  for (const auto& article : (*document)->root().at("data").items()) {
    const auto title = article.find("title");
    for (const auto& paragraph : article.at("paragraphs").items()) {
      const auto context = paragraph.at("context").string();
      for (const auto& asked : paragraph.at("qas").items()) {
        question made;
        made.id = asked.at("id").string();
        made.prompt = fmt::format("{}{}\nQuestion: {}\nAnswer:",
                                  title ? "Title: " + title->string() + "\n" : std::string(),
                                  context, asked.at("question").string());
        const auto impossible = asked.find("is_impossible");
        if (!impossible || !impossible->boolean()) {
          const auto answers = asked.at("answers");
          for (const auto& answer : answers.items())
            made.answers.push_back(answer.at("text").string());
          if (made.answers.empty())
            answers.refuse("no answer", "one at least, or is_impossible", errc::malformed);
        }
        questions.push_back(std::move(made));
      }
    }
  }
  if (questions.empty()) (*document)->root().at("data").refuse("no question", "one at least");
  return (*document)->finish(std::move(questions));
}

result<std::vector<question>> read_gsm8k(const std::filesystem::path& path) {
  auto text = read_file(path, most_bytes);
  if (!text) return text.error();
  std::vector<question> problems;
  std::size_t number = 0;
  for (std::size_t start = 0; start < text->size();) {
    const auto end = std::min(text->find('\n', start), text->size());
    const auto line = std::string_view(*text).substr(start, end - start);
    start = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    auto document = json_document::parse(line, fmt::format("{}:{}", path.string(), number));
    if (!document) return document.error();
    const auto root = (*document)->root();
    question made;
    made.id = std::to_string(number);
    made.prompt = "Question: " + root.at("question").string() + "\nAnswer:";
    const auto solution = root.at("answer").string();
    if (solution.find("####") == std::string::npos)
      root.at("answer").refuse("no ####", "a solution that ends in #### and a number",
                               errc::malformed);
    else if (auto answer = gsm8k_answer(solution))
      made.answers.push_back(std::move(*answer));
    else
      root.at("answer").refuse("no number after ####", "one", errc::malformed);
    if (auto good = (*document)->outcome(); !good) return good.error();
    problems.push_back(std::move(made));
  }
  if (problems.empty())
    return error{errc::malformed,
                 fmt::format("{}: has no problem, expected a JSON object a line", path.string())};
  return problems;
}

std::string squad_normalised(std::string_view text) {
  auto lower = icu::UnicodeString::fromUTF8(
                   icu::StringPiece(text.data(), static_cast<std::int32_t>(text.size())))
                   .toLower(icu::Locale::getRoot());
  std::vector<UChar32> kept;
  for (std::int32_t at = 0; at < lower.length(); at = lower.moveIndex32(at, 1))
    if (const auto code = lower.char32At(at); !is_ascii_punctuation(code)) kept.push_back(code);
  // Articles go where they stand between word boundaries; a space takes their place.
  std::vector<UChar32> spaced;
  for (std::size_t at = 0; at < kept.size();) {
    if (!is_word(kept[at])) {
      spaced.push_back(kept[at++]);
      continue;
    }
    auto end = at;
    while (end < kept.size() && is_word(kept[end])) ++end;
    const std::u32string word(kept.begin() + static_cast<std::ptrdiff_t>(at),
                              kept.begin() + static_cast<std::ptrdiff_t>(end));
    if (word == U"a" || word == U"an" || word == U"the")
      spaced.push_back(' ');
    else
      spaced.insert(spaced.end(), word.begin(), word.end());
    at = end;
  }
  icu::UnicodeString joined;
  bool between = false;
  for (const auto code : spaced) {
    if (is_space(code)) {
      between = !joined.isEmpty();
      continue;
    }
    if (between) joined.append(static_cast<UChar32>(' '));
    between = false;
    joined.append(code);
  }
  std::string out;
  joined.toUTF8String(out);
  return out;
}

squad_score score_squad(std::string_view answer, std::span<const std::string> accepted) {
  const auto given = squad_normalised(answer);
  squad_score best;
  const auto offer = [&](const std::string& wanted) {
    best.exact_match = std::max(best.exact_match, given == wanted ? 1.0 : 0.0);
    best.f1 = std::max(best.f1, f1_of(given, wanted));
  };
  bool any = false;
  for (const auto& text : accepted)
    if (const auto wanted = squad_normalised(text); !wanted.empty()) {
      offer(wanted);
      any = true;
    }
  if (!any) offer("");
  return best;
}

std::optional<std::string> gsm8k_answer(std::string_view text) {
  std::size_t size = 0;
  if (const auto marked = text.rfind("####"); marked != std::string_view::npos) {
    text.remove_prefix(marked + 4);
    text.remove_prefix(std::min(text.find_first_not_of(" \t$"), text.size()));
    return leading_number(text, size);
  }
  std::optional<std::string> last;
  for (std::size_t at = 0; at < text.size();) {
    // A minus sign counts where no digit or letter stands before it.
    const bool minus_counts = at == 0 || !u_isalnum(static_cast<unsigned char>(text[at - 1]));
    const auto from = text[at] == '-' && !minus_counts ? text.substr(at + 1) : text.substr(at);
    if (auto number = leading_number(from, size)) {
      last = std::move(number);
      at += size + (from.size() == text.size() - at ? 0 : 1);
    } else {
      ++at;
    }
  }
  return last;
}

}  // namespace ordermoe::model
