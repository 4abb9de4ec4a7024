#include "actors/runtime.hpp"

#include <caf/scheduler/test_coordinator.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <optional>
#include <thread>

#include "actors/books.hpp"
#include "actors/compute.hpp"
#include "actors/monitor.hpp"
#include "actors/planner.hpp"
#include "actors/request.hpp"
#include "actors/run_context.hpp"
#include "actors/server_actors.hpp"
#include "actors/trace_header.hpp"
#include "actors/trace_lines.hpp"
#include "actors/virtual_time_worker.hpp"
#include "config/random.hpp"

namespace ordermoe::actors {

namespace {

caf::actor_system_config& configure(caf::actor_system_config& config, run_mode mode) {
  if (mode == run_mode::emulated) {
    config.set("scheduler.policy", caf::atom("testing"));
  } else {
    config.set("scheduler.max-threads", std::max(2u, std::thread::hardware_concurrency()));
    config.set("work-stealing.moderate-poll-attempts", 0);
  }
  return config;
}

/// [n_servers] positions of the longest request of each access server.
std::vector<std::size_t> most_positions(const run_setup& setup) {
  std::vector<std::size_t> most(setup.servers.size(), 0);
  for (const auto& spec : setup.requests)
    most[spec.access] =
        std::max<std::size_t>(most[spec.access], prompt_tokens(spec) + max_new_tokens(spec));
  return most;
}

/// The servers as the run's plan has them keep their experts.
cluster servers_of(const run_setup& setup) {
  if (setup.planner.makes_first_plan) return servers_for(setup.chosen.name, setup.servers);
  return planning::with_precisions(setup.servers, setup.chosen.plan);
}

/// [n_servers] what each runs; null where setup has none that fits.
std::vector<std::shared_ptr<const model::transformer>> models_of(const run_setup& setup,
                                                                 const cluster& servers) {
  if (!setup.server_models.empty()) return setup.server_models;
  std::vector<std::shared_ptr<const model::transformer>> models;
  for (const auto& server : servers.servers) {
    const auto coarser = setup.coarser.find(server.expert_precision);
    models.push_back(server.expert_precision == precision::stored ? setup.model
                     : coarser != setup.coarser.end()             ? coarser->second
                                                                  : nullptr);
  }
  return models;
}

/// Whether every server has a model with the experts of its plan.
result<void> check_models(const run_setup& setup) {
  const auto servers = servers_of(setup);
  const auto models = models_of(setup, servers);
  if (models.size() != servers.size())
    return error{errc::mismatch, fmt::format("{} models were loaded for {} servers", models.size(),
                                             servers.size())};
  for (std::size_t m = 0; m < models.size(); ++m)
    if (!models[m])
      return error{
          errc::mismatch,
          fmt::format("server {} ({}) keeps its experts as {}, and no model was loaded so", m,
                      servers.servers[m].name, to_string(servers.servers[m].expert_precision))};
  if (setup.server_models.empty()) return {};
  if (setup.planner.makes_first_plan || setup.monitor.drift_margin > 0 || !setup.replans.empty())
    return error{errc::unsupported,
                 "servers that loaded the experts of one plan cannot change to another"};
  for (const auto& placed : setup.chosen.plan.experts)
    if (!models[placed.server.index()]->hosts(placed.layer, placed.expert))
      return error{
          errc::mismatch,
          fmt::format("server {} did not load expert {} of layer {}, which the plan places "
                      "there",
                      placed.server.index(), placed.expert.index(), placed.layer.index())};
  return {};
}

/// All actors of one run, their scheduler, and the loop that drives or awaits them.
class run_of_actors {
 public:
  run_of_actors(const run_setup& setup, trace_recorder* trace)
      : setup_(setup), books_(trace), system_(configure(config_, setup.mode)) {
    if (setup.mode == run_mode::emulated) {
      scheduler_ = dynamic_cast<caf::scheduler::test_coordinator*>(&system_.scheduler());
      ORDERMOE_CHECK(scheduler_ != nullptr, "emulated mode runs under CAF's testing scheduler");
      worker_.emplace(*scheduler_);
      scheduler_->clock().current_time = caf::actor_clock::time_point{} + std::chrono::seconds(1);
    }
    context_ = std::make_shared<run_context>();
    context_->model = setup.model;
    context_->tokens = setup.tokens;
    context_->servers = servers_of(setup);
    context_->costs = setup.costs;
    context_->prices = planning::make_cost_model(context_->servers, setup.costs);
    context_->models = models_of(setup, context_->servers);
    context_->clock =
        setup.mode == run_mode::emulated ? clock_kind::virtual_time : clock_kind::wall;
    context_->chunk_rows = setup.chunk_rows;
    context_->stream_kv = setup.stream_kv;
    context_->keep_final_hidden = setup.keep_final_hidden;
    context_->load_period_ns = setup.load_period_ns;
    context_->request_timeout_ns = setup.mode == run_mode::local ? setup.request_timeout_ns : 0;
    context_->books = &books_;
    context_->start_ns = clock_ns();
  }

