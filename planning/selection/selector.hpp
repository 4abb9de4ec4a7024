#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "config/loss_units.hpp"
#include "planning/cost_model.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"

/// Server-expert selection with look-ahead: Algorithm 2 of the paper, per slot, for any horizon.
///
/// One decision: a token is at server s, about to run layer l. Its slots j = 1..k have targets r_j,
/// gates g_j and, for every expert, a predicted loss in exact integer units. Chosen are the next
/// residence n (where the hidden state continues) and (m_j, k_j) for each slot:
///
///   time(n, m) = max( d(s, n), max_j [ d(s, m_j) + wait(m_j) + q(m_j) c(m_j) + d(m_j, n) ] )
///   cost       = omega_T / d_ref * (time + later) + omega_Q / budget * sum_j loss_j + lookahead(n,
///   targets, budget left)
///
/// with d(x, x) = 0, d behind the frames that a snapshot has waiting at a link, and q(m) the number
/// of different experts that this decision runs at m: they run one after the other there, and slots
/// that share an expert run it once. `later` is the attention at n where it is priced. At k = 1 and residence_choice::with_slot this is eq. (43) with (37),
/// (38) and (40).
///
/// Rules that leave slots out (leaves_out) try sets of slots to leave out, with the others on their
/// targets: every set where there are up to three slots, and above that those that hold all slots whose
/// target would answer later than some time, which are the best ones where slots do not share servers.
/// Where a policy may leave out whatever its rule is, the others run what that lets them, and above three slots one more is left out
/// as long as that helps: of those at the server that answers last, the one that loses least.
///
/// Ties in cost go to the lower loss, the lower time, the lower sum of the slots' own times (so
/// that a slot does not leave its server without need), the lower residence, then, slot by slot in
/// rank order, to the lower server and the lower expert.
///
/// Look-ahead. W is the expectation over the next layer's target sets, given the set executed here
/// (eq. (42)), of the same minimum one layer on:
///
///   W_h(l, n, set, b) = sum over set' of P_l(set -> set') V_h(l + 1, n, set', b),   W_0 = 0
///   V_h(l, s, set, b) = min over n in R_{l+1}, (m_j, k_j) of  step cost + W_{h-1}(l, n, set, b -
///   ceil(loss / width))
///
/// A decision uses W_{H-1}(l, n, set, floor(budget left / width)): an index into the tables and
/// nothing else, since what may be spent is checked on exact integers. Two approximations: the
/// future's gates are the means of the calibration tokens with the same target set, and queues that
/// wait now are not expected to wait later.
///
/// Where the sets of up to top_k experts are more than 4096 (17 experts at top-4, 91 at top-2), W
/// is kept for single experts instead: look_ahead_keys. The row of an expert is the
/// frequency-weighted mean over the sets with it, and a decision takes the mean of its targets'
/// (executed experts') rows. V then ranges over a sample of the target sets
/// (choose_representatives), and the slots find their servers as slot_sweep.hpp describes: exactly
/// but for the choices named there; local_only without `distinct` does not look for slots that gain
/// by sharing an expert. Measured on positions drawn from 10 to 16 experts at top-2 to top-4, with
/// token_gate losses: 0.1 to 0.25 % more time and priced loss than with sets as keys, where no
/// look-ahead costs 1.2 to 4.7 % more.
///
/// A set that calibration did not see (executed ones above all) takes the mean of the rows of all
/// sets that share an expert with it, weighted by their frequency; where there is none, the next
/// layer's frequencies.
///
/// Horizon 0 goes on to the end of the position: after the last layer n runs the output projection
/// and sends the sampled id to the member of R_0 where the next position starts best. What it is
/// worth to start at one member rather than another comes from `terminal_rounds` passes of the same
/// tables, starting from zero.
///
/// After the last layer n is a member of R_{N-1} or R_0 (any server with
/// residence_choice::with_slot).
namespace ordermoe::planning {

using ordermoe::loss_units;
using ordermoe::unbounded_budget;
using ordermoe::units_per_loss;
/// The loss of a choice that may not be made: above every budget.
inline constexpr loss_units forbidden = std::numeric_limits<loss_units>::max() / 4;
/// Chosen in place of an expert: nothing runs for the slot, and the gates of the row's other slots are
/// what the model's rule makes of them alone.
inline constexpr std::uint32_t left_out = std::numeric_limits<std::uint32_t>::max();
inline constexpr std::size_t max_slots = 8;
/// Where R_0 has more than one member; otherwise 1.
inline constexpr std::size_t terminal_rounds = 3;

/// Which experts may run in place of a target.
enum class candidate_rule {
  exact,       ///< The target only, on any server that hosts it.
  local_only,  ///< Feasible experts at the token's server (eq. (8); any where the plan does not
               ///< group); where there is none within the budget, the target on another server. As
               ///< few slots leave the server as the budget allows, then the cost decides.
  router_restricted,  ///< The router's best k among the experts at the token's server; where it
                      ///< hosts none of this layer, the target on another server. Ignores the
                      ///< budget; its loss is only reported.
  group,              ///< V_{l,r} of eq. (8): the target and its group members with Sim >= theta_l.
  any,                ///< Every expert of the layer.
  here_or_target,     ///< The target on any server, or any expert of the token's server.
  local_skip,  ///< As local_only, but a slot without a candidate here is left out, whatever that
               ///< costs: nothing leaves the server.
  drop,        ///< The target on any server; one that is not at the token's server may be left out.
  weigh,       ///< The target on any server, or left out; one slot at least runs.
};
/// Whether slots may be left out (selection_tables::loss_left_out says what that loses). The look-ahead takes such slots to run.
inline constexpr bool leaves_out(candidate_rule rule) {
  return rule == candidate_rule::local_skip || rule == candidate_rule::drop ||
         rule == candidate_rule::weigh;
}

/// Where a token may be after a layer.
enum class residence_choice {
  with_slot,  ///< n = m_1: the paper at top-1. Refused at k > 1.
  free,       ///< Any member of R_{l+1}.
};

/// What W of the look-ahead is kept for.
enum class look_ahead_keys {
  automatic,  ///< Sets where they are few (and building stays quick), else experts.
  sets,       ///< Sets of up to top_k experts.
  experts,    ///< Single experts, whose rows a decision averages. The same as sets at top-1.
};

enum class gating { target, executed };
const char* to_string(candidate_rule rule);

struct selection_policy {
  std::string name = "paper";
  candidate_rule candidates = candidate_rule::group;
  loss_metric metric = loss_metric::router_logit;
  /// Multiply predicted losses by the layer's measured damage: units are nats.
  bool calibrated = false;
  residence_choice residence = residence_choice::free;
  gating gates = gating::target;  ///< executed: gates are renormalised over the executed experts'
                                  ///< router scores.
  bool distinct = false;          ///< Two slots never share a substitute.
  /// Whatever the rule lets a slot run, it may be left out, too, for what selection_tables::loss_left_out() says; one slot at least runs.
  bool may_leave_out = false;
  /// H >= 1; 0 looks ahead to the last layer and on to where the next position starts.
  std::size_t horizon = 3;
  /// omega_T, per d_ref of eq. (38): the mean time of one expert over the servers.
  double omega_time = 0.5;
  double omega_quality = 0.5;  ///< omega_Q = 1 - omega_T in paper mode.
  /// Add the attention time at n to each step (the paper prices experts only).
  bool price_attention = false;
  /// Above 0: what a nat (or a unit of the paper's loss) is worth in time. The look-ahead then
  /// prices losses by it and keeps no budget index, and omega_quality is not used; the exact ledger
  /// bounds every decision all the same.
  double price_ns_per_loss = 0;
  std::size_t budget_bins = 16;  ///< Budget index of the look-ahead runs from 0 to budget_bins - 1.

