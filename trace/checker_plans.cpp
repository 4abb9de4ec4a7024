#include <algorithm>
#include <utility>

#include "planning/strategies/adaptation.hpp"
#include "trace/checker.hpp"
#include "trace/lines.hpp"

namespace ordermoe::trace {

bool verifier::put_in_force(std::shared_ptr<const planning::profile> profile, planning::plan placed,
                            std::uint64_t policy) {
  auto tables = planning::selection_tables::build(*profile, placed, prices_, header_.policy,
                                                  header_.token_budget);
  if (!tables) return refuse("{}", tables.error().message);
  const planning::placement_index index(placed);
  placed_ = std::make_shared<const plan_in_force>(
      plan_in_force{std::move(placed),
                    index,
                    std::move(*tables),
                    policy,
                    std::move(profile),
                    {header_.token_budget, header_.allowance_factor, header_.continue_in_place}});
  tables_[id_of(*placed_)] = placed_;
  plans_[placed_->plan.epoch] = placed_;
  policies_.emplace(policy, header_.policy);
  return true;
}

bool verifier::on_install(std::string_view text) {
  line_fields fields(text);
  const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto snapshot = fields.integer<std::uint64_t>("snapshot");
  const auto epoch = fields.integer<std::uint64_t>("epoch");
  const auto policy = fields.integer<std::uint64_t>("policy");
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto& server = servers_[id];
  if (!may_take_tables(server, "tables", snapshot, time)) return false;
  const auto before = server.placed.find(epoch);
  const auto plan = plans_.find(epoch);
  if (plan == plans_.end() || !policies_.contains(policy))
    return refuse(
        "found tables of epoch {} and policy {}, expected a plan, weights or policy line first",
        epoch, policy);
  if (before != server.placed.end()) {
    if (!same("policy", policy, before->second->policy + 1)) return false;
  } else if (epoch < server.placed.rbegin()->first || policy + 1 < placed_->policy) {
    return refuse(
        "found tables of epoch {} and policy {}, expected those of a later plan and a "
        "policy of now",
        epoch, policy);
  }
  auto tables = tables_of({epoch, policy});
  if (!tables || !take_tables(server, std::move(tables))) return false;
  ++server.snapshot;
  ++server.installs;
  ++summary.snapshots;
  forget_tables();
  return true;
}

std::shared_ptr<const plan_in_force> verifier::tables_of(const tables_id& id) {
  auto& found = tables_[id];
  if (found) return found;
  const auto& plan = *plans_.at(id.epoch);
  auto tables = planning::selection_tables::build(*plan.profile, plan.plan, prices_,
                                                  policies_.at(id.policy), header_.token_budget);
  if (!tables) {
    tables_.erase(id);
    refuse("{}", tables.error().message);
    return nullptr;
  }
  auto made = plan;
  made.tables = std::move(*tables);
  made.policy = id.policy;
  found = std::make_shared<const plan_in_force>(std::move(made));
  return found;
}

bool verifier::may_take_tables(server_state& server, std::string_view what, std::uint64_t snapshot,
                               std::int64_t time) {
  if (server.snapshot == 0) return refuse("found other {}, expected a begin line first", what);
  return same("snapshot", snapshot, server.snapshot + 1) && in_order(time, server.snapshot_ns);
}

bool verifier::take_tables(server_state& server, std::shared_ptr<const plan_in_force> placed) {
  placed = for_links_of(server, std::move(placed));
  if (!placed) return false;
  server.loads.price_by(placed->tables->link_ns());
  const auto epoch = placed->plan.epoch;
  server.placed[epoch] = std::move(placed);
  return true;
}

std::shared_ptr<const plan_in_force> verifier::for_links_of(
    const server_state& server, std::shared_ptr<const plan_in_force> placed) {
  if (server.links.empty()) return placed;
  auto known = header_.servers;
  known.links = server.links;
  auto tables = planning::selection_tables::build(
      *placed->profile, placed->plan, planning::make_cost_model(known, header_.costs),
      policies_.at(placed->policy), header_.token_budget);
  if (!tables) {
    refuse("{}", tables.error().message);
    return nullptr;
  }
  auto priced = *placed;
  priced.tables = std::move(*tables);
  return std::make_shared<const plan_in_force>(std::move(priced));
}

bool verifier::on_links(std::string_view text) {
  line_fields fields(text);
  const auto id = fields.integer<std::uint32_t>("server", 0, n() - 1);
  const auto snapshot = fields.integer<std::uint64_t>("snapshot");
  std::vector<std::int64_t> latency_ns;
  fields.amounts("latency_ns", n() * n(), latency_ns);
  const auto rates = fields.reals("bytes_per_s", n() * n());
  const auto time = fields.amount("time_ns");
  if (!fields.end()) return malformed(fields);
  auto& server = servers_[id];
  if (!may_take_tables(server, "links", snapshot, time)) return false;
  server.links.resize(rates.size());
  for (std::size_t i = 0; i < rates.size(); ++i) {
    // Of a server to itself there is no link.
    const bool is_link = i % (n() + 1) != 0;
    if (is_link && !(rates[i] > 0))
      return refuse("bytes_per_s: found {} from server {} to {}, expected more than 0", rates[i],
                    i / n(), i % n());
    server.links[i] = {rates[i], latency_ns[i], is_link ? header_.costs.message_ns : 0};
  }
  ++server.snapshot;
  ++server.installs;
  ++summary.snapshots;
  for (const auto& [epoch, placed] : std::map(server.placed))
    if (!take_tables(server, placed)) return false;
  return true;
}

void verifier::forget_plan_before() {
  const auto stays = placed_->plan.epoch;
  plans_.erase(plans_.begin(), plans_.lower_bound(stays));
  for (auto& server : servers_) {
    // What it decides by stays where it was asked about no plan since.
    while (server.placed.size() > 1 && server.placed.begin()->first < stays)
      server.placed.erase(server.placed.begin());
  }
}

void verifier::forget_tables() {
  // One that a server has not been asked about yet is built again where it is.
  std::map<std::uint64_t, std::uint64_t> oldest;
  for (const auto& server : servers_)
    for (const auto& [epoch, placed] : server.placed) {
      const auto known = oldest.try_emplace(epoch, placed->policy).first;
      known->second = std::min(known->second, placed->policy);
    }
  std::erase_if(tables_, [&](const auto& each) {
    const auto known = oldest.find(each.first.epoch);
    return !plans_.contains(each.first.epoch) ||
           (known != oldest.end() && each.first.policy < known->second);
  });
}

bool verifier::on_weights(std::string_view text) {
  line_fields fields(text);
  const auto epoch = fields.integer<std::uint64_t>("epoch");
  const auto policy = fields.integer<std::uint64_t>("policy");
  const auto kappa = fields.real("kappa");
  const auto omega_time = fields.real("omega_time");
  const auto omega_quality = fields.real("omega_quality");
  const auto time = fields.amount("time_ns");
  const auto requests = fields.ids("requests");
  if (!fields.end()) return malformed(fields);
  if (!same("epoch", epoch, placed_->plan.epoch) || !same("policy", policy, placed_->policy + 1) ||
      !in_order(time, planner_ns_))
    return false;
  if (requests.empty()) return refuse("found an empty window, expected a request at least");
  std::vector<planning::observed_request> window;
  for (const auto request : requests) {
    const auto found = observed_.find(request);
    if (found == observed_.end())
      return refuse(
          "found request {} in the window, expected one that has a budget, is done and was in no "
          "window before",
          request);
    const auto& [answered, placed] = found->second;
    auto& position_ns = position_ns_[placed->plan.epoch];
    if (position_ns.empty())
      position_ns = planning::exact_position_ns(*placed->profile, placed->plan, header_.servers,
                                                header_.costs);
    window.push_back(planning::observe(answered, header_.chunk_rows, position_ns));
    observed_.erase(found);
  }
  const auto adapted = planning::adapt_to_window(header_.policy.omega_quality, kappa, window);
  if (!same("omega_quality", omega_quality, adapted.omega_quality) ||
      !same("omega_time", omega_time, adapted.omega_time))
    return false;
  header_.policy.omega_time = omega_time;
  header_.policy.omega_quality = omega_quality;
  ++summary.policy_changes;
  return put_in_force(placed_->profile, placed_->plan, policy);
}

bool verifier::on_policy(std::string_view text) {
  line_fields fields(text);
  const auto epoch = fields.integer<std::uint64_t>("epoch");
  const auto policy = fields.integer<std::uint64_t>("policy");
  const auto time = fields.amount("time_ns");
  const auto content = fields.last_value("content");
  if (!fields.end()) return malformed(fields);
  if (!same("epoch", epoch, placed_->plan.epoch) || !same("policy", policy, placed_->policy + 1) ||
      !in_order(time, planner_ns_))
    return false;
  auto read = parse_policy(std::string(content), fmt::format("{}:{} policy", place_, number_));
  if (!read) {
    problem_ = read.error();
    return false;
  }
  header_.policy = std::move(*read);
  ++summary.policy_changes;
  if (!put_in_force(placed_->profile, placed_->plan, policy)) return false;
  // What the actors could have written, and nothing else.
  return policy_line(id_of(*placed_), header_.policy, time) == text ||
         refuse("found a policy in another form than the one that is written");
}

bool verifier::read_plan(std::string_view content, std::optional<planning::profile>& experts,
                         std::optional<planning::plan>& placed) {
  // The profile is followed by the plan, which ends the line.
  constexpr std::string_view between = R"(,"plan":{)";
  const auto split = content.rfind(between);
  if (split == std::string_view::npos)
    return refuse("found no plan after the profile, expected one");
  const auto place = fmt::format("{}:{}", place_, number_);
  auto first = planning::parse_profile(std::string(content.substr(0, split)), place + " profile");
  auto second = planning::parse_plan(std::string(content.substr(split + between.size() - 1)),
                                     place + " plan");
  if (!first || !second) {
    problem_ = first ? second.error() : first.error();
    return false;
  }
  if (auto valid = planning::validate(*second, header_.servers, header_.costs); !valid) {
    problem_ = at(place + " plan", valid.error());
    return false;
  }
  experts = std::move(*first);
  placed = std::move(*second);
  return true;
}

bool verifier::on_plan(std::string_view text) {
  line_fields fields(text);
  const auto epoch = fields.integer<std::uint64_t>("epoch");
  const auto policy = fields.integer<std::uint64_t>("policy");
  const auto reason = fields.word("reason");
  planning::weight_move found;
  found.bytes = fields.amount("moved_bytes");
  found.ns = fields.amount("moved_ns");
  const auto time = fields.amount("time_ns");
  const auto content = fields.last_value("profile");
  if (!fields.end()) return malformed(fields);
  if (!in_order(time, planner_ns_)) return false;
  if (reason != "order" && reason != "drift")
    return refuse("reason: found {}, expected order or drift", reason);
  for (const auto& [number, request] : requests_)
    if (request.placed->plan.epoch < placed_->plan.epoch)
      return refuse(
          "found a third plan, expected request {}, by the plan of epoch {}, to be done first",
          number, request.placed->plan.epoch);
  if (!same("epoch", epoch, placed_->plan.epoch + 1) || !same("policy", policy, placed_->policy))
    return false;
  std::optional<planning::profile> experts;
  std::optional<planning::plan> placed;
  if (!read_plan(content, experts, placed)) return false;
  const auto& before = *placed_;
  if (!same("epoch of the plan", placed->epoch, epoch) ||
      !same("layers of the plan", placed->n_layers, before.plan.n_layers) ||
      !same("experts of the plan", placed->n_experts, before.plan.n_experts) ||
      !same("layers of the profile", experts->n_layers, before.plan.n_layers) ||
      !same("experts of the profile", experts->n_experts, before.plan.n_experts) ||
      !same("top_k of the profile", experts->top_k, header_top_k_))
    return false;
  const auto move = planning::weights_to_move(before.plan, *placed, header_.servers, header_.costs);
  if (!same("moved_bytes", found.bytes, move.bytes) || !same("moved_ns", found.ns, move.ns))
    return false;
  forget_plan_before();
  ++summary.plans;
  if (!put_in_force(std::make_shared<const planning::profile>(std::move(*experts)),
                    std::move(*placed), policy))
    return false;
  // What the actors could have written, and nothing else.
  return plan_line(id_of(*placed_), placed_->plan, *placed_->profile, reason, move, time) == text ||
         refuse("found a profile or plan in another form than the one that is written");
}

void verifier::remember_done(const request_state& request, std::uint64_t tokens, loss_units spent,
                             std::int64_t done_ns) {
  if (!planning::has_budget_use(request.budget)) return;
  planning::answered_request answered;
  answered.request = request.terms.request;
  answered.access = request.terms.access;
  answered.prompt_tokens = request.terms.prompt_tokens;
  answered.new_tokens = static_cast<std::uint32_t>(tokens);
  answered.budget = request.budget;
  answered.spent = spent;
  answered.admitted_ns = request.admitted_ns;
  answered.done_ns = done_ns;
  answered.epoch = request.placed->plan.epoch;
  observed_[answered.request] = {answered, request.placed};
}

}  // namespace ordermoe::trace
