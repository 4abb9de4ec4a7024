#include "actors/trace_header.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ordermoe_version.hpp"

namespace ordermoe::actors {

namespace {

using json = nlohmann::ordered_json;

template <class Policy, class Visit>
void policy_fields(Policy& p, Visit visit) {
  visit("name", p.name);
  visit("candidates", p.candidates);
  visit("metric", p.metric);
  visit("calibrated", p.calibrated);
  visit("residence", p.residence);
  visit("condition", p.condition);
  visit("gates", p.gates);
  visit("distinct", p.distinct);
  visit("horizon", p.horizon);
  visit("omega_time", p.omega_time);
  visit("omega_quality", p.omega_quality);
  visit("reference_ns", p.reference_ns);
  visit("price_attention", p.price_attention);
  visit("price_waits", p.price_waits);
  visit("price_ns_per_loss", p.price_ns_per_loss);
  visit("price_follows_budget", p.price_follows_budget);
  visit("budget_bins", p.budget_bins);
}

template <class Costs, class Visit>
void cost_fields(Costs& c, Visit visit) {
  visit("name", c.name);
  visit("hidden_bytes", c.hidden_bytes);
  visit("kv_row_bytes", c.kv_row_bytes);
  visit("expert_bytes", c.expert_bytes);
  visit("expert_flops", c.expert_flops);
  visit("attention_bytes", c.attention_bytes);
  visit("attention_flops", c.attention_flops);
  visit("attention_flops_per_context", c.attention_flops_per_context);
  visit("embedding_bytes", c.embedding_bytes);
  visit("head_bytes", c.head_bytes);
  visit("head_flops", c.head_flops);
}

struct write_field {
  json& into;
  template <class T>
  void operator()(const char* name, const T& value) const {
    if constexpr (std::is_enum_v<T>)
      into[name] = static_cast<int>(value);
    else
      into[name] = value;
  }
};

struct read_field {
  const json& from;
  template <class T>
  void operator()(const char* name, T& value) const {
    if constexpr (std::is_enum_v<T>)
      value = static_cast<T>(from.at(name).template get<int>());
    else
      value = from.at(name).template get<T>();
  }
};

std::string gate_rule_name(model::gate_rule rule) {
  return rule == model::gate_rule::renormalised ? "renormalised" : "probabilities";
}

}  // namespace

std::string header_line(const run_setup& setup, const cluster& servers, const strategy& chosen,
                        model::gate_rule gates) {
  json costs, policy, line;
  cost_fields(setup.costs, write_field{costs});
  policy_fields(chosen.policy, write_field{policy});
  line["type"] = "run";
  line["version"] = 1;
  line["program"] = std::string("ordermoe ") + version_string;
  line["mode"] = to_string(setup.mode);
  line["seed"] = setup.seed;
  line["strategy"] = chosen.name;
  line["quality_percent"] = setup.quality_percent;
  line["token_budget"] = chosen.token_budget;
  line["allowance_factor"] = chosen.allowance_factor;
  line["continue_in_place"] = chosen.continue_in_place;
  line["chunk_rows"] = setup.chunk_rows;
  line["requests"] = setup.requests.size();
  line["router_gates"] = gate_rule_name(gates);
  line["cluster_toml"] = cluster_toml(servers);
  line["costs"] = costs;
  line["policy"] = policy;
  line["profile"] = json::parse(planning::profile_json(setup.experts));
  line["plan"] = json::parse(planning::plan_json(chosen.plan));
  return line.dump();
}

result<trace_header> parse_header(const std::string& text, const std::string& place) {
  trace_header header;
  try {
    const auto line = json::parse(text);
    if (line.at("type") != "run" || line.at("version") != 1)
      return error{errc::malformed, fmt::format("{}:1: expected a run line of version 1", place)};
    header.mode = line.at("mode") == "local" ? run_mode::local : run_mode::emulated;
    header.token_budget = line.at("token_budget");
    header.allowance_factor = line.at("allowance_factor");
    header.continue_in_place = line.at("continue_in_place");
    header.chunk_rows = line.at("chunk_rows");
    // Runs that state no rule are of models that renormalise.
    const auto rule = line.value("router_gates", gate_rule_name(model::gate_rule::renormalised));
    for (const auto each : {model::gate_rule::renormalised, model::gate_rule::probabilities})
      if (rule == gate_rule_name(each)) header.router_gates = each;
    if (rule != gate_rule_name(header.router_gates))
      return error{errc::malformed,
                   fmt::format("{}:1: router_gates: found '{}', expected renormalised or "
                               "probabilities; verify the trace as the run wrote it",
                               place, rule)};
    cost_fields(header.costs, read_field{line.at("costs")});
    policy_fields(header.policy, read_field{line.at("policy")});
    auto servers = parse_cluster(line.at("cluster_toml"), place + ":1 cluster_toml");
    if (!servers) return servers.error();
    header.servers = std::move(*servers);
    auto experts = planning::parse_profile(line.at("profile").dump(), place + ":1 profile");
    if (!experts) return experts.error();
    header.experts = std::move(*experts);
    header.top_k = header.experts.top_k;
    auto plan = planning::parse_plan(line.at("plan").dump(), place + ":1 plan");
    if (!plan) return plan.error();
    header.plan = std::move(*plan);
    if (auto valid = planning::validate(header.plan, header.servers, header.costs); !valid)
      return at(place + ":1 plan", valid.error());
  } catch (const nlohmann::json::exception& problem) {
    return error{errc::malformed, fmt::format("{}:1: {}", place, problem.what())};
  }
  return header;
}

}  // namespace ordermoe::actors
