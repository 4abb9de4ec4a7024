#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "config/cost_profile.hpp"
#include "config/error.hpp"
#include "config/ids.hpp"
#include "config/precision.hpp"

namespace ordermoe {

/// The most servers that one cluster may have.
inline constexpr std::size_t max_servers = 64;

/// Of a host's memory where a cluster does not say: a quarter of eight channels of DDR4-3200, twice a PCIe 4.0 x16 slot.
inline constexpr double default_host_bandwidth_bytes_per_s = 50e9;

/// Rates are whole numbers of FLOPs or bytes a second, so that a cluster file holds them exactly.
struct server_spec {
  std::string name;
  double flops_per_s = 0;                   ///< F_m
  double memory_bandwidth_bytes_per_s = 0;  ///< Rate at which weights and KV are read.
  std::int64_t memory_bytes = 0;  ///< Whole memory: resident parts, experts and KV together.
  std::int64_t kv_bytes = 0;      ///< Part of it that is kept for KV rows.
  /// How this server keeps its experts: stored, int8 or int4. Coarser than stored: an expert here
  /// is a substitute of itself.
  precision expert_precision = precision::stored;
  double arrival_share = 0;  ///< Share of the requests that arrive here; shares sum to 1.
  /// Rate at which weights are read that are in the host's memory and not in the server's own.
  double host_bandwidth_bytes_per_s = default_host_bandwidth_bytes_per_s;
  std::string device = "cpu";  ///< What this server computes on (devices.hpp).
  /// What all its links together carry, each way; 0: no bound of their own.
  double uplink_bytes_per_s = 0;
  std::string site;  ///< Name of its site; empty: none.
  /// More for each batch; not of the file but of a cost profile (charge_overheads).
  std::int64_t batch_ns = 0;
};

/// Servers at one place. What leaves it, and what comes in, shares an uplink.
struct site_spec {
  std::string name;
  double uplink_bytes_per_s = 0;  ///< Each way; 0: no bound.
};

/// One direction of one pair of servers.
struct link_spec {
  double bandwidth_bytes_per_s = 0;  ///< B_{m,n}
  std::int64_t latency_ns = 0;       ///< tau_{m,n}
  /// More for each message, of its sender's time; not of the file but of a cost profile.
  std::int64_t message_ns = 0;
};

/// Servers and the links between them. Latencies obey the triangle inequality: no relay is faster
/// than the direct path.
struct cluster {
  std::string name;
  std::uint64_t seed = 0;  ///< Of the draw that made it; 0 where it was written by hand.
  std::vector<server_spec> servers;
  /// Row-major [from][to]; the diagonal is unused and zero. None is faster than an uplink on its way (bound_by_uplinks).
  std::vector<link_spec> links;
  std::vector<site_spec> sites;

  std::size_t size() const { return servers.size(); }
  const link_spec& link(server_id from, server_id to) const {
    return links[from.index() * size() + to.index()];
  }
  /// Of `sites`; their number where the server has none.
  std::size_t site_of(const server_spec& server) const;
};

/// Makes no link faster than the uplinks on its way: those of its hosts and, where it leaves one, of its sites.
void bound_by_uplinks(cluster& content);

/// Has every server and link charge what the profile charges for each batch and each message.
void charge_overheads(cluster& content, const cost_profile& costs);

/// Nanoseconds that a message of `bytes` keeps a link's sender busy: message_ns, and the bytes over the bandwidth, rounded
/// up; without the latency.
std::int64_t transfer_ns(const link_spec& link, std::int64_t bytes);

/// Nanoseconds that a batch keeps a server busy: batch_ns, and max(flops / F, bytes read / memory bandwidth), rounded up.
std::int64_t compute_ns(const server_spec& server, std::int64_t flops, std::int64_t bytes_read);

/// The same for weights in the host's memory: batch_ns, and max(flops / F, bytes / host bandwidth), rounded up.
std::int64_t offloaded_ns(const server_spec& server, std::int64_t flops, std::int64_t bytes_read);

/// Bytes of one expert on this server.
inline std::int64_t expert_bytes(const server_spec& server, const cost_profile& costs) {
  return expert_bytes(costs, server.expert_precision);
}

/// Memory of a server that is left for experts: memory_bytes - kv_bytes - resident parts; may be
/// negative.
std::int64_t expert_memory_bytes(const server_spec& server, const cost_profile& costs,
                                 std::size_t n_layers);

/// Reads a cluster file (config/README.md states the schema). Every error names file:line:column,
/// what was found, what is allowed and what to do.
result<cluster> read_cluster(const std::filesystem::path& path);
result<cluster> parse_cluster(const std::string& toml_text, const std::string& place);

/// The cluster as TOML that read_cluster reads back to the same values.
std::string cluster_toml(const cluster& content);

struct draw_options {
  std::size_t n_servers = 8;
  std::uint64_t seed = 1;
  /// 0: no sites; otherwise servers of one site are close (0.2-1 ms, 5-10 Gbps).
  std::size_t n_sites = 0;
  double uplink_bytes_per_s = 0;       ///< Of each server; 0: none.
  double site_uplink_bytes_per_s = 0;  ///< Of each site; 0: none. Only where there are sites.
  /// Expert memory of all servers over one replica of the model's experts.
  double memory_ratio = 2.0;
  /// Servers have their 12 to 48 GB as drawn, in whole millions of bytes, whatever the model weighs, instead of memory_ratio.
  bool memory_as_drawn = false;
  /// With memory_as_drawn: what a layer has besides its experts, and its room for keys and values, is only where its experts are, an
  /// n_experts-th of it with each, as a stage of a pipeline holds that of its own layers alone. Servers have the more memory, since
  /// all else charges every layer's to each of them.
  bool dense_by_layer = false;
  cost_profile costs;  ///< What an expert, the resident parts and a KV row weigh.
  std::size_t n_layers = 6;
  std::size_t n_experts = 8;
  std::size_t kv_tokens = 16384;  ///< Tokens (of all layers) whose KV each server keeps room for.
};

/// Draws a cluster in the paper's ranges: 20-110 TFLOPS with a matching memory bandwidth, memory of
/// 12-48 GB or in proportion to that scaled to memory_ratio, 1-10 Gbps, 0.2-20 ms with the triangle inequality
/// restored by shortest paths, a non-uniform spread of arrivals. The same options give the same
/// cluster.
cluster draw_cluster(const draw_options& options);

}  // namespace ordermoe
