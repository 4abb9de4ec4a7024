#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/cluster/control.hpp"
#include "actors/protocol/requests.hpp"
#include "config/error.hpp"
#include "model/text/tokenizer.hpp"
#include "ordermoe/node.hpp"

namespace caf {
class actor_system;
}

/// What serves behind a face: servers of this process, or a session with a node elsewhere.
namespace ordermoe::embedding {

using status_sink = std::function<void(const result<std::string>&)>;

/// Every member may be called from any thread, but stop() only once and when nobody is inside any other.
class engine {
 public:
  virtual ~engine() = default;
  /// The number of the request. The sink may be called before it returns.
  virtual std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) = 0;
  virtual void cancel(std::uint64_t request) = 0;
  /// Waits. JSON.
  virtual result<std::string> status() = 0;
  /// Waits. JSON.
  virtual result<std::string> order(const api::admin_order&) {
    return error{errc::unsupported,
                 "orders go to a cluster that the program is connected to (node::connect)"};
  }
  /// Whoever waits in order() or status() goes on at once where the wait is for another process: stop() follows.
  virtual void interrupt() {}
  /// The host is told nothing of what is noticed from now on.
  virtual void silence() {}
  virtual std::vector<std::string> listens_at() const { return {}; }
  /// No sink is called when it returns.
  virtual void stop() = 0;
};

/// A wait that a clock can count, whatever was asked for: a year at most.
std::chrono::milliseconds countable(std::chrono::milliseconds longest);

/// With the ids of its text, where it has one.
actors::request_spec spec_of(actors::remote_request wanted, const model::tokenizer& tokens);

/// `system`: whose threads run the actors; null: one of its own.
result<std::unique_ptr<engine>> start_engine(const api::cluster_options& options,
                                             caf::actor_system* system);
result<std::unique_ptr<engine>> start_engine(const api::member_options& options,
                                             caf::actor_system* system);
result<std::unique_ptr<engine>> connect_engine(const api::client_options& options);

}  // namespace ordermoe::embedding
