#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/cluster_commands.hpp"
#include "cli/common.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"

namespace ordermoe::cli {

namespace {

struct draw_command {
  draw_options draw;
  double uplink_gbps = 0, site_uplink_gbps = 0;
  std::string costs = "mixtral-8x7b", out;
  bool json = false;
};

constexpr double bytes_per_gbit = 125e6;

void print_json(const cluster& drawn) {
  nlohmann::ordered_json j{{"name", drawn.name}, {"seed", drawn.seed}, {"servers", drawn.size()}};
  for (const auto& server : drawn.servers)
    j["server"].push_back({{"name", server.name},
                           {"memory_bytes", server.memory_bytes},
                           {"flops_per_s", server.flops_per_s},
                           {"memory_bandwidth_bytes_per_s", server.memory_bandwidth_bytes_per_s},
                           {"arrival_share", server.arrival_share}});
  fmt::print("{}\n", json_text(j, 2));
}

result<void> draw(const draw_command& options) {
  const auto costs = named_cost_profile(options.costs);
  if (!costs) return costs.error();
  if (auto good = check_output("--out", options.out); !good) return good;
  auto wanted = options.draw;
  wanted.costs = *costs;
  wanted.uplink_bytes_per_s = std::round(options.uplink_gbps * bytes_per_gbit);
  wanted.site_uplink_bytes_per_s = std::round(options.site_uplink_gbps * bytes_per_gbit);
  if (wanted.site_uplink_bytes_per_s > 0 && wanted.n_sites == 0)
    return error{errc::usage, "--site-uplink-gbps: there are no sites; give --sites, too"};
  const auto drawn = draw_cluster(wanted);
  const auto text = cluster_toml(drawn);
  if (const auto readable = parse_cluster(text, "the drawn cluster"); !readable) {
    auto problem = readable.error();
    problem.message += " (as --memory-ratio, --layers, --experts and --costs ask for)";
    return problem;
  }
  if (!options.out.empty())
    if (auto written = write_file(options.out, text); !written) return written;
  if (options.json)
    print_json(drawn);
  else if (options.out.empty())
    fmt::print("{}", text);
  else
    fmt::print("{}: {} servers, seed {}\n", options.out, drawn.size(), drawn.seed);
  return {};
}

}  // namespace

void add_cluster(CLI::App& app) {
  auto& parent = *app.add_subcommand("cluster", "Draw cluster files; run clusters on this machine");
  parent.require_subcommand(1);
  auto& command = *parent.add_subcommand("draw", "Draw a random cluster in the paper's ranges");
  auto options = std::make_shared<draw_command>();
  command.add_option("--servers", options->draw.n_servers, "Number of servers")
      ->check(whole_from(1, max_servers))
      ->capture_default_str();
  add_seed(command, options->draw.seed, "The same seed gives the same cluster");
  command.add_option("--sites", options->draw.n_sites, "Servers of a site are close; 0: no sites")
      ->check(whole_from(0, max_servers))
      ->capture_default_str();
  command
      .add_option("--uplink-gbps", options->uplink_gbps,
                  "What all links of a server together carry, each way; 0: no bound")
      ->check(number_from(0, 10000))
      ->capture_default_str();
  command
      .add_option("--site-uplink-gbps", options->site_uplink_gbps,
                  "With --sites: what enters or leaves a site, each way; 0: no bound")
      ->check(number_from(0, 10000))
      ->capture_default_str();
  auto* ratio = command
                    .add_option("--memory-ratio", options->draw.memory_ratio,
                                "Expert memory over one replica of the model's experts")
                    ->check(number_from(0.01, 1000))
                    ->capture_default_str();
  auto* as_drawn =
      command.add_flag("--memory-as-drawn", options->draw.memory_as_drawn, memory_as_drawn_help)
          ->excludes(ratio);
  command.add_flag("--dense-by-layer", options->draw.dense_by_layer, dense_by_layer_help)
      ->needs(as_drawn);
  command.add_option("--costs", options->costs, "Cost profile that says what an expert weighs")
      ->check(cost_profile_check())
      ->capture_default_str();
  command.add_option("--layers", options->draw.n_layers, "Layers of the model")
      ->check(whole_from(1, 1000))
      ->capture_default_str();
  command.add_option("--experts", options->draw.n_experts, "Experts of each layer")
      ->check(whole_from(1, 1000))
      ->capture_default_str();
  command.add_option("--out", options->out, "File to write; default: standard output")
      ->type_name(file_value);
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer("Example:\n  ordermoe cluster draw --servers 8 --seed 1 --out edge8.toml");
  set_body(command, [options] { return draw(*options); });
  add_cluster_processes(parent);
  add_cluster_check(parent);
}

}  // namespace ordermoe::cli
