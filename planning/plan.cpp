#include "planning/plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace ordermoe::planning {

namespace {

constexpr std::array reason_names{"mandatory",  "waiting_list", "repair", "replica",
                                  "min_copies", "layer_shard",  "search", "offload"};

error wrong_plan(errc code, const std::string& path, const std::string& found,
                 const std::string& expected) {
  return {code,
          fmt::format("{}: found {}, expected {}; make the plan again", path, found, expected)};
}

result<void> check_grouping(const layer_grouping& grouping, std::size_t n_experts,
                            const std::string& path) {
  const auto sized = [&](const char* name, std::size_t found) -> result<void> {
    if (found == n_experts) return {};
    return wrong_plan(errc::mismatch, path + "." + name, fmt::format("{} values", found),
                      fmt::format("{}, one for each expert", n_experts));
  };
  if (auto r = sized("group_of", grouping.group_of.size()); !r) return r;
  if (auto r = sized("representativeness", grouping.representativeness.size()); !r) return r;
  if (auto r = sized("importance", grouping.importance.size()); !r) return r;
  std::vector<bool> seen(n_experts, false);
  std::size_t n_seen = 0;
  for (std::size_t g = 0; g < grouping.groups.size(); ++g) {
    const auto& group = grouping.groups[g];
    const auto here = fmt::format("{}.groups[{}]", path, g);
    for (std::size_t i = 0; i < group.members.size(); ++i) {
      const auto member = group.members[i];
      const auto place = fmt::format("{}.members[{}]", here, i);
      if (member >= n_experts)
        return wrong_plan(errc::out_of_range, place, fmt::format("expert {}", member),
                          fmt::format("an expert below {}", n_experts));
      if (i > 0 && member <= group.members[i - 1])
        return wrong_plan(errc::mismatch, place, fmt::format("expert {}", member),
                          "members in ascending order");
      if (seen[member])
        return wrong_plan(errc::mismatch, place, fmt::format("expert {} a second time", member),
                          "each expert in one group");
      if (grouping.group_of[member] != g)
        return wrong_plan(errc::mismatch, fmt::format("{}.group_of[{}]", path, member),
                          fmt::format("group {}", grouping.group_of[member]),
                          fmt::format("group {}, which lists the expert", g));
      seen[member] = true;
      ++n_seen;
    }
    if (!std::binary_search(group.members.begin(), group.members.end(), group.dominant))
      return wrong_plan(errc::mismatch, here + ".dominant",
                        fmt::format("expert {}", group.dominant), "a member of the group");
  }
  if (n_seen != n_experts)
    return wrong_plan(errc::mismatch, path + ".groups", fmt::format("{} experts", n_seen),
                      fmt::format("all {}", n_experts));
  return {};
}

/// Ascending numbers of experts, fewer than there are.
result<void> check_pruned(const plan& content) {
  if (content.pruned.empty()) return {};
  if (content.pruned.size() != content.n_servers)
    return wrong_plan(errc::mismatch, "pruned", fmt::format("{} sets", content.pruned.size()),
                      fmt::format("none or {}, one for each access server", content.n_servers));
  for (std::size_t a = 0; a < content.n_servers; ++a) {
    const auto& layers = content.pruned[a].layers;
    if (layers.size() != content.n_layers)
      return wrong_plan(errc::mismatch, fmt::format("pruned[{}]", a),
                        fmt::format("{} layers", layers.size()),
                        fmt::format("{}", content.n_layers));
    for (std::size_t l = 0; l < layers.size(); ++l) {
      const auto here = fmt::format("pruned[{}][{}]", a, l);
      for (std::size_t i = 0; i < layers[l].size(); ++i) {
        if (layers[l][i] >= content.n_experts)
          return wrong_plan(errc::out_of_range, here, fmt::format("expert {}", layers[l][i]),
                            fmt::format("experts below {}", content.n_experts));
        if (i > 0 && layers[l][i] <= layers[l][i - 1])
          return wrong_plan(errc::mismatch, here, fmt::format("expert {}", layers[l][i]),
                            "experts in ascending order");
      }
      if (layers[l].size() >= content.n_experts)
        return wrong_plan(errc::mismatch, here, "all experts", "one left at least");
    }
  }
  return {};
}

/// [n_layers, n_experts] 1 where no router may choose the expert. Precondition: check_pruned().
std::vector<std::uint8_t> pruned_for_everybody(const plan& content) {
  std::vector<std::size_t> times(content.n_layers * content.n_experts, 0);
  for (const auto& access : content.pruned)
    for (std::size_t l = 0; l < content.n_layers; ++l)
      for (const auto e : access.layers[l]) ++times[l * content.n_experts + e];
  std::vector<std::uint8_t> pruned;
  for (const auto n : times) pruned.push_back(!content.pruned.empty() && n == content.n_servers);
  return pruned;
}

/// Experts that a plan tells something of, one by one.
std::size_t n_listed(const plan& content) {
  auto n = content.experts.size();
  if (!content.pruned.empty())
    for (const auto& layer : content.pruned.front().layers) n += layer.size();
  return n;
}

result<void> check_experts(const plan& content) {
  std::vector<server_mask> hosts(content.n_layers * content.n_experts, 0);
  for (std::size_t i = 0; i < content.experts.size(); ++i) {
    const auto& placed = content.experts[i];
    const auto outside = [&](const char* name, std::size_t found, std::size_t bound) {
      return wrong_plan(errc::out_of_range, fmt::format("experts[{}].{}", i, name),
                        fmt::format("{}", found), fmt::format("a number below {}", bound));
    };
    if (placed.server.index() >= content.n_servers)
      return outside("server", placed.server.index(), content.n_servers);
    if (placed.layer.index() >= content.n_layers)
      return outside("layer", placed.layer.index(), content.n_layers);
    if (placed.expert.index() >= content.n_experts)
      return outside("expert", placed.expert.index(), content.n_experts);
    auto& mask = hosts[placed.layer.index() * content.n_experts + placed.expert.index()];
    const auto bit = server_bit(placed.server.index());
    if (mask & bit)
      return wrong_plan(
          errc::mismatch, fmt::format("experts[{}]", i),
          fmt::format("layer {} expert {} on server {} a second time", placed.layer.index(),
                      placed.expert.index(), placed.server.index()),
          "each expert at most once on a server");
    mask |= bit;
  }
  server_mask exact = 0;
  for (std::size_t m = 0; m < content.n_servers; ++m)
    if (content.precision_at(m) == precision::stored) exact |= server_bit(m);
  const auto optional = pruned_for_everybody(content);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (hosts[i] == 0 && optional[i] != 0) continue;
    if (hosts[i] == 0)
      return wrong_plan(errc::infeasible, "experts",
                        fmt::format("no server for layer {} expert {}", i / content.n_experts,
                                    i % content.n_experts),
                        "every expert on at least one server");
    if ((hosts[i] & exact) == 0)
      return wrong_plan(errc::infeasible, "experts",
                        fmt::format("layer {} expert {} only on servers that keep it coarser than "
                                    "the model",
                                    i / content.n_experts, i % content.n_experts),
                        "every expert on at least one server as the model has it");
  }
  return {};
}

