#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "cli/model_commands.hpp"
#include "config/json_text.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "setup/plan_file.hpp"

namespace ordermoe::cli {

namespace {

struct shard_command {
  std::string model, plan, server, out;
  bool json = false;
};

result<std::size_t> server_of(const setup::plan_file& plan, const std::string& name) {
  const auto& servers = plan.origin.servers.servers;
  const auto found = std::ranges::find(servers, name, &server_spec::name);
  if (found != servers.end()) return static_cast<std::size_t>(found - servers.begin());
  std::string names;
  for (const auto& each : servers) names += (names.empty() ? "" : ", ") + each.name;
  return error{errc::usage, fmt::format("--server {}: {} has no server of that name, expected one "
                                        "of {}",
                                        name, plan.path.string(), names)};
}

result<void> shard(const shard_command& options) {
  const auto folder = existing_folder(options.model, "--model");
  if (!folder) return folder.error();
  const auto plan = setup::read_plan_file(options.plan);
  if (!plan) return plan.error();
  const auto server = server_of(*plan, options.server);
  if (!server) return server.error();
  const auto digest = model::model_digest(*folder);
  if (!digest) return digest.error();
  if (*digest != plan->origin.model_digest)
    return error{
        errc::mismatch,
        fmt::format("{}: made for the model {} (digest {}), {} has {}; name the model that "
                    "it was made for",
                    options.plan, plan->origin.model_name, plan->origin.model_digest.substr(0, 12),
                    options.model, digest->substr(0, 12))};
  const planning::placement_index index(plan->plan);
  result<model::written_model> written = error{errc::failed, "not run"};
  {
    progress_line line("writing");
    written = model::write_part(*folder, options.out, options.server,
                                [&](layer_id layer, expert_id expert) {
                                  return index.hosts(*server, layer.index(), expert.index());
                                },
                                {[&](double share) { line.show(share); }, stop_requested});
  }
  if (!written) return written.error();
  if (options.json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"folder", options.out},
                                                        {"server", options.server},
                                                        {"tensors", written->n_tensors},
                                                        {"weight_files", written->n_files},
                                                        {"weight_bytes", written->weight_bytes},
                                                        {"model_digest", *digest}},
                                 2));
  else
    fmt::print("{}: what {} needs of the model, {} tensors of {} bytes in {} {}\n", options.out,
               options.server, written->n_tensors, written->weight_bytes, written->n_files,
               written->n_files == 1 ? "file" : "files");
  return {};
}

}  // namespace

void add_shard(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "shard",
      "Write what one server of a plan needs of a model: its experts and what is no expert");
  auto options = std::make_shared<shard_command>();
  command.add_option("--model", options->model, "Folder of the whole model")
      ->type_name(folder_value)
      ->required();
  command.add_option("--plan", options->plan, "plan.json that says which experts")
      ->type_name(file_value)
      ->required();
  command.add_option("--server", options->server, "Name of the server")->required();
  command.add_option("--out", options->out, "Folder to write; absent or empty before")
      ->type_name(folder_value)
      ->required();
  command.add_flag("--json", options->json, "Print JSON on standard output");
  command.footer(
      "A node starts on such a folder as on the whole model's: name it as `model` in node.toml.\n"
      "Its part.json has the model's digest and that of its own tensors, which are compared when "
      "it\n"
      "is used; `ordermoe model verify --checksums` compares every byte.\n"
      "Example:\n"
      "  ordermoe plan --model data/models/lineage --cluster data/clusters/edge8.toml --out "
      "plan.json\n"
      "  ordermoe model shard --model data/models/lineage --plan plan.json --server s0 --out "
      "lineage-s0");
  set_body(command, [options] { return shard(*options); });
}

}  // namespace ordermoe::cli
