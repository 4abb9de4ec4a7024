#include "actors/service/service.hpp"

#include <caf/scheduler/test_coordinator.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "actors/admin/admin.hpp"
#include "actors/compute.hpp"
#include "actors/context.hpp"
#include "actors/device/device_thread.hpp"
#include "actors/monitor.hpp"
#include "actors/planner.hpp"
#include "actors/scheduling/calm_scheduler.hpp"
#include "actors/scheduling/lending_unit.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "actors/server_actors.hpp"
#include "actors/service/client_bridge.hpp"
#include "actors/service/console.hpp"
#include "actors/service/context_making.hpp"
#include "planning/plan.hpp"
#include "trace/header.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

constexpr auto longest_answer = std::chrono::seconds(30);

caf::actor_system_config& configure(caf::actor_system_config& config, run_mode mode) {
  if (mode == run_mode::emulated) {
    config.set("scheduler.policy", caf::atom("testing"));
  } else {
    config.set("scheduler.max-threads", std::max(2u, std::thread::hardware_concurrency()));
    config.set("work-stealing.moderate-poll-attempts", 0);
    // An idle thread looks for others' work; what is its own wakes it at once.
    config.set("work-stealing.relaxed-sleep-duration", caf::timespan{20'000'000});
    config.load<calm_scheduler>();
  }
  return config;
}

/// An actor system that nobody else has actors in.
struct own_system {
  explicit own_system(run_mode mode) : system(configure(config, mode)) {}
  caf::actor_system_config config;
  caf::actor_system system;
};

trace::trace_header header_of(const service_options& options, const service_context& context) {
  trace::trace_header header;
  header.mode = options.sessions ? run_mode::local : options.mode;
  header.seed = options.seed;
  header.strategy = options.chosen.name;
  header.quality_percent = options.quality_percent;
  header.token_budget = options.chosen.token_budget;
  header.allowance_factor = options.chosen.allowance_factor;
  header.continue_in_place = options.chosen.continue_in_place;
  header.chunk_rows = options.chunk_rows;
  header.tells_choices = context.seat.has_value();
  header.router_gates = context.shape().gates;
  header.servers = context.servers;
  header.costs = options.costs;
  header.policy = options.chosen.policy;
  header.profile = options.profile;
  if (options.seat && options.seat->measured)
    header.profile = planning::with_measured_activation(options.profile, *options.seat->measured);
  header.plan = options.chosen.plan;
  header.plan.epoch = first_epoch(options.chosen.plan, context);
  return header;
}

}  // namespace

/// All actors, their scheduler, and how time passes for them.
class service::actors {
 public:
  actors(const service_options& options, std::shared_ptr<service_context> context)
      : options_(options),
        own_(options.system ? nullptr : std::make_unique<own_system>(options.mode)),
        system_(options.system ? *options.system : own_->system),
        lending_(&system_),
        context_(std::move(context)) {
    if (!own_) context_->census = std::make_shared<actor_census>();
    if (options.mode == run_mode::emulated) {
      scheduler_ = dynamic_cast<caf::scheduler::test_coordinator*>(&system_.scheduler());
      ORDERMOE_CHECK(scheduler_ != nullptr, "emulated mode runs under CAF's testing scheduler");
      worker_.emplace(*scheduler_, options.order_seed);
      scheduler_->clock().current_time = caf::actor_clock::time_point{} + std::chrono::seconds(1);
    }
    context_->start_ns = clock_ns();
  }

  ~actors() { stop(); }

  result<void> begin() {
    if (context_->trace) context_->trace->line(trace::header_line(header_of(options_, *context_)));
    recorder_ = spawn_recorder(system_);
    // A node's admin asks it.
    if (options_.monitor.on || context_->seat)
      monitor_ = spawn_monitor(system_, context_, options_.monitor);
    answers_ = std::make_shared<answer_book>(options_.seat ? options_.seat->first_request : 0);
    client_ = spawn_client_bridge(system_, answers_);
    console_ = spawn_console(system_);
    count(recorder_);
    count(monitor_);
    count(client_);
    count(console_);
    spawn_servers();
    if (context_->seat) forget_models();
    spawn_planner_of();
    if (context_->seat)
      admin_ = spawn_admin(system_, {context_,
                                     planner_,
                                     views_.front()->server,
                                     views_.front()->selector,
                                     recorder_,
                                     monitor_,
                                     {answers_, &answers_->tokens()}});
    count(admin_);
    caf::anon_send(planner_, push_plan{});
    return await_first_plan();
  }

