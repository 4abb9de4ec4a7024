#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/cluster/control.hpp"
#include "actors/protocol/requests.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "config/log.hpp"
#include "ordermoe/node.hpp"

/// What answers behind a gateway.
namespace ordermoe::gateway {

/// Every member may be called from any thread, but stop() only once and when nobody is inside any other.
class backend {
 public:
  virtual ~backend() = default;
  /// The number of the request. The sink may be called before it returns; on_end comes once, whatever happens, but for stop().
  virtual std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) = 0;
  /// Whether tokens are told on a thread that has nothing better to do than to see them written, those that came together between
  /// these two calls; else neither is ever called, and who is told must hand on. Before the first request.
  virtual bool tell_in_turns(std::function<void()> /*begin*/, std::function<void()> /*end*/) {
    return false;
  }
  virtual void cancel(std::uint64_t request) = 0;
  /// Whether there is somebody to ask: servers in this process, which have a plan once they are started, or a session with a node
  /// of the cluster.
  virtual bool is_ready() const = 0;
  /// Where it is not.
  virtual std::string why_not_ready() const { return "no node of the cluster is connected"; }
  /// A JSON array of servers, each an object as a server tells of itself; of one that does not answer, its name and why, as
  /// "error". Waits.
  virtual result<std::string> servers() = 0;
  /// Whether there is anything to administer: servers of one process have no admin.
  virtual bool takes_orders() const { return false; }
  /// An order of whoever has its token, to the admin of the node of this name, or to that of whichever node can be asked where it
  /// is empty. Gives the name of who was asked. The sink is called once, but for stop(), on any thread, maybe before this
  /// returns. Does not wait.
  virtual std::string order(const std::string& node, const actors::bearer_order& order,
                            actors::order_sink sink);
  /// No sink is called when it returns.
  virtual void stop() = 0;
};

/// All servers of a cluster in this process.
/// Errors: those of embedding::configure and actors::service::start.
result<std::unique_ptr<backend>> start_cluster(const api::cluster_options& options,
                                               ordermoe::job& work);

/// One node of a cluster, in this process; it asks its own servers first, as a node does for its users. `log`: of the node, on
/// any thread. Errors: those of embedding::configure and actors::node::start.
result<std::unique_ptr<backend>> start_node(const std::string& config, log_outlet log,
                                            ordermoe::job& work);

/// A running cluster: sessions with all of its nodes that can be reached, those that break made again. A request goes to
/// the node with the fewest of this gateway's that are unanswered. `folder`: with the nodes' files and certificates
/// (setup/cluster_folder.hpp). Errors: not_found where it is none; that of the last node tried where none can be reached.
result<std::unique_ptr<backend>> connect_cluster(const std::string& folder);

}  // namespace ordermoe::gateway
