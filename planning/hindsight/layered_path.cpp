#include "planning/hindsight/layered_path.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <tuple>

#include "planning/infinity.hpp"

namespace ordermoe::planning {

namespace {

constexpr std::size_t n_nodes = 64;
constexpr double path_rounding = 1e-12;
constexpr int max_prices = 60;

/// What is known of the rest of the way from each node before each step: [steps + 1][n_nodes].
using rest_of_way = std::vector<std::array<double, n_nodes>>;

struct path_sum {
  double ns = infinity;
  loss_units loss = 0;
};

struct label {
  double ns = 0;
  loss_units loss = 0;
  double bound = 0;  ///< No way with this beginning is faster.
  std::uint8_t node = 0;
};

class path_search {
 public:
  explicit path_search(const layered_problem& problem) : problem_(problem) {}

  result<layered_optimum> solve() {
    const bool is_limited = problem_.budget < unbounded_budget;
    const auto fastest = least(0, by_time_);
    if (std::isinf(fastest.ns))
      return error{errc::infeasible, "layered path: no way leads through all steps"};
    if (!is_limited || fastest.loss <= problem_.budget)
      return layered_optimum{fastest.ns, fastest.loss, fastest.ns, true};
    const auto cheapest = find_least_losses();
    if (std::isinf(cheapest.ns) || cheapest.loss > problem_.budget)
      return error{errc::infeasible, "layered path: every way loses more than the budget"};
    best_ = cheapest;
    maximise_dual(fastest, cheapest);
    return close_gap();
  }

 private:
  /// The way of least ns + price * loss, ties to the lower loss. rest: keeps that cost of the rest of the way.
  path_sum least(double price, rest_of_way& rest) const {
    const auto n = problem_.steps.size();
    std::array<double, n_nodes> value{}, before{};
    std::array<path_sum, n_nodes> sums{}, sums_before{};
    for (auto& sum : sums) sum = {0, 0};
    rest.assign(n + 1, {});
    for (std::size_t i = n; i-- > 0;) {
      before.fill(infinity);
      sums_before.fill({});
      for (const auto& way : problem_.steps[i]) {
        if (std::isinf(value[way.to])) continue;
        const double cost = way.ns + price * static_cast<double>(way.loss) + value[way.to];
        const auto loss = way.loss + sums[way.to].loss;
        auto& known = before[way.from];
        if (cost > known || (cost == known && loss >= sums_before[way.from].loss)) continue;
        known = cost;
        sums_before[way.from] = {way.ns + sums[way.to].ns, loss};
      }
      value = before;
      sums = sums_before;
      rest[i] = value;
    }
    auto found = sums[problem_.start];
    if (std::isinf(value[problem_.start])) found.ns = infinity;
    return found;
  }

  /// The way of least loss, ties to the faster one.
  path_sum find_least_losses() {
    const auto n = problem_.steps.size();
    rest_loss_.assign(n + 1, {});
    rest_loss_[n].fill({0, 0});
    for (std::size_t i = n; i-- > 0;)
      for (const auto& way : problem_.steps[i]) {
        const auto& after = rest_loss_[i + 1][way.to];
        auto& known = rest_loss_[i][way.from];
        const path_sum here{way.ns + after.ns, way.loss + after.loss};
        if (std::isinf(here.ns)) continue;
        if (std::isinf(known.ns) || std::tie(here.loss, here.ns) < std::tie(known.loss, known.ns))
          known = here;
      }
    return rest_loss_[0][problem_.start];
  }

  /// Between a way that is too dear in loss and one that is not, the price at which both are alike, until no way lies below them.
  void maximise_dual(path_sum fast, path_sum kept) {
    for (int round = 0; round < max_prices && fast.loss > kept.loss; ++round) {
      const double price = (kept.ns - fast.ns) / static_cast<double>(fast.loss - kept.loss);
      if (!(price > 0)) break;
      const auto found = least(price, by_price_);
      price_ = price;
      const double cost = found.ns + price * static_cast<double>(found.loss);
      const double known = kept.ns + price * static_cast<double>(kept.loss);
      bound_ = std::max(
          bound_, by_price_[0][problem_.start] - price * static_cast<double>(problem_.budget));
      if (found.loss <= problem_.budget && found.ns < best_.ns) best_ = found;
      if (cost >= known * (1 - path_rounding)) break;
      (found.loss <= problem_.budget ? kept : fast) = found;
    }
    bound_ = std::max(bound_, by_time_[0][problem_.start]);
  }

