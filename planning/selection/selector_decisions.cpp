#include <fmt/format.h>

#include <tuple>

#include "planning/selection/selector_tables.hpp"

namespace ordermoe::planning::selection {

void tables::slot_losses(std::size_t layer, std::uint32_t target, float gate,
                         std::span<const float> probabilities, std::span<loss_units> losses) const {
  const auto& facts = layers_[layer];
  const auto* allowed = facts.allowed.data() + target * n_experts_;
  if (policy_.metric == loss_metric::token_gate) {
    const double routed = probabilities[target];
    for (std::size_t k = 0; k < n_experts_; ++k)
      losses[k] =
          allowed[k]
              ? to_substitute_units((routed - static_cast<double>(probabilities[k])) * facts.damage)
              : forbidden;
  } else {
    for (std::size_t k = 0; k < n_experts_; ++k)
      losses[k] =
          allowed[k] ? to_substitute_units(predicted_loss(facts, target, k, gate)) : forbidden;
  }
  losses[target] = 0;
}

std::size_t tables::bin_of(loss_units left) const {
  if (n_bins_ == 1) return 0;
  return std::min(static_cast<std::size_t>(static_cast<std::uint64_t>(left) /
                                           static_cast<std::uint64_t>(width_)),
                  n_bins_ - 1);
}

/// W after a choice of these experts (or for these targets): [next, bins].
const double* tables::onward_row(const layer_table& table, const std::uint32_t* experts,
                                 std::size_t count) const {
  if (table.key_stride == 0) return table.w.data();
  return table.w.data() + key_of(experts, count) * table.key_stride;
}

/// The router's best experts here, one for each slot, `stride` apart; targets that are among them
/// keep their slot.
void tables::restrict_options(const decision_query& query, const layer_facts& facts,
                              option* options, std::size_t stride, std::size_t* counts) const {
  const auto count = query.slots.size();
  const auto here = server_bit(query.server);
  const auto is_better = [&](std::size_t a, std::size_t b) {
    return query.probabilities.empty() ? query.slots[0].loss[a] < query.slots[0].loss[b]
                                       : query.probabilities[a] > query.probabilities[b];
  };
  std::array<std::uint32_t, max_slots> best{};
  std::size_t n_best = 0;
  for (std::uint32_t e = 0; e < n_experts_; ++e) {
    if ((facts.hosts[e] & here) == 0) continue;
    std::size_t at = n_best;
    while (at > 0 && is_better(e, best[at - 1])) --at;
    if (at >= count) continue;
    for (std::size_t i = std::min(n_best, count - 1); i > at; --i) best[i] = best[i - 1];
    best[at] = e;
    n_best = std::min(n_best + 1, count);
  }
  std::array<bool, max_slots> taken{};
  for (std::size_t j = 0; j < count; ++j) {
    const auto& slot = query.slots[j];
    counts[j] = 0;
    for (std::size_t i = 0; i < n_best; ++i)
      if (best[i] == slot.target) {
        taken[i] = true;
        options[j * stride] = {0, here, slot.target, 0};
        counts[j] = 1;
      }
  }
  for (std::size_t j = 0; j < count; ++j) {
    if (counts[j] != 0) continue;
    const auto& slot = query.slots[j];
    counts[j] = 1;
    if (n_best == 0) {
      options[j * stride] = {0, facts.hosts[slot.target], slot.target, 1};
      continue;
    }
    std::size_t i = 0;
    while (i < n_best && taken[i]) ++i;
    if (i == n_best) i = 0;
    taken[i] = true;
    options[j * stride] = {slot.loss[best[i]], here, best[i], 0};
  }
}

/// Candidates of each slot, eq. (40), by ascending loss.
void tables::fill_options(const decision_query& query, const layer_facts& facts, loss_units left,
                          option* options, std::size_t* counts) const {
  const auto rule = policy_.candidates;
  for (std::size_t j = 0; j < query.slots.size(); ++j) {
    const auto& slot = query.slots[j];
    option* out = options + j * n_ways_;
    std::size_t n = 0;
    const auto here = server_bit(query.server);
    const auto target_hosts = facts.way_hosts[slot.target];
    if (is_kept_local() && (target_hosts & here) != 0)
      out[n++] = {0, here, slot.target, 0};
    else
      out[n++] = {0, target_hosts, slot.target, is_kept_local() ? 1u : 0u};
    const auto add_copies = [&](auto&& add) {
      for (std::size_t kept = 1; kept < precisions_.size(); ++kept)
        for (std::uint32_t e = 0; e < n_experts_; ++e) {
          const auto hosts = facts.way_hosts[kept * n_experts_ + e];
          if (hosts == 0 || slot.loss[e] > left) continue;
          const auto loss = slot.loss[e] + copy_units(facts, kept, e, slot.gate);
          if (loss <= left) add(option{loss, hosts, e, 0});
        }
    };
    if (rule != candidate_rule::exact && !leaves_out(rule)) {
      // Insertion by loss; experts of equal loss stay in ascending order after the target.
      const auto insert = [&](const option& way) {
        std::size_t at = n++;
        for (; at > 0 && out[at - 1].loss > way.loss; --at) out[at] = out[at - 1];
        out[at] = way;
      };
      for (std::uint32_t e = 0; e < n_experts_; ++e) {
        const auto loss = slot.loss[e];
        if (loss > left || e == slot.target) continue;
        auto hosts = facts.way_hosts[e];
        if (keeps_substitutes()) hosts &= here;
        if (hosts != 0) insert({loss, hosts, e, 0});
      }
      add_copies(insert);
    }
    counts[j] = n;
  }
}

/// Chooses the servers of a candidate's slots: lowest time, then lowest sum of slot times, then
/// lowest servers.
void tables::place(const step_query& step, outcome& candidate) const {
  if (candidate.placed) return;
  candidate.placed = true;
  const std::size_t n = step.table.next[candidate.position];
  const auto only =
      policy_.residence == residence_choice::with_slot ? server_bit(n) : ~server_mask{0};
  const double stays = way_to(step, n);
  std::array<std::uint32_t, max_slots> experts{};
  std::array<server_mask, max_slots> hosts{};
  for (std::size_t j = 0; j < step.count; ++j) {
    const auto& choice = step.at(j, candidate.choice[j], n_ways_);
    experts[j] = choice.expert;
    hosts[j] = choice.hosts & only;
  }
  double best_time = infinity, best_work = infinity;
  std::array<std::uint8_t, max_slots> servers{};
  std::array<std::uint8_t, max_slots> adds{};  // 1 where the slot's expert is new at its server.
  const auto assign = [&](auto&& self, std::size_t slot) -> void {
    if (slot == step.count) {
      double time = stays, work = 0;
      for (std::size_t j = 0; j < step.count; ++j) {
        double q = 0;
        for (std::size_t i = 0; i < step.count; ++i) q += servers[i] == servers[j] ? adds[i] : 0;
        const double t = back(step, servers[j], n, q);
        time = std::max(time, t);
        work += t;
      }
      if (time < best_time || (time == best_time && work < best_work)) {
        best_time = time;
        best_work = work;
        candidate.servers = servers;
      }
      return;
    }
    for_each_server(hosts[slot], [&](std::size_t m) {
      if (step.count > 2 && back(step, m, n, 1) > best_time) return;
      servers[slot] = static_cast<std::uint8_t>(m);
      adds[slot] = 1;
      for (std::size_t i = 0; i < slot; ++i)
        if (servers[i] == m && experts[i] == experts[slot]) adds[slot] = 0;
      self(self, slot + 1);
    });
  };
  assign(assign, 0);
  candidate.time = best_time;
  candidate.work = best_work;
}

/// Keeps the better of two candidates. The candidate's cost, loss, time and leaves are known.
void tables::offer(const step_query& step, outcome& candidate, outcome& best) const {
  const auto worth = [](const outcome& x) { return std::tie(x.leaves, x.cost, x.loss, x.time); };
  if (worth(candidate) > worth(best)) return;
  if (worth(candidate) == worth(best)) {
    place(step, candidate);
    place(step, best);
    const auto order = [&](const outcome& x) {
      std::array<std::uint32_t, 2 * max_slots> slots{};
      for (std::size_t j = 0; j < step.count; ++j) {
        slots[2 * j] = x.servers[j];
        slots[2 * j + 1] = step.at(j, x.choice[j], n_ways_).expert;
      }
      return std::tuple(x.work, x.position, slots);
    };
    if (!(order(candidate) < order(best))) return;
  }
  best = candidate;
}

void tables::search_one(const step_query& step, std::size_t position, outcome& best) const {
  const std::size_t n = step.table.next[position];
  const auto only =
      policy_.residence == residence_choice::with_slot ? server_bit(n) : ~server_mask{0};
  const double stays = way_to(step, n);
  const double later = step.table.later[position];
  const double* row = step.row + position * n_bins_;
  const double lowest = is_monotone() ? row[step.full] : -infinity;
  const bool executed = step.table.key_stride != 0;
  outcome candidate;
  candidate.position = static_cast<std::uint32_t>(position);
  for (std::size_t i = 0; i < step.counts[0]; ++i) {
    const auto& choice = step.options[i];
    double time = infinity;
    for_each_server(choice.hosts & only,
                    [&](std::size_t m) { time = std::min(time, back(step, m, n, 1)); });
    if (time == infinity) continue;
    time = std::max(stays, time);
    const double cost = per_ns_ * (time + later) + step.per_unit * static_cast<double>(choice.loss);
    if (is_monotone() && cost + lowest > best.cost) continue;
    const double* onward =
        executed ? onward_row(step.table, &choice.expert, 1) + position * n_bins_ : row;
    candidate.cost = cost + onward[bin_of(step.left - choice.loss)];
    candidate.loss = choice.loss;
    candidate.time = time;
    candidate.leaves = choice.leaves;
    candidate.placed = false;
    candidate.choice[0] = static_cast<std::uint16_t>(i);
    offer(step, candidate, best);
  }
}

void tables::search_two(const step_query& step, std::size_t position, outcome& best) const {
  struct timed {
    double first, both,
        second;  // Back from the best host alone, with two experts there, from the second best.
    loss_units loss;
    std::uint32_t expert;
    std::uint16_t host;
    std::uint16_t index;
    std::uint32_t leaves;
  };
  timed ways[max_options];
  std::size_t counts[2];
  const std::size_t n = step.table.next[position];
  const double stays = way_to(step, n);
  const double later = step.table.later[position];
  const double* row = step.row + position * n_bins_;
  const bool executed = step.table.key_stride != 0;
  const bool prune = is_monotone();
  const double lowest = prune ? row[step.full] : -infinity;

  timed* out = ways;
  for (std::size_t j = 0; j < 2; ++j) {
    timed* const begin = out;
    // Lowest `both` among the options of strictly lower loss, and second lowest.
    double beaten = infinity, beaten_twice = infinity;
    const timed* settled = begin;
    for (std::size_t i = 0; i < step.counts[j]; ++i) {
      const auto& choice = step.at(j, i, n_ways_);
      double first = infinity, second = infinity;
      std::size_t host = 0;
      for_each_server(choice.hosts, [&](std::size_t m) {
        const double t = back(step, m, n, 1);
        if (t < first) {
          second = first;
          first = t;
          host = m;
        } else if (t < second) {
          second = t;
        }
      });
      // Of slots that run apart two cheaper options may be copies of one expert, which the other slot may run.
      if (prune && !executed && (!policy_.distinct || precisions_.size() == 1)) {
        for (; settled != out && settled->loss < choice.loss; ++settled) {
          if (settled->both < beaten) {
            beaten_twice = beaten;
            beaten = settled->both;
          } else if (settled->both < beaten_twice) {
            beaten_twice = settled->both;
          }
        }
        // A cheaper option is back before this one even when it shares its server: this one never
        // wins.
        if ((policy_.distinct ? beaten_twice : beaten) <= first) continue;
      }
      *out++ = {first,
                back(step, host, n, 2),
                second,
                choice.loss,
                choice.expert,
                static_cast<std::uint16_t>(host),
                static_cast<std::uint16_t>(i),
                choice.leaves};
    }
    counts[j] = static_cast<std::size_t>(out - begin);
  }

  const timed* const others = ways + counts[0];
  double soonest = infinity;
  for (std::size_t i = 0; i < counts[1]; ++i) soonest = std::min(soonest, others[i].first);
  outcome candidate;
  candidate.position = static_cast<std::uint32_t>(position);
  for (std::size_t i = 0; i < counts[0]; ++i) {
    const timed& a = ways[i];
    if (prune) {
      const double bound = per_ns_ * (std::max(stays, std::max(a.first, soonest)) + later) +
                           step.per_unit * static_cast<double>(a.loss + others[0].loss) + lowest;
      if (bound > best.cost) continue;
    }
    for (std::size_t k = 0; k < counts[1]; ++k) {
      const timed& b = others[k];
      const auto loss = a.loss + b.loss;
      if (loss > step.left) break;
      double time;
      if (a.expert == b.expert && policy_.distinct &&
          policy_.candidates != candidate_rule::router_restricted)
        continue;
      if (a.expert == b.expert && a.host == b.host) {
        time = a.first;
      } else if (a.host != b.host) {
        time = std::max(a.first, b.first);
      } else {
        time = std::min(a.both, std::min(a.second, b.second));
      }
      time = std::max(stays, time);
      const double cost = per_ns_ * (time + later) + step.per_unit * static_cast<double>(loss);
      if (prune && cost + lowest > best.cost) continue;
      const double* onward = row;
      if (executed) {
        const std::array<std::uint32_t, 2> experts{a.expert, b.expert};
        onward = onward_row(step.table, experts.data(), 2) + position * n_bins_;
      }
      candidate.cost = cost + onward[bin_of(step.left - loss)];
      candidate.loss = loss;
      candidate.time = time;
      candidate.leaves = a.leaves + b.leaves;
      candidate.placed = false;
      candidate.choice[0] = a.index;
      candidate.choice[1] = b.index;
      offer(step, candidate, best);
    }
  }
}

void tables::search_many(const step_query& step, std::size_t position, outcome& best) const {
  const std::size_t n = step.table.next[position];
  const double stays = way_to(step, n);
  const double later = step.table.later[position];
  const double* row = step.row + position * n_bins_;
  const bool executed = step.table.key_stride != 0;
  const double lowest = is_monotone() ? row[step.full] : -infinity;
  outcome candidate;
  candidate.position = static_cast<std::uint32_t>(position);
  std::array<std::uint32_t, max_slots> experts{};
  const auto fill = [&](auto&& self, std::size_t slot, loss_units loss, double time,
                        std::uint32_t leaves) -> void {
    const double partial = per_ns_ * (time + later) + step.per_unit * static_cast<double>(loss);
    if (is_monotone() && partial + lowest > best.cost) return;
    if (slot == step.count) {
      outcome whole = candidate;
      whole.loss = loss;
      whole.leaves = leaves;
      place(step, whole);
      const double* onward =
          executed ? onward_row(step.table, experts.data(), step.count) + position * n_bins_ : row;
      whole.cost = per_ns_ * (whole.time + later) + step.per_unit * static_cast<double>(loss) +
                   onward[bin_of(step.left - loss)];
      offer(step, whole, best);
      return;
    }
    for (std::size_t i = 0; i < step.counts[slot]; ++i) {
      const auto& choice = step.at(slot, i, n_ways_);
      if (loss + choice.loss > step.left) break;
      if (policy_.distinct && policy_.candidates != candidate_rule::router_restricted &&
          std::find(experts.begin(), experts.begin() + slot, choice.expert) !=
              experts.begin() + slot)
        continue;
      double first = infinity;
      for_each_server(choice.hosts,
                      [&](std::size_t m) { first = std::min(first, back(step, m, n, 1)); });
      experts[slot] = choice.expert;
      candidate.choice[slot] = static_cast<std::uint16_t>(i);
      self(self, slot + 1, loss + choice.loss, std::max(time, first), leaves + choice.leaves);
    }
  };
  fill(fill, 0, 0, stays, 0);
}

void tables::search(const step_query& step, server_mask residences, outcome& best) const {
  const auto& next = step.table.next;
  const auto search_at = [&](std::size_t position) {
    if (step.count == 1)
      search_one(step, position, best);
    else if (step.count == 2)
      search_two(step, position, best);
    else
      search_many(step, position, best);
  };
  // The residence that could be the cheapest goes first, so that most others need no look.
  std::array<double, 64> bound;
  std::size_t first = next.size();
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (((residences >> next[i]) & 1u) == 0) continue;
    bound[i] =
        per_ns_ * (way_to(step, next[i]) + step.table.later[i]) + step.row[i * n_bins_ + step.full];
    if (first == next.size() || bound[i] < bound[first]) first = i;
  }
  if (first == next.size()) return;
  search_at(first);
  for (std::size_t i = 0; i < next.size(); ++i) {
    if (i == first || ((residences >> next[i]) & 1u) == 0) continue;
    if (is_monotone() && bound[i] > best.cost) continue;
    search_at(i);
  }
}

