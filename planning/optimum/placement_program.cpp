#include "planning/optimum/placement_program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "planning/optimum/program_builder.hpp"

namespace ordermoe::planning {

namespace {

using namespace programming;

constexpr double ns_per_ms = 1e6;
constexpr double tolerance = 1e-6;  // Of what CBC proves.

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::vector<server_mask> everywhere(const placement_model& model) {
  server_mask servers = 0;
  for (std::size_t m = 0; m < model.n_servers(); ++m)
    if (model.room()[m] > 0) servers |= server_bit(m);
  return std::vector<server_mask>(model.n_layers() * model.n_experts(), servers);
}

std::vector<server_mask> any_path(const placement_model& model) {
  return std::vector<server_mask>(model.n_layers(), all_servers(model.n_servers()));
}

/// Takes a placement where it is the best one so far.
void offer(placement_model& model, program_paths paths, const std::vector<server_mask>& hosts,
           placement_optimum& best) {
  placed_path found;
  if (paths == program_paths::free)
    found = model.best_path(hosts, any_path(model));
  else
    found.ns = model.at_access_ns(hosts);
  if (!best.hosts.empty() && found.ns >= best.ns) return;
  best.ns = found.ns;
  best.path = found.path;
  best.hosts = hosts;
}

const char* name_of(solver_end end) {
  switch (end) {
    case solver_end::optimum:
      return "optimum";
    case solver_end::time_limit:
      return "time limit";
    case solver_end::node_limit:
      return "node limit";
    default:
      return "solver";
  }
}

/// Servers keep to their room, and every expert is somewhere.
bool fits(const placement_model& model, const std::vector<server_mask>& hosts) {
  std::vector<std::size_t> used(model.n_servers(), 0);
  for (const auto on : hosts) {
    if (on == 0) return false;
    for_each_server(on, [&](std::size_t m) { ++used[m]; });
  }
  for (std::size_t m = 0; m < used.size(); ++m)
    if (used[m] > model.room()[m]) return false;
  return true;
}

double in_ns(const placement_builder& builder, double ms) {
  return (ms + builder.constant_ms()) * ns_per_ms;
}

error unfit(const std::string& what) {
  return {errc::failed, what + "; its tolerances do not fit this cluster"};
}

/// The linear relaxation's bound, where it is found.
result<void> relax(const placement_builder& builder, const solver_limits& limits,
                   placement_optimum& best) {
  const auto relaxed = solve_relaxed(builder.program(), limits);
  if (!relaxed) return relaxed.error();
  const bool is_solved = relaxed->end == solver_end::optimum;
  best.ended_by = name_of(is_solved ? solver_end::time_limit : relaxed->end);
  if (!is_solved) return {};
  best.relaxed_ns = in_ns(builder, relaxed->bound);
  best.bound_ns = std::max(best.bound_ns, best.relaxed_ns * (1 - tolerance));
  return {};
}

/// Branch and bound, from the best placement that is known.
result<void> branch(placement_model& model, const placement_builder& builder, program_paths paths,
                    const solver_limits& limits, placement_optimum& best) {
  const auto start =
      best.hosts.empty() ? std::vector<double>() : builder.start_of(best.hosts, best.path);
  const auto found = solve(builder.program(), limits, start);
  if (!found) return found.error();
  const bool is_proved = found->end == solver_end::optimum;
  if (found->end == solver_end::infeasible)
    return unfit("CBC says that no placement is possible, though there is room for one");
  best.ended_by = name_of(found->end);
  best.nodes = found->nodes;
  best.bound_ns = std::max(best.bound_ns, in_ns(builder, found->bound) * (1 - tolerance));
  if (!found->values.empty()) {
    const auto hosts = builder.hosts_in(found->values);
    const bool holds = fits(model, hosts);
    if (!holds && is_proved) return unfit("CBC's solution does not keep (c.1) and (c.2)");
    if (holds) offer(model, paths, hosts, best);
  }
  if (best.hosts.empty()) return {};
  if (best.bound_ns * (1 - 10 * tolerance) > best.ns)
    return unfit(fmt::format("CBC's bound of {} ms lies above a placement that takes {} ms",
                             best.bound_ns / ns_per_ms, best.ns / ns_per_ms));
  best.is_exact = is_proved || best.bound_ns >= best.ns * (1 - 2 * tolerance);
  best.bound_ns = std::min(best.bound_ns, best.ns);
  return {};
}

}  // namespace

result<void> check_room(const placement_model& model, const cluster& servers) {
  const auto& room = model.room();
  const auto total = std::accumulate(room.begin(), room.end(), std::size_t{0});
  const auto wanted = model.n_layers() * model.n_experts();
  if (total >= wanted) return {};
  std::string each;
  for (std::size_t m = 0; m < room.size(); ++m)
    each += fmt::format("{}{} {}", m > 0 ? ", " : "", servers.servers[m].name, room[m]);
  return error{errc::infeasible,
               fmt::format("no placement keeps (c.1), the memory of servers, and (c.2), a copy of "
                           "each expert as the model has it: found room for {} experts ({}), "
                           "expected {}; give servers more memory or add one",
                           total, each, wanted)};
}

std::size_t count_columns(const placement_model& model, program_paths paths) {
  const auto& room = model.room();
  const auto useful = static_cast<double>(
      std::count_if(room.begin(), room.end(), [](auto experts) { return experts > 0; }));
  const auto n = static_cast<double>(model.n_servers());
  const bool is_free = paths == program_paths::free;
  const double pairs = is_free ? n * n : n;
  double columns = 0;
  for (std::size_t l = 0; l < model.n_layers(); ++l)
    columns += useful * static_cast<double>(model.n_experts()) + (is_free ? pairs : 0) +
               pairs * static_cast<double>(model.n_sets(l)) *
                   std::pow(useful, static_cast<double>(model.n_slots()));
  return static_cast<std::size_t>(std::min(columns, 1e15));
}

result<placement_optimum> optimal_placement(placement_model& model, const cluster& servers,
                                            const program_options& options) {
  if (auto room = check_room(model, servers); !room) return room.error();
  placement_optimum best;
  if (!options.known.empty() && fits(model, options.known))
    offer(model, options.paths, options.known, best);
  placement_optimum loosest;
  offer(model, options.paths, everywhere(model), loosest);
  best.bound_ns = loosest.ns;
  best.ended_by = "size";
  best.columns = count_columns(model, options.paths);
  if (best.columns > options.max_columns) return best;

  const placement_builder builder(model, options.paths);
  best.rows = static_cast<std::size_t>(builder.program().rows());
  best.columns = static_cast<std::size_t>(builder.program().columns());
  solver_limits limits{options.time_limit_s, options.node_limit, options.should_stop};
  const auto begin = std::chrono::steady_clock::now();
  if (auto relaxed = relax(builder, limits, best); !relaxed) return relaxed.error();
  limits.seconds -= seconds_since(begin);
  if (best.relaxed_ns == 0 || limits.seconds <= 0) return best;
  if (auto solved = branch(model, builder, options.paths, limits, best); !solved)
    return solved.error();
  return best;
}

}  // namespace ordermoe::planning
