#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "config/cluster.hpp"
#include "config/error.hpp"
#include "planning/plan.hpp"
#include "setup/preparation.hpp"
#include "setup/tuning.hpp"
#include "setup/world.hpp"

/// plan.json as commands write and read it: the plan, and what it was made for.
namespace ordermoe::setup {

/// Whose plan it is. A plan that is used for anything else is refused.
struct plan_origin {
  std::string strategy;
  double quality_percent = 0;  ///< Negative: unbounded.
  std::optional<std::size_t> horizon;
  std::string model_name, model_digest;
  std::string costs;
  cluster servers;
  /// The rest is what preparation found, so that a run with the plan need not find it again.
  std::optional<tuning> found;
  precision whole_model = precision::stored;
  double whole_model_nats = 0;
  std::optional<double> pruned_nats;
};

struct plan_file {
  std::filesystem::path path;
  planning::plan plan;
  plan_origin origin;
};

/// The charges that a plan was made for as `costs` options name them: without the precisions that stand behind the name, which
/// are asked for otherwise. Empty where there are none of that name.
std::string named_costs(const plan_origin& origin);

std::string plan_file_json(const world& content, const preparation_request& request,
                           const prepared& ready);

/// The text of a plan file with another plan, made for the same. Error: malformed, where it is none.
result<std::string> with_plan(const std::string& text, const planning::plan& content);

/// Errors: those of read_file and parse_plan; all of them name the file, and none is `infeasible`.
result<plan_file> read_plan_file(const std::filesystem::path& path);

/// Whether the plan was made for this model, cluster and charges. Error: mismatch, naming what
/// differs first.
result<void> check_made_for(const plan_file& file, const world& content);

/// The first thing that differs between two clusters besides their names and seeds, as "server s3:
/// 5000000000 bytes of memory, expected 6000000000"; empty where nothing does.
std::string first_difference(const cluster& found, const cluster& expected);

/// The request that makes the same of the plan as the one that it was made with. What is asked for
/// otherwise, a budget or a horizon, is tuned anew. Error: mismatch where the plan keeps the whole
/// model coarser or prunes experts, which was paid for by its own budget.
result<preparation_request> request_with(const plan_file& file, preparation_request request);

}  // namespace ordermoe::setup
