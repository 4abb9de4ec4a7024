#include "embedding/configuration.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "config/threads.hpp"
#include "embedding/node_content.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"
#include "setup/world.hpp"

namespace ordermoe::embedding {

namespace {

namespace fs = std::filesystem;

/// Before anything takes long.
result<void> check_paths(const api::cluster_options& options) {
  std::error_code unknown;
  if (options.model.empty()) return error{errc::usage, "model: no folder is named; name one"};
  if (!fs::is_directory(options.model, unknown))
    return error{errc::not_found,
                 fmt::format("model: {} is no folder; name the model's folder", options.model)};
  if (options.cluster.empty())
    return error{errc::usage,
                 "cluster: no file is named; draw one with `ordermoe cluster draw`, or write one"};
  const auto is_there = [&](const char* member, const std::string& path) -> result<void> {
    if (path.empty() || fs::is_regular_file(path, unknown)) return {};
    return error{errc::not_found, fmt::format("{}: {} is no file", member, path)};
  };
  if (auto there = is_there("cluster", options.cluster); !there) return there;
  if (auto there = is_there("plan", options.plan); !there) return there;
  return options.profile == "none" ? result<void>() : is_there("profile", options.profile);
}

result<void> check_values(const api::cluster_options& options) {
  if (!options.strategy.empty() && planning::find_strategy(options.strategy) == nullptr)
    return error{errc::usage,
                 fmt::format("strategy: found '{}', expected one of {}", options.strategy,
                             fmt::join(planning::accepted_strategy_names(), ", "))};
  if (options.quality_percent && !std::isfinite(*options.quality_percent))
    return error{errc::out_of_range,
                 "quality_percent: expected a number; a negative one is without limit"};
  if (!(options.concurrency > 0 && options.concurrency <= 1e6))
    return error{errc::out_of_range,
                 fmt::format("concurrency: found {}, expected more than 0 and 1e6 at most",
                             options.concurrency)};
  if (options.search_steps < 1)
    return error{errc::out_of_range, "search_steps: found 0, expected 1 at least"};
  return {};
}

/// What is to be prepared, as the plan that was given says where the options leave it open.
result<setup::preparation_request> request_of(const api::cluster_options& options,
                                              const std::optional<setup::plan_file>& given) {
  setup::preparation_request request;
  if (given) {
    request.strategy = given->origin.strategy;
    request.options.quality_percent = given->origin.quality_percent;
  }
  if (!options.strategy.empty())
    request.strategy = planning::canonical_strategy_name(options.strategy);
  if (options.quality_percent) request.options.quality_percent = *options.quality_percent;
  request.seed = request.options.seed = options.seed;
  request.options.search_steps = options.search_steps;
  request.options.concurrency = options.concurrency;
  if (given) {
    auto with_plan = setup::request_with(*given, std::move(request));
    if (!with_plan) return with_plan.error();
    request = std::move(*with_plan);
  }
  const auto* record = planning::find_strategy(request.strategy);
  if (!record->has_budget && request.options.quality_percent != 0)
    return error{errc::usage,
                 fmt::format("quality_percent: {} has no budget; leave it out, or choose {}",
                             request.strategy, planning::strategies_with_budget())};
  return request;
}

/// Charges that nobody named are those of a plan that is given. On the wall clock nothing is charged, and what is planned with
/// is the model that runs.
std::string costs_of(const api::cluster_options& options,
                     const std::optional<setup::plan_file>& given) {
  if (!options.costs.empty()) return options.costs;
  auto of_plan = given ? setup::named_costs(given->origin) : std::string();
  return of_plan.empty() ? "measured" : of_plan;
}

result<setup::world> world_of(const api::cluster_options& options,
                              const std::optional<setup::plan_file>& given, job& work) {
  setup::world_options wanted;
  wanted.model = options.model;
  wanted.cluster = options.cluster;
  wanted.costs = costs_of(options, given);
  wanted.profile = options.profile;
  wanted.seed = options.seed;
  wanted.device = options.device;
  if (given) wanted.plan_precisions = given->plan.expert_precision;
  auto loaded = setup::load_world(wanted, work);
  if (!loaded) return loaded;
  if (given)
    if (auto fits = setup::check_made_for(*given, *loaded); !fits) return fits.error();
  return loaded;
}

}  // namespace

result<actors::service_options> configure(const api::cluster_options& options, job& work) {
  if (auto good = check_paths(options); !good) return good.error();
  if (auto good = check_values(options); !good) return good.error();
  std::optional<setup::plan_file> given;
  if (!options.plan.empty()) {
    auto read = setup::read_plan_file(options.plan);
    if (!read) return read.error();
    given = std::move(*read);
  }
  const auto request = request_of(options, given);
  if (!request) return request.error();
  const auto loaded = world_of(options, given, work);
  if (!loaded) return loaded.error();
  auto ready = setup::prepare(*loaded, *request, work);
  if (!ready && given) return at(options.plan, ready.error());
  if (!ready) return ready.error();
  auto service = std::move(ready->service);
  const auto n = service.servers.size();
  service.mode = actors::run_mode::local;
  service.threads_per_server =
      options.threads > 0 ? options.threads
                          : std::max<std::size_t>(1, std::thread::hardware_concurrency() / n);
  service.most_positions = options.most_positions;
  if (auto enough = check_threads(n * service.threads_per_server); !enough) return enough.error();
  return service;
}

namespace {

/// What the host throws is its own matter.
log_outlet outlet_to(std::function<void(const api::log_record&)> host, log_level least,
                     std::shared_ptr<const std::atomic<bool>> is_silent) {
  return log_outlet(
      [host = std::move(host), is_silent = std::move(is_silent)](const log_record& record) {
        if (*is_silent) return;
        api::log_record told{
            to_string(record.level()), std::string(record.name()), {}, text_of(record)};
        for (const auto& each : record.fields) told.fields.emplace_back(each.name, text_of(each));
        const api::log_callback here;
        try {
          host(told);
        } catch (...) {
        }
      },
      least);
}

}  // namespace

result<member_configuration> configure(const api::member_options& options) {
  if (options.config.empty())
    return error{errc::usage,
                 "config: no node file is named; `ordermoe cluster prepare` writes some"};
  const auto least = parse_log_level(options.log_level);
  if (!least)
    return error{errc::usage,
                 fmt::format("log_level: found '{}', expected debug, info, warning, error or off",
                             options.log_level)};
  if (options.longest.count() < 0)
    return error{
        errc::out_of_range,
        fmt::format("longest: found {} ms, expected 0, which is as long as it takes, or more",
                    options.longest.count())};
  auto file = read_node_file(options.config);
  if (!file) return file.error();
  member_configuration made{std::move(*file), log_outlet()};
  if (options.log) made.log = outlet_to(options.log, *least, made.is_silent);
  return made;
}

result<connection> configure(const api::client_options& options) {
  const bool has_files =
      !options.authority.empty() || !options.certificate.empty() || !options.key.empty();
  if (has_files == !options.folder.empty())
    return error{
        errc::usage,
        "folder, authority, certificate and key: expected either the cluster's folder or the three "
        "files, found both or neither"};
  const auto where = net::parse_address(options.address);
  if (!where) return at("address", where.error());
  auto identity = has_files
                      ? net::tls_identity::load(options.authority, options.certificate, options.key)
                      : setup::console_identity({options.folder});
  if (!identity) return identity.error();
  return connection{
      *where, std::move(*identity),
      has_files ? net::connections_maker() : setup::connections_of_folder(options.folder)};
}

}  // namespace ordermoe::embedding
