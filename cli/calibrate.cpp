#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include <numeric>
#include <set>

#include "cli/common.hpp"
#include "cli/connection.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "setup/calibration.hpp"

namespace ordermoe::cli {

namespace {

struct calibrate_options {
  std::string model, text, out;
  std::size_t tokens = 8192;
  std::uint64_t seed = 1;
  bool json = false;
  connection_flags connection;
  std::vector<std::string> copies{"int8", "int4"};
};

std::vector<precision> copies_of(const calibrate_options& options) {
  std::set<precision> copies;
  for (const auto& name : options.copies)
    if (name != "none") copies.insert(*parse_precision(name));
  return {copies.begin(), copies.end()};
}

result<planning::profile> measure(const calibrate_options& options,
                                  const std::filesystem::path& folder,
                                  std::shared_ptr<const model::expert_source> elsewhere) {
  model::load_options loading;
  loading.elsewhere = elsewhere;
  if (elsewhere) loading.hosts = [](layer_id, expert_id) { return false; };
  const auto model = model::transformer::load(folder, loading);
  if (!model) return model.error();
  const auto tokens = model::tokenizer::load(folder);
  if (!tokens) return tokens.error();
  const auto text = options.text.empty() ? setup::data_folder() / "eval" / "calibration.txt"
                                         : std::filesystem::path(options.text);
  const progress_display shown;
  return setup::calibrate_on(folder, **model, **tokens, text, options.tokens, options.seed,
                             copies_of(options), work(), std::move(elsewhere));
}

void print_json(const planning::profile& experts, const std::filesystem::path& out) {
  nlohmann::ordered_json j{{"profile", out.string()},
                           {"calibration_tokens", experts.calibration_tokens},
                           {"baseline_nats", experts.baseline_nats}};
  for (const auto& layer : experts.layers) {
    j["damage"].push_back(layer.damage);
    if (layer.left_out) j["left_out_damage"].push_back(layer.left_out->damage);
    for (const auto& copy : layer.copies)
      j["copy_damage"][to_string(copy.kept)].push_back(copy.damage);
  }
  if (!experts.position_damage.empty()) j["position_damage"] = experts.position_damage;
  if (!experts.unread_damage.empty()) j["unread_damage"] = experts.unread_damage;
  fmt::print("{}\n", json_text(j, 2));
}

void print_positions(const planning::profile& experts) {
  const auto print = [](std::string_view what, std::span<const double> factors) {
    if (factors.empty()) return;
    fmt::print("token-gate damage over that at later positions, {}\n", what);
    for (std::size_t b = 0; b < factors.size(); ++b)
      fmt::print("{:>6} on {:>15.3f}\n", (std::size_t{1} << b) - 1, factors[b]);
  };
  print("by position", experts.position_damage);
  print("within a prompt, by its tokens", experts.unread_damage);
}

void print_damage(const planning::profile& experts) {
  fmt::print("damage in nats of divergence per unit of predicted loss (standard error):\n{:>6}",
             "layer");
  for (std::size_t m = 0; m < planning::n_loss_metrics; ++m)
    fmt::print("{:>28}", to_string(static_cast<planning::loss_metric>(m)));
  const bool leaves_out = experts.layers.front().left_out.has_value();
  fmt::print("{}\n", leaves_out ? fmt::format("{:>28}", "left out") : "");
  for (std::size_t l = 0; l < experts.n_layers; ++l) {
    fmt::print("{:>6}", l);
    for (std::size_t m = 0; m < planning::n_loss_metrics; ++m)
      fmt::print("{:>17.5f} ({:>8.5f})", experts.layers[l].damage[m],
                 experts.layers[l].damage_error[m]);
    if (const auto& left_out = experts.layers[l].left_out)
      fmt::print("{:>17.5f} ({:>8.5f})", left_out->damage, left_out->damage_error);
    fmt::print("\n");
  }
}

void print_copies(const planning::profile& experts, const std::vector<precision>& copies) {
  if (copies.empty()) return;
  fmt::print("coarser copies: mean output distance, damage (standard error)\n{:>6}", "layer");
  for (const auto kept : copies) fmt::print("{:>38}", to_string(kept));
  fmt::print("\n");
  for (std::size_t l = 0; l < experts.n_layers; ++l) {
    fmt::print("{:>6}", l);
    for (const auto& copy : experts.layers[l].copies)
      fmt::print("{:>10.5f}{:>17.5f} ({:>8.5f})",
                 std::accumulate(copy.distance.begin(), copy.distance.end(), 0.0) /
                     static_cast<double>(copy.distance.size()),
                 copy.damage, copy.damage_error);
    fmt::print("\n");
  }
}

result<void> calibrate(const calibrate_options& options) {
  if (options.model.empty() && !options.connection.given())
    return error{errc::usage,
                 "give --model DIR, or --connect ADDRESS and --dir DIR for a model that a cluster "
                 "serves"};
  connected_model model{options.model, nullptr};
  if (options.connection.given()) {
    auto connected = connect_model(options.connection, options.model);
    if (!connected) return connected.error();
    model = std::move(*connected);
  }
  const auto folder = existing_folder(model.folder.string(), "--model");
  if (!folder) return folder.error();
  const auto out =
      options.out.empty() ? *folder / "profile.json" : std::filesystem::path(options.out);
  if (auto good = check_output("--out", out, {options.text}); !good) return good;
  const auto shape = model::read_model_config(*folder);
  if (!shape) return shape.error();
  const auto experts = measure(options, *folder, model.experts);
  if (!experts) return experts.error();
  if (const auto problem = setup::unfit(*experts, *shape)) warn_of(*problem);
  if (auto written = write_file(out, planning::profile_json(*experts)); !written) return written;
  if (options.json) {
    print_json(*experts, out);
    return {};
  }
  fmt::print("{}: {} tokens, {:.4f} nats a token\n", out.string(), experts->calibration_tokens,
             experts->baseline_nats);
  print_damage(*experts);
  print_positions(*experts);
  print_copies(*experts, copies_of(options));
  return {};
}

}  // namespace

void add_calibrate(CLI::App& app) {
  auto& command =
      *app.add_subcommand("calibrate", "Measure how a model's experts behave; writes profile.json");
  auto options = std::make_shared<calibrate_options>();
  command
      .add_option("--model", options->model,
                  "Model folder; with --connect by default that of the nodes")
      ->type_name(folder_value);
  options->connection.add(
      command, "Address of a node: experts run on the cluster, and this process loads none");
  command.add_option("--text", options->text, "Calibration text; default: the bundled one")
      ->type_name(file_value);
  command
      .add_option(
          "--tokens", options->tokens,
          "Calibration tokens at most, and two thirds of the text at most: budgets are tuned "
          "on what follows")
      ->check(whole_from(64, 100'000'000))
      ->capture_default_str();
  command
      .add_option("--copies", options->copies,
                  "Coarser copies of the experts whose damage is measured too, each beside the "
                  "model in memory; none for none")
      ->check(CLI::IsMember({"int8", "int4", "none"}))
      ->delimiter(',')
      ->capture_default_str();
  command.add_option("--out", options->out, "Profile to write; default: MODEL/profile.json")
      ->type_name(file_value);
  add_seed(command, options->seed, "Seed of the damage measurement");
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "With --connect the profile is the same, byte for byte, as where one process holds the "
      "model.\n"
      "Examples:\n  ordermoe calibrate --model data/models/lineage --tokens 8192 --out "
      "profile.json\n"
      "  ordermoe calibrate --connect 127.0.0.1:7400 --dir edge --tokens 512 --out profile.json");
  set_body(command, [options] { return calibrate(*options); });
}

}  // namespace ordermoe::cli
