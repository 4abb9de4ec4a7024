#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace ordermoe::serving {

/// One step that an actor's phase may take, and what makes it take it.
template <class Phase>
struct transition {
  Phase from, to;
  std::string_view cause;
};

/// The phase of an actor, moved along a table of transitions. What comes in a phase that it does not
/// belong to is left alone by the actor; a step that the table does not have is a mistake in the actor.
template <class Phase>
class phase_of {
 public:
  constexpr phase_of(Phase first, std::span<const transition<Phase>> table)
      : now_(first), table_(table) {}

  constexpr Phase now() const { return now_; }
  constexpr bool is(Phase phase) const { return now_ == phase; }

  /// Whether the table has a step to `next` from here.
  constexpr bool may(Phase next) const {
    for (const auto& step : table_)
      if (step.from == now_ && step.to == next) return true;
    return false;
  }

  /// Takes the step; false, and no step, where the table does not have it.
  constexpr bool move(Phase next) {
    if (!may(next)) return false;
    now_ = next;
    return true;
  }

 private:
  Phase now_;
  std::span<const transition<Phase>> table_;
};

}  // namespace ordermoe::serving
