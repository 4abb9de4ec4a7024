#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Published evaluation sets, read from their own files: WikiText-103 (raw text), SQuAD 1.1 and 2.0
/// (JSON) and GSM8K (JSON lines), with the scores that their authors define.
namespace ordermoe::model {

/// A question with its accepted answers; none: the right answer is that there is none.
struct question {
  std::string id;
  std::string prompt;
  std::vector<std::string> answers;
};

/// The text of a raw WikiText file as it stands, line breaks and headings included. Errors:
/// not_found, io; malformed where the text is not UTF-8 or is the tokenised edition, whose unknown
/// words are already gone.
result<std::string> read_wikitext(const std::filesystem::path& path);

/// Every question of a SQuAD file in its order. Prompt: title, context, question and "Answer:",
/// each on lines of their own. A question with `is_impossible` has no accepted answer
/// (`plausible_answers` are not read). Errors: malformed with the place in the file.
result<std::vector<question>> read_squad(const std::filesystem::path& path);

/// Every problem of a GSM8K file. Prompt: "Question: ...\nAnswer:"; the accepted answer is the
/// number after "####". Errors: malformed with file and line.
result<std::vector<question>> read_gsm8k(const std::filesystem::path& path);

/// The official normalisation of SQuAD answers: lower case, without ASCII punctuation, without the
/// words a, an and the, white space runs made one space, none at the ends.
std::string squad_normalised(std::string_view text);

/// The official scores of one answer: the best over the accepted ones.
struct squad_score {
  double exact_match = 0;  ///< 1 where the normalised texts are equal.
  double f1 = 0;           ///< Of the normalised words, counted with repetition.
};
squad_score score_squad(std::string_view answer, std::span<const std::string> accepted);

/// The number that a worked solution ends in, without thousands separators and without a full stop
/// or zeros behind the decimals: after the last "####", or else the last number of the text.
std::optional<std::string> gsm8k_answer(std::string_view text);

}  // namespace ordermoe::model
