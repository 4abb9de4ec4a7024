#include "planning/serving/arrivals.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <string>
#include <utility>

namespace ordermoe::serving {

namespace {

/// A day: longer than any wait that makes sense.
constexpr std::int64_t longest_ns = 86'400'000'000'000;
/// A deadline is a year away at most, and a lease some seconds behind it.
constexpr std::int64_t longest_lease_ns = 366 * longest_ns;
/// Of links: from a telegraph to what no card carries yet.
constexpr double least_bytes_per_s = 1, most_bytes_per_s = 1e15;

/// The first thing that is wrong with a message.
class findings {
 public:
  explicit findings(wire::frame_kind kind) : kind_(kind) {}

  template <class Number>
  void within(const char* field, Number found, Number low, Number high) {
    if (found < low || found > high)
      refuse(fmt::format("{}: found {}, expected {} to {}", field, found, low, high));
  }
  void below(const char* field, std::uint32_t found, std::uint32_t end) {
    if (found >= end) refuse(fmt::format("{}: found {}, expected less than {}", field, found, end));
  }
  void same(const char* field, std::uint32_t found, std::uint32_t expected) {
    if (found != expected) refuse(fmt::format("{}: found {}, expected {}", field, found, expected));
  }
  void budget(const char* field, loss_units found) {
    within<loss_units>(field, found, 0, unbounded_budget);
  }
  void that(bool holds, const char* what) {
    if (!holds) refuse(what);
  }
  bool failed() const { return !problem_.empty(); }
  result<void> outcome() const {
    if (!failed()) return {};
    return error{errc::out_of_range, fmt::format("{} frame: {}", wire::to_string(kind_), problem_)};
  }