  /// Scale the price of loss with what is left of a request's budget: price_scale of ledger.hpp.
  bool price_follows_budget = false;

  friend bool operator==(const selection_policy&, const selection_policy&) = default;
};

/// What the router wants in one slot.
struct slot_query {
  std::uint32_t target = 0;
  float gate = 0;  ///< Times the root of selection_tables::position_damage().
  /// [E] loss of running each expert instead, as slot_losses tells it; `forbidden` where it may not. May be
  /// empty where the tables do not read it.
  std::span<const loss_units> loss;
};

struct decision_query {
  std::size_t layer = 0;
  std::size_t server = 0;  ///< s, a member of R_layer
  /// a(i): selects the residency sets and the value at the end of a position.
  std::size_t access = 0;
  std::span<const slot_query> slots;  ///< Rank order; 1 to max_slots.
  loss_units budget_left = 0;  ///< Exact; no decision spends more (router_restricted excepted).
  double price_scale = 1;      ///< Times the policy's weight of loss, in this decision alone: the
                               ///< look-ahead keeps its own. Above 0.
  std::span<const std::int64_t> wait_ns;  ///< [n_servers] queue waits of the snapshot; empty: none.
  /// [to, from] a hidden state over each link behind the frames that the snapshot has waiting there:
  /// selection_tables::link_ns() plus those waits, laid out once per snapshot so that a decision
  /// reads them in place of the tables' own. Empty: no frame waits.
  std::span<const double> link_ns;
  /// [n_experts] the router's softmax for this token, times selection_tables::position_damage(); router_restricted ranks by it. Empty: by the
  /// first slot's losses.
  std::span<const float> probabilities;
  /// Residences to choose from, besides what R_{l+1} allows: the rows of a prompt chunk share one.
  /// If no allowed residence is among them, the mask is ignored.
  server_mask residences = ~server_mask{0};
};

struct slot_choice {
  std::uint32_t server = 0;  ///< The token's, where the slot is left out.
  std::uint32_t expert = 0;  ///< May be left_out.
  loss_units loss = 0;
  friend bool operator==(const slot_choice&, const slot_choice&) = default;
};

struct decision {
  std::uint32_t residence = 0;  ///< n; at the last layer the server of the output projection.
  std::uint32_t n_slots = 0;
  std::array<slot_choice, max_slots> slots{};
  double time_ns = 0;  ///< Predicted time of this step, without `later`.
  double cost = 0;     ///< What was minimised.
};

/// Look-ahead tables of one plan, policy and budget class: immutable, shared by every decision of a
/// snapshot.
class selection_tables {
 public:
  /// token_budget: the budget class, units that one token may spend; 0 none, unbounded_budget no
  /// limit. Errors: mismatch where profile, plan and cluster disagree; usage for a policy that
  /// cannot be (with_slot at k > 1); mismatch for a plan that prunes experts with any policy but one
  /// of targets, which may be left out, without look-ahead, or that leaves a layer fewer than top_k; unsupported where `keys` asks for sets and they are too many
  /// to look ahead over.
  static result<std::shared_ptr<const selection_tables>> build(
      const profile& profile, const plan& placed, const cost_model& costs,
      const selection_policy& policy, loss_units token_budget,
      look_ahead_keys keys = look_ahead_keys::automatic);
  virtual ~selection_tables() = default;

