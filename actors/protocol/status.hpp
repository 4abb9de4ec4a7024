#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/protocol/changes.hpp"
#include "planning/serving/ledgers.hpp"
#include "planning/strategies/adaptation.hpp"

/// What a service says of itself when asked. Each part is true at one moment of its actor. No CAF type in
/// this header.
namespace ordermoe::actors {

using namespace serving;

/// Where a request is; request.hpp has the diagram.
enum class request_phase : std::uint8_t {
  held,       ///< Arrived while no request begins.
  reserving,  ///< Asks all members for KV memory at once.
  queueing,   ///< Waits for KV memory, one member after the other.
  running,
  fencing,   ///< Begins again: waits until no member works for the attempt before.
  settling,  ///< The answer is complete; a chunk has not said what it spent.
  ended
};
const char* to_string(request_phase phase);

struct request_status {
  std::uint64_t request = 0;
  std::uint32_t access = 0;
  request_phase phase = request_phase::held;
  std::uint32_t attempt = 0;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t new_tokens = 0;
  std::int64_t arrival_ns = 0;
  std::uint64_t epoch = 0;  ///< Of the plan that it began under; 0: it has not begun.
};

/// KV memory that one request has on one server.
struct sequence_status {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::int64_t bytes = 0;
  bool granted = false;  ///< Else it waits.
  std::uint32_t tokens = 0;
  std::uint32_t parked_rows = 0;  ///< Outputs that came before their token.
};

struct server_status {
  std::uint32_t server = 0;
  std::string name;
  std::string device;                   ///< What it computes on (config/devices.hpp).
  std::uint64_t epoch = 0, policy = 0;  ///< Of the plan that requests begin under.
  std::vector<std::uint64_t> epochs;    ///< Of all plans that are here, two at most.
  bool admitting = false;
  bool drained = false;                    ///< By an operator: requests of its users are refused.
  std::vector<request_status> requests;    ///< Of users connected here, by number.
  std::vector<sequence_status> sequences;  ///< By request.
  std::int64_t reserved_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::uint64_t ended_requests = 0;
  std::uint64_t refused_frames = 0;  ///< That made no sense, of all peers.
  std::uint64_t late_frames = 0;  ///< Of attempts, positions or asks that are over, or here before.
  std::vector<std::uint32_t>
      away;  ///< Servers that are not connected, where servers talk over sessions.
  // Of its compute and selector:
  std::size_t kv_sequences = 0;     ///< With presence or rows on the device.
  std::size_t waiting_batches = 0;  ///< And the running one.
  std::int64_t wait_ns = 0;
  server_ledger ledger;
  execution_counts executions{};
  std::vector<execution_counts> layer_executions;  ///< Of layer 0 on, as far as any was decided on.
  std::uint64_t snapshot = 0;
};

/// Of a device whose batches take as long as they are charged (config/rehearsal.hpp). Times are the clock's.
struct rehearsal_figures {
  std::uint64_t batches = 0;
  std::int64_t charged_ns = 0;        ///< Of all batches.
  std::uint64_t exceeded = 0;         ///< Batches that took longer than their charge.
  std::int64_t exceeded_ns = 0;       ///< By so much, all of them.
  std::int64_t most_exceeded_ns = 0;  ///< And one of them.
  /// That results were told late since sleeps ended late, less what later batches made up for.
  std::int64_t late_ns = 0;
  rehearsal_figures& operator+=(const rehearsal_figures& more) {
    batches += more.batches;
    charged_ns += more.charged_ns;
    exceeded += more.exceeded;
    exceeded_ns += more.exceeded_ns;
    most_exceeded_ns =
        most_exceeded_ns > more.most_exceeded_ns ? most_exceeded_ns : more.most_exceeded_ns;
    late_ns += more.late_ns;
    return *this;
  }
};

struct link_status {
  link_ledger ledger;
  std::int64_t wait_ns = 0;
};

/// actors/README.md has what each waits for.
enum class planner_phase : std::uint8_t {
  idle,
  steady,
  draining,    ///< No request begins, and those in flight end: both plans do not fit together.
  moving,      ///< Weights of the next plan come.
  installing,  ///< Servers take in the next plan beside the one in force.
  installed,   ///< In a node: all of this one's did.
  beginning,   ///< Requests begin under it.
  ending,      ///< And end under the one before.
  retiring     ///< Which goes.
};
const char* to_string(planner_phase phase);

struct planner_status {
  planner_phase phase = planner_phase::idle;
  std::uint64_t epoch = 0, policy = 0;
  std::size_t waiting_orders = 0;
};

/// What the monitor measured; recent values count more.
struct observations {
  planning::measured_activation activation;
  std::uint64_t activation_rows = 0;  ///< That came in, of all layers, since the process began.
  std::vector<double> wait_ns;        ///< [n_servers] of work that arrives
  std::vector<double> link_use;       ///< [from, to] share of the time that the link is busy
  std::vector<double> link_wait_ns;   ///< [from, to]
  double budget_use = 0;              ///< Mean over requests with a budget.
  double normalised_delay = 0;
  std::size_t requests = 0;  ///< How many of those there were.
  std::size_t proposals = 0;
};

struct service_status {
  std::int64_t time_ns = 0;
  planner_status planner;
  std::vector<server_status> servers;
  std::vector<link_status> links;        ///< By from, then to.
  std::optional<observations> observed;  ///< Where a monitor runs.
};

}  // namespace ordermoe::actors
