#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/cluster_commands.hpp"
#include "cli/common.hpp"
#include "config/devices.hpp"
#include "config/json_text.hpp"
#include "net/identity/certificates.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/node_setup.hpp"
#include "setup/nodes_together.hpp"

// cluster check: what is wrong before anything starts.
namespace ordermoe::cli {

namespace {

namespace fs = std::filesystem;

struct check_command {
  std::string config, folder;
  bool json = false;
};

struct checked_node {
  std::string name;
  std::optional<setup::node_outlook> outlook;
  std::string problem;
};

/// Of each cluster file once.
std::vector<std::string> device_warnings(const std::vector<node_file>& files) {
  std::vector<std::string> warnings;
  std::set<fs::path> seen;
  for (const auto& file : files) {
    if (!seen.insert(file.cluster).second) continue;
    const auto servers = read_cluster(file.cluster);
    if (const auto mixed = servers ? mixed_devices(*servers) : std::string(); !mixed.empty())
      warnings.push_back(fmt::format("{}: {}", file.cluster.string(), mixed));
  }
  return warnings;
}

std::vector<std::string> certificate_warnings(const std::vector<checked_node>& nodes) {
  std::vector<std::string> warnings;
  const auto now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  for (const auto& each : nodes)
    if (const auto left_s =
            each.outlook ? each.outlook->certificate_until_s - now : net::expires_soon_s;
        left_s < net::expires_soon_s)
      warnings.push_back(expiry_warning(each.name, left_s));
  return warnings;
}

void print_checked(const std::vector<checked_node>& nodes, const std::string& problem,
                   const std::vector<std::string>& warnings, bool json) {
  if (json) {
    auto all = nlohmann::ordered_json::array();
    for (const auto& each : nodes) {
      nlohmann::ordered_json j{{"name", each.name}, {"problem", each.problem}};
      if (each.outlook) {
        j["device"] = each.outlook->device;
        j["experts"] = each.outlook->n_experts;
        j["weight_bytes"] = each.outlook->weight_bytes;
        j["certificate_until_s"] = each.outlook->certificate_until_s;
        j["fetches_plan"] = each.outlook->fetches_plan;
      }
      all.push_back(std::move(j));
    }
    fmt::print("{}\n", json_text(
                           nlohmann::ordered_json{
                               {"nodes", all}, {"problem", problem}, {"warnings", warnings}},
                           2));
    return;
  }
  for (const auto& each : warnings) fmt::print(stderr, "ordermoe: warning: {}\n", each);
  fmt::print("{:<12} {:>8} {:>14}  {}\n", "node", "experts", "weights MB", "problem");
  for (const auto& each : nodes)
    if (each.outlook && each.outlook->fetches_plan)
      fmt::print("{:<12} {:>8} {:>14}  - (it has no plan, and fetches the one in force)\n",
                 each.name, "?", "?");
    else if (each.outlook)
      fmt::print("{:<12} {:>8} {:>14.1f}  -\n", each.name, each.outlook->n_experts,
                 static_cast<double>(each.outlook->weight_bytes) * 1e-6);
    else
      fmt::print("{:<12} {:>8} {:>14}  {}\n", each.name, "-", "-", each.problem);
}

/// Of a folder only nodes at the loopback address are this machine's for certain; one file is checked on its host.
bool is_here(const check_command& options, const node_file& file) {
  return !options.config.empty() || std::ranges::any_of(file.listen, [](const std::string& each) {
    return each.starts_with("127.") || each.starts_with("[::1]");
  });
}

result<setup::node_outlook> outlook_of(const check_command& options, const node_file& file) {
  auto outlook = setup::check_node(file, work());
  if (!outlook || !is_here(options, file)) return outlook;
  if (auto good = setup::check_places(file); !good) return good.error();
  return outlook;
}

result<void> check(const check_command& options) {
  if (options.config.empty() == options.folder.empty())
    return error{errc::usage, "give --config FILE for one node, or --dir DIR for all of a folder"};
  std::vector<node_file> files;
  if (!options.config.empty()) {
    auto file = read_node_file(options.config);
    if (!file) return file.error();
    files.push_back(std::move(*file));
  } else {
    auto all = setup::read_cluster_folder({options.folder});
    if (!all) return all.error();
    files = std::move(*all);
  }
  std::vector<checked_node> nodes;
  for (const auto& file : files) {
    const auto outlook = outlook_of(options, file);
    nodes.push_back({file.name, std::nullopt, outlook ? "" : outlook.error().message});
    if (outlook) nodes.back().outlook = *outlook;
  }
  auto together = setup::check_reach(files);
  if (together) together = setup::check_alike(files);
  auto warnings = setup::channel_warnings(files);
  for (const auto& text : device_warnings(files)) warnings.push_back(text);
  std::ranges::move(certificate_warnings(nodes), std::back_inserter(warnings));
  print_checked(nodes, together ? "" : together.error().message, warnings, options.json);
  const auto bad = std::ranges::count_if(nodes, [](const auto& each) { return !each.outlook; });
  if (bad > 0)
    return error{errc::mismatch, fmt::format("{} of {} nodes would not start", bad, nodes.size())};
  return together;
}

}  // namespace

void add_cluster_check(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "check",
      "What is wrong with node files, certificates, plan and model, before anything starts");
  auto options = std::make_shared<check_command>();
  command.add_option("--config", options->config, "node.toml of one node")->type_name(file_value);
  command
      .add_option("--dir", options->folder, "Folder that `cluster up` or `prepare` made: all nodes")
      ->type_name(folder_value);
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer("Example:\n  ordermoe cluster check --dir edge");
  set_body(command, [options] { return check(*options); });
}

}  // namespace ordermoe::cli
