#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/request.hpp"
#include "actors/server_actors.hpp"
#include "actors/token.hpp"
#include "planning/serving/arrivals.hpp"
#include "planning/serving/kv_reservations.hpp"
#include "planning/serving/phases.hpp"
#include "planning/serving/token_visits.hpp"

/// The edge server actor's state, for the sources that have a part of what it does each.
namespace ordermoe::actors {

using wire::reservation;
using wire::reserve_step;
using wire::token_state;

enum class admission { holding, open, draining };

inline constexpr transition<admission> admission_steps[] = {
    {admission::holding, admission::open, "resume"},
    {admission::open, admission::draining, "hold"},
    {admission::draining, admission::holding, "none in flight"},
    {admission::draining, admission::open, "resume"},
};

/// A request of a user of this server.
struct owned_request {
  request_actor handle;
  request_status status;
  std::int64_t deadline_ns = 0;
  std::shared_ptr<const server_view> view;  ///< That it began with; null: it is held.
};

/// A sequence that holds memory here.
struct live_sequence {
  std::shared_ptr<const server_view> view;  ///< With the plan that its request goes by.
  std::uint32_t attempt = 0;
  std::uint32_t access = 0;
  std::uint32_t positions = 0;  ///< That its memory is for.
  token_visits visits;
  /// Those that are here, by first position, in no order: a few at a time.
  std::vector<std::pair<std::uint32_t, token_actor>> tokens;
  /// Of those that left and whose outputs may still be awaited elsewhere, by first position: whom they called from here.
  std::vector<std::pair<std::uint32_t, planning::server_mask>> called;

  void remove(std::vector<std::pair<std::uint32_t, token_actor>>::iterator token) {
    std::swap(*token, tokens.back());
    tokens.pop_back();
  }
  /// One is here again: what it called before is in. Where it is the only one of its sequence, so is what others did.
  void forget_calls(std::uint32_t first, bool of_others_before) {
    std::erase_if(called, [&](const auto& each) {
      return each.first == first || (of_others_before && each.first < first);
    });
  }
  bool has_called(std::uint32_t server) const {
    return std::ranges::any_of(
        called, [server](const auto& each) { return ((each.second >> server) & 1u) != 0; });
  }
  auto token_at(std::uint32_t first) {
    return std::ranges::find(tokens, first, &std::pair<std::uint32_t, token_actor>::first);
  }
};

struct edge_server_state {
  edge_server_actor::pointer self = nullptr;
  std::uint32_t id = 0;
  std::shared_ptr<const server_view> view;  ///< With the plan that requests begin under.
  /// Of each plan that is here, by epoch: the one before while something is under it, the next one once it is installed.
  std::map<std::uint64_t, std::shared_ptr<const server_view>> live;
  std::shared_ptr<const server_view> latest_gone;  ///< With the latest plan that is gone, or null.
  std::optional<install_plans> awaits_end;  ///< Which lets go of a plan that something is under.
  std::uint64_t told_ended = 0;  ///< Epoch before which no own request is, as the planner knows.
  arrival_limits limits;
  phase_of<admission> admitting{admission::holding, admission_steps};
  bool drained = false;  ///< By an operator: its users' requests are refused.
  hold_admission hold;   ///< Whom to answer when none is in flight.
  std::map<std::uint64_t, owned_request> requests;
  std::uint64_t ended_requests = 0;
  kv_reservations memory;
  std::unordered_map<std::uint64_t, live_sequence> sequences;  ///< Those that hold memory.
  std::set<std::pair<std::int64_t, std::uint64_t>> deadlines;  ///< Of own requests.
  /// When timers ring that are on their way, each earlier than all that were when it was set.
  std::set<std::int64_t> timers;
  std::vector<std::uint64_t> refused_frames;  ///< [n_servers] by sender
  std::uint64_t late_frames = 0;
  // Where servers talk over sessions:
  planning::server_mask away = 0;       ///< Those that are not connected.
  planning::server_mask congested = 0;  ///< Those to which what is sent waits.
  wire::link_report told_links;         ///< The latest.
  planner_actor planner;                ///< Who installed the plan in force.
  // Load reports:
  wire::load_report told;                  ///< The latest.
  std::vector<std::int64_t> link_free_ns;  ///< [n_servers] when each link is free, as it last said
  bool tick_is_set = false;
  bool worked = false;  ///< Since the latest tick.
  bool tells_load = true;
  bool goes_on = false;  ///< Another tick follows the latest one whatever it finds.

