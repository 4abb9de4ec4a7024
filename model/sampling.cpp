#include "model/sampling.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <vector>

#include "config/error.hpp"
#include "config/exact_exp.hpp"
#include "config/random.hpp"
#include "model/kernels/kernels.hpp"

namespace ordermoe::model {

namespace {

/// In lanes, as compilers find vector instructions for.
float largest_of(std::span<const float> numbers) {
  constexpr std::size_t n_lanes = 16;
  float lanes[n_lanes];
  std::ranges::fill(lanes, -std::numeric_limits<float>::infinity());
  std::size_t i = 0;
  for (; i + n_lanes <= numbers.size(); i += n_lanes)
    for (std::size_t j = 0; j < n_lanes; ++j)
      lanes[j] = numbers[i + j] > lanes[j] ? numbers[i + j] : lanes[j];
  for (; i < numbers.size(); ++i) lanes[0] = numbers[i] > lanes[0] ? numbers[i] : lanes[0];
  return *std::ranges::max_element(lanes);
}

/// Logits as rules leave them.
struct ruled_logits {
  std::span<const float> numbers;  ///< Those that rules change are rounded.
  std::map<std::int32_t, double> changed = {};
  std::int32_t best = 0;  ///< The first of the largest ones; 0 where nothing can be compared.
  double largest = -std::numeric_limits<double>::infinity();
};

std::map<std::int32_t, double> changed_logits(std::span<const float> logits,
                                              const sampling_options& options,
                                              std::span<const std::int32_t> answered) {
  std::map<std::int32_t, double> changed;
  const auto at = [&](std::int32_t id) -> double& {
    // Nothing is likely where nothing can be compared.
    const double logit = logits[static_cast<std::size_t>(id)];
    return changed.emplace(id, std::isnan(logit) ? -std::numeric_limits<double>::infinity() : logit)
        .first->second;
  };
  const auto exists = [&](std::int32_t id) { return static_cast<std::size_t>(id) < logits.size(); };
  for (const auto& [id, bias] : options.bias)
    if (exists(id)) at(id) += bias;
  if (!options.has_penalty()) return changed;
  std::vector<std::int32_t> ids(answered.begin(), answered.end());
  std::ranges::sort(ids);
  for (auto first = ids.begin(); first != ids.end();) {
    const auto last = std::upper_bound(first, ids.end(), *first);
    if (exists(*first))
      at(*first) -=
          options.frequency_penalty * static_cast<double>(last - first) + options.presence_penalty;
    first = last;
  }
  return changed;
}

/// What it shows lasts until this thread asks for the next.
ruled_logits by_rules(std::span<const float> logits, const sampling_options& options,
                      std::span<const std::int32_t> answered) {
  ruled_logits made{.numbers = logits};
  thread_local std::vector<float> room;
  if (!options.bias.empty() || options.has_penalty()) {
    made.changed = changed_logits(logits, options, answered);
    room.assign(logits.begin(), logits.end());
    made.numbers = room;
    for (const auto& [id, score] : made.changed)
      room[static_cast<std::size_t>(id)] = -std::numeric_limits<float>::infinity();
  }
  made.largest = largest_of(made.numbers);
  const auto first = std::ranges::find(made.numbers, static_cast<float>(made.largest));
  if (first != made.numbers.end())
    made.best = static_cast<std::int32_t>(first - made.numbers.begin());
  for (const auto& [id, score] : made.changed) {
    room[static_cast<std::size_t>(id)] = static_cast<float>(score);
    if (score > made.largest || (score == made.largest && id < made.best)) {
      made.largest = score;
      made.best = id;
    }
  }
  return made;
}

struct candidate {
  double weight = 0;
  std::int32_t id = 0;
};
/// The likelier first, of equally likely ones the lower id.
bool stands_before(const candidate& a, const candidate& b) {
  return a.weight > b.weight || (a.weight == b.weight && a.id < b.id);
}

/// Places of the n largest numbers, of those that `slack` and some roundings part from them, and of others, ascending. Where
/// there are as many blocks, the n largest all reach the n-th largest of the blocks' maxima.
std::vector<std::int32_t> places_of_largest(std::span<const float> numbers, std::size_t n,
                                            double slack) {
  std::vector<std::int32_t> places;
  const std::size_t block = numbers.size() / 64 >= 4 * n ? 64 : 16;
  const std::size_t n_blocks = numbers.size() / block;
  if (n == 0 || n > n_blocks) {
    places.resize(numbers.size());
    std::iota(places.begin(), places.end(), 0);
    return places;
  }
  std::vector<float> maxima(n_blocks);
  for (std::size_t i = 0; i < n_blocks; ++i)
    maxima[i] = largest_of(numbers.subspan(i * block, block));
  auto ranked = maxima;
  const auto at = ranked.begin() + static_cast<std::ptrdiff_t>(n - 1);
  std::nth_element(ranked.begin(), at, ranked.end(), std::greater<>());
  const double mark = *at;
  const auto least =
      std::nextafter(static_cast<float>(mark - slack - 1e-6 * std::abs(mark)), -INFINITY);
  const auto take = [&](std::size_t first, std::span<const float> part) {
    for (std::size_t i = 0; i < part.size(); ++i)
      if (part[i] >= least) places.push_back(static_cast<std::int32_t>(first + i));
  };
  for (std::size_t i = 0; i < n_blocks; ++i)
    if (maxima[i] >= least) take(i * block, numbers.subspan(i * block, block));
  take(n_blocks * block, numbers.subspan(n_blocks * block));
  return places;
}

/// How many candidates, likeliest first, reach `share` in sum, one at least; all where they do not.
std::size_t few_with(std::span<const candidate> ranked, double share) {
  double so_far = 0;
  std::size_t few = 0;
  while (few < ranked.size() && (few == 0 || so_far < share)) so_far += ranked[few++].weight;
  return few;
}

/// The last candidate that stays where of the first n, likeliest first, as few stay as have the share top_p of what these have
/// together. Reorders them.
candidate last_by_order(std::span<candidate> candidates, std::size_t n, double top_p) {
  const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(n);
  if (top_p >= 1) {
    std::nth_element(candidates.begin(), end - 1, candidates.end(), stands_before);
    return *(end - 1);
  }
  std::partial_sort(candidates.begin(), end, candidates.end(), stands_before);
  double total = 0;
  for (const auto& each : candidates.first(n)) total += each.weight;
  return candidates[few_with(candidates.first(n), top_p * total) - 1];
}

/// The id at a share of the cumulative distribution e^(score / temperature), ids ascending; -1 where rounding puts it behind the
/// last. Scores are weighed in fp32, block by block, and only the block that the share falls into once more: what is summed
/// is the same on every processor. `largest` is that of the scores, and finite.
std::int32_t draw(std::span<const float> scores, float largest, double temperature, double share) {
  constexpr std::size_t block = 512;
  alignas(64) float weights[block];
  const auto scale = static_cast<float>(1 / temperature);
  const auto weigh = [&](std::size_t start) {
    const auto part = scores.subspan(start, std::min(block, scores.size() - start));
    return kernels().softmax_weights(part.data(), part.size(), largest, scale, weights);
  };
  thread_local std::vector<double> sums;  // Behind each block.
  sums.clear();
  double total = 0;
  for (std::size_t start = 0; start < scores.size(); start += block)
    sums.push_back(total += static_cast<double>(weigh(start)));
  const double mark = share * total;
  const auto found = static_cast<std::size_t>(std::ranges::upper_bound(sums, mark) - sums.begin());
  if (found == sums.size()) return -1;
  const std::size_t start = found * block;
  weigh(start);
  double so_far = found == 0 ? 0 : sums[found - 1];
  std::size_t last =
      start;  // That weighs anything: one by one they may come to less than in lanes.
  for (std::size_t i = start; i < std::min(start + block, scores.size()); ++i) {
    if (!(weights[i - start] > 0)) continue;
    last = i;
    so_far += static_cast<double>(weights[i - start]);
    if (so_far > mark) break;
  }
  return static_cast<std::int32_t>(last);
}

/// Below it a temperature has no reciprocal in fp32 and leaves nothing but the largest anyway.
constexpr double least_temperature = 1e-30;

/// The candidate whose weight lifts the sum of those before it, `before`, to `target`: found by halves, without an order of
/// all. None where a sum is nearer to the target than `margin`, so that the order of summing might decide.
std::optional<candidate> last_of_sum(std::span<candidate> candidates, double before, double target,
                                     double margin) {
  constexpr std::size_t few = 32;
  while (candidates.size() > few) {
    const std::size_t half = candidates.size() / 2;
    const auto middle = candidates.begin() + static_cast<std::ptrdiff_t>(half);
    std::nth_element(candidates.begin(), middle, candidates.end(), stands_before);
    double sum = before;
    for (const auto& each : candidates.first(half)) sum += each.weight;
    if (std::abs(sum - target) <= margin) return std::nullopt;
    if (sum > target) {
      candidates = candidates.first(half);
    } else {
      candidates = candidates.subspan(half);
      before = sum;
    }
  }
  std::ranges::sort(candidates, stands_before);
  for (const auto& each : candidates) {
    before += each.weight;
    if (std::abs(before - target) <= margin) return std::nullopt;
    if (before > target) return each;
  }
  return std::nullopt;
}

/// Sums of weights by their size: a bin is an eighth of a power of two, from 1 downwards.
class weight_bins {
 public:
  static constexpr std::size_t n = 512;

