#include "config/loss_metric.hpp"

#include <array>

namespace ordermoe {

namespace {

constexpr std::array<const char*, n_loss_metrics> names{"router-logit", "token-gate"};

}  // namespace

const char* to_string(loss_metric metric) {
  return names[static_cast<std::size_t>(metric)];
}

}  // namespace ordermoe
