#include "actors/token_meter.hpp"

namespace ordermoe::actors {

std::uint64_t token_meter::second_of(clock::time_point now) const {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::seconds>(now - start_).count());
}

void token_meter::count(clock::time_point now) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const auto second = second_of(now);
  auto& here = seconds_[second % seconds_.size()];
  if (here.number.load(relaxed) != second) {
    here.tokens.store(0, relaxed);
    here.number.store(second, relaxed);
  }
  here.tokens.fetch_add(1, relaxed);
  total_.fetch_add(1, relaxed);
}

double token_meter::per_s(clock::time_point now) const {
  constexpr auto relaxed = std::memory_order_relaxed;
  const auto second = second_of(now);
  const auto first = second < window_s ? 0 : second - window_s + 1;
  std::uint64_t tokens = 0;
  for (auto number = first; number <= second; ++number) {
    const auto& each = seconds_[number % seconds_.size()];
    if (each.number.load(relaxed) == number) tokens += each.tokens.load(relaxed);
  }
  const std::chrono::duration<double> passed = now - start_ - std::chrono::seconds(first);
  return passed.count() > 0 ? static_cast<double>(tokens) / passed.count() : 0;
}

}  // namespace ordermoe::actors
