#include <array>

#include "config/files.hpp"
#include "config/json.hpp"
#include "planning/json_text.hpp"
#include "planning/profile.hpp"

namespace ordermoe::planning {

namespace {

using nlohmann::ordered_json;

constexpr const char* profile_format = "ordermoe-profile";
constexpr std::uint64_t profile_version = 1;

ordered_json rows_of(const matrix& content) {
  auto rows = ordered_json::array();
  for (std::size_t r = 0; r < content.rows; ++r) {
    const auto first = content.values.begin() + static_cast<std::ptrdiff_t>(r * content.columns);
    rows.push_back(
        std::vector<double>(first, first + static_cast<std::ptrdiff_t>(content.columns)));
  }
  return rows;
}

matrix matrix_of(const json_value& content) {
  matrix read;
  const auto rows = content.items();
  read.rows = rows.size();
  for (const auto& row : rows) {
    const auto values = read.values.empty() ? row.numbers() : row.numbers(read.columns);
    if (read.values.empty()) read.columns = values.size();
    read.values.insert(read.values.end(), values.begin(), values.end());
  }
  return read;
}

ordered_json by_metric(const std::vector<double>& values) {
  auto content = ordered_json::object();
  for (std::size_t i = 0; i < values.size() && i < n_loss_metrics; ++i)
    content[to_string(static_cast<loss_metric>(i))] = values[i];
  return content;
}

std::vector<double> by_metric(const json_value& content) {
  std::vector<double> values;
  for (std::size_t i = 0; i < n_loss_metrics; ++i)
    values.push_back(content.at(to_string(static_cast<loss_metric>(i))).number());
  return values;
}

ordered_json layer_json(const layer_profile& layer) {
  ordered_json content;
  content["activation"] = layer.activation;
  content["mean_gate"] = layer.mean_gate;
  content["router_logit"] = rows_of(layer.router_logit);
  content["token_gate_regret"] = rows_of(layer.token_gate_regret);
  content["transition"] = rows_of(layer.transition);
  auto sets = ordered_json::array();
  for (const auto& set : layer.sets) {
    ordered_json entry;
    entry["experts"] = set.experts;
    entry["mean_gate"] = set.mean_gate;
    entry["probability"] = set.probability;
    sets.push_back(std::move(entry));
  }
  content["sets"] = std::move(sets);
  content["set_transition"] = rows_of(layer.set_transition);
  content["damage"] = by_metric(layer.damage);
  content["damage_error"] = by_metric(layer.damage_error);
  if (layer.left_out) {
    ordered_json entry;
    entry["damage"] = layer.left_out->damage;
    entry["damage_error"] = layer.left_out->damage_error;
    content["left_out"] = std::move(entry);
  }
  if (layer.copies.empty()) return content;
  auto copies = ordered_json::array();
  for (const auto& copy : layer.copies) {
    ordered_json entry;
    entry["precision"] = to_string(copy.kept);
    entry["distance"] = copy.distance;
    entry["damage"] = copy.damage;
    entry["damage_error"] = copy.damage_error;
    copies.push_back(std::move(entry));
  }
  content["copies"] = std::move(copies);
  return content;
}

layer_profile layer_of(const json_value& content, std::uint32_t n_experts) {
  layer_profile layer;
  layer.activation = content.at("activation").numbers();
  layer.mean_gate = content.at("mean_gate").numbers();
  layer.router_logit = matrix_of(content.at("router_logit"));
  layer.token_gate_regret = matrix_of(content.at("token_gate_regret"));
  layer.transition = matrix_of(content.at("transition"));
  for (const auto& set : content.at("sets").items())
    layer.sets.push_back({set.at("experts").indices(n_experts), set.at("mean_gate").numbers(),
                          set.at("probability").number()});
  layer.set_transition = matrix_of(content.at("set_transition"));
  layer.damage = by_metric(content.at("damage"));
  layer.damage_error = by_metric(content.at("damage_error"));
  if (const auto left_out = content.find("left_out"))
    layer.left_out = {left_out->at("damage").number(), left_out->at("damage_error").number()};
  if (const auto copies = content.find("copies"))
    for (const auto& entry : copies->items()) {
      copy_profile copy;
      copy.kept = std::array{precision::int8, precision::int4}
          [entry.at("precision").one_of({to_string(precision::int8), to_string(precision::int4)})];
      copy.distance = entry.at("distance").numbers();
      copy.damage = entry.at("damage").number();
      copy.damage_error = entry.at("damage_error").number();
      layer.copies.push_back(std::move(copy));
    }
  return layer;
}

}  // namespace

std::string profile_json(const profile& content) {
  ordered_json document;
  document["format"] = profile_format;
  document["version"] = profile_version;
  document["model_name"] = content.model_name;
  document["model_digest"] = content.model_digest;
  document["n_layers"] = content.n_layers;
  document["n_experts"] = content.n_experts;
  document["top_k"] = content.top_k;
  document["calibration_tokens"] = content.calibration_tokens;
  document["seed"] = content.seed;
  document["baseline_nats"] = content.baseline_nats;
  auto layers = ordered_json::array();
  for (const auto& layer : content.layers) layers.push_back(layer_json(layer));
  document["layers"] = std::move(layers);
  if (!content.position_damage.empty()) document["position_damage"] = content.position_damage;
  if (!content.unread_damage.empty()) document["unread_damage"] = content.unread_damage;
  if (!content.texts.empty()) document["texts"] = content.texts;
  return json_text(document);
}

result<profile> parse_profile(const std::string& json, const std::string& place) {
  auto document = parse_versioned(json, place, profile_format, profile_version);
  if (!document) return document.error();
  (*document)->set_remedy("calibrate the model again");
  const auto root = (*document)->root();
  profile content;
  content.model_name = root.at("model_name").string();
  content.model_digest = root.at("model_digest").string();
  content.n_layers = root.at("n_layers").unsigned_integer();
  content.n_experts = root.at("n_experts").count(1, UINT32_MAX);
  content.top_k = root.at("top_k").unsigned_integer();
  content.calibration_tokens = root.at("calibration_tokens").unsigned_integer();
  content.seed = root.at("seed").unsigned_integer();
  content.baseline_nats = root.at("baseline_nats").number();
  for (const auto& layer : root.at("layers").items(content.n_layers))
    content.layers.push_back(layer_of(layer, static_cast<std::uint32_t>(content.n_experts)));
  if (const auto factors = root.find("position_damage"))
    content.position_damage = factors->numbers();
  if (const auto factors = root.find("unread_damage")) content.unread_damage = factors->numbers();
  if (const auto texts = root.find("texts"))
    for (const auto& text : texts->items()) {
      auto& ids = content.texts.emplace_back();
      for (const auto id : text.indices(INT32_MAX)) ids.push_back(static_cast<std::int32_t>(id));
    }
  if (auto read = (*document)->outcome(); !read) return read.error();
  if (auto checked = validate(content); !checked) return at(place, checked.error());
  return content;
}

result<profile> read_profile(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  return parse_profile(*text, path.string());
}

}  // namespace ordermoe::planning
