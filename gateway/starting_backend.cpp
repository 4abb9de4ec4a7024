#include "gateway/starting_backend.hpp"

#include <utility>

namespace ordermoe::gateway {

namespace {

error not_yet() {
  return {errc::io, "the servers are still starting; /health/ready says when they answer"};
}

}  // namespace

starting_backend::starting_backend(start_function start) {
  starter_ = std::thread([this, start = std::move(start)] {
    auto made = start();
    if (made) {
      inner_ = std::move(*made);
      started_ = inner_.get();
    }
    const std::lock_guard lock(mutex_);
    outcome_ = made ? result<void>() : result<void>(made.error());
  });
}

starting_backend::~starting_backend() {
  stop();
}

std::optional<result<void>> starting_backend::outcome() const {
  const std::lock_guard lock(mutex_);
  return outcome_;
}

std::uint64_t starting_backend::submit(actors::remote_request wanted, actors::answer_sink sink) {
  if (auto* behind = started()) return behind->submit(std::move(wanted), std::move(sink));
  actors::request_outcome outcome;
  outcome.finish = "failed";
  outcome.problem = not_yet();
  if (sink.on_end) sink.on_end(outcome);
  return 0;
}

void starting_backend::cancel(std::uint64_t request) {
  if (auto* behind = started()) behind->cancel(request);
}

bool starting_backend::is_ready() const {
  const auto* behind = started();
  return behind != nullptr && behind->is_ready();
}

std::string starting_backend::why_not_ready() const {
  const auto* behind = started();
  return behind == nullptr ? "the servers are still starting" : behind->why_not_ready();
}

result<std::string> starting_backend::servers() {
  if (auto* behind = started()) return behind->servers();
  return not_yet();
}

bool starting_backend::takes_orders() const {
  const auto* behind = started();
  return behind != nullptr && behind->takes_orders();
}

std::string starting_backend::order(const std::string& node, const actors::bearer_order& order,
                                    actors::order_sink sink) {
  if (auto* behind = started()) return behind->order(node, order, std::move(sink));
  sink(not_yet());
  return node;
}

void starting_backend::stop() {
  if (std::exchange(is_stopped_, true)) return;
  if (starter_.joinable()) starter_.join();
  if (auto* behind = started()) behind->stop();
}

}  // namespace ordermoe::gateway
