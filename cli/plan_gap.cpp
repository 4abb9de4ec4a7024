#include "cli/plan_gap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "config/json_text.hpp"
#include "planning/optimum/placement_program.hpp"
#include "planning/search/search.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/plan_file.hpp"

namespace ordermoe::cli {

namespace {

using planning::placement_model;
using planning::placement_optimum;
using planning::program_paths;

/// A plan and what it costs; or why it has no place in the comparison.
struct compared_plan {
  std::string name;
  std::optional<planning::plan> plan;
  std::string left_out;
  double cost_ns = 0, estimate_ns = 0;

  double gap_percent(double of_ns) const { return 100 * (cost_ns / of_ns - 1); }
};

/// Plans that the model cannot speak of: they do what (c.1) or the routers' targets do not allow.
std::string why_not(const planning::plan& plan) {
  if (plan.offloads()) return "keeps experts in the memory of hosts, which (c.1) does not count";
  if (!plan.pruned.empty()) return "prunes experts, so that routers choose others";
  if (!plan.expert_precision.empty()) return "keeps coarser copies, which are no targets";
  return {};
}

result<std::vector<compared_plan>> plans_of_strategies(const plan_gap_options& options,
                                                       const setup::world& world) {
  auto names = options.strategies;
  if (names.empty()) names = planning::strategy_names();
  planning::strategy_options how;
  how.seed = 1;
  how.search_steps = options.search_steps;
  how.seed = options.world.seed;
  how.concurrency = 1;
  how.should_stop = work().stopping();
  std::vector<compared_plan> plans;
  work().begin("planning");
  for (const auto& name : names) {
    compared_plan each;
    each.name = planning::canonical_strategy_name(name);
    auto made = planning::make_strategy(each.name, world.profile, world.servers, world.costs, how);
    if (!made && made.error().code != errc::infeasible) return made.error();
    if (made) each.plan = std::move(made->plan);
    each.left_out = made ? why_not(*each.plan) : "infeasible here";
    plans.push_back(std::move(each));
    work().advance(static_cast<double>(plans.size()) / static_cast<double>(names.size()));
    if (work().stopped()) return error{errc::interrupted, "interrupted"};
  }
  return plans;
}

result<void> add_files(const plan_gap_options& options, const setup::world& world,
                       std::vector<compared_plan>& plans) {
  for (const auto& path : options.plans) {
    auto file = setup::read_plan_file(path);
    if (!file) return file.error();
    if (auto fits = setup::check_made_for(*file, world); !fits) return fits;
    compared_plan each;
    each.name = path;
    each.left_out = why_not(file->plan);
    each.plan = std::move(file->plan);
    plans.push_back(std::move(each));
  }
  return {};
}

/// The planner's own estimate, which knows each target set before it chooses a residence.
double estimate_of(const setup::world& world, const planning::plan& plan) {
  double sum = 0;
  for (std::size_t a = 0; a < world.servers.size(); ++a)
    if (const auto share = world.servers.servers[a].arrival_share; share > 0)
      sum += share * planning::estimate_trajectory(world.profile, plan, world.servers, world.costs,
                                                   a, std::numeric_limits<double>::infinity())
                         .token_ns;
  return sum;
}

void price(const setup::world& world, program_paths paths, placement_model& model,
           std::vector<compared_plan>& plans) {
  for (auto& each : plans) {
    if (!each.left_out.empty()) continue;
    each.cost_ns = paths == program_paths::free ? model.plan_ns(*each.plan)
                                                : model.at_access_ns(model.hosts_of(*each.plan));
    each.estimate_ns = estimate_of(world, *each.plan);
  }
}

/// Shows how much of the time that it may take is over, as long as it lives.
class solving_display {
 public:
  explicit solving_display(double seconds)
      : thread_([seconds](const std::stop_token& stop) {
          work().begin("solving");
          const auto begin = std::chrono::steady_clock::now();
          std::mutex mutex;
          std::condition_variable_any wake;
          std::unique_lock lock(mutex);
          while (!wake.wait_for(lock, stop, std::chrono::milliseconds(200), [] { return false; }) &&
                 !stop.stop_requested()) {
            const std::chrono::duration<double> over = std::chrono::steady_clock::now() - begin;
            work().advance(std::min(1.0, over.count() / seconds));
          }
        }) {}

