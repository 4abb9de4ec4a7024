#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "config/error.hpp"

/// Devices that LibTorch computes on. The interfaces are implemented in model/torch and cross into
/// it as they stand; no exception of LibTorch's leaves them.
namespace ordermoe::model {

/// A weight matrix in fp32 on a device. Const members may be called from several threads at once.
class device_matrix {
 public:
  virtual ~device_matrix() = default;
  virtual std::size_t bytes() const = 0;
  /// output = input * weights^T for n rows on the host, [n, n_in] to [n, n_out]; one row at a time,
  /// so that a row's bits do not depend on the number of rows. Error: failed.
  virtual result<void> apply(const float* input, float* output, std::size_t n) const = 0;
};

/// Writes rows [first, first + n) of a matrix, row-major fp32.
using row_writer = std::function<void(std::size_t first, std::size_t n, std::span<float> numbers)>;

class compute_device {
 public:
  virtual ~compute_device() = default;
  /// A matrix [n_out, n_in], asked of `rows` from the first row to the last. Throws what `rows`
  /// throws. Error: failed where the device has no room.
  virtual result<std::shared_ptr<const device_matrix>> keep(std::size_t n_out, std::size_t n_in,
                                                            const row_writer& rows) const = 0;
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
