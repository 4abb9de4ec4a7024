#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/planner.hpp"
#include "planning/serving/link_board.hpp"
#include "planning/serving/phases.hpp"
#include "trace/lines.hpp"

/// The planner actor's state, for the sources that have a part of what it does each.
namespace ordermoe::actors {

inline constexpr transition<planner_phase> planner_steps[] = {
    {planner_phase::idle, planner_phase::installing, "push_plan"},
    {planner_phase::installing, planner_phase::steady, "the first plan is installed, or overdue"},
    {planner_phase::steady, planner_phase::draining, "a plan that does not fit beside this one"},
    {planner_phase::draining, planner_phase::moving, "none in flight"},
    {planner_phase::steady, planner_phase::moving, "a plan that fits"},
    {planner_phase::moving, planner_phase::installing, "weights moved"},
    {planner_phase::installing, planner_phase::installed, "installed everywhere"},
    {planner_phase::installed, planner_phase::beginning, "commit"},
    {planner_phase::beginning, planner_phase::ending, "requests begin under it, or overdue"},
    {planner_phase::ending, planner_phase::retiring, "the last has ended, or overdue"},
    {planner_phase::retiring, planner_phase::steady, "the plan before is gone, or overdue"},
    {planner_phase::draining, planner_phase::steady, "overdue or abort"},
    {planner_phase::moving, planner_phase::steady, "no tables for the policy of now, or abort"},
    {planner_phase::installing, planner_phase::steady, "overdue or abort"},
    {planner_phase::installed, planner_phase::steady, "abort"},
};

/// A plan that is not yet in force.
struct next_plan {
  std::shared_ptr<const plan_in_force> content;
  std::shared_ptr<const model::transformer> model;  ///< In a node: with its experts.
  planning::weight_move move;
  plan_change change;
};

/// One that all servers of a cluster make together.
struct joint_change {
  std::uint64_t id = 0;
  admin_actor admin;
  std::int64_t drain_ns = 0;
};

using expert_set = std::function<bool(layer_id layer, expert_id expert)>;
using loaded_model = std::shared_ptr<const model::transformer>;

struct planner_state {
  planner_actor::pointer self = nullptr;
  std::shared_ptr<const service_context> context;
  planner_work work;
  phase_of<planner_phase> phase{planner_phase::idle, planner_steps};
  planning::selection_policy policy;  ///< In force.
  std::uint64_t policy_version = 0;
  std::shared_ptr<const plan_in_force> current;  ///< That requests begin under.
  std::shared_ptr<const plan_in_force> beside;   ///< Where servers have two: the other one.
  next_plan next;
  std::optional<joint_change> joint;
  bool holding = true;           ///< No request begins.
  std::uint64_t n_installs = 0;  ///< Sent to every server.
  std::uint64_t awaited_install = 0;
  std::uint64_t lacks_under = 0;  ///< Of install_plans.
  /// The next plan of a change that was given up, for which experts of the one in force went that cannot be read again yet:
  /// no request begins until they are here. Null: there is none.
  std::shared_ptr<const plan_in_force> unread;
  std::uint64_t times_unread = 0;   ///< How often they could not be.
  std::uint64_t change = 0;         ///< Counts what needs answers of all servers.
  std::set<std::uint32_t> awaited;  ///< Servers that have not answered it.
  std::set<std::uint32_t> ended;    ///< That said so before all began under the next plan.
  bool ended_requests = false;      ///< Those that outlast the step under way were ended by name.
  std::deque<std::shared_ptr<const replan_order>> orders;
  cluster known;                ///< Servers, and links as they are known to be.
  planning::cost_model prices;  ///< By those links.
  serving::link_board links;
  bool pricing_is_set = false;
  std::shared_ptr<const std::vector<link_spec>> priced_links;  ///< Null: as the cluster file says.

  std::int64_t time_ns() const { return now_ns(self) - context->start_ns; }
  planner_actor handle() const { return caf::actor_cast<planner_actor>(self); }
  trace::tables_id tables() const { return {current->plan.epoch, current->policy}; }
  void trace(const std::string& line) const;

  result<std::shared_ptr<const plan_in_force>> make(
      std::shared_ptr<const planning::profile> profile, planning::plan placed,
      const planning::selection_policy& by) const;

  void report(error what, std::uint32_t server = 0,
              problem::scope of = problem::scope::service) const;

