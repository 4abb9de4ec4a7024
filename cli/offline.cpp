#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <numeric>
#include <set>

#include "cli/common.hpp"
#include "config/files.hpp"

/// The two offline steps, and drawing clusters.
namespace ordermoe::cli {

void add_calibrate(CLI::App& app) {
  struct content {
    std::string model, text, out;
    std::size_t tokens = 8192;
    std::uint64_t seed = 1;
    bool json = false;
    std::vector<std::string> copies{"int8", "int4"};
  };
  auto& command =
      *app.add_subcommand("calibrate", "Measure how a model's experts behave; writes profile.json");
  auto options = std::make_shared<content>();
  command.add_option("--model", options->model, "Model folder")->required();
  command.add_option("--text", options->text, "Calibration text; default: the bundled one");
  command.add_option("--tokens", options->tokens, "Calibration tokens at most")
      ->check(CLI::Range(64u, 100'000'000u))
      ->capture_default_str();
  command
      .add_option("--copies", options->copies,
                  "Coarser copies of the experts whose damage is measured too, each beside the "
                  "model in memory; none for none")
      ->check(CLI::IsMember({"int8", "int4", "none"}))
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--out", options->out, "Profile to write; default: MODEL/profile.json");
  command.add_option("--seed", options->seed, "Seed of the damage measurement")
      ->capture_default_str();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "Example:\n  ordermoe calibrate --model data/models/lineage --tokens 8192 --out "
      "profile.json");
  set_body(command, [options]() -> result<void> {
    const auto folder = existing_folder(options->model, "--model");
    if (!folder) return folder.error();
    const auto model = model::transformer::load(*folder);
    if (!model) return model.error();
    const auto tokens = model::tokenizer::load(*folder);
    if (!tokens) return tokens.error();
    const auto text = options->text.empty() ? data_folder() / "eval" / "calibration.txt"
                                            : std::filesystem::path(options->text);
    std::set<precision> copies;
    for (const auto& name : options->copies)
      if (name != "none") copies.insert(*parse_precision(name));
    const auto experts = calibrate_on(*folder, **model, **tokens, text, options->tokens,
                                      options->seed, {copies.begin(), copies.end()});
    if (!experts) return experts.error();
    const auto out =
        options->out.empty() ? *folder / "profile.json" : std::filesystem::path(options->out);
    if (auto written = write_file(out, planning::profile_json(*experts)); !written)
      return written.error();
    if (options->json) {
      nlohmann::ordered_json j{{"profile", out.string()},
                               {"calibration_tokens", experts->calibration_tokens},
                               {"baseline_nats", experts->baseline_nats}};
      for (const auto& layer : experts->layers) {
        j["damage"].push_back(layer.damage);
        for (const auto& copy : layer.copies)
          j["copy_damage"][to_string(copy.kept)].push_back(copy.damage);
      }
      fmt::print("{}\n", j.dump(2));
      return {};
    }
    fmt::print("{}: {} tokens, {:.4f} nats a token\n", out.string(), experts->calibration_tokens,
               experts->baseline_nats);
    fmt::print("damage in nats per unit of predicted loss (standard error):\n{:>6}", "layer");
    for (std::size_t m = 0; m < planning::n_loss_metrics; ++m)
      fmt::print("{:>28}", to_string(static_cast<planning::loss_metric>(m)));
    fmt::print("\n");
    for (std::size_t l = 0; l < experts->n_layers; ++l) {
      fmt::print("{:>6}", l);
      for (std::size_t m = 0; m < planning::n_loss_metrics; ++m)
        fmt::print("{:>17.5f} ({:>8.5f})", experts->layers[l].damage[m],
                   experts->layers[l].damage_error[m]);
      fmt::print("\n");
    }
    if (copies.empty()) return {};
    fmt::print("coarser copies: mean output distance, damage (standard error)\n{:>6}", "layer");
    for (const auto kept : copies) fmt::print("{:>38}", to_string(kept));
    fmt::print("\n");
    for (std::size_t l = 0; l < experts->n_layers; ++l) {
      fmt::print("{:>6}", l);
      for (const auto& copy : experts->layers[l].copies)
        fmt::print("{:>10.5f}{:>17.5f} ({:>8.5f})",
                   std::accumulate(copy.distance.begin(), copy.distance.end(), 0.0) /
                       static_cast<double>(copy.distance.size()),
                   copy.damage, copy.damage_error);
      fmt::print("\n");
    }
    return {};
  });
}

