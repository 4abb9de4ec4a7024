#include "net/session/hello.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/json.hpp"

namespace ordermoe::net {

namespace {

constexpr std::size_t most_agreements = 64;

error differs(std::string_view field, const auto& found, const auto& expected) {
  return {errc::mismatch, fmt::format("hello.{}: found {}, expected {}", field, found, expected)};
}

const std::string* value_of(const std::vector<agreement>& all, const std::string& name) {
  const auto found =
      std::ranges::find_if(all, [&](const agreement& each) { return each.first == name; });
  return found == all.end() ? nullptr : &found->second;
}

/// The first thing that one of them names and the other does not, or has otherwise.
std::optional<error> first_difference(const std::vector<agreement>& mine,
                                      const std::vector<agreement>& theirs) {
  const std::string none = "nothing";
  for (const auto& [name, expected] : mine) {
    const auto* found = value_of(theirs, name);
    if (found == nullptr && is_of_some(name)) continue;
    if (found == nullptr || *found != expected)
      return differs(name, found != nullptr ? *found : none, expected);
  }
  for (const auto& [name, found] : theirs)
    if (value_of(mine, name) == nullptr && !is_of_some(name)) return differs(name, found, none);
  return std::nullopt;
}

}  // namespace

bool is_of_some(std::string_view name) {
  return name.ends_with(']');
}

std::string hello_text(const hello& content) {
  nlohmann::ordered_json agreed = nlohmann::json::object();
  for (const auto& [name, value] : content.agreed) agreed[name] = value;
  const nlohmann::ordered_json out{{"protocol_min", content.protocol_min},
                                   {"protocol_max", content.protocol_max},
                                   {"cluster", content.cluster},
                                   {"node", content.node},
                                   {"boot", content.self.boot},
                                   {"generation", content.self.generation},
                                   {"life", content.life},
                                   {"peer_boot", content.other.boot},
                                   {"peer_generation", content.other.generation},
                                   {"peer_life", content.other_life},
                                   {"stream", to_string(content.which)},
                                   {"expected", content.expected},
                                   {"agreed", std::move(agreed)}};
  return out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

result<hello> parse_hello(std::string_view text) {
  if (text.size() > most_hello_bytes)
    return error{errc::malformed, fmt::format("hello: found {} bytes, expected at most {}",
                                              text.size(), most_hello_bytes)};
  const auto document = json_document::parse(text, "hello");
  if (!document) return document.error();
  const auto root = (*document)->root();
  root.only({"protocol_min", "protocol_max", "cluster", "node", "boot", "generation", "life",
             "peer_boot", "peer_generation", "peer_life", "stream", "expected", "agreed"});
  hello content;
  content.protocol_min = static_cast<std::uint32_t>(root.at("protocol_min").count(1, 1u << 16));
  content.protocol_max = static_cast<std::uint32_t>(root.at("protocol_max").count(1, 1u << 16));
  content.cluster = root.at("cluster").string();
  content.node = root.at("node").string();
  content.self.boot = root.at("boot").unsigned_integer();
  content.self.generation = root.at("generation").unsigned_integer();
  content.life = root.at("life").unsigned_integer();
  content.other.boot = root.at("peer_boot").unsigned_integer();
  content.other.generation = root.at("peer_generation").unsigned_integer();
  content.other_life = root.at("peer_life").unsigned_integer();
  content.which = static_cast<stream>(root.at("stream").one_of({"fast", "bulk"}));
  const auto expected = root.at("expected").items(n_lanes);
  for (std::size_t i = 0; i < expected.size(); ++i)
    content.expected[i] = expected[i].unsigned_integer();
  const auto agreed = root.at("agreed");
  const auto names = agreed.keys();
  if (names.size() > most_agreements)
    return error{errc::malformed, fmt::format("hello.agreed: found {} names, expected at most {}",
                                              names.size(), most_agreements)};
  for (const auto& name : names) content.agreed.emplace_back(name, agreed.at(name).string());
  return (*document)->finish(std::move(content));
}

std::optional<error> disagreement(const hello& mine, const hello& theirs, std::string_view name) {
  if (theirs.protocol_max < mine.protocol_min || theirs.protocol_min > mine.protocol_max)
    return differs("protocol", fmt::format("{} to {}", theirs.protocol_min, theirs.protocol_max),
                   fmt::format("{} to {}", mine.protocol_min, mine.protocol_max));
  if (theirs.cluster != mine.cluster) return differs("cluster", theirs.cluster, mine.cluster);
  if (!name.empty() && theirs.node != name) return differs("node", theirs.node, name);
  if (theirs.node == mine.node)
    return error{errc::mismatch, fmt::format("hello.node: found {}, expected another name than "
                                             "this node's own",
                                             theirs.node)};
  if (theirs.which != mine.which)
    return differs("stream", to_string(theirs.which), to_string(mine.which));
  return first_difference(mine.agreed, theirs.agreed);
}

}  // namespace ordermoe::net