result<void> check_residence(const plan& content) {
  if (content.residence.size() != content.n_servers)
    return wrong_plan(errc::mismatch, "residence", fmt::format("{} sets", content.residence.size()),
                      fmt::format("{}, one for each access server", content.n_servers));
  const auto all = all_servers(content.n_servers);
  for (std::size_t a = 0; a < content.n_servers; ++a) {
    const auto& layers = content.residence[a].layers;
    if (layers.size() != content.n_layers)
      return wrong_plan(errc::mismatch, fmt::format("residence[{}]", a),
                        fmt::format("{} layers", layers.size()),
                        fmt::format("{}", content.n_layers));
    for (std::size_t l = 0; l < layers.size(); ++l) {
      if (layers[l] == 0)
        return wrong_plan(errc::mismatch, fmt::format("residence[{}][{}]", a, l), "no server",
                          "at least one server where the layer's attention may run");
      if (layers[l] & ~all)
        return wrong_plan(errc::out_of_range, fmt::format("residence[{}][{}]", a, l),
                          "an unknown server", fmt::format("servers below {}", content.n_servers));
    }
  }
  return {};
}

}  // namespace

const char* to_string(placement_reason reason) {
  return reason_names[static_cast<std::size_t>(reason)];
}

bool plan::hosts(server_id server, layer_id layer, expert_id expert) const {
  return std::any_of(experts.begin(), experts.end(), [&](const placed_expert& placed) {
    return placed.server == server && placed.layer == layer && placed.expert == expert;
  });
}