  double bound_of(std::size_t step, const label& at) const {
    double bound = at.ns + by_time_[step][at.node];
    if (!by_price_.empty())
      bound = std::max(bound, at.ns + by_price_[step][at.node] -
                                  price_ * static_cast<double>(problem_.budget - at.loss));
    return bound;
  }

  /// Labels of a step that are worth following: none that another is no worse than, and no more than are kept.
  void thin_out(std::vector<label>& labels) {
    std::sort(labels.begin(), labels.end(), [](const label& a, const label& b) {
      return std::tie(a.node, a.ns, a.loss) < std::tie(b.node, b.ns, b.loss);
    });
    std::size_t kept = 0;
    for (const auto& each : labels) {
      if (kept > 0 && labels[kept - 1].node == each.node && labels[kept - 1].loss <= each.loss)
        continue;
      labels[kept++] = each;
    }
    labels.resize(kept);
    if (kept <= problem_.max_labels) return;
    const auto last = labels.begin() + static_cast<std::ptrdiff_t>(problem_.max_labels);
    std::nth_element(labels.begin(), last, labels.end(),
                     [](const label& a, const label& b) { return a.bound < b.bound; });
    for (auto each = last; each != labels.end(); ++each) dropped_ = std::min(dropped_, each->bound);
    labels.erase(last, labels.end());
  }

  layered_optimum close_gap() {
    std::vector<label> now{{0, 0, bound_, static_cast<std::uint8_t>(problem_.start)}}, after;
    std::vector<const step_way*> ways;
    std::array<std::size_t, n_nodes + 1> first{};
    for (std::size_t i = 0; i < problem_.steps.size(); ++i) {
      order_ways(problem_.steps[i], ways, first);
      after.clear();
      for (const auto& at : now)
        for (auto w = first[at.node]; w < first[at.node + 1u]; ++w) {
          const auto& way = *ways[w];
          label next{at.ns + way.ns, at.loss + way.loss, 0, way.to};
          const auto& rest = rest_loss_[i + 1][way.to];
          if (std::isinf(rest.ns) || next.loss + rest.loss > problem_.budget) continue;
          next.bound = bound_of(i + 1, next);
          if (next.bound < best_.ns * (1 - path_rounding)) after.push_back(next);
        }
      thin_out(after);
      std::swap(now, after);
    }
    for (const auto& end : now)
      if (end.ns < best_.ns && end.loss <= problem_.budget) best_ = {end.ns, end.loss};
    const double bound = std::max(bound_, std::min(best_.ns, dropped_));
    const bool exact = bound >= best_.ns * (1 - path_rounding);
    return {best_.ns, best_.loss, exact ? best_.ns : bound, exact};
  }

  static void order_ways(const std::vector<step_way>& step, std::vector<const step_way*>& ways,
                         std::array<std::size_t, n_nodes + 1>& first) {
    ways.clear();
    for (const auto& way : step) ways.push_back(&way);
    std::stable_sort(ways.begin(), ways.end(),
                     [](const auto* a, const auto* b) { return a->from < b->from; });
    std::size_t at = 0;
    for (std::size_t node = 0; node <= n_nodes; ++node) {
      while (at < ways.size() && ways[at]->from < node) ++at;
      first[node] = at;
    }
  }

  const layered_problem& problem_;
  rest_of_way by_time_, by_price_;
  std::vector<std::array<path_sum, n_nodes>> rest_loss_;  ///< Of the ways of least loss.
  double price_ = 0;                                      ///< Of by_price_.
  double bound_ = 0;                                      ///< Of the dual.
  double dropped_ = infinity;  ///< The lowest bound of what was dropped for room.
  path_sum best_;
};

}  // namespace

result<layered_optimum> best_layered_path(const layered_problem& problem) {
  ORDERMOE_CHECK(problem.max_labels > 0 && problem.start < n_nodes,
                 "a layered path has a start and room for a label");
  return path_search(problem).solve();
}

}  // namespace ordermoe::planning