  ~run_of_actors() { stop(); }

  result<run_result> run() {
    const auto begin = std::chrono::steady_clock::now();
    if (setup_.monitor.on) monitor_ = spawn_monitor(system_, context_, setup_.monitor);
    spawn_servers();
    if (auto ready = install(); !ready) return ready.error();
    books_.expect_requests(setup_.requests.size());
    spawn_requests();
    if (auto done = drive(); !done) return done.error();
    collect_ledgers();
    if (books_.failed()) return *books_.problem;
    run_result outcome;
    outcome.outcomes = std::move(books_.outcomes);
    std::sort(outcome.outcomes.begin(), outcome.outcomes.end(),
              [](const auto& a, const auto& b) { return a.request < b.request; });
    outcome.executions = books_.executions;
    outcome.links = std::move(books_.links);
    outcome.servers = std::move(books_.servers);
    outcome.chosen = std::move(chosen_);
    outcome.plan_changes = std::move(books_.plan_changes);
    outcome.weight_changes = std::move(books_.weight_changes);
    outcome.observed = std::move(books_.observed);
    for (const auto& server : outcome.servers)
      outcome.tensor_seconds += static_cast<double>(server.tensor_ns) * 1e-9;
    outcome.host_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return outcome;
  }

 private:
  std::int64_t clock_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               system_.clock().now().time_since_epoch())
        .count();
  }

  void spawn_servers() {
    const auto n = static_cast<std::uint32_t>(setup_.servers.size());
    for (std::uint32_t id = 0; id < n; ++id) {
      auto view = std::make_shared<server_view>();
      view->run = context_;
      view->id = id;
      view->server = spawn_edge_server(system_, id);
      if (scheduler_ == nullptr)
        devices_.push_back(std::make_shared<device_thread>(
            system_, context_->models[id], setup_.threads_per_server,
            [run = context_, id](batch& content) { return charge(*run, id, content); }));
      view->compute =
          spawn_compute(system_, context_, id, devices_.empty() ? nullptr : devices_.back());
      view->selector = spawn_selector(system_, id);
      view->monitor = monitor_;
      view->links.resize(n);
      for (std::uint32_t to = 0; to < n; ++to)
        if (to != id) view->links[to] = spawn_link(system_, context_, id, to);
      views_.push_back(std::move(view));
    }
    for (const auto& view : views_) {
      caf::anon_send(view->server, attach_view{view});
      for (std::uint32_t to = 0; to < n; ++to)
        if (to != view->id) caf::anon_send(view->links[to], attach_view{views_[to]});
    }
  }

  /// What the run begins with is known: the trace opens, and requests can be checked against it.
  result<void> begin(const strategy& chosen) {
    chosen_ = chosen;
    context_->allowance_factor = chosen.allowance_factor;
    if (auto fits = check_kv_fits(chosen.plan.residence, most_positions(setup_), context_->servers,
                                  setup_.costs);
        !fits)
      return fits;
    if (books_.tracing())
      books_.trace(header_line(setup_, context_->servers, chosen, context_->shape().gates));
    return {};
  }

