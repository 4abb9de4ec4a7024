#pragma once

#include <vector>

#include "planning/strategies/strategies.hpp"

/// Where each strategy puts experts and lets attention run, and which other plans of it are worth a trial: what the
/// table in strategies/records.cpp is made of. Nothing outside planning/strategies/ includes this.
namespace ordermoe::planning {

/// Algorithm 1; R_l = all servers.
result<plan> place_as_published(const planning_task& task);
/// The same with attention where the user is.
result<plan> place_similar_at_access(const planning_task& task);
/// Expert parallelism: by popularity or by similarity, whichever costs less to reach from the access servers.
result<plan> place_expert_parallel(const planning_task& task);
/// Whole layers as a pipeline.
result<plan> place_shards(const planning_task& task);
/// By search, for options.planned_budget_scale budgets.
result<plan> place_searched(const planning_task& task);
/// Likewise for a policy that leaves no slots out.
result<plan> place_searched_whole(const planning_task& task);
/// Every expert once at random, spare memory at random; attention where the user is.
result<plan> place_random(const planning_task& task);
/// Every expert once at random, spare memory by popularity; attention where the user is.
result<plan> place_popular(const planning_task& task);

/// Few remote invocations; attention where the user is.
result<plan> place_few_remote(const planning_task& task);
/// The best chains of shards side by side that are found, for options.concurrency.
result<plan> place_chains(const planning_task& task);
/// Layer ranges with copies, for options.concurrency.
result<plan> place_ranges(const planning_task& task);

/// Without the options.cut experts that are missed least, on chains; without a limit of quality each server by itself, with
/// what fits.
result<plan> place_static_pruning(const planning_task& task);
/// Copies within the reach that options.cut leaves.
result<plan> place_gated(const planning_task& task);
/// Whole requests on one server each, for options.concurrency.
result<plan> place_whole(const planning_task& task);
/// The whole model on every server that serves users, for options.concurrency.
result<plan> place_with_host_memory(const planning_task& task);

/// Experts that can be pruned at most, and reaches that experts can have less the longest.
std::size_t most_pruned(const planning_task& task);
std::size_t most_reaches(const planning_task& task);

/// More chains without the same experts, for the load expected and twice as many others; where none is pruned, those of
/// add_chain_variants; without a limit of quality, sites of more servers.
void add_pruned_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// The plans of the exact rivals, and with options.cut those of `static-pruning` behind them.
void add_exact_and_pruned_variants(const planning_task& task,
                                   std::vector<strategy_options>& variants);
/// With users at half of the servers, a quarter, and so on to one.
void add_gated_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// For one request at a time, for twice as many others, each request at its own server, and all at one, of which three are tried: those
/// where positions are over soonest.
void add_whole_variants(const planning_task& task, std::vector<strategy_options>& variants);
void add_host_memory_variants(const planning_task& task, std::vector<strategy_options>& variants);

/// Popularity placements of three seeds and the similarity placement, with attention where the user is, of which the
/// strategy's own plan is one; by popularity with attention anywhere; and what add_whole_variants() adds.
void add_exact_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// Every plan that `layer-shards`, `shard-chains` and `parallax` are tried with, and of those of `edge-llm` the best two by estimate
/// that take at most a fifth more than the fastest of these.
void add_exact_rivals(const planning_task& task, std::vector<strategy_options>& variants);
/// Those of add_exact_variants() and of add_exact_rivals().
void add_anywhere_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// For latency and for throughput, each with both ways back.
void add_shard_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// The best chains side by side by the planner's estimate, of whole layers and of layers that neighbours share, for options.concurrency
/// and with twice as many others in flight; and what add_shard_variants() adds.
void add_chain_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// For several loads or budgets, every plan that the rivals which never substitute are tried with, and with a budget
/// cores, each with options.cut as many experts outside: some of each layer, and what every plan of `static-pruning` prunes where
/// the task's options.cut is known.
void add_searched_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// The same placement with attention anywhere, and for all at one server of three.
void add_random_elsewhere(const planning_task& task, std::vector<strategy_options>& variants);
/// Two more seeds, and all three with attention anywhere and for all at one server of three.
void add_popular_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// Where a token may stay while a slot runs elsewhere, the same placement with attention where the user is.
void add_similar_at_access(const planning_task& task, std::vector<strategy_options>& variants);
/// Likewise, and for all at one server of three.
void add_similar_elsewhere(const planning_task& task, std::vector<strategy_options>& variants);
/// As published for all at one server of three, and what add_whole_variants() adds.
void add_homes_of_substitutes(const planning_task& task, std::vector<strategy_options>& variants);
/// As published with theta_l by options.cut quarters lower in every layer; attention runs anywhere, or where its user is.
result<plan> place_with_lowered_thresholds(const planning_task& task);
void add_lowered_thresholds_at_access(const planning_task& task,
                                      std::vector<strategy_options>& variants);
std::size_t most_lowered_thresholds(const planning_task& task);
/// With attention anywhere, and for all at one server of three.
void add_few_remote_elsewhere(const planning_task& task, std::vector<strategy_options>& variants);
/// From the chain for throughput, and for twice as many requests in flight.
void add_range_variants(const planning_task& task, std::vector<strategy_options>& variants);
/// By popularity, both placements with attention anywhere, what add_homes_of_substitutes() adds, and the plans of the exact rivals.
void add_local_variants(const planning_task& task, std::vector<strategy_options>& variants);

}  // namespace ordermoe::planning