void add_plan(CLI::App& app) {
  struct content {
    world_options world;
    std::string strategy = "ordermoe", quality = "0", out;
    std::size_t search_steps = 10000;
    double concurrency = 1;
  };
  auto& command =
      *app.add_subcommand("plan", "Group, place and replicate experts; writes plan.json");
  auto options = std::make_shared<content>();
  options->world.add(command, true);
  command.add_option("--strategy", options->strategy, "Whose planner")
      ->check(CLI::IsMember(planning::strategy_names()))
      ->capture_default_str();
  command
      .add_option("--quality-budget", options->quality,
                  "Perplexity increase planned for, in per cent, or unbounded")
      ->capture_default_str();
  command
      .add_option("--search-steps", options->search_steps, "Moves that the ordermoe planner tries")
      ->capture_default_str();
  command
      .add_option("--concurrency", options->concurrency,
                  "Requests in flight that the ordermoe planner expects")
      ->capture_default_str();
  command.add_option("--out", options->out, "Plan to write; default: standard output");
  command.footer(
      "Example:\n  ordermoe plan --model data/models/lineage --cluster data/clusters/edge8.toml "
      "--quality-budget 1 --out plan.json");
  set_body(command, [options]() -> result<void> {
    const auto quality = parse_quality(options->quality);
    if (!quality) return quality.error();
    const auto loaded = load_world(options->world);
    if (!loaded) return loaded.error();
    planning::strategy_options choice;
    choice.quality_percent = *quality;
    choice.seed = options->world.seed;
    choice.search_steps = options->search_steps;
    choice.concurrency = options->concurrency;
    const auto made = planning::make_strategy(options->strategy, loaded->experts, loaded->servers,
                                              loaded->costs, choice);
    if (!made) return made.error();
    const auto text = planning::plan_json(made->plan);
    if (options->out.empty()) {
      fmt::print("{}", text);
      return {};
    }
    if (auto written = write_file(options->out, text); !written) return written.error();
    const auto& plan = made->plan;
    if (options->world.json) {
      nlohmann::ordered_json j{{"plan", options->out},
                               {"strategy", plan.strategy},
                               {"placed", plan.experts.size()},
                               {"estimated_token_ms", plan.estimated_token_ns * 1e-6}};
      fmt::print("{}\n", j.dump(2));
      return {};
    }
    fmt::print("{}: {} copies of {} experts on {} servers\n", options->out, plan.experts.size(),
               plan.n_layers * plan.n_experts, plan.n_servers);
    for (std::size_t m = 0; m < plan.n_servers; ++m) {
      std::vector<std::size_t> per_layer(plan.n_layers, 0);
      for (const auto& placed : plan.experts)
        if (placed.server.index() == m) ++per_layer[placed.layer.index()];
      fmt::print(
          "  {:<12} {:>5.1f} of {:>5.1f} GB, experts per layer:", loaded->servers.servers[m].name,
          static_cast<double>(plan.expert_bytes_used[m]) * 1e-9,
          static_cast<double>(plan.expert_bytes_limit[m]) * 1e-9);
      for (const auto count : per_layer) fmt::print(" {}", count);
      fmt::print("\n");
    }
    return {};
  });
}

void add_cluster(CLI::App& app) {
  struct content {
    draw_options draw;
    std::string costs = "mixtral-8x7b", out;
    bool json = false;
  };
  auto& parent = *app.add_subcommand("cluster", "Work with cluster files");
  parent.require_subcommand(1);
  auto& command = *parent.add_subcommand("draw", "Draw a random cluster in the paper's ranges");
  auto options = std::make_shared<content>();
  command.add_option("--servers", options->draw.n_servers, "Number of servers")
      ->check(CLI::Range(1u, 64u))
      ->capture_default_str();
  command.add_option("--seed", options->draw.seed, "The same seed gives the same cluster")
      ->capture_default_str();
  command.add_option("--sites", options->draw.n_sites, "Servers of a site are close; 0: no sites")
      ->check(CLI::Range(0u, 64u))
      ->capture_default_str();
  command
      .add_option("--memory-ratio", options->draw.memory_ratio,
                  "Expert memory over one replica of the model's experts")
      ->check(CLI::Range(0.01, 1000.0))
      ->capture_default_str();
  command.add_option("--costs", options->costs, "Cost profile that says what an expert weighs")
      ->capture_default_str();
  command.add_option("--layers", options->draw.n_layers, "Layers of the model")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command.add_option("--experts", options->draw.n_experts, "Experts of each layer")
      ->check(CLI::Range(1u, 1000u))
      ->capture_default_str();
  command.add_option("--out", options->out, "File to write; default: standard output");
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer("Example:\n  ordermoe cluster draw --servers 8 --seed 1 --out edge8.toml");
  set_body(command, [options]() -> result<void> {
    const auto costs = named_cost_profile(options->costs);
    if (!costs) return costs.error();
    options->draw.costs = *costs;
    const auto drawn = draw_cluster(options->draw);
    const auto text = cluster_toml(drawn);
    if (!options->out.empty())
      if (auto written = write_file(options->out, text); !written) return written.error();
    if (options->json) {
      nlohmann::ordered_json j{
          {"name", drawn.name}, {"seed", drawn.seed}, {"servers", drawn.size()}};
      for (const auto& server : drawn.servers)
        j["server"].push_back(
            {{"name", server.name},
             {"memory_bytes", server.memory_bytes},
             {"flops_per_s", server.flops_per_s},
             {"memory_bandwidth_bytes_per_s", server.memory_bandwidth_bytes_per_s},
             {"arrival_share", server.arrival_share}});
      fmt::print("{}\n", j.dump(2));
    } else if (options->out.empty()) {
      fmt::print("{}", text);
    } else {
      fmt::print("{}: {} servers, seed {}\n", options->out, drawn.size(), drawn.seed);
    }
    return {};
  });
}

}  // namespace ordermoe::cli
