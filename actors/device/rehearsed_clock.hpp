#pragma once

#include <algorithm>
#include <cstdint>

#include "actors/protocol/status.hpp"
#include "config/sleep_lead.hpp"

/// When the batches of a rehearsed device begin and end. Its thread sleeps for what is left of a batch's charge, and
/// threads are woken late, for a batch that was asked for and from that sleep, and share processors with others. A device of the
/// charged kind does neither, so a batch counts as begun when it was asked for and the device was free; and by how much results
/// were told too late the device owes, and begins later batches so much sooner, though not before it was free. Then
/// the mean is what is charged, however late one result is. What computing takes of a processor beyond its charge stays: then the
/// machine is too slow for what it rehearses.
namespace ordermoe::actors {

/// Of one device; times are of one clock, charges as long as they last on it.
///   begin(); compute; sleep until sleep_until_ns(), woke(now); wait until due_ns(); end(now, worked).
class rehearsed_clock {
 public:
  /// Somebody asked for the next batch at asked_ns.
  void begin(std::int64_t asked_ns, std::int64_t charge_ns) {
    const auto begun_ns = std::max(asked_ns, free_ns_);
    start_ns_ = std::max(asked_ns - owed_ns_, free_ns_);
    sooner_ns_ = begun_ns - start_ns_;
    charge_ns_ = charge_ns;
    ++figures_.batches;
    figures_.charged_ns += charge_ns;
  }
  std::int64_t start_ns() const { return start_ns_; }
  /// When its result is to be told; it may be past.
  std::int64_t due_ns() const { return start_ns_ + charge_ns_; }

  /// When its sleep should be asked to end.
  std::int64_t sleep_until_ns() const { return due_ns() - lead_.ns(); }
  /// What was asked to end then ended at now_ns.
  void woke(std::int64_t now_ns) { lead_.woke(sleep_until_ns(), now_ns); }

  /// Its result is told at now_ns; computing it took worked_ns of a processor. When it counts as ended.
  std::int64_t end(std::int64_t now_ns, std::int64_t worked_ns) {
    const auto exceeded_ns = std::max<std::int64_t>(0, worked_ns - charge_ns_);
    if (exceeded_ns > 0) note_exceeded(exceeded_ns);
    free_ns_ = due_ns() + exceeded_ns;
    const auto late_ns = std::max<std::int64_t>(0, now_ns - free_ns_);
    figures_.late_ns += late_ns - sooner_ns_;
    owed_ns_ = std::min(most_owed_ns, owed_ns_ - sooner_ns_ + late_ns);
    return free_ns_;
  }

  const rehearsal_figures& figures() const { return figures_; }

 private:
  void note_exceeded(std::int64_t by_ns) {
    ++figures_.exceeded;
    figures_.exceeded_ns += by_ns;
    figures_.most_exceeded_ns = std::max(figures_.most_exceeded_ns, by_ns);
  }

  /// A machine that stood still for longer is not made up for.
  static constexpr std::int64_t most_owed_ns = 10'000'000;

  std::int64_t start_ns_ = 0, charge_ns_ = 0;
  std::int64_t sooner_ns_ =
      0;  ///< Than it was asked for and the device was free, the present batch counts as begun.
  std::int64_t free_ns_ = 0;  ///< Since when the device is, as charged.
  std::int64_t told_ns_ = 0;  ///< When the latest result was told.
  std::int64_t owed_ns_ = 0;  ///< By which it was told too late.
  sleep_lead lead_;
  rehearsal_figures figures_;
};

}  // namespace ordermoe::actors
