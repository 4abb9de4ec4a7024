#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "actors/protocol/changes.hpp"
#include "actors/protocol/cluster_seat.hpp"
#include "actors/protocol/requests.hpp"
#include "actors/protocol/status.hpp"
#include "actors/simulated_sessions.hpp"
#include "config/cluster.hpp"
#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "config/rehearsal.hpp"
#include "model/text/tokenizer.hpp"
#include "model/transformer.hpp"
#include "planning/profile.hpp"
#include "planning/serving/emulated_link.hpp"
#include "planning/serving/run_mode.hpp"
#include "planning/strategies/strategies.hpp"
#include "trace/sink.hpp"

namespace caf {
class actor_system;
}

/// All servers of a cluster in this process, or one of them, alive until they are stopped: they take requests at any time,
/// stream answers, change plans and policies meanwhile and say how they are. The public face of the
/// actor system: of CAF there is the name of one type in this header.
///
/// Threads: a service has an actor system of its own, with CAF's threads, unless it is given one. On the wall clock it
/// also starts, in either, one thread per server that is here (device_thread.hpp) and threads_per_server - 1 beside it,
/// and the planner and a monitor are detached actors, of a thread each.
namespace ordermoe::actors {

struct service_options {
  std::shared_ptr<const model::transformer> model;
  /// The same model with its experts kept coarser, for servers that keep them so.
  std::map<precision, std::shared_ptr<const model::transformer>> coarser;
  /// The same model on each device but the kernels that a server names (server_spec::device).
  std::map<std::string, std::shared_ptr<const model::transformer>> on_devices;
  /// [n_servers] what each server has in memory, experts of `chosen.plan` and what it shares with
  /// the others; empty: `model`, or one of `coarser` or `on_devices`, which all servers share. Servers that have
  /// their own cannot change plans.
  std::vector<std::shared_ptr<const model::transformer>> server_models;
  std::shared_ptr<const model::tokenizer> tokens;  ///< May be null: answers have no text.
  cluster servers;  ///< How they keep experts is overruled by what `chosen.plan` says.
  cost_profile costs;
  planning::profile profile;
  planning::strategy chosen;
  run_mode mode = run_mode::emulated;
  /// Local mode: whose threads run the actors; it must outlive the service, and its configuration stays as it is. Null: a
  /// system that the service makes.
  caf::actor_system* system = nullptr;
  std::size_t threads_per_server = 1;  ///< That compute, in local mode; no result depends on it.
  std::size_t chunk_rows = 64;         ///< Prompt rows that take one residence decision together.
  bool stream_kv = true;               ///< Off only to prove that KV streaming is needed.
  bool keep_final_hidden = false;
  /// How often a server that works looks whether its waits are still what it told the others; 0: never.
  std::int64_t load_period_ns = 5'000'000;
  /// Deadline of a request that states none; 0: an hour of virtual time, two minutes of the wall's.
  std::int64_t request_timeout_ns = 0;
  /// Of a request, prompt and answer together; 0: twice the model's context.
  std::uint32_t most_positions = 0;
  /// [n_servers] positions of the longest request that each server's users may ask under any plan; empty:
  /// none are promised.
  std::vector<std::size_t> promised_positions;
  monitor_options monitor;
  std::shared_ptr<trace::sink> sink;  ///< Of the trace; null: none is written.
  std::uint64_t seed = 0;             ///< Written into the trace.
  double quality_percent = 0;         ///< Written into the trace.
  /// Local mode: one server is here, the others are in other processes, and `server_models` has one for it
  /// alone. Plans cannot change then.
  std::optional<cluster_seat> seat;
  /// Local mode: devices take the time that they are charged; frames are padded by whoever carries them (the node).
  std::optional<rehearsal> rehearsed;
  disturbance bad_links;  ///< Emulated mode.
  /// Emulated mode: servers talk over sessions, as nodes do, and know who is connected. A trace is one of local mode
  /// then: when frames arrive is the sessions' matter.
  std::optional<simulated_sessions> sessions;
  std::uint64_t order_seed = 0;  ///< Emulated mode: ready actors run in any order. 0: in theirs.
};

/// Virtual time passes only inside run_until() and settle(); whoever calls them is the one thread that
/// everything runs on, sinks included. On the wall clock every member may be called from any thread.
class service {
 public:
  /// Spawns all actors and puts the first plan in force. Errors: mismatch, unsupported or
  /// out_of_range for options that do not fit together; infeasible where a promised request would never
  /// fit; timed_out where a server does not come up.
  static result<std::unique_ptr<service>> start(service_options options);
  /// Stops where that was not done.
  ~service();

