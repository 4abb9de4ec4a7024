#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "actors/admin/admin.hpp"
#include "actors/admin/gathering.hpp"
#include "actors/admin/identity_report.hpp"
#include "actors/admin/kept_policy.hpp"
#include "actors/admin/member_roll.hpp"
#include "actors/admin/orders.hpp"
#include "actors/admin/overview.hpp"
#include "actors/admin/reports.hpp"
#include "actors/admin/tokens.hpp"
#include "config/json.hpp"
#include "planning/server_mask.hpp"

/// The admin actor's state, for the sources of this folder: each has one part of what it does.
namespace ordermoe::actors {

using nlohmann::ordered_json;
using serving::change_action;
using serving::change_message;
using serving::change_step;

inline constexpr std::size_t most_proposals = 8;
inline constexpr std::int64_t longest_drain_s = 3600;

/// What all nodes are asked for.
enum class subject : std::uint8_t {
  status,      ///< The line of each.
  activation,  ///< What its routers chose.
  ways         ///< Its line, and what the way to each other node is like.
};
const char* to_string(subject of);

/// A change of plan that this server leads.
struct led_change {
  order_ptr order;
  std::deque<planning::plan> plans;  ///< What comes after it, the plan that was wanted the last.
  std::uint64_t epoch = 0;           ///< That it leads to itself.
  std::int64_t drain_s = 0;
  std::string admission;
  std::shared_ptr<const planning::measured_activation> measured;  ///< By which it goes.
};

/// What an order wants of a server.
struct member_wish {
  std::string name, address;
  bool member = true;
  bool lost = false;  ///< It does not come back, whatever is there.
};

struct admin_state {
  admin_actor::pointer self = nullptr;
  admin_work work;
  std::optional<serving::plan_changes> rules;
  std::uint64_t n_changes = 0, n_operations = 0, n_proposals = 0;
  std::deque<proposal> proposals;
  std::map<serving::change_id, led_change> led;
  std::shared_ptr<const planning::plan> prepared;                    ///< Of the change under way.
  std::shared_ptr<const planning::measured_activation> prepared_by;  ///< Likewise.
  std::uint64_t kept_rows = 0;  ///< That had come in when counts were kept last.
  drift_report told_drift;      ///< The latest that was an event.
  std::optional<order_book> book;
  std::set<std::uint32_t> away;
  gathering_book gatherings;
  token_book tokens;
  kept_policy policy;          ///< That operators set last, at any node; version 0: none did.
  bool policy_is_due = false;  ///< It was kept, and the planner does not go by it yet.
  bool ticking = false;

  const service_context& context() const { return *work.context; }
  std::uint32_t id() const { return context().seat->server; }
  double time_s() const { return static_cast<double>(now_ns(self) - context().start_ns) * 1e-9; }

  using handler = void (admin_state::*)(const order_ptr&, const json_value&);
  struct verb {
    const char* name;
    rank least;
    bool changes;
    handler run;
  };
  static const std::array<verb, 30>& verbs();

  /// use(what is in force), where there is a plan.
  template <class Use>
  void with_plan(const order_ptr& order, Use use) {
    self->request(work.planner, caf::infinite, in_force_query{})
        .then([this, order, use](const in_force& now) {
          // Its arguments made no sense.
          if (!order->reply) return;
          if (!now.content) return book->refuse(order, {errc::failed, "no plan is in force yet"});
          order->epoch_before = now.content->plan.epoch;
          use(now);
        });
  }

  template <class Use>
  void with_status(Use use) {
    self->request(work.server, caf::infinite, status_query{}).then([use](const edge_status& now) {
      use(now.content);
    });
  }

  /// use(epoch), of what changes something and no plan.
  template <class Use>
  void with_epoch(const order_ptr& order, Use use) {
    with_status([order, use](const server_status& status) {
      // Its arguments made no sense.
      if (!order->reply) return;
      order->epoch_before = status.epoch;
      use(status.epoch);
    });
  }

  void drain(const order_ptr& order, const json_value&) { set_drained(order, true); }
  void resume(const order_ptr& order, const json_value&) { set_drained(order, false); }

