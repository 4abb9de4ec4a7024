#include "config/loss_metric.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

namespace ordermoe {

namespace {

constexpr std::array<const char*, n_loss_metrics> names{"router-logit", "token-gate"};

}  // namespace

const char* to_string(loss_metric metric) {
  return names[static_cast<std::size_t>(metric)];
}

result<loss_metric> parse_loss_metric(std::string_view name) {
  for (std::size_t i = 0; i < names.size(); ++i)
    if (name == names[i]) return static_cast<loss_metric>(i);
  return error{errc::usage, fmt::format("found the loss metric '{}', expected one of {}", name,
                                        fmt::join(names, ", "))};
}

}  // namespace ordermoe
