#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "bench/experiments/experiment.hpp"
#include "model/evaluation.hpp"
#include "model/text/tokenizer.hpp"
#include "setup/texts.hpp"

/// What strategies are measured on.
namespace ordermoe::experiments {

/// Latency, traffic and where experts ran, of requests that arrive at this rate.
workload answering(std::vector<request_spec> requests, double rate);

/// Perplexity of documents, decoded position by position under the same budget rule as requests.
/// context_tokens: that every document after the first begins with for context only; their losses
/// do not count. prompt_tokens: that of each document are computed as a prompt, fewer where it has no more.
workload scoring(const setup::token_documents& documents, std::size_t context_tokens = 1,
                 std::size_t prompt_tokens = 1);

/// Exact match of problems that are answered greedily.
workload solving(std::vector<model::problem> problems, const model::tokenizer& tokens,
                 std::uint32_t answer_tokens = 48);

enum class question_rules { squad, gsm8k };
/// New tokens that an answer may have.
std::uint32_t answer_tokens(question_rules rules);
/// The authors' scores of questions that are answered greedily.
workload asking(std::vector<model::question> questions, question_rules rules,
                const model::tokenizer& tokens);

}  // namespace ordermoe::experiments
