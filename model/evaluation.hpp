#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/reference.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"

/// Scores of executed models: perplexity of texts and exact match on problems. The functions that
/// run the model are passed in, so that the reference and the distributed system are scored by the
/// same code.
namespace ordermoe::model {

/// Negative log-likelihoods in nats of ids[1..]: token_losses of the reference, or the same through
/// a cluster.
using loss_function = std::function<result<std::vector<double>>(std::span<const std::int32_t> ids)>;
/// The greedy continuation of a prompt as text.
using answer_function = std::function<result<std::string>(const std::string& prompt)>;

struct evaluation_hooks {
  std::function<void(double share_done)> progress = {};
  std::function<bool()> should_stop = {};  ///< Asked between documents or problems.
};

struct perplexity_score {
  double nats_per_token = 0;
  double perplexity = 0;       ///< e^nats_per_token
  double standard_error = 0;   ///< Of nats_per_token, over documents.
  std::size_t n_tokens = 0;    ///< Predicted tokens.
  std::vector<double> losses;  ///< Of every predicted token in order, for paired comparisons.
};

/// Splits ids into windows of at most `context` tokens so that every token but the first is
/// predicted once; each window after the first begins with the last token of the one before.
std::vector<std::vector<std::int32_t>> windows(std::span<const std::int32_t> ids,
                                               std::size_t context);

/// Perplexity over documents, each passed on its own. Errors: those of `losses`; out_of_range where
/// nothing is predicted; interrupted.
result<perplexity_score> perplexity(std::span<const std::vector<std::int32_t>> documents,
                                    const loss_function& losses,
                                    const evaluation_hooks& hooks = {});

struct problem {
  std::string prompt;
  std::string answer;
};

/// One JSON object with the strings `prompt` and `answer` a line; empty lines are skipped. Errors
/// name file and line.
result<std::vector<problem>> read_problems(const std::filesystem::path& path);

struct match_score {
  std::size_t n_problems = 0;
  std::size_t n_right = 0;
  std::vector<std::string> answers;  ///< As compared.
  double exact_match() const {
    return n_problems == 0 ? 0 : static_cast<double>(n_right) / static_cast<double>(n_problems);
  }
};

/// What is compared: the text up to the first line break, without white space at both ends; of a
/// worked answer
/// ("6*4=24; 60*4=240; 24+240=264; answer 264") what follows the last "answer ".
std::string answer_line(std::string_view text);

/// Share of problems whose answer line equals the expected one. Errors: those of `answer`;
/// interrupted.
result<match_score> exact_match(std::span<const problem> problems, const answer_function& answer,
                                const evaluation_hooks& hooks = {});

/// The functions above on the reference; model and tokens must outlive them.
loss_function reference_losses(const transformer& model);
answer_function reference_answers(const transformer& model, const tokenizer& tokens,
                                  std::size_t max_new_tokens = 32);

}  // namespace ordermoe::model