  // admin.cpp: orders, from when they come until somebody knows what to do
  const std::string& name_of(std::uint32_t server) const;
  void start();
  /// What cannot be read is told, and done without.
  void read_kept();
  void keep(const char* name, const std::string& text, log_event where_not);
  static std::int64_t seconds_now();
  void tick_soon();
  void tick();
  void take(admin_order& order);
  static std::string without_secret(const std::string& text);
  /// To the role of a token, where that is more than the certificate's, or alone counts.
  result<void> raise(order_in_hand& order, const std::string& secret);
  static error lacks_role(const order_in_hand& order, rank least);
  ordered_json names_of(const std::set<std::uint32_t>& servers) const;
  std::string server_name(std::uint32_t server) const;

  // looking.cpp: what changes nothing
  void members(const order_ptr& order, const json_value&);
  void list_requests(const order_ptr& order, const json_value&);
  void show_request(const order_ptr& order, const json_value& arguments);
  error no_request(std::uint64_t request) const;
  ordered_json figures() const;
  void tell_peers(const order_ptr& order, const json_value&);
  void tell_experts(const order_ptr& order, const json_value& arguments);
  void tell_status(const order_ptr& order, const json_value&);
  void tell_topology(const order_ptr& order, const json_value&);
  /// Answers with what `report` makes of what all nodes say of themselves, who does not in time left out.
  void gather(const order_ptr& order,
              const std::function<ordered_json(const told_reports&)>& report, subject of);
  error asked_too_much() const;
  /// done(what each node says), who does not in time left out. Not where gatherings are full.
  void ask_all(subject of, const gathering_book::finish& done);
  /// use(what this node says).
  void tell_own(subject of, const std::function<void(ordered_json)>& use);
  void keep_counts(const observations& seen, const std::string& text);
  void tell_report(std::uint32_t to, std::uint64_t question, subject of);
  void get_log_level(const order_ptr& order, const json_value&);
  void list_tokens(const order_ptr& order, const json_value&);
  void show_plan(const order_ptr& order, const json_value&);
  void tell_history(const order_ptr& order, const json_value&);
  void get_policy(const order_ptr& order, const json_value&);
  void tell_events(const order_ptr& order, const json_value& arguments);
  void tell_audit(const order_ptr& order, const json_value&);
  void show_certificate(const order_ptr& order, const json_value&);

  // node_orders.cpp: what changes this node
  void set_log_level(const order_ptr& order, const json_value& arguments);
  void create_token(const order_ptr& order, const json_value& arguments);
  void revoke_token(const order_ptr& order, const json_value& arguments);
  /// Here, on disk, and at all that are connected; the others hear of it when they are.
  void change_tokens(token_book changed);
  result<std::shared_ptr<net::identity_keeper>> keeper() const;
  void reload_certificate(const order_ptr& order, const json_value& arguments);
  void cancel(const order_ptr& order, const json_value& arguments);
  void set_drained(const order_ptr& order, bool on);

  // member_orders.cpp: who belongs to the cluster
  bool is_member(std::uint32_t server) const;
  /// Servers that are no members.
  std::set<std::uint32_t> absent() const;
  planning::server_mask absent_mask() const;
  std::set<std::uint32_t> away_members() const;
  /// Error: usage, with the names that there are.
  result<std::uint32_t> server_called(const std::string& name) const;
  void add_member(const order_ptr& order, const json_value& arguments);
  void remove_member(const order_ptr& order, const json_value& arguments);
  void change_member(const order_ptr& order, const member_wish& wish);
  /// Of one that is connected: whether it is done with its users' requests.
  void ask_before_removing(const order_ptr& order, std::uint32_t server, const member_wish& wish);
  static result<void> check_idle(const std::string& name, const ordered_json& report);
  void settle_member(const order_ptr& order, std::uint32_t server, const member_wish& wish);
  result<void> may_change(std::uint32_t server, const member_wish& wish,
                          const planning::plan& plan) const;
  /// Whoever is cut off from the others does not change who they are.
  result<void> knows_most(std::uint32_t but) const;
  result<void> may_remove(std::uint32_t server, const member_wish& wish,
                          const planning::plan& plan) const;
  /// From an order, or from another server.
  void take_words(std::uint32_t from, const member_words& words);
  void tell_members(std::uint32_t server);
  void hear_members(std::uint32_t from, const std::string& text);

