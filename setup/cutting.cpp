#include "setup/cutting.hpp"

#include <bit>

namespace ordermoe::setup {

result<std::size_t> farthest_cut(std::size_t most,
                                 const std::function<result<cut_trial>(std::size_t)>& tried) {
  std::size_t from = 0, to = most;
  while (from < to) {
    const auto middle = from + (to - from + 1) / 2;
    const auto found = tried(middle);
    if (!found) return found.error();
    if (*found == cut_trial::beyond)
      to = middle - 1;
    else
      from = middle;
  }
  return from;
}

std::size_t most_cut_trials(std::size_t most) {
  return static_cast<std::size_t>(std::bit_width(most));
}

}  // namespace ordermoe::setup
