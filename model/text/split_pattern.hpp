#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// The regular expression by which a byte-level tokenizer cuts text into pieces.
///
/// tokenizer.json holds the expressions in the syntax of Oniguruma (Ruby's); PCRE2 runs them here.
/// The two differ in places (`\s` of PCRE2 also takes U+180E, `\p{Greek}` also takes characters
/// that Greek merely uses, `$`, `\w`, `\h`, nested sets, folding of one character to several ...).
/// An expression is taken only where both are known to agree, or where it can be rewritten so that
/// they do; everything else is refused by name. Characters that Unicode 14 does not know are in no
/// category.
namespace ordermoe::model {

class split_pattern {
 public:
  /// Errors: malformed (no expression at all), unsupported (syntax whose meaning may differ, or
  /// that can match an empty text). Messages say what was found and expected; the caller adds the
  /// place and the remedy.
  static result<split_pattern> compile(std::string_view expression);

  /// Appends the pieces of the text in order: every match, and what is left between matches.
  /// Together they are the text, and none is empty. Precondition: valid UTF-8. Thread-safe.
  ///
  /// An expression may backtrack so much on some text that the search gives up (10 million steps,
  /// or 64 for each byte where that is more); the rest of that text is then one piece.
  void split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct compiled;
  explicit split_pattern(std::shared_ptr<const compiled> code) : code_(std::move(code)) {}
  std::shared_ptr<const compiled> code_;
};

}  // namespace ordermoe::model
