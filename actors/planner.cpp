#include "actors/planner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <deque>

#include "actors/observation.hpp"
#include "actors/request.hpp"
#include "actors/trace_lines.hpp"
#include "actors/virtual_time_worker.hpp"

namespace ordermoe::actors {

namespace {

enum class phase { idle, steady, draining, moving, installing };

/// A plan that is not yet in force.
struct next_plan {
  std::shared_ptr<const deployment> content;
  weight_move move;
  plan_change change;
};

bool same_layout(const planning::plan& a, const planning::plan& b) {
  const auto residence = [](const planning::plan& p, std::size_t access) {
    return p.residence[access].layers;
  };
  for (std::size_t access = 0; access < a.n_servers; ++access)
    if (residence(a, access) != residence(b, access)) return false;
  const planning::placement_index left(a), right(b);
  for (std::size_t l = 0; l < a.n_layers; ++l)
    for (std::size_t e = 0; e < a.n_experts; ++e)
      if (left.hosts(l, e) != right.hosts(l, e)) return false;
  return true;
}

struct planner_state {
  planner_actor::pointer self = nullptr;
  std::shared_ptr<const run_context> run;
  planner_work work;
  phase now = phase::idle;
  planning::selection_policy policy;  ///< With the weights in force.
  std::uint64_t weights = 0;
  std::shared_ptr<const deployment> current;
  next_plan next;
  std::size_t answers_missing = 0;
  std::deque<std::shared_ptr<const replan_order>> orders;  ///< At most those of the run.
  bool closed = false;

  std::int64_t time_ns() const { return now_ns(self) - run->start_ns; }

  result<std::shared_ptr<const deployment>> deploy(std::shared_ptr<const planning::profile> experts,
                                                   planning::plan placed) const {
    auto tables = planning::selection_tables::build(*experts, placed, run->prices, policy,
                                                    work.chosen.token_budget);
    if (!tables) return tables.error();
    const planning::placement_index index(placed);
    return std::make_shared<const deployment>(
        deployment{std::move(placed), index, std::move(*tables), weights, std::move(experts)});
  }

  /// To every server; `when_all` runs when the last one confirmed.
  template <class WhenAll>
  void install(const std::shared_ptr<const deployment>& content, WhenAll when_all) {
    const auto fail = [books = run->books](const caf::error&) {
      books->fail({errc::timed_out, "a server did not confirm its plan within 30 s"});
    };
    auto missing = std::make_shared<std::size_t>(work.servers.size());
    for (const auto& server : work.servers)
      self->request(server, std::chrono::seconds(30), install_plan{content})
          .then(
              [missing, when_all](caf::ok_atom) {
                if (--*missing == 0) when_all();
              },
              fail);
  }

  void tell_monitor() {
    if (work.monitor)
      self->send(work.monitor, plan_in_force{current, caf::actor_cast<planner_actor>(self)});
  }

  // -------------------------------------------------------------------------------- first plan

  void push() {
    if (work.options.makes_first_plan) {
      auto made = make_strategy(work.chosen.name, work.experts, run->servers, run->costs,
                                work.options.planning);
      if (!made) return run->books->fail(made.error());
      work.chosen = std::move(*made);
    }
    if (auto announced = work.announce(work.chosen); !announced)
      return run->books->fail(announced.error());
    policy = work.chosen.policy;
    auto placed = work.chosen.plan;
    placed.epoch = 1;
    auto content =
        deploy(std::make_shared<const planning::profile>(work.experts), std::move(placed));
    if (!content) return run->books->fail(content.error());
    current = std::move(*content);
    now = phase::installing;
    tell_monitor();
    install(current, [this] {
      now = phase::steady;
      *work.servers_ready = work.servers.size();
      next_order();
    });
  }

  // ------------------------------------------------------------------------------------- weights

  void change(const change_weights& message) {
    if (closed || run->books->outstanding() == 0) return;
    policy.omega_time = message.weights.omega_time;
    policy.omega_quality = message.weights.omega_quality;
    ++weights;
    auto content = deploy(current->experts, current->plan);
    if (!content) return run->books->fail(content.error());
    current = std::move(*content);
    if (run->books->tracing()) run->books->trace(weights_line(*current, message, time_ns()));
    run->books->add(
        weight_change{current->plan.epoch, weights, message.weights, message.requests, time_ns()});
    install(current, [] {});
  }

  // ---------------------------------------------------------------------------------- next plans

  void order(std::shared_ptr<const replan_order> content) {
    orders.push_back(std::move(content));
    next_order();
  }

  void next_order() {
    while (now == phase::steady && !orders.empty()) {
      const auto content = std::move(orders.front());
      orders.pop_front();
      consider("order", content->strategy, content->planning, current->experts, 0);
    }
  }

  void propose(propose_replan& message) {
    if (now != phase::steady) return self->send(work.monitor, plan_kept{});
    consider("drift", work.chosen.name, work.options.planning, std::move(message.experts),
             message.least_gain);
  }

