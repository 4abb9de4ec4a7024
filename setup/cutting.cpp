#include "setup/cutting.hpp"

#include <algorithm>
#include <bit>

namespace ordermoe::setup {

namespace {

std::size_t step_of(std::size_t most) {
  constexpr std::size_t n_steps = 16;
  return std::max<std::size_t>(1, (most + n_steps - 1) / n_steps);
}

}  // namespace

result<std::size_t> farthest_cut(std::size_t most,
                                 const std::function<result<cut_trial>(std::size_t)>& tried) {
  const auto step = step_of(most);
  std::size_t from = 0, to = most;
  bool is_bounded = false;
  while (from < to) {
    const auto middle = is_bounded ? from + (to - from + 1) / 2 : std::min(from + step, most);
    const auto found = tried(middle);
    if (!found) return found.error();
    if (*found == cut_trial::beyond) {
      to = middle - 1;
      is_bounded = true;
    } else {
      from = middle;
    }
  }
  return from;
}

std::size_t most_cut_trials(std::size_t most) {
  if (most == 0) return 0;
  const auto step = step_of(most);
  return (most + step - 1) / step + static_cast<std::size_t>(std::bit_width(step - 1));
}

}  // namespace ordermoe::setup
