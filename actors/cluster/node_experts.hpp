#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "actors/cluster/expert_desk.hpp"
#include "actors/cluster/expert_exchange.hpp"
#include "actors/cluster/expert_relay.hpp"
#include "actors/cluster/node.hpp"

/// The experts of a node: which are where, what it loads for another plan, what goes to nodes that lack it and comes from them, and
/// rows that clients have experts run on, here or where relay_ passes them on to.
namespace ordermoe::actors {

class node_experts {
 public:
  /// Whoever has experts run from another process: its certificate must let it.
  using permission = std::function<bool(net::peer_id client)>;
  /// `options` are the node's; its models and its plan change here. `through` holds null until the transport has begun.
  node_experts(node_options& options, std::shared_ptr<std::atomic<net::transport*>> through,
               permission may_ask);

  /// Once the service has begun, before anybody comes.
  void open();
  void stop();

  /// The model with these experts. On the planner's thread, while the node serves. Error: unsupported; what reading or
  /// fetching them says.
  result<std::shared_ptr<const model::transformer>> load(
      std::uint64_t change, const std::function<bool(layer_id layer, expert_id expert)>& hosts);
  void stop_loading(std::uint64_t change);
  /// From now on experts are as this plan has them.
  void adopt(const planning::plan& plan);

  // Of the transport's thread.
  static bool is_of_experts(const net::session_event& event);
  /// From another server: an ask for a client of its own, or the answer to one for a client of this one.
  void take(net::peer_id from, const net::session_event& event);
  /// From anybody. Error: what makes no sense, whoever asks.
  result<void> take_ask(net::peer_id from, const std::string& bytes);
  /// A frame that is bulk; false: nothing comes or goes here.
  bool take_bulk(net::peer_id from, net::session_event& event);
  void lose(net::peer_id node);
  void forget(net::peer_id client) { relay_.forget(client); }

 private:
  std::uint32_t server_of(net::peer_id peer) const {
    return peer < options_.server ? peer : peer + 1;
  }
  bool is_server(net::peer_id who) const { return who < options_.transport.peers.size(); }
  const std::string& name_of_self() const { return options_.transport.identity->name().name; }
  bool runs_as_stored(std::uint32_t m) const;
  precision kept_precision();
  std::shared_ptr<const model::transformer> model_now();
  std::vector<wanted_expert> not_here(
      const std::function<bool(layer_id layer, expert_id expert)>& hosts);
  expert_exchange::ways ways_of_exchange();
  expert_relay::ways ways_of_asks();
  void answer(net::peer_id to, const expert_answer& answer);
  void refuse(net::peer_id to, std::uint64_t ref, error why);

  node_options& options_;
  std::shared_ptr<std::atomic<net::transport*>> through_;
  permission may_ask_;
  std::mutex
      placing_;  ///< What is placed where, and the model here: of service.chosen and what follows.
  std::unique_ptr<expert_desk> desk_;
  std::unique_ptr<expert_exchange> exchange_;  ///< Null: experts come from this disk alone.
  std::optional<planning::placement_index> placed_;
  expert_relay relay_;  ///< Of the transport's thread.
};

}  // namespace ordermoe::actors
