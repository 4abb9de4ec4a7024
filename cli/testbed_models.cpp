#include "cli/testbed_models.hpp"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "bench/experiments/testbed/model_comparison.hpp"
#include "cli/common.hpp"
#include "config/json_text.hpp"

namespace ordermoe::cli {

namespace tb = experiments::testbed;

namespace {

struct models_options {
  std::vector<std::string> folders;
  bool json = false;
};

void print_json(const std::vector<tb::measured_model>& all) {
  auto out = nlohmann::ordered_json::object();
  out["models"] = nlohmann::ordered_json::array();
  for (const auto& model : all) {
    const auto rows = tb::json_text(*tb::find_experiment("overall"), model.rows, model.asked);
    out["models"].push_back(nlohmann::ordered_json::parse(rows));
  }
  out["findings"] = tb::model_findings(all);
  fmt::print("{}\n", json_text(out, 1));
}

result<void> compare(const models_options& options) {
  std::vector<tb::measured_model> all;
  for (const auto& folder : options.folders) {
    auto read = tb::read_measured_model(folder);
    if (!read) return read.error();
    all.push_back(std::move(*read));
  }
  if (options.json) {
    print_json(all);
    return {};
  }
  fmt::print("{}\n", tb::model_table(all));
  for (const auto& each : tb::model_findings(all)) fmt::print("- {}\n", each);
  return {};
}

}  // namespace

void add_model_comparison(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "models", "The rows of `overall` of several models beside each other (Fig. 6 of the paper)");
  auto options = std::make_shared<models_options>();
  command
      .add_option("FOLDERS", options->folders,
                  "Folders of `testbed overall`, from the smallest model to the largest")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--json", options->json, "Print rows and findings as JSON");
  command.footer(
      "Example:\n  ordermoe testbed overall --model data/models/switch-twin --quick --out switch\n "
      " "
      "ordermoe testbed overall --model data/models/mixtral-twin --quick --out mixtral\n  ordermoe "
      "testbed models switch mixtral");
  set_body(command, [options] { return compare(*options); });
}

}  // namespace ordermoe::cli
