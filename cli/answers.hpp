#pragma once

#include <mutex>
#include <optional>
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

/// What a prompt stated and what was in force for its answer, in per cent.
struct stated_budget {
  std::optional<double> stated, in_force;
};
/// Says on stderr how many had less than they stated: nobody takes an answer for one that had more than the plan allows.
void tell_of_smaller_budgets(const std::vector<stated_budget>& budgets);

}  // namespace ordermoe::cli
