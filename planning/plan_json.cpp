#include <array>
#include <bit>

#include "config/files.hpp"
#include "planning/json_text.hpp"
#include "planning/plan.hpp"

namespace ordermoe::planning {

namespace {

using nlohmann::ordered_json;
using view = json_document::view;

constexpr const char* format_name = "ordermoe-plan";
constexpr std::uint64_t format_version = 1;

ordered_json grouping_json(const layer_grouping& grouping) {
  ordered_json content;
  content["threshold"] = grouping.threshold;
  auto groups = ordered_json::array();
  for (const auto& group : grouping.groups) {
    ordered_json entry;
    entry["dominant"] = group.dominant;
    entry["members"] = group.members;
    groups.push_back(std::move(entry));
  }
  content["groups"] = std::move(groups);
  content["group_of"] = grouping.group_of;
  content["representativeness"] = grouping.representativeness;
  content["importance"] = grouping.importance;
  return content;
}

layer_grouping grouping_of(const view& content) {
  layer_grouping grouping;
  grouping.threshold = content["threshold"].number();
  const auto groups = content["groups"];
  for (std::size_t g = 0; g < groups.size(); ++g)
    grouping.groups.push_back({static_cast<std::uint32_t>(groups[g]["dominant"].count(UINT32_MAX)),
                               groups[g]["members"].indices()});
  grouping.group_of = content["group_of"].indices();
  grouping.representativeness = content["representativeness"].numbers();
  grouping.importance = content["importance"].numbers();
  return grouping;
}

placement_reason reason_of(const view& content) {
  const auto name = content.text();
  for (const auto reason :
       {placement_reason::mandatory, placement_reason::waiting_list, placement_reason::repair,
        placement_reason::replica, placement_reason::min_copies, placement_reason::layer_shard,
        placement_reason::search})
    if (name == to_string(reason)) return reason;
  content.fail(errc::malformed, "a reason such as \"mandatory\" or \"replica\"");
  return {};
}

ordered_json servers_of(server_mask mask) {
  auto servers = ordered_json::array();
  for (; mask != 0; mask &= mask - 1) servers.push_back(std::countr_zero(mask));
  return servers;
}

server_mask mask_of(const view& servers) {
  server_mask mask = 0;
  for (std::size_t i = 0; i < servers.size(); ++i) mask |= server_mask{1} << servers[i].count(63);
  return mask;
}

placed_expert placed_of(const view& entry) {
  placed_expert placed;
  placed.server = server_id{entry["server"].count(UINT32_MAX)};
  placed.layer = layer_id{entry["layer"].count(UINT32_MAX)};
  placed.expert = expert_id{entry["expert"].count(UINT32_MAX)};
  placed.reason = reason_of(entry["reason"]);
  placed.score = entry["score"].number();
  return placed;
}

}  // namespace

std::string plan_json(const plan& content) {
  ordered_json document;
  document["format"] = format_name;
  document["version"] = format_version;
  document["strategy"] = content.strategy;
  document["epoch"] = content.epoch;
  document["n_servers"] = content.n_servers;
  document["n_layers"] = content.n_layers;
  document["n_experts"] = content.n_experts;
  document["estimated_token_ns"] = content.estimated_token_ns;
  document["expert_bytes_used"] = content.expert_bytes_used;
  document["expert_bytes_limit"] = content.expert_bytes_limit;
  auto residence = ordered_json::array();
  for (const auto& access : content.residence) {
    auto layers = ordered_json::array();
    for (const auto mask : access.layers) layers.push_back(servers_of(mask));
    residence.push_back(std::move(layers));
  }
  document["residence"] = std::move(residence);
  auto experts = ordered_json::array();
  for (const auto& placed : content.experts) {
    ordered_json entry;
    entry["server"] = placed.server.index();
    entry["layer"] = placed.layer.index();
    entry["expert"] = placed.expert.index();
    entry["reason"] = to_string(placed.reason);
    entry["score"] = placed.score;
    experts.push_back(std::move(entry));
  }
  document["experts"] = std::move(experts);
  auto grouping = ordered_json::array();
  for (const auto& layer : content.grouping) grouping.push_back(grouping_json(layer));
  document["grouping"] = std::move(grouping);
  return json_text(document);
}

result<plan> parse_plan(const std::string& json, const std::string& place) {
  auto document = json_document::parse(json, place, format_name, format_version);
  if (!document) return document.error();
  const auto root = document->root();
  plan content;
  content.strategy = root["strategy"].text();
  content.epoch = root["epoch"].count();
  content.n_servers = root["n_servers"].count();
  content.n_layers = root["n_layers"].count();
  content.n_experts = root["n_experts"].count();
  content.estimated_token_ns = root["estimated_token_ns"].number();
  content.expert_bytes_used = root["expert_bytes_used"].integers();
  content.expert_bytes_limit = root["expert_bytes_limit"].integers();
  const auto residence = root["residence"];
  for (std::size_t a = 0; a < residence.size(); ++a) {
    content.residence.emplace_back();
    for (std::size_t l = 0; l < residence[a].size(); ++l)
      content.residence[a].layers.push_back(mask_of(residence[a][l]));
  }
  const auto experts = root["experts"];
  for (std::size_t i = 0; i < experts.size(); ++i) content.experts.push_back(placed_of(experts[i]));
  const auto grouping = root["grouping"];
  for (std::size_t l = 0; l < grouping.size(); ++l)
    content.grouping.push_back(grouping_of(grouping[l]));
  if (document->problem()) return *document->problem();
  if (auto checked = validate(content); !checked) return at(place, checked.error());
  return content;
}

result<plan> read_plan(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  return parse_plan(*text, path.string());
}

}  // namespace ordermoe::planning
