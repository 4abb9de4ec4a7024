#include "actors/cluster/node_experts.hpp"

#include <fmt/format.h>

#include <utility>

#include "actors/cluster/control.hpp"
#include "config/log_events.hpp"

namespace ordermoe::actors {

using net::lane;
using net::peer_id;
using net::session_event;

node_experts::node_experts(node_options& options,
                           std::shared_ptr<std::atomic<net::transport*>> through,
                           permission may_ask)
    : options_(options),
      through_(std::move(through)),
      may_ask_(std::move(may_ask)),
      relay_(ways_of_asks()) {}

void node_experts::open() {
  placed_.emplace(options_.service.chosen.plan);
  desk_ = std::make_unique<expert_desk>(options_.service.server_models[options_.server],
                                        options_.coarser, runs_as_stored(options_.server),
                                        options_.service.threads_per_server);
  if (options_.experts)
    exchange_ =
        std::make_unique<expert_exchange>(options_.experts, ways_of_exchange(), options_.log);
}

void node_experts::stop() {
  if (desk_) desk_->stop();
  // The planner may wait for experts that come.
  if (exchange_) exchange_->stop();
}

// --------------------------------------------------------------------------------------- other plans

result<std::shared_ptr<const model::transformer>> node_experts::load(
    std::uint64_t change, const std::function<bool(layer_id layer, expert_id expert)>& hosts) {
  if (!options_.coarser || !options_.keep_plan)
    return error{errc::unsupported, "this node cannot change its plan"};
  // Those that are not on this disk come from the first that hosts them.
  if (exchange_)
    if (auto here = exchange_->fetch(change, not_here(hosts)); !here) return here.error();
  const auto kept = kept_precision();
  auto loaded = model_now()->with_experts(*options_.coarser, hosts, kept);
  if (!loaded) return loaded.error();
  const std::lock_guard lock(placing_);
  options_.service.server_models[options_.server] = *loaded;
  desk_->use(*loaded);
  return loaded;
}

void node_experts::stop_loading(std::uint64_t change) {
  if (exchange_) exchange_->stop_fetching(change);
}

std::vector<wanted_expert> node_experts::not_here(
    const std::function<bool(layer_id layer, expert_id expert)>& hosts) {
  std::vector<wanted_expert> wanted;
  const auto& shape = options_.experts->config();
  const std::lock_guard lock(placing_);
  for (std::size_t l = 0; l < shape.n_layers; ++l)
    for (std::size_t e = 0; e < shape.n_experts; ++e) {
      const layer_id layer{l};
      const expert_id expert{e};
      if (!hosts(layer, expert) || options_.experts->has(layer, expert)) continue;
      auto& each = wanted.emplace_back(wanted_expert{layer, expert, {}});
      for (peer_id peer = 0; is_server(peer); ++peer)
        if (placed_->hosts(server_of(peer), l, e)) each.hosts.push_back(peer);
    }
  return wanted;
}

expert_exchange::ways node_experts::ways_of_exchange() {
  expert_exchange::ways to;
  for (const auto& peer : options_.transport.peers) to.names.push_back(peer.name);
  to.send = [this](peer_id peer, net::bulk_frame content) {
    auto* through = through_->load();
    return through != nullptr &&
           through->send(peer, lane::bulk, static_cast<std::uint8_t>(content.kind), content.request,
                         content.attempt, 0, std::move(content.payload));
  };
  to.used = [this](peer_id peer, std::uint64_t bytes) {
    if (auto* through = through_->load()) through->used(peer, lane::bulk, bytes);
  };
  to.waiting_bytes = [this](peer_id peer) {
    // A frame may come before the transport is known here: nothing is sent until it is.
    auto* through = through_->load();
    if (through == nullptr) return UINT64_MAX;
    return through->figures(peer).lanes[static_cast<std::size_t>(lane::bulk)].waiting_bytes;
  };
  return to;
}

/// As this server keeps its experts, under any plan that it goes over to.
precision node_experts::kept_precision() {
  const std::lock_guard lock(placing_);
  const auto kept = options_.service.chosen.plan.precision_at(options_.server);
  return kept != precision::stored ? kept : options_.service.chosen.whole_model;
}

std::shared_ptr<const model::transformer> node_experts::model_now() {
  const std::lock_guard lock(placing_);
  return options_.service.server_models[options_.server];
}

void node_experts::adopt(const planning::plan& plan) {
  const std::lock_guard lock(placing_);
  const auto before = std::exchange(placed_, planning::placement_index(plan));
  // Requests under the plan before may go on for long, and this node end meanwhile.
  if (options_.experts)
    options_.experts->keep_only([&](layer_id layer, expert_id expert) {
      return placed_->hosts(options_.server, layer.index(), expert.index()) ||
             before->hosts(options_.server, layer.index(), expert.index());
    });
  options_.service.chosen.plan = plan;
}

// -------------------------------------------------------------------------------------- rows of clients

/// Whether server m runs its experts as the model has them.
bool node_experts::runs_as_stored(std::uint32_t m) const {
  const auto& in_force = options_.service.chosen;
  return in_force.whole_model == precision::stored &&
         in_force.plan.precision_at(m) == precision::stored;
}

bool node_experts::is_of_experts(const session_event& event) {
  const auto kind = static_cast<control_kind>(event.header.kind);
  return kind == control_kind::run_expert || kind == control_kind::expert_ran;
}

void node_experts::take(peer_id from, const session_event& event) {
  const auto taken = [&]() -> result<void> {
    if (static_cast<control_kind>(event.header.kind) == control_kind::run_expert)
      return take_ask(from, event.text);
    auto answer = decode_expert_answer(event.text);
    if (!answer) return answer.error();
    relay_.take(from, std::move(*answer));
    return {};
  }();
  if (!taken)
    options_.log.tell(log_event::peer_ignored, {{"peer", options_.transport.peers[from].name},
                                                {"why", taken.error().message}});
  through_->load()->used(from, event.header.of, net::session::frame_bytes(event.header));
}

bool node_experts::take_bulk(peer_id from, session_event& event) {
  if (!exchange_) return false;
  exchange_->take(from, event.header, std::move(event.text));
  return true;
}

void node_experts::lose(peer_id node) {
  relay_.lose(node);
  if (exchange_) exchange_->lose(node);
}

void node_experts::answer(peer_id to, const expert_answer& answer) {
  through_->load()->send(to, is_server(to) ? lane::kv : lane::token,
                         static_cast<std::uint8_t>(control_kind::expert_ran), 0, 0, 0,
                         encode(answer));
}

void node_experts::refuse(peer_id to, std::uint64_t ref, error why) {
  answer(to, refusal_of(ref, std::move(why)));
}

result<void> node_experts::take_ask(peer_id from, const std::string& bytes) {
  auto ask = decode_expert_ask(bytes);
  if (!ask) return ask.error();
  if (!is_server(from) && !may_ask_(from)) {
    refuse(from, ask->ref,
           {errc::usage,
            "a viewer's certificate runs no experts; use one of an operator or "
            "admin"});
    return {};
  }
  const std::lock_guard lock(placing_);
  const auto here = desk_->takes(*ask);
  if (!here) return here.error();
  if (*here && placed_->hosts(options_.server, ask->layer, ask->expert)) {
    const auto ref = ask->ref;
    if (!desk_->run(std::move(*ask),
                    [this, from](const expert_answer& done) { answer(from, done); }))
      refuse(from, ref,
             {errc::failed, fmt::format("{} has too many asks for experts waiting; try again "
                                        "when others are done",
                                        name_of_self())});
    return {};
  }
  if (is_server(from))
    refuse(from, ask->ref,
           {errc::mismatch, fmt::format("{} does not have expert {} of layer {}", name_of_self(),
                                        ask->expert, ask->layer)});
  else
    relay_.pass_on(from, *ask, [&](peer_id node) {
      return placed_->hosts(server_of(node), ask->layer, ask->expert) &&
             (ask->kept != precision::stored || runs_as_stored(server_of(node)));
    });
  return {};
}

expert_relay::ways node_experts::ways_of_asks() {
  expert_relay::ways to;
  for (const auto& peer : options_.transport.peers) to.names.push_back(peer.name);
  to.self = name_of_self();
  to.is_up = [this](peer_id node) { return through_->load()->figures(node).up; };
  to.ask = [this](peer_id node, const expert_ask& ask) {
    return through_->load()->send(
        node, lane::kv, static_cast<std::uint8_t>(control_kind::run_expert), 0, 0, 0, encode(ask));
  };
  to.answer = [this](peer_id client, const expert_answer& done) { answer(client, done); };
  return to;
}

}  // namespace ordermoe::actors
