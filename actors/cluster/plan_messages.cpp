#include "actors/cluster/plan_messages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/json.hpp"

namespace ordermoe::actors {

namespace {

using nlohmann::ordered_json;

constexpr std::array papers{paper::plan, paper::profile, paper::activation};

/// Lower-case hexadecimal: it becomes the name of a file.
bool is_digest(std::string_view text) {
  constexpr std::size_t digits = 64;
  return text.size() == digits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

std::string digest(const json_value& from) {
  auto text = from.string();
  if (!is_digest(text)) from.refuse(text, "a SHA-256", errc::malformed);
  return text;
}

}  // namespace

const char* to_string(paper which) {
  constexpr const char* names[] = {"plan", "profile", "activation"};
  return names[static_cast<std::size_t>(which)];
}

std::uint64_t most_bytes(paper which) {
  return std::uint64_t{1} << (which == paper::profile ? 28 : 26);
}

std::string paper_name(paper which, const std::string& sha256) {
  return fmt::format("{}/{}", to_string(which), sha256);
}

std::string notice_text(const plan_notice& content) {
  ordered_json text{{"version", 1},
                    {"model", content.model},
                    {"cluster_file", content.cluster_file},
                    {"epoch", content.epoch}};
  for (const auto which : papers)
    if (const auto& facts = content.of(which))
      text[to_string(which)] = {{"bytes", facts->bytes}, {"sha256", facts->sha256}};
  return text.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

result<plan_notice> parse_notice(std::string_view text) {
  constexpr std::size_t longest = 4096;
  if (text.size() > longest)
    return error{errc::malformed, fmt::format("plan_told: found {} bytes, expected at most {}",
                                              text.size(), longest)};
  const auto document = json_document::parse(text, "plan_told");
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"version", "model", "cluster_file", "epoch", "plan", "profile", "activation"});
  root.at("version").unsigned_integer(1, 1);
  plan_notice content;
  content.model = root.at("model").string();
  content.cluster_file = root.at("cluster_file").string();
  content.epoch = root.at("epoch").unsigned_integer();
  for (const auto which : papers) {
    const auto* name = to_string(which);
    const auto found = which == paper::activation ? root.find(name) : root.at(name);
    if (!found) continue;
    found->only({"bytes", "sha256"});
    content.papers[static_cast<std::size_t>(which)] = paper_facts{
        found->at("bytes").unsigned_integer(1, most_bytes(which)), digest(found->at("sha256"))};
  }
  return (*document)->finish(std::move(content));
}

}  // namespace ordermoe::actors
