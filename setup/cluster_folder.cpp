#include "setup/cluster_folder.hpp"

#include <fmt/format.h>

#include "actors/admin/member_roll.hpp"
#include "config/files.hpp"
#include "net/identity/certificates.hpp"

namespace ordermoe::setup {

namespace {

namespace fs = std::filesystem;

/// Certificates of a year, or of the authority's ten.
constexpr std::int64_t authority_days = 3650, certificate_days = 3650;

/// Before anything is made: whether certificates can have these names.
result<void> check_names(const cluster& servers) {
  const std::string place = "the cluster file";
  if (auto good = net::check_name("name", servers.name); !good) return at(place, good.error());
  for (const auto& server : servers.servers) {
    if (auto good = net::check_name("name of a server", server.name); !good)
      return at(place, good.error());
    if (server.name == console_name || server.name == "ca")
      return error{errc::usage,
                   fmt::format("{}: name of a server: found '{}', expected another: a certificate "
                               "that is no server's has it; rename the server",
                               place, server.name)};
  }
  return {};
}

result<void> issue_all(const cluster_folder& folder, const cluster& servers) {
  const auto certificates = folder.certificates();
  if (auto made = net::make_authority(certificates, servers.name, authority_days); !made)
    return made;
  net::certificate_request wanted;
  wanted.days = certificate_days;
  for (const auto& server : servers.servers) {
    wanted.name = server.name;
    if (auto issued = net::issue(certificates, wanted); !issued) return issued;
  }
  wanted.name = console_name;
  wanted.of = net::role::admin;
  return net::issue(certificates, wanted);
}

node_file node_of(const cluster_folder& folder, const cluster_folder_contents& contents,
                  std::size_t m) {
  const auto& servers = contents.servers.servers;
  const auto& name = servers[m].name;
  // Seen from the node's own folder, so that the whole may be moved.
  const fs::path up = fs::path("..") / "..";
  node_file file;
  file.name = name;
  file.cluster = up / "cluster.toml";
  file.plan = up / "plan.json";
  file.profile = up / "profile.json";
  file.model = fs::absolute(contents.model);
  file.state = "state";
  if (contents.trace) file.trace = "trace.jsonl";
  file.authority = up / "certificates" / "ca.crt";
  file.certificate = up / "certificates" / (name + ".crt");
  file.key = up / "certificates" / (name + ".key");
  if (!contents.addresses[m].empty()) file.listen = {contents.addresses[m]};
  file.costs = contents.costs;
  file.kv_precision = contents.kv_precision;
  file.channel = contents.channel;
  file.threads = contents.threads;
  file.most_positions = contents.most_positions;
  file.load_period_ms = contents.load_period_ms;
  file.busy_poll_us = contents.busy_poll_us;
  file.measures_links = contents.measures_links;
  file.rehearsed = contents.rehearsed;
  file.log = contents.log;
  for (std::size_t other = 0; other < servers.size(); ++other)
    if (other != m)
      file.members.push_back(
          {servers[other].name,
           contents.dialled.empty() ? contents.addresses[other] : contents.dialled[m][other],
           contents.spares.contains(servers[other].name)});
  return file;
}

}  // namespace

result<std::shared_ptr<const net::tls_identity>> console_identity(const cluster_folder& folder) {
  const auto certificates = folder.certificates();
  const std::string name = console_name;
  return net::tls_identity::load(certificates / "ca.crt", certificates / (name + ".crt"),
                                 certificates / (name + ".key"));
}

result<void> write_cluster_folder(const cluster_folder& folder,
                                  const cluster_folder_contents& contents) {
  std::error_code failed;
  if (fs::exists(folder.cluster(), failed))
    return error{errc::usage, fmt::format("{}: there is a cluster already; end it with `ordermoe "
                                          "cluster down --dir {}` and remove the folder, or choose "
                                          "another",
                                          folder.path.string(), folder.path.string())};
  if (auto known = check_names(contents.servers); !known) return known;
  fs::create_directories(folder.path, failed);
  if (failed)
    return error{errc::io, fmt::format("{}: cannot be made: {}; choose another folder",
                                       folder.path.string(), failed.message())};
  if (auto issued = issue_all(folder, contents.servers); !issued) return issued;
  if (auto written = write_file(folder.plan(), contents.plan); !written) return written;
  if (auto written = write_file(folder.profile(), contents.profile); !written) return written;
  for (std::size_t m = 0; m < contents.servers.size(); ++m) {
    const auto& name = contents.servers.servers[m].name;
    fs::create_directories(folder.node(name), failed);
    if (auto written = write_file(folder.config(name), node_toml(node_of(folder, contents, m)));
        !written)
      return written;
  }
  // The last: with it the folder is a cluster's.
  return write_file(folder.cluster(), cluster_toml(contents.servers));
}

result<std::set<std::string>> absent_members(const std::vector<node_file>& files) {
  std::set<std::string> spare;
  for (const auto& file : files)
    for (const auto& member : file.members)
      if (member.spare) spare.insert(member.name);
  const auto all = actors::member_roll::open({}, spare);
  if (!all) return all.error();
  for (const auto& file : files) {
    const auto heard = actors::member_roll::open(file.state / members_file, spare);
    if (!heard) return heard.error();
    (*all)->take((*heard)->now());
  }
  return (*all)->absent();
}

result<std::vector<node_file>> read_cluster_folder(const cluster_folder& folder) {
  std::error_code failed;
  if (!fs::exists(folder.cluster(), failed))
    return error{errc::not_found, fmt::format("{}: no cluster is there; start one with `ordermoe "
                                              "cluster up --dir {}`",
                                              folder.path.string(), folder.path.string())};
  const auto servers = read_cluster(folder.cluster());
  if (!servers) return servers.error();
  std::vector<node_file> files;
  for (const auto& server : servers->servers) {
    auto file = read_node_file(folder.config(server.name));
    if (!file) return file.error();
    files.push_back(std::move(*file));
  }
  return files;
}

}  // namespace ordermoe::setup
