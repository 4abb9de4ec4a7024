#include "model/torch/devices_torch.hpp"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "model/torch/matrix_torch.hpp"
#include "model/torch/transfers_torch.hpp"

namespace ordermoe::model {

std::int64_t tile_sizes::of(const std::string& key, const row_function& run, std::int64_t n_in,
                            at::Device device) const {
  const std::scoped_lock lock(guard_);
  const auto found = known_.find(key);
  if (found != known_.end()) return found->second;
  return known_[key] = rows_of_tile(run, n_in, device);
}

namespace {

std::string shape_of(const at::Tensor& matrix) {
  return fmt::format("{}x{}{}", matrix.size(0), matrix.size(1),
                     matrix.scalar_type() == at::kBFloat16 ? " in bf16" : "");
}

const torch_matrix& of_torch(const std::shared_ptr<const device_matrix>& matrix) {
  return static_cast<const torch_matrix&>(*matrix);
}

}  // namespace

torch_matrix::torch_matrix(at::Tensor content, const tile_sizes& tiles)
    : content_(std::move(content)) {
  tile_ = tiles.of(
      shape_of(content_), [&](const at::Tensor& rows) { return of_tile(rows); }, content_.size(1),
      content_.device());
}

at::Tensor torch_matrix::of_rows(const at::Tensor& rows) const {
  const auto n = rows.size(0);
  std::vector<at::Tensor> made;
  for (std::int64_t first = 0; first < n; first += tile_) {
    const auto count = std::min(tile_, n - first);
    auto part = rows.narrow(0, first, count);
    if (count < tile_) part = at::constant_pad_nd(part, {0, 0, 0, tile_ - count});
    made.push_back(of_tile(part));
  }
  return (made.size() == 1 ? made.front() : at::cat(made)).narrow(0, 0, n);
}

result<void> torch_matrix::apply(const float* input, float* output, std::size_t n) const {
  return guarded_by_torch(content_.device(), [&] {
    const c10::InferenceMode guard;
    run_tiles(
        content_.device(), tile_, [&](const at::Tensor& rows) { return of_tile(rows); }, input,
        static_cast<std::size_t>(content_.size(1)), output, n);
  });
}

void run_tiles(at::Device device, std::int64_t tile, const row_function& run, const float* input,
               std::size_t n_in, float* output, std::size_t n) {
  transfers crossing(device);
  const auto step = static_cast<std::size_t>(tile);
  std::vector<at::Tensor> tiles;
  for (std::size_t first = 0; first < n; first += step)
    tiles.push_back(crossing.up(input + first * n_in, std::min(step, n - first), step, n_in));
  for (std::size_t i = 0; i < tiles.size(); ++i) {
    const auto made = run(tiles[i]).contiguous();
    crossing.down(made, output + i * step * static_cast<std::size_t>(made.size(1)),
                  std::min(step, n - i * step));
  }
  crossing.finish();
}

namespace {

class torch_feed_forward final : public device_feed_forward {
 public:
  torch_feed_forward(std::shared_ptr<const device_matrix> gate_and_up,
                     std::shared_ptr<const device_matrix> down, const tile_sizes& tiles)
      : gate_and_up_(std::move(gate_and_up)), down_(std::move(down)) {
    const auto& first = of_torch(gate_and_up_).content();
    const auto& second = of_torch(down_).content();
    inner_ = second.size(1);
    gated_ = first.size(0) != inner_;
    tile_ = tiles.of(
        shape_of(first) + "," + shape_of(second),
        [&](const at::Tensor& rows) { return of_tile(rows); }, first.size(1), first.device());
  }

  result<void> apply(const float* input, float* output, std::size_t n) const override {
    const auto& first = of_torch(gate_and_up_).content();
    return guarded_by_torch(first.device(), [&] {
      const c10::InferenceMode guard;
      run_tiles(
          first.device(), tile_, [&](const at::Tensor& rows) { return of_tile(rows); }, input,
          static_cast<std::size_t>(first.size(1)), output, n);
    });
  }

