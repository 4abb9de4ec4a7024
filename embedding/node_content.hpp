#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "embedding/engine.hpp"
#include "ordermoe/node.hpp"

namespace ordermoe::api {

/// As an embedder reads it.
problem problem_of(const ordermoe::error& why);

/// What a node has: an engine, and whom it answers.
///
///   serving --stop()--> stopping: who waits is interrupted --nobody is inside--> the engine ends --> its answers are told
///   `stopped` --> stopped
///
/// Whoever comes in while it serves is counted as inside until it leaves again, and the engine ends when nobody is. Callbacks are
/// not counted: the engine's end waits for them.
class node_content {
 public:
  explicit node_content(std::unique_ptr<embedding::engine> serving) : engine_(std::move(serving)) {}

  result<std::uint64_t> submit(const prompt& wanted, answer_sink sink);
  result<answer> ask(const prompt& wanted);
  void cancel(std::uint64_t request);
  std::size_t outstanding() const;
  result<std::string> status();
  result<std::string> order(const admin_order& wanted);
  std::vector<std::string> listens_at();
  result<void> stop();
  /// What ends with it.
  struct closer {
    std::function<void()> close;  ///< At the end of stop(), once nobody is told anything any more.
    std::function<bool()> is_over;  ///< Nothing is left to close. Must not call the node.
  };
  /// Not where it was stopped before: usage.
  result<void> closes_with(closer what);
  /// Whether this thread is in one of its callbacks, or in one that takes log records.
  bool is_called_back() const;
  /// No callback begins any more.
  void silence();

 private:
  /// One request, from submit() until its on_end has returned.
  struct conversation {
    answer_sink sink;
    answer so_far;  ///< What was told of it.
    std::uint64_t number = 0;
    bool is_numbered = false;  ///< The engine has said under which number.
    bool is_cancelled = false, has_ended = false;
  };
  class visit;

  void take(std::uint64_t id, conversation& with, const actors::answer_token& told);
  void end(std::uint64_t id, conversation& with, answer told);
  void call(const std::function<void()>& what);
  void end_all_that_are_left();

  std::unique_ptr<embedding::engine> engine_;
  mutable std::mutex mutex_;  ///< Of everything below.
  std::condition_variable changed_;
  enum class state { serving, stopping, stopped } state_ = state::serving;
  std::size_t inside_ = 0;
  bool is_silent_ = false;
  std::vector<closer> closers_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, std::shared_ptr<conversation>> conversations_;
};

/// While it lives, this thread is in a callback that takes log records, of whichever node: what waits for a node refuses to.
class log_callback {
 public:
  log_callback();
  ~log_callback();
  log_callback(const log_callback&) = delete;
  log_callback& operator=(const log_callback&) = delete;
};

/// Between the faces and what a node has.
class node_access {
 public:
  static node make(std::unique_ptr<embedding::engine> serving) {
    return node(std::make_shared<node_content>(std::move(serving)));
  }
  static std::shared_ptr<node_content> content(const node& of) { return of.content_; }
};

/// So short a text takes no memory.
inline problem out_of_memory() {
  return {problem_code::failed, "out of memory"};
}

/// What make() gives, with every exception as a problem.
template <class Make>
auto without_exceptions(Make make) -> decltype(make()) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  } catch (const std::exception& thrown) {
    try {
      return problem{problem_code::failed, thrown.what()};
    } catch (const std::bad_alloc&) {
      return out_of_memory();
    }
  }
}

}  // namespace ordermoe::api
