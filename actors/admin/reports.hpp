#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>

#include "actors/context.hpp"

/// What an operator is told, as JSON: values in, a text's content out.
namespace ordermoe::actors {

/// A plan that was made and changes nothing yet.
struct proposal {
  std::uint64_t number = 0;
  plan_proposal content;
  /// Plans that lead to it one after the other, it the last, so that requests begin all the while; empty: they wait.
  std::vector<planning::plan> plans = {};
  /// What it goes by; null: the activation in force.
  std::shared_ptr<const planning::measured_activation> measured = nullptr;
  bool is_ordered = true;  ///< Otherwise the node made it by itself, since what is asked drifted.
};
/// What becomes of requests that come meanwhile.
std::string admission_during(const proposal& of);

/// Of the plan that is in force once it is applied, over others or at once.
std::uint64_t last_epoch(const proposal& of);

/// Servers, who is connected, plan and policy in force. `away`: who is not; `absent`: who is no member. Here and in what
/// follows `strategy` is the one that was asked for, and `placement` whose placement won its trial.
nlohmann::ordered_json members_report(const service_context& context, const in_force& now,
                                      const server_status& status,
                                      const std::set<std::uint32_t>& away,
                                      const std::set<std::uint32_t>& absent,
                                      serving::change_phase phase);
/// `now_ns`: since the start of the service.
nlohmann::ordered_json requests_report(const service_context& context, const server_status& status,
                                       std::int64_t now_ns);
nlohmann::ordered_json plan_report(const service_context& context, const in_force& now);
nlohmann::ordered_json history_report(const history& known);
nlohmann::ordered_json proposal_report(const service_context& context, const proposal& of);
/// The proposal, with the (layer, expert) that each server gains and loses beside `before`.
nlohmann::ordered_json difference_report(const service_context& context,
                                         const planning::placement_index& before,
                                         const proposal& of);

}  // namespace ordermoe::actors