  void add(double weight) { sums_[bin_of(weight)] += weight; }
  double sum(std::size_t bin) const { return sums_[bin]; }
  /// The least weight of a bin; the last one takes all that are smaller, too.
  static double least_of(std::size_t bin) {
    return bin + 1 == n ? 0 : std::bit_cast<double>((one - std::uint64_t{bin}) << shift);
  }

 private:
  static constexpr int shift = 49;
  static constexpr std::uint64_t one = std::bit_cast<std::uint64_t>(1.0) >> shift;

  static std::size_t bin_of(double weight) {
    const auto place = std::min(one, std::bit_cast<std::uint64_t>(weight) >> shift);
    return std::min<std::size_t>(n - 1, one - place);
  }
  double sums_[n] = {};
};

/// last_by_order() of all weights, without ordering them: those that decide are of one size. None where the order of summing
/// might decide.
std::optional<candidate> last_by_size(std::span<const double> weights, double top_p) {
  constexpr std::size_t n_lanes = 8;
  double lanes[n_lanes] = {};
  std::size_t i = 0;
  for (; i + n_lanes <= weights.size(); i += n_lanes)
    for (std::size_t j = 0; j < n_lanes; ++j) lanes[j] += weights[i + j];
  double total = std::accumulate(lanes, lanes + n_lanes, 0.0);
  for (; i < weights.size(); ++i) total += weights[i];
  const auto n = static_cast<double>(weights.size());
  // Of a sum in any order, twice.
  const double margin = 2 * n * std::numeric_limits<double>::epsilon() * total;
  const double target = top_p * total;
  // All that are smaller come to less than what does not stay.
  const double least = std::max(0.0, (total - target - 2 * margin) / n);
  weight_bins bins;
  for (const double weight : weights)
    if (weight >= least) bins.add(weight);
  double before = 0;
  std::size_t first = 0;
  while (first < weight_bins::n && before + bins.sum(first) < target - margin)
    before += bins.sum(first++);
  std::size_t last = first;
  double sum = before;
  while (last < weight_bins::n && (sum += bins.sum(last)) <= target + margin) ++last;
  if (last == weight_bins::n) return std::nullopt;
  const double most = first == 0 ? INFINITY : weight_bins::least_of(first - 1);
  const double fewest = weight_bins::least_of(last);
  std::vector<candidate> deciding;
  for (std::size_t id = 0; id < weights.size(); ++id)
    if (weights[id] >= fewest && weights[id] < most)
      deciding.push_back({weights[id], static_cast<std::int32_t>(id)});
  return last_of_sum(deciding, before, target, margin);
}

/// The id at a share of what those have together that do not stand behind `last`: candidate_at(0) and on, n of them, ids
/// ascending. -1 where rounding puts it behind the last.
template <class CandidateAt>
std::int32_t draw_of_kept(std::size_t n, const candidate& last, double share,
                          const CandidateAt& candidate_at) {
  double total = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const candidate each = candidate_at(i);
    if (!stands_before(last, each)) total += each.weight;
  }
  const double mark = share * total;
  double so_far = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const candidate each = candidate_at(i);
    if (!stands_before(last, each) && (so_far += each.weight) > mark) return each.id;
  }
  return -1;
}

