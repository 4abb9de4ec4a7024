#include "planning/cost_model.hpp"

namespace ordermoe::planning {

cost_model make_cost_model(const cluster& servers, const cost_profile& costs) {
  const auto n = servers.size();
  cost_model model;
  model.n_servers = n;
  model.hidden_ns.assign(n * n, 0);
  model.kv_ns.assign(n * n, 0);
  model.message_ns.assign(n * n, 0);
  for (std::size_t from = 0; from < n; ++from) {
    const auto& server = servers.servers[from];
    model.expert_ns.push_back(
        static_cast<double>(compute_ns(server, costs.expert_flops, expert_bytes(server, costs))));
    model.expert_precision.push_back(server.expert_precision);
    model.attention_ns.push_back(
        static_cast<double>(compute_ns(server, costs.attention_flops, costs.attention_bytes)));
    model.head_ns.push_back(
        static_cast<double>(compute_ns(server, costs.head_flops, costs.head_bytes)));
    for (std::size_t to = 0; to < n; ++to) {
      if (from == to) continue;
      const auto& link = servers.link(server_id{from}, server_id{to});
      const auto latency = static_cast<double>(link.latency_ns);
      model.hidden_ns[from * n + to] =
          latency + static_cast<double>(transfer_ns(link, costs.hidden_bytes));
      // Of one row more in a message.
      model.kv_ns[from * n + to] =
          static_cast<double>(transfer_ns(link, costs.kv_row_bytes) - link.message_ns);
      model.message_ns[from * n + to] =
          latency + static_cast<double>(transfer_ns(link, small_message_bytes));
    }
  }
  return model;
}

}  // namespace ordermoe::planning
