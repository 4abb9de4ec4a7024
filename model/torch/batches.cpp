#include "model/torch/batches_torch.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace ordermoe::training {

batch_size batch_size_of(const train_options& options, std::uint64_t step) {
  const bool doubled = step % 8 == 7 && options.max_context >= 2 * options.sequence_length &&
                       options.sequences_per_step % 2 == 0;
  const auto length = static_cast<std::int64_t>(options.sequence_length),
             rows = static_cast<std::int64_t>(options.sequences_per_step);
  return doubled ? batch_size{rows / 2, 2 * length} : batch_size{rows, length};
}

torch::Tensor batch_feed::make(std::uint64_t tokens, batch_size size) const {
  auto batch = torch::empty({size.rows, size.length + 1}, torch::kInt64);
  auto* ids = batch.data_ptr<std::int64_t>();
  std::atomic<std::int64_t> next{0};
  const auto fill = [&] {
    for (std::int64_t r; (r = next.fetch_add(1)) < size.rows;)
      source_.fill(tokens, static_cast<std::uint64_t>(r),
                   {ids + r * (size.length + 1), static_cast<std::size_t>(size.length + 1)});
  };
  // A row is a function of its number: who makes it does not matter.
  std::vector<std::jthread> others;
  for (int i = 1; i < options_.threads; ++i) others.emplace_back(fill);
  fill();
  others.clear();
  return batch;
}

torch::Tensor batch_feed::take(std::uint64_t tokens, batch_size size) {
  if (next_.valid()) {
    auto ready = next_.get();
    if (next_tokens_ == tokens && ready.size(0) == size.rows) return ready;
  }
  return make(tokens, size);
}

void batch_feed::prepare(std::uint64_t tokens, batch_size size) {
  next_tokens_ = tokens;
  next_ = std::async(std::launch::async, [this, tokens, size] { return make(tokens, size); });
}

}  // namespace ordermoe::training
