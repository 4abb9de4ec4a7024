#include "model/torch/devices_torch.hpp"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace ordermoe::model {

namespace {

std::int64_t side(std::size_t n) {
  return static_cast<std::int64_t>(n);
}

class torch_matrix final : public device_matrix {
 public:
  explicit torch_matrix(at::Tensor content) : content_(std::move(content)) {}

  std::size_t bytes() const override { return content_.nbytes(); }

  result<void> apply(const float* input, float* output, std::size_t n) const override {
    try {
      const at::Tensor rows =
          at::from_blob(const_cast<float*>(input), {side(n), content_.size(1)}, at::kFloat)
              .to(content_.device());
      std::vector<at::Tensor> results;
      results.reserve(n);
      for (std::size_t i = 0; i < n; ++i)
        results.push_back(at::linear(rows.narrow(0, side(i), 1), content_));
      const at::Tensor all = at::cat(results).to(at::kCPU).contiguous();
      std::memcpy(output, all.data_ptr<float>(), all.nbytes());
      return {};
    } catch (const c10::Error& problem) {
      return error{errc::failed, problem.what_without_backtrace()};
    }
  }

 private:
  at::Tensor content_;  ///< [n_out, n_in] fp32
};

class torch_device final : public compute_device {
 public:
  explicit torch_device(at::Device device) : device_(device) {}

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
      return std::shared_ptr<const device_matrix>(
          std::make_shared<torch_matrix>(plain.to(device_)));
    } catch (const c10::Error& problem) {
      return error{errc::failed,
                   fmt::format("LibTorch cannot hold the weights on '{}': {}; use a smaller model "
                               "or another device",
                               device_.str(), problem.what_without_backtrace())};
    }
  }

 private:
  at::Device device_;
};

class torch_library final : public device_library {
 public:
  result<std::shared_ptr<const compute_device>> open(const std::string& name) const override {
    try {
      const at::Device device(name);
      static_cast<void>(at::empty({1}, at::TensorOptions().device(device)).to(at::kCPU));
      return std::shared_ptr<const compute_device>(std::make_shared<torch_device>(device));
    } catch (const std::exception& problem) {
      const std::string what = problem.what();
      return error{errc::unsupported, fmt::format("device '{}': {}; 'cpu' always works", name,
                                                  what.substr(0, what.find('\n')))};
    }
  }
};

}  // namespace

const device_library& torch_devices() {
  static const torch_library library;
  return library;
}

}  // namespace ordermoe::model