 private:
  std::jthread thread_;
};

std::string ended(const placement_optimum& best) {
  if (best.is_exact) return "the optimum";
  if (best.ended_by == "size")
    return fmt::format("not sought: the program would have {} columns (--max-columns, --sets)",
                       best.columns);
  return fmt::format("not proved: {} after {} nodes", best.ended_by, best.nodes);
}

void print_gap_table(const plan_gap_options& options, const placement_model& model,
                     const std::vector<compared_plan>& plans, const placement_optimum& best) {
  fmt::print("{:<22} {:>12} {:>12} {:>10}\n", "plan", "cost ms", "estimate ms",
             best.is_exact ? "gap %" : "gap <= %");
  for (const auto& each : plans)
    if (each.left_out.empty())
      fmt::print("{:<22} {:>12.4f} {:>12.4f} {:>10.2f}\n",
                 planning::printed_strategy_name(each.name), each.cost_ns * 1e-6,
                 each.estimate_ns * 1e-6, each.gap_percent(best.bound_ns));
    else
      fmt::print("{:<22} {:>12} {}\n", planning::printed_strategy_name(each.name), "-",
                 each.left_out);
  if (!best.hosts.empty())
    fmt::print("{:<22} {:>12.4f}\n", best.is_exact ? "optimum" : "best found", best.ns * 1e-6);
  fmt::print("{:<22} {:>12.4f}", "bound", best.bound_ns * 1e-6);
  if (best.relaxed_ns > 0) fmt::print("   linear relaxation {:.4f}", best.relaxed_ns * 1e-6);
  fmt::print(
      "\n{}; {} rows, {} columns. A decoded position {}, targets alone, without queues.\n",
      ended(best), best.rows, best.columns,
      options.residence == "free" ? "on any path of one server a layer" : "at its access server");
  std::size_t kept = 0;
  for (std::size_t l = 0; l < model.n_layers(); ++l) kept = std::max(kept, model.n_sets(l));
  fmt::print("{} target sets a layer at most.\n", kept);
}

void print_json(const plan_gap_options& options, const std::vector<compared_plan>& plans,
                const placement_optimum& best) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& each : plans) {
    nlohmann::ordered_json row{{"plan", each.name}};
    if (!each.left_out.empty())
      row["left_out"] = each.left_out;
    else
      row.update({{"cost_ms", each.cost_ns * 1e-6},
                  {"estimate_ms", each.estimate_ns * 1e-6},
                  {"most_gap_percent", each.gap_percent(best.bound_ns)}});
    if (each.left_out.empty() && !best.hosts.empty())
      row["gap_percent"] = each.gap_percent(best.ns);
    rows.push_back(std::move(row));
  }
  const auto ms_or_null = [](bool known, double ns) {
    return known ? nlohmann::ordered_json(ns * 1e-6) : nlohmann::ordered_json();
  };
  fmt::print("{}\n",
             json_text(nlohmann::ordered_json{{"residence", options.residence},
                                              {"best_ms", ms_or_null(!best.hosts.empty(), best.ns)},
                                              {"bound_ms", best.bound_ns * 1e-6},
                                              {"relaxed_ms",
                                               ms_or_null(best.relaxed_ns > 0, best.relaxed_ns)},
                                              {"exact", best.is_exact},
                                              {"ended_by", best.ended_by},
                                              {"nodes", best.nodes},
                                              {"rows", best.rows},
                                              {"columns", best.columns},
                                              {"plans", rows}},
                       2));
}

