#include "planning/strategies/quality_terms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ordermoe::planning {

double nats_of_percent(double percent) {
  return percent < 0 ? std::numeric_limits<double>::infinity() : std::log1p(percent / 100.0);
}

double percent_of_nats(double nats) {
  return 100 * std::expm1(nats);
}

result<granted_quality> grant_quality(const quality_terms& terms, loss_units token_budget,
                                      std::optional<double> stated) {
  if (!stated) return granted_quality{terms.percent, token_budget};
  if (!(*stated >= 0 && *stated <= most_stated_percent))
    return error{errc::out_of_range, fmt::format("a quality budget of {} %, expected 0 to {:g}",
                                                 *stated, most_stated_percent)};
  if (!terms.is_kept)
    return error{errc::unsupported,
                 fmt::format("a quality budget of {:g} %: the strategy of this plan substitutes "
                             "whatever it costs and keeps no budget; leave it out, or plan by "
                             "another strategy",
                             *stated)};
  if (terms.percent >= 0 && *stated >= terms.percent)
    return granted_quality{terms.percent, token_budget};
  const auto left = nats_of_percent(*stated) - terms.taken_nats;
  if (left < 0)
    return error{
        errc::infeasible,
        fmt::format("a quality budget of {:g} %: this plan keeps the whole model coarser or "
                    "leaves experts out for everybody, which takes {:.3g} % alone; state "
                    "that at least, or leave it out",
                    *stated, percent_of_nats(terms.taken_nats))};
  const auto units = std::floor(left * terms.units_per_nat);
  return granted_quality{*stated, units < static_cast<double>(token_budget)
                                      ? static_cast<loss_units>(units)
                                      : token_budget};
}

}  // namespace ordermoe::planning
