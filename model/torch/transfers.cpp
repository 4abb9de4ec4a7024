#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>

#include "model/torch/transfers_torch.hpp"

namespace ordermoe::model {

namespace {

/// What comes next on `later` waits for what is on `earlier` now.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  c10::Event reached(earlier.device_type());
  reached.record(earlier);
  reached.block(later);
}

}  // namespace

transfers::transfers(at::Device device) : device_(device) {
  if (device.is_cpu()) return;
  const c10::impl::VirtualGuardImpl streams(device.type());
  in_ = streams.getStreamFromGlobalPool(device);
  out_ = streams.getStreamFromGlobalPool(device);
}

at::Tensor transfers::pinned(std::int64_t n, std::int64_t width) {
  return at::empty({n, width}, at::TensorOptions(at::kFloat).pinned_memory(true));
}

at::Tensor transfers::up(const float* rows, std::size_t n, std::size_t n_padded,
                         std::size_t width) {
  const auto wide = static_cast<std::int64_t>(width);
  const auto all = static_cast<std::int64_t>(n_padded);
  if (device_.is_cpu() && n == n_padded)
    return at::from_blob(const_cast<float*>(rows), {all, wide}, at::kFloat);
  at::Tensor here = device_.is_cpu() ? at::empty({all, wide}, at::kFloat) : pinned(all, wide);
  auto* to = here.data_ptr<float>();
  std::memcpy(to, rows, n * width * sizeof(float));
  std::memset(to + n * width, 0, (n_padded - n) * width * sizeof(float));
  if (device_.is_cpu()) return here;
  at::Tensor there;
  {
    const c10::StreamGuard guard(*in_);
    there = here.to(device_, true);
  }
  order(*in_, c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
  in_flight_.push_back(std::move(here));
  in_flight_.push_back(there);
  return there;
}

void transfers::down(at::Tensor content, float* rows, std::size_t n) {
  const auto part = content.narrow(0, 0, static_cast<std::int64_t>(n));
  if (device_.is_cpu()) {
    std::memcpy(rows, part.data_ptr<float>(), part.nbytes());
    return;
  }
  order(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_), *out_);
  const c10::StreamGuard guard(*out_);
  landings_.push_back({pinned(part.size(0), part.size(1)), rows});
  landings_.back().pinned.copy_(part, true);
  in_flight_.push_back(std::move(content));
}

void transfers::wait() const {
  if (in_flight_.empty()) return;
  const c10::impl::VirtualGuardImpl streams(device_.type());
  streams.synchronizeStream(*in_);
  streams.synchronizeStream(streams.getStream(device_));
  streams.synchronizeStream(*out_);
}

transfers::~transfers() {
  try {
    wait();
  } catch (const std::exception&) {
    // The device is lost; whoever asked of it has been told.
  }
}

void transfers::finish() {
  wait();
  for (const auto& each : landings_)
    std::memcpy(each.rows, each.pinned.data_ptr<float>(), each.pinned.nbytes());
  landings_.clear();
  in_flight_.clear();
}

}  // namespace ordermoe::model
