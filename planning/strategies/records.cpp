#include <cmath>
#include <limits>

#include "planning/strategies/strategy_plans.hpp"

/// The table of strategies: what a run can name.
namespace ordermoe::planning {

namespace {

// ------------------------------------------------------------------------------------- policies

selection_policy exact_policy(std::string name) {
  selection_policy policy;
  policy.name = std::move(name);
  policy.candidates = candidate_rule::exact;
  policy.horizon = 1;
  policy.omega_time = 1;
  policy.omega_quality = 0;
  policy.price_attention = true;
  policy.budget_bins = 1;
  return policy;
}

selection_policy substitute_policy(std::string name, candidate_rule candidates) {
  auto policy = exact_policy(std::move(name));
  policy.candidates = candidates;
  policy.metric = loss_metric::token_gate;
  policy.calibrated = true;
  policy.gates = gating::executed;
  policy.distinct = true;
  return policy;
}

/// Targets alone, of a router that the plan leaves some experts; what it loses by that is told in nats.
selection_policy pruned_policy(std::string name) {
  auto policy = exact_policy(std::move(name));
  policy.metric = loss_metric::token_gate;
  policy.calibrated = true;
  policy.gates = gating::executed;
  return policy;
}

/// As published: the defaults of selection_policy.
selection_policy paper_policy(std::size_t top_k) {
  selection_policy policy;
  policy.residence = top_k == 1 ? residence_choice::with_slot : residence_choice::free;
  return policy;
}

selection_policy paper_in_place_policy(std::size_t top_k) {
  auto policy = paper_policy(top_k);
  policy.name = "paper-in-place";
  policy.price_attention = true;
  return policy;
}

selection_policy paper_tuned_policy(std::size_t top_k) {
  auto policy = paper_in_place_policy(top_k);
  policy.name = "paper-tuned";
  return policy;
}

selection_policy ordermoe_policy(std::size_t) {
  auto policy = substitute_policy("ordermoe", candidate_rule::any);
  policy.may_leave_out = true;
  policy.horizon = 0;
  policy.price_follows_budget = true;
  return policy;
}

/// The paper's selection with targets only, which does not depend on a budget: its look-ahead, with attention priced.
selection_policy similarity_policy(std::size_t top_k) {
  auto policy = paper_policy(top_k);
  policy.name = "similarity";
  policy.candidates = candidate_rule::exact;
  policy.price_attention = true;
  return policy;
}

/// Substitutes or leaves out where that is worth more time than the tuned price of what it loses.
selection_policy priced_policy(std::string name, candidate_rule candidates) {
  auto policy = substitute_policy(std::move(name), candidates);
  policy.price_follows_budget = true;
  return policy;
}

/// Likewise with what is to come in view.
selection_policy far_sighted(selection_policy policy) {
  policy.horizon = 0;
  return policy;
}

// -------------------------------------------------------------------------------------- budgets

loss_units units_of_nats(double nats) {
  if (std::isinf(nats)) return unbounded_budget;
  return static_cast<loss_units>(std::floor(nats * units_per_loss));
}

/// Nats in the paper's own loss units: divided by the mean measured damage of one unit of eq.
/// (18)'s loss.
double paper_units_of_nats(const profile& profile, double nats) {
  if (std::isinf(nats)) return nats;
  double damage = 0;
  for (const auto& layer : profile.layers)
    damage += layer.damage[static_cast<std::size_t>(loss_metric::router_logit)] /
              static_cast<double>(profile.n_layers);
  return damage > 0 ? nats / damage : 0;
}

loss_units no_budget(const profile&, double) {
  return 0;
}
loss_units no_limit(const profile&, double) {
  return unbounded_budget;
}
loss_units budget_of_nats(const profile&, double nats) {
  return units_of_nats(nats);
}
loss_units paper_budget(const profile& profile, double nats) {
  return units_of_nats(paper_units_of_nats(profile, nats));
}

// ---------------------------------------------------------------------------------------- table

constexpr strategy_record records[] = {
    // The exact baseline, in a trial the best of placements that look at activation and of places of attention.
    {.name = "exact",
     .sentence = "expert parallelism: every target on a server that hosts it, attention where the "
                 "user is, at another server for each or for all, or anywhere",
     .source = "expert parallelism",
     .policy = [](std::size_t) { return exact_policy("exact"); },
     .place = place_expert_parallel,
     .add_variants = add_exact_variants,
     .token_budget = no_budget,
     .needs_profile = false},
    // EdgeShard: contiguous layers with their experts by dynamic programming over (layer, server), for the least time
    // of a token or for the least slowest stage; keys and values stay with their layer.
    {.name = "layer-shards",
     .alias = "edgeshard",
     .sentence = "a pipeline: whole layers on servers one after another",
     .source = "EdgeShard, arXiv 2405.14371",
     .policy = [](std::size_t) { return exact_policy("layer-shards"); },
     .place = place_shards,
     .add_variants = add_shard_variants,
     .token_budget = no_budget,
     .needs_profile = false},
    // EdgeShard at its strongest: chains side by side, the users of each access server on one of them; a layer may lie on two
    // neighbours of a chain; copies of stages where positions queue.
    {.name = "shard-chains",
     .sentence = "pipelines side by side, by access server, with layers that neighbours share and "
                 "copies of stages",
     .source = "EdgeShard, arXiv 2405.14371, with more chains than one",
     .is_adapted = true,
     .policy = [](std::size_t) { return exact_policy("shard-chains"); },
     .place = place_chains,
     .add_variants = add_chain_variants,
     .token_budget = no_budget,
     .needs_profile = false},
    // Parallax: layer ranges, several servers to a range where memory allows, and the shortest way in time through them.
    {.name = "parallax",
     .sentence = "pipelines side by side: layer ranges with copies, and a shortest way for each "
                 "access server's users",
     .source = "Parallax, arXiv 2509.26182",
     .is_adapted = true,
     .policy = [](std::size_t) { return exact_policy("parallax"); },
     .place = place_ranges,
     .add_variants = add_range_variants,
     .token_budget = no_budget,
     .needs_profile = false},
    // Prism: how many experts of each layer a server gets by the entropy of its activation, then those that it invokes most,
    // each expert somewhere; the nearest copy runs.
    {.name = "prism",
     .sentence = "few remote invocations: a server gets most experts of the layers that spread "
                 "most; the nearest copy runs",
     .source = "Prism, arXiv 2508.12851",
     .is_adapted = true,
     .policy = [](std::size_t) { return exact_policy("prism"); },
     .place = place_few_remote,
     .add_variants = add_few_remote_elsewhere,
     .token_budget = no_budget},
    // Edge-LLM: whole requests by value over cost and slack, here by the server where they arrive, each on one server; experts run
    // exactly, those that a server's requests use most from its own copies.
    {.name = "edge-llm",
     .sentence = "whole requests on one server each, by value over cost and slack; it caches the "
                 "experts that they use most",
     .source = "Edge-LLM, ICWS 2024",
     .is_adapted = true,
     .policy = [](std::size_t) { return exact_policy("edge-llm"); },
     .place = place_whole,
     .add_variants = add_whole_variants,
     .token_budget = no_budget},
    // The whole model on one server for each user: the experts chosen most in its memory, the others in its host's, read from
    // there each time that they run. All are at the token's server, so that no token leaves it for one.
    {.name = "offload",
     .sentence = "the whole model on one server: experts that do not fit are read from its host's "
                 "memory; emulated only",
     .source = "expert offloading with a static cache, as MoE-Infinity and Fiddler",
     .is_adapted = true,
     .policy =
         [](std::size_t) {
           return substitute_policy("offload", candidate_rule::router_restricted);
         },
     .place = place_with_host_memory,
     .add_variants = add_host_memory_variants,
     .token_budget = no_budget},
    // Every expert once on a random server with room, then copies at random until nothing fits; the nearest copy of each
    // target runs it. A draw is not tuned: another seed is another draw.
    {.name = "random",
     .sentence = "every expert once at random, copies at random in what memory is left; the "
                 "nearest copy runs",
     .source = "OrderMoE, section VI, Random Deployment",
     .policy = [](std::size_t) { return exact_policy("random"); },
     .place = place_random,
     .add_variants = add_random_elsewhere,
     .token_budget = no_budget,
     .needs_profile = false},
    // The same first copies; the memory that is left by frequency (5) times share of arrivals over bytes, groups ignored;
    // the nearest copy of each target runs it.
    {.name = "popularity",
     .sentence = "copies of what is chosen most where most arrives; the nearest copy runs",
     .source = "OrderMoE, section VI, Popularity-Based Replication",
     .policy = [](std::size_t) { return exact_policy("popularity"); },
     .place = place_popular,
     .add_variants = add_popular_variants,
     .token_budget = no_budget},
    // Algorithms 1 and 2 without substitutes: the candidates of (40) are the target's hosts alone, with the paper's
    // look-ahead (42). Positions begin where the last one ended and attention is priced, which `paper` does without.
    {.name = "similarity",
     .sentence = "the published placement and look-ahead with targets only",
     .source = "OrderMoE, section VI, Similarity Deployment without Substitute",
     .policy = similarity_policy,
     .place = place_as_published,
     .add_variants = add_similar_elsewhere,
     .token_budget = no_budget,
     .places_groups = true},
    // What has no candidate at the token's server by (8) within the budget runs exactly elsewhere.
    {.name = "local-only",
     .sentence =
         "substitutes on the token's server within the budget; targets elsewhere only where "
         "there are none",
     .source = "OrderMoE, section VI, Local Substitute Only",
     .policy =
         [](std::size_t) { return substitute_policy("local-only", candidate_rule::local_only); },
     .place = place_similar_at_access,
     .add_variants = add_homes_of_substitutes,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .places_groups = true},
    // What has no candidate there by (8) is left out: no token ever leaves its server for an expert.
    {.name = "local-skip",
     .sentence =
         "substitutes on the token's server, and leaves out what has none there, whatever it costs",
     .source = "OrderMoE, section VI, Local Substitute Only",
     .policy =
         [](std::size_t) { return substitute_policy("local-skip", candidate_rule::local_skip); },
     .place = place_similar_at_access,
     .add_variants = nullptr,
     .token_budget = no_limit,
     .keeps_budgets = false,
     .places_groups = true},
    // Any expert of the token's server, where its loss costs less than the time of going to the target by a price that
    // is tuned to the budget.
    {.name = "local-tuned",
     .sentence = "substitutes on the token's server where that is worth a tuned price; else "
                 "targets elsewhere",
     .source = "OrderMoE, section VI, Local Substitute Only, with a price",
     .policy =
         [](std::size_t) {
           return far_sighted(priced_policy("local-tuned", candidate_rule::here_or_target));
         },
     .place = place_similar_at_access,
     .add_variants = add_local_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true,
     .places_groups = true},
    // Experts that are not at the token's server are left out and the gates of the others renormalised as the model does;
    // with a budget, only where that is worth a tuned price, and the others run exactly elsewhere. What leaving one out is
    // charged with: the router's probability of it times the layer's damage, which tuning corrects by execution.
    {.name = "drop",
     .sentence = "leaves out experts that are not at the token's server, within the budget",
     .source = "skipping, as in SiftMoE and Capacity-Aware Inference",
     .policy = [](std::size_t) { return priced_policy("drop", candidate_rule::drop); },
     .place = place_expert_parallel,
     .add_variants = add_anywhere_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true},
    // WDMoE: attention and router at one server, experts elsewhere, a round trip a layer; a slot whose weight is small
    // beside its latency is left out and the gates of the others renormalised, one slot at least runs. The threshold of weight to
    // latency is the price of a nat, which is tuned to the budget; here a slot's latency counts as far as it makes the layer later.
    {.name = "wdmoe",
     .sentence = "leaves out slots of little weight for their latency, within the budget, on the "
                 "plans of expert parallelism",
     .source = "WDMoE, arXiv 2405.03131 and 2411.06681",
     .is_adapted = true,
     .policy = [](std::size_t) { return priced_policy("wdmoe", candidate_rule::weigh); },
     .place = place_expert_parallel,
     .add_variants = add_exact_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true},
    // NAEE skips a slot whose gate is small beside the first one's, wherever it runs; here what it loses is weighed against the time that
    // the layer is later for it, by a price that is tuned to the budget, on the chains of the rivals that never substitute.
    {.name = "dynamic-skipping",
     .sentence = "leaves out slots of little weight, those at hand too, within the budget, on the "
                 "pipelines of rivals that never substitute",
     .source = "dynamic expert skipping, as NAEE, arXiv 2402.14800",
     .is_adapted = true,
     .policy =
         [](std::size_t) {
           return far_sighted(priced_policy("dynamic-skipping", candidate_rule::weigh));
         },
     .place = place_chains,
     .add_variants = add_exact_rivals,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true},
    // The experts that are missed least by measured damage and activation are pruned and the router renormalised over the others, where NAEE
    // prunes as many in each layer, those without which its output changes least:
    // as many as execution says a budget allows, the rest on chains side by side. Without a limit each site has what fits there.
    {.name = "static-pruning",
     .sentence = "the model without the experts that are missed least, as many as the budget "
                 "allows, on pipelines side by side; without a limit what fits on each site",
     .source = "expert pruning, as NAEE, arXiv 2402.14800",
     .is_adapted = true,
     .policy = [](std::size_t) { return pruned_policy("static-pruning"); },
     .place = place_static_pruning,
     .add_variants = add_pruned_variants,
     .token_budget = no_limit,
     .has_budget = true,
     .keeps_budgets = false,
     .most_cut = most_pruned},
    // NAEE prunes first and skips slots of what is left. Here both share one budget: how much of it pruning takes is chosen in a trial, and
    // a tuned price of loss spends the rest.
    {.name = "naee",
     .sentence = "the model without experts that are missed least, which also leaves out slots of "
                 "little weight, within one budget, on pipelines side by side",
     .source = "expert pruning and skipping, NAEE, arXiv 2402.14800",
     .is_adapted = true,
     .policy =
         [](std::size_t) {
           auto policy = priced_policy("naee", candidate_rule::weigh);
           policy.horizon = 1;  // Chains leave no choice of where to go.
           return policy;
         },
     .place = place_chains,
     .add_variants = add_exact_and_pruned_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true,
     .skips_beside_pruning = true},
    // MoE^2: offline the (expert, server) pairs that are feasible under delay and memory, for each access server; online the router
    // over those. The budget sets how far away an expert may be.
    {.name = "moe2",
     .sentence = "the router's best among the experts that are near enough to each access server; "
                 "the budget sets how near",
     .source = "MoE^2, arXiv 2501.09410",
     .is_adapted = true,
     .policy = [](std::size_t) { return pruned_policy("moe2"); },
     .place = place_gated,
     .add_variants = add_gated_variants,
     .token_budget = no_limit,
     .has_budget = true,
     .keeps_budgets = false,
     .most_cut = most_reaches},
    {.name = "router-restricted",
     .sentence = "the router's best among the experts of the token's server, whatever it costs",
     .source = "cache-conditional experts, arXiv 2412.00099",
     .policy =
         [](std::size_t) {
           return substitute_policy("router-restricted", candidate_rule::router_restricted);
         },
     .place = place_expert_parallel,
     .add_variants = nullptr,
     .token_budget = no_limit,
     .keeps_budgets = false},
    // The router's best at the token's server, where what that loses costs less than the time of going to the target by a
    // price that is tuned to the budget; placed by search, as `ordermoe` is.
    {.name = "router-ledger",
     .sentence = "the router's best at the token's server within a budget, on a searched placement",
     .source = "cache-conditional experts, arXiv 2412.00099, with a budget",
     .is_adapted = true,
     .policy =
         [](std::size_t) {
           return far_sighted(priced_policy("router-ledger", candidate_rule::here_or_target));
         },
     .place = place_searched_whole,
     .add_variants = add_searched_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true,
     .tries_cores = true},
    // Algorithms 1 and 2, eq. (3) to (44).
    {.name = "paper",
     .sentence = "the published algorithms: similarity placement and look-ahead selection",
     .source = "OrderMoE",
     .policy = paper_policy,
     .place = place_as_published,
     .add_variants = nullptr,
     .token_budget = paper_budget,
     .has_budget = true,
     .continue_in_place = false,
     .places_groups = true},
    // The same where positions begin where the last one ended, which `paper` pays a way back for, and with the time of attention
    // at a residence in (37), which decides where the next layer runs.
    {.name = "paper-in-place",
     .sentence = "the published algorithms with attention priced; a position begins where the last "
                 "one ended",
     .source = "OrderMoE",
     .is_adapted = true,
     .policy = paper_in_place_policy,
     .place = place_as_published,
     .add_variants = add_similar_at_access,
     .token_budget = paper_budget,
     .has_budget = true,
     .places_groups = true},
    // Likewise with theta_l of (6), which says who may stand in for whom, lowered in quarters as far as execution keeps the budget: the paper
    // says how to compute it, and with some models what that allows hardly spends any budget.
    {.name = "paper-tuned",
     .sentence = "the published algorithms in place, with thresholds of similarity as low as the "
                 "budget allows",
     .source = "OrderMoE",
     .is_adapted = true,
     .policy = paper_tuned_policy,
     .place = place_with_lowered_thresholds,
     .add_variants = add_lowered_thresholds_at_access,
     .token_budget = paper_budget,
     .has_budget = true,
     .most_cut = most_lowered_thresholds,
     .places_groups = true},
    {.name = "ordermoe",
     .sentence = "searched placement and selection that looks ahead to the end of the position",
     .source = "this project",
     .policy = ordermoe_policy,
     .place = place_searched,
     .add_variants = add_searched_variants,
     .token_budget = budget_of_nats,
     .has_budget = true,
     .allowance_factor = 16,
     .tunes_price = true,
     .tries_cores = true,
     .uses_coarser_copies = true},
};

}  // namespace

std::span<const strategy_record> strategy_records() {
  return records;
}

}  // namespace ordermoe::planning
