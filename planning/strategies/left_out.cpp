#include "planning/strategies/left_out.hpp"

#include <utility>
#include <vector>

namespace ordermoe::planning {

std::vector<std::size_t> staying(std::size_t n_servers, server_mask left_out) {
  std::vector<std::size_t> all;
  for (std::size_t m = 0; m < n_servers; ++m)
    if (((left_out >> m) & 1u) == 0) all.push_back(m);
  return all;
}

namespace {

server_mask widened(server_mask narrow, const std::vector<std::size_t>& stay) {
  server_mask wide = 0;
  for (std::size_t i = 0; i < stay.size(); ++i)
    if (((narrow >> i) & 1u) != 0) wide |= server_mask{1} << stay[i];
  return wide;
}

}  // namespace

cluster without(const cluster& servers, server_mask left_out) {
  const auto stay = staying(servers.size(), left_out);
  cluster narrow{servers.name, servers.seed, {}, {}, servers.sites};
  double share = 0;
  for (const auto m : stay) {
    narrow.servers.push_back(servers.servers[m]);
    share += servers.servers[m].arrival_share;
    for (const auto n : stay) narrow.links.push_back(servers.links[m * servers.size() + n]);
  }
  for (auto& server : narrow.servers)
    server.arrival_share =
        share > 0 ? server.arrival_share / share : 1.0 / static_cast<double>(narrow.servers.size());
  return narrow;
}

plan widened(const plan& content, const cluster& servers, const cost_profile& costs,
             server_mask left_out) {
  const auto n = servers.size();
  const auto stay = staying(n, left_out);
  auto wide = content;
  wide.n_servers = n;
  for (auto& each : wide.experts)
    each.server = server_id(static_cast<std::uint32_t>(stay[each.server.index()]));
  wide.residence = access_residency(n, content.n_layers);
  wide.expert_bytes_used.assign(n, 0);
  wide.expert_bytes_limit.clear();
  for (const auto& server : servers.servers)
    wide.expert_bytes_limit.push_back(expert_memory_bytes(server, costs, content.n_layers));
  wide.expert_precision.clear();
  if (!content.expert_precision.empty())
    for (const auto& server : servers.servers)
      wide.expert_precision.push_back(server.expert_precision);
  if (!content.pruned.empty()) wide.pruned.assign(n, content.pruned.front());
  for (std::size_t i = 0; i < stay.size(); ++i) {
    const auto m = stay[i];
    if (!content.pruned.empty()) wide.pruned[m] = content.pruned[i];
    wide.expert_bytes_used[m] = content.expert_bytes_used[i];
    wide.expert_bytes_limit[m] = content.expert_bytes_limit[i];
    if (!content.expert_precision.empty()) wide.expert_precision[m] = content.expert_precision[i];
    for (std::size_t layer = 0; layer < content.n_layers; ++layer)
      wide.residence[m].layers[layer] = widened(content.residence[i].layers[layer], stay);
  }
  return wide;
}

std::vector<residency> among_others(std::vector<residency> residence, server_mask left_out) {
  for (std::size_t access = 0; access < residence.size(); ++access)
    for (auto& homes : residence[access].layers)
      homes = (left_out & server_bit(access)) != 0 ? server_bit(access) : homes & ~left_out;
  return residence;
}

server_mask needed(const plan& content, server_mask users_of) {
  server_mask mask = 0;
  for (const auto& each : content.experts) mask |= server_bit(each.server.index());
  for_each_server(users_of & all_servers(content.n_servers), [&](std::size_t access) {
    for (const auto homes : content.residence[access].layers) mask |= homes & ~server_bit(access);
  });
  return mask;
}

server_mask newly_needed(const plan& content, const plan& before, server_mask left_out) {
  const auto members = all_servers(content.n_servers) & ~left_out;
  return needed(content, members) & ~needed(before, members) & left_out;
}

}  // namespace ordermoe::planning
