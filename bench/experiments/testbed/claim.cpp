#include "bench/experiments/testbed/claim.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>

#include "planning/strategies/strategies.hpp"

namespace ordermoe::experiments::testbed {

namespace {

using values = std::optional<double>;

constexpr std::string_view published_rivals[] = {"edge-llm",   "layer-shards", "wdmoe",
                                                 "moe2",       "random",       "popularity",
                                                 "similarity", "local-only"};
constexpr std::string_view parts[] = {"look-ahead", "redundancy", "dispersion", "substitution"};

/// Rows of one cluster.
using cluster_rows = std::vector<const row*>;

/// Whether a row is this variant of a strategy: at the main budget where it has one, and none without substitution.
bool is_variant(const point& what, std::string_view strategy, std::string_view without,
                bool sweeps_horizon) {
  if (what.strategy != strategy) return false;
  const auto* record = planning::find_strategy(strategy);
  const bool has_budget = record != nullptr && record->has_budget;
  const auto percent = has_budget && without != "substitution" ? main_budget : 0;
  if (what.percent != percent) return false;
  const bool leaves_out_here = without == "redundancy" || without == "dispersion";
  if (what.without != (leaves_out_here ? without : std::string_view())) return false;
  if (sweeps_horizon) return true;
  return without == "look-ahead" ? what.horizon == std::size_t{1} : !what.horizon;
}

values sum_of(const row& content, metric of) {
  // The share that runs where the token is: one part of it without the other says nothing.
  if (of != metric::local_exact) return content[of];
  const auto &exact = content[metric::local_exact], &other = content[metric::local_substitute];
  if (!exact || !other) return std::nullopt;
  return *exact + *other;
}

class one_cluster {
 public:
  one_cluster(const claim& about, std::string_view subject, cluster_rows rows)
      : about_(about), subject_(subject), rows_(std::move(rows)) {
    const auto* of = find_experiment(about.experiment);
    swept_ = of == nullptr ? axis::nothing : of->swept;
  }

  values found() const {
    switch (about_.kind) {
      case measure::value:
        return at(about_.first);
      case measure::ratio:
        return over(at(about_.first), at(about_.second));
      case measure::difference:
        return less(at(about_.first), at(about_.second));
      case measure::to_best_rival:
        return may_be_compared() ? over(at(about_.first), best_rival()) : std::nullopt;
      case measure::to_worst_part:
        return over(at(about_.first), worst_other_part());
      case measure::growth:
        return over(over(at(about_.first), at(about_.second)),
                    over(at(of_rival(about_.first)), at(of_rival(about_.second))));
      case measure::to_curve:
        return over(at(about_.first), curve());
    }
    return std::nullopt;
  }

 private:
  static values over(const values& a, const values& b) {
    if (!a || !b || *b == 0) return std::nullopt;
    return *a / *b;
  }
  static values less(const values& a, const values& b) {
    if (!a || !b) return std::nullopt;
    return *a - *b;
  }
  selection of_rival(selection where) const {
    where.strategy = about_.rival;
    return where;
  }

  const row* row_at(const selection& where) const {
    const auto strategy = where.strategy.empty() ? subject_ : where.strategy;
    const row* found = nullptr;
    double least = std::numeric_limits<double>::infinity();
    for (const auto* each : rows_) {
      if (each->is_infeasible ||
          !is_variant(each->what, strategy, where.without, swept_ == axis::horizon))
        continue;
      const auto place = place_on(swept_, each->what);
      if (where.is_smallest && place && *place < least) {
        least = *place;
        found = each;
      }
      const bool is_here = swept_ == axis::nothing || place == where.place;
      if (!where.is_smallest && is_here) return each;
    }
    return found;
  }
  values at(const selection& where) const {
    const auto* found = row_at(where);
    return found == nullptr ? std::nullopt : sum_of(*found, about_.of);
  }

  bool is_published() const { return subject_ == "paper"; }

  /// Of the published one those of its paper; of another every other.
  std::set<std::string_view> rivals() const {
    if (is_published()) return {std::begin(published_rivals), std::end(published_rivals)};
    std::set<std::string_view> all;
    for (const auto* each : rows_) all.insert(each->what.strategy);
    all.erase(subject_);
    return all;
  }

  /// Whether a row is compared with another than the published one: what was measured of it lost no more than the budget.
  static bool kept_budget(const row& content) {
    return content[metric::increase_percent].value_or(0) <= main_budget;
  }

  /// What lost more than the budget is not faster than a rival that may not.
  bool may_be_compared() const {
    const auto* found = row_at(about_.first);
    return is_published() || found == nullptr || kept_budget(*found);
  }

