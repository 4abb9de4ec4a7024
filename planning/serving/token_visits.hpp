#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "net/wire/messages.hpp"
#include "planning/serving/awaited_outputs.hpp"

/// The tokens of one sequence on one server: which have come, so that each comes once, and outputs that
/// came before the token that awaits them.
///
/// A token is somewhere on its way through the layers, and it passes a server at later and later steps
/// of it. So one number for each token says what has been here.
namespace ordermoe::serving {

/// How far a token is: before the attention of a layer, or awaiting the outputs of one.
constexpr std::uint32_t step_of(std::uint32_t layer, bool awaits_outputs) {
  return 2 * layer + (awaits_outputs ? 1 : 0);
}

inline std::uint32_t step_of(const wire::token_state& state) {
  return step_of(state.layer, !state.slots_of_row.empty());
}

class token_visits {
 public:
  /// So many rows of outputs of each server are kept for tokens that are still to come. First positions that
  /// are asked about are those of the sequence: a number is kept for each of them.
  explicit token_visits(std::size_t most_parked_rows = 0) : most_parked_rows_(most_parked_rows) {}

  /// A token comes: the outputs that wait for it, or nothing where it was here at this step before.
  std::optional<std::vector<arrived_output>> arrive(std::uint32_t first, std::uint32_t step);

  /// A token that was here left, with this step behind it.
  void leave(std::uint32_t first, std::uint32_t step);

  /// An output of a token that is not here: kept for it, where it is still to come. False where it is past
  /// this layer, the output is kept already, or more is than can be awaited.
  bool park(arrived_output output);

  std::size_t parked_rows() const;

 private:
  /// The latest step of the token, one more than it; 0: none yet.
  std::uint32_t& next_step(std::uint32_t first) {
    if (next_steps_.size() <= first) next_steps_.resize(std::size_t{first} + 1);
    return next_steps_[first];
  }

  std::vector<std::uint32_t> next_steps_;                        ///< By first position.
  std::map<std::uint32_t, std::vector<arrived_output>> parked_;  ///< By first position.
  std::map<std::uint32_t, std::size_t> parked_rows_;             ///< By server that they came from.
  std::size_t most_parked_rows_ = 0;
};

}  // namespace ordermoe::serving
