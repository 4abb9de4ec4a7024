#include <array>
#include <bit>

#include "config/files.hpp"
#include "config/json.hpp"
#include "planning/json_text.hpp"
#include "planning/plan.hpp"

namespace ordermoe::planning {

namespace {

using nlohmann::ordered_json;

constexpr const char* plan_format = "ordermoe-plan";
constexpr std::uint64_t plan_version = 1;

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

layer_grouping grouping_of(const json_value& content) {
  layer_grouping grouping;
  grouping.threshold = content.at("threshold").number();
  for (const auto& group : content.at("groups").items())
    grouping.groups.push_back(
        {static_cast<std::uint32_t>(group.at("dominant").count(0, UINT32_MAX)),
         group.at("members").indices(UINT32_MAX)});
  grouping.group_of = content.at("group_of").indices(UINT32_MAX);
  grouping.representativeness = content.at("representativeness").numbers();
  grouping.importance = content.at("importance").numbers();
  return grouping;
}

ordered_json servers_of(server_mask mask) {
  auto servers = ordered_json::array();
  for (; mask != 0; mask &= mask - 1) servers.push_back(std::countr_zero(mask));
  return servers;
}

server_mask mask_of(const json_value& servers) {
  server_mask mask = 0;
  for (const auto server : servers.indices(64)) mask |= server_bit(server);
  return mask;
}

placed_expert placed_of(const json_value& entry) {
  placed_expert placed;
  placed.server = server_id{entry.at("server").count(0, UINT32_MAX)};
  placed.layer = layer_id{entry.at("layer").count(0, UINT32_MAX)};
  placed.expert = expert_id{entry.at("expert").count(0, UINT32_MAX)};
  placed.reason = static_cast<placement_reason>(
      entry.at("reason").one_of({"mandatory", "waiting_list", "repair", "replica", "min_copies",
                                 "layer_shard", "search", "offload"}));
  placed.score = entry.at("score").number();
  return placed;
}

}  // namespace

std::string plan_json(const plan& content) {
  ordered_json document;
  document["format"] = plan_format;
  document["version"] = plan_version;
  document["strategy"] = content.strategy;
  document["epoch"] = content.epoch;
  document["n_servers"] = content.n_servers;
  document["n_layers"] = content.n_layers;
  document["n_experts"] = content.n_experts;
  document["estimated_token_ns"] = content.estimated_token_ns;
  document["expert_bytes_used"] = content.expert_bytes_used;
  document["expert_bytes_limit"] = content.expert_bytes_limit;
  if (!content.expert_precision.empty()) {
    auto names = ordered_json::array();
    for (const auto kept : content.expert_precision) names.push_back(to_string(kept));
    document["expert_precision"] = std::move(names);
  }
  auto residence = ordered_json::array();
  for (const auto& access : content.residence) {
    auto layers = ordered_json::array();
    for (const auto mask : access.layers) layers.push_back(servers_of(mask));
    residence.push_back(std::move(layers));
  }
  document["residence"] = std::move(residence);
  if (!content.pruned.empty()) {
    auto pruned = ordered_json::array();
    for (const auto& access : content.pruned) pruned.push_back(access.layers);
    document["pruned"] = std::move(pruned);
  }
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
  auto document = parse_versioned(json, place, plan_format, plan_version);
  if (!document) return document.error();
  (*document)->set_remedy("make the plan again");
  const auto root = (*document)->root();
  plan content;
  content.strategy = root.at("strategy").string();
  content.epoch = root.at("epoch").unsigned_integer();
  content.n_servers = root.at("n_servers").unsigned_integer();
  content.n_layers = root.at("n_layers").unsigned_integer();
  content.n_experts = root.at("n_experts").unsigned_integer();
  content.estimated_token_ns = root.at("estimated_token_ns").number();
  for (const auto& bytes : root.at("expert_bytes_used").items())
    content.expert_bytes_used.push_back(bytes.integer());
  for (const auto& bytes : root.at("expert_bytes_limit").items())
    content.expert_bytes_limit.push_back(bytes.integer());
  if (const auto names = root.find("expert_precision"))
    for (const auto& name : names->items()) {
      constexpr std::array kept{precision::stored, precision::int8, precision::int4};
      content.expert_precision.push_back(
          kept[name.one_of({to_string(kept[0]), to_string(kept[1]), to_string(kept[2])})]);
    }
  for (const auto& access : root.at("residence").items()) {
    auto& layers = content.residence.emplace_back().layers;
    for (const auto& servers : access.items()) layers.push_back(mask_of(servers));
  }
  if (const auto pruned = root.find("pruned"))
    for (const auto& access : pruned->items()) {
      auto& layers = content.pruned.emplace_back().layers;
      for (const auto& experts : access.items()) layers.push_back(experts.indices(UINT32_MAX));
    }
  for (const auto& entry : root.at("experts").items()) content.experts.push_back(placed_of(entry));
  for (const auto& layer : root.at("grouping").items())
    content.grouping.push_back(grouping_of(layer));
  if (auto read = (*document)->outcome(); !read) return read.error();
  if (auto checked = validate(content); !checked) return at(place, checked.error());
  return content;
}

result<plan> read_plan(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  return parse_plan(*text, path.string());
}

}  // namespace ordermoe::planning