  void consider(std::string reason, const std::string& strategy, strategy_options options,
                std::shared_ptr<const planning::profile> experts, double least_gain) {
    next = {};
    next.change.reason = std::move(reason);
    next.change.asked_ns = time_ns();
    if (closed || run->books->outstanding() == 0) return refuse("no request is left");
    options.plan.reset();
    const auto made = make_strategy(strategy, *experts, run->servers, run->costs, options);
    if (!made) return refuse(made.error().message);
    if (auto fits =
            check_kv_fits(made->plan.residence, work.most_positions, run->servers, run->costs);
        !fits)
      return refuse(fits.error().message);
    if (made->plan.expert_precision != current->plan.expert_precision)
      return refuse("it keeps experts in another precision than servers have loaded");
    if (same_layout(current->plan, made->plan)) return refuse("it is the plan in force");
    next.change.cost_before_ns =
        placement_cost_ns(*experts, current->plan, run->servers, run->costs);
    next.change.cost_after_ns = placement_cost_ns(*experts, made->plan, run->servers, run->costs);
    if (next.change.reason == "drift" &&
        next.change.cost_after_ns >= next.change.cost_before_ns * (1 - least_gain))
      return refuse("no plan was found that is cheaper by the margin");
    auto placed = made->plan;
    placed.epoch = current->plan.epoch + 1;
    auto content = deploy(std::move(experts), std::move(placed));
    if (!content) return refuse(content.error().message);
    next.content = std::move(*content);
    drain();
  }

  void refuse(std::string why) {
    next.change.epoch = current->plan.epoch;
    next.change.refused = std::move(why);
    if (next.change.reason == "drift") self->send(work.monitor, plan_kept{});
    run->books->add(std::move(next.change));
    next = {};
    now = phase::steady;
  }

  void drain() {
    now = phase::draining;
    answers_missing = work.servers.size();
    const auto fail = [books = run->books](const caf::error&) {
      books->fail({errc::failed, "a server ended while its requests were awaited"});
    };
    for (const auto& server : work.servers)
      self->request(server, caf::infinite, hold_admission{})
          .then(
              [this](caf::ok_atom) {
                if (--answers_missing == 0) drained();
              },
              fail);
  }

  void drained() {
    next.change.drained_ns = time_ns();
    if (run->books->outstanding() == 0) {
      refuse("no request is left");
      return next_order();
    }
    now = phase::moving;
    next.move = weights_to_move(current->plan, next.content->plan, run->servers, run->costs);
    const auto me = caf::actor_cast<planner_actor>(self);
    // On the wall clock all servers share the weights of one process.
    if (run->clock == clock_kind::virtual_time)
      send_later(self, me, next.move.ns, weights_moved{});
    else
      self->send(me, weights_moved{});
  }

  void put_in_force() {
    if (next.content->weights != weights) {
      auto content = deploy(next.content->experts, next.content->plan);
      if (!content) return run->books->fail(content.error());
      next.content = std::move(*content);
    }
    now = phase::installing;
    current = next.content;
    if (run->books->tracing())
      run->books->trace(plan_line(*current, next.change.reason, next.move, time_ns()));
    tell_monitor();
    install(current, [this] {
      for (const auto& server : work.servers) self->send(server, resume_admission{});
      next.change.epoch = current->plan.epoch;
      next.change.moved_bytes = next.move.bytes;
      next.change.done_ns = time_ns();
      run->books->add(std::move(next.change));
      next = {};
      now = phase::steady;
      next_order();
    });
  }

  void close() {
    closed = true;
    run->books->close_planner();
  }
};

}  // namespace

planner_actor spawn_planner(caf::actor_system& system, std::shared_ptr<const run_context> run,
                            planner_work work) {
  const bool wall = run->clock == clock_kind::wall;
  auto behavior = [run = std::move(run), work = std::move(work)](
                      planner_actor::stateful_pointer<planner_state> self) mutable
      -> planner_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.run = std::move(run);
    state.work = std::move(work);
    return {
        [&state](push_plan) { state.push(); },
        [&state](replan& message) { state.order(std::move(message.order)); },
        [&state](propose_replan& message) { state.propose(message); },
        [&state](const change_weights& message) { state.change(message); },
        [&state](weights_moved) { state.put_in_force(); },
        [&state](tell_ledger) { state.close(); },
    };
  };
  // Planning takes long: on the wall clock it has a thread of its own.
  return wall ? system.spawn<caf::detached>(std::move(behavior))
              : system.spawn(std::move(behavior));
}

result<void> check_kv_fits(const std::vector<planning::residency>& residence,
                           const std::vector<std::size_t>& most_positions, const cluster& servers,
                           const cost_profile& costs) {
  for (std::size_t access = 0; access < residence.size(); ++access) {
    const auto need =
        kv_need(residence[access], servers.size(), most_positions[access], costs.kv_row_bytes);
    for (std::size_t m = 0; m < need.size(); ++m)
      if (need[m] > servers.servers[m].kv_bytes)
        return error{errc::infeasible,
                     fmt::format("the KV rows of a request of {} positions at server {} need {} "
                                 "bytes on server {} ({}), which keeps {} for KV; raise kv memory "
                                 "in the cluster file or shorten the request",
                                 most_positions[access], access, need[m], m,
                                 servers.servers[m].name, servers.servers[m].kv_bytes)};
  }
  return {};
}

}  // namespace ordermoe::actors
