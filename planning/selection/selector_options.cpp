#include "planning/selection/selector_tables.hpp"

/// Which experts a slot may run, and where, under each rule that lists them.
namespace ordermoe::planning::selection {

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

/// Candidates of each slot, eq. (40), by ascending loss: options [slot, n_ways], counts [slot] of them.
void tables::fill_options(const situation& now, option* options, std::size_t* counts) const {
  if (policy_.candidates == candidate_rule::router_restricted) {
    restrict_options(now.query, now.facts, options, n_ways_, counts);
    return;
  }
  const auto here = server_bit(now.query.server);
  for (std::size_t j = 0; j < now.query.slots.size(); ++j) {
    const auto& slot = now.query.slots[j];
    option* const out = options + j * n_ways_;
    std::size_t n = 0;
    const auto target_hosts = now.facts.way_hosts[slot.target];
    if (is_kept_local() && (target_hosts & here) != 0)
      out[n++] = {0, here, slot.target, 0};
    else
      out[n++] = {0, target_hosts, slot.target, is_kept_local() ? 1u : 0u};
    // Experts of equal loss stay in ascending order after the target.
    const auto insert = [&](const option& way) {
      std::size_t at = n++;
      for (; at > 0 && out[at - 1].loss > way.loss; --at) out[at] = out[at - 1];
      out[at] = way;
    };
    for (std::uint32_t e = 0; substitutes() && e < n_experts_; ++e) {
      if (slot.loss[e] > now.left || e == slot.target) continue;
      auto hosts = now.facts.way_hosts[e];
      if (keeps_substitutes()) hosts &= here;
      if (hosts != 0) insert({slot.loss[e], hosts, e, 0});
    }
    for (std::size_t kept = 1; substitutes() && kept < precisions_.size(); ++kept)
      for (std::uint32_t e = 0; e < n_experts_; ++e) {
        const auto hosts = now.facts.way_hosts[kept * n_experts_ + e];
        if (hosts == 0 || slot.loss[e] > now.left) continue;
        const auto loss = slot.loss[e] + copy_units(now.facts, kept, e, slot.gate);
        if (loss <= now.left) insert({loss, hosts, e, 0});
      }
    counts[j] = n;
  }
}

}  // namespace ordermoe::planning::selection
