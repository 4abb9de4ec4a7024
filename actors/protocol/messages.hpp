#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "actors/protocol/changes.hpp"
#include "actors/protocol/cluster_seat.hpp"
#include "actors/protocol/requests.hpp"
#include "actors/protocol/status.hpp"
#include "actors/scheduling/caf.hpp"
#include "net/wire/messages.hpp"
#include "planning/serving/awaited_outputs.hpp"
#include "planning/serving/decide.hpp"
#include "planning/serving/plan_change.hpp"
#include "planning/serving/plan_in_force.hpp"
#include "planning/strategies/adaptation.hpp"

/// The protocol between the actors: every message inside a process and every typed interface. What
/// crosses between servers is in net/wire/messages.hpp and travels as a `frame` through a link.
///
/// Inside one process a message is neither lost nor repeated, and those of one sender to one receiver
/// keep their order. Frames have none of that: whoever takes one in takes each thing once
/// (planning/serving).
namespace ordermoe::actors {

using wire::frame;
using wire::token_key;

struct server_view;
/// What a token lends while its position goes from layer to layer without it (actors/passage.hpp).
struct passage;

/// To edge servers, computes, selectors, links, planners: say how things are. Answered by the struct of that
/// name in status.hpp.
struct status_query {};

// ------------------------------------------------------------------------------------- to a client

/// answer_token, answer_end: from the request that it sent, which ends with the latter.
struct answer_end {
  std::shared_ptr<const request_outcome> outcome;
};

using client_actor = caf::typed_actor<caf::reacts_to<answer_token>, caf::reacts_to<answer_end>>;

// ----------------------------------------------------------------------------------- to a recorder

/// problem: from whoever finds it. plan_change, policy_change: from the planner.
/// Asked for everything that it was told.
struct history_query {};
struct history {
  std::vector<problem> problems;  ///< The latest, as many as are kept.
  std::vector<plan_change> plan_changes;
  std::vector<policy_change> policy_changes;
};

using recorder_actor =
    caf::typed_actor<caf::reacts_to<problem>, caf::reacts_to<plan_change>,
                     caf::reacts_to<policy_change>, caf::replies_to<history_query>::with<history>>;

// ------------------------------------------------------------------------------------ to a planner

/// From the service: put the first plan in force everywhere.
struct push_plan {};

/// From the service (an operator's order): plan anew and switch; one that comes during a change waits for its end.
struct replan {
  std::shared_ptr<const replan_order> order;
};

/// From the service (an operator's order): select by another policy.
struct change_policy {
  std::shared_ptr<const policy_order> order;
};

/// From the monitor: activation drifted from the profile, so that the plan's expected cost is
/// `cost_ratio` times what the profile in force says. Answered by plan_announced or plan_kept.
struct propose_replan {
  std::shared_ptr<const planning::profile> profile;  ///< With the measured activation.
  double cost_ratio = 1;
  double least_gain = 0;  ///< Share of the expected cost that another plan must save.
};

/// From the monitor: eq. (45) moved the weights after one window of requests.
struct change_weights {
  planning::selection_weights weights;
  double kappa = 0;
  std::vector<std::uint64_t> requests;  ///< The window, in the order in which they count.
};

/// From an edge server: no request of its users is in flight, and none begins. `change` as in
/// hold_admission.
struct admission_held {
  std::uint64_t change = 0;
  std::uint32_t server = 0;
};

/// From an edge server: it has done what install_plans of this number, and those before it, say.
struct plans_installed {
  std::uint64_t number = 0;
  std::uint32_t server = 0;
};

/// From an edge server: no request of its users is under a plan before the one of this epoch any more. A planner whose cluster
/// has admins passes it on as plan_before_ended, so that they end the change together.
struct requests_ended {
  std::uint64_t epoch = 0;
  std::uint32_t server = 0;
};

/// From the service: this server started again, with nothing.
struct server_replaced {
  std::uint32_t server = 0;
  caf::strong_actor_ptr handle;  ///< Of its edge server.
};

/// From itself: the weights of the next plan are where they will be needed.
struct weights_moved {
  std::uint64_t change = 0;
};

/// From itself: a step of this change has taken too long.
struct change_overdue {
  std::uint64_t change = 0;
};

/// From itself: experts that a change of plan let go of and that could not be read back may be readable now.
struct read_experts {};

/// From an edge server: how the links that leave a server are.
struct links_told {
  wire::link_report report;
};

/// From itself: what was told of links since goes into the tables.
struct price_links {};

/// From the admin: this server's part in a step of a change that all servers make (planning/serving/plan_change.hpp).
/// Answered by plan_step_done, but for abort.
struct plan_step {
  std::uint64_t change = 0;
  serving::change_step step = serving::change_step::prepare;
  std::shared_ptr<const planning::plan> plan;  ///< prepare
  /// prepare: requests under the plan before end by name so long after no other begins under it.
  std::int64_t drain_ns = 0;
  bool holds = false;  ///< prepare: both plans do not fit into memory together, somewhere.
  /// prepare: by which decisions under the plan go from then on; null: the activation in force stays.
  std::shared_ptr<const planning::measured_activation> measured;
  planning::server_mask absent = 0;  ///< prepare: servers that are no members, as this one knows.
  std::string why;                   ///< abort
  caf::strong_actor_ptr admin;
};

/// From the admin: what this strategy would place where, without consequences. Answered by plan_proposal.
struct plan_query {
  std::shared_ptr<const replan_order> order;
  std::shared_ptr<const planning::measured_activation> measured =
      nullptr;  ///< Null: that in force.
};
struct plan_proposal {
  std::string strategy;                        ///< That of the start, where none was asked for.
  std::shared_ptr<const planning::plan> plan;  ///< Null where it is refused.
  std::string refused;
  double cost_before_ns = 0, cost_after_ns = 0;  ///< As plan_change has them.
  std::vector<std::int64_t> bytes_to;            ///< [n_servers] that each server lacks.
  /// Why no request begins while the last end; empty: both plans fit everywhere.
  std::string why_held;
};

/// From the admin: how far what routers choose is from what the plan in force goes by. Answered by drift_report.
struct drift_query {
  std::shared_ptr<const planning::measured_activation> measured;
};
struct drift_report {
  std::uint64_t epoch = 0;  ///< Of the plan in force; 0: none is yet.
  /// planning::placement_cost_ns of that plan, by the activation in force and by the measured one.
  double cost_planned_ns = 0, cost_measured_ns = 0;
  std::vector<double> moved;  ///< As planning::moved_shares has them.
};

/// From the admin: the plan and policy in force.
struct in_force_query {};
struct in_force {
  std::shared_ptr<const plan_in_force> content;
  planning::selection_policy policy;
};

using planner_actor = caf::typed_actor<
    caf::reacts_to<links_told>, caf::reacts_to<price_links>, caf::reacts_to<push_plan>,
    caf::reacts_to<replan>, caf::reacts_to<change_policy>, caf::reacts_to<propose_replan>,
    caf::reacts_to<change_weights>, caf::reacts_to<admission_held>, caf::reacts_to<plans_installed>,
    caf::reacts_to<requests_ended>, caf::reacts_to<server_replaced>, caf::reacts_to<weights_moved>,
    caf::reacts_to<change_overdue>, caf::reacts_to<read_experts>, caf::reacts_to<plan_step>,
    caf::replies_to<plan_query>::with<plan_proposal>,
    caf::replies_to<drift_query>::with<drift_report>,
    caf::replies_to<in_force_query>::with<in_force>,
    caf::replies_to<status_query>::with<planner_status>>;

// ---------------------------------------------- to a monitor. Nobody sends these where none runs.

/// From the planner: what measurements are compared with from now on.
struct plan_announced {
  std::shared_ptr<const plan_in_force> content;
  planner_actor planner;
  bool new_policy = false;  ///< Not one that the monitor's own steps made.
};

/// From the planner: a proposal changed nothing.
struct plan_kept {};

/// From a selector: what routers chose for decoded positions since its last report.
struct activation_report {
  /// [n_layers] of [rows, top_k]: experts of each row, ascending; rows in the order in which they were decided on.
  std::vector<std::vector<std::uint32_t>> targets;
  /// [n_layers] of [rows, 2, top_k]: what each row chose at the layer before and at this one, where that is known.
  std::vector<std::vector<std::uint32_t>> steps;
};

/// From a link whose wait is longer than it said before. To its edge server, which passes it on to the
/// monitor.
struct link_load {
  std::uint32_t from = 0, to = 0;
  std::int64_t time_ns = 0;
  std::int64_t busy_ns = 0;  ///< Since the start.
  std::int64_t wait_ns = 0;  ///< Until a frame sent now could start.
};

/// From a request that is answered.
struct request_report {
  std::shared_ptr<const planning::answered_request> content;
};

/// wire::load_report: from each edge server, of itself. status_query: what was measured so far.
using monitor_actor =
    caf::typed_actor<caf::reacts_to<plan_announced>, caf::reacts_to<plan_kept>,
                     caf::reacts_to<activation_report>, caf::reacts_to<wire::load_report>,
                     caf::reacts_to<link_load>, caf::reacts_to<request_report>,
                     caf::replies_to<status_query>::with<observations>>;

// -------------------------------------------------------------------------------------- to a token

/// From the selector: the rows after attention, and what runs where.
struct decided {
  chunk_decision choice;
  std::vector<float> hidden;          ///< [n, hidden_size] after attention
  std::vector<float> normed;          ///< [n, hidden_size] what experts read
  std::vector<loss_units> allowance;  ///< [n] as the token sent it
  std::shared_ptr<passage> lent =
      nullptr;  ///< What the token lent, as far as it came; null: nothing.
};

/// From compute: logits over the vocabulary of the rows that were asked for, a part of those of a batch, which it keeps alive.
struct head_done {
  std::shared_ptr<const std::vector<float>> batch;
  std::size_t first = 0, count = 0;
  std::shared_ptr<passage> lent = nullptr;  ///< As in decided.

