#include "model/checkpoint/part.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "config/json.hpp"
#include "model/architecture/tensor_plan.hpp"
#include "model/checkpoint/quantised_rows.hpp"

namespace ordermoe::model {

namespace fs = std::filesystem;

bool model_part::has(layer_id layer, expert_id expert) const {
  return layer.index() < experts.size() &&
         std::ranges::binary_search(experts[layer.index()],
                                    static_cast<std::uint32_t>(expert.index()));
}

result<std::optional<model_part>> read_part(const fs::path& folder) {
  const auto path = folder / part_name;
  std::error_code status;
  if (!fs::exists(path, status)) return std::optional<model_part>();
  const auto text = read_file(path, std::size_t{16} << 20);
  if (!text) return text.error();
  auto document = json_document::parse(*text, path.string());
  if (!document) return document.error();
  (*document)->set_remedy("write the part again with `ordermoe model shard`");
  const auto root = (*document)->root();
  root.only({"format", "version", "of", "digest", "server", "experts"});
  root.at("format").one_of({"ordermoe-part"});
  root.at("version").unsigned_integer(1, 1);
  model_part part;
  part.of = root.at("of").string();
  part.digest = root.at("digest").string();
  part.server = root.at("server").string();
  for (const auto& layer : root.at("experts").items()) {
    part.experts.push_back(layer.indices(UINT32_MAX));
    std::ranges::sort(part.experts.back());
  }
  auto read = (*document)->finish(std::move(part));
  if (!read) return read.error();
  return std::optional(std::move(*read));
}

std::set<std::string, std::less<>> left_out(const model_config& config, const model_part& part) {
  const auto tensors = tensors_by_use(config);
  std::set<std::string, std::less<>> names;
  for (std::size_t l = 0; l < config.n_layers; ++l) {
    const auto& experts = experts_at(config, tensors, layer_id{l});
    for (std::size_t e = 0; e < experts.size(); ++e) {
      if (part.has(layer_id{l}, expert_id{e})) continue;
      const auto add = [&](const tensor_spec& tensor) {
        names.insert(tensor.name);
        names.insert(scale_name(tensor.name));
      };
      if (experts[e].gate) add(*experts[e].gate);
      add(experts[e].up);
      add(experts[e].down);
    }
  }
  return names;
}

}  // namespace ordermoe::model
