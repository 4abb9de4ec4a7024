#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "actors/protocol/requests.hpp"
#include "setup/texts.hpp"

/// Answers on standard output as they come: each behind its prompt, in the order of the prompts,
/// however many are answered at once.
namespace ordermoe::cli {

class answer_printer {
 public:
  /// What every answer is printed behind: a completion continues its prompt, an answer to a user
  /// has lines of its own.
  enum class layout { continued, conversation };
  answer_printer(const std::vector<setup::prompt>& prompts, layout how);

  /// To be given to whoever answers, where answers are shown while they come. Thread-safe.
  actors::answer_sink sink();
  /// A whole answer at once.
  void show(std::size_t request, const std::string& text);

 private:
  struct answer {
    std::string waiting;  ///< Text that another answer is before.
    bool begun = false, ended = false;
  };
  void take(std::size_t request, const std::string& text, bool ends);
  void begin(std::size_t request);

  const std::vector<setup::prompt>& prompts_;
  layout how_;
  std::mutex mutex_;
  std::vector<answer> answers_;
  std::size_t shown_ = 0;  ///< Answers that are complete on the output.
};

}  // namespace ordermoe::cli
