#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "actors/caf.hpp"
#include "actors/decide.hpp"
#include "actors/wire.hpp"

/// The protocol between the actors: every message inside a process and every typed interface. What
/// crosses between servers is in wire.hpp and travels as a `frame` through a link.
///
/// Inside one process a message cannot be lost. What can be lost, a frame on a link or a whole
/// server, is covered by the deadline that each request actor holds.
namespace ordermoe::actors {

struct deployment;
struct server_view;
struct request_spec;
struct replan_order;
struct answered_request;

struct tell_load {};    ///< Ask for the present load; a compute answers its edge server, a link the
                        ///< monitor.
struct tell_ledger {};  ///< Ask to write what was counted into the run's books.

// ----------------------------------------------------------------------------------------------------
// to a planner

struct push_plan {};  ///< From the run: put the first plan in force everywhere.

/// From the run (an operator's order): plan anew and switch once no request is in flight.
struct replan {
  std::shared_ptr<const replan_order> order;
};

/// From the monitor: activation drifted from the profile, so that the plan's expected cost is
/// `cost_ratio` times what the profile in force says. Answered by plan_in_force or plan_kept.
struct propose_replan {
  std::shared_ptr<const planning::profile> experts;  ///< With the measured activation.
  double cost_ratio = 1;
  double least_gain = 0;  ///< Share of the expected cost that another plan must save.
};

/// From the monitor: eq. (45) moved the weights after one window of requests.
struct change_weights {
  planning::selection_weights weights;
  double kappa = 0;
  std::vector<std::uint64_t> requests;  ///< The window, in the order in which they count.
};

/// From itself: the weights of the next plan are where they will be needed.
struct weights_moved {};

/// tell_ledger: from the run, when every request is answered; nothing changes any more.

using planner_actor =
    caf::typed_actor<caf::reacts_to<push_plan>, caf::reacts_to<replan>,
                     caf::reacts_to<propose_replan>, caf::reacts_to<change_weights>,
                     caf::reacts_to<weights_moved>, caf::reacts_to<tell_ledger>>;

// ----------------------------------------------------------------------------------------------------
// to a monitor. Nobody sends these where no monitor runs.

/// From the planner: what measurements are compared with from now on.
struct plan_in_force {
  std::shared_ptr<const deployment> content;
  planner_actor planner;
};

/// From the planner: a proposal changed nothing.
struct plan_kept {};

/// From a selector: how often the router chose each expert since its last report.
struct activation_report {
  std::vector<std::uint32_t> counts;  ///< [n_layers, n_experts]
  std::vector<std::uint32_t> rows;    ///< [n_layers]
};

/// From a link, when its edge server tells its load.
struct link_load {
  std::uint32_t from = 0, to = 0;
  std::int64_t time_ns = 0;
  std::int64_t busy_ns = 0;  ///< Since the start of the run.
  std::int64_t wait_ns = 0;  ///< Until a frame sent now could start.
};

/// From a request that is answered.
struct request_report {
  std::shared_ptr<const answered_request> content;
};

/// load_report: from each edge server, of itself.
using monitor_actor = caf::typed_actor<caf::reacts_to<plan_in_force>, caf::reacts_to<plan_kept>,
                                       caf::reacts_to<activation_report>,
                                       caf::reacts_to<load_report>, caf::reacts_to<link_load>,
                                       caf::reacts_to<request_report>, caf::reacts_to<tell_ledger>>;

// ----------------------------------------------------------------------------------------------------
// to a token

/// From the selector: the rows after attention, and what runs where.
struct decided {
  chunk_decision choice;
  std::vector<float> hidden;          ///< [n, hidden_size] after attention
  std::vector<float> normed;          ///< [n, hidden_size] what experts read
  std::vector<loss_units> allowance;  ///< [n] as the token sent it
};

/// From compute: logits over the vocabulary of the rows that were asked for.
struct head_done {
  std::vector<float> logits;
};

/// expert_output (wire.hpp) comes from compute where the experts ran here, from the edge server
/// otherwise.
using token_actor = caf::typed_actor<caf::reacts_to<decided>, caf::reacts_to<expert_output>,
                                     caf::reacts_to<head_done>>;

// --------------------------------------------------------------------------------------------------
// to a compute

/// From a token: attend these rows as soon as every earlier KV row of the sequence is here, then
/// ask the selector what runs where. The selector answers the token.
struct attend_work {
  token_actor token;
  request_terms terms;
  std::uint32_t layer = 0;
  std::uint32_t first = 0;
  std::uint32_t n = 0;            ///< Rows.
  std::vector<std::int32_t> ids;  ///< [n] embedded first; empty where there are hidden states.
  std::vector<float> hidden;      ///< [n, hidden_size], or empty
  bool stream = false;  ///< Hand the new KV rows to the edge server for the other members of R_l.
  // For the selector:
  std::vector<loss_units> allowance;  ///< [n]
  loss_units pool = 0;
  double tokens_left = 1;  ///< As decide_input.
};

struct expert_work {
  expert_call call;
  token_actor token;  ///< Set where the outputs go to a token on this server.
};

struct head_work {
  token_actor token;
  std::vector<float> hidden;
};

/// KV rows that arrived from another member of R_l: stored before any later attention runs.
struct store_kv {
  kv_rows content;
  std::uint32_t capacity = 0;  ///< Positions that a sequence may have.
};

struct drop_sequence {
  std::uint64_t request = 0;
};

struct batch;
struct batch_done {
  std::shared_ptr<batch> content;
  std::vector<std::shared_ptr<batch>> earlier;  ///< Done before it, which nobody waited for.
};

/// From the run or the edge server: the server as it is now. The first message that each actor of a
/// server gets.
struct attach_view {
  std::shared_ptr<const server_view> view;
};

using compute_actor = caf::typed_actor<
    caf::reacts_to<attach_view>, caf::reacts_to<attend_work>, caf::reacts_to<expert_work>,
    caf::reacts_to<head_work>, caf::reacts_to<store_kv>, caf::reacts_to<drop_sequence>,
    caf::reacts_to<batch_done>, caf::reacts_to<tell_load>, caf::reacts_to<tell_ledger>>;

// ------------------------------------------------------------------------------------------- to an
// expert shard

/// From a token here or from the edge server: run these rows. Experts that this shard does not host
/// are a broken plan.
using shard_actor = caf::typed_actor<caf::reacts_to<expert_work>>;

// -------------------------------------------------------------------------------------------------
// to a selector

/// One token's rows after attention, norm and router.
struct select_query {
  token_actor token;
  token_key key;
  std::uint32_t access = 0;
  std::uint32_t layer = 0;
  std::vector<float> hidden;          ///< [n, hidden_size] after attention
  std::vector<float> normed;          ///< [n, hidden_size] what experts read
  std::vector<float> logits;          ///< [n, n_experts]
  std::vector<loss_units> allowance;  ///< [n]
  loss_units pool = 0;
  double tokens_left = 1;  ///< As decide_input.
};

/// From compute: everything that one batch attended. Each token gets its own answer.
struct select_batch {
  std::vector<select_query> queries;
};

/// load_report: what other servers say of their waits; a new snapshot each time.
using selector_actor = caf::typed_actor<caf::reacts_to<attach_view>, caf::reacts_to<select_batch>,
                                        caf::reacts_to<load_report>>;

// -----------------------------------------------------------------------------------------------------
// to a link

/// Frames in FIFO order, delivered to the edge server at the other end.
using link_actor = caf::typed_actor<caf::reacts_to<attach_view>, caf::reacts_to<frame>,
                                    caf::reacts_to<tell_load>, caf::reacts_to<tell_ledger>>;

// ---------------------------------------------------------------------------------------------------
// to a request

struct begin_request {};     ///< From the run: the request arrives now.
struct request_deadline {};  ///< From itself.

/// From the planner to every edge server, and from there to its users' requests: let no request
/// begin. A request answers at once where it has not begun, otherwise when it is done; a server
/// when all of its requests have answered.
struct hold_admission {};

/// From the planner to every edge server once all of them confirmed the plan: requests may begin.
struct resume_admission {};

/// From the edge server to its users' requests: begin, if you arrived, under this view.
struct resume_request {
  std::shared_ptr<const server_view> view;
};

using request_actor =
    caf::typed_actor<caf::reacts_to<begin_request>, caf::reacts_to<progress_report>,
                     caf::reacts_to<reservation>, caf::reacts_to<request_deadline>,
                     caf::replies_to<hold_admission>::with<caf::ok_atom>,
                     caf::reacts_to<resume_request>>;

// -----------------------------------------------------------------------------------------------
// to an edge server

/// From compute: KV rows were written here; the other members of R_l get them.
struct kv_written {
  kv_rows content;
  std::vector<std::uint32_t> access;  ///< [blocks] access server: selects R_l
};

/// From a token: it left this server or ended.
struct token_departed {
  token_key key;
};

/// A token starts here; from a request or from the token before it.
struct start_token {
  token_state state;
};

/// From the run: a user connected to this server sends a request at `spec->arrival_ns`.
struct start_request {
  std::shared_ptr<const request_spec> spec;
  loss_units token_budget = 0;  ///< Average units per token; unbounded_budget: no limit.
  bool continue_in_place = true;
};

/// From the planner: host these experts from now on. Answered when shards and selector are ready.
/// A plan of another epoch comes only while no request is in flight; within an epoch only the
/// selection tables change.
struct install_plan {
  std::shared_ptr<const deployment> content;
};

struct load_tick {};

/// From the run: end, with every actor of this server.
struct stop_server {};

using edge_server_actor = caf::typed_actor<
    caf::reacts_to<attach_view>, caf::reacts_to<frame>, caf::reacts_to<kv_written>,
    caf::reacts_to<token_departed>, caf::reacts_to<start_token>, caf::reacts_to<start_request>,
    caf::reacts_to<progress_report>, caf::reacts_to<reservation>, caf::reacts_to<load_report>,
    caf::reacts_to<load_tick>, caf::reacts_to<stop_server>,
    caf::replies_to<install_plan>::with<caf::ok_atom>,
    caf::replies_to<hold_admission>::with<caf::ok_atom>, caf::reacts_to<resume_admission>>;

}  // namespace ordermoe::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::frame)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::attach_view)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::decided)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::head_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::expert_output)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::attend_work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::expert_work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::head_work)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::store_kv)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::drop_sequence)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::batch_done)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::tell_load)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::tell_ledger)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::select_batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::load_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::begin_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::request_deadline)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::progress_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::reservation)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::kv_written)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::token_departed)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::start_token)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::start_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::install_plan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::load_tick)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::stop_server)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::push_plan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::replan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::propose_replan)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::change_weights)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::weights_moved)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::plan_in_force)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::plan_kept)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::activation_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::link_load)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::request_report)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::hold_admission)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::resume_admission)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::resume_request)
