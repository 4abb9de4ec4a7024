#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

/// Threads that share the products of one computing thread.
///
/// Goal: a matrix of some MB is read by several cores within some ten microseconds of work, and no
/// result depends on how many there are: what is shared out are whole outputs, rows and heads.
/// Non-goals: nested sharing, several callers at once.
namespace ordermoe::model {

/// Helpers look for work for some 100 us after the last, then sleep. A caller waits only for parts
/// that a helper has begun: one that sleeps or is not on a processor holds nobody up.
class thread_team {
 public:
  /// The thread that calls run() is one of `n_threads`.
  explicit thread_team(std::size_t n_threads);
  ~thread_team();
  thread_team(const thread_team&) = delete;
  thread_team& operator=(const thread_team&) = delete;

  std::size_t size() const { return helpers_.size() + 1; }

  /// body(part) once for each part in [0, n_parts), in any order; returns when all are done. One
  /// caller at a time. Precondition: the body does not throw.
  template <class Body>
  void run(std::size_t n_parts, const Body& body) {
    run_parts(
        n_parts,
        [](const void* what, std::size_t part) { (*static_cast<const Body*>(what))(part); }, &body);
  }

 private:
  using call = void (*)(const void* body, std::size_t part);

  /// Which job it is, how many parts it has and how many are taken, in one number: whoever raises
  /// the last knows that the job is not over, and so that `call_` and `body_` are its own.
  struct progress {
    std::uint32_t job = 0;
    std::uint16_t n_parts = 0, taken = 0;
  };
  static_assert(std::atomic<progress>::is_always_lock_free);

  void run_parts(std::size_t n_parts, call function, const void* body);
  /// Takes and runs a part, if one is left.
  bool run_one();
  void help();

  std::atomic<progress> progress_{progress{}};
  std::atomic<call> call_{nullptr};
  std::atomic<const void*> body_{nullptr};
  std::atomic<std::size_t> n_done_{0};
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::atomic<int> n_asleep_{0};
  std::vector<std::thread> helpers_;
};

/// The team that this thread's products are shared with while it lives; null: with none.
class team_scope {
 public:
  explicit team_scope(thread_team* team);
  ~team_scope();
  team_scope(const team_scope&) = delete;
  team_scope& operator=(const team_scope&) = delete;

 private:
  thread_team* before_;
};
thread_team* current_team();

/// body(first, last) over all of [0, n) in ranges, shared with this thread's team where it has one
/// and there is enough to do: `work` is what all of it takes one thread, in bytes read or, where
/// that is more, eighths of multiplications. Within a range indices ascend.
template <class Body>
void share_out(std::size_t n, double work, const Body& body) {
  constexpr double least_work = 128 << 10;  // Some 5 us.
  thread_team* team = current_team();
  const std::size_t most = team == nullptr ? 1 : 4 * team->size();
  const auto worth = static_cast<std::size_t>(work / least_work);
  const std::size_t n_parts = worth < most ? (worth < n ? worth : n) : (most < n ? most : n);
  if (n_parts < 2) {
    body(std::size_t{0}, n);
    return;
  }
  team->run(n_parts, [&](std::size_t part) { body(part * n / n_parts, (part + 1) * n / n_parts); });
}

}  // namespace ordermoe::model
