#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "actors/planner.hpp"
#include "test/actors/probe_server.hpp"

/// What tests of the planner share: a planner whose servers are probes.
namespace ordermoe::test {

using actors::planner_phase;

/// A planner of three servers that are probes; the plan of the start is the one by hand.
struct one_planner : probe_server {
  actors::planner_work work;
  std::vector<probe> servers;
  actors::planner_actor planning;

  one_planner() {
    work.profile = profile();
    work.chosen.name = "layer-shards";
    work.chosen.plan = plan();
    work.chosen.policy = policy();
    work.chosen.token_budget = 10;
    for (std::uint32_t m = 0; m < n_servers; ++m) {
      servers.emplace_back(*this);
      work.servers.push_back(servers.back().as<actors::edge_server_actor>());
      work.ids.push_back(m);
    }
    work.recorder = recorder.as<actors::recorder_actor>();
    work.monitor = monitor.as<actors::monitor_actor>();
    work.most_positions.assign(n_servers, 8);
  }
  void spawn() {
    planning = keep(actors::spawn_planner(system(), context, work));
    tell(planning, actors::push_plan{});
  }
  /// Servers with room for three experts more than the plan of the start has there.
  void leave_little_room() {
    const auto resident = context->costs.resident_bytes(n_layers);
    for (auto& server : context->servers.servers)
      server.memory_bytes = resident + kv_bytes + 9 * context->costs.expert_bytes;
  }
  /// What the servers were told last.
  actors::install_plans told() const { return servers[0].all<actors::install_plans>().back(); }
  /// Every server has done what it was told last.
  void installed() {
    const auto number = told().number;
    for (std::uint32_t m = 0; m < n_servers; ++m)
      tell(planning, actors::plans_installed{number, m});
  }
  /// No request of any server is under a plan before this one.
  void ended(std::uint64_t epoch) {
    for (std::uint32_t m = 0; m < n_servers; ++m) tell(planning, actors::requests_ended{epoch, m});
  }
  /// From where weights have moved to the end of a change.
  void go_over(std::uint64_t epoch) {
    installed();
    installed();
    ended(epoch);
    installed();
  }
  static std::vector<std::uint64_t> epochs_of(const actors::install_plans& message) {
    std::vector<std::uint64_t> epochs;
    for (const auto& each : message.plans) epochs.push_back(each->plan.epoch);
    return epochs;
  }
  /// The first plan is in force everywhere.
  void steady() {
    spawn();
    installed();
    forget();
  }
  void forget() {
    for (auto& each : servers) each.forget();
    recorder.forget();
    monitor.forget();
  }
  void order(const std::string& strategy) {
    auto content = std::make_shared<actors::replan_order>();
    content->strategy = strategy;
    tell(planning, actors::replan{content});
  }
  void order_policy(const planning::selection_policy& by) {
    auto content = std::make_shared<actors::policy_order>();
    content->policy = by;
    tell(planning, actors::change_policy{content});
  }
  void propose(double least_gain) {
    tell(planning, actors::propose_replan{std::make_shared<const planning::profile>(profile()), 2,
                                          least_gain});
  }
  void held(std::uint64_t change) {
    for (std::uint32_t m = 0; m < n_servers; ++m) tell(planning, actors::admission_held{change, m});
  }
  /// Every server holds admission, and says so.
  void drain() { held(servers[0].only<actors::hold_admission>().change); }
  actors::planner_status status() {
    return ask<actors::planner_status>(planning, actors::status_query{});
  }
  planner_phase phase() { return status().phase; }
  /// Every server heard this once.
  template <class Message>
  bool all_heard(std::size_t times = 1) const {
    return std::ranges::all_of(
        servers, [times](const probe& each) { return each.count<Message>() == times; });
  }
};

/// A policy that needs groups, which the plan does not have.
inline planning::selection_policy impossible() {
  auto made = probe_server::policy();
  made.candidates = planning::candidate_rule::group;
  return made;
}

inline bool says(const std::string& text, const char* words) {
  return text.find(words) != std::string::npos;
}

}  // namespace ordermoe::test
