#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/text/chat_template.hpp"
#include "model/text/tokenizer.hpp"

/// Texts and prompts from files, as token ids.
namespace ordermoe::setup {

/// The folder with the bundled models, texts and clusters: $ORDERMOE_DATA, or share/ordermoe of the
/// prefix in whose bin/ this program is, or data/ of the source tree that it was built from.
std::filesystem::path data_folder();

using token_documents = std::vector<std::vector<std::int32_t>>;

/// A text file as documents of at most `document_tokens` tokens, `max_tokens` in all. Errors: those
/// of read_file; out_of_range for a text of fewer than two tokens.
result<token_documents> read_documents(const std::filesystem::path& path,
                                       const model::tokenizer& tokens, std::size_t document_tokens,
                                       std::size_t max_tokens);

struct prompt {
  std::string text;  ///< Where there are messages, the last of them.
  std::vector<model::chat_message> messages;
  std::string place;  ///< "prompts.jsonl:3"
  /// Perplexity that its answer may lose, in per cent, where the line says it.
  std::optional<double> quality_percent = {};
};

/// Prompts: a JSON object with `prompt` or with `messages` (role and content) on each line, and with
/// `quality_budget_percent` where its answer may lose less than others; or plain lines; "-" reads standard input. Errors name file and line.
result<std::vector<prompt>> read_prompts(const std::string& path);

/// The ids of every prompt: its text as it is, or a conversation as the template writes it. Errors
/// name the prompt's place: usage for a conversation without a template; out_of_range where no
/// token comes of it.
result<token_documents> encode_prompts(const std::vector<prompt>& prompts,
                                       const model::tokenizer& tokens,
                                       const std::optional<model::chat_template>& chat);

}  // namespace ordermoe::setup
