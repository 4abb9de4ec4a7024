#include "planning/strategies/adaptation.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "config/error.hpp"
#include "planning/search/search.hpp"

namespace ordermoe::planning {

bool has_budget_use(loss_units budget) {
  return budget > 0 && budget < unbounded_budget;
}

observed_request observe(const answered_request& request, std::size_t chunk_rows,
                         std::span<const double> exact_position_ns) {
  const auto chunks = (request.prompt_tokens + chunk_rows - 1) / chunk_rows;
  const auto after_first = request.new_tokens > 0 ? request.new_tokens - 1 : 0;
  const auto reference_ns =
      static_cast<double>(chunks + after_first) * exact_position_ns[request.access];
  return {static_cast<double>(request.spent) / static_cast<double>(request.budget),
          static_cast<double>(request.done_ns - request.admitted_ns) / reference_ns};
}

std::vector<double> exact_position_ns(const profile& profile, const plan& placed,
                                      const cluster& servers, const cost_profile& costs) {
  std::vector<double> position_ns;
  for (std::size_t access = 0; access < servers.size(); ++access)
    position_ns.push_back(estimate_trajectory(profile, placed, servers, costs, access,
                                              std::numeric_limits<double>::infinity())
                              .token_ns);
  return position_ns;
}

selection_weights adapt_to_window(double omega_quality, double kappa,
                                  std::span<const observed_request> window) {
  ORDERMOE_CHECK(!window.empty(), "a window holds at least one request");
  double use = 0, delay = 0;
  for (const auto& request : window) {
    use += request.budget_use;
    delay += request.normalised_delay;
  }
  const auto n = static_cast<double>(window.size());
  return adapt_weights(omega_quality, kappa, use / n, delay / n);
}

double placement_cost_ns(const profile& profile, const plan& placed, const cluster& servers,
                         const cost_profile& costs) {
  if (placed.pruned.empty())
    return estimate_plan(profile, placed, servers, costs, search_options{});
  // Each access server's users have a model of their own.
  const auto position_ns = exact_position_ns(profile, placed, servers, costs);
  double mean_ns = 0;
  for (std::size_t access = 0; access < servers.size(); ++access)
    mean_ns += servers.servers[access].arrival_share * position_ns[access];
  return mean_ns;
}

weight_move weights_to_move(const plan& from, const plan& to, const cluster& servers,
                            const cost_profile& costs) {
  const placement_index before(from);
  std::vector<std::int64_t> busy_ns(servers.size(), 0);
  weight_move move;
  for (const auto& placed : to.experts) {
    const auto target = placed.server.index();
    const auto hosts = before.hosts(placed.layer.index(), placed.expert.index());
    if ((hosts >> target) & 1u) continue;
    const auto bytes = expert_bytes(servers.servers[target], costs);
    auto best = std::numeric_limits<std::int64_t>::max();
    for (std::uint32_t host = 0; host < servers.size(); ++host)
      if ((hosts >> host) & 1u) {
        const auto& link = servers.link(server_id{host}, placed.server);
        best = std::min(best, transfer_ns(link, bytes) + link.latency_ns);
      }
    move.bytes += bytes;
    busy_ns[target] += best;
  }
  move.ns = *std::max_element(busy_ns.begin(), busy_ns.end());
  return move;
}

}  // namespace ordermoe::planning
