#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "config/error.hpp"
#include "model/checkpoint/matrix_source.hpp"
#include "model/compute_device.hpp"
#include "model/kernels/kernels.hpp"

/// Weight matrices as transformer keeps them, and the three of an expert. apply() is const and may
/// be called from several threads at once; a device that fails in it throws device_failure.
namespace ordermoe::model {

/// Rows that go through a matrix at once where scratch memory has to be bounded.
constexpr std::size_t most_rows = 128;

/// Where a matrix lies and what multiplies by it.
struct compute_place {
  std::shared_ptr<const compute_device> device = nullptr;  ///< Null: the host's kernels.
};

/// A device could not hold a matrix, or not compute.
struct device_failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Grows and never shrinks, on a boundary of a cache line; contents are undefined after room().
class scratch_buffer {
 public:
  scratch_buffer() = default;
  scratch_buffer(const scratch_buffer&) = delete;
  scratch_buffer& operator=(const scratch_buffer&) = delete;

  float* room(std::size_t n) {
    if (size_ < n) grow(n);
    return numbers_;
  }

 private:
  void grow(std::size_t n);

  std::shared_ptr<std::byte> memory_;  ///< From huge pages where it is large.
  float* numbers_ = nullptr;
  std::size_t size_ = 0;
};

/// A weight matrix [n_out, n_in]: packed for the kernels on the host, plain on another device.
class projection {
 public:
  projection() = default;
  /// Reads the source from its first row to its last, but what is packed already stays where it is,
  /// as it is. Throws device_failure and std::bad_alloc.
  /// Precondition: on a device, `kept` is stored and the source not packed.
  projection(matrix_source& source, const compute_place& place, precision kept = precision::stored);
  projection(std::span<const float> row_major, std::size_t n_out, std::size_t n_in,
             const compute_place& place, precision kept = precision::stored);

  std::size_t n_out() const { return packed_.layout.n_out; }
  std::size_t n_in() const { return packed_.layout.n_in; }
  /// Of the weights, on whatever device; 0 where nothing was loaded.
  std::size_t bytes() const;

  /// The same matrix without its first outputs, a multiple of 64 of them; it shares the weights. Nothing on another device.
  std::optional<projection> without_first(std::size_t n_outputs) const;

  /// output = input * weights^T for n rows, [n, n_in] to [n, n_out]. Throws device_failure.
  void apply(const float* input, float* output, std::size_t n) const;
  /// Null on the host.
  const std::shared_ptr<const device_matrix>& on_device() const { return device_; }

 private:
  packed_matrix packed_;                         ///< data: null on another device.
  std::shared_ptr<const void> host_;             ///< Owns what packed_ points at.
  std::shared_ptr<const device_matrix> device_;  ///< Nothing on the host's kernels.
};

/// One expert or dense feed-forward: output = down(silu(gate(input)) * up(input)), or
/// output = down(max(0, up(input))) where it has no gate.
class expert_weights {
 public:
  expert_weights() = default;
  /// gate and up are [inner, width], down is [width, inner]; each is read from its first row to its
  /// last. What is stored quantised or packed stays so whatever `kept` says; then gate and up are
  /// stored alike, and the kernels multiply. Throws as projection does.
  expert_weights(matrix_source& gate, matrix_source& up, matrix_source& down,
                 const compute_place& place, precision kept = precision::stored);
  /// gate and up are [inner, width] row-major, down is [width, inner]. Throws as projection does.
  expert_weights(std::span<const float> gate, std::span<const float> up,
                 std::span<const float> down, std::size_t width, std::size_t inner,
                 const compute_place& place, precision kept = precision::stored);

  /// Without a gate.
  expert_weights(matrix_source& up, matrix_source& down, const compute_place& place,
                 precision kept = precision::stored);
  /// What is packed already; `owner` keeps it in memory.
  expert_weights(const packed_expert& packed, std::shared_ptr<const void> owner);

  /// Whether it was loaded.
  bool there() const { return packed_.up.data != nullptr || down_.n_out() > 0; }
  std::size_t bytes() const;
  /// n rows, [n, width] to [n, width]. Throws device_failure. Precondition: there().
  void apply(const float* input, float* output, std::size_t n) const;

 private:
  void keep(matrix_source* gate, matrix_source& up, matrix_source& down, const compute_place& place,
            precision kept);

  packed_expert packed_;              ///< data: null on a device.
  std::shared_ptr<const void> host_;  ///< Owns what packed_ points at.
  /// [2 * inner, width]: the gate's rows, then the others; without a gate [inner, width]. This and
  /// the next two on a device.
  projection gate_and_up_;
  projection down_;  ///< [width, inner]
  std::shared_ptr<const device_feed_forward> on_device_;
};

/// Bytes of an expert on the host; `stored` counts bf16, as published checkpoints have it.
std::size_t expert_bytes(std::size_t width, std::size_t inner, precision kept, bool gated = true);

}  // namespace ordermoe::model
