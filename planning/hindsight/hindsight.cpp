#include "planning/hindsight/hindsight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>
#include <utility>

namespace ordermoe::planning {

namespace {

constexpr double sum_rounding = 1e-9;  // Of sums in another order.

/// Substitutes run where the token is and nowhere else.
bool keeps_substitutes(candidate_rule rule) {
  return rule == candidate_rule::local_only || rule == candidate_rule::local_skip ||
         rule == candidate_rule::here_or_target || rule == candidate_rule::router_restricted;
}

error unlike(std::string what) {
  return {
      errc::failed,
      std::move(what) + "; the trace is not of this plan and policy, see `ordermoe trace verify`"};
}

double percent_over(double taken, double least) {
  return least > 0 ? 100 * (taken / least - 1) : 0;
}

}  // namespace

double request_gap::gap_percent() const {
  return percent_over(taken_ns, best.ns);
}

double request_gap::most_gap_percent() const {
  return percent_over(taken_ns, best.bound_ns);
}

/// The steps of a request: as they can be, and with bounds in place of losses where a search was given up.
struct hindsight::problem {
  layered_problem exact, relaxed;
  bool is_relaxed = false;
  double fixed_ns = 0;  ///< Before the first step.
  row_fronts fronts;

  problem(const cost_model& prices, const hindsight_options& options)
      : fronts(prices, options.max_nodes) {
    exact.max_labels = relaxed.max_labels = options.max_labels;
  }