  std::span<const float> logits() const {
    return batch ? std::span(*batch).subspan(first, count) : std::span<const float>();
  }
};

/// From compute: what the token waits for cannot be computed.
struct work_failed {
  error what;
};

/// From the edge server: what is awaited from this server will not come.
struct server_lost {
  std::uint32_t server = 0;
};

/// arrived_output: from compute where the experts ran here, from the edge server otherwise.
using token_actor = caf::typed_actor<caf::reacts_to<decided>, caf::reacts_to<arrived_output>,
                                     caf::reacts_to<head_done>, caf::reacts_to<work_failed>,
                                     caf::reacts_to<server_lost>>;

// ------------------------------------------------------------------------------------ to a compute

/// From a token: attend these rows as soon as every earlier KV row of the sequence is here, then
/// ask the selector what runs where. The selector answers the token.
struct attend_work {
  token_actor token;
  wire::request_terms terms;
  std::uint64_t epoch = 0;  ///< Of the plan that it goes by.
  std::uint32_t layer = 0;
  std::uint32_t first = 0;
  std::uint32_t n = 0;            ///< Rows.
  std::vector<std::int32_t> ids;  ///< [n] embedded first; empty where there are hidden states.
  std::vector<float> hidden;      ///< [n, hidden_size], or empty
  bool stream = false;  ///< Hand the new KV rows to the edge server for the other members of R_l.
  // For the selector:
  std::vector<std::uint16_t> chosen;  ///< As token_state, of the layer before; may be empty.
  std::vector<loss_units> allowance;  ///< [n]
  loss_units pool = 0;
  double tokens_left = 1;  ///< As decide_input.
  /// Where the token lent its state: whoever passes the row on gives it back with the answer, or to who goes on with it.
  std::shared_ptr<passage> lent = nullptr;
};

struct expert_work {
  wire::expert_call call;
  token_actor token;        ///< Set where the outputs go to a token on this server.
  std::uint64_t epoch = 0;  ///< Of the plan that the call goes by; its outputs go by no later one.
  std::shared_ptr<passage> lent = nullptr;  ///< The compute goes on with what it brings.
};

/// From the selector, by way of the shard: calls of tokens that lent their state, of one layer.
struct expert_batch {
  std::vector<expert_work> calls;
};

struct head_work {
  token_actor token;
  std::vector<float> hidden;
  std::shared_ptr<passage> lent = nullptr;
};

/// KV rows that arrived from another member of R_l: stored before any later attention runs.
struct store_kv {
  wire::kv_rows content;
  std::uint32_t capacity = 0;  ///< Positions that a sequence may have.
};

/// From the edge server: rows of this attempt may be kept here from now on, those of earlier attempts are
/// forgotten.
struct open_sequence {
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
};

/// From the edge server: nothing of this request is kept here any more.
struct drop_sequence {
  std::uint64_t request = 0;
};

struct batch;
struct batch_done {
  std::shared_ptr<batch> content;
  std::vector<std::shared_ptr<batch>> earlier;  ///< Done before it, which nobody waited for.
};

/// From the edge server: say the present load; answered by compute_load.
struct tell_load {};

/// What a compute counted and has to do.
struct compute_status {
  server_ledger ledger;
  std::size_t sequences = 0;
  std::size_t waiting_batches = 0;
  std::int64_t wait_ns = 0;
};

/// From the service or the edge server: the server as it is now. The first message that each actor of a
/// server gets.
struct attach_view {
  std::shared_ptr<const server_view> view;
  /// To a compute: with the experts that all plans here place here; null: what is there has them.
  std::shared_ptr<const model::transformer> model = nullptr;
  std::uint64_t lacks_under = 0;  ///< To a compute: as in install_plans.
};

using compute_actor = caf::typed_actor<
    caf::reacts_to<attach_view>, caf::reacts_to<attend_work>, caf::reacts_to<expert_work>,
    caf::reacts_to<expert_batch>, caf::reacts_to<head_work>, caf::reacts_to<store_kv>,
    caf::reacts_to<open_sequence>, caf::reacts_to<drop_sequence>, caf::reacts_to<batch_done>,
    caf::reacts_to<tell_load>, caf::replies_to<status_query>::with<compute_status>>;

// ------------------------------------------------------------------------------- to an expert shard

/// From a token here or from the edge server: run these rows. expert_batch: from the selector.
using shard_actor = caf::typed_actor<caf::reacts_to<expert_work>, caf::reacts_to<expert_batch>>;

// ----------------------------------------------------------------------------------- to a selector

/// One token's rows after attention, norm and router.
struct select_query {
  token_actor token;
  token_key key;
  std::uint64_t epoch = 0;  ///< Of the plan that it goes by.
  std::uint32_t access = 0;
  std::uint32_t layer = 0;
  std::vector<float> hidden;          ///< [n, hidden_size] after attention
  std::vector<float> normed;          ///< [n, hidden_size] what experts read
  std::vector<float> logits;          ///< [n, n_experts]
  std::vector<loss_units> allowance;  ///< [n]
  loss_units pool = 0;
  double tokens_left = 1;                  ///< As decide_input.
  std::uint32_t unread_before = 0;         ///< As decide_input.
  bool decodes = false;                    ///< A decoded position, and no chunk of a prompt.
  std::vector<std::uint16_t> chosen = {};  ///< As attend_work.
  std::shared_ptr<passage> lent = nullptr;
};

/// From compute: everything that one batch attended. Each token gets its own answer.
struct select_batch {
  std::vector<select_query> queries;
};

/// From the edge server: the server as it is, and all plans that it has, by epoch. Queries name theirs.
struct decide_by {
  std::shared_ptr<const server_view> view;
  std::vector<std::shared_ptr<const plan_in_force>> plans;
};

struct selector_status {
  execution_counts executions{};
  std::vector<execution_counts> layer_executions;  ///< Of layer 0 on, as far as any was decided on.
  std::uint64_t snapshot = 0;
};

/// wire::load_report: what a server, this one too, says of its waits; a new snapshot each time.
using selector_actor = caf::typed_actor<caf::reacts_to<decide_by>, caf::reacts_to<select_batch>,
                                        caf::reacts_to<wire::load_report>,
                                        caf::replies_to<status_query>::with<selector_status>>;

// --------------------------------------------------------------------------------------- to a link

/// From itself: the next part of a frame may be sent. Virtual time.
struct part_is_due {};

/// Frames in FIFO order, but for those that go in parts, delivered to the edge server at the other end.
using link_actor =
    caf::typed_actor<caf::reacts_to<attach_view>, caf::reacts_to<frame>,
                     caf::reacts_to<part_is_due>, caf::replies_to<status_query>::with<link_status>>;

// --------------------------------------------------------------------------------------- to a wire

/// From itself, and from whoever gave its sessions something to do.
struct wire_tick {};

/// attach_view: from the service, of either end. Virtual time, over sessions.
using wire_actor = caf::typed_actor<caf::reacts_to<attach_view>, caf::reacts_to<wire_tick>>;

// ------------------------------------------------------------------------------------ to a request

/// From the edge server: its time is over.
struct request_deadline {};

/// From the edge server: nobody wants the answer any more.
struct cancel_request {
  std::uint64_t request = 0;
};

/// From the edge server: begin again on what is known, with a new attempt.
struct restart_request {
  std::uint64_t request = 0;
};

/// From the edge server: begin under this view.
struct resume_request {
  std::shared_ptr<const server_view> view;
};

using request_actor =
    caf::typed_actor<caf::reacts_to<wire::progress_report>, caf::reacts_to<wire::reservation>,
                     caf::reacts_to<wire::failure_report>, caf::reacts_to<resume_request>,
                     caf::reacts_to<request_deadline>, caf::reacts_to<cancel_request>,
                     caf::reacts_to<restart_request>>;

// -------------------------------------------------------------------------------- to an edge server

/// From compute: KV rows were written here; the other members of R_l get them.
struct kv_written {
  wire::kv_rows content;
  std::vector<std::uint32_t> access;  ///< [blocks] access server: selects R_l
  std::vector<std::uint64_t> epochs;  ///< [blocks] of the plan that has it
};

/// From a token: it left this server or ended.
struct token_departed {
  token_key key;
  std::uint32_t step = 0;            ///< Up to which it was here.
  planning::server_mask called = 0;  ///< Others that it called from here, and awaits where it goes.
};

/// From a token: its position is done, and the same actor goes on as the token of the next one.
struct token_succeeded {
  token_actor token;
  token_key key;           ///< Of the position that is done.
  std::uint32_t step = 0;  ///< Up to which that was here.
  std::uint32_t next_first = 0, next_step = 0;
};

/// A token starts here; from a request.
struct start_token {
  wire::token_state state;
};

/// From a client: a user connected to this server asks for an answer. Nothing is sent back but what
/// goes to the client.
struct submit_request {
  std::uint64_t request = 0;  ///< No other in the cluster has this number, now or before.
  std::shared_ptr<const request_spec> spec;
  client_actor client;
};

/// From a request of a user of this server: it is in another phase now, with so many tokens answered.
struct request_moved {
  std::uint64_t request = 0;
  request_phase phase = request_phase::held;
  std::uint32_t attempt = 0;
};

/// From compute: its load.
struct compute_load {
  std::int64_t wait_ns = 0;
};

/// From a link: a frame for this server went nowhere, since it is not connected or the frame too large.
struct undeliverable {
  wire::frame_kind kind = wire::frame_kind::token;
  std::uint32_t to = 0;
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::size_t bytes = 0;  ///< Serialised.
};

/// From the planner: let no request begin from now on; answer with admission_held once none is in
/// flight.
struct hold_admission {
  std::uint64_t change = 0;
  planner_actor planner;
};

/// From the planner: requests may begin.
struct resume_admission {};

/// From the planner: from now on these plans are here, with these tables;
/// answer with plans_installed. A plan that is not named any more goes with all that is under it, an earlier one once
/// nothing is: the answer waits for it. Where an earlier plan is named, requests_ended follows once it may go.
struct install_plans {
  std::vector<std::shared_ptr<const plan_in_force>> plans;  ///< One or two, by epoch.
  std::uint64_t begins_under = 0;  ///< The epoch under which requests begin.
  std::uint64_t number = 0;        ///< Of the planner's, from 1.
  planner_actor planner;
  /// With the experts that the plans place here; null: what is there has them.
  std::shared_ptr<const model::transformer> model = nullptr;
  /// The epoch of a plan of which experts are not here, since there was no room: what comes for it waits until they are, or
  /// the plan is gone. 0: none.
  std::uint64_t lacks_under = 0;
};

/// From the planner: requests under plans before this one have had their time and end by name.
struct end_requests {
  std::uint64_t before_epoch = 0;
  std::string why;
};

/// From the admin: no request of this server's users is taken any more, until it is taken back.
struct drain_server {
  bool on = true;
};

/// From itself.
struct load_tick {};
struct timer_tick {
  std::int64_t due_ns = 0;  ///< For when it was set.
};

/// From the service, which is about to count what was sent: tell no load any more.
struct settle_down {};

/// From the service: end, with every actor of this server.
struct stop_server {};

/// What an edge server counted; server_status without what its compute and selector know.
struct edge_status {
  server_status content;
};

using edge_server_actor = caf::typed_actor<
    caf::reacts_to<attach_view>, caf::reacts_to<frame>, caf::reacts_to<kv_written>,
    caf::reacts_to<arrived_output>, caf::reacts_to<token_departed>, caf::reacts_to<token_succeeded>,
    caf::reacts_to<start_token>, caf::reacts_to<wire::progress_report>,
    caf::reacts_to<wire::reservation>, caf::reacts_to<wire::failure_report>,
    caf::reacts_to<submit_request>, caf::reacts_to<cancel_request>, caf::reacts_to<restart_request>,
    caf::reacts_to<request_moved>, caf::reacts_to<compute_load>, caf::reacts_to<link_load>,
    caf::reacts_to<load_tick>, caf::reacts_to<timer_tick>, caf::reacts_to<peer_event>,
    caf::reacts_to<undeliverable>, caf::reacts_to<hold_admission>, caf::reacts_to<resume_admission>,
    caf::reacts_to<install_plans>, caf::reacts_to<settle_down>, caf::reacts_to<stop_server>,
    caf::reacts_to<end_requests>, caf::reacts_to<drain_server>,
    caf::replies_to<status_query>::with<edge_status>>;

// --------------------------------------------------------------------- to an admin, where servers talk over sessions

/// From the service: what an operator wants, as JSON (actors/admin/admin.hpp).
struct admin_order {
  std::string who, role;
  std::string text;
  std::function<void(std::string)> reply;  ///< Once, from any thread.
};

/// From the service: what the admin of another server says.
struct peer_said {
  std::uint32_t server = 0;
  std::string text;
};

/// From the service: another server is connected, or is not any more.
struct peer_changed {
  std::uint32_t server = 0;
  bool up = false;
};

/// From the planner: the step is done here, or cannot be: why.
struct plan_step_done {
  std::uint64_t change = 0;
  serving::change_step step = serving::change_step::prepare;
  std::string why;
};

/// From the planner: no request of this server's users is under the plan before this change's any more.
struct plan_before_ended {
  std::uint64_t change = 0;
};

/// From itself: whether routers still choose what the plan was made for.
struct look_for_drift {};

using admin_actor = caf::typed_actor<caf::reacts_to<admin_order>, caf::reacts_to<peer_said>,
                                     caf::reacts_to<peer_changed>, caf::reacts_to<plan_step_done>,
                                     caf::reacts_to<plan_before_ended>, caf::reacts_to<timer_tick>,
                                     caf::reacts_to<look_for_drift>>;

}  // namespace ordermoe::actors

