#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "actors/cluster/control.hpp"
#include "actors/cluster/expert_messages.hpp"
#include "actors/protocol/requests.hpp"
#include "net/channel/transport.hpp"

/// Whoever asks nodes of a running cluster, from a process of its own: a session with each, all of which one thread hears. No
/// CAF type in this header.
///
/// A node, as it is seen here:
///
///             its session begins              it is lost, ends, or the node makes no sense
///   away ------------------------------> up ----------------------------------------------> away
///
/// away: it is dialled again and again, which keeps no other node waiting; whatever it was asked ends at once, by its name. Whoever
/// answers with the certificate of another node, with a revoked one, or of another cluster, is away, and why is known.
///
/// What is asked has a number; no two of one object have the same, whatever nodes they are asked of. A node ends only what it
/// was asked itself. Sinks are called on the thread that hears, or where nothing could be sent, by whoever asks; they may ask on,
/// and must not wait.
namespace ordermoe::actors {

/// Whether a node only said that it does not take the request now: no part of an answer is lost.
bool is_refusal(const request_outcome& outcome);

class cluster_clients {
 public:
  struct place {
    std::string name;  ///< The node's; empty: whichever answers there, from then on that one.
    net::address at;
  };
  using expert_sink = std::function<void(const expert_answer&)>;

  /// Dials all of them when it returns. Once a second it looks whether the identity's files have changed: another certificate is
  /// shown from then on, and a node that is revoked is away. Error: what keeps its transport from starting.
  static result<std::unique_ptr<cluster_clients>> start(
      std::shared_ptr<const net::tls_identity> identity, std::vector<place> nodes,
      net::connections_maker carried_by = {});
  /// stop().
  ~cluster_clients();
  /// What was asked is cancelled; no sink is called when it returns, nor later. Not from within a sink.
  void stop();

  /// Until one is up, waiting longer would not help with any, or the time is over. Errors, of the last that said why not: io,
  /// or mismatch where it or this end refuses the other; timed_out where none said anything.
  result<void> await_one(std::chrono::milliseconds longest);

  // Nodes are numbered as they were given.
  std::size_t size() const;
  /// As given, or as its certificate says; empty: not known yet.
  std::string name(std::size_t node) const;
  bool is_up(std::size_t node) const;
  std::size_t n_up() const;
  /// Why it is not up, as it was said last; empty: nothing was said, or it is.
  std::string problem(std::size_t node) const;

  /// What is called around what sinks are told together, on the thread that hears.
  struct told_turns {
    std::function<void()> begin, end;
  };
  /// From now on. Neither is called once stop() has returned.
  void tell_in(told_turns turns);

  /// Gives the request's number. The sink ends with on_end, also where the node goes away. It is called on one thread, never two
  /// at a time.
  std::uint64_t submit(std::size_t node, remote_request wanted, answer_sink sink);
  /// Of the nodes that are up, to the one with the fewest unanswered; it fails with io where none is.
  std::uint64_t submit_to_any(remote_request wanted, answer_sink sink);
  void cancel(std::uint64_t request);
  /// Every request that has not ended.
  void cancel_all();
  std::size_t outstanding() const;
  /// Until done(), asked whenever something ended and every 10 ms; false where `pause` ended it.
  bool wait(const std::function<bool()>& done, const std::function<bool()>& pause = {});

  /// As cluster_client has them.
  void run_expert(std::size_t node, expert_ask ask, expert_sink sink);
  result<std::string> order(std::size_t node, const std::string& verb, const std::string& arguments,
                            bool dry_run, std::chrono::milliseconds longest,
                            const std::string& token = {});
  /// From now on nobody waits in order() and status(), or goes on to: interrupted.
  void interrupt();
  void give(std::size_t node, const bearer_order& order, order_sink sink);
  result<std::string> status(std::size_t node, std::chrono::milliseconds longest);
  /// Of all that are up, asked at once; of the others io and why they are not.
  std::vector<result<std::string>> statuses(std::chrono::milliseconds longest);

 private:
  class content;
  explicit cluster_clients(std::unique_ptr<content> made);
  std::unique_ptr<content> content_;
};

}  // namespace ordermoe::actors
