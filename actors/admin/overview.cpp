#include "actors/admin/overview.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace ordermoe::actors {

using nlohmann::ordered_json;

namespace {

/// A member of what another process said; null where there is none.
ordered_json member(const ordered_json& of, const char* name) {
  if (!of.is_object()) return {};
  const auto found = of.find(name);
  return found == of.end() ? ordered_json() : *found;
}

const std::string& name_of(const service_context& context, std::uint32_t server) {
  return context.servers.servers[server].name;
}

/// As nodetool has it: up or down, then normal, leaving (drained) or moving (its plan changes).
const char* state_of(const server_status& status) {
  return status.drained ? "UL" : status.admitting ? "UN" : "UM";
}

/// The peers of a report, each with its server's number where that makes sense.
template <class Use>
void for_each_peer(const ordered_json& report, std::uint32_t n_servers, Use use) {
  const auto peers = member(report, "peers");
  if (!peers.is_array()) return;
  for (const auto& each : peers) {
    const auto server = member(each, "server");
    if (!server.is_number_unsigned() || server.get<std::uint64_t>() >= n_servers) continue;
    use(server.get<std::uint32_t>(), each);
  }
}

ordered_json scaled(const ordered_json& value, double by) {
  if (!value.is_number() || value.get<double>() <= 0) return {};
  return value.get<double>() * by;
}

constexpr double ms_per_ns = 1e-6, mbit_per_byte = 8e-6;

}  // namespace

ordered_json node_report(const service_context& context, const server_status& status,
                         const token_meter& tokens, const std::set<std::uint32_t>& away) {
  const auto self = context.seat->server;
  return {{"state", state_of(status)},
          {"name", name_of(context, self)},
          {"server", self},
          {"boot", context.seat->boot},
          {"epoch", status.epoch},
          {"policy", status.policy},
          {"tokens_per_s", tokens.per_s()},
          {"tokens", tokens.total()},
          {"requests", status.requests.size()},
          {"answered", status.ended_requests},
          {"sequences", status.sequences.size()},
          {"reserved_bytes", status.reserved_bytes},
          {"kv_bytes", context.servers.servers[self].kv_bytes},
          {"connected", context.n_servers() - 1 - away.size()}};
}

ordered_json ways_report(const service_context& context, const ordered_json& figures) {
  // What each lane carries is for `peers`, which asks one node.
  auto ways = ordered_json::array();
  for_each_peer(figures, context.n_servers(), [&](std::uint32_t server, const ordered_json& each) {
    ways.push_back({{"server", server},
                    {"up", member(each, "up")},
                    {"round_trip_ns", member(each, "round_trip_ns")},
                    {"bytes_per_s", member(each, "bytes_per_s")}});
  });
  return ways;
}

ordered_json cluster_report(const service_context& context, const told_reports& told,
                            const std::set<std::uint32_t>& away,
                            const std::set<std::uint32_t>& absent) {
  auto nodes = ordered_json::array();
  double tokens_per_s = 0;
  std::int64_t requests = 0;
  for (std::uint32_t server = 0; server < context.n_servers(); ++server) {
    const auto found = told.find(server);
    if (found == told.end()) {
      nodes.push_back({{"state", absent.contains(server) ? "--"
                                 : away.contains(server) ? "DN"
                                                         : "?N"},
                       {"name", name_of(context, server)},
                       {"server", server}});
      continue;
    }
    const auto& line = found->second;
    if (const auto rate = member(line, "tokens_per_s"); rate.is_number())
      tokens_per_s += rate.get<double>();
    if (const auto n = member(line, "requests"); n.is_number_integer())
      requests += n.get<std::int64_t>();
    nodes.push_back(line);
  }
  return {{"node", name_of(context, context.seat->server)},
          {"answering", told.size()},
          {"tokens_per_s", tokens_per_s},
          {"requests", requests},
          {"nodes", std::move(nodes)}};
}

