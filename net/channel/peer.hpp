#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "net/channel/connections.hpp"
#include "net/channel/transport.hpp"

/// What a transport keeps of each node and client.
namespace ordermoe::net {

inline std::int64_t steady_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// A lock for many threads that send and the one that reads, which would hardly ever get it from them.
class reader_first {
 public:
  void lock() {
    while (wanted_.load(std::memory_order_relaxed)) std::this_thread::yield();
    mutex_.lock();
  }
  void lock_first() {
    wanted_.store(true, std::memory_order_relaxed);
    mutex_.lock();
    wanted_.store(false, std::memory_order_relaxed);
  }
  void unlock() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
  std::atomic<bool> wanted_{false};
};

/// Whoever fails tries again and fails again, for one reason or a few in turn: each is told once. There are as many as a
/// hello has fields, and whoever mends one after the other hears of each.
class told_reasons {
 public:
  bool is_new(const std::string& why) { return told_.size() < most && told_.insert(why).second; }
  void clear() { told_.clear(); }

 private:
  static constexpr std::size_t most = 64;
  std::set<std::string> told_;
};

/// When one stream of a peer is dialled; of the connections' thread alone.
struct dialling {
  static constexpr std::int64_t least_backoff_ns = 50'000'000, most_backoff_ns = 2'000'000'000;
  bool busy = false;
  std::int64_t next_ns = 0, backoff_ns = least_backoff_ns;
  told_reasons told;
};

struct peer {
  peer_id id = 0;
  transport_peer spec;
  bool is_client = false;
  bool joins = false;  ///< A client that is a node of the list (dial_purpose).
  bool dials = false;  ///< This end dials.
  std::array<dialling, n_streams> dialled;
  told_reasons told;  ///< Why it was refused; of the connections' thread alone, as the next.
  std::string
      given_up;  ///< Of a client: why its session ends as soon as it begins; empty: it does not.

  reader_first mutex;  ///< Of everything below.
  std::optional<session> link;
  std::vector<connection_ptr> connections;
  std::string scratch;
  bool dispatches = false;   ///< Soon, on the connections' thread.
  bool awaits_pace = false;  ///< Bulk is written then, on the connections' thread.
  std::uint64_t written_bytes = 0, read_bytes = 0, n_connections = 0;
  std::uint64_t writes = 0, reads = 0;

  dialling& dialled_of(stream which) { return dialled[static_cast<std::size_t>(which)]; }
};
using peer_ptr = std::shared_ptr<peer>;

}  // namespace ordermoe::net
