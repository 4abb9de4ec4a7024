#include "planning/strategies/strategies.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "planning/cost_model.hpp"
#include "planning/strategies/left_out.hpp"

namespace ordermoe::planning {

double expected_dispatch_ns(const profile& profile, const plan& placed, const cluster& servers,
                            const cost_profile& costs) {
  const auto prices = make_cost_model(servers, costs);
  const placement_index index(placed);
  double total = 0;
  for (std::size_t a = 0; a < servers.size(); ++a) {
    double position = 0;
    for (std::size_t l = 0; l < profile.n_layers; ++l) {
      for (const auto& set : profile.layers[l].sets) {
        std::map<std::size_t, double> busy;
        for (const auto expert : set.experts) {
          std::size_t best = 0;
          double best_ns = std::numeric_limits<double>::infinity();
          for (std::size_t m = 0; m < servers.size(); ++m) {
            const auto ns = prices.hidden(a, m) + prices.expert_ns[m] + prices.hidden(m, a);
            if (index.hosts(m, l, expert) && ns < best_ns) {
              best = m;
              best_ns = ns;
            }
          }
          busy[best] += prices.expert_ns[best];
        }
        double step = 0;
        for (const auto& [m, ns] : busy)
          step = std::max(step, prices.hidden(a, m) + ns + prices.hidden(m, a));
        position += set.probability * step;
      }
      position += prices.attention_ns[a];
    }
    total += servers.servers[a].arrival_share * (position + prices.head_ns[a]);
  }
  return total;
}

namespace {

/// Servers that keep their experts as a plan made with these options does.
cluster planned_servers(const strategy_record& record, const cluster& servers,
                        const strategy_options& options) {
  if (options.plan && options.plan->n_servers == servers.size())
    return with_precisions(servers, *options.plan);
  auto kept = servers;
  if (!record.uses_coarser_copies)
    for (auto& server : kept.servers) server.expert_precision = precision::stored;
  if (options.expert_precision.size() == servers.size())
    for (std::size_t m = 0; m < servers.size(); ++m)
      kept.servers[m].expert_precision = options.expert_precision[m];
  return kept;
}

result<void> check_ablation(const strategy_record& record, const strategy_options& options) {
  const bool asked = options.threshold || !options.replicates || !options.disperses;
  if (!asked || (record.places_groups && !options.plan)) return {};
  return error{
      errc::usage,
      fmt::format(
          "thresholds, copies and dispersion are those of Algorithm 1, {}; leave them out, or "
          "choose {}",
          options.plan ? "and the plan is given"
                       : fmt::format("by which {} does not place", record.name),
          strategies_for_which([](const auto& one) { return one.places_groups; }))};
}

result<void> override_residency(plan& placed, const std::string& residency, std::size_t n_servers,
                                std::size_t n_layers, server_mask left_out) {
  if (residency == "access")
    placed.residence = access_residency(n_servers, n_layers);
  else if (residency == "roaming")
    placed.residence = among_others(roaming_residency(n_servers, n_layers), left_out);
  else
    return error{errc::usage,
                 fmt::format("residency '{}' is not known; expected access or roaming", residency)};
  return {};
}

/// As among those that stay, in order.
strategy_options narrowed(const strategy_options& options, std::size_t n_servers) {
  auto narrow = options;
  narrow.without = 0;
  narrow.expert_precision.clear();
  if (options.expert_precision.size() == n_servers)
    for (const auto m : staying(n_servers, options.without))
      narrow.expert_precision.push_back(options.expert_precision[m]);
  return narrow;
}

/// What narrowed() was for those that stay, for all: the others keep experts as they do in the cluster.
strategy_options widened(strategy_options narrow, const planning_task& task) {
  const auto left_out = task.options.without;
  narrow.without = left_out;
  if (narrow.plan) narrow.plan = widened(*narrow.plan, task.servers, task.costs, left_out);
  if (narrow.expert_precision.empty()) return narrow;
  std::vector<precision> wide;
  for (const auto& server : task.servers.servers) wide.push_back(server.expert_precision);
  const auto stay = staying(task.servers.size(), left_out);
  for (std::size_t i = 0; i < stay.size(); ++i) wide[stay[i]] = narrow.expert_precision[i];
  narrow.expert_precision = std::move(wide);
  return narrow;
}

result<plan> place(const strategy_record& record, const planning_task& task) {
  const auto left_out = task.options.without;
  if (left_out == 0) return record.place(task);
  const auto narrow = without(task.servers, left_out);
  if (narrow.size() == 0)
    return error{errc::infeasible, "no server is left to host experts; leave out fewer"};
  const auto options = narrowed(task.options, task.servers.size());
  auto made = record.place({task.profile, narrow, task.costs, options});
  if (!made) return made;
  return widened(*made, task.servers, task.costs, left_out);
}

}  // namespace

const strategy_record* find_strategy(std::string_view name) {
  for (const auto& record : strategy_records())
    if (name == record.name || (!record.alias.empty() && name == record.alias)) return &record;
  return nullptr;
}

std::vector<std::string> strategy_names() {
  std::vector<std::string> names;
  for (const auto& record : strategy_records()) names.emplace_back(record.name);
  return names;
}

std::vector<std::string> accepted_strategy_names() {
  auto names = strategy_names();
  for (const auto& record : strategy_records())
    if (!record.alias.empty()) names.emplace_back(record.alias);
  return names;
}

std::string canonical_strategy_name(std::string_view name) {
  const auto* record = find_strategy(name);
  return std::string(record == nullptr ? name : record->name);
}

std::string printed_strategy_name(std::string_view name) {
  const auto* record = find_strategy(name);
  return std::string(name) + (record != nullptr && record->is_adapted ? " (adapted)" : "");
}

std::string strategies_for_which(bool (*is_one)(const strategy_record&), std::string_view last) {
  std::vector<std::string_view> names;
  for (const auto& record : strategy_records())
    if (is_one(record)) names.push_back(record.name);
  if (names.empty()) return {};
  const auto end = names.back();
  names.pop_back();
  return names.empty() ? std::string(end)
                       : fmt::format("{} {} {}", fmt::join(names, ", "), last, end);
}

std::string strategies_with_budget() {
  return strategies_for_which([](const auto& one) { return one.has_budget; });
}

std::string strategies_without_profile() {
  return strategies_for_which([](const auto& one) { return !one.needs_profile; }, "and");
}

quality_terms terms_of(const strategy_record& record, double percent) {
  if (!record.keeps_budgets) return {.percent = -1, .is_kept = false};
  return {.percent = record.has_budget ? percent : 0};
}

result<strategy> make_strategy(std::string_view name, const profile& profile,
                               const cluster& cluster_servers, const cost_profile& costs,
                               const strategy_options& options) {
  const auto* record = find_strategy(name);
  if (record == nullptr)
    return error{errc::usage, fmt::format("strategy '{}' is not known; expected one of {}", name,
                                          fmt::join(accepted_strategy_names(), ", "))};
  if (auto good = check_ablation(*record, options); !good) return good.error();
  if (record->skips_beside_pruning && options.horizon.value_or(1) != 1)
    return error{errc::usage,
                 fmt::format("{} looks one layer ahead, and a horizon of {} was asked for; leave "
                             "it out",
                             record->name, *options.horizon)};
  const auto servers = planned_servers(*record, cluster_servers, options);
  strategy made;
  made.name = std::string(record->name);
  made.policy = record->policy(profile.top_k);
  made.token_budget = record->token_budget(profile, nats_of_percent(options.quality_percent));
  made.quality = terms_of(*record, options.quality_percent);
  if (record->has_budget)
    made.quality.units_per_nat = static_cast<double>(record->token_budget(profile, 1));
  made.continue_in_place = record->continue_in_place;
  made.allowance_factor = record->allowance_factor;
  made.tunes_price = record->tunes_price;
  made.has_budget = record->has_budget;
  auto placed = options.plan ? result<plan>(*options.plan)
                             : place(*record, {profile, servers, costs, options});
  if (!placed) return placed.error();
  made.plan = std::move(*placed);
  if (options.horizon) made.policy.horizon = *options.horizon;
  if (!options.leaves_slots_out) made.policy.may_leave_out = false;
  if (options.residency)
    if (auto done = override_residency(made.plan, *options.residency, servers.size(),
                                       profile.n_layers, options.without);
        !done)
      return done.error();
  if (!options.plan) note_precisions(made.plan, servers);
  if (auto valid = validate(made.plan, servers, costs); !valid) return valid.error();
  return made;
}

std::vector<strategy_options> plan_variants(std::string_view name, const profile& profile,
                                            const cluster& servers, const cost_profile& costs,
                                            const strategy_options& options) {
  const auto* record = find_strategy(name);
  if (options.plan || record == nullptr || record->add_variants == nullptr) return {options};
  const planning_task task{profile, servers, costs, options};
  if (options.without == 0) {
    std::vector<strategy_options> variants{options};
    record->add_variants(task, variants);
    return variants;
  }
  const auto narrow = without(servers, options.without);
  if (narrow.size() == 0) return {options};  // Which says why there is no plan.
  const auto inner = narrowed(options, servers.size());
  std::vector<strategy_options> variants{inner};
  record->add_variants({profile, narrow, costs, inner}, variants);
  for (auto& each : variants) each = widened(std::move(each), task);
  return variants;
}

}  // namespace ordermoe::planning
