// Cluster files: TOML in, TOML out. The schema is in config/README.md.

#include <fmt/format.h>

#include <toml++/toml.h>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "config/cluster.hpp"
#include "config/files.hpp"

namespace ordermoe {

namespace {

constexpr std::size_t max_file_bytes = std::size_t{4} << 20;
constexpr std::int64_t format_version = 1;

/// Sums of shares written with a few decimals miss 1 by their rounding.
constexpr double share_tolerance = 1e-6;

struct range {
  double low = 0;
  double high = 0;
};

/// What a unit of the file is in units of the program, and what values make sense.
struct quantity {
  double scale = 1;
  range allowed;
};

constexpr quantity tflops{1e12, {1e-6, 5000}};
constexpr quantity memory_bandwidth_gb_per_s{1e9, {1e-6, 100'000}};
constexpr quantity memory_gb{1e9, {0, 100'000}};
constexpr quantity bandwidth_gbps{125e6, {1e-6, 10'000}};
constexpr quantity latency_ms{1e6, {0, 60'000}};

/// Ends the reading at the first error; caught in parse_cluster.
struct refusal {
  error reason;
};

std::string locate(const toml::source_region& region) {
  return fmt::format("{}:{}", region.begin.line, region.begin.column);
}

[[noreturn]] void refuse(errc code, const toml::source_region& region, std::string message) {
  throw refusal{{code, fmt::format("{}: {}", locate(region), message)}};
}

std::string type_name(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::none:
      return "nothing";
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "an array";
    case toml::node_type::string:
      return fmt::format("the string \"{}\"", **node.as_string());
    case toml::node_type::integer:
      return fmt::format("the integer {}", **node.as_integer());
    case toml::node_type::floating_point:
      return fmt::format("the number {}", **node.as_floating_point());
    case toml::node_type::boolean:
      return fmt::format("{}", **node.as_boolean());
    case toml::node_type::date:
    case toml::node_type::time:
    case toml::node_type::date_time:
      return "a date or time";
  }
  return "something else";
}

/// A table whose keys are all known, with typed access; `what` names it in messages ("server",
/// "link").
class section {
 public:
  section(const toml::table& table, std::string what, std::initializer_list<std::string_view> known)
      : table_(table), what_(std::move(what)) {
    for (const auto& [key, value] : table_) {
      bool found = false;
      for (const auto name : known) found = found || key.str() == name;
      if (!found)
        refuse(errc::malformed, key.source(),
               fmt::format("found the unknown key '{}' in {}, expected one of {}; remove it or "
                           "correct its name",
                           key.str(), what_, fmt::join(known, ", ")));
    }
  }

  const toml::node* find(std::string_view key) const { return table_.get(key); }
  const toml::source_region& place() const { return table_.source(); }
  const toml::source_region& place(std::string_view key) const { return get(key).source(); }

  const toml::node& get(std::string_view key) const {
    const auto* node = find(key);
    if (node == nullptr)
      refuse(errc::malformed, place(),
             fmt::format("found no '{}' in {}, expected it; add it", key, what_));
    return *node;
  }

  std::string string(std::string_view key) const {
    const auto& node = get(key);
    if (!node.is_string()) wrong_type(node, key, "a string");
    return **node.as_string();
  }

  /// Between 1 and 64 letters, digits, dots, dashes and underscores.
  std::string name(std::string_view key) const {
    auto text = string(key);
    const auto allowed = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '.' || c == '-' || c == '_';
    };
    bool valid = !text.empty() && text.size() <= 64;
    for (const char c : text) valid = valid && allowed(c);
    if (!valid)
      refuse(errc::out_of_range, place(key),
             fmt::format(
                 "found {} = \"{}\", expected 1 to 64 letters, digits, '.', '-' or '_'; rename it",
                 key, text));
    return text;
  }

  bool boolean(std::string_view key, bool otherwise) const {
    const auto* node = find(key);
    if (node == nullptr) return otherwise;
    if (!node->is_boolean()) wrong_type(*node, key, "true or false");
    return **node->as_boolean();
  }

  double number(std::string_view key, range allowed) const {
    const auto& node = get(key);
    double value = 0;
    if (const auto* whole = node.as_integer())
      value = static_cast<double>(**whole);
    else if (const auto* real = node.as_floating_point())
      value = **real;
    else
      wrong_type(node, key, "a number");
    // Written so that a NaN is refused.
    if (!(value >= allowed.low && value <= allowed.high))
      refuse(errc::out_of_range, node.source(),
             fmt::format("found {} = {}, expected a number from {} to {}; correct it", key, value,
                         allowed.low, allowed.high));
    return value;
  }

  /// A quantity in whole units of the program.
  double whole_units(std::string_view key, const quantity& unit) const {
    return std::round(number(key, unit.allowed) * unit.scale);
  }

  std::int64_t integer(std::string_view key, std::int64_t low, std::int64_t high) const {
    const auto& node = get(key);
    if (!node.is_integer()) wrong_type(node, key, "a whole number");
    const auto value = **node.as_integer();
    if (value < low || value > high)
      refuse(errc::out_of_range, node.source(),
             fmt::format("found {} = {}, expected {} to {}; correct it", key, value, low, high));
    return value;
  }

  /// 64 bits without sign: a whole number, or one in quotes where TOML's own integers end.
  std::uint64_t seed(std::string_view key) const {
    const auto& node = get(key);
    const auto expected = fmt::format("a whole number from 0 to {}, or in quotes one up to {}",
                                      std::numeric_limits<std::int64_t>::max(),
                                      std::numeric_limits<std::uint64_t>::max());
    if (const auto* whole = node.as_integer()) {
      if (**whole >= 0) return static_cast<std::uint64_t>(**whole);
      refuse(errc::out_of_range, node.source(),
             fmt::format("found {} = {}, expected {}; correct it", key, **whole, expected));
    }
    if (!node.is_string()) wrong_type(node, key, expected);
    const auto& text = **node.as_string();
    std::uint64_t value = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc{} || end != text.data() + text.size())
      refuse(errc::out_of_range, node.source(),
             fmt::format("found {} = \"{}\", expected a whole number from 0 to {}; correct it", key,
                         text, std::numeric_limits<std::uint64_t>::max()));
    return value;
  }

  const toml::table& table(std::string_view key) const {
    const auto& node = get(key);
    if (!node.is_table()) wrong_type(node, key, "a table");
    return *node.as_table();
  }

  const toml::array& array_of_tables(std::string_view key) const {
    const auto& node = get(key);
    if (!node.is_array()) wrong_type(node, key, "an array of tables");
    for (const auto& item : *node.as_array())
      if (!item.is_table()) wrong_type(item, key, "an array of tables");
    return *node.as_array();
  }

 private:
  [[noreturn]] void wrong_type(const toml::node& node, std::string_view key,
                               std::string_view expected) const {
    refuse(errc::malformed, node.source(),
           fmt::format("found {} for '{}' in {}, expected {}; correct it", type_name(node), key,
                       what_, expected));
  }

  const toml::table& table_;
  std::string what_;
};

class cluster_reader {
 public:
  explicit cluster_reader(const toml::table& file)
      : top_(file, "a cluster file", {"version", "name", "seed", "servers", "network"}) {}

  cluster read() {
    top_.integer("version", format_version, format_version);
    content_.name = top_.name("name");
    if (top_.find("seed") != nullptr) content_.seed = top_.seed("seed");
    read_servers();
    read_network();
    check_triangles();
    return std::move(content_);
  }

 private:
  void read_servers() {
    const auto& servers = top_.array_of_tables("servers");
    if (servers.empty() || servers.size() > max_servers)
      refuse(errc::out_of_range, servers.source(),
             fmt::format("found {} servers, expected 1 to {}; {}", servers.size(), max_servers,
                         servers.empty() ? "add a [[servers]] table" : "remove some"));
    std::size_t n_shares = 0;
    for (const auto& item : servers) {
      const section server(*item.as_table(), "a server",
                           {"name", "tflops", "memory_bandwidth_gb_per_s", "memory_gb", "kv_gb",
                            "arrival_share", "expert_precision"});
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
  try {
    const auto file = toml::parse(toml_text);
    return cluster_reader(file).read();
  } catch (const refusal& problem) {
    return error{problem.reason.code, fmt::format("{}:{}", place, problem.reason.message)};
  } catch (const toml::parse_error& problem) {
    return error{
        errc::malformed,
        fmt::format("{}:{}: found invalid TOML: {}; expected the schema of config/README.md; "
                    "correct the syntax",
                    place, locate(problem.source()), problem.description())};
  }
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
