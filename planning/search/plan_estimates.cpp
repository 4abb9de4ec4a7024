#include "planning/search/plan_estimates.hpp"

#include "planning/search/searcher.hpp"

namespace ordermoe::planning {

std::vector<double> estimate_plans(const profile& profile, std::span<const plan> placed,
                                   const cluster& servers, const cost_profile& costs,
                                   const search_options& options) {
  searching::searcher search(profile, servers, costs, options);
  std::vector<double> rated;
  bool stopped = false;
  for (const auto& each : placed) {
    stopped = stopped || search.stopped();
    rated.push_back(stopped ? infinity : search.evaluate(search.layout_of(each)).token_ns);
  }
  return rated;
}

}  // namespace ordermoe::planning