double weight_of(const ruled_logits& logits, std::int32_t id, double temperature) {
  const auto found = logits.changed.find(id);
  const double score = found == logits.changed.end()
                           ? double{logits.numbers[static_cast<std::size_t>(id)]}
                           : found->second;
  return std::isnan(score) ? 0 : exact_exp((score - logits.largest) / temperature);
}

/// Weighs as few as surely are the first top_k or more.
std::int32_t draw_of_few(const ruled_logits& logits, const sampling_options& options,
                         double share) {
  // Of scores that hardly part, weights may be equal, or in the wrong order for their last digits.
  const double slack = 1e-9 * options.temperature;
  std::vector<candidate> few;
  for (const auto id : places_of_largest(logits.numbers, options.top_k, slack))
    few.push_back({weight_of(logits, id, options.temperature), id});
  auto ranked = few;
  const auto last = last_by_order(ranked, std::min(options.top_k, ranked.size()), options.top_p);
  return draw_of_kept(few.size(), last, share, [&](std::size_t i) { return few[i]; });
}

/// Weighs all, for top_p alone.
std::int32_t draw_of_all(const ruled_logits& logits, const sampling_options& options,
                         double share) {
  const auto numbers = logits.numbers;
  thread_local std::vector<double> weights;
  weights.resize(numbers.size());
  kernels().exact_weights(numbers.data(), numbers.size(), logits.largest, options.temperature,
                          weights.data());
  for (double& weight : weights) weight = weight > 0 ? weight : 0;  // What is no number either.
  for (const auto& [id, score] : logits.changed)
    weights[static_cast<std::size_t>(id)] = weight_of(logits, id, options.temperature);
  const auto candidate_at = [](std::size_t i) {
    return candidate{weights[i], static_cast<std::int32_t>(i)};
  };
  auto last = last_by_size(weights, options.top_p);
  if (!last) {
    std::vector<candidate> ranked;
    for (std::size_t i = 0; i < weights.size(); ++i) ranked.push_back(candidate_at(i));
    last = last_by_order(ranked, ranked.size(), options.top_p);
  }
  return draw_of_kept(weights.size(), *last, share, candidate_at);
}

