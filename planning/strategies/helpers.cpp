#include "planning/strategies/helpers.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "planning/cost_model.hpp"
#include "planning/strategies/left_out.hpp"

namespace ordermoe::planning {

namespace {

std::optional<std::size_t> last_helper(const cluster& servers) {
  for (std::size_t m = servers.size(); m-- > 0 && servers.size() > 1;)
    if (servers.servers[m].arrival_share == 0) return m;
  return std::nullopt;
}

/// The server that a hidden state reaches soonest from this one.
std::size_t nearest(const cluster& servers, std::size_t from, const cost_profile& costs) {
  const auto prices = make_cost_model(servers, costs);
  const auto others = staying(servers.size(), server_bit(from));
  return *std::ranges::min_element(others, {},
                                   [&](std::size_t m) { return prices.hidden(from, m); });
}

/// Each is a search of its own.
constexpr std::size_t most_left_out = 3;

result<plan> place(const profile& profile, const cluster& servers, const cost_profile& costs,
                   const search_options& options, std::size_t n_left_out) {
  auto placed = place_by_search(profile, servers, costs, options);
  const auto helper = last_helper(servers);
  if (!placed || !helper || n_left_out == most_left_out ||
      (options.should_stop && options.should_stop()))
    return placed;
  const auto others = without(servers, server_bit(*helper));
  const auto by_others = place(profile, others, costs, options, n_left_out + 1);
  if (!by_others) return placed;
  auto wide = widened(*by_others, servers, costs, server_bit(*helper));
  wide.residence[*helper] = wide.residence[nearest(servers, *helper, costs)];
  const auto token_ns = [&](const plan& content) {
    return estimate_plan(profile, content, servers, costs, options);
  };
  if (token_ns(wide) < token_ns(*placed)) placed = std::move(wide);
  return placed;
}

}  // namespace

result<plan> place_with_helpers(const profile& profile, const cluster& servers,
                                const cost_profile& costs, const search_options& options) {
  return place(profile, servers, costs, options, 0);
}

}  // namespace ordermoe::planning
