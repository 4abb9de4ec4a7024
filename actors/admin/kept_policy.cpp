#include "actors/admin/kept_policy.hpp"

#include <nlohmann/json.hpp>

#include "config/json.hpp"
#include "trace/header.hpp"

namespace ordermoe::actors {

std::string text_of(const kept_policy& content) {
  return nlohmann::ordered_json{{"version", content.version},
                                {"by", content.by},
                                {"operation", content.operation},
                                {"policy", trace::policy_json(content.policy)}}
             .dump() +
         "\n";
}

result<kept_policy> parse_kept_policy(const std::string& text, const std::string& place) {
  auto document = json_document::parse(text, place);
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"version", "by", "operation", "policy"});
  kept_policy content;
  content.version = root.at("version").unsigned_integer(1, most_policy_version);
  content.by = static_cast<std::uint32_t>(root.at("by").unsigned_integer(0, UINT32_MAX));
  content.operation = root.at("operation").string();
  const auto policy = root.at("policy").string();
  if (auto read = (*document)->finish(0); !read) return read.error();
  auto parsed = trace::parse_policy(policy, place + ": policy");
  if (!parsed) return parsed.error();
  content.policy = *parsed;
  return content;
}

}  // namespace ordermoe::actors