bool plan::offloads() const {
  return std::ranges::any_of(
      experts, [](const auto& each) { return each.reason == placement_reason::offload; });
}

std::vector<std::vector<std::uint8_t>> offloaded_flags(const plan& content) {
  if (!content.offloads()) return {};
  std::vector<std::vector<std::uint8_t>> flags(
      content.n_servers, std::vector<std::uint8_t>(content.n_layers * content.n_experts, 0));
  for (const auto& each : content.experts)
    if (each.reason == placement_reason::offload)
      flags[each.server.index()][each.layer.index() * content.n_experts + each.expert.index()] = 1;
  return flags;
}

std::vector<std::uint8_t> pruned_flags(std::span<const std::uint32_t> pruned,
                                       std::size_t n_experts) {
  std::vector<std::uint8_t> flags(n_experts, 0);
  for (const auto e : pruned) flags[e] = 1;
  return flags;
}

placement_index::placement_index(const plan& content)
    : n_experts_(content.n_experts), hosts_(content.n_layers * content.n_experts, 0) {
  for (const auto& placed : content.experts)
    hosts_[placed.layer.index() * n_experts_ + placed.expert.index()] |= server_mask{1}
                                                                         << placed.server.index();
}

result<void> validate(const plan& content) {
  if (content.n_servers == 0 || content.n_servers > 64)
    return wrong_plan(errc::out_of_range, "n_servers", fmt::format("{}", content.n_servers),
                      "1 to 64 servers");
  if (content.n_layers == 0 || content.n_experts == 0)
    return wrong_plan(errc::out_of_range, content.n_layers == 0 ? "n_layers" : "n_experts", "0",
                      "at least 1");
  // A plan lists every expert, so that a shape far beyond its list is a lie that must not size an
  // array.
  const auto listed = n_listed(content);
  if (content.n_layers > listed || content.n_experts > listed / content.n_layers)
    return wrong_plan(errc::infeasible, "experts",
                      fmt::format("{} entries", content.experts.size()),
                      fmt::format("every one of {} experts in {} layers on at least one server",
                                  content.n_experts, content.n_layers));
  if (!content.expert_precision.empty() && content.expert_precision.size() != content.n_servers)
    return wrong_plan(errc::mismatch, "expert_precision",
                      fmt::format("{} values", content.expert_precision.size()),
                      fmt::format("none or {}, one for each server", content.n_servers));
  if (auto r = check_pruned(content); !r) return r;
  if (auto r = check_experts(content); !r) return r;
  if (!content.grouping.empty() && content.grouping.size() != content.n_layers)
    return wrong_plan(errc::mismatch, "grouping", fmt::format("{} layers", content.grouping.size()),
                      fmt::format("none or {}", content.n_layers));
  for (std::size_t l = 0; l < content.grouping.size(); ++l)
    if (auto r =
            check_grouping(content.grouping[l], content.n_experts, fmt::format("grouping[{}]", l));
        !r)
      return r;
  if (auto r = check_residence(content); !r) return r;
  const auto sized = [&](const char* name, std::size_t found) -> result<void> {
    if (found == content.n_servers) return {};
    return wrong_plan(errc::mismatch, name, fmt::format("{} values", found),
                      fmt::format("{}, one for each server", content.n_servers));
  };
  if (auto r = sized("expert_bytes_used", content.expert_bytes_used.size()); !r) return r;
  if (auto r = sized("expert_bytes_limit", content.expert_bytes_limit.size()); !r) return r;
  if (!(std::isfinite(content.estimated_token_ns) && content.estimated_token_ns >= 0))
    return wrong_plan(errc::out_of_range, "estimated_token_ns",
                      fmt::format("{}", content.estimated_token_ns),
                      "a finite number of at least 0");
  return {};
}

