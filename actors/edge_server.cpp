#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "actors/compute.hpp"
#include "actors/request.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "actors/server_actors.hpp"
#include "actors/token.hpp"
#include "planning/serving/arrivals.hpp"
#include "planning/serving/kv_reservations.hpp"
#include "planning/serving/link_board.hpp"
#include "planning/serving/load_board.hpp"
#include "planning/serving/phases.hpp"
#include "planning/serving/token_visits.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

using wire::expert_output;
using wire::frame_kind;
using wire::reservation;
using wire::reserve_step;
using wire::token_state;

enum class admission { holding, open, draining };

constexpr transition<admission> admission_steps[] = {
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

  void remove(std::vector<std::pair<std::uint32_t, token_actor>>::iterator token) {
    std::swap(*token, tokens.back());
    tokens.pop_back();
  }
  auto token_at(std::uint32_t first) {
    return std::ranges::find(tokens, first, &std::pair<std::uint32_t, token_actor>::first);
  }
};

/// How a server and its links are, whatever plan it goes by and whether anybody waits for anything.
bool is_of_no_request(frame_kind kind) {
  return kind == frame_kind::load || kind == frame_kind::links;
}

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
  std::int64_t timer_ns = -1;                 ///< Of the timer that is set; -1: none.
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

  void begin(std::uint32_t own_id, const service_context& given) {
    id = own_id;
    limits = given.limits(id);
    memory = {id, limits.kv_bytes};
    refused_frames.resize(limits.n_servers, 0);
    link_free_ns.resize(limits.n_servers, 0);
    told.server = told_links.server = id;
    told_links.links.resize(limits.n_servers);
    if (given.over_sessions()) {
      // A later start's reports are newer.
      told.number = told_links.number = std::uint64_t{given.boot(id)} << 32;
      for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
        if (peer != id) away |= planning::server_mask{1} << peer;
    }
    told.link_wait_ns.resize(limits.n_servers, 0);
  }

  // --------------------------------------------------------------------------------------- plans

  void attach(std::shared_ptr<const server_view> given) {
    view = std::move(given);
    live.clear();
    if (view->placed) live[epoch_of(*view)] = view;
  }

  static std::uint64_t epoch_of(const server_view& of) { return of.placed->plan.epoch; }

  /// Null where no such plan is here. Good until a plan is installed or goes.
  const server_view* find_view(std::uint64_t epoch) const {
    if (view->placed && epoch == epoch_of(*view)) return view.get();
    const auto found = live.find(epoch);
    return found == live.end() ? nullptr : found->second.get();
  }
  std::shared_ptr<const server_view> view_of(std::uint64_t epoch) const {
    const auto found = live.find(epoch);
    return found == live.end() ? nullptr : found->second;
  }

  static bool names(const install_plans& message, std::uint64_t epoch) {
    return std::ranges::any_of(message.plans,
                               [&](const auto& each) { return each->plan.epoch == epoch; });
  }

  void install(install_plans message) {
    planner = message.planner;
    // What waited let go of experts; what comes after it, for another policy or links, brings none.
    if (awaits_end && !message.model) message.model = std::move(awaits_end->model);
    awaits_end.reset();
    const bool something_is_under = std::ranges::any_of(memory.sequences(), [&](const auto& each) {
      const auto epoch = each.second.epoch;
      return epoch < message.begins_under && live.contains(epoch) && !names(message, epoch);
    });
    if (something_is_under)
      awaits_end = std::move(message);
    else
      go_by(message);
  }

  void go_by(const install_plans& message) {
    let_go(message);
    for (const auto& content : message.plans) {
      const auto epoch = content->plan.epoch;
      const auto before = view_of(epoch);
      auto next = std::make_shared<server_view>(before ? *before : *view);
      next->placed = content;
      if (!before) host_experts(next);
      live[epoch] = next;
    }
    view = live.at(message.begins_under);
    self->send(view->compute, attach_view{view, message.model});
    self->send(view->selector, decide_by{view, message.plans});
    self->send(planner, plans_installed{message.number, id});
    told_ended = 0;
    check_ended();
  }

  /// A later plan that is not named was given up; nobody began under it.
  void let_go(const install_plans& message) {
    for (auto each = live.begin(); each != live.end();) {
      const auto& [epoch, gone] = *each;
      if (names(message, epoch)) {
        ++each;
        continue;
      }
      end_sequences_under(epoch);
      for (const auto& shard : gone->shards) end(shard);
      if (epoch < message.begins_under) latest_gone = remains_of(*gone);
      each = live.erase(each);
    }
  }

  /// What answers calls that come too late.
  static std::shared_ptr<const server_view> remains_of(const server_view& gone) {
    auto placed = std::make_shared<plan_in_force>(*gone.placed);
    placed->tables = nullptr;
    placed->profile = nullptr;
    auto rest = std::make_shared<server_view>(gone);
    rest->placed = std::move(placed);
    rest->shards.clear();
    return rest;
  }

  void end_sequences_under(std::uint64_t epoch) {
    std::vector<std::uint64_t> under;
    for (const auto& [request, held] : memory.sequences())
      if (held.epoch == epoch) under.push_back(request);
    std::ranges::sort(under);
    for (const auto request : under) apply(memory.end(request));
  }

  void host_experts(const std::shared_ptr<server_view>& next) {
    next->shards.assign(limits.n_layers, shard_actor{});
    for (std::uint32_t layer = 0; layer < limits.n_layers; ++layer)
      for (std::uint32_t expert = 0; expert < limits.n_experts; ++expert)
        if (next->placed->index.hosts(id, layer, expert)) {
          next->shards[layer] = spawn_shard(self->system(), next, layer);
          break;
        }
  }

  /// Whether the plan before is needed by a request of a user of this server.
  void check_ended() {
    if (live.empty() || live.begin()->first >= epoch_of(*view) || told_ended == epoch_of(*view))
      return;
    const bool under_it = std::ranges::any_of(requests, [&](const auto& each) {
      const auto& own = each.second.view;
      return own && epoch_of(*own) < epoch_of(*view);
    });
    if (under_it) return;
    told_ended = epoch_of(*view);
    self->send(planner, requests_ended{told_ended, id});
  }

  void stop_admitting(const hold_admission& message) {
    hold = message;
    if (admitting.is(admission::open)) admitting.move(admission::draining);
    check_drained();
  }

  void check_drained() {
    if (!hold.planner || admitting.is(admission::open)) return;
    const bool in_flight = std::ranges::any_of(
        requests, [](const auto& each) { return each.second.status.phase != request_phase::held; });
    if (in_flight) return;
    admitting.move(admission::holding);
    self->send(std::exchange(hold.planner, nullptr), admission_held{hold.change, id});
  }

  void resume() {
    hold = {};
    admitting.move(admission::open);
    admit_held();
  }

  bool may_admit() const { return admitting.is(admission::open) && congested == 0; }

  void admit_held() {
    if (!may_admit()) return;
    for (auto& [number, request] : requests)
      if (request.status.phase == request_phase::held) admit(request);
  }

  /// In flight from now on, whatever it has said of itself; or it ends where a server with KV rows of it is away.
  void admit(owned_request& request) {
    if (const auto lost = members_of(*view, id) & away; lost != 0)
      return end_for_want_of(static_cast<std::uint32_t>(std::countr_zero(lost)), request);
    request.view = view;
    request.status.epoch = epoch_of(*view);
    request.status.phase = request_phase::reserving;
    self->send(request.handle, resume_request{view});
  }

  // ------------------------------------------------------------------------------------- requests

  void submit(const submit_request& message) {
    work();
    if (requests.contains(message.request))
      return refuse(message, {errc::usage, "a request of this number is being answered"});
    if (message.spec->access != id)
      return refuse(message,
                    {errc::out_of_range, fmt::format("access server {} was asked for, this "
                                                     "is server {}",
                                                     message.spec->access, id)});
    if (drained)
      return refuse(message,
                    {errc::failed, fmt::format("server {} ({}) is drained; ask another node", id,
                                               context().servers.servers[id].name)});
    if (auto fits = check_prompt(*message.spec, context()); !fits)
      return refuse(message, fits.error());
    owned_request request;
    request.handle = spawn_request(self->system(), view, message);
    auto& status = request.status;
    status.request = message.request;
    status.access = id;
    status.prompt_tokens = prompt_tokens(*message.spec);
    status.arrival_ns = now();
    request.deadline_ns = now() + (message.spec->deadline_ns > 0 ? message.spec->deadline_ns
                                                                 : context().request_timeout_ns);
    deadlines.emplace(request.deadline_ns, message.request);
    set_timer();
    const auto place = requests.emplace(message.request, std::move(request)).first;
    if (may_admit()) admit(place->second);
  }

  void refuse(const submit_request& message, error why) {
    ++ended_requests;
    request_outcome outcome;
    outcome.request = message.request;
    outcome.access = id;
    outcome.finish = "failed";
    outcome.problem = at(fmt::format("request {}", message.request), std::move(why));
    outcome.arrival_ns = outcome.done_ns = now();
    if (message.client)
      self->send(message.client,
                 answer_end{std::make_shared<const request_outcome>(std::move(outcome))});
  }

  void end_all(const end_requests& message) {
    for (const auto& [number, request] : requests) {
      if (!request.view || epoch_of(*request.view) >= message.before_epoch) continue;
      self->send(request.handle,
                 wire::failure_report{number, request.status.attempt, id,
                                      static_cast<std::uint8_t>(errc::failed), message.why});
    }
  }

  void follow(const request_moved& message) {
    const auto found = requests.find(message.request);
    if (found == requests.end()) return;
    found->second.status.phase = message.phase;
    found->second.status.attempt = message.attempt;
    if (message.phase != request_phase::ended) return;
    deadlines.erase({found->second.deadline_ns, message.request});
    requests.erase(found);
    ++ended_requests;
    check_drained();
    check_ended();
  }

  template <class Message>
  void tell_request(std::uint64_t number, Message message) {
    const auto found = requests.find(number);
    if (found != requests.end()) self->send(found->second.handle, std::move(message));
  }

  // ---------------------------------------------------------------------------------- other servers

  /// Every server that keeps KV rows of this access server's requests under a plan.
  planning::server_mask members_of(const server_view& by, std::uint32_t access) const {
    planning::server_mask all = 0;
    for (std::uint32_t layer = 0; layer < limits.n_layers; ++layer)
      all |= by.members(access, layer);
    return all;
  }

  void take(peer_event& event) {
    const auto peer = event.server;
    if (peer >= limits.n_servers || peer == id) return;
    const auto bit = planning::server_mask{1} << peer;
    switch (event.kind) {
      case peer_event::what::frame:
        return receive(event.content);
      case peer_event::what::up:
        away &= ~bit;
        end_under_plans_of_before(peer);
        return tell_links(peer);
      case peer_event::what::down:
        away |= bit;
        congested &= ~bit;
        if (view->tracing()) view->trace(trace::parted_line(id, peer, now()));
        lose(peer);
        return admit_held();
      case peer_event::what::congested:
        congested |= bit;
        return;
      case peer_event::what::relieved:
        congested &= ~bit;
        return admit_held();
      case peer_event::what::measured:
        return measure(peer, event.link);
    }
  }

  /// Everybody who is connected is told of a link that is not what they were told.
  void measure(std::uint32_t peer, const wire::link_measure& found) {
    if (!planner) return;
    const auto& stated = context().servers.link(server_id{id}, server_id{peer});
    auto& link = told_links.links[peer];
    const auto chunk_bytes =
        static_cast<std::int64_t>(context().chunk_rows) * context().costs.hidden_bytes;
    if (!serving::worth_telling(serving::measured(stated, link), serving::measured(stated, found),
                                chunk_bytes))
      return;
    link = found;
    ++told_links.number;
    self->send(planner, links_told{told_links});
    for (std::uint32_t to = 0; to < limits.n_servers; ++to) tell_links(to);
  }

  void tell_links(std::uint32_t to) {
    const bool told_any = static_cast<std::uint32_t>(told_links.number) != 0;
    if (to == id || !told_any || ((away >> to) & 1u) != 0) return;
    view->send(self, to, wire::encode(told_links));
  }

  /// Requests and tokens that wait for something of this server wait no longer, and nothing of its users stays.
  void lose(std::uint32_t peer) {
    if (!view->placed) return;
    for (auto& [number, request] : requests)
      if (request.view && ((members_of(*request.view, id) >> peer) & 1u) != 0)
        end_for_want_of(peer, request);
    std::vector<std::uint64_t> of_peer;
    for (const auto& [request, held] : memory.sequences())
      if (held.access == peer) of_peer.push_back(request);
    std::ranges::sort(of_peer);
    for (const auto request : of_peer) apply(memory.end(request));
    for (const auto& [request, sequence] : sequences)
      for (const auto& [first, token] : sequence.tokens) self->send(token, server_lost{peer});
    tell_owners(peer);
  }

  /// A server that was away while a plan ended is back without it.
  void end_under_plans_of_before(std::uint32_t peer) {
    if (!view->placed || live.begin()->first == epoch_of(*view)) return;
    for (const auto& [number, request] : requests)
      if (request.view && epoch_of(*request.view) < epoch_of(*view)) end_for_want_of(peer, request);
  }

  /// Requests of other servers' users with KV rows here and there end: what was on its way between the two is lost, and
  /// their owners, who may be connected to both, cannot know.
  void tell_owners(std::uint32_t peer) {
    for (const auto& [request, sequence] : sequences)
      if (sequence.access != id &&
          ((members_of(*sequence.view, sequence.access) >> peer) & 1u) != 0)
        report_loss(peer, request, sequence);
  }

  void report_loss(std::uint32_t peer, std::uint64_t request, const live_sequence& sequence) {
    const auto why = view->not_connected(peer);
    wire::failure_report report{request, sequence.attempt, id, static_cast<std::uint8_t>(why.code),
                                why.message};
    if (sequence.access == id) return tell_request(request, std::move(report));
    sequence.view->send(self, sequence.access, wire::encode(report));
  }

  void end_for_want_of(std::uint32_t peer, const owned_request& request) {
    const auto why = view->not_connected(peer);
    self->send(request.handle,
               wire::failure_report{request.status.request, request.status.attempt, id,
                                    static_cast<std::uint8_t>(why.code), why.message});
  }

  /// What a token sent from here went nowhere: its request ends, and so do all whose rows are missing there now. Of all
  /// else, whoever waits for it knows.
  void take(const undeliverable& lost) {
    if (lost.kind == frame_kind::kv) return tell_owners(lost.to);
    if (lost.kind != frame_kind::token && lost.kind != frame_kind::call) return;
    const auto* sequence = sequence_of(lost.request, lost.attempt);
    if (sequence != nullptr) report_loss(lost.to, lost.request, *sequence);
  }

  // --------------------------------------------------------------------------------------- frames

  /// A bad frame has no effect but to be counted; nothing that it causes ends the server.
  void receive(const frame& content) {
    if (content.from >= limits.n_servers || content.to != id)
      return refuse(content, {errc::malformed, fmt::format("a frame from server {} to {}",
                                                           content.from, content.to)});
    if (!view->placed) return refuse(content, {errc::malformed, "a frame before the first plan"});
    if (!is_of_no_request(content.kind)) work();
    const auto* by = is_of_no_request(content.kind) ? view.get() : find_view(content.epoch);
    // Memory is given back under any plan.
    if (!by && content.kind != frame_kind::reservation) return take_late(content);
    try {
      if (auto taken = take(content, by ? *by : *view); !taken) refuse(content, taken.error());
    } catch (const std::exception& problem) {
      refuse(content, {errc::failed, problem.what()});
    }
  }

  /// Under a plan that is not here. Whoever still waits for a call hears that it is in vain: a server that was cut off
  /// from some may go by a plan that the others have let go.
  void take_late(const frame& content) {
    late();
    if (content.kind != frame_kind::call || !latest_gone || content.epoch != epoch_of(*latest_gone))
      return;
    const auto call = wire::decode_call(content, context().wire);
    const auto& placed = *latest_gone->placed;
    if (!call || !check(*call, content.from, limits, placed.plan, placed.index)) return;
    const expert_work work{*call, token_actor{}, content.epoch};
    send_output(self, *latest_gone, work,
                failed_output(*call, {errc::failed, fmt::format("server {} has let go of the plan "
                                                                "of epoch {}",
                                                                id, content.epoch)}));
  }

  /// Asks for memory under a plan that is not here.
  bool is_too_late(const reservation& message, std::uint64_t epoch) const {
    return (message.step == reserve_step::attempt || message.step == reserve_step::wait) &&
           find_view(epoch) == nullptr;
  }

  /// Of a request that goes by the plan of this view, which may be gone once the frame was taken in.
  result<void> take(const frame& content, const server_view& by) {
    const auto& shape = context().wire;
    const auto& plan = by.placed->plan;
    const auto& index = by.placed->index;
    switch (content.kind) {
      case frame_kind::token:
        return take(
            wire::decode_token(content, shape),
            [&](token_state& state) { return check(state, content.from, limits, plan); },
            [&](token_state& state) { start(std::move(state)); });
      case frame_kind::call:
        return take(
            wire::decode_call(content, shape),
            [&](const wire::expert_call& call) {
              return check(call, content.from, limits, plan, index);
            },
            [&](wire::expert_call& call) {
              self->send(by.shards[call.layer],
                         expert_work{std::move(call), token_actor{}, content.epoch});
            });
      case frame_kind::output:
        return take(
            wire::decode_output(content, shape),
            [&](const expert_output& output) { return check(output, content.from, limits, index); },
            [&](expert_output& output) {
              deliver({std::move(output), content.from});
            });
      case frame_kind::kv:
        return take(
            wire::decode_kv(content, shape),
            [&](const wire::kv_rows& rows) { return check(rows, limits); },
            [&](wire::kv_rows& rows) { store(std::move(rows), content.from); });
      case frame_kind::progress:
        return take(
            wire::decode_progress(content),
            [&](const wire::progress_report& report) {
              return check(report, content.from, limits, plan);
            },
            [&](wire::progress_report& report) { forward(std::move(report)); });
      case frame_kind::reservation:
        return take(
            wire::decode_reservation(content),
            [&](const reservation& message) {
              if (is_too_late(message, content.epoch)) return result<void>{};
              return check(message, content.from, limits, plan);
            },
            [&](const reservation& message) {
              is_too_late(message, content.epoch) ? late() : reserve(message, content.epoch);
            });
      case frame_kind::load:
        return take(
            wire::decode_load(content),
            [&](const wire::load_report& report) { return check(report, content.from, limits); },
            [&](wire::load_report& report) { self->send(view->selector, std::move(report)); });
      case frame_kind::links:
        return take(
            wire::decode_links(content),
            [&](const wire::link_report& report) { return check(report, content.from, limits); },
            [&](wire::link_report& report) { self->send(planner, links_told{std::move(report)}); });
      case frame_kind::failure:
        return take(
            wire::decode_failure(content),
            [&](const wire::failure_report& report) {
              return check(report, content.from, limits, plan);
            },
            [&](wire::failure_report& report) { tell_request(report.request, std::move(report)); });
    }
    return error{errc::malformed,
                 fmt::format("a frame of kind {}", static_cast<int>(content.kind))};
  }

  template <class Message, class Check, class Use>
  static result<void> take(result<Message> message, Check check, Use use) {
    if (!message) return message.error();
    if (auto possible = check(*message); !possible) return possible.error();
    use(*message);
    return {};
  }

  void refuse(const frame& content, error why) {
    auto& count = refused_frames[content.from < limits.n_servers ? content.from : id];
    if (!std::has_single_bit(++count)) return;
    problem found;
    found.of = problem::scope::peer;
    found.server = id;
    found.peer = content.from;
    found.count = count;
    found.what = at(fmt::format("server {}, from server {}", id, content.from), std::move(why));
    found.time_ns = now();
    self->send(view->recorder, std::move(found));
  }

  // ------------------------------------------------------------------------- sequences and tokens

  /// The sequence that a frame of this attempt belongs to; null where none is live here, or another
  /// server's users asked for it.
  live_sequence* sequence_of(std::uint64_t request, std::uint32_t attempt, std::uint32_t access) {
    auto* sequence = sequence_of(request, attempt);
    return sequence != nullptr && sequence->access == access ? sequence : nullptr;
  }
  live_sequence* sequence_of(std::uint64_t request, std::uint32_t attempt) {
    const auto found = sequences.find(request);
    return found != sequences.end() && found->second.attempt == attempt ? &found->second : nullptr;
  }
  live_sequence* sequence_of(const token_key& key) {
    return sequence_of(key.request, key.attempt, key.access);
  }

  void start(token_state state) {
    work();
    auto* sequence = sequence_of(state.terms.request, state.terms.attempt, state.terms.access);
    if (sequence == nullptr || state.first + state.ids.size() > sequence->positions) return late();
    auto outputs = sequence->visits.arrive(state.first, step_of(state));
    if (!outputs) return late();
    const auto first = state.first;
    auto token = spawn_token(*self, sequence->view, std::move(state), std::move(*outputs));
    // What it awaits from there was lost before it came.
    for (auto lost = away; lost != 0; lost &= lost - 1)
      self->send(token, server_lost{static_cast<std::uint32_t>(std::countr_zero(lost))});
    if (const auto before = sequence->token_at(first); before != sequence->tokens.end())
      before->second = std::move(token);
    else
      sequence->tokens.emplace_back(first, std::move(token));
  }

  void depart(const token_departed& message) {
    auto* sequence = sequence_of(message.key);
    if (sequence == nullptr) return;
    if (const auto token = sequence->token_at(message.key.first); token != sequence->tokens.end())
      sequence->remove(token);
    sequence->visits.leave(message.key.first, message.step);
  }

  /// A token's actor goes on with the next position, or ends where that must not be here.
  void succeed(const token_succeeded& message) {
    work();
    auto* sequence = sequence_of(message.key);
    if (sequence == nullptr) return end(message.token);
    const auto token = sequence->token_at(message.key.first);
    if (token == sequence->tokens.end() || token->second != message.token)
      return end(message.token);
    sequence->visits.leave(message.key.first, message.step);
    if (message.next_first < sequence->positions &&
        sequence->visits.arrive(message.next_first, message.next_step)) {
      token->first = message.next_first;
      return;
    }
    end(message.token);
    sequence->remove(token);
  }

  void deliver(arrived_output output) {
    const auto& key = output.content.token;
    auto* sequence = sequence_of(key);
    if (sequence == nullptr || key.first >= sequence->positions) return late();
    const auto token = sequence->token_at(key.first);
    if (token != sequence->tokens.end()) return self->send(token->second, std::move(output));
    if (!sequence->visits.park(std::move(output))) late();
  }

  void forward(wire::progress_report report) {
    const auto found = requests.find(report.request);
    if (found == requests.end()) return late();
    count(report, found->second.status);
    self->send(found->second.handle, std::move(report));
  }

  /// By the position: a report may come again.
  void count(const wire::progress_report& report, request_status& status) const {
    const auto before = status.prompt_tokens + context().decoding.start_rows;
    if (report.id >= 0 && report.position >= before)
      status.new_tokens = std::max(status.new_tokens, report.position - before + 1);
  }

  void late() { ++late_frames; }

  // ------------------------------------------------------------------------------------------- KV

  /// To the other members of R_l, each under the plan that it goes by; 0 where that is gone, and the request with it.
  planning::server_mask receivers(const kv_written& written, std::size_t i) const {
    const auto* by = find_view(written.epochs[i]);
    const auto own = planning::server_mask{1} << id;
    return by != nullptr ? by->members(written.access[i], written.content.layer) & ~own : 0;
  }

  /// One frame to each. Where rows are under two plans it goes under the later one, which is installed wherever a request
  /// began under it.
  void stream(const kv_written& written) {
    const auto epoch = std::ranges::max(written.epochs);
    const auto first = receivers(written, 0);
    bool all_alike = true;
    for (std::size_t i = 1; i < written.content.blocks.size(); ++i)
      all_alike = all_alike && receivers(written, i) == first;
    if (all_alike) {
      const auto content = wire::encode(written.content);
      for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
        if ((first >> peer) & 1u) view->send(self, peer, content, epoch);
      return;
    }
    std::map<std::uint32_t, wire::kv_rows> by_peer;
    for (std::size_t i = 0; i < written.content.blocks.size(); ++i) {
      const auto members = receivers(written, i);
      for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer) {
        if (!((members >> peer) & 1u)) continue;
        auto& rows = by_peer[peer];
        rows.layer = written.content.layer;
        rows.blocks.push_back(written.content.blocks[i]);
      }
    }
    for (const auto& [peer, rows] : by_peer) view->send(self, peer, wire::encode(rows), epoch);
  }

  /// Rows of sequences that are live here and that the sender keeps as well. Where a request is over,
  /// its last rows were still on the way.
  void store(wire::kv_rows rows, std::uint32_t sender) {
    const auto before = rows.blocks.size();
    std::erase_if(rows.blocks, [&](const wire::kv_block& block) {
      const auto* sequence = sequence_of(block.request, block.attempt);
      if (sequence == nullptr || block.first + block.n > sequence->positions) return true;
      return ((sequence->view->members(sequence->access, rows.layer) >> sender) & 1u) == 0;
    });
    late_frames += before - rows.blocks.size();
    if (!rows.blocks.empty())
      self->send(view->compute, store_kv{std::move(rows), limits.most_positions});
  }

  // ---------------------------------------------------------------------------------- reservations

  /// From an own request, or an answer to one: under the plan that it goes by.
  void reserve(const reservation& message) { reserve(message, epoch_of_request(message.request)); }

  std::uint64_t epoch_of_request(std::uint64_t request) const {
    if (const auto own = requests.find(request); own != requests.end() && own->second.view)
      return epoch_of(*own->second.view);
    const auto held = memory.sequences().find(request);
    return held != memory.sequences().end() ? held->second.epoch : epoch_of(*view);
  }

  void reserve(const reservation& message, std::uint64_t epoch) {
    const bool answer = message.step == reserve_step::granted ||
                        message.step == reserve_step::refused ||
                        message.step == reserve_step::fenced;
    const auto addressee = answer ? message.access : message.server;
    if (addressee != id) return view->send(self, addressee, wire::encode(message), epoch);
    if (answer) return answer_request(message);
    const auto* held = memory.find(message.request);
    if (held != nullptr && held->access != message.access) return late();
    apply(memory.take(message, now(), epoch));
    set_timer();
  }

  void answer_request(const reservation& message) {
    if (requests.contains(message.request)) return tell_request(message.request, message);
    late();
    // Granted to a request that is over: an ask that came late, or again.
    if (message.step != reserve_step::granted) return;
    auto release = message;
    release.step = reserve_step::release;
    reserve(release);
  }

  void apply(const kv_reservations::outcome& outcome) {
    using what = kv_reservations::event::what;
    for (const auto& event : outcome.events) {
      if (event.kind != what::granted) end_tokens(event.request);
      if (event.kind == what::ended) {
        sequences.erase(event.request);
        self->send(view->compute, drop_sequence{event.request});
      } else {
        open(event.request, event.attempt);
      }
      if (event.change_bytes != 0 && view->tracing())
        view->trace(
            trace::memory_line(id, event.request, event.change_bytes, event.reserved_bytes, now()));
    }
    for (const auto& answer : outcome.answers) reserve(answer);
    // The last that was under a plan may be gone, also one that still waited for memory.
    if (awaits_end) install(*std::exchange(awaits_end, std::nullopt));
  }

  /// What has been here of an earlier attempt says nothing about this one.
  void open(std::uint64_t request, std::uint32_t attempt) {
    const auto* held = memory.find(request);
    live_sequence sequence;
    sequence.view = view_of(held->epoch);
    std::int64_t layers = 0;
    for (std::uint32_t layer = 0; layer < limits.n_layers; ++layer)
      layers += (sequence.view->members(held->access, layer) >> id) & 1u;
    const auto row_bytes = std::max<std::int64_t>(1, layers * context().costs.kv_row_bytes);
    sequence.attempt = attempt;
    sequence.access = held->access;
    sequence.positions = static_cast<std::uint32_t>(std::min<std::int64_t>(
        held->bytes / row_bytes + context().decoding.start_rows, limits.most_positions));
    sequence.visits = token_visits(std::size_t{sequence.positions} * limits.top_k);
    sequences[request] = std::move(sequence);
    self->send(view->compute, open_sequence{request, attempt});
  }

  void end_tokens(std::uint64_t request) {
    const auto found = sequences.find(request);
    if (found == sequences.end()) return;
    for (const auto& [first, token] : found->second.tokens) end(token);
    found->second.tokens.clear();
  }

  // --------------------------------------------------------------------------------------- timers

  /// For the earliest deadline of a request or end of a lease.
  void set_timer() {
    auto earliest = memory.next_expiry_ns();
    if (!deadlines.empty()) earliest = std::min(earliest, deadlines.begin()->first);
    if (earliest == std::numeric_limits<std::int64_t>::max()) return;
    if (timer_ns >= 0 && timer_ns <= earliest) return;
    timer_ns = earliest;
    send_later(self, handle(), std::max<std::int64_t>(0, earliest - now()), timer_tick{},
               later::timer);
  }

  void ring() {
    timer_ns = -1;
    while (!deadlines.empty() && deadlines.begin()->first <= now()) {
      const auto number = deadlines.begin()->second;
      deadlines.erase(deadlines.begin());
      tell_request(number, request_deadline{});
    }
    apply(memory.expire(now()));
    set_timer();
  }

  // ----------------------------------------------------------------------------------------- load

  /// Something happens here: waits are told until nothing does.
  void work() {
    worked = true;
    set_tick();
  }

  void set_tick() {
    if (tick_is_set || !tells_load || context().load_period_ns <= 0) return;
    tick_is_set = true;
    const auto delay_ns = context().on_clock(context().load_period_ns);
    const auto& seat = context().seat;
    if (seat && seat->look_at_load && seat->look_at_load(delay_ns)) return;
    send_later(self, handle(), delay_ns, load_tick{}, later::timer);
  }

  void tick() {
    tick_is_set = false;
    if (!tells_load) return;
    goes_on = std::exchange(worked, false);
    self->send(view->compute, tell_load{});
  }

  void take(const link_load& load) {
    link_free_ns[load.to] = load.time_ns + load.wait_ns;
    if (view->monitor) self->send(view->monitor, load);
    set_tick();
  }

  /// Everybody is told once a wait is no longer what they were told.
  void take(const compute_load& load) {
    const auto time = now();
    const auto tolerance = context().load_tolerance_ns();
    bool waits = load.wait_ns > 0;
    bool changed = tell_wait(told.wait_ns, load.wait_ns, tolerance);
    for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer) {
      const auto wait = std::max<std::int64_t>(0, link_free_ns[peer] - time);
      waits |= wait > 0;
      changed |= tell_wait(told.link_wait_ns[peer], wait, tolerance);
    }
    if (changed) tell_everybody();
    if (goes_on || waits) set_tick();
  }

  void tell_everybody() {
    ++told.number;
    self->send(view->selector, told);
    if (view->monitor) self->send(view->monitor, told);
    const auto content = wire::encode(told);
    for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
      if (peer != id) view->send(self, peer, content);
  }

  // --------------------------------------------------------------------------------- status and end

  edge_status tell() const {
    server_status status;
    status.server = id;
    status.name = context().servers.servers[id].name;
    status.device = context().servers.servers[id].device;
    if (view->placed) {
      status.epoch = view->placed->plan.epoch;
      status.policy = view->placed->policy;
    }
    for (const auto& [epoch, each] : live) status.epochs.push_back(epoch);
    status.admitting = admitting.is(admission::open);
    status.drained = drained;
    for (const auto& [number, request] : requests) status.requests.push_back(request.status);
    for (const auto& [request, held] : memory.sequences()) {
      sequence_status sequence{request, held.attempt, held.bytes, held.granted, 0, 0};
      if (const auto live = sequences.find(request); live != sequences.end()) {
        sequence.tokens = static_cast<std::uint32_t>(live->second.tokens.size());
        sequence.parked_rows = static_cast<std::uint32_t>(live->second.visits.parked_rows());
      }
      status.sequences.push_back(sequence);
    }
    std::ranges::sort(status.sequences, {}, &sequence_status::request);
    status.reserved_bytes = memory.reserved_bytes();
    status.kv_bytes = memory.capacity_bytes();
    status.ledger.kv_peak_bytes = memory.peak_bytes();
    status.ended_requests = ended_requests;
    for (const auto count : refused_frames) status.refused_frames += count;
    status.late_frames = late_frames;
    for (std::uint32_t peer = 0; peer < limits.n_servers; ++peer)
      if (((away >> peer) & 1u) != 0) status.away.push_back(peer);
    return {std::move(status)};
  }

  template <class Handle>
  void end(const Handle& actor) {
    if (actor) self->send_exit(actor, caf::exit_reason::user_shutdown);
  }

  void stop() {
    for (const auto& [request, sequence] : sequences)
      for (const auto& [first, token] : sequence.tokens) end(token);
    for (const auto& [number, request] : requests) end(request.handle);
    for (const auto& [epoch, each] : live)
      for (const auto& shard : each->shards) end(shard);
    for (const auto& link : view->links) end(link);
    end(view->compute);
    end(view->selector);
    self->quit();
  }
};

}  // namespace

