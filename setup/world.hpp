#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/service/service.hpp"
#include "config/cluster.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"
#include "setup/texts.hpp"

/// What a run is made of before a strategy is chosen.
namespace ordermoe::setup {

/// Whether a profile is needed: only what plans and runs strategies does.
enum class profile_use { needed, none };

struct world_options {
  std::string model;                   ///< Folder.
  std::string cluster;                 ///< File; empty: no cluster.
  std::string costs = "mixtral-8x7b";  ///< Or `measured`: those of the model itself.
  /// File; empty: that in the model's folder, or else one that is made on the bundled text; `none`: nothing is known of
  /// the model (planning::uniform_profile).
  std::string profile;
  /// Where there is no file, nothing is known either: no profile is made.
  bool makes_profile = true;
  /// Whether something may be lost. Where nothing may, one server alone is planned for without a profile, and none is made.
  bool has_budget = true;
  /// Whether the model is executed. Otherwise no expert is in memory, and none may be run.
  bool runs_model = true;
  /// Whether a plan for servers of other processes is all that is wanted: the model is on the kernels whatever devices they
  /// name, which this machine need not have.
  bool only_plans = false;
  /// Who runs the experts, which then are not in memory either; null: the model does.
  std::shared_ptr<const model::expert_source> elsewhere;
  profile_use use = profile_use::needed;
  precision expert_precision = precision::stored, dense_precision = precision::stored;
  model::kv_precision kv = model::kv_precision::bf16;
  /// What every server computes on, in place of what the cluster file says (config/devices.hpp); empty: as it says.
  std::string device;
  std::uint64_t seed = 1;  ///< Of a profile that is made.
  /// Whether the model is also wanted with its experts in each precision that the profile knows.
  bool choose_precision = false;
  /// Precisions that a given plan has servers keep their experts in.
  std::vector<precision> plan_precisions;
};

/// A value: nothing changes in it once it is made.
struct world {
  std::filesystem::path folder;  ///< Of the model; empty where that was made in memory.
  std::string model_name, model_digest;
  model::load_options loading;  ///< As the model was loaded.
  std::shared_ptr<const model::transformer> model;
  /// The same model with its experts kept coarser, for servers that keep them so.
  std::map<precision, std::shared_ptr<const model::transformer>> coarser;
  /// The same model on each device but the kernels that a server names, by that name.
  std::map<std::string, std::shared_ptr<const model::transformer>> on_devices;
  std::shared_ptr<const model::tokenizer> tokens;
  cost_profile costs;
  cluster servers;
  planning::profile profile;
  bool only_plans = false;         ///< As in the options.
  bool charges_own_costs = false;  ///< Whether costs are those of the model itself.
  bool made_profile = false;       ///< For this world, on the bundled text.
  bool knows_nothing = false;      ///< The profile is the uniform one.
  /// Texts that strategies are tried and tuned on, those of the profile where it has some; never
  /// those that a report scores.
  token_documents tuning_texts;
  /// Why no quality budget may depend on the profile or be tuned on the texts (calibration.hpp).
  std::optional<error> unfit;
};

/// Whether there is no profile, and none will be made.
bool lacks_profile(const world_options& options);

/// Loads what the options name. The model itself is on the device of all servers, or, where they name several, on the
/// kernels. Errors name the file or the option.
result<world> load_world(const world_options& options, job& work);

/// The charges named so, for a model of this shape.
result<cost_profile> load_costs(const std::string& name, const model::model_config& shape);

/// Calibrates on a text file; copies: coarser ones to be measured too; elsewhere: as calibration_request has it.
result<planning::profile> calibrate_on(const std::filesystem::path& model_folder,
                                       const model::transformer& model,
                                       const model::tokenizer& tokens,
                                       const std::filesystem::path& text, std::size_t max_tokens,
                                       std::uint64_t seed, const std::vector<precision>& copies,
                                       job& work,
                                       std::shared_ptr<const model::expert_source> elsewhere = {});

/// The same world on other servers.
world on_servers(world content, cluster servers);

/// A service in that world, without a strategy.
actors::service_options service_in(const world& content, std::uint64_t seed);

}  // namespace ordermoe::setup
