#pragma once

#include <cstdint>

/// Whether a thread that has read everything looks for more again and again before it sleeps. Waking a thread takes
/// longer than a short batch of a small model, and between two servers that hand tokens to each other it is on the way of each.
///
/// Goals: to look only where bytes usually come while it looks, which it learns from how long its waits took, slept through
/// or not: an idle node's waits are long, so it sleeps. And only where nobody else wants the processor: whoever looks lets
/// others have it between two looks, and where they usually take it, it sleeps, and tries again once in a while. A thread
/// that sleeps is run at once when bytes come; one that waits for the processor is not.
/// Not a goal: to shorten waits on networks whose round trips are longer than what it may look.
namespace ordermoe::net {

/// Of one thread; times are of one clock that only goes forward. How to use it:
///   begin(now); if (looks()) look while nothing came and goes_on(now); where nothing came sleep; end(now, others_ran).
class busy_poll {
 public:
  /// `most_ns`: how long it looks at most; 0: never.
  explicit busy_poll(std::int64_t most_ns) : most_ns_(most_ns) {}

  /// Everything is read.
  void begin(std::int64_t now_ns) {
    since_ns_ = now_ns;
    if (short_waits_ < one / 2) {
      looks_ = false;
    } else {
      looks_ = crowded_waits_ < 3 * one / 8 || ++declined_ >= most_declined;
      if (looks_) declined_ = 0;
    }
  }

  /// Whether to look at all in this wait.
  bool looks() const { return looks_; }
  /// Whether to look once more before it sleeps.
  bool goes_on(std::int64_t now_ns) const { return looks_ && now_ns - since_ns_ < most_ns_; }

  /// Something came, whether it slept or not. `others_ran`: while it looked.
  void end(std::int64_t now_ns, bool others_ran) {
    note(short_waits_, now_ns - since_ns_ < most_ns_);
    if (looks_) note(crowded_waits_, others_ran);
  }

 private:
  static constexpr std::int64_t one = 1 << 16;
  static constexpr int most_declined =
      32;  ///< Waits that it sleeps through for others before it tries again.

  /// A share of late: of the last 16 or so.
  static void note(std::int64_t& share, bool is_one) { share += ((is_one ? one : 0) - share) / 16; }

  std::int64_t most_ns_;
  std::int64_t since_ns_ = 0;
  bool looks_ = false;
  int declined_ = 0;
  std::int64_t short_waits_ = 0;  ///< Their share, in parts of `one`.
  std::int64_t crowded_waits_ =
      0;  ///< Of waits in which it looked: their share in which others ran.
};

}  // namespace ordermoe::net
