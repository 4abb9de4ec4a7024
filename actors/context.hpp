#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/protocol/cluster_seat.hpp"
#include "actors/protocol/messages.hpp"
#include "actors/scheduling/actor_census.hpp"
#include "actors/session_network.hpp"
#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"
#include "net/wire/codec.hpp"
#include "planning/cost_model.hpp"
#include "planning/plan.hpp"
#include "planning/selection/selector.hpp"
#include "planning/serving/arrivals.hpp"
#include "planning/serving/emulated_link.hpp"
#include "planning/serving/plan_in_force.hpp"
#include "planning/serving/token_rules.hpp"
#include "trace/sink.hpp"

/// What the actors of one service know without asking: the context, for as long as it lives; and each server's view of its
/// neighbours and of one plan that is alive. All of it is immutable: a change is a new object in a message.
namespace ordermoe::actors {

enum class clock_kind { virtual_time, wall };

/// Set before the first actor is spawned.
struct service_context {
  std::shared_ptr<const model::transformer> model;
  /// [n_servers] what each server's compute runs: `model`, or the same with the experts as the
  /// server keeps them.
  std::vector<std::shared_ptr<const model::transformer>> models;
  std::shared_ptr<const model::tokenizer> tokens;  ///< May be null: answers have no text.
  cluster servers;
  cost_profile costs;
  /// [n_servers], each [n_layers, n_experts]: 1 where the weights are read from the host's memory; empty where none are.
  std::vector<std::vector<std::uint8_t>> offloaded;
  planning::cost_model prices;
  clock_kind clock = clock_kind::virtual_time;
  std::size_t chunk_rows = 64;  ///< Prompt rows that take one residence decision together.
  bool stream_kv = true;        ///< Off only in tests: proves that KV streaming is needed.
  bool keep_final_hidden = false;
  /// How often a server that works looks whether its waits are still what it told; 0: never.
  std::int64_t load_period_ns = 0;
  double dilation =
      1;  ///< Of a rehearsal: what is charged takes so many times as long on the clock.
  std::int64_t request_timeout_ns = 0;  ///< Deadline of a request that states none.
  std::uint32_t most_positions = 0;     ///< Of a request, prompt and answer together.
  disturbance bad_links;                ///< Virtual time.
  /// Virtual time, where links share uplinks; the only thing here that changes, by links one after the other.
  std::shared_ptr<serving::shared_uplinks> uplinks;
  std::uint32_t activation_report_rows = 64;  ///< A selector reports after this many rows.
  std::int64_t start_ns = 0;                  ///< Clock reading that all times count from.
  std::shared_ptr<trace::sink> trace;         ///< Null: none is written.
  std::optional<cluster_seat> seat;           ///< Where the other servers are elsewhere.
  std::shared_ptr<session_network> network;   ///< Virtual time, where servers talk over sessions.
  std::shared_ptr<actor_census>
      census;  ///< Of every actor, in somebody else's system; null: in its own.
  // Follow from the model; see derive().
  decoding_shape decoding;
  wire::wire_shape wire;

  /// Fills in what follows from the model.
  void derive();
  /// Waits that differ by less are not told apart: a quarter of the period in which reports are late anyway.
  std::int64_t load_tolerance_ns() const { return load_period_ns / 4; }
  /// What passes on the clock while so much is charged.
  std::int64_t on_clock(std::int64_t charged_ns) const {
    return static_cast<std::int64_t>(static_cast<double>(charged_ns) * dilation);
  }
  const model::model_config& shape() const { return model->config(); }
  std::uint32_t n_servers() const { return static_cast<std::uint32_t>(servers.size()); }
  bool is_offloaded(std::size_t server, std::size_t layer, std::size_t expert) const {
    return !offloaded.empty() && offloaded[server][layer * shape().n_experts + expert] != 0;
  }
  /// Whether this server is in this process.
  bool is_here(std::size_t server) const { return !seat || seat->server == server; }
  /// Servers know whether another one is connected.
  bool over_sessions() const { return seat.has_value() || network != nullptr; }
  /// The way over a session from a server that is here; null where there are none.
  std::shared_ptr<frame_outlet> outlet(std::uint32_t from, std::uint32_t to) const;
  /// Counts the starts of a server that is here, from 1.
  std::uint32_t boot(std::uint32_t server) const;
  /// What may arrive at a server.
  arrival_limits limits(std::uint32_t server) const;
};

/// One server as the actors on it see it that go by one plan; replaced as a whole when a plan is installed, or its tables
/// are others. A request and all that is done for it keep to the plan that it began under.
struct server_view {
  std::shared_ptr<const service_context> context;
  std::shared_ptr<const plan_in_force> placed;  ///< Null before the first plan.
  std::uint32_t id = 0;
  edge_server_actor server;
  compute_actor compute;
  selector_actor selector;
  recorder_actor recorder;
  monitor_actor monitor;            ///< Empty where none runs.
  std::vector<link_actor> links;    ///< [n_servers]; the own entry is empty
  std::vector<shard_actor> shards;  ///< [n_layers]; empty where no expert of the layer is here

  /// Sends a frame from here to another server, under this plan or the one of that epoch. The link runs
  /// where the sender does: no other thread is woken for it.
  void send(caf::scheduled_actor* self, std::uint32_t to, wire::frame content) const;
  void send(caf::scheduled_actor* self, std::uint32_t to, wire::frame content,
            std::uint64_t epoch) const;
  planning::server_mask members(std::uint32_t access, std::uint32_t layer) const {
    return placed->plan.residence[access].layers[layer];
  }
  /// Why a request that needs this server ends.
  error not_connected(std::uint32_t server) const;
  /// Where a position of this access server's request starts at `layer` when coming from `from`.
  std::uint32_t start_server(std::uint32_t access, std::uint32_t from, std::uint32_t layer) const;
  /// Nanoseconds since the start of the service.
  std::int64_t time_ns(caf::scheduled_actor* self) const {
    return now_ns(self) - context->start_ns;
  }
  void trace(std::string line) const {
    if (context->trace) context->trace->line(std::move(line));
  }
  bool tracing() const { return context->trace != nullptr; }
};

}  // namespace ordermoe::actors
