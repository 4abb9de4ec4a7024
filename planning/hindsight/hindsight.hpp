#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "config/error.hpp"
#include "planning/cost_model.hpp"
#include "planning/hindsight/layered_path.hpp"
#include "planning/hindsight/row_front.hpp"
#include "planning/plan.hpp"
#include "planning/profile.hpp"
#include "planning/selection/selector.hpp"

/// The best way of a request in hindsight: what its decisions would have been, had every router's choice been known.
///
/// Given are the plan, the links' and servers' prices without queues, what the policy lets a slot run and where, what each of that
/// loses (as the policy predicts it), and the request's whole budget. Chosen anew are the residence after each layer and, for each
/// slot, server and expert, so that the time of all chunks and positions together is least:
///
///   sum over chunks and layers of  max over rows of time(s, n) + attention(n)
///     + for each position that is sampled  head(n) + the id's way to where the next one starts, or to the user behind the last
///
/// with time(s, n) of row_front.hpp. Where the next position starts is the run's rule and no choice. Rows of a prompt's chunk go
/// side by side and wait for the slowest; chunks count one after the other.
///
/// What it is not. Routers' targets are those of the run, as given: a substitute changes hidden states, and so what later
/// routers choose, which nobody can know without running it. The budget is the request's as a whole: shares of chunks and positions
/// do not bind. Nothing queues, neither in the optimum nor in the price of what was decided: where decisions went out of the way of
/// queues, that is told as gap. Under a rule that says what must happen (local_only: as few slots leave as can be) the optimum
/// is over what it lets slots do. So it is a bound on how much better any selection could be by these prices, not a plan.
namespace ordermoe::planning {

/// A slot as it was decided on.
struct past_slot {
  std::uint32_t target = 0;
  float gate = 0;
  std::uint32_t expert = 0;  ///< Or left_out.
  std::uint32_t server = 0;
  loss_units loss = 0;
};

struct past_row {
  std::vector<past_slot> slots;      ///< Rank order.
  std::vector<float> probabilities;  ///< [n_experts] the router's softmax.
  std::size_t position = 0;
  std::size_t unread_before = 0;  ///< As selection_tables::position_damage() has it.
};

/// One decision: a chunk's rows at one layer.
struct past_step {
  std::uint32_t server = 0, residence = 0;
  std::vector<past_row> rows;
};

struct past_chunk {
  std::vector<past_step> layers;  ///< [n_layers]
  bool is_sampled =
      false;  ///< An id is drawn behind it: of the last chunk of a prompt, and of positions.
};

struct past_request {
  std::uint32_t access = 0;
  bool in_place =
      true;  ///< Positions start from where the last one ended, else from the access server.
  loss_units budget = 0;
  std::vector<past_chunk> chunks;  ///< The prompt's, then positions in order.
};

/// Time and predicted loss of a whole request.
struct request_total {
  double ns = 0;
  loss_units loss = 0;
};

struct request_gap {
  double taken_ns = 0;  ///< Of the decisions, by the same prices.
  loss_units taken_loss = 0;
  layered_optimum best;  ///< Never slower than taken_ns where that keeps the budget.
  /// The same where no more may be lost than was: what is between the two is what the rest of the budget could have bought.
  layered_optimum best_at_loss;
  /// Whether choosing the fastest step each time, whatever follows, is as fast as `best` and keeps the budget: then looking ahead
  /// could change nothing.
  bool ahead_changes_nothing = false;
  double gap_percent() const;       ///< Of taken over best; 0 where nothing takes any time.
  double most_gap_percent() const;  ///< Of taken over best.bound_ns.
};

struct hindsight_options {
  std::size_t max_labels = 20'000;  ///< layered_problem::max_labels.
  std::size_t max_nodes = 200'000;  ///< Of row_fronts.
};

/// One plan under one policy. Not thread-safe.
class hindsight {
 public:
  /// Errors: those of selection_tables::build.
  static result<hindsight> make(const profile& profile, const plan& placed,
                                const cost_model& prices, const selection_policy& policy);

  /// Errors: failed where the decisions are not among those that the policy lets be or lose something else than it says.
  result<request_gap> solve(const past_request& request, const hindsight_options& options) const;

  /// Whether its plan leaves routers some of the experts; then every slot runs one.
  bool prunes() const { return !placed_.pruned.empty(); }

  /// What was decided, by the same prices. Error: failed, likewise.
  result<request_total> taken(const past_request& request) const;

 private:
  hindsight(const profile& profile, const plan& placed, const cost_model& prices,
            const selection_policy& policy, std::shared_ptr<const selection_tables> losses);
  struct problem;
  past_row weighed(past_row row) const;
  row_choices choices_of(std::size_t layer, const past_row& past) const;
  void add_places(std::size_t layer, const past_row& row, const past_slot& slot,
                  row_slot& into) const;
  loss_units copy_loss(std::size_t layer, std::size_t server, std::uint32_t expert,
                       float gate) const;
  bool has_been_offered(const row_choices& row, const past_step& step, const past_row& past) const;
  result<void> add_step(const past_request& request, std::size_t number, std::size_t layer,
                        problem& into) const;
  double row_ns(const past_step& step, const past_row& row) const;
  /// From the last layer of a chunk to the first of the next.
  double end_ns(const past_request& request, const past_chunk& chunk, std::size_t at,
                bool is_last) const;
  std::size_t nearest_start(std::size_t access, std::size_t from) const;
  std::size_t next_start(const past_request& request, const past_chunk& chunk,
                         std::size_t at) const;
  /// Where a row may be after a layer.
  server_mask residences(std::size_t layer, std::size_t access) const;

  profile profile_;
  plan placed_;
  placement_index hosts_;
  cost_model prices_;
  selection_policy policy_;
  server_mask usable_ = 0;  ///< Servers whose copies the policy runs.
  std::shared_ptr<const selection_tables> losses_;
};

}  // namespace ordermoe::planning