  std::uint64_t submit(request_spec spec, answer_sink sink) {
    const auto number = answers_->expect();
    caf::anon_send(client_, expected_answer{number, std::move(sink)});
    // A server that is elsewhere is refused by the one that is here.
    const auto access = std::min<std::size_t>(spec.access, views_.size() - 1);
    const auto delay = std::max<std::int64_t>(0, spec.arrival_ns - now_ns());
    submit_request message{number, std::make_shared<const request_spec>(std::move(spec)),
                           caf::actor_cast<client_actor>(client_)};
    if (delay == 0)
      caf::anon_send(views_[access]->server, std::move(message));
    else
      send_later(worker(), views_[access]->server, delay, std::move(message));
    return number;
  }

  template <class Message>
  void tell_owner(std::uint64_t request) {
    for (const auto& view : views_) caf::anon_send(view->server, Message{request});
  }

  template <class Message, class Order>
  void order(Order content) {
    const auto delay = std::max<std::int64_t>(0, content.at_ns - now_ns());
    send_later(worker(), planner_, delay,
               Message{std::make_shared<const Order>(std::move(content))}, later::timer);
  }

  void at(std::int64_t time_ns, std::function<void()> what) {
    send_later(worker(), console_, std::max<std::int64_t>(0, time_ns - now_ns()),
               console_job{[what = std::move(what)](console_self*) { what(); }}, later::timer);
  }

  /// Without the planner, who may be planning or loading experts for minutes.
  result<service_status> status_of_servers() { return status(planner_actor()); }
  result<service_status> status() { return status(planner_); }

  result<service_status> status(const planner_actor& planner) {
    auto pending = std::make_shared<pending_answer<service_status>>();
    ask_status(pending, views_, planner, monitor_, console_);
    auto answer = await(*pending);
    if (answer) answer->time_ns = now_ns();
    return answer;
  }

  std::optional<rehearsal_figures> rehearsed() const {
    if (!options_.rehearsed) return std::nullopt;
    rehearsal_figures all;
    for (const auto& device : devices_) all += device->rehearsed_so_far();
    return all;
  }

  result<service::told> history() {
    auto pending = std::make_shared<pending_answer<ordermoe::actors::history>>();
    ask_history(pending, recorder_, console_);
    auto answer = await(*pending);
    if (!answer) return answer.error();
    return service::told{std::move(answer->problems), std::move(answer->plan_changes),
                         std::move(answer->policy_changes)};
  }

  void deliver(std::vector<peer_event> events) {
    for (auto& event : events) deliver_one(std::move(event));
  }

