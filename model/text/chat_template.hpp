#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/text/tokenizer.hpp"

/// How the instruct variants of the supported families want a conversation written.
///
/// tokenizer_config.json gives this as a Jinja program. None is run here: a program is recognised
/// by the markers and the concatenations that it consists of, and what it makes is written
/// natively. Non-goals: tools, documents, conversations that end with the assistant, any other
/// program. An unknown program is refused, because a prompt that is almost right gives answers that
/// are quietly worse.
namespace ordermoe::model {

enum class chat_role { system, user, assistant };
const char* to_string(chat_role role);

struct chat_message {
  chat_role role = chat_role::user;
  std::string content;
};

/// What a program was recognised as, by the marker of a user's turn.
enum class chat_format {
  inst,      ///< [INST] question [/INST] answer</s>: Mixtral-Instruct.
  chatml,    ///< <|im_start|>user, a line each: Qwen.
  tulu,      ///< <|user|>, a line each: OLMoE-Instruct.
  question,  ///< "Q: question", "A: answer", a line each: the bundled models.
};

class chat_template {
 public:
  /// From FOLDER/chat_template.jinja or else FOLDER/tokenizer_config.json. Errors: not_found (no
  /// file, or no template in it: a base model), io, malformed, unsupported.
  static result<chat_template> load(const std::filesystem::path& folder);
  /// A tokenizer_config.json in memory; `place` is what messages name.
  static result<chat_template> parse_config(std::string_view text, const std::string& place);
  /// A program by itself, with the texts of its beginning- and end-of-text tokens.
  static result<chat_template> recognise(std::string_view program, std::string bos_token,
                                         std::string eos_token, const std::string& place);

  chat_format format() const { return format_; }
  /// Texts that end the assistant's turn where no token does.
  std::vector<std::string> turn_ends() const {
    return format_ == chat_format::question ? std::vector<std::string>{"\n"}
                                            : std::vector<std::string>();
  }

  /// The conversation and the beginning of the assistant's next turn, as the model's card writes
  /// it, with special tokens as text. Errors (out_of_range): a system message that is not the
  /// first, turns that do not alternate, a conversation that does not end with the user.
  /// Unsupported: a system message where the template has no place for one.
  result<std::string> render(std::span<const chat_message> messages) const;

  /// The same as ids. Each turn of an `inst` conversation is encoded by itself, so that text in it
  /// never becomes a special token of the template; with the other formats, special tokens that a message writes
  /// out are taken for such, as Hugging Face's library does. Errors: those of render; mismatch
  /// where the tokenizer lacks a special token of the template, or a marker of `chatml`.
  result<std::vector<std::int32_t>> encode(const tokenizer& tokens,
                                           std::span<const chat_message> messages) const;

 private:
  /// Text to encode, or the text of one special token.
  struct part {
    std::string text;
    bool special = false;
  };
  result<std::vector<part>> parts(std::span<const chat_message> messages) const;
  result<void> check(std::span<const chat_message> messages) const;

  chat_format format_ = chat_format::chatml;
  std::string begin_;  ///< The special token that a conversation begins with; may be empty.
  std::string end_;    ///< What ends the assistant's turn.
  std::string default_system_;  ///< Written where the conversation has no system message.
  bool takes_system_ = true;
  bool drops_thoughts_ = false;  ///< Earlier answers go without what stands before </think>.
};

}  // namespace ordermoe::model