  const service_context& context() const { return *view->context; }
  std::int64_t now() const { return view->time_ns(self); }
  edge_server_actor handle() const { return caf::actor_cast<edge_server_actor>(self); }

  void begin(std::uint32_t own_id, const service_context& given);

  // --------------------------------------------------------------------------------------- plans

  void attach(std::shared_ptr<const server_view> given);

  static std::uint64_t epoch_of(const server_view& of) { return of.placed->plan.epoch; }

  /// Null where no such plan is here. Good until a plan is installed or goes.
  const server_view* find_view(std::uint64_t epoch) const;
  std::shared_ptr<const server_view> view_of(std::uint64_t epoch) const;

  static bool names(const install_plans& message, std::uint64_t epoch);
  void install(install_plans message);
  void go_by(const install_plans& message);

  /// A later plan that is not named was given up; nobody began under it.
  void let_go(const install_plans& message);

  /// What answers calls that come too late.
  static std::shared_ptr<const server_view> remains_of(const server_view& gone);
  void end_sequences_under(std::uint64_t epoch);
  void host_experts(const std::shared_ptr<server_view>& next);

  /// Whether the plan before is needed by a request of a user of this server.
  void check_ended();
  void stop_admitting(const hold_admission& message);
  void check_drained();
  void resume();

  bool may_admit() const { return admitting.is(admission::open) && congested == 0; }

  void admit_held();

  /// In flight from now on, whatever it has said of itself; or it ends where a server with KV rows of it is away.
  void admit(owned_request& request);

  // ------------------------------------------------------------------------------------- requests

  void submit(const submit_request& message);
  void refuse(const submit_request& message, error why);
  void end_all(const end_requests& message);
  void follow(const request_moved& message);

  template <class Message>
  void tell_request(std::uint64_t number, Message message) {
    const auto found = requests.find(number);
    if (found != requests.end()) self->send(found->second.handle, std::move(message));
  }

  // ---------------------------------------------------------------------------------- other servers

  /// Every server that keeps KV rows of this access server's requests under a plan.
  planning::server_mask members_of(const server_view& by, std::uint32_t access) const;

  void take(peer_event& event);

  /// Everybody who is connected is told of a link that is not what they were told.
  void measure(std::uint32_t peer, const wire::link_measure& found);
  void tell_links(std::uint32_t to);

  /// Its waits and links, to one that is connected again: it may believe what was told before it was away, or before this
  /// server began anew.
  void tell_again(std::uint32_t peer);

  /// Requests and tokens that wait for something of this server wait no longer, and nothing of its users stays.
  void lose(std::uint32_t peer);
  /// Requests of this server's users with KV rows there, some of which are lost.
  void end_own_with_rows_at(std::uint32_t peer);

  /// Whoever decides names a server that is not connected only where it has to.
  void tell_away(std::uint32_t peer);

  /// A server that was away while a plan ended is back without it.
  void end_under_plans_of_before(std::uint32_t peer);

  /// Requests of other servers' users with KV rows here and there end: what was on its way between the two is lost, and
  /// their owners, who may be connected to both, cannot know.
  void tell_owners(std::uint32_t peer);
  void report_loss(const error& why, std::uint64_t request, const live_sequence& sequence);
  void end_for_want_of(std::uint32_t peer, const owned_request& request);

