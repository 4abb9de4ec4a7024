#pragma once

#include <fmt/format.h>

#include <memory>
#include <utility>
#include <vector>

#include "actors/context.hpp"
#include "planning/profile.hpp"
#include "test/actors/fixture.hpp"
#include "test/actors/probe.hpp"

namespace ordermoe::test {

/// Server 1 of three, of the tiny model (3 layers, 6 experts, top 2), with a probe for each of its actors.
///
/// Expert e of every layer is on server e % 3. R_l by access server: of server 0 all three at every
/// layer; of server 1 itself, then servers 0 and 1, then 1 and 2; of server 2 itself alone.
class probe_server : public probe_world {
 public:
  static constexpr std::uint32_t id = 1, n_servers = 3, n_layers = 3, n_experts = 6;
  static constexpr std::int64_t kv_bytes = 3000, kv_row_bytes = 10, load_period_ns = 2'000'000,
                                timeout_ns = 60'000'000'000;

  /// What those before the first message see may be changed in between.
  std::shared_ptr<actors::service_context> context = make_context();
  probe server{*this}, compute{*this}, selector{*this}, recorder{*this}, monitor{*this},
      planner{*this}, client{*this}, token{*this};
  std::vector<probe> links, shards;
  std::shared_ptr<actors::server_view> view = std::make_shared<actors::server_view>();

  probe_server() {
    for (std::uint32_t m = 0; m < n_servers; ++m) links.emplace_back(*this);
    for (std::uint32_t l = 0; l < n_layers; ++l) shards.emplace_back(*this);
    context->start_ns = now_ns();
    view->context = context;
    view->placed = plan_of_epoch(1);
    view->id = id;
    view->server = server.as<actors::edge_server_actor>();
    view->compute = compute.as<actors::compute_actor>();
    view->selector = selector.as<actors::selector_actor>();
    view->recorder = recorder.as<actors::recorder_actor>();
    for (std::uint32_t m = 0; m < n_servers; ++m)
      view->links.push_back(m == id ? actors::link_actor{} : links[m].as<actors::link_actor>());
    for (const auto& shard : shards) view->shards.push_back(shard.as<actors::shard_actor>());
  }

  void with_monitor() { view->monitor = monitor.as<actors::monitor_actor>(); }

  /// Nanoseconds since the start of the service.
  std::int64_t time_ns() const { return now_ns() - context->start_ns; }

  static const planning::profile& profile() {
    static const auto made = planning::random_profile(n_layers, n_experts, 2, 1);
    return made;
  }

  static planning::plan plan() {
    planning::plan made;
    made.strategy = "by hand";
    made.n_servers = n_servers;
    made.n_layers = n_layers;
    made.n_experts = n_experts;
    for (std::uint32_t layer = 0; layer < n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
        planning::placed_expert each;
        each.server = server_id{expert % n_servers};
        each.layer = layer_id{layer};
        each.expert = expert_id{expert};
        made.experts.push_back(each);
      }
    made.residence.resize(n_servers);
    made.residence[0].layers = {0b111, 0b111, 0b111};
    made.residence[1].layers = {0b010, 0b011, 0b110};
    made.residence[2].layers = {0b100, 0b100, 0b100};
    made.expert_bytes_used.assign(n_servers, 0);
    made.expert_bytes_limit.assign(n_servers, 0);
    return made;
  }

  static planning::selection_policy policy() {
    planning::selection_policy made;
    made.candidates = planning::candidate_rule::exact;
    made.horizon = 1;
    return made;
  }

  std::shared_ptr<actors::plan_in_force> plan_of_epoch(std::uint64_t epoch,
                                                       planning::plan content = plan()) const {
    content.epoch = epoch;
    auto tables =
        planning::selection_tables::build(profile(), content, context->prices, policy(), 0);
    ORDERMOE_CHECK(tables.has_value(), tables ? "" : tables.error().message);
    const planning::placement_index index(content);
    return std::make_shared<actors::plan_in_force>(actors::plan_in_force{
        std::move(content), index, *tables, 0, std::make_shared<const planning::profile>(profile()),
        actors::decoding_policy{}});
  }

  /// What went over the link to a server: frames of one kind.
  std::vector<wire::frame> sent(std::uint32_t to, wire::frame_kind kind) const {
    std::vector<wire::frame> found;
    for (auto& each : links[to].all<wire::frame>())
      if (each.kind == kind) found.push_back(std::move(each));
    return found;
  }
  template <class Message>
  wire::frame frame_from(std::uint32_t from, const Message& content) const {
    auto made = wire::encode(content);
    made.from = from;
    made.to = id;
    made.epoch = view->placed->plan.epoch;
    return made;
  }

 private:
  static std::shared_ptr<actors::service_context> make_context() {
    auto made = std::make_shared<actors::service_context>();
    made->model = tiny_model();
    made->models.assign(n_servers, made->model);
    for (std::uint32_t m = 0; m < n_servers; ++m) {
      server_spec spec;
      spec.name = fmt::format("s{}", m);
      spec.flops_per_s = 1e9;
      spec.memory_bandwidth_bytes_per_s = 1e9;
      spec.memory_bytes = 1'000'000;
      spec.kv_bytes = kv_bytes;
      spec.arrival_share = 1.0 / n_servers;
      made->servers.servers.push_back(std::move(spec));
    }
    // A byte takes a nanosecond on every link; the way takes 1 us, between servers 0 and 2 twice that.
    for (std::uint32_t from = 0; from < n_servers; ++from)
      for (std::uint32_t to = 0; to < n_servers; ++to)
        made->servers.links.push_back(from == to ? link_spec{}
                                                 : link_spec{1e9, from + to == 2 ? 2000 : 1000});
    auto& costs = made->costs;
    costs.name = "by hand";
    costs.hidden_bytes = 100;
    costs.kv_row_bytes = kv_row_bytes;
    costs.expert_bytes = 1000;
    costs.expert_flops = 2000;
    costs.attention_bytes = 500;
    costs.attention_flops = 600;
    costs.attention_flops_per_context = 1;
    costs.embedding_bytes = 300;
    costs.head_bytes = 300;
    costs.head_flops = 900;
    made->prices = planning::make_cost_model(made->servers, costs);
    made->chunk_rows = 4;
    made->load_period_ns = load_period_ns;
    made->request_timeout_ns = timeout_ns;
    made->most_positions = 40;
    made->derive();
    return made;
  }
};

}  // namespace ordermoe::test
