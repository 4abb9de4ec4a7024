#include "config/cluster.hpp"

#include <algorithm>
#include <cmath>

namespace ordermoe {

std::size_t cluster::site_of(const server_spec& server) const {
  if (server.site.empty()) return sites.size();
  return static_cast<std::size_t>(std::ranges::find(sites, server.site, &site_spec::name) -
                                  sites.begin());
}

void bound_by_uplinks(cluster& content) {
  const auto n = content.size();
  for (std::size_t from = 0; from < n; ++from)
    for (std::size_t to = 0; to < n; ++to) {
      if (from == to) continue;
      const auto &a = content.servers[from], &b = content.servers[to];
      auto& rate = content.links[from * n + to].bandwidth_bytes_per_s;
      const auto bound = [&](double uplink) {
        if (uplink > 0) rate = std::min(rate, uplink);
      };
      bound(a.uplink_bytes_per_s);
      bound(b.uplink_bytes_per_s);
      const auto leaves = content.site_of(a), enters = content.site_of(b);
      if (leaves == enters) continue;
      for (const auto site : {leaves, enters})
        if (site < content.sites.size()) bound(content.sites[site].uplink_bytes_per_s);
    }
}

void charge_overheads(cluster& content, const cost_profile& costs) {
  for (auto& each : content.servers) each.batch_ns = costs.batch_ns;
  for (std::size_t i = 0; i < content.links.size(); ++i)
    if (i / content.size() != i % content.size()) content.links[i].message_ns = costs.message_ns;
}

std::int64_t transfer_ns(const link_spec& link, std::int64_t bytes) {
  ORDERMOE_CHECK(link.bandwidth_bytes_per_s > 0,
                 "a link without bandwidth was asked to carry bytes");
  return link.message_ns + static_cast<std::int64_t>(std::ceil(static_cast<double>(bytes) /
                                                               link.bandwidth_bytes_per_s * 1e9));
}

std::int64_t compute_ns(const server_spec& server, std::int64_t flops, std::int64_t bytes_read) {
  ORDERMOE_CHECK(server.flops_per_s > 0 && server.memory_bandwidth_bytes_per_s > 0,
                 "a server without speed was asked to compute");
  const auto arithmetic = static_cast<double>(flops) / server.flops_per_s;
  const auto reading = static_cast<double>(bytes_read) / server.memory_bandwidth_bytes_per_s;
  return server.batch_ns +
         static_cast<std::int64_t>(std::ceil(std::max(arithmetic, reading) * 1e9));
}

std::int64_t offloaded_ns(const server_spec& server, std::int64_t flops, std::int64_t bytes_read) {
  auto host = server;
  host.memory_bandwidth_bytes_per_s = server.host_bandwidth_bytes_per_s;
  return compute_ns(host, flops, bytes_read);
}

std::int64_t expert_memory_bytes(const server_spec& server, const cost_profile& costs,
                                 std::size_t n_layers) {
  return server.memory_bytes - server.kv_bytes - costs.resident_bytes(n_layers);
}

}  // namespace ordermoe
