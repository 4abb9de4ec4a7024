#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/error.hpp"

/// Devices that LibTorch computes on. The interfaces are implemented in model/torch and cross into
/// it as they stand; no exception of LibTorch's leaves them.
///
/// Goals: weights and keys and values stay on the device, rows alone cross, in whole batches, and one
/// batch's rows cross while others are computed; a row has the same bits whatever shares its batch.
/// How the last: rows go through every product in tiles of one fixed number of rows, filled up with
/// zeros, which was seen to give each row of a tile the same bits wherever it is (tiles_torch.hpp).
/// Rows are row-major fp32 on the host.
namespace ordermoe::model {

struct attention_row;

/// A weight matrix on a device, in fp32, or in bf16 where its numbers fit and rows lose nothing by it. Const members may be
/// called from several threads at once.
class device_matrix {
 public:
  virtual ~device_matrix() = default;
  virtual std::size_t bytes() const = 0;
  /// output = input * weights^T for n rows, [n, n_in] to [n, n_out]. Error: failed.
  virtual result<void> apply(const float* input, float* output, std::size_t n) const = 0;
};

/// Writes rows [first, first + n) of a matrix, row-major fp32.
using row_writer = std::function<void(std::size_t first, std::size_t n, std::span<float> numbers)>;

/// An expert or dense feed-forward on a device.
class device_feed_forward {
 public:
  virtual ~device_feed_forward() = default;
  /// n rows, [n, width] to [n, width]. Error: failed.
  virtual result<void> apply(const float* input, float* output, std::size_t n) const = 0;
};

/// What attention of a sequence's rows to those before them is made of.
struct device_attention_parts {
  std::size_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  bool norm_per_head = false;  ///< Else over all heads of a row.
  float norm_epsilon = 0;
  std::shared_ptr<const device_matrix> query_key_value;  ///< q, k, v one after the other.
  std::shared_ptr<const device_matrix> output;
  std::vector<float> bias;                  ///< Of q, k, v, or nothing.
  std::vector<float> query_norm, key_norm;  ///< Or nothing.
};

/// That attention on a device. What it keeps of the rows' caches stands in their mirrors (kv_mirror):
/// rows that came from elsewhere cross to it once, rows that it computes never.
class device_attention {
 public:
  virtual ~device_attention() = default;
  /// update = output(attention) of each row, [n, hidden_size], where `normed` are the rows behind their
  /// norm, likewise, and `angles` [n, head_dim] the cosines and then sines of each row's position. Keys
  /// and values are written to the numbers of the caches' rows from `offset` on. Error: failed.
  virtual result<void> attend(std::span<const attention_row> rows, std::size_t offset,
                              const float* angles, const float* normed, float* update) const = 0;
  /// Writes keys and values alone, with the bits that attend() writes. Error: failed.
  virtual result<void> keep(std::span<const attention_row> rows, std::size_t offset,
                            const float* angles, const float* normed) const = 0;
};

class compute_device {
 public:
  virtual ~compute_device() = default;
  /// A matrix [n_out, n_in], asked of `rows` from the first row to the last. Throws what `rows`
  /// throws. Error: failed where the device has no room.
  virtual result<std::shared_ptr<const device_matrix>> keep(std::size_t n_out, std::size_t n_in,
                                                            const row_writer& rows) const = 0;
  /// down(silu(gate) * up) where gate_and_up has twice the outputs that down has inputs, gate first;
  /// else down(max(0, up)). Both are this device's.
  virtual std::shared_ptr<const device_feed_forward> feed_forward(
      std::shared_ptr<const device_matrix> gate_and_up,
      std::shared_ptr<const device_matrix> down) const = 0;
  /// Of matrices of this device. Error: failed where the device has no room.
  virtual result<std::shared_ptr<const device_attention>> attention(
      device_attention_parts parts) const = 0;
};

/// What the module's entry ordermoe_torch_devices returns.
class device_library {
 public:
  virtual ~device_library() = default;
  virtual result<std::shared_ptr<const compute_device>> open(const std::string& name) const = 0;
};

/// The device of a LibTorch device string ("cpu", "cuda:1"). Loads LibTorch. Errors: unsupported,
/// where there is no such device or no module (torch_module.hpp).
result<std::shared_ptr<const compute_device>> open_device(const std::string& name);

}  // namespace ordermoe::model