result<setup::world> load(const world_flags& flags) {
  auto options = flags.options();
  if (!options) return options.error();
  options->has_budget = false;
  options->only_plans = true;
  options->runs_model = false;
  auto loaded = load_world(*options);
  if (!loaded) return loaded;
  for (const auto& server : loaded->servers.servers)
    if (server.expert_precision != precision::stored)
      return error{
          errc::unsupported,
          fmt::format("{}: found server {} with experts in {}, expected every server to keep "
                      "them as the model has them: only those are targets",
                      flags.cluster, server.name, to_string(server.expert_precision))};
  return loaded;
}

}  // namespace

void plan_gap_options::add(CLI::App& parent) {
  command = parent.add_subcommand(
      "gap", "Compare plans with the best placement, found by an integer program, or its bound");
  // What `plan` needs is asked for here again.
  command->preparse_callback([&parent](std::size_t) {
    for (auto* option : parent.get_options()) option->required(false);
  });
  world.add(*command, true);
  add_search_steps(*command, search_steps);
  command
      ->add_option("--strategies", strategies,
                   "Strategies whose plans are compared; default: all that place targets")
      ->delimiter(',');
  command->add_option("--plans", plans, "Plans from files, made for this model and cluster")
      ->type_name(file_value);
  command
      ->add_option(
          "--paths", residence,
          "free: attention on any path of one server a layer; access: at the access server")
      ->check(CLI::IsMember({"free", "access"}))
      ->capture_default_str();
  command
      ->add_option("--sets", sets,
                   "Target sets kept of each layer; fewer make a smaller program of a coarser "
                   "model. 0: 64, as the planner's estimate has them")
      ->check(whole_from(0, 256))
      ->capture_default_str();
  command->add_option("--time-limit", seconds, "Seconds that the solver may take")
      ->check(number_from(0.1, 1e6))
      ->capture_default_str();
  command->add_option("--node-limit", nodes, "Nodes of branch and bound at most")
      ->check(whole_from(0, 1'000'000'000))
      ->capture_default_str();
  command->add_option("--max-columns", columns, "A larger program is not built, and a bound told")
      ->check(whole_from(0, 100'000'000))
      ->capture_default_str();
  command->footer(
      "Example, with a cluster that is small enough to be solved:\n"
      "  ordermoe cluster draw --servers 3 --seed 1 --out three.toml\n"
      "  ordermoe plan gap --model data/models/lineage --cluster three.toml --paths access --sets "
      "8");
}

result<void> print_plan_gaps(const plan_gap_options& options) {
  for (const auto* option : options.command->get_parent()->get_options())
    if (option->count() > 0)
      return error{errc::usage, fmt::format("plan gap: found {} before gap, expected its options "
                                            "behind it; move or remove {}",
                                            option->get_name(), option->get_name())};
  const auto loaded = load(options.world);
  if (!loaded) return loaded.error();
  placement_model model(loaded->profile, loaded->servers, loaded->costs, options.sets);
  if (auto room = planning::check_room(model, loaded->servers); !room) return room;
  planning::program_options program;
  program.paths = options.residence == "free" ? program_paths::free : program_paths::at_access;
  program.time_limit_s = options.seconds;
  program.node_limit = options.nodes;
  program.max_columns = options.columns;
  program.should_stop = work().stopping();
  std::vector<compared_plan> plans;
  result<placement_optimum> best = error{errc::failed, "not run"};
  {
    const progress_display shown;
    auto made = plans_of_strategies(options, *loaded);
    if (!made) return made.error();
    plans = std::move(*made);
    if (auto added = add_files(options, *loaded, plans); !added) return added;
    price(*loaded, program.paths, model, plans);
    const compared_plan* known = nullptr;
    for (const auto& each : plans)
      if (each.left_out.empty() && (known == nullptr || each.cost_ns < known->cost_ns))
        known = &each;
    if (known != nullptr) program.known = model.hosts_of(*known->plan);
    const solving_display solving(options.seconds);
    best = planning::optimal_placement(model, loaded->servers, program);
  }
  if (!best) return best.error();
  if (options.world.json)
    print_json(options, plans, *best);
  else
    print_gap_table(options, model, plans, *best);
  return {};
}

}  // namespace ordermoe::cli