edge_server_actor spawn_edge_server(caf::actor_system& system,
                                    std::shared_ptr<const service_context> context,
                                    std::uint32_t id) {
  return system.spawn([context, id](edge_server_actor::stateful_pointer<edge_server_state> self)
                          -> edge_server_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.begin(id, *context);
    return {
        // CAF tries one after the other, so the most frequent come first.
        [&state](const frame& content) { state.receive(content); },
        [&state](peer_event& event) { state.take(event); },
        [&state](const kv_written& written) { state.stream(written); },
        [&state](arrived_output& message) { state.deliver(std::move(message)); },
        [&state](const token_departed& message) { state.depart(message); },
        [&state](const token_succeeded& message) { state.succeed(message); },
        [&state](start_token& message) { state.start(std::move(message.state)); },
        [&state](wire::progress_report& report) { state.forward(std::move(report)); },
        [&state](const reservation& message) { state.reserve(message); },
        [&state](const request_moved& message) { state.follow(message); },
        [&state](const submit_request& message) { state.submit(message); },
        [&state](const link_load& load) { state.take(load); },
        [&state](const compute_load& load) { state.take(load); },
        [&state](const undeliverable& lost) { state.take(lost); },
        [&state](load_tick) { state.tick(); },
        [&state](timer_tick) { state.ring(); },
        [&state](wire::failure_report& report) {
          state.tell_request(report.request, std::move(report));
        },
        [&state](const cancel_request& message) { state.tell_request(message.request, message); },
        [&state](const restart_request& message) { state.tell_request(message.request, message); },
        [&state](attach_view& message) { state.attach(std::move(message.view)); },
        [&state](const install_plans& message) { state.install(message); },
        [&state](const hold_admission& message) { state.stop_admitting(message); },
        [&state](resume_admission) { state.resume(); },
        [&state](const end_requests& message) { state.end_all(message); },
        [&state](drain_server message) { state.drained = message.on; },
        [&state](settle_down) { state.tells_load = false; },
        [&state](status_query) { return state.tell(); },
        [&state](stop_server) { state.stop(); },
    };
  });
}

}  // namespace ordermoe::actors
