#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "net/wire/messages.hpp"

/// KV memory of one server: who holds how much of it, and who waits.
///
/// A request's owner asks by number. Each ask is answered once it is decided, and again where it
/// comes again; an ask with a lower number than the newest is too late and left alone, a release takes
/// back its ask and all before it. So messages may come late, twice and in any order. What an owner
/// does not want any more when the grant reaches it, it gives back.
///
/// Waiting asks are granted in FIFO order; an attempt is refused where memory or an earlier waiter
/// stands against it. Owners that wait at one server after the other in ascending order cannot
/// deadlock: whoever holds the highest server needs nothing more.
///
/// A lease bounds how long a server keeps a sequence whose end it was never told.
namespace ordermoe::serving {

class kv_reservations {
 public:
  struct sequence {
    std::uint32_t attempt = 0;
    std::uint32_t ask = 0;     ///< The newest that was heard.
    std::uint32_t access = 0;  ///< Server of the owner.
    std::int64_t bytes = 0;
    std::int64_t lease_until_ns = 0;
    bool granted = false;     ///< Else it waits.
    std::uint64_t epoch = 0;  ///< Of the plan that the request goes by.
  };
  struct event {
    enum class what { granted, fenced, ended } kind;
    std::uint64_t request = 0;
    std::uint32_t attempt = 0;
    std::int64_t change_bytes = 0;    ///< Of reserved memory.
    std::int64_t reserved_bytes = 0;  ///< After it.
  };
  /// What follows from one message, in order.
  struct outcome {
    std::vector<event> events;
    std::vector<wire::reservation> answers;  ///< To their access servers.
  };

  kv_reservations() = default;
  /// Of server `self`.
  kv_reservations(std::uint32_t self, std::int64_t capacity_bytes)
      : self_(self), capacity_bytes_(capacity_bytes) {}

  /// A message of an owner, under the plan of this epoch. Precondition: its step is attempt, wait, release or fence.
  outcome take(const wire::reservation& message, std::int64_t now_ns, std::uint64_t epoch = 0);
  /// Ends sequences whose lease is over.
  outcome expire(std::int64_t now_ns);
  /// Ends what this request has here.
  outcome end(std::uint64_t request);

  /// Null where the request holds nothing here, or waits.
  const sequence* find(std::uint64_t request) const;
  std::int64_t capacity_bytes() const { return capacity_bytes_; }
  std::int64_t reserved_bytes() const { return reserved_bytes_; }
  std::int64_t peak_bytes() const { return peak_bytes_; }
  std::size_t n_waiting() const { return queue_.size(); }
  /// Those that hold memory or wait for it.
  const std::unordered_map<std::uint64_t, sequence>& sequences() const { return sequences_; }
  /// The earliest end of a lease; the largest number where there is none.
  std::int64_t next_expiry_ns() const;

 private:
  void ask(const wire::reservation& message, std::int64_t now_ns, std::uint64_t epoch,
           outcome& made);
  void fence(const wire::reservation& message, std::int64_t now_ns, outcome& made);
  bool fits(std::int64_t bytes) const;
  void grant(std::uint64_t request, outcome& made);
  void close(std::uint64_t request, outcome& made);
  void serve_queue(outcome& made);

  std::uint32_t self_ = 0;
  std::int64_t capacity_bytes_ = 0;
  std::int64_t reserved_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  std::unordered_map<std::uint64_t, sequence> sequences_;
  std::deque<std::uint64_t> queue_;  ///< Requests that wait.
};

}  // namespace ordermoe::serving
