#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "config/cluster.hpp"
#include "config/random.hpp"

namespace ordermoe {

namespace {

/// Each property is drawn from a stream of its own, so that asking for one does not shift the
/// others.
enum stream : std::uint64_t {
  speed_stream = 1,
  memory_stream,
  bandwidth_stream,
  latency_stream,
  arrival_stream
};

double round_to(double value, double step) {
  return std::round(value / step) * step;
}

void draw_speeds(cluster& content, const draw_options& options) {
  random_stream random(options.seed, speed_stream);
  for (auto& server : content.servers) {
    const double tenths = std::round(random.uniform(200, 1100));  // of a TFLOPS
    server.flops_per_s = tenths * 1e11;
    // 200 GB/s beside 20 TFLOPS, 1,000 GB/s beside 110, linear between.
    const double position = (tenths - 200) / 900;
    server.memory_bandwidth_bytes_per_s = round_to(200 + 800 * position, 1) * 1e9;
  }
}

/// As many bytes as a server needs that holds all layers' dense parts, for as many experts as fit in `bytes` with theirs alone.
std::int64_t with_all_dense_parts(std::int64_t bytes, std::int64_t kv_bytes,
                                  const draw_options& options) {
  const auto& costs = options.costs;
  const auto n_experts = static_cast<double>(options.n_experts);
  const double of_layer =
      static_cast<double>(costs.attention_bytes) +
      static_cast<double>(options.kv_tokens) * static_cast<double>(costs.kv_row_bytes);
  const auto left = static_cast<double>(bytes - costs.embedding_bytes - costs.head_bytes);
  const auto n = static_cast<std::int64_t>(std::max(
      0.0, std::floor(left / (static_cast<double>(costs.expert_bytes) + of_layer / n_experts))));
  return costs.resident_bytes(options.n_layers) + kv_bytes + n * costs.expert_bytes;
}

/// Memory for experts in proportion to a draw from 12 to 48 GB, scaled so that all servers together
/// have memory_ratio times one replica of the model's experts; the resident parts and KV are added
/// to it. Or as drawn, with the resident parts and KV in it.
void draw_memory(cluster& content, const draw_options& options) {
  random_stream random(options.seed, memory_stream);
  std::vector<double> drawn_gb;
  for (std::size_t i = 0; i < content.size(); ++i) drawn_gb.push_back(random.uniform(12, 48));
  const double sum_gb = std::accumulate(drawn_gb.begin(), drawn_gb.end(), 0.0);
  const auto replica = static_cast<double>(options.costs.expert_bytes) *
                       static_cast<double>(options.n_layers) *
                       static_cast<double>(options.n_experts);
  const auto total = static_cast<std::int64_t>(std::llround(replica * options.memory_ratio));
  const auto kv_bytes =
      static_cast<std::int64_t>(options.kv_tokens * options.n_layers) * options.costs.kv_row_bytes;
  if (options.memory_as_drawn) {
    for (std::size_t i = 0; i < content.size(); ++i) {
      content.servers[i].kv_bytes = kv_bytes;
      content.servers[i].memory_bytes = std::llround(drawn_gb[i] * 1e3) * 1'000'000;
      if (options.dense_by_layer)
        content.servers[i].memory_bytes =
            with_all_dense_parts(content.servers[i].memory_bytes, kv_bytes, options);
    }
    return;
  }
  std::int64_t left = total;
  for (std::size_t i = 0; i < content.size(); ++i) {
    auto share = static_cast<std::int64_t>(static_cast<double>(total) * (drawn_gb[i] / sum_gb));
    if (i + 1 == content.size()) share = left;
    left -= share;
    auto& server = content.servers[i];
    server.kv_bytes = kv_bytes;
    server.memory_bytes = options.costs.resident_bytes(options.n_layers) + kv_bytes + share;
  }
}

/// Servers i and j are at one site where i and j leave the same remainder.
bool same_site(const draw_options& options, std::size_t i, std::size_t j) {
  return options.n_sites > 0 && i % options.n_sites == j % options.n_sites;
}

void draw_links(cluster& content, const draw_options& options) {
  const auto n = content.size();
  random_stream bandwidths(options.seed, bandwidth_stream);
  random_stream latencies(options.seed, latency_stream);
  content.links.assign(n * n, {});
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      const bool close = same_site(options, i, j);
      const double low_mbps = close ? 5000 : 1000;
      const double mbps = std::round(low_mbps * std::pow(10000 / low_mbps, bandwidths.unit()));
      const double us = std::round(latencies.uniform(200, close ? 1000 : 20000));
      const link_spec link{mbps * 125e3, static_cast<std::int64_t>(us) * 1000};
      content.links[i * n + j] = link;
      content.links[j * n + i] = link;
    }
  }
  // Shortest paths by Floyd and Warshall: the direct path becomes as fast as the fastest relay.
  const auto latency = [&](std::size_t i, std::size_t j) -> std::int64_t& {
    return content.links[i * n + j].latency_ns;
  };
  for (std::size_t relay = 0; relay < n; ++relay)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j)
        if (i != j && i != relay && j != relay)
          latency(i, j) = std::min(latency(i, j), latency(i, relay) + latency(relay, j));
}

/// Shares in proportion to 1 / (1 + rank), over a random order of the servers; in whole millionths.
void draw_arrivals(cluster& content, const draw_options& options) {
  random_stream random(options.seed, arrival_stream);
  const auto n = content.size();
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  double sum = 0;
  for (std::size_t rank = 0; rank < n; ++rank) sum += 1.0 / static_cast<double>(1 + rank);
  std::int64_t left = 1'000'000;
  for (std::size_t rank = n; rank-- > 0;) {
    auto millionths = std::llround(1e6 / static_cast<double>(1 + rank) / sum);
    if (rank == 0) millionths = left;
    left -= millionths;
    content.servers[order[rank]].arrival_share = static_cast<double>(millionths) / 1e6;
  }
}

void set_uplinks(cluster& content, const draw_options& options) {
  for (auto& each : content.servers) each.uplink_bytes_per_s = options.uplink_bytes_per_s;
  if (options.site_uplink_bytes_per_s > 0) {
    for (std::size_t i = 0; i < options.n_sites; ++i)
      content.sites.push_back({fmt::format("site{}", i), options.site_uplink_bytes_per_s});
    for (std::size_t i = 0; i < content.size() && options.n_sites > 0; ++i)
      content.servers[i].site = content.sites[i % options.n_sites].name;
  }
  bound_by_uplinks(content);
}

}  // namespace

cluster draw_cluster(const draw_options& options) {
  ORDERMOE_CHECK(options.n_servers >= 1 && options.n_servers <= max_servers,
                 fmt::format("a cluster of {} servers was drawn, 1 to {} are possible",
                             options.n_servers, max_servers));
  ORDERMOE_CHECK(
      options.memory_ratio > 0 && std::isfinite(options.memory_ratio),
      fmt::format("a cluster was drawn with a memory ratio of {}", options.memory_ratio));
  cluster content;
  content.name = fmt::format("edge{}", options.n_servers);
  content.seed = options.seed;
  content.servers.resize(options.n_servers);
  for (std::size_t i = 0; i < options.n_servers; ++i)
    content.servers[i].name = fmt::format("s{}", i);
  draw_speeds(content, options);
  draw_memory(content, options);
  draw_links(content, options);
  draw_arrivals(content, options);
  set_uplinks(content, options);
  return content;
}

}  // namespace ordermoe
