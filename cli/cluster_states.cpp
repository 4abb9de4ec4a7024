#include "cli/cluster_states.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>

#include "actors/cluster/client.hpp"
#include "cli/cluster_commands.hpp"
#include "cli/connection.hpp"
#include "config/json_text.hpp"
#include "setup/channel.hpp"
#include "setup/node_setup.hpp"

namespace ordermoe::cli {

std::string expiry_warning(const std::string& node, std::int64_t left_s) {
  return fmt::format(
      "{}: its certificate expires in {} days; make another with `ordermoe cert renew {}`", node,
      left_s / 86'400, node);
}

namespace {

/// A node is up when it admits requests, but for being drained, and is connected to every other member.
bool is_up(const nlohmann::json& status) {
  return status.value("admitting", false) &&
         std::ranges::all_of(status.at("peers"), [](const nlohmann::json& peer) {
           return peer.value("up", false) || !peer.value("member", true);
         });
}

bool is_connected_to(const nlohmann::json& status, const std::string& name) {
  return std::ranges::any_of(status.at("peers"), [&](const nlohmann::json& peer) {
    return peer.value("name", "") == name && peer.value("up", false);
  });
}

const char* told_of(const node_state& state) {
  return state.serves ? "yes" : state.drained ? "drained" : "no";
}

void print_rehearsal(const std::vector<node_state>& states) {
  std::uint64_t batches = 0, exceeded = 0;
  double charged_ns = 0, exceeded_ns = 0, late_ns = 0, dilation = 0;
  for (const auto& each : states) {
    if (!each.status.is_object() || !each.status.contains("rehearsal")) continue;
    const auto& told = each.status["rehearsal"];
    dilation = told.value("dilation", 1.0);
    batches += told.value("batches", std::uint64_t{0});
    exceeded += told.value("exceeded", std::uint64_t{0});
    charged_ns += told.value("charged_ns", 0.0);
    exceeded_ns += told.value("exceeded_ns", 0.0);
    late_ns += told.value("late_ns", 0.0);
  }
  if (dilation == 0) return;
  const auto share = [&](double part) { return charged_ns > 0 ? 100 * part / charged_ns : 0.0; };
  fmt::print(
      "rehearsal at dilation {:g}: times are what the cost profile charges. Of {} batches {} took "
      "longer: the "
      "devices' time is {:.1f} % more than charged, and {:.1f} % by waking late\n",
      dilation, batches, exceeded, share(exceeded_ns), share(late_ns));
}

/// As any of them has it: all go by one cluster file.
void print_mixed_devices(const std::vector<node_state>& states) {
  for (const auto& each : states) {
    const auto told =
        each.status.is_object() ? each.status.value("mixed_devices", "") : std::string();
    if (told.empty()) continue;
    fmt::print("{}\n", told);
    return;
  }
}

/// What each node found of the links to its peers.
void print_links(const std::vector<node_state>& states) {
  fmt::print("\n{:<12} {:<12} {:>10} {:>10} {:>10} {:>12}\n", "from", "to", "rtt ms", "Mbit/s",
             "frames", "MB sent");
  for (const auto& each : states) {
    if (each.status.is_null()) continue;
    for (const auto& peer : each.status.at("peers")) {
      const auto round_trip_ns = peer.value("round_trip_ns", std::int64_t{-1});
      const auto rate = peer.value("bytes_per_s", 0.0);
      const auto& links = each.status.at("links");
      const auto sent = std::ranges::find_if(links, [&](const nlohmann::json& link) {
        return link.value("to", -1) == peer.value("server", -2);
      });
      fmt::print("{:<12} {:<12} {:>10} {:>10} {:>10} {:>12.2f}\n", each.name,
                 peer.value("name", ""),
                 peer.value("up", false) && round_trip_ns >= 0
                     ? fmt::format("{:.2f}", static_cast<double>(round_trip_ns) * 1e-6)
                     : "-",
                 rate > 0 ? fmt::format("{:.0f}", rate * 8e-6) : "-",
                 sent == links.end() ? 0 : sent->value("frames", std::int64_t{0}),
                 static_cast<double>(peer.value("written_bytes", std::int64_t{0})) * 1e-6);
    }
  }
}

void warn_of_certificates(const std::vector<node_state>& states) {
  for (const auto& each : states) {
    if (!each.status.is_object() || !each.status.contains("certificate")) continue;
    const auto& told = each.status["certificate"];
    if (told.value("expires_soon", false))
      fmt::print(stderr, "ordermoe: warning: {}\n",
                 expiry_warning(each.name, told.value("days_left", std::int64_t{0}) * 86'400));
    if (told.value("revoked", false))
      fmt::print(stderr,
                 "ordermoe: warning: {0}: its certificate is revoked; where the node is to stay, "
                 "make another with "
                 "`ordermoe cert renew {0}`\n",
                 each.name);
  }
}

}  // namespace

result<std::vector<node_file>> members_of(const setup::cluster_folder& folder) {
  auto files = setup::read_cluster_folder(folder);
  if (!files) return files;
  const auto absent = setup::absent_members(*files);
  if (!absent) return absent.error();
  std::erase_if(*files, [&](const node_file& each) { return absent->contains(each.name); });
  return files;
}

node_state ask(const node_file& file, std::shared_ptr<const net::tls_identity> identity) {
  node_state state;
  state.name = file.name;
  state.address = file.listen.empty() ? "" : file.listen.front();
  const auto at = net::parse_address(state.address);
  if (!at) return state;  // judge_by_others()
  auto client = actors::cluster_client::connect(std::move(identity), *at, std::chrono::seconds(2),
                                                setup::connections_of(file.channel));
  const auto status =
      client ? (*client)->status(std::chrono::seconds(5)) : result<std::string>(client.error());
  if (!status) {
    state.problem = explained(status.error()).message;
    return state;
  }
  state.status = nlohmann::json::parse(*status, nullptr, false);
  if (!state.status.is_object() || !is_up(state.status)) return state;
  state.drained = state.status.value("drained", false);
  state.serves = !state.drained;
  return state;
}

void judge_by_others(std::vector<node_state>& states) {
  std::vector<const nlohmann::json*> others;
  for (const auto& each : states)
    if (each.status.is_object()) others.push_back(&each.status);
  for (auto& each : states) {
    if (!each.address.empty()) continue;
    const auto n = std::ranges::count_if(
        others, [&](const auto* status) { return is_connected_to(*status, each.name); });
    each.serves = n > 0 && static_cast<std::size_t>(n) == others.size();
    each.problem =
        fmt::format("it listens nowhere; {} of {} others are connected", n, others.size());
  }
}

result<void> leave_out_absent(const std::vector<node_file>& files,
                              std::vector<node_state>& states) {
  std::set<std::string> absent;
  const auto tells = [](const node_state& each) { return each.is_up() && each.status.is_object(); };
  const bool any = std::ranges::any_of(states, tells);
  for (const auto& each : states)
    if (tells(each))
      for (const auto& peer : each.status.at("peers"))
        if (!peer.value("member", true)) absent.insert(peer.value("name", ""));
  if (!any) {
    auto known = setup::absent_members(files);
    if (!known) return known.error();
    absent = std::move(*known);
  }
  std::erase_if(states, [&](const node_state& each) { return absent.contains(each.name); });
  return {};
}

void print_states(const std::vector<node_state>& states, bool json) {
  if (json) {
    auto all = nlohmann::ordered_json::array();
    for (const auto& each : states)
      all.push_back({{"name", each.name},
                     {"address", each.address},
                     {"serves", each.serves},
                     {"drained", each.drained},
                     {"problem", each.problem},
                     {"status", each.status}});
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"nodes", all}}, 2));
    return;
  }
  fmt::print("{:<12} {:<22} {:<8} {:>6} {:>6} {:>9} {:>9}\n", "node", "address", "serves", "boot",
             "peers", "requests", "answered");
  for (const auto& each : states) {
    if (each.status.is_null()) {
      fmt::print("{:<12} {:<22} {:<8} {}\n", each.name, each.address.empty() ? "-" : each.address,
                 told_of(each), each.problem);
      continue;
    }
    const auto& peers = each.status.at("peers");
    const auto up = std::ranges::count_if(
        peers, [](const nlohmann::json& peer) { return peer.value("up", false); });
    const auto others = std::ranges::count_if(
        peers, [](const nlohmann::json& peer) { return peer.value("member", true); });
    fmt::print("{:<12} {:<22} {:<8} {:>6} {:>6} {:>9} {:>9}\n", each.name, each.address,
               told_of(each), each.status.value("boot", 0), fmt::format("{}/{}", up, others),
               each.status.at("requests").size(), each.status.value("ended_requests", 0));
  }
  print_links(states);
  print_rehearsal(states);
  print_mixed_devices(states);
  warn_of_certificates(states);
}

}  // namespace ordermoe::cli