decision tables::select(const decision_query& query) const {
  const auto count = query.slots.size();
  ORDERMOE_CHECK(count >= 1 && count <= top_k_,
                 fmt::format("a decision was asked for {} slots of a top-{} model", count, top_k_));
  ORDERMOE_CHECK(
      query.layer < n_layers_ && query.server < n_servers_ && query.access < n_servers_ &&
          (query.wait_ns.empty() || query.wait_ns.size() == n_servers_) &&
          (query.link_ns.empty() || query.link_ns.size() == hidden_to_.size()),
      fmt::format("a decision was asked for layer {}, server {} and access server {} with {} waits "
                  "of servers and {} links",
                  query.layer, query.server, query.access, query.wait_ns.size(),
                  query.link_ns.size()));
  const auto rule = policy_.candidates;
  for (const auto& slot : query.slots)
    ORDERMOE_CHECK(slot.target < n_experts_ &&
                       (slot.loss.size() == n_experts_ || rule == candidate_rule::exact),
                   fmt::format("a slot has target {} and {} losses, the layer {} experts",
                               slot.target, slot.loss.size(), n_experts_));
  return leaves_out(rule) ? select_leaving(query) : select_all(query);
}

decision tables::select_all(const decision_query& query) const {
  if (has_expert_keys()) return select_many(query);
  const auto count = query.slots.size();
  const auto rule = policy_.candidates;
  const auto& facts = layers_[query.layer];
  const auto& table = residencies_[residency_of_[query.access]].layers[query.layer];

  option options[max_options];
  std::array<std::size_t, max_slots> counts;
  loss_units left = std::max<loss_units>(0, query.budget_left);
  if (token_budget_ == 0) left = 0;
  if (rule == candidate_rule::router_restricted) {
    left = unbounded_budget;
    restrict_options(query, facts, options, n_ways_, counts.data());
  } else {
    fill_options(query, facts, left, options, counts.data());
  }

  const double* row = table.low.data();
  std::array<double, 64> ready;
  const double* const links = links_of(query);
  const bool waits = !query.wait_ns.empty();
  for (std::size_t m = 0; m < n_servers_; ++m)
    ready[m] =
        links[m * n_servers_ + query.server] + (waits ? static_cast<double>(query.wait_ns[m]) : 0);
  const step_query step{query,        facts,         table, count,
                        options,      counts.data(), left,  row,
                        bin_of(left), ready.data(),  links, per_unit_ * query.price_scale};

  outcome best;
  const auto asked = table.next_mask & query.residences;
  search(step, asked != 0 ? asked : table.next_mask, best);
  if (best.cost == infinity) search(step, table.next_mask, best);
  ORDERMOE_CHECK(best.cost < infinity,
                 fmt::format("no server can run layer {} for a token at server {}", query.layer,
                             query.server));
  place(step, best);

  decision made;
  made.residence = table.next[best.position];
  made.n_slots = static_cast<std::uint32_t>(count);
  for (std::size_t j = 0; j < count; ++j) {
    const auto& choice = step.at(j, best.choice[j], n_ways_);
    made.slots[j] = {best.servers[j], choice.expert, choice.loss};
  }
  made.time_ns = best.time;
  made.cost = best.cost;
  return made;
}

}  // namespace ordermoe::planning::selection
