#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "actors/cluster/control.hpp"
#include "actors/cluster/expert_messages.hpp"
#include "actors/protocol/requests.hpp"
#include "net/channel/transport.hpp"

/// Whoever asks a running cluster, from a process of its own: a session with one node. No CAF type in this header.
namespace ordermoe::actors {

class cluster_client {
 public:
  /// Until a session is up, the time is over, or waiting longer would not help. Errors: io, or mismatch where one of the
  /// two refuses the other, with what was said last; timed_out where nothing was. `carried_by`: as the nodes have it.
  static result<std::unique_ptr<cluster_client>> connect(
      std::shared_ptr<const net::tls_identity> identity, const net::address& at,
      std::chrono::milliseconds longest, net::connections_maker carried_by = {});
  /// Its requests are cancelled.
  ~cluster_client();

  /// The node's name, from its certificate.
  const std::string& node_name() const;
  /// Whether the session is up; one that is lost may come back.
  bool is_up() const;
  /// Returns the number of the request. The sink is called on another thread, and ends with on_end, also
  /// where the node goes away.
  std::uint64_t submit(remote_request wanted, answer_sink sink);
  void cancel(std::uint64_t request);
  /// Every request that has not ended.
  void cancel_all();
  std::size_t outstanding() const;
  /// Until done(), asked whenever something ended and every 10 ms; false where `pause` ended it.
  bool wait(const std::function<bool()>& done, const std::function<bool()>& pause = {});
  /// Has an expert run wherever it is. The sink is called once, on another thread, also where the node goes away; the
  /// ask's ref is filled in.
  void run_expert(expert_ask ask, std::function<void(const expert_answer&)> sink);
  /// An operator's order (admin.hpp); `arguments` is a JSON object, `token` the secret of one that raises the role, if any. Gives the reply's JSON without its ref. Errors: the
  /// problem that the node tells; timed_out; io where it went away; interrupted.
  result<std::string> order(const std::string& verb, const std::string& arguments, bool dry_run,
                            std::chrono::milliseconds longest, const std::string& token = {});
  /// From now on nobody waits in order() and status(), or goes on to: interrupted. From any thread.
  void interrupt();
  /// An order for whoever has a token. The sink is called once, on another thread, also where the node goes away.
  void give(const bearer_order& order, order_sink sink);
  /// What the node says of itself: JSON. Error: timed_out; io where it went away; interrupted.
  result<std::string> status(std::chrono::milliseconds longest);

 private:
  class content;
  explicit cluster_client(std::unique_ptr<content> made);
  std::unique_ptr<content> content_;
};

}  // namespace ordermoe::actors
