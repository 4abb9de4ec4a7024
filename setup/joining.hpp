#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "config/error.hpp"
#include "config/log.hpp"
#include "config/node_file.hpp"

namespace ordermoe::actors {
class node;
}

/// The plan in force, where a host has none or another one: from the members of its node.toml (actors/cluster/plan_fetch.hpp)
/// to the files that node.toml names. A process of its own (`ordermoe node`) and a host program (embedding/member.cpp) do so by
/// the same steps:
///
///   await_plan()  before a start that lacks plan or profile
///   plan_watch    while it serves: where the others refuse it for its plan, theirs comes, and the owner starts anew
namespace ordermoe::setup {

/// Whether there is no plan, or no profile, where node.toml says: the node cannot start before it has fetched them.
bool lacks_plan(const node_file& file);

struct joining_ways {
  bool once = false;  ///< One round; else until there is a plan.
  log_outlet log;
  std::function<bool()> pause;  ///< Asked often; true: give up.
};

/// Fetches them, checks them as a node that starts does, and writes them, the plan last; whether anything was written. What is
/// on its way stays in `state/joining`. Errors: those of place_node and actors::fetch_plan; mismatch, where what came is for
/// another model, cluster file or charges, naming who sent it and what to do; io.
result<bool> fetch_plan(const node_file& file, const joining_ways& how);

struct awaiting_ways {
  log_outlet log;
  std::function<bool()> pause;                       ///< Asked often; true: give up.
  std::optional<std::chrono::milliseconds> longest;  ///< None: as long as it takes.
};

/// Returns when plan and profile are there, of which something lacks. Errors: those of fetch_plan; interrupted; timed_out,
/// naming who was asked, what was heard of them, and what to do.
result<void> await_plan(const node_file& file, const awaiting_ways& how);

/// A node that the others refuse for its plan asks which is in force, ever less often where there is none to take.
class plan_watch {
 public:
  /// The file outlives it.
  plan_watch(const node_file& file, log_outlet log) : file_(file), log_(std::move(log)) {}

  /// Called often while the node runs. Whether another plan has come in the place of the one by which it goes: it is to be
  /// stopped, and started by its files. Takes as long as a fetch does, or until `pause` says true.
  bool look(const actors::node& running, const std::function<bool()>& pause);

 private:
  static constexpr std::chrono::seconds least_wait{1}, most_wait{60};
  const node_file& file_;
  log_outlet log_;
  std::chrono::seconds wait_ = least_wait;
  std::chrono::steady_clock::time_point next_;
  std::string told_;
};

}  // namespace ordermoe::setup
