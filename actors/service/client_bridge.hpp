#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "actors/protocol/messages.hpp"
#include "actors/protocol/requests.hpp"
#include "actors/token_meter.hpp"

/// Between a service's requests and callers that are no actors.
namespace ordermoe::actors {

/// How many answers a service's callers still wait for. Thread-safe.
class answer_book {
 public:
  explicit answer_book(std::uint64_t first_request = 0) : next_(first_request) {}
  /// The number of a new request, which is outstanding from now on.
  std::uint64_t expect() {
    ++outstanding_;
    return next_++;
  }
  void end() {
    const std::lock_guard lock(mutex_);
    --outstanding_;
    changed_.notify_all();
  }
  std::size_t outstanding() const { return outstanding_; }
  void count_token() { tokens_.count(); }
  /// Of all answers.
  const token_meter& tokens() const { return tokens_; }
  /// Until the next answer ends, or so long.
  void wait_for_end(std::chrono::milliseconds longest) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, longest);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<std::size_t> outstanding_ = 0;
  std::atomic<std::uint64_t> next_;
  token_meter tokens_;
};

/// From the service, before it submits the request: where its answer goes.
struct expected_answer {
  std::uint64_t request = 0;
  answer_sink sink;
};

using client_bridge_actor = client_actor::extend<caf::reacts_to<expected_answer>>;

/// Hands answers to their sinks and forgets each when its answer ends. What a sink throws is lost, the
/// answer goes on.
client_bridge_actor spawn_client_bridge(caf::actor_system& system,
                                        std::shared_ptr<answer_book> book);

}  // namespace ordermoe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::expected_answer)