  // policy_orders.cpp: policies
  /// What the policy in force becomes; members that are not named stay.
  result<planning::selection_policy> changed_policy(const planning::selection_policy& now,
                                                    const std::string& members) const;
  void set_policy(const order_ptr& order, const json_value& arguments);
  void change_policy_by(const order_ptr& order, const std::string& members);
  void adopt_policy(kept_policy next);
  void order_policy();
  /// The planner has no use for a policy before its first plan.
  void follow_kept_policy();

  // plan_orders.cpp: plans, and changes of plan that this node leads
  void propose(const order_ptr& order, const json_value& arguments);
  void propose(const order_ptr& order, const std::shared_ptr<const replan_order>& wanted,
               const std::shared_ptr<const planning::measured_activation>& measured);
  /// Whether a change of plan is under way, whose steps would wait until the planner has searched: then it is refused.
  bool refused_for_change(const order_ptr& order);
  void tell_unkept(const order_ptr& order, const plan_proposal& made, const plan_in_force& before,
                   const std::shared_ptr<const planning::measured_activation>& measured);
  const proposal& keep(bool is_ordered, const plan_proposal& made, const planning::plan& before,
                       const std::shared_ptr<const planning::measured_activation>& measured);
  std::vector<planning::plan> way_to(const planning::plan& before,
                                     const planning::plan& after) const;
  /// Who is no member, and whom the order names.
  result<planning::server_mask> left_out_of(const json_value& arguments) const;
  const proposal* proposal_of(const order_ptr& order, const json_value& arguments);
  void diff(const order_ptr& order, const json_value& arguments);
  void apply(const order_ptr& order, const json_value& arguments);
  void tell_dry_run(const order_ptr& order, const proposal& of, std::int64_t drain_s);
  void lead(const order_ptr& order, const proposal& of, std::int64_t drain_s);
  /// The first of its plans that are left.
  result<void> lead_next(led_change next, bool holds);
  void abort(const order_ptr& order, const json_value&);

  // drift.cpp: what routers choose, beside what the plan in force was made for
  using activation_ptr = std::shared_ptr<const planning::measured_activation>;
  /// use(what was measured at these nodes together), where gatherings are not full.
  void with_activation(
      const std::function<void(const activation_ptr&, const std::set<std::uint32_t>& nodes)>& use);
  void tell_drift(const order_ptr& order, const json_value&);
  /// Of the first node that is there, every so often.
  void look_for_drift();
  void look_for_drift_soon();
  void judge(const activation_ptr& measured, const drift_report& found);
  void propose_by_itself(const activation_ptr& measured);

  // change_steps.cpp: this node's part in changes of plan
  void act(const std::vector<change_action>& todo);
  void take_step(const change_action& what);
  /// The text of a prepare, into the step that is made of it.
  result<void> read_plan(const std::string& text, plan_step& step) const;
  void take(const plan_step_done& message);
  void keep_plan();
  void finish(serving::change_id change, const std::string& why);
  void stay(const order_ptr& order, std::uint64_t epoch, const std::string& why);

  // between_admins.cpp: what admins tell each other
  /// The others take a newer list from whoever has it; `from` has.
  void identity_changed(const ordered_json& what, std::uint32_t from);
  void tell_revocations(std::uint32_t server);
  void take_revocations(std::uint32_t from, const std::string& pem);
  void say(std::uint32_t server, const ordered_json& content);
  /// Other servers that are connected.
  std::set<std::uint32_t> present() const;
  void say_to_all(const ordered_json& content);
  void take(const peer_said& message);
  /// From the node around it: an event.
  void take_own(const std::string& text);
  /// What is no part of a change of plan: {"ask"}, {"told", "report"}, {"policy"} or {"tokens"}.
  void take_talk(std::uint32_t from, json_document& document);
  void take_policy(std::uint32_t from, const std::string& text);
  void take_tokens(std::uint32_t from, const std::string& text);
  /// What it may have missed.
  void greet(std::uint32_t server);
  void ignore(std::uint32_t server, const error& why);
  void take(const peer_changed& message);
};

}  // namespace ordermoe::actors