ordered_json topology_report(const service_context& context, const told_reports& told) {
  auto servers = ordered_json::array(), links = ordered_json::array();
  const auto n = context.n_servers();
  for (std::uint32_t server = 0; server < n; ++server) {
    const auto& each = context.servers.servers[server];
    servers.push_back({{"name", each.name},
                       {"server", server},
                       {"device", each.device},
                       {"tflops", each.flops_per_s * 1e-12},
                       {"memory_gb_per_s", each.memory_bandwidth_bytes_per_s * 1e-9},
                       {"memory_bytes", each.memory_bytes},
                       {"kv_bytes", each.kv_bytes},
                       {"arrival_share", each.arrival_share}});
  }
  for (std::uint32_t from = 0; from < n; ++from) {
    std::vector<ordered_json> found(n);
    if (const auto said = told.find(from); said != told.end())
      for_each_peer(said->second, n,
                    [&](std::uint32_t to, const ordered_json& peer) { found[to] = peer; });
    for (std::uint32_t to = 0; to < n; ++to) {
      if (from == to) continue;
      const auto& stated = context.servers.link(server_id{from}, server_id{to});
      const auto up = member(found[to], "up");
      links.push_back(
          {{"from", name_of(context, from)},
           {"to", name_of(context, to)},
           {"up", up.is_boolean() ? up : ordered_json()},
           {"stated_round_trip_ms",
            static_cast<double>(stated.latency_ns +
                                context.servers.link(server_id{to}, server_id{from}).latency_ns) *
                ms_per_ns},
           {"round_trip_ms", scaled(member(found[to], "round_trip_ns"), ms_per_ns)},
           {"stated_mbit_s", stated.bandwidth_bytes_per_s * mbit_per_byte},
           {"mbit_s", scaled(member(found[to], "bytes_per_s"), mbit_per_byte)}});
    }
  }
  return {{"node", name_of(context, context.seat->server)},
          {"servers", std::move(servers)},
          {"links", std::move(links)}};
}

ordered_json peers_report(const service_context& context, const ordered_json& figures,
                          const std::set<std::uint32_t>& away) {
  auto peers = ordered_json::array(), lanes = ordered_json::array();
  const auto credits = member(figures, "credit_bytes");
  for_each_peer(figures, context.n_servers(), [&](std::uint32_t server, const ordered_json& each) {
    peers.push_back({{"state", away.contains(server) ? "DN" : "UN"},
                     {"name", name_of(context, server)},
                     {"server", server},
                     {"boot", member(each, "boot")},
                     {"round_trip_ms", scaled(member(each, "round_trip_ns"), ms_per_ns)},
                     {"mbit_s", scaled(member(each, "bytes_per_s"), mbit_per_byte)},
                     {"connections", member(each, "connections")},
                     {"resent_frames", member(each, "resent_frames")},
                     {"written_bytes", member(each, "written_bytes")},
                     {"read_bytes", member(each, "read_bytes")}});
    const auto of_peer = member(each, "lanes");
    if (!of_peer.is_object()) return;
    for (const auto& [lane, counted] : of_peer.items()) {
      ordered_json line{{"peer", name_of(context, server)},
                        {"lane", lane},
                        {"credit_bytes", member(credits, lane.c_str())}};
      line.update(counted);
      lanes.push_back(std::move(line));
    }
  });
  return {{"node", name_of(context, context.seat->server)},
          {"peers", std::move(peers)},
          {"lanes", std::move(lanes)}};
}

ordered_json experts_report(const service_context& context, const in_force& now,
                            std::optional<std::uint32_t> layer,
                            std::optional<std::uint32_t> server) {
  const auto& plan = now.content->plan;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>> hosted;
  for (const auto& each : plan.experts) {
    const auto where = static_cast<std::uint32_t>(each.server.index());
    const auto of = static_cast<std::uint32_t>(each.layer.index());
    if ((layer && *layer != of) || (server && *server != where)) continue;
    hosted[{of, where}].push_back(static_cast<std::uint32_t>(each.expert.index()));
  }
  auto lines = ordered_json::array();
  for (auto& [place, experts] : hosted) {
    std::ranges::sort(experts);
    lines.push_back(
        {{"layer", place.first}, {"server", name_of(context, place.second)}, {"experts", experts}});
  }
  return {{"epoch", plan.epoch},
          {"strategy", now.policy.name},
          {"placement", plan.strategy},
          {"layers", plan.n_layers},
          {"experts_of_a_layer", plan.n_experts},
          {"hosted", std::move(lines)}};
}

ordered_json request_report(const service_context& context, const server_status& status,
                            std::uint64_t request, std::int64_t now_ns) {
  const auto found = std::ranges::find(status.requests, request, &request_status::request);
  if (found == status.requests.end()) return {};
  ordered_json told{{"request", request},
                    {"node", name_of(context, context.seat->server)},
                    {"phase", to_string(found->phase)},
                    {"attempt", found->attempt},
                    {"prompt_tokens", found->prompt_tokens},
                    {"new_tokens", found->new_tokens},
                    {"age_s", static_cast<double>(now_ns - found->arrival_ns) * 1e-9}};
  const auto sequence = std::ranges::find(status.sequences, request, &sequence_status::request);
  if (sequence == status.sequences.end()) return told;
  told["memory_bytes"] = sequence->bytes;
  told["memory_granted"] = sequence->granted;
  told["tokens_here"] = sequence->tokens;
  told["parked_rows"] = sequence->parked_rows;
  return told;
}

}  // namespace ordermoe::actors