 private:
  void refuse(std::string what) {
    if (problem_.empty()) problem_ = std::move(what);
  }
  wire::frame_kind kind_;
  std::string problem_;
};

void check_ids(findings& found, const char* field, std::span<const std::int32_t> ids,
               const arrival_limits& limits) {
  for (const auto id : ids) {
    found.that(id >= 0, "a negative token id");
    found.below(field, static_cast<std::uint32_t>(id), limits.vocabulary);
    if (found.failed()) return;
  }
}

void check_number(findings& found, std::uint64_t request, std::uint32_t access) {
  found.that(wire::may_number(access, request), "a request that another server numbered");
}

void check_terms(findings& found, const wire::request_terms& terms, const arrival_limits& limits) {
  found.below("access", terms.access, limits.n_servers);
  check_number(found, terms.request, terms.access);
  found.within("prompt_tokens", terms.prompt_tokens, 1u, limits.most_positions);
  found.within("max_new_tokens", terms.max_new_tokens, 0u,
               limits.most_positions - std::min(terms.prompt_tokens, limits.most_positions));
  found.within("given_tokens", terms.given_tokens, terms.prompt_tokens, limits.most_positions);
  found.that(terms.given_tokens <= std::uint64_t{terms.prompt_tokens} + terms.max_new_tokens,
             "more positions are given than there are");
  found.that(terms.temperature >= 0 && terms.temperature <= 1e6, "a temperature that is none");
  found.that(terms.continue_in_place <= 1 && terms.score <= 1 && terms.ignore_end_of_text <= 1,
             "a flag that is neither 0 nor 1");
}

void check_rules(findings& found, const wire::sampling_rules& rules, const arrival_limits& limits) {
  constexpr double most_penalty = 1000;
  constexpr float most_bias = 1000;
  found.that(rules.top_p > 0 && rules.top_p <= 1, "a top_p that is none");
  found.that(std::abs(rules.presence_penalty) <= most_penalty &&
                 std::abs(rules.frequency_penalty) <= most_penalty,
             "a penalty beyond 1000");
  found.within("logprobs", rules.logprobs, 0u, wire::most_logprobs);
  found.that(rules.bias_ids.size() <= wire::most_biases, "more than 1024 biases");
  found.that(std::ranges::adjacent_find(rules.bias_ids, std::ranges::greater_equal()) ==
                 rules.bias_ids.end(),
             "biases out of order");
  found.that(
      std::ranges::all_of(rules.bias, [](float bias) { return std::abs(bias) <= most_bias; }),
      "a bias beyond 1000");
  found.that(rules.answered.size() <= limits.most_positions, "a longer answer than positions");
  check_ids(found, "id with a bias", rules.bias_ids, limits);
  check_ids(found, "id of the answer", rules.answered, limits);
}

void check_slots(findings& found, const wire::token_state& state, const arrival_limits& limits) {
  for (const auto n : state.slots_of_row) found.within("slots of a row", n, 0u, limits.top_k);
  for (const auto& slot : state.slots) {
    found.below("server of a slot", slot.server, limits.n_servers);
    found.below("expert of a slot", slot.expert, limits.n_experts);
  }
}

void check_problem(findings& found, std::uint8_t code, const std::string& text) {
  found.within<std::uint32_t>("code", code, 0, static_cast<std::uint32_t>(errc::failed));
  found.that(text.size() <= wire::most_problem_bytes, "a text of more than 1024 bytes");
}

/// Where attention of a layer may run, or, behind the last layer and for outputs of it, where a token
/// may go from there.
planning::server_mask members_at(const planning::plan& placed, std::uint32_t access,
                                 std::uint32_t layer) {
  const auto& layers = placed.residence[access].layers;
  return layer < layers.size() ? layers[layer] : layers.back() | layers.front();
}

}  // namespace

bool serves(const planning::plan& placed, std::uint32_t access, std::uint32_t server) {
  return std::ranges::any_of(
      placed.residence[access].layers,
      [server](planning::server_mask layer) { return ((layer >> server) & 1u) != 0; });
}

result<void> check(const wire::token_state& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed) {
  findings found(wire::frame_kind::token);
  check_terms(found, message.terms, limits);
  const bool awaits = !message.slots_of_row.empty();
  const auto rows = static_cast<std::uint32_t>(std::min<std::size_t>(message.ids.size(), 1u << 31));
  found.within("rows", rows, 1u, limits.most_rows);
  if (found.failed()) return found.outcome();
  found.within("first", message.first, 0u, limits.most_positions - rows);
  found.below("layer", message.layer, limits.n_layers + (awaits ? 0 : 1));
  check_ids(found, "token id", message.ids, limits);
  found.that(message.forced.size() <= limits.most_positions, "more ids follow than positions");
  check_ids(found, "id that follows", message.forced, limits);
  found.that(
      message.terms.score == 0 || rows == 1 || message.first + rows <= message.terms.given_tokens,
      "more than one scored row");
  found.that(!message.hidden.empty() || message.layer == 0 || message.layer == limits.decoded_layer,
             "no hidden state behind the first layer");
  found.budget("pool", message.pool);
  found.budget("spent", message.spent);
  for (const auto allowance : message.allowance) found.budget("allowance", allowance);
  check_slots(found, message, limits);
  if (message.sampling) check_rules(found, *message.sampling, limits);
  if (found.failed()) return found.outcome();
  const auto layer = message.layer + (awaits ? 1 : 0);
  found.that((members_at(placed, message.terms.access, layer) >> limits.self) & 1u,
             "this server is not in the residency of its layer");
  found.that(sender == message.terms.access || serves(placed, message.terms.access, sender),
             "a token of a request that the sender has no part in");
  return found.outcome();
}

result<void> check(const wire::expert_call& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed,
                   const planning::placement_index& index) {
  findings found(wire::frame_kind::call);
  found.below("layer", message.layer, limits.n_layers);
  found.below("access", message.token.access, limits.n_servers);
  check_number(found, message.token.request, message.token.access);
  found.below("reply_to", message.reply_to, limits.n_servers);
  found.below("row", message.rows.back(), limits.most_rows);
  found.below("position", message.token.first, limits.most_positions);
  if (found.failed()) return found.outcome();
  found.that(serves(placed, message.token.access, sender),
             "a call for a request that the sender has no part in");
  found.that(serves(placed, message.token.access, message.reply_to),
             "outputs for a server that has no part in the request");
  for (const auto& item : message.items) {
    found.below("slot", item.slot, limits.top_k);
    found.below("expert", item.expert, limits.n_experts);
    if (found.failed()) break;
    found.that(index.hosts(limits.self, message.layer, item.expert),
               "the plan does not place this expert here");
  }
  return found.outcome();
}

result<void> check(const wire::expert_output& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::placement_index& index) {
  findings found(wire::frame_kind::output);
  found.below("layer", message.layer, limits.n_layers);
  if (found.failed()) return found.outcome();
  bool any = false;
  for (std::uint32_t expert = 0; expert < limits.n_experts && !any; ++expert)
    any = index.hosts(sender, message.layer, expert);
  found.that(any, "outputs of a layer that the sender hosts no expert of");
  found.below("position", message.token.first, limits.most_positions);
  for (const auto& row : message.rows) {
    found.below("row", row.row, limits.most_rows);
    if (row.slot != wire::whole_row) found.below("slot", row.slot, limits.top_k);
  }
  check_problem(found, message.code, message.problem);
  return found.outcome();
}

result<void> check(const wire::kv_rows& message, const arrival_limits& limits) {
  findings found(wire::frame_kind::kv);
  found.below("layer", message.layer, limits.n_layers);
  for (const auto& block : message.blocks) {
    found.within("rows", block.n, 1u, limits.most_positions);
    found.within("first", block.first, 0u,
                 limits.most_positions - std::min(block.n, limits.most_positions));
  }
  return found.outcome();
}

result<void> check(const wire::progress_report& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed) {
  findings found(wire::frame_kind::progress);
  found.same("access", message.access, limits.self);
  found.that(serves(placed, limits.self, sender),
             "a report of a request that the sender has no part in");
  found.within("position", message.position, 0u, limits.most_positions);
  found.within<std::int64_t>("id", message.id, -1, std::int64_t{limits.vocabulary} - 1);
  found.that(message.last <= 1, "a flag that is neither 0 nor 1");
  found.budget("pool", message.pool);
  found.budget("spent", message.spent);
  found.that(message.hidden.empty() || message.hidden.size() == limits.hidden_size,
             "a hidden state of another size");
  found.that(message.logprobs.size() <= wire::most_logprobs, "more logprobs than are asked for");
  for (const auto& each : message.logprobs)
    found.within<std::int64_t>("id with a logprob", each.id, 0,
                               std::int64_t{limits.vocabulary} - 1);
  return found.outcome();
}

result<void> check(const wire::reservation& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed) {
  using wire::reserve_step;
  findings found(wire::frame_kind::reservation);
  const bool answer = message.step == reserve_step::granted ||
                      message.step == reserve_step::refused || message.step == reserve_step::fenced;
  found.same("server", message.server, answer ? sender : limits.self);
  found.same("access", message.access, answer ? limits.self : sender);
  check_number(found, message.request, message.access);
  const bool asks = message.step == reserve_step::attempt || message.step == reserve_step::wait;
  found.within<std::int64_t>("bytes", message.bytes, asks ? 1 : 0,
                             asks ? limits.kv_bytes : std::int64_t{1} << 60);
  if (asks)
    found.that(serves(placed, sender, limits.self),
               "memory for requests that this server has no part in");
  found.within<std::int64_t>("lease_ns", message.lease_ns, 0, longest_lease_ns);
  return found.outcome();
}

result<void> check(const wire::load_report& message, std::uint32_t sender,
                   const arrival_limits& limits) {
  findings found(wire::frame_kind::load);
  found.same("server", message.server, sender);
  found.below("server", message.server, limits.n_servers);
  found.within<std::int64_t>("wait_ns", message.wait_ns, 0, longest_ns);
  found.that(message.link_wait_ns.size() == limits.n_servers, "not one wait for each link");
  for (const auto wait : message.link_wait_ns)
    found.within<std::int64_t>("link_wait_ns", wait, 0, longest_ns);
  return found.outcome();
}

result<void> check(const wire::link_report& message, std::uint32_t sender,
                   const arrival_limits& limits) {
  findings found(wire::frame_kind::links);
  found.same("server", message.server, sender);
  found.below("server", message.server, limits.n_servers);
  found.that(message.links.size() == limits.n_servers, "not one entry for each link");
  for (const auto& link : message.links) {
    found.within<std::int64_t>("latency_ns", link.latency_ns, -1, longest_ns);
    // Not a number is not within anything.
    found.that(link.bytes_per_s == 0 ||
                   (link.bytes_per_s >= least_bytes_per_s && link.bytes_per_s <= most_bytes_per_s),
               "a link of no rate that there is");
  }
  return found.outcome();
}

result<void> check(const wire::failure_report& message, std::uint32_t sender,
                   const arrival_limits& limits, const planning::plan& placed) {
  findings found(wire::frame_kind::failure);
  found.same("server", message.server, sender);
  found.that(serves(placed, limits.self, sender),
             "a failure of a request that the sender has no part in");
  check_problem(found, message.code, message.text);
  return found.outcome();
}

}  // namespace ordermoe::serving