  /// Asks for an answer; returns the request's number. What is wrong with the request is told by
  /// on_end, as everything else is.
  std::uint64_t submit(request_spec spec, answer_sink sink);
  /// The answer ends at once, with what there is of it; nothing where it has ended.
  void cancel(std::uint64_t request);
  /// The request begins again on what is known of its answer.
  void restart(std::uint64_t request);
  /// What comes of orders is in history().
  void change_plan(replan_order order);
  void change_policy(policy_order order);

  /// Asks every actor. Error: timed_out.
  result<service_status> status();
  /// The same, but for the planner's, which does not answer while it plans or loads experts.
  result<service_status> status_of_servers();
  /// Of the server that is here, or of all; nothing where nothing is rehearsed.
  std::optional<rehearsal_figures> rehearsed() const;
  struct told {
    std::vector<problem> problems;
    std::vector<plan_change> plan_changes;
    std::vector<policy_change> policy_changes;
  };
  /// What actors told of problems and changes. Error: timed_out.
  result<told> history();
  /// Requests that have not ended.
  std::size_t outstanding() const;

  /// With a seat: what came from other servers, in order; run_delivered() follows, on the same thread, which is one and
  /// the same each time.
  void deliver(std::vector<peer_event> events);
  /// In the place of deliver(): the server that is here looks at its load.
  void look_at_load();
  /// Runs the actors that this made ready, and the short batches that they lead to.
  void run_delivered();
  /// The link from a server that is here to another is so, as traffic shows: what is decided from now on goes by it. From
  /// any thread on the wall clock.
  void measured(std::uint32_t from, std::uint32_t to, const wire::link_measure& link);

  /// Since the start.
  std::int64_t now_ns() const;
  /// Calls what() at this time, or now where it is past; on the thread that sinks are called on.
  void at(std::int64_t time_ns, std::function<void()> what);
  /// Lets time pass until `done` holds, which is asked after every job in virtual time and whenever an
  /// answer ends or 10 ms are over on the wall clock. `pause`, asked now and then, ends it early. Returns
  /// done(); false also where nothing is left to happen.
  bool run_until(const std::function<bool()>& done, const std::function<bool()>& pause = {});
  /// Lets all that is on its way arrive. Afterwards nothing is sent any more until something is asked;
  /// load is not told again. Error: timed_out where a server does not come to rest.
  result<void> settle();
  /// settle(), then the closing lines of the trace. The sink stays open.
  result<void> close_trace();

  /// With simulated sessions: a server and all that is on it is gone, requests of its users without a word; and it begins
  /// again with nothing.
  void crash(std::uint32_t server, net::simulated_pair::ending how);
  void start_again(std::uint32_t server, boot_count count);
  /// With simulated sessions, at once.
  sessions_status sessions() const;

  /// Of a node: an operator's order to its admin (actors/admin/admin.hpp). reply(text) is called once, on any thread.
  void administer(std::string who, std::string role, std::string order,
                  std::function<void(std::string)> reply);
  /// Of a node: what the admin of another server says, and whether that is connected; in the order of the session.
  void admin_said(std::uint32_t server, std::string text);
  void admin_peer(std::uint32_t server, bool up);

  /// Ends every actor; requests that are being answered end without a word. None is left in the system when it returns, and
  /// no sink is called any more. Neither from a sink nor on a thread of the actor system.
  void stop();

 private:
  class actors;
  explicit service(std::unique_ptr<actors> content);
  std::unique_ptr<actors> content_;
};

}  // namespace ordermoe::actors
