// Cluster files: TOML in, TOML out. The schema is in config/README.md.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "config/cluster.hpp"
#include "config/devices.hpp"
#include "config/files.hpp"
#include "config/toml_section.hpp"

namespace ordermoe {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{4} << 20;
constexpr std::int64_t format_version = 1;

/// Sums of shares written with a few decimals miss 1 by their rounding.
constexpr double share_tolerance = 1e-6;

constexpr quantity tflops{1e12, {1e-6, 5000}};
constexpr quantity memory_bandwidth_gb_per_s{1e9, {1e-6, 100'000}};
constexpr quantity host_bandwidth_gb_per_s{1e9, {1e-6, 100'000}};
constexpr quantity memory_gb{1e9, {0, 100'000}};
constexpr quantity bandwidth_gbps{125e6, {1e-6, 10'000}};
constexpr quantity latency_ms{1e6, {0, 60'000}};

class cluster_reader {
 public:
  explicit cluster_reader(const toml::table& file)
      : top_(file, "a cluster file", {"version", "name", "seed", "sites", "servers", "network"}) {}

  cluster read() {
    top_.integer("version", format_version, format_version);
    content_.name = top_.name("name");
    if (top_.find("seed") != nullptr) content_.seed = top_.seed("seed");
    if (top_.find("sites") != nullptr) read_sites();
    read_servers();
    read_network();
    check_triangles();
    bound_by_uplinks(content_);
    return std::move(content_);
  }

 private:
  void read_sites() {
    std::map<std::string, toml::source_region> places;
    for (const auto& item : top_.array_of_tables("sites")) {
      const section site(*item.as_table(), "a site", {"name", "uplink_gbps"});
      site_spec spec;
      spec.name = site.name("name");
      const auto [first, is_new] = places.emplace(spec.name, site.place("name"));
      if (!is_new)
        refuse(errc::malformed, site.place("name"),
               fmt::format("found a second site named '{}' (the first is at {}), expected each "
                           "name once; rename it",
                           spec.name, locate(first->second)));
      if (site.find("uplink_gbps") != nullptr)
        spec.uplink_bytes_per_s = site.whole_units("uplink_gbps", bandwidth_gbps);
      content_.sites.push_back(std::move(spec));
    }
  }

  std::string site_of(const section& server) const {
    const auto name = server.string("site");
    std::vector<std::string> known;
    for (const auto& each : content_.sites) known.push_back(each.name);
    if (std::ranges::find(known, name) == known.end())
      refuse(errc::mismatch, server.place("site"),
             fmt::format("found site = \"{}\", expected the name of a [[sites]] table; {}", name,
                         known.empty() ? std::string("there are none, add one")
                                       : fmt::format("sites are {}", fmt::join(known, ", "))));
    return name;
  }

  void read_servers() {
    const auto& servers = top_.array_of_tables("servers");
    if (servers.empty() || servers.size() > max_servers)
      refuse(errc::out_of_range, servers.source(),
             fmt::format("found {} servers, expected 1 to {}; {}", servers.size(), max_servers,
                         servers.empty() ? "add a [[servers]] table" : "remove some"));
    std::size_t n_shares = 0;
    for (const auto& item : servers) {
      const section server(
          *item.as_table(), "a server",
          {"name", "tflops", "memory_bandwidth_gb_per_s", "memory_gb", "kv_gb", "arrival_share",
           "expert_precision", "host_bandwidth_gb_per_s", "device", "uplink_gbps", "site"});
      server_spec spec;
      spec.name = server.name("name");
      const auto [first, is_new] = server_index_.emplace(spec.name, content_.servers.size());
      if (!is_new)
        refuse(errc::malformed, server.place("name"),
               fmt::format("found a second server named '{}' (the first is at {}), expected each "
                           "name once; rename it",
                           spec.name, locate(server_places_[first->second])));
      server_places_.push_back(server.place("name"));
      spec.flops_per_s = server.whole_units("tflops", tflops);
      spec.memory_bandwidth_bytes_per_s =
          server.whole_units("memory_bandwidth_gb_per_s", memory_bandwidth_gb_per_s);
      spec.memory_bytes = static_cast<std::int64_t>(server.whole_units("memory_gb", memory_gb));
      spec.kv_bytes = static_cast<std::int64_t>(server.whole_units("kv_gb", memory_gb));
      if (server.find("expert_precision") != nullptr) {
        const auto text = server.string("expert_precision");
        const auto kept = parse_precision(text);
        if (!kept || *kept == precision::bf16)
          refuse(errc::out_of_range, server.place("expert_precision"),
                 fmt::format("found expert_precision = \"{}\", expected stored, int8 or int4; "
                             "correct it or leave it out for stored",
                             text));
        spec.expert_precision = *kept;
      }
      if (server.find("host_bandwidth_gb_per_s") != nullptr)
        spec.host_bandwidth_bytes_per_s =
            server.whole_units("host_bandwidth_gb_per_s", host_bandwidth_gb_per_s);
      if (server.find("device") != nullptr) spec.device = device_of(server, spec);
      if (server.find("uplink_gbps") != nullptr)
        spec.uplink_bytes_per_s = server.whole_units("uplink_gbps", bandwidth_gbps);
      if (server.find("site") != nullptr) spec.site = site_of(server);
      if (spec.kv_bytes > spec.memory_bytes)
        refuse(errc::out_of_range, server.place("kv_gb"),
               fmt::format("found kv_gb = {} beside memory_gb = {}, expected at most as much; "
                           "kv_gb is a part of "
                           "memory_gb, lower it",
                           server.number("kv_gb", memory_gb.allowed),
                           server.number("memory_gb", memory_gb.allowed)));
      if (server.find("arrival_share") != nullptr) {
        spec.arrival_share = server.number("arrival_share", {0, 1});
        ++n_shares;
      }
      content_.servers.push_back(std::move(spec));
    }
    check_shares(n_shares, servers.source());
  }

  static std::string device_of(const section& server, const server_spec& spec) {
    auto name = server.string("device");
    if (const auto known = check_device(name); !known)
      refuse(errc::out_of_range, server.place("device"), known.error().message);
    if (name != kernels_device && spec.expert_precision != precision::stored)
      refuse(errc::out_of_range, server.place("device"),
             fmt::format("found device = \"{}\" beside expert_precision = \"{}\", which only the "
                         "kernels multiply by; expected experts as the model has them; leave "
                         "expert_precision out, or the device",
                         name, to_string(spec.expert_precision)));
    return name;
  }

  void check_shares(std::size_t n_shares, const toml::source_region& place) {
    const auto n = content_.size();
    if (n_shares == 0) {
      for (auto& server : content_.servers) server.arrival_share = 1.0 / static_cast<double>(n);
      return;
    }
    if (n_shares != n)
      refuse(errc::malformed, place,
             fmt::format("found arrival_share for {} of {} servers, expected it for all or for "
                         "none; add the others "
                         "(0 is allowed) or remove these",
                         n_shares, n));
    double sum = 0;
    for (const auto& server : content_.servers) sum += server.arrival_share;
    if (!(std::abs(sum - 1) <= share_tolerance))
      refuse(
          errc::out_of_range, place,
          fmt::format(
              "found arrival_share that sums to {}, expected 1 (within {}); divide each by the sum",
              sum, share_tolerance));
  }

  static link_spec read_link(const section& link, std::string_view bandwidth_key,
                             std::string_view latency_key) {
    return {link.whole_units(bandwidth_key, bandwidth_gbps),
            static_cast<std::int64_t>(link.whole_units(latency_key, latency_ms))};
  }

  std::size_t endpoint(const section& link, std::string_view key) const {
    const auto name = link.string(key);
    const auto found = server_index_.find(name);
    if (found == server_index_.end())
      refuse(errc::mismatch, link.place(key),
             fmt::format("found {} = \"{}\", expected the name of a server; servers are {}", key,
                         name, fmt::join(server_names(), ", ")));
    return found->second;
  }

  std::vector<std::string> server_names() const {
    std::vector<std::string> names;
    for (const auto& server : content_.servers) names.push_back(server.name);
    return names;
  }

  void read_network() {
    const auto n = content_.size();
    content_.links.assign(n * n, {});
    link_places_.assign(n * n, std::nullopt);
    if (n == 1 && top_.find("network") == nullptr) return;
    const section network(top_.table("network"), "network",
                          {"default_bandwidth_gbps", "default_latency_ms", "links"});
    if (network.find("links") != nullptr) read_links(network);
    const bool has_default = network.find("default_bandwidth_gbps") != nullptr ||
                             network.find("default_latency_ms") != nullptr;
    std::optional<link_spec> otherwise;
    if (has_default) otherwise = read_link(network, "default_bandwidth_gbps", "default_latency_ms");
    for (std::size_t from = 0; from < n; ++from) {
      for (std::size_t to = 0; to < n; ++to) {
        if (from == to || link_places_[from * n + to]) continue;
        if (!otherwise)
          refuse(errc::malformed, network.place(),
                 fmt::format(
                     "found no link from '{}' to '{}', expected one for every pair; add it, or add "
                     "default_bandwidth_gbps and default_latency_ms",
                     content_.servers[from].name, content_.servers[to].name));
        content_.links[from * n + to] = *otherwise;
        link_places_[from * n + to] = network.find("default_latency_ms")->source();
      }
    }
  }

  void read_links(const section& network) {
    const auto n = content_.size();
    for (const auto& item : network.array_of_tables("links")) {
      const section link(*item.as_table(), "a link",
                         {"from", "to", "bandwidth_gbps", "latency_ms", "one_way"});
      const auto from = endpoint(link, "from");
      const auto to = endpoint(link, "to");
      if (from == to)
        refuse(errc::malformed, link.place("to"),
               fmt::format("found a link from '{}' to itself, expected two servers; remove it",
                           content_.servers[from].name));
      const auto spec = read_link(link, "bandwidth_gbps", "latency_ms");
      set_link(from, to, spec, link.place());
      if (!link.boolean("one_way", false)) set_link(to, from, spec, link.place());
    }
    ORDERMOE_CHECK(link_places_.size() == n * n, "links were placed outside the matrix");
  }

  void set_link(std::size_t from, std::size_t to, const link_spec& spec,
                const toml::source_region& place) {
    const auto slot = from * content_.size() + to;
    if (link_places_[slot])
      refuse(errc::malformed, place,
             fmt::format("found a second link from '{}' to '{}' (the first is at {}), expected "
                         "one; a link is for both "
                         "directions unless it says one_way = true; remove one",
                         content_.servers[from].name, content_.servers[to].name,
                         locate(*link_places_[slot])));
    content_.links[slot] = spec;
    link_places_[slot] = place;
  }

  void check_triangles() const {
    const auto n = content_.size();
    const auto latency = [&](std::size_t i, std::size_t j) {
      return content_.links[i * n + j].latency_ns;
    };
    for (std::size_t from = 0; from < n; ++from)
      for (std::size_t to = 0; to < n; ++to)
        for (std::size_t relay = 0; relay < n; ++relay) {
          if (from == to || from == relay || to == relay) continue;
          const auto relayed = latency(from, relay) + latency(relay, to);
          if (latency(from, to) <= relayed) continue;
          refuse(
              errc::out_of_range, *link_places_[from * n + to],
              fmt::format(
                  "found a latency of {} ms from '{}' to '{}', expected at most the {} ms over "
                  "'{}' "
                  "({} ms + {} ms): no relay may be faster than the direct path; lower it to that",
                  milliseconds(latency(from, to)), content_.servers[from].name,
                  content_.servers[to].name, milliseconds(relayed), content_.servers[relay].name,
                  milliseconds(latency(from, relay)), milliseconds(latency(relay, to))));
        }
  }

  static double milliseconds(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

  section top_;
  cluster content_;
  std::map<std::string, std::size_t> server_index_;
  std::vector<toml::source_region> server_places_;
  std::vector<std::optional<toml::source_region>> link_places_;
};

/// The shortest decimal that reads back, in a form that TOML takes for a number.
std::string decimal(double value) {
  auto text = fmt::format("{}", value);
  const auto exponent = text.find('e');
  if (text.find('.') == std::string::npos && exponent == std::string::npos) text += ".0";
  return text;
}

/// A whole number of the program's units as a decimal in the file's unit; whole_units gives the
/// same number back.
std::string in_units(double whole, const quantity& unit) {
  return decimal(whole / unit.scale);
}

void write_link(std::string& text, const cluster& content, std::size_t from, std::size_t to,
                bool one_way) {
  const auto& link = content.link(server_id{from}, server_id{to});
  text += fmt::format("  {{from = \"{}\", to = \"{}\", bandwidth_gbps = {}, latency_ms = {}{}}},\n",
                      content.servers[from].name, content.servers[to].name,
                      in_units(link.bandwidth_bytes_per_s, bandwidth_gbps),
                      in_units(static_cast<double>(link.latency_ns), latency_ms),
                      one_way ? ", one_way = true" : "");
}

}  // namespace

result<cluster> parse_cluster(const std::string& toml_text, const std::string& place) {
  return read_toml<cluster>(toml_text, place, "config/README.md",
                            [](const toml::table& file) { return cluster_reader(file).read(); });
}

result<cluster> read_cluster(const std::filesystem::path& path) {
  const auto text = read_file(path, max_file_bytes);
  if (!text) return text.error();
  return parse_cluster(*text, path.string());
}

std::string cluster_toml(const cluster& content) {
  const auto n = content.size();
  ORDERMOE_CHECK(content.links.size() == n * n,
                 "a cluster without a link for every pair was written");
  std::string text = fmt::format("version = {}\nname = \"{}\"\n", format_version, content.name);
  const bool fits =
      content.seed <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const auto quote = fits ? "" : "\"";
  text += fmt::format("seed = {}{}{}\n", quote, content.seed, quote);
  for (const auto& site : content.sites) {
    text += fmt::format("\n[[sites]]\nname = \"{}\"\n", site.name);
    if (site.uplink_bytes_per_s > 0)
      text += fmt::format("uplink_gbps = {}\n", in_units(site.uplink_bytes_per_s, bandwidth_gbps));
  }
  for (const auto& server : content.servers) {
    text += fmt::format(
        "\n[[servers]]\nname = \"{}\"\ntflops = {}\nmemory_bandwidth_gb_per_s = {}\nmemory_gb = "
        "{}\nkv_gb = {}\n"
        "arrival_share = {}\n",
        server.name, in_units(server.flops_per_s, tflops),
        in_units(server.memory_bandwidth_bytes_per_s, memory_bandwidth_gb_per_s),
        in_units(static_cast<double>(server.memory_bytes), memory_gb),
        in_units(static_cast<double>(server.kv_bytes), memory_gb), decimal(server.arrival_share));
    if (server.expert_precision != precision::stored)
      text += fmt::format("expert_precision = \"{}\"\n", to_string(server.expert_precision));
    if (server.host_bandwidth_bytes_per_s != default_host_bandwidth_bytes_per_s)
      text += fmt::format("host_bandwidth_gb_per_s = {}\n",
                          in_units(server.host_bandwidth_bytes_per_s, host_bandwidth_gb_per_s));
    if (server.device != kernels_device) text += fmt::format("device = \"{}\"\n", server.device);
    if (server.uplink_bytes_per_s > 0)
      text +=
          fmt::format("uplink_gbps = {}\n", in_units(server.uplink_bytes_per_s, bandwidth_gbps));
    if (!server.site.empty()) text += fmt::format("site = \"{}\"\n", server.site);
  }
  if (n == 1) return text;
  text += "\n[network]\nlinks = [\n";
  const auto same = [](const link_spec& a, const link_spec& b) {
    return a.bandwidth_bytes_per_s == b.bandwidth_bytes_per_s && a.latency_ns == b.latency_ns;
  };
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      const bool symmetric =
          same(content.link(server_id{i}, server_id{j}), content.link(server_id{j}, server_id{i}));
      write_link(text, content, i, j, !symmetric);
      if (!symmetric) write_link(text, content, j, i, true);
    }
  }
  text += "]\n";
  return text;
}

}  // namespace ordermoe
