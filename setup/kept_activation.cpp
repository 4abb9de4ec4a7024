#include "setup/kept_activation.hpp"

#include <nlohmann/json.hpp>
#include <utility>

#include "config/files.hpp"
#include "config/json.hpp"

namespace ordermoe::setup {

namespace {

constexpr std::uint64_t latest_version = 2;

/// Of a file of this text.
result<kept_activation> parse(const std::string& text, const std::string& place,
                              const std::string& profile_digest, const model::model_config& shape) {
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  const auto version = root.find("version");
  const bool is_dated = version && version->unsigned_integer(1, latest_version) == latest_version;
  if (is_dated)
    root.only({"version", "profile", "written_ms", "activation"});
  else
    root.only({"version", "profile", "activation"});
  kept_activation kept;
  const auto digest = root.at("profile").string();
  const auto activation = root.at("activation").string();
  constexpr std::uint64_t most_ms = std::uint64_t{1} << 42;  // Of the year 2109.
  if (is_dated)
    kept.written_ms = static_cast<std::int64_t>(root.at("written_ms").unsigned_integer(0, most_ms));
  if (auto whole = (*document)->finish(0); !whole) return whole.error();
  if (digest != profile_digest) return kept_activation{};
  auto made = planning::parse_activation(activation, place + ": activation", shape.n_layers,
                                         shape.n_experts, shape.top_k);
  if (!made) return made.error();
  kept.content = std::make_shared<const planning::measured_activation>(std::move(*made));
  return kept;
}

}  // namespace

std::string kept_activation_text(const std::string& profile_digest, const std::string& activation) {
  return nlohmann::ordered_json{{"profile", profile_digest}, {"activation", activation}}.dump() +
         "\n";
}

std::string kept_counts_text(const std::string& profile_digest, const std::string& activation,
                             std::int64_t written_ms) {
  return nlohmann::ordered_json{{"version", latest_version},
                                {"profile", profile_digest},
                                {"written_ms", written_ms},
                                {"activation", activation}}
             .dump() +
         "\n";
}

result<kept_activation> read_kept_activation(const std::filesystem::path& path,
                                             const std::string& profile_digest,
                                             const model::model_config& shape) {
  constexpr std::size_t most_bytes = 1 << 26;
  std::error_code failed;
  if (!std::filesystem::exists(path, failed)) return kept_activation{};
  const auto text = read_file(path, most_bytes);
  if (!text) return text.error();
  // Of a node that ended before it had written anything.
  if (text->empty()) return kept_activation{};
  auto made = parse(*text, path.string(), profile_digest, shape);
  if (!made)
    return error{made.error().code, made.error().message +
                                        "; mend the file, or remove it to do without what it "
                                        "measured"};
  return made;
}

}  // namespace ordermoe::setup
