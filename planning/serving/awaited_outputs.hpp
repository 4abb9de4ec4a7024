#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "config/error.hpp"
#include "net/wire/messages.hpp"

/// The expert outputs that one token awaits at one layer. Each row of it is taken once, however often
/// and in whatever order outputs come, and only from the server that was asked to run it.
///
/// A row whose slots all ran on one server comes back as one sum, otherwise slot by slot: both ends see
/// which from the servers of the slots.
namespace ordermoe::serving {

/// An output and the server that it came from, which the frame says and the output does not.
struct arrived_output {
  wire::expert_output content;
  std::uint32_t from = 0;
};

class awaited_outputs {
 public:
  /// Nothing has come yet. `slots_of_row` [n] and `slots` as in wire::token_state; `hidden_size`
  /// numbers a row.
  void expect(std::uint32_t layer, std::span<const std::uint32_t> slots_of_row,
              std::span<const wire::executed_slot> slots, std::size_t hidden_size);

  /// Keeps of an output what is awaited from its sender and not in; true where everything is in now. An
  /// awaited output that failed is kept as problem().
  bool take(arrived_output output);
  bool complete() const { return missing_ == 0; }
  /// Whether something of this server is missing.
  bool awaits(std::uint32_t server) const;
  /// Why something that is awaited will not come, if so.
  const std::optional<error>& problem() const { return problem_; }

  /// Adds the outputs to the rows' hidden states [n, hidden_size]: a sum as it is, slots by
  /// add_slots(row's hidden, gates, outputs), in rank order. Precondition: complete.
  template <class AddSlots>
  void add_to(std::span<float> hidden, const AddSlots& add_slots) const {
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const auto& row = rows_[i];
      const auto into = hidden.subspan(i * hidden_size_, hidden_size_);
      if (row.n_slots == 0) continue;
      const auto parts = std::span(parts_).subspan(row.first_slot, row.n_slots);
      if (!row.whole) {
        add_slots(into, std::span(gates_).subspan(row.first_slot, row.n_slots), parts);
        continue;
      }
      for (std::size_t c = 0; c < hidden_size_; ++c) into[c] += parts[0][c];
    }
  }

 private:
  struct row {
    std::uint32_t first_slot = 0;
    std::uint32_t n_slots = 0;
    bool whole = false;  ///< One output, of all slots, is awaited; it is kept at first_slot.
  };
  /// Where the part that a row of an output is stands in parts_; null where none is awaited from there.
  const float** place_of(const wire::output_row& row, std::uint32_t from);
  std::uint32_t layer_ = 0;
  std::size_t hidden_size_ = 0;
  std::size_t missing_ = 0;
  std::vector<row> rows_;
  std::vector<float> gates_;            ///< [slots]
  std::vector<std::uint32_t> servers_;  ///< [slots] that run them.
  std::optional<error> problem_;
  std::vector<const float*> parts_;        ///< [slots] where each output is; null: not in.
  std::vector<wire::expert_output> kept_;  ///< What parts_ points into.
};

}  // namespace ordermoe::serving
