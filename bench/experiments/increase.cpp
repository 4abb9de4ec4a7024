#include "bench/experiments/increase.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace ordermoe::experiments {

result<paired_increase> increase_by_document(std::span<const double> losses,
                                             std::span<const double> exact,
                                             std::span<const std::size_t> lengths) {
  const auto n = std::accumulate(lengths.begin(), lengths.end(), std::size_t{0});
  if (n == 0 || losses.size() != n || exact.size() != n)
    return error{errc::mismatch,
                 fmt::format("found {} and {} scored tokens, expected {} of {} documents in each",
                             losses.size(), exact.size(), n, lengths.size())};
  std::vector<double> of_document;
  std::size_t at = 0;
  for (const auto length : lengths) {
    double sum = 0;
    for (const auto end = at + length; at < end; ++at) sum += losses[at] - exact[at];
    of_document.push_back(sum);
  }
  const auto tokens = static_cast<double>(n), documents = static_cast<double>(lengths.size());
  const double mean = std::accumulate(of_document.begin(), of_document.end(), 0.0) / tokens;
  double square = 0;
  for (std::size_t i = 0; i < of_document.size(); ++i)
    square += std::pow(of_document[i] - mean * static_cast<double>(lengths[i]), 2);
  constexpr double two_sided_95 = 1.96;
  const double half =
      documents > 1 ? two_sided_95 * std::sqrt(square * documents / (documents - 1)) / tokens : 0;
  return paired_increase{100 * std::expm1(mean), 100 * std::expm1(mean - half),
                         100 * std::expm1(mean + half)};
}

}  // namespace ordermoe::experiments
