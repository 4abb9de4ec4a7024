#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/control.hpp"
#include "actors/cluster/plan_desk.hpp"
#include "actors/service/service.hpp"
#include "config/drift_watch.hpp"
#include "config/error.hpp"
#include "model/checkpoint/expert_shelf.hpp"
#include "net/channel/identity_keeper.hpp"
#include "net/channel/transport.hpp"

/// One server of a cluster as a process of its own: a service with a seat, sessions with the other servers, and the
/// clients that come to it. No CAF type in this header.
namespace ordermoe::actors {

class member_roll;

/// What became of a plan that was to be kept.
struct kept_plan {
  std::string digest;    ///< That the others compare.
  result<void> written;  ///< Or what kept it from that.
};

struct node_options {
  service_options
      service;  ///< Local mode; `server_models` has this server's alone. The seat is filled in.
  std::uint32_t server = 0;
  /// Peers are the other servers, in order.
  net::transport_options transport;
  /// By what carries the connections.
  net::revocation_use revocations = net::revocation_use::honoured;
  /// What is measured of links goes into what is decided; else the cluster file is believed.
  bool believes_measures = true;
  /// Of the model's folder, to run this server's experts coarser for whoever calibrates; null: they run as kept only.
  std::shared_ptr<const model::expert_reader> coarser;
  /// What of the model is on this host's disk, for other nodes that lack it, and where what is not goes that comes from them;
  /// null: nothing comes or goes.
  std::shared_ptr<model::expert_shelf> experts;
  /// Writes another plan to where this node finds it at its next start; written or not, the node goes by it. Empty: plans do
  /// not change.
  std::function<result<kept_plan>(const planning::plan&)> keep_plan;
  /// By what it goes, for hosts that join; null: they are told nothing.
  std::shared_ptr<kept_papers> papers;
  /// Which of the servers are members; null: all, always.
  std::shared_ptr<member_roll> members;
  /// Told of what is refused, lost and found again, on any thread.
  log_outlet log;
  /// As cluster_seat has them.
  std::map<std::string, std::string> kept;
  std::function<result<void>(const std::string& name, const std::string& text)> keep;
  std::shared_ptr<const planning::measured_activation> measured, counted;
  /// When `counted` was so, in milliseconds since 1970, by the clock of this host: it counts as much less as it is older. None: it is not
  /// known, and counts as it did.
  std::optional<std::int64_t> counted_at_ms;
  drift_watch drift;
};

class node {
 public:
  /// Serves when it returns, and connects to the others meanwhile. Errors: those of service::start and
  /// transport::start.
  static result<std::unique_ptr<node>> start(node_options options);
  ~node();

  /// Of a user of this process, whatever `spec.access` says; as service::submit and cancel have it.
  std::uint64_t submit(request_spec spec, answer_sink sink);
  void cancel(std::uint64_t request);
  /// JSON: who it is, its peers, its requests, what it keeps and counted. Error: timed_out.
  result<std::string> status_json();
  /// An order of a user of this process who has a token. The sink is called once, on another thread, but for after stop().
  void give(const bearer_order& order, order_sink sink);
  std::size_t outstanding() const;
  /// It is connected to nobody, and some member that refused it for the plan by which it goes was not connected to it since.
  bool is_refused_for_plan() const;
  const std::vector<net::address>& listens_at() const;
  /// Lets all that is on its way here arrive, then writes the closing lines of the trace.
  result<void> close_trace();
  /// As service::stop has it, and for the transport's and the asking thread.
  void stop();

 private:
  class content;
  explicit node(std::unique_ptr<content> made);
  std::unique_ptr<content> content_;
};

}  // namespace ordermoe::actors