  /// The predicted loss of every expert for one slot: fills losses [E], 0 for the target, a unit at least for others,
  /// `forbidden` outside the candidate rule. probabilities [E]: the router's softmax for this token
  /// (used by token_gate). Both gate and probabilities as decision_query has them.
  virtual void slot_losses(std::size_t layer, std::uint32_t target, float gate,
                           std::span<const float> probabilities,
                           std::span<loss_units> losses) const = 0;

  /// Whether decisions read slot_query::loss. Where not, they make what they need of it themselves, from the router's
  /// probabilities: of many experts a decision asks for few.
  virtual bool reads_losses() const { return true; }

  /// The best decision. No allocation; thread-safe.
  virtual decision select(const decision_query& query) const = 0;

  /// [to, from] one hidden state over each link, without queues.
  virtual std::span<const double> link_ns() const = 0;

  /// [n_experts] 1 for those that the plan prunes for the requests of an access server; empty where it prunes none. A slot's
  /// target must be another.
  virtual std::span<const std::uint8_t> pruned(std::size_t access, std::size_t layer) const = 0;
  /// What the losses of a position are to be multiplied by in a text of which nobody reads what the model says behind the positions before
  /// `unread_before`: profile::position_damage, or unread_damage, where the policy's losses are in nats, else 1. All of
  /// them are linear in the router's probabilities, or in the squares of gates, so that whoever asks scales these.
  virtual double position_damage(std::size_t position, std::size_t unread_before) const = 0;
  /// What a slot loses in which another expert has to run, to which the router gives `regret` less: at least a unit.
  virtual loss_units pruned_loss(std::size_t layer, double regret) const = 0;
  /// What a slot loses in which no expert runs: its gate squared times what that was measured to do, where the policy's losses are in nats and
  /// it was; else as an expert to which the router gives nothing, the target's probability (the gate, where the losses are the paper's) times
  /// the layer's damage. Gate and probabilities as decision_query has them.
  virtual loss_units loss_left_out(std::size_t layer, const slot_query& slot,
                                   std::span<const float> probabilities) const = 0;

  /// V(layer, server, set, budget): expected cost of layer `layer` and those after it within the
  /// horizon, for a token at `server` with the target set `set` (of those that the look-ahead keeps
  /// for the layer) and `bin` budget bins left:
  /// V_H, with mean gates. For tests.
  virtual double value(std::size_t access, std::size_t layer, std::size_t server, std::size_t set,
                       std::size_t bin) const = 0;

  /// Budget bins in use (1 where the budget is none or without limit) and the units that one bin is
  /// wide.
  virtual std::size_t bins() const = 0;
  virtual loss_units bin_width() const = 0;

  virtual const selection_policy& policy() const = 0;
  /// The budget class that they were built for.
  virtual loss_units token_budget() const = 0;
  /// Sets or experts.
  virtual look_ahead_keys keys() const = 0;
};

struct selection_weights {
  double omega_time = 0.5;
  double omega_quality = 0.5;
};

/// Eq. (45): omega_Q moves by kappa times the mean budget utilisation less the mean normalised
/// delay of the latest window, held to [0, 1]; omega_T = 1 - omega_Q.
selection_weights adapt_weights(double omega_quality, double kappa, double mean_budget_use,
                                double mean_normalised_delay);

}  // namespace ordermoe::planning
