#include "cli/connection.hpp"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/cluster_commands.hpp"
#include "cli/common.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::cli {

void connection_flags::add(CLI::App& command, const std::string& what) {
  auto* connect = command.add_option("--connect", address, what);
  command.add_option("--dir", folder, "Folder of the cluster, with its certificates")
      ->type_name(folder_value)
      ->needs(connect);
  connect->needs(command.get_option("--dir"));
}

result<std::shared_ptr<actors::cluster_client>> connect_to(const std::string& address,
                                                           const std::string& folder) {
  const auto at = net::parse_address(address);
  if (!at) return ordermoe::at("--connect", at.error());
  const auto identity = setup::console_identity({folder});
  if (!identity) return identity.error();
  auto client = actors::cluster_client::connect(*identity, *at, std::chrono::seconds(5),
                                                setup::connections_of_folder(folder));
  if (!client) return explained(client.error());
  return std::shared_ptr<actors::cluster_client>(std::move(*client));
}

error explained(error problem) {
  for (const auto* said :
       {"self-signed certificate in certificate chain", "unable to get local issuer certificate"})
    if (problem.message.find(said) != std::string::npos) {
      problem.message +=
          "; a certificate of another authority: is --dir the folder of this cluster?";
      break;
    }
  return problem;
}

result<connected_model> connect_model(const connection_flags& flags, const std::string& model) {
  const auto files = setup::read_cluster_folder({flags.folder});
  if (!files) return files.error();
  const auto folder =
      existing_folder(model.empty() ? files->front().model.string() : model, "--model");
  if (!folder) return folder.error();
  const auto shape = model::read_model_config(*folder);
  if (!shape) return shape.error();
  const auto digest = model::model_digest(*folder);
  if (!digest) return digest.error();
  auto client = connect_to(flags.address, flags.folder);
  if (!client) return client.error();
  const auto status = (*client)->status(std::chrono::seconds(10));
  if (!status) return status.error();
  const auto told = nlohmann::json::parse(*status, nullptr, false);
  const auto served = told.is_object() ? told.value("model", std::string()) : std::string();
  if (served != *digest)
    return error{
        errc::mismatch,
        fmt::format("--connect {}: serves a model with digest {}, {} has {}; name the "
                    "folder of the model that it serves with --model",
                    flags.address, served.substr(0, 12), folder->string(), digest->substr(0, 12))};
  return connected_model{
      *folder, std::make_shared<const actors::remote_experts>(*client, shape->hidden_size)};
}

}  // namespace ordermoe::cli
