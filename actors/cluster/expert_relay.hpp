#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "actors/cluster/expert_messages.hpp"
#include "net/channel/transport.hpp"

/// Asks of a node's clients for experts that other nodes have: any node can be asked for any expert, and nobody needs to
/// reach them all. On one thread.
///
///   (nothing) --pass_on()--> with a node --its answer--> answered
///                                        --lose(): its session is over--> refused, by its name
///                                        --forget(): the client is gone--> an answer that comes goes nowhere
namespace ordermoe::actors {

class expert_relay {
 public:
  struct ways {
    std::vector<std::string> names;  ///< [n_peers] Of the other nodes.
    std::string self;
    std::function<bool(net::peer_id node)> is_up;
    /// False where it is not connected.
    std::function<bool(net::peer_id node, const expert_ask& ask)> ask;
    std::function<void(net::peer_id client, const expert_answer& answer)> answer;
  };
  explicit expert_relay(ways to) : to_(std::move(to)) {}

  /// To the connected node with the fewest asks among those that have the expert as it is asked for; refused where there is none.
  void pass_on(net::peer_id client, expert_ask ask,
               const std::function<bool(net::peer_id node)>& has_it);
  /// A node's answer, to the client whose ask it is of.
  void take(net::peer_id from, expert_answer answer);
  void lose(net::peer_id node);
  void forget(net::peer_id client);
  std::size_t n_waiting() const { return passed_on_.size(); }

 private:
  struct passed_on_ask {
    net::peer_id client = 0;
    std::uint64_t ref = 0;  ///< The client's.
    net::peer_id node = 0;
  };
  std::size_t n_with(net::peer_id node) const;

  ways to_;
  std::map<std::uint64_t, passed_on_ask> passed_on_;
  std::uint64_t next_ = 0;
};

/// The answer to an ask that is not run.
expert_answer refusal_of(std::uint64_t ref, error why);

}  // namespace ordermoe::actors
