#include "config/files.hpp"
#include "planning/json_text.hpp"
#include "planning/profile.hpp"

namespace ordermoe::planning {

namespace {

using nlohmann::ordered_json;
using view = json_document::view;

constexpr const char* format_name = "ordermoe-profile";
constexpr std::uint64_t format_version = 1;

ordered_json rows_of(const matrix& content) {
  auto rows = ordered_json::array();
  for (std::size_t r = 0; r < content.rows; ++r) {
    const auto first = content.values.begin() + static_cast<std::ptrdiff_t>(r * content.columns);
    rows.push_back(
        std::vector<double>(first, first + static_cast<std::ptrdiff_t>(content.columns)));
  }
  return rows;
}

matrix matrix_of(const view& rows) {
  matrix content;
  content.rows = rows.size();
  for (std::size_t r = 0; r < content.rows; ++r) {
    const auto row = rows[r].numbers();
    if (r == 0) content.columns = row.size();
    if (row.size() != content.columns)
      rows[r].fail(errc::mismatch,
                   std::to_string(content.columns) + " values, as in the first row");
    content.values.insert(content.values.end(), row.begin(), row.end());
  }
  return content;
}

ordered_json by_metric(const std::vector<double>& values) {
  auto content = ordered_json::object();
  for (std::size_t i = 0; i < values.size() && i < n_loss_metrics; ++i)
    content[to_string(static_cast<loss_metric>(i))] = values[i];
  return content;
}

std::vector<double> by_metric(const view& content) {
  std::vector<double> values;
  for (std::size_t i = 0; i < n_loss_metrics; ++i)
    values.push_back(content[to_string(static_cast<loss_metric>(i))].number());
  return values;
}

ordered_json layer_json(const layer_profile& layer) {
  ordered_json content;
  content["activation"] = layer.activation;
  content["mean_gate"] = layer.mean_gate;
  content["router_logit"] = rows_of(layer.router_logit);
  content["router_logit_centred"] = rows_of(layer.router_logit_centred);
  content["output_distance"] = rows_of(layer.output_distance);
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
  return content;
}

layer_profile layer_of(const view& content) {
  layer_profile layer;
  layer.activation = content["activation"].numbers();
  layer.mean_gate = content["mean_gate"].numbers();
  layer.router_logit = matrix_of(content["router_logit"]);
  layer.router_logit_centred = matrix_of(content["router_logit_centred"]);
  layer.output_distance = matrix_of(content["output_distance"]);
  layer.token_gate_regret = matrix_of(content["token_gate_regret"]);
  layer.transition = matrix_of(content["transition"]);
  const auto sets = content["sets"];
  for (std::size_t s = 0; s < sets.size(); ++s)
    layer.sets.push_back({sets[s]["experts"].indices(), sets[s]["mean_gate"].numbers(),
                          sets[s]["probability"].number()});
  layer.set_transition = matrix_of(content["set_transition"]);
  layer.damage = by_metric(content["damage"]);
  layer.damage_error = by_metric(content["damage_error"]);
  return layer;
}

}  // namespace

std::string profile_json(const profile& content) {
  ordered_json document;
  document["format"] = format_name;
  document["version"] = format_version;
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
  return json_text(document);
}

result<profile> parse_profile(const std::string& json, const std::string& place) {
  auto document = json_document::parse(json, place, format_name, format_version);
  if (!document) return document.error();
  const auto root = document->root();
  profile content;
  content.model_name = root["model_name"].text();
  content.model_digest = root["model_digest"].text();
  content.n_layers = root["n_layers"].count();
  content.n_experts = root["n_experts"].count();
  content.top_k = root["top_k"].count();
  content.calibration_tokens = root["calibration_tokens"].count();
  content.seed = root["seed"].count();
  content.baseline_nats = root["baseline_nats"].number();
  const auto layers = root["layers"];
  for (std::size_t l = 0; l < layers.size(); ++l) content.layers.push_back(layer_of(layers[l]));
  if (document->problem()) return *document->problem();
  if (auto checked = validate(content); !checked) return at(place, checked.error());
  return content;
}

result<profile> read_profile(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  return parse_profile(*text, path.string());
}

}  // namespace ordermoe::planning
