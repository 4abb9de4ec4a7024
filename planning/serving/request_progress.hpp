#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "net/wire/messages.hpp"

/// The reports of one request's tokens, put in order at its owner: each position of the answer is
/// handed out once, in turn, whatever comes late, twice, out of order or from an attempt before.
namespace ordermoe::serving {

class request_progress {
 public:
  /// A new attempt. `next`: the first position of the answer that is not known. `chunks`: first
  /// positions of the given chunks that report their end.
  void begin(std::uint32_t attempt, std::uint32_t next, std::span<const std::uint32_t> chunks);

  /// Takes a report in; false where it is of another attempt, of a position that is known or beyond
  /// `most_positions`, or was here before.
  bool take(wire::progress_report report, std::uint32_t most_positions);

  /// The report of the next position, if it is here. It is known from then on.
  std::optional<wire::progress_report> next();

  std::uint32_t attempt() const { return attempt_; }
  std::uint32_t next_position() const { return next_; }
  /// Whether every chunk has said what it spent.
  bool chunks_done() const { return chunks_.empty(); }
  /// By the chunks that ended in this attempt, as far as it was not taken.
  loss_units chunks_spent() const { return chunks_spent_; }
  /// Whoever takes it counts it from now on.
  loss_units take_chunks_spent() { return std::exchange(chunks_spent_, 0); }

 private:
  std::uint32_t attempt_ = 0;
  std::uint32_t next_ = 0;
  std::set<std::uint32_t> chunks_;
  loss_units chunks_spent_ = 0;                           ///< In this attempt.
  std::map<std::uint32_t, wire::progress_report> early_;  ///< By position.
};

}  // namespace ordermoe::serving
