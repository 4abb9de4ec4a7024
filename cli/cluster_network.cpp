#include "cli/cluster_network.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "cli/cluster_processes.hpp"
#include "config/files.hpp"

namespace ordermoe::cli {

namespace {

namespace fs = std::filesystem;

constexpr int node_port = 7400, first_relay_port = 7500;

/// Runs a program; what it said where it failed.
result<void> run(const std::vector<std::string>& command) {
  std::string line;
  for (const auto& word : command) line += (line.empty() ? "" : " ") + word;
  // Before the line, which may be a pipeline: behind it, only its last command would read nothing.
  auto* out = ::popen(("exec < /dev/null 2>&1; " + line).c_str(), "r");
  if (out == nullptr) return error{errc::failed, fmt::format("`{}` cannot be run", line)};
  std::string said;
  char text[512];
  while (std::fgets(text, sizeof(text), out) != nullptr) said += text;
  if (::pclose(out) == 0) return {};
  return error{errc::failed, fmt::format("`{}` failed: {}", line, said)};
}

/// What is not there any more need not be taken away.
void try_run(const std::vector<std::string>& command) {
  [[maybe_unused]] const auto done = run(command);
}

/// The network goes before what nodes compute, where the system lets it: it would be slower the busier they are.
std::vector<std::string> precedence() {
  if (run({"chrt", "--fifo", "1", "true"})) return {"chrt", "--fifo", "1"};
  return {};
}

result<void> run_all(const std::vector<std::vector<std::string>>& commands) {
  for (const auto& command : commands)
    if (auto done = run(command); !done) return done;
  return {};
}

}  // namespace

cluster_network::cluster_network(setup::cluster_folder folder) : folder_(std::move(folder)) {
  const auto digest = sha256_hex(fs::absolute(folder_.path).lexically_normal().string());
  tag_ = "om" + digest.substr(0, 6);
  net_ = static_cast<unsigned>(std::stoul(digest.substr(0, 2), nullptr, 16));
}

std::string cluster_network::namespace_of(std::size_t m) const {
  return fmt::format("{}-{}", tag_, m);
}

std::string cluster_network::host_of(std::size_t m) const {
  return fmt::format("10.77.{}.{}", net_, m + 1);
}

bool cluster_network::is_there() const {
  std::error_code ignored;
  return fs::exists(list(), ignored);
}

void cluster_network::address(setup::cluster_folder_contents& contents) const {
  const auto n = contents.servers.size();
  contents.addresses.clear();
  for (std::size_t m = 0; m < n; ++m)
    contents.addresses.push_back(fmt::format("{}:{}", host_of(m), node_port));
  // Whoever dials, dials its own relay.
  contents.dialled.assign(n, {});
  for (std::size_t m = 0; m < n; ++m)
    for (std::size_t other = 0; other < n; ++other)
      contents.dialled[m].push_back(fmt::format("127.0.0.1:{}", first_relay_port + other));
}

result<void> cluster_network::make(const cluster& servers,
                                   const std::optional<rehearsal>& rehearsed) const {
  if (::geteuid() != 0)
    return error{errc::usage,
                 "--netns: makes network namespaces, which needs root; run it as root"};
  if (std::ranges::any_of(servers.sites,
                          [](const auto& each) { return each.uplink_bytes_per_s > 0; }))
    return error{errc::unsupported,
                 "--netns: the cluster file gives a site an uplink, which virtual time has and "
                 "network namespaces have not; leave uplink_gbps of [[sites]] out"};
  if (is_there()) remove();
  const auto how = rehearsed.value_or(rehearsal{});
  const auto faster = how.stretch / how.dilation;
  const auto n = servers.size();
  const auto bridge = tag_ + "b";
  std::string names;
  for (std::size_t m = 0; m < n; ++m)
    names += fmt::format("{} {}\n", servers.servers[m].name, namespace_of(m));
  std::error_code ignored;
  fs::create_directories(folder_.path, ignored);
  if (auto written = write_file(list(), names); !written) return written;
  if (auto made =
          run_all({{"ip", "link", "add", bridge, "type", "bridge"},
                   {"ip", "addr", "add", fmt::format("10.77.{}.254/24", net_), "dev", bridge},
                   {"ip", "link", "set", bridge, "up"}});
      !made)
    return made;
  for (std::size_t m = 0; m < n; ++m) {
    const auto space = namespace_of(m);
    const auto near = fmt::format("{}v{}", tag_, m);
    if (auto made = run_all(
            {{"ip", "netns", "add", space},
             {"ip", "link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", space},
             {"ip", "link", "set", near, "master", bridge, "up"},
             {"ip", "-n", space, "addr", "add", host_of(m) + "/24", "dev", "eth0"},
             {"ip", "-n", space, "link", "set", "lo", "up"},
             {"ip", "-n", space, "link", "set", "eth0", "up"},
             // What goes to nobody in the cluster file is not held back.
             {"tc", "-n", space, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb",
              "default", "ffff"}});
        !made)
      return made;
    if (auto made = hold_to_rates(servers, m, near, faster); !made) return made;
  }
  return {};
}

result<void> cluster_network::hold_to_rates(const cluster& servers, std::size_t m,
                                            const std::string& near, double faster) const {
  const auto n = servers.size();
  const auto space = namespace_of(m);
  const auto in_bits = [&](double bytes_per_s) {
    return fmt::format("{:.0f}bit", bytes_per_s * 8 * faster);
  };
  const auto add_class = [&](const char* parent, const std::string& id, double rate, double most) {
    return std::vector<std::string>{
        "tc",      "-n", space, "class", "add",         "dev",  "eth0",        "parent",  parent,
        "classid", id,   "htb", "rate",  in_bits(rate), "ceil", in_bits(most), "quantum", "60000"};
  };
  const auto uplink = servers.servers[m].uplink_bytes_per_s;
  constexpr const char* top = "1:";
  constexpr const char* shared = "1:fffe";
  if (uplink > 0) {
    // What comes in is held back where it leaves the bridge, whoever sent it.
    if (auto made = run_all({add_class(top, shared, uplink, uplink),
                             {"tc", "qdisc", "add", "dev", near, "root", "tbf", "rate",
                              in_bits(uplink), "burst", "128kb", "latency", "10s"}});
        !made)
      return made;
  }
  for (std::size_t other = 0; other < n; ++other) {
    if (other == m) continue;
    const auto most = servers.link(server_id{m}, server_id{other}).bandwidth_bytes_per_s;
    // A class always has its own rate, whatever its parent's is: of an uplink each link has its share, and borrows the rest.
    const auto rate = uplink > 0 ? std::min(most, uplink / static_cast<double>(n - 1)) : most;
    const auto id = fmt::format("1:{:x}", other + 1);
    if (auto made =
            run_all({add_class(uplink > 0 ? shared : top, id, rate, most),
                     {"tc", "-n", space, "filter", "add", "dev", "eth0", "parent", top, "protocol",
                      "ip", "u32", "match", "ip", "dst", host_of(other), "flowid", id}});
        !made)
      return made;
  }
  return {};
}

result<void> cluster_network::start_relays(const cluster& servers,
                                           const std::optional<rehearsal>& rehearsed) const {
  const auto slower = rehearsed.value_or(rehearsal{}).dilation;
  const auto first = precedence();
  const auto n = servers.size();
  for (std::size_t m = 0; m < n; ++m)
    for (std::size_t other = 0; other < n; ++other) {
      const auto& name = servers.servers[m].name;
      const auto& peer = servers.servers[other].name;
      if (!(name < peer)) continue;
      const auto ms = [&](std::size_t from, std::size_t to) {
        return fmt::format(
            "{:.6f}", static_cast<double>(servers.link(server_id{from}, server_id{to}).latency_ns) *
                          1e-6 * slower);
      };
      // Commands come through a pipe that never ends.
      const auto commands = folder_.node(name) / fmt::format("relay-{}.in", peer);
      ::mkfifo(commands.c_str(), 0600);
      auto arguments = prefix(name);
      arguments.insert(arguments.end(), first.begin(), first.end());
      for (const auto& word :
           {own_program(), std::string("relay"), std::string("--listen"),
            fmt::format("127.0.0.1:{}", first_relay_port + other), std::string("--to"),
            fmt::format("{}:{}", host_of(other), node_port), std::string("--delay-ms"),
            ms(m, other), std::string("--back-delay-ms"), ms(other, m),
            std::string("--buffer-bytes"), std::string("67108864"), std::string("--allow-remote")})
        arguments.push_back(word);
      const auto pid = start_program(arguments, {commands, O_RDWR},
                                     folder_.node(name) / fmt::format("relay-{}.log", peer));
      if (!pid) return pid.error();
      if (auto written = write_file(folder_.node(name) / fmt::format("relay-{}.pid", peer),
                                    fmt::format("{}\n", *pid));
          !written)
        return written;
    }
  return {};
}

void cluster_network::remove() const {
  std::ifstream names(list());
  std::size_t n = 0;
  for (std::string name, space; names >> name >> space; ++n) {
    // Whatever still runs there.
    try_run({"ip", "netns", "pids", space, "|", "xargs", "-r", "kill"});
    try_run({"ip", "netns", "del", space});
    try_run({"ip", "link", "del", fmt::format("{}v{}", tag_, n)});
  }
  try_run({"ip", "link", "del", tag_ + "b"});
  std::error_code ignored;
  fs::remove(list(), ignored);
}

std::vector<std::string> cluster_network::prefix(const std::string& node) const {
  std::ifstream names(list());
  for (std::string name, space; names >> name >> space;)
    if (name == node) return {"ip", "netns", "exec", space};
  return {};
}

}  // namespace ordermoe::cli