  template <class Message>
  void deliver_one(Message message) {
    caf::actor_cast<caf::strong_actor_ptr>(views_.front()->server)
        ->enqueue(
            caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(message)),
            &lending_);
  }

  void run_delivered() {
    auto& device = *devices_.front();
    const auto& turns = context_->seat->turns;
    if (!std::exchange(helping_, true)) device.begin_helping();
    device.help_along(lending_, [&] {
      if (turns && turns->holds()) turns->write(device.may_hold_ns());
    });
  }

  void measured(std::uint32_t from, std::uint32_t to, const wire::link_measure& link) {
    peer_event event;
    event.kind = peer_event::what::measured;
    event.server = to;
    event.link = link;
    for (const auto& view : views_)
      if (view->id == from) caf::anon_send(view->server, std::move(event));
  }

  void administer(admin_order order) { caf::anon_send(admin_, std::move(order)); }
  void tell_admin(peer_said said) { caf::anon_send(admin_, std::move(said)); }
  void tell_admin(peer_changed change) { caf::anon_send(admin_, change); }

  std::size_t outstanding() const { return answers_->outstanding(); }
  std::int64_t now_ns() const { return clock_ns() - context_->start_ns; }

  bool run_until(const std::function<bool()>& done, const std::function<bool()>& pause) {
    return worker_ ? run_virtual_time(done, pause) : wait(done, pause);
  }

  result<void> settle() {
    for (const auto& view : views_) caf::anon_send(view->server, settle_down{});
    if (worker_) {
      run_ready();
      while (worker_->has_work() && worker_->deliver_next()) run_ready();
      return {};
    }
    const auto limit = std::chrono::steady_clock::now() + longest_answer;
    // A frame's longest way to rest: compute, edge server, link, edge server, compute, selector.
    constexpr int hops = 6;
    for (int quiet = 0; quiet < hops;) {
      const auto now = status();
      if (!now) return now.error();
      quiet = at_rest(*now) ? quiet + 1 : 0;
      if (std::chrono::steady_clock::now() > limit)
        return error{errc::timed_out, "servers did not come to rest"};
    }
    return {};
  }

  result<void> close_trace() {
    if (auto settled = settle(); !settled) return settled;
    const auto now = status();
    if (!now) return now.error();
    std::uint64_t ended = 0;
    for (const auto& server : now->servers) ended += server.ended_requests;
    auto& sink = *context_->trace;
    sink.line(trace::closing_line(ended));
    for (const auto& link : now->links) sink.line(trace::ledger_line(link.ledger));
    for (const auto& server : now->servers) sink.line(trace::ledger_line(server.ledger));
    return {};
  }

  void crash(std::uint32_t server, net::simulated_pair::ending how) {
    context_->network->end(server, how);
    caf::anon_send(views_[server]->server, stop_server{});
  }

  void start_again(std::uint32_t server, boot_count count) {
    context_->network->start(server, count);
    views_[server] = spawn_server(server);
    introduce(views_[server]);
    caf::anon_send(
        planner_,
        server_replaced{server, caf::actor_cast<caf::strong_actor_ptr>(views_[server]->server)});
  }

  sessions_status sessions() const {
    return context_->network ? context_->network->status() : sessions_status{};
  }

  void stop() {
    if (stopped_) return;
    stopped_ = true;
    for (const auto& view : views_) caf::anon_send(view->server, stop_server{});
    for (const caf::actor& each :
         {caf::actor_cast<caf::actor>(admin_), caf::actor_cast<caf::actor>(planner_),
          caf::actor_cast<caf::actor>(monitor_), caf::actor_cast<caf::actor>(recorder_),
          caf::actor_cast<caf::actor>(client_), caf::actor_cast<caf::actor>(console_)})
      if (each) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    for (const auto& each : movers_) caf::anon_send_exit(each, caf::exit_reason::user_shutdown);
    movers_.clear();
    if (worker_) run_ready();
    views_.clear();
    admin_ = nullptr;
    planner_ = nullptr;
    monitor_ = nullptr;
    recorder_ = nullptr;
    client_ = nullptr;
    console_ = nullptr;
    if (worker_) return worker_.reset();
    // Actors may still use the devices, and devices the system.
    if (own_)
      system_.await_all_actors_done();
    else
      context_->census->await_none();
    devices_.clear();
  }

 private:
  std::int64_t clock_ns() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               system_.clock().now().time_since_epoch())
        .count();
  }

  virtual_time_worker* worker() { return worker_ ? &*worker_ : nullptr; }

  /// Those that it spawns itself; servers count what they spawn.
  template <class Handle>
  void count(const Handle& each) {
    if (each) actor_census::count(context_->census, each);
  }

  void spawn_servers() {
    if (context_->network) movers_ = context_->network->spawn(system_, context_);
    for (std::uint32_t id = 0; id < context_->n_servers(); ++id)
      if (context_->is_here(id)) views_.push_back(spawn_server(id));
    for (const auto& view : views_) introduce(view);
  }

  /// Plans bring other experts: those of the start are the device's alone, which lets them go.
  void forget_models() {
    context_->models.clear();
    options_.server_models.clear();
  }

  std::shared_ptr<server_view> spawn_server(std::uint32_t id) {
    auto view = std::make_shared<server_view>();
    view->context = context_;
    view->id = id;
    view->server = spawn_edge_server(system_, context_, id);
    if (!worker_) {
      // A charge is of whole layers, of as many as the charged model has; and a trace has every position's decision of each.
      const bool leaves_unread = !options_.rehearsed && !context_->trace;
      devices_.push_back(std::make_shared<device_thread>(
          system_, context_->models[id], options_.threads_per_server,
          [context = context_, id](batch& content) { return charge(*context, id, content); },
          options_.rehearsed, context_->seat ? context_->seat->turns : nullptr, leaves_unread));
    }
    view->compute =
        spawn_compute(system_, context_, id, devices_.empty() ? nullptr : devices_.back());
    view->selector = spawn_selector(system_, id);
    view->recorder = recorder_;
    view->monitor = monitor_;
    view->links.resize(context_->n_servers());
    for (std::uint32_t to = 0; to < context_->n_servers(); ++to)
      if (to != id) view->links[to] = spawn_link(system_, context_, id, to);
    count(view->server);
    count(view->compute);
    count(view->selector);
    for (const auto& link : view->links) count(link);
    return view;
  }

  /// To whom it talks without a session, or whoever moves its sessions.
  void introduce(const std::shared_ptr<server_view>& view) {
    caf::anon_send(view->server, attach_view{view});
    for (std::uint32_t to = 0; to < context_->n_servers(); ++to) {
      if (to == view->id) continue;
      caf::anon_send(view->links[to], attach_view{view});
      if (context_->network)
        caf::anon_send(context_->network->between(view->id, to), attach_view{view});
      else if (!context_->seat)
        caf::anon_send(view->links[to], attach_view{views_[to]});
    }
  }

  void spawn_planner_of() {
    planner_work work;
    work.profile = options_.profile;
    work.chosen = options_.chosen;
    work.proposals = options_.monitor.planning;
    for (const auto& view : views_) {
      work.servers.push_back(view->server);
      work.ids.push_back(view->id);
    }
    work.recorder = recorder_;
    work.monitor = monitor_;
    work.most_positions = options_.promised_positions;
    work.most_positions.resize(context_->n_servers(), 0);
    if (context_->seat) work.load = context_->seat->load;
    planner_ = spawn_planner(system_, context_, std::move(work));
    count(planner_);
  }

  /// The plan is in force where every server admits requests.
  result<void> await_first_plan() {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (;;) {
      if (worker_) run_ready();
      const auto now = status();
      if (!now) return now.error();
      const auto ready = std::ranges::count_if(now->servers, &server_status::admitting);
      if (static_cast<std::size_t>(ready) == views_.size()) return {};
      const auto known = history();
      if (!known) return known.error();
      if (!known->problems.empty()) return known->problems.front().what;
      if (worker_ || std::chrono::steady_clock::now() > limit)
        return error{errc::timed_out,
                     fmt::format("{} of {} servers admit requests", ready, views_.size())};
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  void run_ready() {
    while (worker_->run_one()) {
    }
  }

  bool run_virtual_time(const std::function<bool()>& done, const std::function<bool()>& pause) {
    std::size_t steps = 0;
    for (run_ready(); !done(); run_ready()) {
      if (++steps % 1024 == 0 && pause && pause()) return done();
      if (!worker_->deliver_next()) return done();
    }
    return true;
  }

  bool wait(const std::function<bool()>& done, const std::function<bool()>& pause) {
    while (!done()) {
      if (pause && pause()) return done();
      answers_->wait_for_end(std::chrono::milliseconds(10));
    }
    return true;
  }

  template <class Content>
  result<Content> await(pending_answer<Content>& pending) {
    if (worker_)
      while (!pending.complete() && worker_->run_one()) {
      }
    else
      pending.wait(longest_answer);
    if (!pending.complete()) return error{errc::timed_out, "an actor did not say how it is"};
    return pending.take();
  }

  static bool at_rest(const service_status& status) {
    return status.planner.phase == planner_phase::steady &&
           std::ranges::all_of(status.servers, [](const server_status& server) {
             return server.sequences.empty() && server.waiting_batches == 0 &&
                    server.kv_sequences == 0;
           });
  }

  service_options options_;
  std::unique_ptr<own_system> own_;  ///< Null in somebody else's.
  caf::actor_system& system_;
  lending_unit lending_;                                   ///< Of the thread that delivers.
  caf::scheduler::test_coordinator* scheduler_ = nullptr;  ///< Emulated mode.
  std::optional<virtual_time_worker> worker_;              ///< Emulated mode.
  std::shared_ptr<service_context> context_;
  std::vector<std::shared_ptr<device_thread>> devices_;  ///< [n_servers] in local mode.
  std::vector<std::shared_ptr<server_view>> views_;
  std::vector<wire_actor> movers_;  ///< Of simulated sessions.
  recorder_actor recorder_;
  planner_actor planner_;
  admin_actor admin_;  ///< Of a node.
  monitor_actor monitor_;
  client_bridge_actor client_;
  console_actor console_;
  std::shared_ptr<answer_book> answers_;
  bool helping_ = false;  ///< The thread that delivers.
  bool stopped_ = false;
};

service::service(std::unique_ptr<actors> content) : content_(std::move(content)) {}
service::~service() = default;

result<std::unique_ptr<service>> service::start(service_options options) {
  auto context = make_context(options);
  if (auto checked = check_options(options, *context); !checked) return checked.error();
  // A system's own construction takes this thread into its log too.
  const spawning_scope scope;
  auto content = std::make_unique<actors>(options, std::move(context));
  if (auto begun = content->begin(); !begun) return begun.error();
  return std::unique_ptr<service>(new service(std::move(content)));
}

std::uint64_t service::submit(request_spec spec, answer_sink sink) {
  return content_->submit(std::move(spec), std::move(sink));
}
void service::cancel(std::uint64_t request) {
  content_->tell_owner<cancel_request>(request);
}
void service::restart(std::uint64_t request) {
  content_->tell_owner<restart_request>(request);
}
void service::change_plan(replan_order order) {
  content_->order<replan>(std::move(order));
}
void service::change_policy(policy_order order) {
  content_->order<struct change_policy>(std::move(order));
}
result<service_status> service::status_of_servers() {
  return content_->status_of_servers();
}
result<service_status> service::status() {
  return content_->status();
}
std::optional<rehearsal_figures> service::rehearsed() const {
  return content_->rehearsed();
}
result<service::told> service::history() {
  return content_->history();
}
void service::measured(std::uint32_t from, std::uint32_t to, const wire::link_measure& link) {
  content_->measured(from, to, link);
}
void service::deliver(std::vector<peer_event> events) {
  content_->deliver(std::move(events));
}
void service::look_at_load() {
  content_->deliver_one(load_tick{});
}
void service::run_delivered() {
  content_->run_delivered();
}
std::size_t service::outstanding() const {
  return content_->outstanding();
}
std::int64_t service::now_ns() const {
  return content_->now_ns();
}
void service::at(std::int64_t time_ns, std::function<void()> what) {
  content_->at(time_ns, std::move(what));
}
bool service::run_until(const std::function<bool()>& done, const std::function<bool()>& pause) {
  return content_->run_until(done, pause);
}
result<void> service::settle() {
  return content_->settle();
}
result<void> service::close_trace() {
  return content_->close_trace();
}
void service::crash(std::uint32_t server, net::simulated_pair::ending how) {
  content_->crash(server, how);
}
void service::start_again(std::uint32_t server, boot_count count) {
  content_->start_again(server, count);
}
sessions_status service::sessions() const {
  return content_->sessions();
}
void service::administer(std::string who, std::string role, std::string order,
                         std::function<void(std::string)> reply) {
  content_->administer({std::move(who), std::move(role), std::move(order), std::move(reply)});
}
void service::admin_said(std::uint32_t server, std::string text) {
  content_->tell_admin(peer_said{server, std::move(text)});
}
void service::admin_peer(std::uint32_t server, bool up) {
  content_->tell_admin(peer_changed{server, up});
}
void service::stop() {
  content_->stop();
}

}  // namespace ordermoe::actors