  result<void> install() {
    planner_work work;
    work.experts = setup_.experts;
    work.chosen = setup_.chosen;
    work.options = setup_.planner;
    work.monitor = monitor_;
    work.most_positions = most_positions(setup_);
    work.servers_ready = std::make_shared<std::atomic<std::size_t>>(0);
    work.announce = [this](const strategy& chosen) { return begin(chosen); };
    for (const auto& view : views_) work.servers.push_back(view->server);
    const auto ready = work.servers_ready;
    planner_ = spawn_planner(system_, context_, std::move(work));
    caf::anon_send(planner_, push_plan{});
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (*ready < views_.size() && !books_.failed()) {
      if (scheduler_ != nullptr) {
        if (!worker_->run_one()) break;
      } else {
        if (std::chrono::steady_clock::now() > deadline) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    if (books_.failed()) return *books_.problem;
    if (*ready < views_.size())
      return error{errc::timed_out, fmt::format("{} of {} servers confirmed the plan",
                                                ready->load(), views_.size())};
    return {};
  }

  void spawn_requests() {
    for (const auto& spec : setup_.requests) {
      const auto& view = views_[spec.access];
      caf::anon_send(view->server, start_request{std::make_shared<const request_spec>(spec),
                                                 chosen_.token_budget, chosen_.continue_in_place});
    }
    for (const auto& order : setup_.replans)
      send_later(worker(), planner_, order.at_ns,
                 replan{std::make_shared<const replan_order>(order)});
    if (context_->load_period_ns > 0)
      for (const auto& view : views_)
        send_later(worker(), view->server, context_->load_period_ns, load_tick{});
  }

  virtual_time_worker* worker() { return worker_ ? &*worker_ : nullptr; }

  bool stop_asked() const { return setup_.should_stop && setup_.should_stop(); }

  void tell_progress() {
    const auto total = setup_.requests.size();
    const auto done = total - std::min(total, books_.outstanding());
    if (setup_.on_progress && done != told_) setup_.on_progress(told_ = done, total);
  }

  result<void> drive() { return scheduler_ != nullptr ? drive_virtual_time() : await_wall_clock(); }

  /// Runs every job that is due, then lets the next timeout come, one at a time, until nothing is
  /// outstanding; then runs what was still on its way, so that the ledgers are complete.
  result<void> drive_virtual_time() {
    std::size_t steps = 0;
    for (;;) {
      while (worker_->run_one())
        if (books_.failed()) return *books_.problem;
      if (++steps % 1024 == 0) {
        if (stop_asked()) return error{errc::interrupted, "interrupted; nothing was written"};
        tell_progress();
      }
      if (worker_->deliver_next()) continue;
      if (books_.outstanding() == 0) break;
      return error{errc::timed_out, fmt::format("{} of {} requests wait and nothing moves any more "
                                                "(is KV streaming off, or a message "
                                                "lost?)",
                                                books_.outstanding(), setup_.requests.size())};
    }
    tell_progress();
    return {};
  }

  result<void> await_wall_clock() {
    while (!books_.wait(std::chrono::milliseconds(100))) {
      if (stop_asked()) return error{errc::interrupted, "interrupted; nothing was written"};
      tell_progress();
    }
    tell_progress();
    if (books_.failed()) return *books_.problem;
    if (changes_plans()) {
      caf::anon_send(planner_, tell_ledger{});
      books_.wait_for_planner(std::chrono::seconds(60));
    }
    // Memory given back and the last KV rows are still on their way when the last answer is
    // complete.
    settle_wall_clock();
    return {};
  }

  bool changes_plans() const { return setup_.monitor.on || !setup_.replans.empty(); }

  void settle_wall_clock() {
    for (int i = 0; i < 50; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  void collect_ledgers() {
    const auto n = views_.size();
    for (const auto& view : views_) {
      caf::anon_send(view->compute, tell_ledger{});
      for (std::size_t to = 0; to < n; ++to)
        if (to != view->id) caf::anon_send(view->links[to], tell_ledger{});
    }
    if (monitor_) caf::anon_send(monitor_, tell_ledger{});
    if (scheduler_ != nullptr) {
      while (worker_->run_one()) {
      }
    } else {
      books_.wait_for_ledgers(n, n * (n - 1), std::chrono::seconds(10));
      if (monitor_) books_.wait_for_observations(std::chrono::seconds(60));
    }
    std::sort(books_.links.begin(), books_.links.end(), [](const auto& a, const auto& b) {
      return std::pair(a.from, a.to) < std::pair(b.from, b.to);
    });
    std::sort(books_.servers.begin(), books_.servers.end(),
              [](const auto& a, const auto& b) { return a.server < b.server; });
    for (auto& ledger : books_.servers) ledger.kv_peak_bytes = books_.kv_peak(ledger.server);
    if (!books_.tracing()) return;
    for (const auto& ledger : books_.links) books_.trace(ledger_line(ledger));
    for (const auto& ledger : books_.servers) books_.trace(ledger_line(ledger));
  }

  void stop() {
    for (const auto& view : views_) caf::anon_send(view->server, stop_server{});
    if (planner_) caf::anon_send_exit(planner_, caf::exit_reason::user_shutdown);
    if (monitor_) caf::anon_send_exit(monitor_, caf::exit_reason::user_shutdown);
    if (scheduler_ != nullptr)
      while (worker_->run_one()) {
      }
    views_.clear();
    planner_ = nullptr;
    monitor_ = nullptr;
    if (scheduler_ != nullptr) return;
    // Actors may still use the devices, and devices the system.
    system_.await_all_actors_done();
    devices_.clear();
  }

  const run_setup& setup_;
  run_books books_;
  caf::actor_system_config config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator* scheduler_ = nullptr;  ///< Emulated mode.
  std::optional<virtual_time_worker> worker_;              ///< Emulated mode.
  std::shared_ptr<run_context> context_;
  std::vector<std::shared_ptr<device_thread>> devices_;  ///< [n_servers] in local mode.
  std::vector<std::shared_ptr<server_view>> views_;
  planner_actor planner_;
  monitor_actor monitor_;
  strategy chosen_;
  std::size_t told_ = 0;
};

}  // namespace

const char* to_string(run_mode mode) {
  return mode == run_mode::emulated ? "emulated" : "local";
}

void draw_arrivals(std::vector<request_spec>& requests, const cluster& servers, double rate,
                   std::uint64_t seed) {
  random_stream draws(seed, 0x617272697665);
  double time_s = 0;
  for (auto& spec : requests) {
    if (rate > 0) {
      time_s += -std::log1p(-draws.unit()) / rate;
      spec.arrival_ns = static_cast<std::int64_t>(time_s * 1e9);
    }
    auto share = draws.unit();
    spec.access = 0;
    while (spec.access + 1 < servers.size() &&
           share >= servers.servers[spec.access].arrival_share) {
      share -= servers.servers[spec.access].arrival_share;
      ++spec.access;
    }
  }
}

result<void> check_prompts(const run_setup& setup) {
  const auto& shape = setup.model->config();
  for (const auto& spec : setup.requests) {
    const auto place = fmt::format("request {}", spec.number);
    if (spec.prompt.empty())
      return error{errc::out_of_range,
                   place + ": the prompt has no tokens, expected one at least; give it a text"};
    if (spec.access >= setup.servers.size())
      return error{errc::out_of_range, fmt::format("{}: access server {} of {}", place, spec.access,
                                                   setup.servers.size())};
    if (spec.score && spec.prompt.size() < 2)
      return error{errc::out_of_range,
                   place + ": a text of one token cannot be scored; give two at least"};
    if (spec.prompt.size() + (spec.score ? 0 : 1) > shape.max_context)
      return error{
          errc::out_of_range,
          fmt::format("{}: the prompt has {} tokens, the model's context is {}; shorten it", place,
                      spec.prompt.size(), shape.max_context)};
    for (const auto id : spec.prompt)
      if (id < 0 || static_cast<std::size_t>(id) >= shape.vocab_size)
        return error{errc::out_of_range,
                     fmt::format("{}: token id {} is outside the vocabulary of {}", place, id,
                                 shape.vocab_size)};
  }
  return {};
}

result<run_result> run_requests(const run_setup& setup) {
  if (auto checked = check_prompts(setup); !checked) return checked.error();
  if (auto checked = check_models(setup); !checked) return checked.error();
  if (setup.threads_per_server < 1)
    return error{errc::out_of_range, "no thread for a server to compute with; expected 1 at least"};
  if (!setup.trace.empty() && setup.model->config().encoder_decoder)
    return error{
        errc::unsupported,
        fmt::format("{}: a trace has no lines for rows without slots, which {} has; run "
                    "without a trace",
                    setup.trace.string(), model::architecture_of(setup.model->config().kind))};
  std::unique_ptr<trace_recorder> trace;
  if (!setup.trace.empty()) {
    auto opened = trace_recorder::open(setup.trace);
    if (!opened) return opened.error();
    trace = std::move(*opened);
  }
  auto outcome = run_of_actors(setup, trace.get()).run();
  if (outcome && trace)
    if (auto closed = trace->close(); !closed) return closed.error();
  return outcome;
}

}  // namespace ordermoe::actors