  /// A step of a change takes as long as the longest request, and some.
  void await_all_servers();
  void await_all_servers(std::int64_t longest_ns);

  /// What is in force, to one server or all; `model`: with other experts.
  install_plans what_is_there(loaded_model model = nullptr) const;
  void install(const loaded_model& model = nullptr);
  void install_and_await(planner_phase next_phase, const loaded_model& model = nullptr);
  void hold();
  void resume();
  void announce(bool new_policy);

  // -------------------------------------------------------------------------------- first plan

  void push();
  void count(const plans_installed& message);
  void all_have_installed();
  void end_first_installing();

  /// It gets what is in force as the others got it; what it has to answer is asked of the new one.
  void replace(const server_replaced& message);

  // ------------------------------------------------------------------------------------- policies

  void change_to(const change_weights& message);
  void change_to(const policy_order& order);
  policy_change described(std::string reason) const;

  /// Tables of the plan in force by another policy; false, and told why, where there are none.
  bool adopt(const planning::selection_policy& by, policy_change& changed);

  /// The other plan's tables, by policy and links of now; by those before, if need be.
  void renew_beside();

  // ---------------------------------------------------------------------------------------- links

  void take(const links_told& message);

  /// The same plans and policy with tables by what links are now. A change of plan on its way takes them from here.
  void price();

  // ---------------------------------------------------------------------------------- next plans

  void order(std::shared_ptr<const replan_order> content);
  void next_order();
  void propose(propose_replan& message);

  /// Where the strategy puts experts by what is known of links now, whatever plan the options bring.
  result<planning::strategy> place(const std::string& strategy, planning::strategy_options options,
                                   const planning::profile& profile) const;

  void consider(std::string reason, const std::string& strategy, planning::strategy_options options,
                std::shared_ptr<const planning::profile> profile, double least_gain);

  result<void> fits_beside(const planning::plan& plan) const;

  /// Whether this plan may and should follow the one in force; tells `changed` what both cost.
  result<void> weigh(const planning::plan& plan, const planning::profile& profile,
                     double least_gain, plan_change& changed) const;

  void refuse(std::string why);

  // ------------------------------------------------------------------------------ from plan to plan

  void drain();
  void await_end_of_requests();
  void count(const admission_held& message);
  void move();
  void end_moving(const weights_moved& message);

  /// The next plan, by the policy and links of now.
  result<void> take_beside();
  void end_installing();

  /// From here there is no way back.
  void begin_under_next();
  void end_beginning();
  void count(const requests_ended& message);
  void check_ended();
  void retire();
  void end_retiring();

  /// Before requests begin under the next plan: they go on under the one in force.
  void give_up_change(std::string why);

  /// Experts of the plan in force, which went for those of a plan that was given up; else it is tried again later.
  void read_back();
  void overdue(const change_overdue& message);
  void report_awaited(const char* what);

  // -------------------------------------------------------------------------------------- weights

  expert_set hosted_by(const planning::plan& plan) const;

  /// In a node: the model with these experts, which are within this server's memory; null elsewhere.
  result<loaded_model> load_here(const expert_set& hosts) const;

  // ------------------------------------------------------------------------- steps that all servers take

  void answer_step(serving::change_step step, std::string why = {}) const;
  void take(plan_step& step);
  void prepare(plan_step& step, const admin_actor& admin);

  /// Whoever leads may not have heard yet that a server was removed.
  result<void> check_members(const planning::plan& placed, planning::server_mask absent) const;

  /// Tables, and the model with what both plans place here: everything that can fail while requests begin.
  result<void> make_ready(const plan_step& step);

  /// The weights of both, where they fit; else those of both that are the same are kept, and then the rest is read: nothing
  /// is in flight.
  void install_with_others();
  /// The same from one plan to the other; until it has ended, experts of both are not here.
  result<loaded_model> load_in_steps(const planning::plan& from, const planning::plan& to);
  void end_requests_in_flight();
  void abort(std::string why);

  /// Always from the profile of the start: what was measured before leaves nothing.
  std::shared_ptr<const planning::profile> by(
      const std::shared_ptr<const planning::measured_activation>& measured) const;

  drift_report drift(const drift_query& query) const;
  plan_proposal propose_only(const plan_query& query) const;
};

}  // namespace ordermoe::actors
