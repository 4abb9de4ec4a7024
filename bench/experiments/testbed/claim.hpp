#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/experiments/testbed/statistics.hpp"

/// What the paper's evaluation found, as facts that rows can be held against.
namespace ordermoe::experiments::testbed {

/// Rows of an experiment, one a cluster.
struct selection {
  std::string_view strategy = {};    ///< Empty: the one that is judged.
  std::string_view without = {};     ///< look-ahead, redundancy, dispersion, substitution
  std::optional<double> place = {};  ///< On the axis; none: at no place.
  bool is_smallest = false;          ///< Where on the axis it is feasible first.
};

/// What is made of two selections' values on one cluster.
enum class measure {
  value,          ///< Of the first alone.
  ratio,          ///< First over second.
  difference,     ///< First less second.
  to_best_rival,  ///< First over the best of those that the paper compares with; of another than `paper`, of all others that lost no more than the budget.
  to_worst_part,  ///< First over the worst of the other ablations; nothing before all of them were measured.
  growth,   ///< First over second, over the same of `rival`.
  to_curve  ///< First's latency over that of fixed thresholds at its increase of perplexity.
};
enum class expected { below, above, about };

struct claim {
  std::string_view experiment, figure, says;
  measure kind = measure::ratio;
  metric of = metric::latency_ms;
  selection first = {}, second = {};
  std::string_view rival = {};
  expected side = expected::below;
  double bound = 1;
  /// Nearer to the bound than this nothing is decided; with `about`, what still is about it.
  double margin = 0.01;
  std::optional<double> published = {};  ///< The same number in the paper.
  std::string_view why_so, why_not;      ///< One sentence each.
};

std::span<const claim> claims();

/// Where all of the interval has to be for it to agree: "0.99 or less", "1.01 or more", "0.97 to 1.03".
std::string rule_of(const claim& about);

enum class verdict { agrees, disagrees, undecided, unmeasured };
const char* to_string(verdict found);

struct judgement {
  const claim* about = nullptr;
  std::string subject;            ///< The strategy that was judged.
  std::optional<interval> value;  ///< Over the clusters where all that it needs was measured.
  verdict ordering = verdict::unmeasured;
  /// Whether the paper's number is in the interval or within a tenth of the median; none: it has none, or nothing was measured.
  std::optional<bool> number_agrees;
  std::string_view why;
};

/// `subject`: paper or ordermoe. `rows`: of the claim's experiment.
judgement judge(const claim& about, std::string_view subject, const std::vector<row>& rows);

}  // namespace ordermoe::experiments::testbed
