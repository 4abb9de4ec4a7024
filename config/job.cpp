#include "config/job.hpp"

#include <utility>

namespace ordermoe {

void job::begin(std::string phase) {
  const std::lock_guard guard(mutex_);
  phase_ = std::move(phase);
  share_ = 0;
}

job::state job::now() const {
  const std::lock_guard guard(mutex_);
  return {phase_, share_};
}

std::function<bool()> job::stopping() const {
  return [this] { return stopped(); };
}

std::function<void(double)> job::advancing() {
  return [this](double share) { advance(share); };
}

std::function<void(std::size_t, std::size_t)> job::counting() {
  return [this](std::size_t done, std::size_t total) {
    advance(total == 0 ? 1 : static_cast<double>(done) / static_cast<double>(total));
  };
}

}  // namespace ordermoe