/// The logarithm of the sum of e^logit, summed in order.
double log_of_sum(std::span<const float> logits) {
  const double largest = largest_of(logits);
  constexpr std::size_t block = 512;
  double weights[block];
  double total = 0;
  for (std::size_t start = 0; start < logits.size(); start += block) {
    const auto part = logits.subspan(start, std::min(block, logits.size() - start));
    kernels().exact_weights(part.data(), part.size(), largest, 1, weights);
    for (std::size_t i = 0; i < part.size(); ++i) total += weights[i];
  }
  return std::log(total) + largest;
}

}  // namespace

std::int32_t sample(std::span<const float> logits, const sampling_options& options,
                    std::uint64_t request, std::uint64_t position,
                    std::span<const std::int32_t> answered) {
  ORDERMOE_CHECK(!logits.empty(), "sampling from no logits");
  const auto ruled = by_rules(logits, options, answered);
  if (options.temperature < least_temperature || !std::isfinite(ruled.largest)) return ruled.best;
  const double share = random_unit(options.seed, request, position);
  const auto id =
      options.leaves_all(logits.size())
          ? draw(ruled.numbers, static_cast<float>(ruled.largest), options.temperature, share)
      : options.top_k > 0 && options.top_k < logits.size() ? draw_of_few(ruled, options, share)
                                                           : draw_of_all(ruled, options, share);
  // Rounding may lift the mark to the total itself; the largest logit is then as good as any.
  return id < 0 ? ruled.best : id;
}

std::vector<token_chance> chances(std::span<const float> logits, std::int32_t chosen,
                                  std::size_t n) {
  const double offset = log_of_sum(logits);
  const auto chance_of = [&](std::int32_t id) {
    return token_chance{id, static_cast<double>(logits[static_cast<std::size_t>(id)]) - offset};
  };
  std::vector<token_chance> made{chance_of(chosen)};
  std::vector<candidate> ranked;
  for (const auto id : places_of_largest(logits, n, 0))
    ranked.push_back({logits[static_cast<std::size_t>(id)], id});
  n = std::min(n, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(n), ranked.end(),
                    stands_before);
  for (const auto& each : std::span(ranked).first(n)) made.push_back(chance_of(each.id));
  return made;
}

double negative_log_likelihood(std::span<const float> logits, std::int32_t target) {
  ORDERMOE_CHECK(target >= 0 && static_cast<std::size_t>(target) < logits.size(),
                 fmt::format("token {} of {}", target, logits.size()));
  return log_of_sum(logits) - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

double kl_divergence(std::span<const float> from, std::span<const float> logits) {
  ORDERMOE_CHECK(from.size() == logits.size(), "distributions over different tokens");
  const double largest = largest_of(from);
  constexpr std::size_t block = 512;
  double weights[block];
  double total = 0, higher = 0;
  for (std::size_t start = 0; start < from.size(); start += block) {
    const auto part = from.subspan(start, std::min(block, from.size() - start));
    kernels().exact_weights(part.data(), part.size(), largest, 1, weights);
    for (std::size_t i = 0; i < part.size(); ++i) {
      if (weights[i] == 0) continue;  // Never drawn.
      total += weights[i];
      higher +=
          weights[i] * (static_cast<double>(part[i]) - static_cast<double>(logits[start + i]));
    }
  }
  return std::max(0.0, higher / total - (std::log(total) + largest) + log_of_sum(logits));
}

}  // namespace ordermoe::model
