#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "config/random.hpp"
#include "net/channel/transport.hpp"
#include "test/net/channel/credentials.hpp"

/// A transport and a user that checks what it is told.
namespace ordermoe::test {

/// Frames say who sent them (request) and which of that sender's lane they are (attempt); the size follows from both.
struct frame_plan {
  std::uint32_t most_bytes = 1024;
  std::optional<std::size_t> always;
  /// Mostly small ones, and some up to the most.
  std::size_t size(net::lane of, std::uint64_t sender, std::uint32_t i) const {
    const auto largest = net::session_limits{}.largest_frame[static_cast<std::size_t>(of)];
    if (always) return std::min<std::size_t>(*always, largest);
    const auto drawn = random_bits(sender, static_cast<std::uint64_t>(of), i);
    const auto most = std::min(most_bytes, largest);
    return drawn % 100 == 0 ? (drawn >> 8) % (most + 1) : (drawn >> 8) % (most / 256 + 1);
  }
};

/// What a test waits for happens within this, or it fails.
constexpr std::chrono::seconds soon{20};

/// For what nobody tells.
template <class Holds>
bool comes_to_be(Holds holds) {
  const auto until = std::chrono::steady_clock::now() + soon;
  while (!holds()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::yield();
  }
  return true;
}

class transport_end final : public net::transport_user {
 public:
  using what = net::session_event::what;
  struct told {
    net::peer_id from = 0;
    what kind = what::up;
    std::string text;
    net::lane of = net::lane::control;
  };
  struct state {
    std::vector<told> events;  ///< All but frames, in order.
    std::vector<std::pair<std::string, error>> problems;
    std::vector<std::pair<net::peer_id, net::certificate_name>> clients;
    std::map<net::peer_id, std::array<std::uint64_t, net::n_lanes>> n_frames;
    /// How many had come when it last heard that there is no more for now.
    std::uint64_t frames_at_rest = 0;
    std::uint64_t rests = 0;
    std::string broken;  ///< What does not hold; empty: all does.

    std::size_t count(what kind, std::optional<net::peer_id> from = {}) const {
      return static_cast<std::size_t>(std::ranges::count_if(events, [&](const told& each) {
        return each.kind == kind && (!from || each.from == *from);
      }));
    }
    std::uint64_t frames(net::peer_id from) const {
      std::uint64_t n = 0;
      if (const auto found = n_frames.find(from); found != n_frames.end())
        for (const auto each : found->second) n += each;
      return n;
    }
    std::string last(what kind) const {
      std::string text;
      for (const auto& each : events)
        if (each.kind == kind) text = each.text;
      return text;
    }
  };

  bool uses = true;  ///< Frames are used up as they come.
  frame_plan plan;
  std::function<void(net::peer_id, const net::frame_header&)> on_frame;

  ~transport_end() override { stop(); }

  void start(net::transport_options options) {
    auto begun = net::transport::start(std::move(options), *this);
    BOOST_REQUIRE(begun.has_value());
    {
      const std::lock_guard lock(mutex_);
      transport_ = std::move(*begun);
    }
    changed_.notify_all();
  }
  void stop() {
    if (transport_) transport_->stop();
  }
  net::transport& net() { return *transport_; }
  /// Why every client that comes is left at once; null: none is. Set before any comes.
  const char* leaves_clients = nullptr;
  net::address at() { return transport_->listens_at().front(); }

  bool send(net::peer_id to, net::lane of, std::uint64_t sender, std::uint32_t i) {
    return transport_->send(to, of, 7, sender, i, 3,
                            std::string(plan.size(of, sender, i), static_cast<char>(i)));
  }

  template <class Holds>
  bool wait(Holds holds, std::chrono::nanoseconds within = soon) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, within, [&] { return holds(state_); });
  }
  bool wait_for(what kind, std::size_t n = 1, std::optional<net::peer_id> from = {}) {
    return wait([&](const state& now) { return now.count(kind, from) >= n; });
  }
  state now() {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  void take(net::peer_id from, std::vector<net::session_event> events) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return transport_ != nullptr; });
    for (auto& event : events) {
      if (event.kind != what::frame) {
        state_.events.push_back({from, event.kind, event.text, event.header.of});
        if (event.kind == what::up) next_.erase(from);
        continue;
      }
      check(from, event);
      ++state_.n_frames[from][static_cast<std::size_t>(event.header.of)];
    }
    lock.unlock();
    for (const auto& event : events) {
      if (event.kind != what::frame) continue;
      if (uses) transport_->used(from, event.header.of, net::session::frame_bytes(event.header));
      if (on_frame) on_frame(from, event.header);
    }
    changed_.notify_all();
  }
  void rest() override {
    const std::lock_guard lock(mutex_);
    ++state_.rests;
    state_.frames_at_rest = 0;
    for (const auto& [from, lanes] : state_.n_frames)
      for (const auto each : lanes) state_.frames_at_rest += each;
    changed_.notify_all();
  }
  /// Each frame of a sender once, in the order of its lane.
  void check(net::peer_id from, const net::session_event& event) {
    const auto& header = event.header;
    auto& next = next_[from][{static_cast<std::size_t>(header.of), header.request}];
    const auto breach = [&](std::string text) {
      if (state_.broken.empty())
        state_.broken = fmt::format("lane {} of {}, sender {}: {}", net::to_string(header.of), from,
                                    header.request, text);
    };
    if (header.attempt != next)
      breach(fmt::format("found frame {}, expected {}", header.attempt, next));
    next = header.attempt + 1;
    if (event.text.size() != plan.size(header.of, header.request, header.attempt) ||
        event.text.find_first_not_of(static_cast<char>(header.attempt)) != std::string::npos)
      breach("other bytes than were sent");
    if (header.kind != 7 || header.epoch != 3) breach("another header than was sent");
  }
  void client_came(net::peer_id id, const net::certificate_name& who) override {
    const std::lock_guard lock(mutex_);
    state_.clients.emplace_back(id, who);
    changed_.notify_all();
    if (leaves_clients) transport_->leave(id, leaves_clients);
  }
  void problem(const std::string& who, const error& why) override {
    const std::lock_guard lock(mutex_);
    state_.problems.emplace_back(who, why);
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  state state_;
  std::map<net::peer_id, std::map<std::pair<std::size_t, std::uint64_t>, std::uint32_t>> next_;
  std::unique_ptr<net::transport> transport_;
};

}  // namespace ordermoe::test