// Messages stay inside a process: CAF never serialises them.
#define ORDERMOE_LOCAL_MESSAGE(type) CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::type)
ORDERMOE_LOCAL_MESSAGE(actors::activation_report)
ORDERMOE_LOCAL_MESSAGE(actors::admin_order)
ORDERMOE_LOCAL_MESSAGE(actors::admission_held)
ORDERMOE_LOCAL_MESSAGE(actors::drain_server)
ORDERMOE_LOCAL_MESSAGE(actors::drift_query)
ORDERMOE_LOCAL_MESSAGE(actors::drift_report)
ORDERMOE_LOCAL_MESSAGE(actors::end_requests)
ORDERMOE_LOCAL_MESSAGE(actors::in_force)
ORDERMOE_LOCAL_MESSAGE(actors::in_force_query)
ORDERMOE_LOCAL_MESSAGE(actors::peer_changed)
ORDERMOE_LOCAL_MESSAGE(actors::peer_said)
ORDERMOE_LOCAL_MESSAGE(actors::plan_proposal)
ORDERMOE_LOCAL_MESSAGE(actors::plan_query)
ORDERMOE_LOCAL_MESSAGE(actors::plan_step)
ORDERMOE_LOCAL_MESSAGE(actors::plan_step_done)
ORDERMOE_LOCAL_MESSAGE(actors::answer_end)
ORDERMOE_LOCAL_MESSAGE(actors::answer_token)
ORDERMOE_LOCAL_MESSAGE(actors::attach_view)
ORDERMOE_LOCAL_MESSAGE(actors::attend_work)
ORDERMOE_LOCAL_MESSAGE(actors::batch_done)
ORDERMOE_LOCAL_MESSAGE(actors::cancel_request)
ORDERMOE_LOCAL_MESSAGE(actors::change_overdue)
ORDERMOE_LOCAL_MESSAGE(actors::change_policy)
ORDERMOE_LOCAL_MESSAGE(actors::change_weights)
ORDERMOE_LOCAL_MESSAGE(actors::compute_load)
ORDERMOE_LOCAL_MESSAGE(actors::compute_status)
ORDERMOE_LOCAL_MESSAGE(actors::decided)
ORDERMOE_LOCAL_MESSAGE(actors::drop_sequence)
ORDERMOE_LOCAL_MESSAGE(actors::edge_status)
ORDERMOE_LOCAL_MESSAGE(actors::expert_work)
ORDERMOE_LOCAL_MESSAGE(actors::expert_batch)
ORDERMOE_LOCAL_MESSAGE(actors::head_done)
ORDERMOE_LOCAL_MESSAGE(actors::head_work)
ORDERMOE_LOCAL_MESSAGE(actors::history)
ORDERMOE_LOCAL_MESSAGE(actors::history_query)
ORDERMOE_LOCAL_MESSAGE(actors::hold_admission)
ORDERMOE_LOCAL_MESSAGE(actors::install_plans)
ORDERMOE_LOCAL_MESSAGE(actors::kv_written)
ORDERMOE_LOCAL_MESSAGE(actors::link_load)
ORDERMOE_LOCAL_MESSAGE(actors::link_status)
ORDERMOE_LOCAL_MESSAGE(actors::links_told)
ORDERMOE_LOCAL_MESSAGE(actors::load_tick)
ORDERMOE_LOCAL_MESSAGE(actors::look_for_drift)
ORDERMOE_LOCAL_MESSAGE(actors::observations)
ORDERMOE_LOCAL_MESSAGE(actors::open_sequence)
ORDERMOE_LOCAL_MESSAGE(actors::peer_event)
ORDERMOE_LOCAL_MESSAGE(actors::plan_announced)
ORDERMOE_LOCAL_MESSAGE(actors::plan_change)
ORDERMOE_LOCAL_MESSAGE(actors::plans_installed)
ORDERMOE_LOCAL_MESSAGE(actors::plan_before_ended)
ORDERMOE_LOCAL_MESSAGE(actors::requests_ended)
ORDERMOE_LOCAL_MESSAGE(actors::decide_by)
ORDERMOE_LOCAL_MESSAGE(actors::plan_kept)
ORDERMOE_LOCAL_MESSAGE(actors::planner_status)
ORDERMOE_LOCAL_MESSAGE(actors::policy_change)
ORDERMOE_LOCAL_MESSAGE(actors::price_links)
ORDERMOE_LOCAL_MESSAGE(actors::problem)
ORDERMOE_LOCAL_MESSAGE(actors::propose_replan)
ORDERMOE_LOCAL_MESSAGE(actors::push_plan)
ORDERMOE_LOCAL_MESSAGE(actors::read_experts)
ORDERMOE_LOCAL_MESSAGE(actors::replan)
ORDERMOE_LOCAL_MESSAGE(actors::request_deadline)
ORDERMOE_LOCAL_MESSAGE(actors::request_moved)
ORDERMOE_LOCAL_MESSAGE(actors::request_report)
ORDERMOE_LOCAL_MESSAGE(actors::restart_request)
ORDERMOE_LOCAL_MESSAGE(actors::resume_admission)
ORDERMOE_LOCAL_MESSAGE(actors::resume_request)
ORDERMOE_LOCAL_MESSAGE(actors::select_batch)
ORDERMOE_LOCAL_MESSAGE(actors::selector_status)
ORDERMOE_LOCAL_MESSAGE(actors::server_lost)
ORDERMOE_LOCAL_MESSAGE(actors::server_replaced)
ORDERMOE_LOCAL_MESSAGE(actors::settle_down)
ORDERMOE_LOCAL_MESSAGE(actors::start_token)
ORDERMOE_LOCAL_MESSAGE(actors::status_query)
ORDERMOE_LOCAL_MESSAGE(actors::stop_server)
ORDERMOE_LOCAL_MESSAGE(actors::store_kv)
ORDERMOE_LOCAL_MESSAGE(actors::submit_request)
ORDERMOE_LOCAL_MESSAGE(actors::tell_load)
ORDERMOE_LOCAL_MESSAGE(actors::timer_tick)
ORDERMOE_LOCAL_MESSAGE(actors::token_departed)
ORDERMOE_LOCAL_MESSAGE(actors::token_succeeded)
ORDERMOE_LOCAL_MESSAGE(actors::weights_moved)
ORDERMOE_LOCAL_MESSAGE(actors::undeliverable)
ORDERMOE_LOCAL_MESSAGE(actors::part_is_due)
ORDERMOE_LOCAL_MESSAGE(actors::wire_tick)
ORDERMOE_LOCAL_MESSAGE(actors::work_failed)
ORDERMOE_LOCAL_MESSAGE(serving::arrived_output)
ORDERMOE_LOCAL_MESSAGE(wire::failure_report)
ORDERMOE_LOCAL_MESSAGE(wire::frame)
ORDERMOE_LOCAL_MESSAGE(wire::load_report)
ORDERMOE_LOCAL_MESSAGE(wire::progress_report)
ORDERMOE_LOCAL_MESSAGE(wire::reservation)
#undef ORDERMOE_LOCAL_MESSAGE