 private:
  at::Tensor of_tile(const at::Tensor& rows) const {
    const auto both = of_torch(gate_and_up_).of_tile(rows);
    return of_torch(down_).of_tile(each_row(both, [&](const at::Tensor& each) {
      if (!gated_) return at::relu(each);
      return at::mul(at::silu(each.narrow(1, 0, inner_)), each.narrow(1, inner_, inner_));
    }));
  }

  std::shared_ptr<const device_matrix> gate_and_up_, down_;
  std::int64_t inner_ = 0, tile_ = 1;
  bool gated_ = false;
};

class torch_device final : public compute_device {
 public:
  explicit torch_device(at::Device device) : device_(device), splits_(has_split_products(device)) {}

  result<std::shared_ptr<const device_matrix>> keep(std::size_t n_out, std::size_t n_in,
                                                    const row_writer& rows) const override {
    try {
      at::Tensor plain = at::empty({side(n_out), side(n_in)}, at::kFloat);
      const std::span numbers(plain.data_ptr<float>(), n_out * n_in);
      constexpr std::size_t rows_at_once = 64;
      for (std::size_t first = 0; first < n_out; first += rows_at_once) {
        const std::size_t n = std::min(rows_at_once, n_out - first);
        rows(first, n, numbers.subspan(first * n_in, n * n_in));
      }
      auto there = plain.to(device_);
      return std::shared_ptr<const device_matrix>(std::make_shared<torch_matrix>(
          splits_ ? kept_for_split_products(std::move(there)) : std::move(there), tiles_));
    } catch (const c10::Error& problem) {
      return no_room(problem);
    }
  }

  std::shared_ptr<const device_feed_forward> feed_forward(
      std::shared_ptr<const device_matrix> gate_and_up,
      std::shared_ptr<const device_matrix> down) const override {
    return std::make_shared<torch_feed_forward>(std::move(gate_and_up), std::move(down), tiles_);
  }

  result<std::shared_ptr<const device_attention>> attention(
      device_attention_parts parts) const override {
    try {
      return make_attention(device_, std::move(parts));
    } catch (const c10::Error& problem) {
      return no_room(problem);
    }
  }

 private:
  error no_room(const c10::Error& problem) const {
    return {errc::failed,
            fmt::format("LibTorch cannot hold the weights on '{}': {}; use a smaller model "
                        "or another device",
                        device_.str(), problem.what_without_backtrace())};
  }

  at::Device device_;
  bool splits_;
  tile_sizes tiles_;
};

/// A BLAS that shares out a product gives other bits with another number of threads, and servers of one kind have
/// processors of many sizes.
void compute_on_one_thread() {
  at::set_num_threads(1);
  if (void* found = ::dlsym(RTLD_DEFAULT, "openblas_set_num_threads"))
    reinterpret_cast<void (*)(int)>(found)(1);
}

class torch_library final : public device_library {
 public:
  result<std::shared_ptr<const compute_device>> open(const std::string& name) const override {
    try {
      // Products in fp32 as they are asked for, and of the same bits each time.
      at::globalContext().setAllowTF32CuBLAS(false);
      at::globalContext().setAllowTF32CuDNN(false);
      const at::Device device(name);
      if (device.is_cpu()) compute_on_one_thread();
      static_cast<void>(at::empty({1}, at::TensorOptions().device(device)).to(at::kCPU));
      return std::shared_ptr<const compute_device>(std::make_shared<torch_device>(device));
    } catch (const std::exception& problem) {
      const std::string what = problem.what();
      return error{
          errc::unsupported,
          fmt::format("device 'libtorch:{}': {}; name one that this LibTorch knows (Debian's "
                      "knows libtorch:cpu alone), or cpu, the kernels, which always work",
                      name, what.substr(0, what.find('\n')))};
    }
  }
};

}  // namespace

const device_library& torch_devices() {
  static const torch_library library;
  return library;
}

}  // namespace ordermoe::model
