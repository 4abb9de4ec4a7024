#include "setup/plan_file.hpp"

#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "config/cost_profile.hpp"
#include "config/files.hpp"
#include "config/json.hpp"
#include "planning/json_text.hpp"

namespace ordermoe::setup {

namespace {

using nlohmann::ordered_json;

constexpr std::array kept_precisions{precision::stored, precision::bf16, precision::int8,
                                     precision::int4};

ordered_json origin_json(const world& content, const preparation_request& request,
                         const prepared& ready) {
  const auto& chosen = ready.service.chosen;
  ordered_json j;
  j["strategy"] = chosen.name;
  j["quality_budget_percent"] = request.options.quality_percent;
  if (request.options.horizon) j["horizon"] = *request.options.horizon;
  j["model"] = content.model_name;
  j["model_digest"] = content.model_digest;
  j["costs"] = content.costs.name;
  j["cluster_toml"] = cluster_toml(content.servers);
  if (ready.was_tuned)
    j["tuning"] = {{"price_ns_per_nat", ready.found.price_ns_per_nat},
                   {"damage", ready.found.damage},
                   {"left_out", ready.found.left_out}};
  if (chosen.whole_model != precision::stored)
    j["whole_model"] = {{"expert_precision", to_string(chosen.whole_model)},
                        {"nats", chosen.quality.taken_nats - chosen.pruned_nats.value_or(0)}};
  if (chosen.pruned_nats) j["pruning"] = {{"nats", *chosen.pruned_nats}};
  return j;
}

result<plan_origin> origin_of(const json_value& from, const std::string& place) {
  plan_origin origin;
  origin.strategy = from.at("strategy").string();
  origin.quality_percent = from.at("quality_budget_percent").number(-1, 1000);
  if (const auto horizon = from.find("horizon")) origin.horizon = horizon->count(0, 1'000'000);
  origin.model_name = from.at("model").string();
  origin.model_digest = from.at("model_digest").string();
  origin.costs = from.at("costs").string();
  const auto servers = from.at("cluster_toml").string();
  if (const auto found = from.find("tuning")) {
    const double damage = found->at("damage").number(0);
    const auto left_out = found->find("left_out");  // Plans of before have one for both.
    origin.found = tuning{found->at("price_ns_per_nat").number(0), damage,
                          left_out ? left_out->number(0) : damage};
  }
  if (const auto whole = from.find("whole_model")) {
    origin.whole_model =
        kept_precisions[whole->at("expert_precision").one_of({"stored", "bf16", "int8", "int4"})];
    origin.whole_model_nats = whole->at("nats").number(0);
  }
  if (const auto pruning = from.find("pruning")) origin.pruned_nats = pruning->at("nats").number(0);
  if (servers.empty()) return origin;  // The document knows why.
  auto read = parse_cluster(servers, place + ": made_for.cluster_toml");
  if (!read) return read.error();
  origin.servers = std::move(*read);
  return origin;
}

error differs(const plan_file& file, const std::string& what, const std::string& found,
              const std::string& expected) {
  return {errc::mismatch,
          fmt::format("{}: made for {} {}, not for {}; make a plan for this one with `ordermoe "
                      "plan`",
                      file.path.string(), what, found, expected)};
}

template <class Value>
std::string difference(const std::string& place, const char* what, const Value& found,
                       const Value& expected) {
  if (found == expected) return {};
  return fmt::format("{}: {} {}, expected {}", place, what, found, expected);
}

std::string difference(const server_spec& found, const server_spec& expected, std::size_t index) {
  const auto place = fmt::format("server {} ({})", index, expected.name);
  std::string first;
  const auto compare = [&](const char* what, const auto& a, const auto& b) {
    if (first.empty()) first = difference(place, what, a, b);
  };
  compare("name", found.name, expected.name);
  compare("FLOPs a second", found.flops_per_s, expected.flops_per_s);
  compare("memory bytes a second", found.memory_bandwidth_bytes_per_s,
          expected.memory_bandwidth_bytes_per_s);
  compare("bytes of memory", found.memory_bytes, expected.memory_bytes);
  compare("bytes for KV", found.kv_bytes, expected.kv_bytes);
  compare("share of arrivals", found.arrival_share, expected.arrival_share);
  compare("bytes a second of its uplink", found.uplink_bytes_per_s, expected.uplink_bytes_per_s);
  compare("site", found.site, expected.site);
  compare("expert precision", std::string(to_string(found.expert_precision)),
          std::string(to_string(expected.expert_precision)));
  return first;
}

/// What is pruned for everybody takes some of a budget that is kept, and the plan has to say how much.
result<void> check_pruning(const plan_file& file) {
  const auto* record = planning::find_strategy(file.origin.strategy);
  const bool takes_budget = record != nullptr && record->keeps_budgets && !file.plan.pruned.empty();
  if (takes_budget == file.origin.pruned_nats.has_value()) return {};
  return error{errc::mismatch,
               fmt::format("{}: made_for.pruning: {}; make the plan again with `ordermoe plan`",
                           file.path.string(),
                           takes_budget ? "found none, and the plan prunes experts"
                                        : "found it, and the plan prunes no expert that a budget "
                                          "has to pay for")};
}

}  // namespace

std::string plan_file_json(const world& content, const preparation_request& request,
                           const prepared& ready) {
  const auto plan = ordered_json::parse(planning::plan_json(ready.service.chosen.plan));
  ordered_json document;
  for (const auto& [name, value] : plan.items()) {
    document[name] = value;
    if (name == "version") document["made_for"] = origin_json(content, request, ready);
  }
  return planning::json_text(document);
}

result<std::string> with_plan(const std::string& text, const planning::plan& content) {
  const auto before = ordered_json::parse(text, nullptr, false);
  if (!before.is_object() || !before.contains("made_for"))
    return error{errc::malformed, "the plan in force has no \"made_for\""};
  const auto plan = ordered_json::parse(planning::plan_json(content));
  ordered_json document;
  for (const auto& [name, value] : plan.items()) {
    document[name] = value;
    if (name == "version") document["made_for"] = before["made_for"];
  }
  return planning::json_text(document);
}

result<plan_file> read_plan_file(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return text.error();
  plan_file file;
  file.path = path;
  auto plan = planning::parse_plan(*text, path.string());
  if (!plan) {
    auto problem = plan.error();
    if (problem.code == errc::infeasible) problem.code = errc::out_of_range;  // of the file
    return problem;
  }
  file.plan = std::move(*plan);
  auto document = json_document::parse(*text, path.string());
  if (!document) return document.error();
  (*document)->set_remedy("make the plan again with `ordermoe plan`");
  auto origin = origin_of((*document)->root().at("made_for"), path.string());
  if (auto read = (*document)->outcome(); !read) return read.error();
  if (!origin) return origin.error();
  file.origin = std::move(*origin);
  if (auto told = check_pruning(file); !told) return told.error();
  return file;
}

std::string first_difference(const cluster& found, const cluster& expected) {
  if (found.size() != expected.size())
    return fmt::format("{} servers, expected {}", found.size(), expected.size());
  for (std::size_t m = 0; m < found.size(); ++m)
    if (auto first = difference(found.servers[m], expected.servers[m], m); !first.empty())
      return first;
  if (found.sites.size() != expected.sites.size())
    return fmt::format("{} sites, expected {}", found.sites.size(), expected.sites.size());
  for (std::size_t i = 0; i < found.sites.size(); ++i) {
    const auto &a = found.sites[i], &b = expected.sites[i];
    const auto place = fmt::format("site {}", b.name);
    auto first = difference(place, "name", a.name, b.name);
    if (first.empty())
      first = difference(place, "bytes a second of its uplink", a.uplink_bytes_per_s,
                         b.uplink_bytes_per_s);
    if (!first.empty()) return first;
  }
  for (std::size_t i = 0; i < found.size(); ++i)
    for (std::size_t j = 0; j < found.size(); ++j) {
      const auto& a = found.link(server_id{i}, server_id{j});
      const auto& b = expected.link(server_id{i}, server_id{j});
      const auto place =
          fmt::format("link {} to {}", expected.servers[i].name, expected.servers[j].name);
      auto first =
          difference(place, "bytes a second", a.bandwidth_bytes_per_s, b.bandwidth_bytes_per_s);
      if (first.empty()) first = difference(place, "ns of latency", a.latency_ns, b.latency_ns);
      if (!first.empty()) return first;
    }
  return {};
}

std::string named_costs(const plan_origin& origin) {
  auto name = origin.costs.substr(0, origin.costs.find(", "));
  return check_cost_profile(name) ? name : std::string();
}

result<void> check_made_for(const plan_file& file, const world& content) {
  const auto& origin = file.origin;
  if (origin.model_digest != content.model_digest)
    return differs(
        file, "the model",
        fmt::format("{} (digest {})", origin.model_name, origin.model_digest.substr(0, 12)),
        fmt::format("{} ({})", content.model_name, content.model_digest.substr(0, 12)));
  if (origin.costs != content.costs.name)
    return differs(file, "the charges", origin.costs, content.costs.name);
  if (const auto first = first_difference(content.servers, origin.servers); !first.empty())
    return error{errc::mismatch,
                 fmt::format("{}: made for another cluster: the given one has {}; make a plan for "
                             "it with `ordermoe plan`",
                             file.path.string(), first)};
  return {};
}

result<preparation_request> request_with(const plan_file& file, preparation_request request) {
  const auto& origin = file.origin;
  if (request.strategy != origin.strategy)
    return differs(file, "the strategy", origin.strategy, request.strategy);
  if (!request.options.horizon) request.options.horizon = origin.horizon;
  const bool same = request.options.quality_percent == origin.quality_percent &&
                    request.options.horizon == origin.horizon;
  if (same) {
    request.known_tuning = origin.found;
    request.whole_model = origin.whole_model;
    request.whole_model_nats = origin.whole_model_nats;
    request.pruned_nats = origin.pruned_nats;
  } else if (origin.pruned_nats) {
    return error{errc::mismatch,
                 fmt::format("{}: leaves experts out for everybody, paid for by its own budget and "
                             "horizon; run it with those or make another plan",
                             file.path.string())};
  } else if (origin.whole_model != precision::stored) {
    return error{errc::mismatch,
                 fmt::format("{}: keeps the whole model's experts in {}, paid for by its own "
                             "budget and horizon; run it with those or make another plan",
                             file.path.string(), to_string(origin.whole_model))};
  }
  request.options.plan = file.plan;
  return request;
}

}  // namespace ordermoe::setup
