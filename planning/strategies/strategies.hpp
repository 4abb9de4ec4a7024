#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/cluster.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"
#include "planning/strategies/quality_terms.hpp"

/// The strategies that a run can select: a placement, a selection policy, and what a budget means
/// to it. All price links, KV and memory by the same estimates and run on the same actors.
namespace ordermoe::planning {

struct strategy_options {
  double quality_percent = 0;  ///< Predicted perplexity increase allowed; negative: unbounded.
  std::optional<std::size_t> horizon;  ///< Overrides the strategy's own.
  std::uint64_t seed = 1;
  std::size_t search_steps = 10000;
  double concurrency = 1;  ///< Requests in flight that a searching planner expects.
  /// Whether preparation plans again for as many as its trial had in flight, where that is far from `concurrency`.
  bool concurrency_by_trial = false;
  double planned_budget_scale = 1;    ///< A searching planner plans for this many budgets.
  double expected_rate = 4;           ///< Requests per second of a dry run; 0: all at once.
  std::size_t dry_run_requests = 64;  ///< Of a dry run between candidate plans; 0: none.
  /// Use this placement and residency instead of the strategy's own.
  std::optional<planning::plan> plan;
  /// [n_servers] how servers keep their experts in a searched plan; empty: as the cluster says.
  std::vector<precision> expert_precision;
  /// How far a strategy that cuts what routers may choose goes (strategy_record::most_cut), from 0, not at all; none: as far
  /// as it can without a limit of quality, else not at all. Of `paper-tuned`: by how many quarters theta_l is lower than published. For strategies that try cores (strategy_record::tries_cores): how many
  /// experts `static-pruning` would prune for this budget; in their plan_variants how many are outside the plan's core, none where
  /// it has none. Of `naee`: how many its plan prunes, likewise.
  std::optional<std::size_t> cut;
  /// Servers that host nothing, as those that leave or are not there yet; some must be left (left_out.hpp).
  server_mask without = 0;
  /// Whether plan_variants also tries coarser copies, where the profile has them, and
  /// preparation the whole model in each precision of service_options::coarser.
  bool choose_precision = false;
  /// Whether preparation also tries what `static-pruning` does with the budget (strategy::pruned_nats), for strategies that try cores.
  bool choose_pruning = false;
  std::optional<std::string> residency;  ///< access, roaming; overrides that of the plan.
  /// False: slots are not left out that a policy may leave out beside what its rule lets them run.
  bool leaves_slots_out = true;
  /// Of strategies that place by groups (strategy_record::places_groups), what Algorithm 1 does without:
  std::optional<double> threshold;  ///< The same theta_l in every layer in place of eq. (6).
  bool replicates = true;           ///< False: one copy of each expert, without eq. (33) to (35).
  bool disperses = true;            ///< False: lambda_2 = 0 in eq. (30), so that groups may gather.
  /// Asked often by a searching planner, which then gives the best plan so far.
  std::function<bool()> should_stop = {};
};

struct strategy {
  std::string name;
  planning::plan plan;
  selection_policy policy;
  loss_units token_budget = 0;  ///< Average units per token.
  bool continue_in_place = true;
  double allowance_factor = 1;
  bool tunes_price = false;  ///< Its budget is met by a tuned price of loss (setup/tuning.hpp).
  bool has_budget = false;   ///< Whether a quality budget changes what it does.
  /// How preparation has the whole model keep its experts: what counts as exact then. Other
  /// than as stored, that takes `quality.taken_nats` a token of the budget beforehand, and
  /// token_budget is the rest.
  precision whole_model = precision::stored;
  /// What the experts that its plan prunes for everybody take of the budget beforehand, in nats a token, included in
  /// `quality.taken_nats`, where the strategy keeps budgets and its plan is one of `static-pruning`: it runs by that policy, and
  /// token_budget is 0, so that nothing else is lost; `naee` runs by its own, and token_budget is the rest.
  std::optional<double> pruned_nats = {};
  quality_terms quality;  ///< Of which requests may have less.
};

/// What a plan is made of and for.
struct planning_task {
  const planning::profile& profile;
  const cluster& servers;
  const cost_profile& costs;
  const strategy_options& options;
};

/// What a strategy is, whatever the model and the cluster: everything that tells one from another.
struct strategy_record {
  std::string_view name;
  std::string_view alias =
      {};  ///< Is taken for the name wherever one is asked for; empty: there is none.
  std::string_view sentence;  ///< For help texts; what it runs where.
  std::string_view source;    ///< Whose rule it is.
  bool is_adapted =
      false;  ///< The rule is not its source's to the letter: said wherever the name is printed.
  selection_policy (*policy)(std::size_t top_k);
  /// Its own placement and residency.
  result<planning::plan> (*place)(const planning_task&);
  /// Adds options that plan it otherwise (plan_variants); null: there are none.
  void (*add_variants)(const planning_task&, std::vector<strategy_options>&);
  /// Average units per token for an allowed loss in nats, infinity included.
  loss_units (*token_budget)(const profile&, double nats);
  bool has_budget = false;    ///< The others' token_budget does not depend on the nats.
  bool keeps_budgets = true;  ///< False: it substitutes whatever that costs.
  bool continue_in_place = true;
  double allowance_factor = 1;
  bool tunes_price = false;
  /// How far strategy_options::cut may go; null for strategies without. A budget is met by the
  /// farthest cut at which execution keeps it (setup/cutting.hpp).
  std::size_t (*most_cut)(const planning_task&) = nullptr;
  bool tries_cores =
      false;  ///< With a budget plan_variants has the plans of `static-pruning`, with what these prune beside them.
  bool skips_beside_pruning =
      false;  ///< Its plans may prune experts, which takes some of the budget beforehand; the price is for the rest.
  bool uses_coarser_copies = false;  ///< Else every server keeps experts as the model has them.
  bool places_groups = false;        ///< By Algorithm 1: its plans have groups of experts.
  bool needs_profile = true;         ///< False: it places a model of which nothing is known, too.
};

/// In the order in which reports list them.
std::span<const strategy_record> strategy_records();
/// By name or alias; null where there is none.
const strategy_record* find_strategy(std::string_view name);
std::vector<std::string> strategy_names();
/// Names, and aliases behind them: what may be typed.
std::vector<std::string> accepted_strategy_names();
/// The name that an alias stands for; what else it is given as it is.
std::string canonical_strategy_name(std::string_view name);
/// As reports print it: with "(adapted)" where that is so. What is no strategy's name as it is.
std::string printed_strategy_name(std::string_view name);
/// The names of those for which `is_one` holds, as "paper, drop or ordermoe".
std::string strategies_for_which(bool (*is_one)(const strategy_record&),
                                 std::string_view last = "or");
/// Those with a budget, and those that place a model of which nothing is known.
std::string strategies_with_budget();
std::string strategies_without_profile();

/// Of a plan by this strategy for a budget in per cent, without units.
quality_terms terms_of(const strategy_record& record, double percent);

/// Errors: usage for an unknown name; infeasible where the experts do not fit; mismatch for a plan
/// of other shape.
result<strategy> make_strategy(std::string_view name, const profile& profile,
                               const cluster& servers, const cost_profile& costs,
                               const strategy_options& options);

/// Every way of planning a strategy that is worth a trial on these servers, as options for
/// make_strategy; never empty. `exact`, `drop` and `wdmoe`: popularity placements of three seeds and the
/// similarity placement, attention anywhere, and the plans of `edge-llm`. `layer-shards`: for latency and for throughput, returning through the
/// access server or straight to the first holder. `naee`: those of the exact rivals, and
/// with options.cut those of `static-pruning`. `ordermoe` and `router-ledger`: searched for several loads and
/// budgets around those expected, every plan of the exact rivals (`layer-shards`, `shard-chains`, `parallax`), and with a
/// budget cores (place_around_core), those of every plan of `static-pruning` with options.cut among them. `random`, `popularity`, `prism`,
/// `similarity` and `local-tuned`: with attention where the user is, anywhere and at one server for all; `popularity` for three seeds,
/// `local-tuned` by similarity and by popularity. `edge-llm` and `offload`: with users at several servers, at their own and all at one;
/// `local-only` and `local-tuned` on those of `edge-llm`, too. The others are planned as published.
std::vector<strategy_options> plan_variants(std::string_view name, const profile& profile,
                                            const cluster& servers, const cost_profile& costs,
                                            const strategy_options& options);

/// Expected time of one decoded position with every slot sent out from the access server and back,
/// averaged over arrivals; what `exact` picks its placement by.
double expected_dispatch_ns(const profile& profile, const plan& placed, const cluster& servers,
                            const cost_profile& costs);

}  // namespace ordermoe::planning
