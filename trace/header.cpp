#include "trace/header.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "config/json.hpp"
#include "ordermoe_version.hpp"

namespace ordermoe::trace {

namespace {

using json = nlohmann::ordered_json;

template <class Policy, class Visit>
void policy_fields(Policy& p, Visit visit) {
  visit("name", p.name);
  visit("candidates", p.candidates);
  visit("metric", p.metric);
  visit("calibrated", p.calibrated);
  visit("residence", p.residence);
  visit("gates", p.gates);
  visit("distinct", p.distinct);
  visit("horizon", p.horizon);
  visit("omega_time", p.omega_time);
  visit("omega_quality", p.omega_quality);
  visit("price_attention", p.price_attention);
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

/// Traces of before there were overheads have none.
template <class Costs, class Visit>
void overhead_fields(Costs& c, Visit visit) {
  visit("batch_ns", c.batch_ns);
  visit("message_ns", c.message_ns);
}

/// Traces of before a policy could leave out whatever its rule is did not.
template <class Policy, class Visit>
void leaving_fields(Policy& p, Visit visit) {
  visit("may_leave_out", p.may_leave_out);
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
  const nlohmann::json& from;
  template <class T>
  void operator()(const char* name, T& value) const {
    if constexpr (std::is_enum_v<T>)
      value = static_cast<T>(from.at(name).template get<int>());
    else
      value = from.at(name).template get<T>();
  }
};

struct read_field_if_there {
  const nlohmann::json& from;
  template <class T>
  void operator()(const char* name, T& value) const {
    if (from.contains(name)) read_field{from}(name, value);
  }
};

std::string gate_rule_name(model::gate_rule rule) {
  return rule == model::gate_rule::renormalised ? "renormalised" : "probabilities";
}

/// Larger values are refused, so that sums over a trace stay far from overflow.
constexpr std::int64_t most_cost = 1'000'000'000'000;

constexpr std::int64_t most_overhead_ns = 1'000'000'000;

/// Refuses members that an object of this kind does not have.
void only_keys_of(const nlohmann::json& written, const json_value& value) {
  for (const auto& key : value.keys())
    if (!written.contains(key)) value.at(key).refuse("a field of this name", "none");
}

void check_costs(const json_value& costs) {
  json written;
  cost_profile none;
  cost_fields(none, write_field{written});
  overhead_fields(none, write_field{written});
  only_keys_of(written, costs);
  costs.at("hidden_bytes").integer(1, most_cost);
  costs.at("kv_row_bytes").integer(1, most_cost);
  for (const auto* name :
       {"expert_bytes", "expert_flops", "attention_bytes", "attention_flops",
        "attention_flops_per_context", "embedding_bytes", "head_bytes", "head_flops"})
    costs.at(name).integer(0, most_cost);
  for (const auto* name : {"batch_ns", "message_ns"})
    if (const auto overhead = costs.find(name)) overhead->integer(0, most_overhead_ns);
}

void check_policy(const json_value& policy) {
  only_keys_of(nlohmann::json::parse(policy_json({})), policy);
  policy.at("candidates").integer(0, static_cast<int>(planning::candidate_rule::weigh));
  policy.at("metric").integer(0, planning::n_loss_metrics - 1);
  policy.at("residence").integer(0, 1);
  policy.at("gates").integer(0, 1);
  policy.at("horizon").integer(0, 1 << 16);
  policy.at("budget_bins").integer(1, 1 << 16);
  for (const auto* name : {"omega_time", "omega_quality", "price_ns_per_loss"})
    policy.at(name).number(0);
  for (const auto* name : {"calibrated", "distinct", "price_attention", "price_follows_budget"})
    policy.at(name).boolean();
  if (const auto may = policy.find("may_leave_out")) may->boolean();
}

/// What reading takes on trust: names, kinds and ranges of the plain fields.
result<void> check_header(const std::string& text, const std::string& place) {
  auto parsed = json_document::parse(text, place + ":1");
  if (!parsed) return parsed.error();
  auto& document = **parsed;
  document.set_remedy("run again with --trace");
  const auto root = document.root();
  root.at("type").one_of({"run"});
  root.at("version").integer(trace_version, trace_version);
  if (const auto outcome = document.outcome(); !outcome) return outcome;
  only_keys_of(nlohmann::json::parse(header_line({})), root);
  root.at("program").string();
  root.at("mode").one_of({"emulated", "local"});
  root.at("seed").unsigned_integer();
  root.at("strategy").string();
  root.at("quality_percent").number();
  root.at("token_budget").integer(0, unbounded_budget);
  root.at("allowance_factor").number(0);
  root.at("continue_in_place").boolean();
  root.at("chunk_rows").integer(1, 1 << 20);
  // Traces of before it was told have none.
  if (const auto tells = root.find("tells_choices")) tells->boolean();
  root.at("router_gates").one_of({"renormalised", "probabilities"});
  check_costs(root.at("costs"));
  check_policy(root.at("policy"));
  return document.outcome();
}

}  // namespace

std::string header_line(const trace_header& header) {
  json costs, policy, line;
  cost_fields(header.costs, write_field{costs});
  overhead_fields(header.costs, write_field{costs});
  policy_fields(header.policy, write_field{policy});
  leaving_fields(header.policy, write_field{policy});
  line["type"] = "run";
  line["version"] = trace_version;
  line["program"] = std::string("ordermoe ") + version_string;
  line["mode"] = to_string(header.mode);
  line["seed"] = header.seed;
  line["strategy"] = header.strategy;
  line["quality_percent"] = header.quality_percent;
  line["token_budget"] = header.token_budget;
  line["allowance_factor"] = header.allowance_factor;
  line["continue_in_place"] = header.continue_in_place;
  line["chunk_rows"] = header.chunk_rows;
  line["tells_choices"] = header.tells_choices;
  line["router_gates"] = gate_rule_name(header.router_gates);
  line["cluster_toml"] = cluster_toml(header.servers);
  line["costs"] = costs;
  line["policy"] = policy;
  line["profile"] = json::parse(planning::profile_json(header.profile));
  line["plan"] = json::parse(planning::plan_json(header.plan));
  return line.dump();
}

result<trace_header> parse_header(const std::string& text, const std::string& place) {
  if (auto checked = check_header(text, place); !checked) return checked.error();
  trace_header header;
  try {
    // An object that keeps the order of its members takes time that grows with the square of their number.
    const auto line = nlohmann::json::parse(text);
    header.mode =
        line.at("mode") == "local" ? serving::run_mode::local : serving::run_mode::emulated;
    header.seed = line.at("seed");
    header.strategy = line.at("strategy");
    header.quality_percent = line.at("quality_percent");
    header.token_budget = line.at("token_budget");
    header.allowance_factor = line.at("allowance_factor");
    header.continue_in_place = line.at("continue_in_place");
    header.chunk_rows = line.at("chunk_rows");
    header.tells_choices = line.value("tells_choices", false);
    header.router_gates = line.at("router_gates") == gate_rule_name(model::gate_rule::probabilities)
                              ? model::gate_rule::probabilities
                              : model::gate_rule::renormalised;
    cost_fields(header.costs, read_field{line.at("costs")});
    overhead_fields(header.costs, read_field_if_there{line.at("costs")});
    policy_fields(header.policy, read_field{line.at("policy")});
    leaving_fields(header.policy, read_field_if_there{line.at("policy")});
    auto servers = parse_cluster(line.at("cluster_toml"), place + ":1 cluster_toml");
    if (!servers) return servers.error();
    header.servers = std::move(*servers);
    charge_overheads(header.servers, header.costs);
    auto profile = planning::parse_profile(line.at("profile").dump(), place + ":1 profile");
    if (!profile) return profile.error();
    header.profile = std::move(*profile);
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

std::string policy_json(const planning::selection_policy& policy) {
  json content;
  policy_fields(policy, write_field{content});
  leaving_fields(policy, write_field{content});
  return content.dump();
}

result<planning::selection_policy> parse_policy(const std::string& text, const std::string& place) {
  auto parsed = json_document::parse(text, place);
  if (!parsed) return parsed.error();
  auto& document = **parsed;
  check_policy(document.root());
  if (const auto outcome = document.outcome(); !outcome) return outcome.error();
  planning::selection_policy policy;
  try {
    const auto read = nlohmann::json::parse(text);
    policy_fields(policy, read_field{read});
    leaving_fields(policy, read_field_if_there{read});
  } catch (const nlohmann::json::exception& problem) {
    return error{errc::malformed, fmt::format("{}: {}", place, problem.what())};
  }
  return policy;
}

}  // namespace ordermoe::trace