  result<layered_optimum> best_within(loss_units budget, const request_total& decided);
};

result<layered_optimum> hindsight::problem::best_within(loss_units budget,
                                                        const request_total& decided) {
  exact.budget = relaxed.budget = budget;
  auto best = best_layered_path(exact);
  if (!best) return best.error();
  if (is_relaxed) {
    // Where fronts are no proof, what bounds them is one.
    const auto bound = best_layered_path(relaxed);
    if (!bound) return bound.error();
    best->bound_ns = std::min(best->ns, bound->bound_ns);
    best->is_exact = best->bound_ns >= best->ns;
  }
  best->ns += fixed_ns;
  best->bound_ns += fixed_ns;
  // What was decided is one of the ways, too.
  if (decided.loss > budget || decided.ns >= best->ns) return best;
  if (decided.ns < best->bound_ns * (1 - sum_rounding))
    return unlike("found decisions that are faster than what the policy lets be");
  best->bound_ns = std::min(best->bound_ns, decided.ns);
  best->ns = decided.ns;
  best->loss = decided.loss;
  return best;
}

result<hindsight> hindsight::make(const profile& profile, const plan& placed,
                                  const cost_model& prices, const selection_policy& policy) {
  // Only what slots lose is asked for.
  auto near = policy;
  near.horizon = 1;
  auto losses = selection_tables::build(profile, placed, prices, near, unbounded_budget);
  if (!losses) return losses.error();
  return hindsight(profile, placed, prices, policy, std::move(*losses));
}

hindsight::hindsight(const profile& profile, const plan& placed, const cost_model& prices,
                     const selection_policy& policy, std::shared_ptr<const selection_tables> losses)
    : profile_(profile),
      placed_(placed),
      hosts_(placed),
      prices_(prices),
      policy_(policy),
      losses_(std::move(losses)) {
  if (prices_.expert_precision.empty())
    prices_.expert_precision.assign(prices_.n_servers, precision::stored);
  const bool uses_copies = policy.candidates == candidate_rule::any && policy.calibrated;
  for (std::size_t m = 0; m < prices_.n_servers; ++m)
    if (uses_copies || prices_.expert_precision[m] == precision::stored) usable_ |= server_bit(m);
}

// ------------------------------------------------------------------------------------ what slots can do

loss_units hindsight::copy_loss(std::size_t layer, std::size_t server, std::uint32_t expert,
                                float gate) const {
  const auto kept = prices_.expert_precision[server];
  if (kept == precision::stored) return 0;
  const auto* copy = profile_.layers[layer].copy_of(kept);
  const double per_gate =
      std::max(damage_floor, copy->damage) * copy->distance[expert] * copy->distance[expert];
  return to_substitute_units(per_gate * static_cast<double>(gate) * static_cast<double>(gate));
}

void hindsight::add_places(std::size_t layer, const past_row& row, const past_slot& slot,
                           row_slot& into) const {
  const auto rule = policy_.candidates;
  const auto add = [&](std::uint32_t expert, loss_units loss, bool stays) {
    for_each_server(hosts_.hosts(layer, expert) & usable_, [&](std::size_t m) {
      into.places.push_back({loss + copy_loss(layer, m, expert, slot.gate), expert,
                             static_cast<std::uint8_t>(m), stays});
    });
  };
  if (prunes()) {
    // What the router chose in the place of what it may not; what that lost is past.
    if (slot.expert != left_out) add(slot.expert, slot.loss, false);
    return;
  }
  const bool skips = rule == candidate_rule::local_skip;
  if (rule == candidate_rule::exact || (leaves_out(rule) && !skips)) {
    add(slot.target, 0, false);
  } else {
    std::vector<loss_units> losses(profile_.n_experts);
    losses_->slot_losses(layer, slot.target, slot.gate, row.probabilities, losses);
    for (std::uint32_t e = 0; e < losses.size(); ++e)
      if (losses[e] < forbidden)
        add(e, losses[e], e == slot.target ? skips : keeps_substitutes(rule));
  }
  if (!leaves_out(rule) && !policy_.may_leave_out) return;
  const auto everywhere = all_servers(prices_.n_servers);
  into.may_be_left_out = rule == candidate_rule::weigh || policy_.may_leave_out
                             ? everywhere
                             : everywhere & ~(hosts_.hosts(layer, slot.target) & usable_);
  into.loss_left_out =
      losses_->loss_left_out(layer, {slot.target, slot.gate, {}}, row.probabilities);
}

/// The row as losses at its position go by it.
past_row hindsight::weighed(past_row row) const {
  const double position_damage = losses_->position_damage(row.position, row.unread_before);
  if (position_damage == 1) return row;
  for (auto& p : row.probabilities)
    p = static_cast<float>(static_cast<double>(p) * position_damage);
  const auto of_gate = static_cast<float>(std::sqrt(position_damage));
  for (auto& slot : row.slots) slot.gate *= of_gate;
  return row;
}

row_choices hindsight::choices_of(std::size_t layer, const past_row& past) const {
  const auto row = weighed(past);
  row_choices made;
  made.distinct = policy_.distinct && policy_.candidates != candidate_rule::router_restricted;
  made.one_slot_runs = policy_.candidates == candidate_rule::weigh || policy_.may_leave_out;
  made.with_slot = policy_.residence == residence_choice::with_slot;
  for (const auto& slot : row.slots) {
    row_slot into;
    add_places(layer, row, slot, into);
    made.slots.push_back(std::move(into));
  }
  return made;
}

/// Whether what was decided is among the choices.
bool hindsight::has_been_offered(const row_choices& row, const past_step& step,
                                 const past_row& past) const {
  for (std::size_t j = 0; j < past.slots.size(); ++j) {
    const auto& slot = past.slots[j];
    const auto& offered = row.slots[j];
    const bool found =
        slot.expert == left_out
            ? ((offered.may_be_left_out >> step.server) & 1u) != 0 &&
                  offered.loss_left_out == slot.loss
            : std::any_of(offered.places.begin(), offered.places.end(), [&](const auto& place) {
                return place.expert == slot.expert && place.server == slot.server &&
                       place.loss == slot.loss &&
                       (!place.at_token_alone || place.server == step.server);
              });
    if (!found) return false;
  }
  return true;
}

// ------------------------------------------------------------------------------------ what is paid

double hindsight::row_ns(const past_step& step, const past_row& row) const {
  double latest = prices_.hidden(step.server, step.residence);
  for (const auto& slot : row.slots) {
    if (slot.expert == left_out) continue;
    std::set<std::uint32_t> run;
    for (const auto& other : row.slots)
      if (other.expert != left_out && other.server == slot.server) run.insert(other.expert);
    latest = std::max(latest, prices_.hidden(step.server, slot.server) +
                                  static_cast<double>(run.size()) * prices_.expert_ns[slot.server] +
                                  prices_.hidden(slot.server, step.residence));
  }
  return latest;
}

std::size_t hindsight::nearest_start(std::size_t access, std::size_t from) const {
  std::size_t best = 64;
  for_each_server(placed_.residence[access].layers[0], [&](std::size_t m) {
    if (best == 64 || prices_.message(from, m) < prices_.message(from, best)) best = m;
  });
  return best;
}

std::size_t hindsight::next_start(const past_request& request, const past_chunk& chunk,
                                  std::size_t at) const {
  return nearest_start(request.access, chunk.is_sampled && request.in_place ? at : request.access);
}

double hindsight::end_ns(const past_request& request, const past_chunk& chunk, std::size_t at,
                         bool is_last) const {
  const auto next = next_start(request, chunk, at);
  double ns = 0;
  if (chunk.is_sampled) {
    ns += prices_.head_ns[at];
    if (is_last) return ns + prices_.message(at, request.access);
    ns += request.in_place
              ? prices_.message(at, next)
              : prices_.message(at, request.access) + prices_.message(request.access, next);
  }
  return is_last ? ns : ns + prices_.attention_ns[next];
}

server_mask hindsight::residences(std::size_t layer, std::size_t access) const {
  const auto& members = placed_.residence[access].layers;
  if (layer + 1 < members.size()) return members[layer + 1];
  return policy_.residence == residence_choice::with_slot ? all_servers(prices_.n_servers)
                                                          : members.back() | members.front();
}

// ------------------------------------------------------------------------------------ all together

namespace {

/// What the rows of a chunk can do together: the slowest one's time, the sum of their losses.
std::vector<row_point> side_by_side(const std::vector<std::vector<row_point>>& fronts) {
  if (fronts.size() == 1) return fronts.front();
  std::vector<double> times;
  for (const auto& front : fronts)
    for (const auto& point : front) times.push_back(point.ns);
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  std::vector<std::size_t> at(fronts.size(), 0);
  std::vector<row_point> all;
  for (const double time : times) {
    row_point sum{time, 0, 0};
    bool is_complete = true;
    for (std::size_t i = 0; i < fronts.size() && is_complete; ++i) {
      while (at[i] < fronts[i].size() && fronts[i][at[i]].ns <= time) ++at[i];
      is_complete = at[i] > 0;
      if (!is_complete) break;
      const auto& now = fronts[i][at[i] - 1];
      sum.loss = std::min(forbidden, sum.loss + now.loss);
      sum.least_loss += now.least_loss;
    }
    if (is_complete) all.push_back(sum);
  }
  return all;
}

}  // namespace

result<void> hindsight::add_step(const past_request& request, std::size_t number, std::size_t layer,
                                 problem& into) const {
  const auto& chunk = request.chunks[number];
  const auto& step = chunk.layers[layer];
  std::vector<row_choices> rows;
  for (const auto& past : step.rows) {
    rows.push_back(choices_of(layer, past));
    if (!has_been_offered(rows.back(), step, past))
      return unlike(
          fmt::format("layer {}, server {}: found a decision that the policy does not "
                      "offer, or another loss, expected one that it does",
                      layer, step.server));
    row_fronts::sort(rows.back());
  }
  const bool is_end = layer + 1 == chunk.layers.size();
  const bool is_last = is_end && number + 1 == request.chunks.size();
  std::vector<step_way> ways, bounds;
  std::vector<std::vector<row_point>> fronts(rows.size());
  for_each_server(placed_.residence[request.access].layers[layer], [&](std::size_t from) {
    for_each_server(residences(layer, request.access), [&](std::size_t to) {
      for (std::size_t i = 0; i < rows.size(); ++i)
        fronts[i] = into.fronts.between(rows[i], from, to);
      const double after = is_end ? end_ns(request, chunk, to, is_last) : prices_.attention_ns[to];
      const auto node = static_cast<std::uint8_t>(is_end ? next_start(request, chunk, to) : to);
      const auto origin = static_cast<std::uint8_t>(from);
      for (const auto& point : side_by_side(fronts)) {
        if (point.loss < forbidden) ways.push_back({origin, node, point.ns + after, point.loss});
        bounds.push_back({origin, node, point.ns + after, point.least_loss});
        into.is_relaxed = into.is_relaxed || point.loss != point.least_loss;
      }
    });
  });
  into.exact.steps.push_back(std::move(ways));
  into.relaxed.steps.push_back(std::move(bounds));
  return {};
}

/// The fastest step each time, whatever follows; among equals that of the lower loss.
static request_total greedy(const layered_problem& problem) {
  request_total sum;
  auto node = problem.start;
  for (const auto& step : problem.steps) {
    const step_way* best = nullptr;
    for (const auto& way : step)
      if (way.from == node &&
          (best == nullptr || std::tie(way.ns, way.loss) < std::tie(best->ns, best->loss)))
        best = &way;
    if (best == nullptr) return {std::numeric_limits<double>::infinity(), 0};
    sum.ns += best->ns;
    sum.loss += best->loss;
    node = best->to;
  }
  return sum;
}

result<request_total> hindsight::taken(const past_request& request) const {
  request_total sum;
  auto server = nearest_start(request.access, request.access);
  sum.ns = prices_.attention_ns[server];
  for (std::size_t c = 0; c < request.chunks.size(); ++c) {
    const auto& chunk = request.chunks[c];
    if (chunk.layers.size() != profile_.n_layers)
      return unlike(fmt::format("found a chunk of {} layers, expected {}", chunk.layers.size(),
                                profile_.n_layers));
    for (const auto& step : chunk.layers) {
      if (step.server != server)
        return unlike(
            fmt::format("found a decision at server {}, expected server {}", step.server, server));
      double slowest = 0;
      for (const auto& row : step.rows) {
        slowest = std::max(slowest, row_ns(step, row));
        for (const auto& slot : row.slots) sum.loss += slot.loss;
      }
      sum.ns += slowest;
      server = step.residence;
      if (&step != &chunk.layers.back()) sum.ns += prices_.attention_ns[server];
    }
    sum.ns += end_ns(request, chunk, server, c + 1 == request.chunks.size());
    server = next_start(request, chunk, server);
  }
  return sum;
}

result<request_gap> hindsight::solve(const past_request& request,
                                     const hindsight_options& options) const {
  const auto decided = taken(request);
  if (!decided) return decided.error();
  problem all(prices_, options);
  all.exact.start = all.relaxed.start = nearest_start(request.access, request.access);
  all.fixed_ns = prices_.attention_ns[all.exact.start];
  for (std::size_t c = 0; c < request.chunks.size(); ++c)
    for (std::size_t l = 0; l < profile_.n_layers; ++l)
      if (auto added = add_step(request, c, l, all); !added) return added.error();
  const auto best = all.best_within(request.budget, *decided);
  if (!best) return best.error();
  const auto at_loss =
      decided->loss < request.budget ? all.best_within(decided->loss, *decided) : best;
  if (!at_loss) return at_loss.error();
  const auto nearest = greedy(all.exact);
  request_gap gap;
  gap.taken_ns = decided->ns;
  gap.taken_loss = decided->loss;
  gap.best = *best;
  gap.best_at_loss = *at_loss;
  gap.ahead_changes_nothing = best->is_exact && nearest.loss <= request.budget &&
                              nearest.ns + all.fixed_ns <= best->ns * (1 + sum_rounding);
  return gap;
}

}  // namespace ordermoe::planning