  /// What a token sent from here went nowhere: its request ends, and so do all whose rows are missing there now: those of a frame
  /// that no session takes are of one request alone. Of all else, whoever waits for it knows.
  void take(const undeliverable& lost);

  // --------------------------------------------------------------------------------------- frames

  /// A bad frame has no effect but to be counted; nothing that it causes ends the server.
  void receive(const frame& content);

  /// Under a plan that is not here. Whoever still waits for a call hears that it is in vain: a server that was cut off
  /// from some may go by a plan that the others have let go.
  void take_late(const frame& content);

  /// Asks for memory under a plan that is not here.
  bool is_too_late(const reservation& message, std::uint64_t epoch) const;

  /// Of a request that goes by the plan of this view, which may be gone once the frame was taken in.
  result<void> take(const frame& content, const server_view& by);

  template <class Message, class Check, class Use>
  static result<void> take(result<Message> message, Check check, Use use) {
    if (!message) return message.error();
    if (auto possible = check(*message); !possible) return possible.error();
    use(*message);
    return {};
  }

  void refuse(const frame& content, error why);

  // ------------------------------------------------------------------------- sequences and tokens

  /// The sequence that a frame of this attempt belongs to; null where none is live here, or another
  /// server's users asked for it.
  live_sequence* sequence_of(std::uint64_t request, std::uint32_t attempt, std::uint32_t access);
  live_sequence* sequence_of(std::uint64_t request, std::uint32_t attempt);
  live_sequence* sequence_of(const token_key& key);
  void start(token_state state);
  void depart(const token_departed& message);

  /// A token's actor goes on with the next position, or ends where that must not be here.
  void succeed(const token_succeeded& message);
  void deliver(arrived_output output);
  void forward(wire::progress_report report);

  /// By the position: a report may come again.
  void count(const wire::progress_report& report, request_status& status) const;

  void late() { ++late_frames; }

  // ------------------------------------------------------------------------------------------- KV

  /// To the other members of R_l, each under the plan that it goes by; 0 where that is gone, and the request with it.
  planning::server_mask receivers(const kv_written& written, std::size_t i) const;

  /// One frame to each. Where rows are under two plans it goes under the later one, which is installed wherever a request
  /// began under it.
  void stream(const kv_written& written);

  /// To each of these; in several frames where they are too many for a session's.
  void send_rows(planning::server_mask to, const wire::kv_rows& rows, std::uint64_t epoch);

  /// Rows of sequences that are live here and that the sender keeps as well. Where a request is over,
  /// its last rows were still on the way.
  void store(wire::kv_rows rows, std::uint32_t sender);

  // ---------------------------------------------------------------------------------- reservations

  /// From an own request, or an answer to one: under the plan that it goes by.
  void reserve(const reservation& message) { reserve(message, epoch_of_request(message.request)); }

  std::uint64_t epoch_of_request(std::uint64_t request) const;

  void reserve(const reservation& message, std::uint64_t epoch);
  void answer_request(const reservation& message);
  void apply(const kv_reservations::outcome& outcome);

  /// What has been here of an earlier attempt says nothing about this one.
  void open(std::uint64_t request, std::uint32_t attempt);
  void end_tokens(std::uint64_t request);

  // --------------------------------------------------------------------------------------- timers

  /// For the earliest deadline of a request or end of a lease.
  void set_timer();
  void ring(const timer_tick& which);

  // ----------------------------------------------------------------------------------------- load

  /// Something happens here: waits are told until nothing does.
  void work();
  void set_tick();
  void tick();
  void take(const link_load& load);

  /// Everybody is told once a wait is no longer what they were told.
  void take(const compute_load& load);
  void tell_everybody();

  // --------------------------------------------------------------------------------- status and end

  edge_status tell() const;

  template <class Handle>
  void end(const Handle& actor) {
    if (actor) self->send_exit(actor, caf::exit_reason::user_shutdown);
  }

  void stop();
};

}  // namespace ordermoe::actors
