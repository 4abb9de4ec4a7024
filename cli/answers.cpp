#include "cli/answers.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace ordermoe::cli {

namespace {

/// Without exceptions: whoever ends the command asks the stream whether all was written.
void put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

answer_printer::answer_printer(const std::vector<setup::prompt>& prompts, layout how)
    : prompts_(prompts), how_(how), answers_(prompts.size()) {}

actors::answer_sink answer_printer::sink() {
  return {[this](const actors::answer_token& token) {
            take(static_cast<std::size_t>(token.request), token.text, false);
          },
          [this](const actors::request_outcome& ended) {
            take(static_cast<std::size_t>(ended.request), ended.text_tail, true);
          }};
}

void tell_of_smaller_budgets(const std::vector<stated_budget>& budgets) {
  std::size_t n = 0;
  double in_force = 0;
  for (const auto& each : budgets) {
    if (!each.stated || !each.in_force || *each.in_force < 0 || *each.in_force >= *each.stated)
      continue;
    ++n;
    in_force = *each.in_force;
  }
  if (n > 0)
    fmt::print(stderr,
               "ordermoe: {} of {} prompts stated a larger quality budget than the plan's; {:g} % "
               "was in force for them\n",
               n, budgets.size(), in_force);
}

void answer_printer::show(std::size_t request, const std::string& text) {
  take(request, text, true);
}

void answer_printer::begin(std::size_t request) {
  put(fmt::format("[{}] {}{}", request + 1, prompts_[request].text,
                  how_ == layout::conversation ? "\n" : ""));
  answers_[request].begun = true;
}

void answer_printer::take(std::size_t request, const std::string& text, bool ends) {
  const std::lock_guard guard(mutex_);
  answers_[request].waiting += text;
  answers_[request].ended = ends;
  while (shown_ < answers_.size()) {
    auto& next = answers_[shown_];
    if (!next.begun && next.waiting.empty() && !next.ended) break;
    if (!next.begun) begin(shown_);
    put(next.waiting);
    next.waiting.clear();
    if (!next.ended) break;
    put("\n\n");
    ++shown_;
  }
  std::fflush(stdout);
}

}  // namespace ordermoe::cli
