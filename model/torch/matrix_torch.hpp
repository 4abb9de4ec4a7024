#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "model/compute_device.hpp"
#include "model/torch/split_products_torch.hpp"
#include "model/torch/tiles_torch.hpp"

namespace ordermoe::model {

inline std::int64_t side(std::size_t n) {
  return static_cast<std::int64_t>(n);
}

/// Calls a body; what it throws of LibTorch's becomes an error.
template <class Body>
result<void> guarded_by_torch(at::Device device, const Body& body);

/// Rows of tiles by what goes through them: measured once for each shape.
class tile_sizes {
 public:
  /// `key`: the sizes of all matrices that `run` multiplies by.
  std::int64_t of(const std::string& key, const row_function& run, std::int64_t n_in,
                  at::Device device) const;

 private:
  mutable std::mutex guard_;
  mutable std::map<std::string, std::int64_t> known_;
};

class torch_matrix final : public device_matrix {
 public:
  torch_matrix(at::Tensor content, const tile_sizes& tiles);

  std::size_t bytes() const override { return content_.nbytes(); }
  result<void> apply(const float* input, float* output, std::size_t n) const override;

  const at::Tensor& content() const { return content_; }
  /// The product of rows of one tile.
  at::Tensor of_tile(const at::Tensor& rows) const { return product(rows, content_); }
  /// Of any number of rows on the device.
  at::Tensor of_rows(const at::Tensor& rows) const;
  std::int64_t tile() const { return tile_; }

 private:
  at::Tensor content_;  ///< [n_out, n_in] fp32, or bf16 for split products.
  std::int64_t tile_ = 1;
};

/// Rows on the host through a function of tiles of `tile` rows, [n, n_in] to [n, n_out].
void run_tiles(at::Device device, std::int64_t tile, const row_function& run, const float* input,
               std::size_t n_in, float* output, std::size_t n);

/// `parts` are of this device. Throws what LibTorch throws.
std::shared_ptr<const device_attention> make_attention(at::Device device,
                                                       device_attention_parts parts);

template <class Body>
result<void> guarded_by_torch(at::Device device, const Body& body) {
  try {
    body();
    return {};
  } catch (const c10::Error& problem) {
    return error{errc::failed,
                 "libtorch:" + device.str() + ": " + problem.what_without_backtrace()};
  } catch (const std::exception& problem) {
    return error{errc::failed, "libtorch:" + device.str() + ": " + problem.what()};
  }
}

}  // namespace ordermoe::model