result<void> validate(const plan& content, const cluster& servers, const cost_profile& costs) {
  if (auto r = validate(content); !r) return r;
  if (content.n_servers != servers.size())
    return wrong_plan(errc::mismatch, "n_servers", fmt::format("{}", content.n_servers),
                      fmt::format("{}, the servers of the cluster", servers.size()));
  std::vector<std::int64_t> used(content.n_servers, 0);
  for (const auto& placed : content.experts)
    if (placed.reason != placement_reason::offload)
      used[placed.server.index()] += expert_bytes(servers.servers[placed.server.index()], costs);
  for (std::size_t m = 0; m < content.n_servers; ++m) {
    const auto& server = servers.servers[m];
    if (content.precision_at(m) != server.expert_precision)
      return wrong_plan(errc::mismatch, fmt::format("expert_precision[{}]", m),
                        to_string(content.precision_at(m)),
                        fmt::format("{}, as the cluster has server {}",
                                    to_string(server.expert_precision), server.name));
    const auto limit = expert_memory_bytes(server, costs, content.n_layers);
    if (used[m] > limit)
      return error{errc::infeasible,
                   fmt::format("experts: found {} bytes on server {} ({}), expected at most {}: {} "
                               "bytes are missing; give the server more memory or plan again",
                               used[m], m, server.name, limit, used[m] - limit)};
    if (content.expert_bytes_used[m] != used[m])
      return wrong_plan(errc::mismatch, fmt::format("expert_bytes_used[{}]", m),
                        fmt::format("{}", content.expert_bytes_used[m]),
                        fmt::format("{}, what the listed experts weigh", used[m]));
    if (content.expert_bytes_limit[m] != limit)
      return wrong_plan(errc::mismatch, fmt::format("expert_bytes_limit[{}]", m),
                        fmt::format("{}", content.expert_bytes_limit[m]),
                        fmt::format("{}, what the cluster leaves for experts", limit));
  }
  return {};
}

void note_precisions(plan& content, const cluster& servers) {
  content.expert_precision.clear();
  for (const auto& server : servers.servers)
    content.expert_precision.push_back(server.expert_precision);
  if (std::ranges::all_of(content.expert_precision,
                          [](precision kept) { return kept == precision::stored; }))
    content.expert_precision.clear();
}

cluster with_precisions(cluster servers, const plan& content) {
  for (std::size_t m = 0; m < servers.size(); ++m)
    servers.servers[m].expert_precision = content.precision_at(m);
  return servers;
}

std::vector<residency> access_residency(std::size_t n_servers, std::size_t n_layers) {
  std::vector<residency> sets(n_servers);
  for (std::size_t a = 0; a < n_servers; ++a) sets[a].layers.assign(n_layers, server_bit(a));
  return sets;
}

std::vector<residency> roaming_residency(std::size_t n_servers, std::size_t n_layers) {
  const auto all = all_servers(n_servers);
  return std::vector<residency>(n_servers, residency{std::vector<server_mask>(n_layers, all)});
}

}  // namespace ordermoe::planning
