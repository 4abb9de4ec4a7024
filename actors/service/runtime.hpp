#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/changes.hpp"
#include "actors/protocol/requests.hpp"
#include "actors/service/service.hpp"
#include "config/cluster.hpp"
#include "config/error.hpp"
#include "planning/serving/ledgers.hpp"

/// A batch of requests answered by a service of its own: what `run`, `eval` and experiments do.
namespace ordermoe::actors {

struct run_setup : service_options {
  std::vector<request_spec> requests;  ///< The number of each is its place.
  std::filesystem::path trace;         ///< Empty: none.
  std::vector<replan_order> replans;
  answer_sink watcher;  ///< Told of every answer as it comes.
  std::function<bool()> should_stop;
  std::function<void(std::size_t done, std::size_t total)> on_progress;
};

struct run_result {
  std::vector<request_outcome> outcomes;  ///< By request number.
  execution_counts executions{};
  std::vector<link_ledger> links;  ///< By from, then to.
  std::vector<server_ledger> servers;
  std::vector<plan_change> plan_changes;      ///< Each order and proposal, in order.
  std::vector<policy_change> policy_changes;  ///< In order.
  std::vector<problem> problems;
  std::optional<observations> observed;  ///< Where a monitor ran.
  double host_seconds = 0;               ///< Wall clock of this process, start to end.
  double tensor_seconds = 0;             ///< Of it inside tensor kernels (sum over servers).
};

/// Spreads requests over access servers by arrival share and over time as a Poisson process of
/// `rate` per second (0: all at once), from the seed alone.
void draw_arrivals(std::vector<request_spec>& requests, const cluster& servers, double rate,
                   std::uint64_t seed);

/// Whether every prompt fits the model's context and vocabulary. Error: out_of_range, naming the
/// request, or its place where there are as many.
result<void> check_prompts(const run_setup& setup, const std::vector<std::string>& places = {});

/// Answers all requests. Errors: those of service::start; that of the first request that was not
/// answered; interrupted.
result<run_result> run_requests(const run_setup& setup);

}  // namespace ordermoe::actors
