#pragma once

#include <cstdint>
#include <future>

#include <torch/torch.h>

#include "model/training/text_source.hpp"
#include "model/training/train.hpp"

namespace ordermoe::training {

struct batch_size {
  std::int64_t rows = 0;
  std::int64_t length = 0;  ///< Of a row, without the id that is only a target.
};

/// Every eighth step has rows twice as long and half as many, so that late positions are trained
/// too. `step` counts the optimiser's.
batch_size batch_size_of(const train_options& options, std::uint64_t step);

/// Makes the rows of steps, and those of the next step while a device computes.
class batch_feed {
 public:
  batch_feed(const text_source& source, const train_options& options)
      : source_(source), options_(options) {}

  /// Ids int64 [rows, length + 1] of the step that comes after `tokens`, as the source has them.
  torch::Tensor take(std::uint64_t tokens, batch_size size);
  /// Starts on what take() will be asked for next.
  void prepare(std::uint64_t tokens, batch_size size);

 private:
  torch::Tensor make(std::uint64_t tokens, batch_size size) const;
  const text_source& source_;
  const train_options& options_;
  std::future<torch::Tensor> next_;
  std::uint64_t next_tokens_ = 0;
};

}  // namespace ordermoe::training