  values best_rival() const {
    values best;
    for (const auto rival : rivals()) {
      const auto* found = row_at({rival, {}, about_.first.place, false});
      if (found == nullptr || (!is_published() && !kept_budget(*found))) continue;
      const auto value = sum_of(*found, about_.of);
      if (!value) continue;
      if (!best || (is_less_better(about_.of) ? *value < *best : *value > *best)) best = value;
    }
    return best;
  }

  values worst_other_part() const {
    values worst;
    for (const auto part : parts) {
      if (part == about_.first.without) continue;
      const auto value = at({{}, part, {}, false});
      if (!value) return std::nullopt;
      if (!worst || *value > *worst) worst = value;
    }
    return worst;
  }

  /// The latency of fixed thresholds at the increase of the first, between the two around it; at the ends theirs.
  values curve() const {
    const auto* first = row_at(about_.first);
    if (first == nullptr || !(*first)[metric::increase_percent]) return std::nullopt;
    std::vector<std::pair<double, double>> fixed;
    for (const auto* each : rows_)
      if (each->what.strategy == subject_ && each->what.threshold &&
          (*each)[metric::increase_percent] && (*each)[metric::latency_ms])
        fixed.emplace_back(*(*each)[metric::increase_percent], *(*each)[metric::latency_ms]);
    if (fixed.size() < 2) return std::nullopt;
    std::sort(fixed.begin(), fixed.end());
    const auto increase = *(*first)[metric::increase_percent];
    if (increase <= fixed.front().first) return fixed.front().second;
    for (std::size_t i = 1; i < fixed.size(); ++i)
      if (increase <= fixed[i].first) {
        const auto width = fixed[i].first - fixed[i - 1].first;
        const auto share = width > 0 ? (increase - fixed[i - 1].first) / width : 0;
        return fixed[i - 1].second + share * (fixed[i].second - fixed[i - 1].second);
      }
    return fixed.back().second;
  }

  const claim& about_;
  std::string_view subject_;
  cluster_rows rows_;
  axis swept_;
};

verdict verdict_of(const claim& about, const interval& found) {
  const auto low = about.bound - about.margin, high = about.bound + about.margin;
  const bool is_below = found.high <= low, is_above = found.low >= high;
  switch (about.side) {
    case expected::below:
      return is_below ? verdict::agrees : is_above ? verdict::disagrees : verdict::undecided;
    case expected::above:
      return is_above ? verdict::agrees : is_below ? verdict::disagrees : verdict::undecided;
    case expected::about:
      break;
  }
  if (is_below || is_above) return verdict::disagrees;
  return found.low >= low && found.high <= high ? verdict::agrees : verdict::undecided;
}

}  // namespace

std::string rule_of(const claim& about) {
  const auto low = about.bound - about.margin, high = about.bound + about.margin;
  switch (about.side) {
    case expected::below:
      return fmt::format("{:g} or less", low);
    case expected::above:
      return fmt::format("{:g} or more", high);
    case expected::about:
      break;
  }
  return fmt::format("{:g} to {:g}", low, high);
}

const char* to_string(verdict found) {
  switch (found) {
    case verdict::agrees:
      return "agrees";
    case verdict::disagrees:
      return "disagrees";
    case verdict::undecided:
      return "undecided";
    case verdict::unmeasured:
      break;
  }
  return "not measured";
}

judgement judge(const claim& about, std::string_view subject, const std::vector<row>& rows) {
  judgement made{&about, std::string(subject), {}, verdict::unmeasured, {}, {}};
  std::set<std::uint64_t> seeds;
  for (const auto& each : rows) seeds.insert(each.what.seed);
  std::vector<double> found;
  for (const auto seed : seeds) {
    cluster_rows here;
    for (const auto& each : rows)
      if (each.what.seed == seed) here.push_back(&each);
    if (const auto value = one_cluster(about, subject, std::move(here)).found())
      found.push_back(*value);
  }
  made.value = over_clusters(found);
  if (!made.value) return made;
  made.ordering = verdict_of(about, *made.value);
  if (made.ordering == verdict::agrees) made.why = about.why_so;
  if (made.ordering == verdict::disagrees) made.why = about.why_not;
  if (made.ordering == verdict::undecided)
    made.why = "The interval lies on both sides, or too near to tell.";
  if (about.published) {
    constexpr double near = 0.1;
    const auto p = *about.published;
    made.number_agrees = (made.value->low <= p && p <= made.value->high) ||
                         std::abs(made.value->median - p) <= near * std::abs(p);
  }
  return made;
}

}  // namespace ordermoe::experiments::testbed
