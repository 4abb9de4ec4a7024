#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <string>

/// Long work as seen from outside: how far it is, and whether it shall end.
///
/// Goals: whoever works writes here and whoever waits reads here, so that nothing far below calls
/// back into the command line. Non-goals: results, errors, threads.
namespace ordermoe {

class job {
 public:
  struct state {
    std::string phase;  ///< "planning", "answering"; empty before the first.
    double share = 0;   ///< Of the phase, from 0 to 1.
  };

  /// Asks the work to end with errc::interrupted. May be called by a signal handler.
  void stop() noexcept { stopped_.store(true, std::memory_order_relaxed); }
  bool stopped() const noexcept { return stopped_.load(std::memory_order_relaxed); }

  /// Another phase begins.
  void begin(std::string phase);
  void advance(double share) noexcept { share_.store(share, std::memory_order_relaxed); }
  state now() const;

  /// The same for work that asks and tells by calling. The job must outlive them.
  std::function<bool()> stopping() const;
  std::function<void(double)> advancing();
  /// Tells so many of so many.
  std::function<void(std::size_t done, std::size_t total)> counting();

 private:
  std::atomic<bool> stopped_{false};
  std::atomic<double> share_{0};
  mutable std::mutex mutex_;
  std::string phase_;
};

}  // namespace ordermoe
