#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "gateway/backend.hpp"

/// What answers once it has started, which may take minutes (a plan is made, experts are read): until then a gateway is live and
/// not ready, and what is asked of it is told to come later.
namespace ordermoe::gateway {

class starting_backend final : public backend {
 public:
  using start_function = std::function<result<std::unique_ptr<backend>>()>;

  /// Calls `start` on a thread of its own, at once.
  explicit starting_backend(start_function start);
  /// stop().
  ~starting_backend() override;

  /// What start said; none: it has not ended.
  std::optional<result<void>> outcome() const;

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override;
  void cancel(std::uint64_t request) override;
  bool is_ready() const override;
  std::string why_not_ready() const override;
  result<std::string> servers() override;
  bool takes_orders() const override;
  std::string order(const std::string& node, const actors::bearer_order& order,
                    actors::order_sink sink) override;
  /// Waits for the end of start. A second one does nothing.
  void stop() override;

 private:
  /// Null: not started.
  backend* started() const { return started_.load(); }

  std::unique_ptr<backend> inner_;
  std::atomic<backend*> started_ = nullptr;
  mutable std::mutex mutex_;  ///< Of the outcome.
  std::optional<result<void>> outcome_;
  std::thread starter_;
  bool is_stopped_ = false;
};

}  // namespace ordermoe::gateway
