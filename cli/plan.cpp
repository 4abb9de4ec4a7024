#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "cli/connection.hpp"
#include "cli/plan_gap.hpp"
#include "cli/planning_flags.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"

namespace ordermoe::cli {

namespace {

struct plan_options {
  world_flags world;
  planning_flags planning;
  plan_gap_options gap;
  std::string out;
  connection_flags connection;
  double concurrency = setup::expected_concurrency(64);
};

/// How many experts a plan leaves out for everybody, where that takes of a budget.
std::size_t n_pruned(const planning::strategy& made) {
  std::size_t n = 0;
  if (made.pruned_nats)
    for (const auto& layer : made.plan.pruned.front().layers) n += layer.size();
  return n;
}

void print_json(const plan_options& options, const planning::strategy& made) {
  const auto& plan = made.plan;
  nlohmann::ordered_json out{{"plan", options.out},
                             {"strategy", made.name},
                             {"placement", plan.strategy},
                             {"placed", plan.experts.size()},
                             {"estimated_token_ms", nullptr}};
  if (plan.estimated_token_ns > 0) out["estimated_token_ms"] = plan.estimated_token_ns * 1e-6;
  if (made.pruned_nats)
    out["pruning"] = {{"experts", n_pruned(made)},
                      {"budget_percent", planning::percent_of_nats(*made.pruned_nats)}};
  fmt::print("{}\n", json_text(out, 2));
}

void print_places(const plan_options& options, const planning::strategy& made,
                  const cluster& servers) {
  const auto& plan = made.plan;
  fmt::print("{}: {} copies of {} experts on {} servers\n", options.out, plan.experts.size(),
             plan.n_layers * plan.n_experts, plan.n_servers);
  for (std::size_t m = 0; m < plan.n_servers; ++m) {
    std::vector<std::size_t> per_layer(plan.n_layers, 0);
    for (const auto& placed : plan.experts)
      if (placed.server.index() == m) ++per_layer[placed.layer.index()];
    fmt::print("  {:<12} {:>5.1f} of {:>5.1f} GB, experts per layer:", servers.servers[m].name,
               static_cast<double>(plan.expert_bytes_used[m]) * 1e-9,
               static_cast<double>(plan.expert_bytes_limit[m]) * 1e-9);
    for (const auto count : per_layer) fmt::print(" {}", count);
    fmt::print("\n");
  }
  if (made.pruned_nats)
    fmt::print(
        "  left out for everybody: {} experts, which takes {:.2f} % of perplexity of the budget\n",
        n_pruned(made), planning::percent_of_nats(*made.pruned_nats));
}

result<void> make_plan(const plan_options& options) {
  const auto request = options.planning.request(options.world, options.concurrency, std::nullopt);
  if (!request) return request.error();
  if (auto good =
          check_output("--out", options.out, {options.world.cluster, options.world.profile});
      !good)
    return good;
  std::shared_ptr<const model::expert_source> elsewhere;
  if (options.connection.given()) {
    auto connected = connect_model(options.connection, options.world.model);
    if (!connected) return connected.error();
    elsewhere = connected->experts;
  }
  const auto loaded =
      load_world_to_plan(options.world, std::nullopt, *request, std::move(elsewhere));
  if (!loaded) return loaded.error();
  const auto ready = [&] {
    const progress_display shown;
    return setup::prepare(*loaded, *request, work());
  }();
  if (!ready) return ready.error();
  const auto text = setup::plan_file_json(*loaded, *request, *ready);
  if (options.out.empty()) {
    fmt::print("{}", text);
    return {};
  }
  if (auto written = write_file(options.out, text); !written) return written;
  if (options.world.json)
    print_json(options, ready->service.chosen);
  else
    print_places(options, ready->service.chosen, loaded->servers);
  return {};
}

}  // namespace

void add_plan(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "plan", "Group, place and replicate experts as `run` would; writes plan.json");
  auto options = std::make_shared<plan_options>();
  options->world.add(command, true);
  options->world.add_precisions(command);
  options->world.add_choices(command);
  options->planning.add(command);
  command
      .add_option("--concurrency", options->concurrency,
                  "Requests in flight that the ordermoe planner expects; `run` expects as many as "
                  "it has prompts, 4 at most")
      ->check(number_from(1, 1e4))
      ->capture_default_str();
  options->connection.add(command,
                          "Address of a node of a cluster that serves the model: trials run its "
                          "experts there, and this process loads none");
  command.add_option("--out", options->out, "Plan to write; default: standard output")
      ->type_name(file_value);
  command.footer(
      "Example:\n  ordermoe plan --model data/models/lineage --cluster data/clusters/edge8.toml "
      "--quality-budget 1 --out plan.json");
  options->gap.add(command);
  set_body(command, [options]() -> result<void> {
    if (options->gap.is_chosen()) return print_plan_gaps(options->gap);
    return make_plan(*options);
  });
}

}  // namespace ordermoe::cli
