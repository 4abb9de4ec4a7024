#pragma once

#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <optional>
#include <utility>
#include <vector>

namespace ordermoe::model {

/// What crosses between host and device for one batch. On the processor nothing does: rows are read
/// and written where they are. On another device rows go through pinned memory on streams of their
/// own, so that one tile comes or goes while others are computed on the current stream. One thread;
/// everything handed to it, and what it made, lives until finish().
class transfers {
 public:
  explicit transfers(at::Device device);
  /// What is on its way where something failed is waited for, and goes nowhere.
  ~transfers();
  transfers(const transfers&) = delete;
  transfers& operator=(const transfers&) = delete;

  /// n rows of `width` numbers on the device, filled up with zeros to `n_padded`. `rows` stay as they
  /// are until finish().
  at::Tensor up(const float* rows, std::size_t n, std::size_t n_padded, std::size_t width);
  /// The first n rows of a contiguous [*, width], once finish() returned.
  void down(at::Tensor content, float* rows, std::size_t n);
  /// Waits for what is on its way, then everything stands where it is to.
  void finish();

 private:
  struct landing {
    at::Tensor pinned;
    float* rows;
  };
  static at::Tensor pinned(std::int64_t n, std::int64_t width);
  void wait() const;

  at::Device device_;
  std::optional<c10::Stream> in_, out_;  ///< None on the processor.
  std::vector<at::Tensor> in_flight_;    ///< No memory is used again while a stream may read it.
  std::vector<landing> landings_;
};

}  // namespace ordermoe::model
