#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

/// What a gateway counts.
namespace ordermoe::gateway {

/// How many of what was measured were at most so long.
class time_histogram {
 public:
  static constexpr std::array<double, 14> bounds_s{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
                                                   0.25,  0.5,    1,     2.5,  5,     10,   30};
  void add(double seconds) {
    for (std::size_t i = 0; i < bounds_s.size(); ++i)
      if (seconds <= bounds_s[i]) ++at_most_[i];
    ++count_;
    sum_s_ += seconds;
  }
  std::uint64_t at_most(std::size_t i) const { return at_most_[i]; }
  std::uint64_t count() const { return count_; }
  double sum_s() const { return sum_s_; }

 private:
  std::array<std::uint64_t, bounds_s.size()> at_most_{};
  std::uint64_t count_ = 0;
  double sum_s_ = 0;
};

struct gateway_figures {
  std::uint64_t prompt_tokens = 0, generation_tokens = 0;
  std::map<std::string, std::uint64_t> finished;  ///< Answers, by reason.
  std::uint64_t turned_away = 0;                  ///< For want of room.
  std::size_t running = 0, waiting = 0;
  time_histogram first_token, per_token, whole;
  double budget_nats = 0, spent_nats = 0;
  double recent_answer_s = 1;  ///< Of the last few.
};

}  // namespace ordermoe::gateway
