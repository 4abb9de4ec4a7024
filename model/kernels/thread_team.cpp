#include "model/kernels/thread_team.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <system_error>

#include "config/error.hpp"

namespace ordermoe::model {

namespace {

thread_local thread_team* team_of_thread = nullptr;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Until ready(), but not much longer than 100 us; whether it was.
template <class Ready>
bool spin(const Ready& ready) {
  constexpr int looks_at_clock = 64;
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
  for (int i = 1;; ++i) {
    if (ready()) return true;
    pause();
    if (i % looks_at_clock == 0 && std::chrono::steady_clock::now() > end) return false;
  }
}

}  // namespace

thread_team::thread_team(std::size_t n_threads) {
  ORDERMOE_CHECK(n_threads > 0, "a team of no threads");
  helpers_.reserve(n_threads - 1);
  try {
    for (std::size_t i = 1; i < n_threads; ++i) helpers_.emplace_back([this] { help(); });
  } catch (const std::system_error&) {
    // The system gives no more: those that there are do all, and no result depends on it.
  }
}

thread_team::~thread_team() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& helper : helpers_) helper.join();
}

bool thread_team::run_one() {
  auto seen = progress_.load();
  while (seen.taken < seen.n_parts) {
    const auto function = call_.load();
    const auto* body = body_.load();
    auto next = seen;
    ++next.taken;
    if (!progress_.compare_exchange_weak(seen, next)) continue;
    function(body, seen.taken);
    n_done_.fetch_add(1);
    return true;
  }
  return false;
}

void thread_team::run_parts(std::size_t n_parts, call function, const void* body) {
  ORDERMOE_CHECK(n_parts <= std::numeric_limits<std::uint16_t>::max(), "a job of too many parts");
  if (helpers_.empty()) {
    for (std::size_t part = 0; part < n_parts; ++part) function(body, part);
    return;
  }
  call_ = function;
  body_ = body;
  n_done_ = 0;
  const auto last = progress_.load();
  progress_ = progress{last.job + 1, static_cast<std::uint16_t>(n_parts), 0};
  if (n_asleep_ > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  while (run_one()) {
  }
  while (!spin([&] { return n_done_ == n_parts; })) std::this_thread::yield();
}

void thread_team::help() {
  const auto wanted = [this] {
    const auto seen = progress_.load();
    return seen.taken < seen.n_parts || stopping_;
  };
  for (;;) {
    if (!spin(wanted)) {
      std::unique_lock lock(mutex_);
      ++n_asleep_;
      wake_.wait(lock, wanted);
      --n_asleep_;
    }
    if (stopping_) return;
    while (run_one()) {
    }
  }
}

team_scope::team_scope(thread_team* team) : before_(team_of_thread) {
  team_of_thread = team != nullptr && team->size() > 1 ? team : nullptr;
}

team_scope::~team_scope() {
  team_of_thread = before_;
}

thread_team* current_team() {
  return team_of_thread;
}

}  // namespace ordermoe::model
