#include <algorithm>
#include <map>
#include <utility>

#include "actors/passage.hpp"
#include "actors/server_actors.hpp"
#include "planning/serving/load_board.hpp"
#include "trace/lines.hpp"

namespace ordermoe::actors {

namespace {

struct selector_state {
  selector_actor::pointer self = nullptr;
  std::uint32_t id = 0;
  std::shared_ptr<const server_view> view;
  struct known_plan {
    std::shared_ptr<const plan_in_force> placed;
    bool used = false;  ///< A snapshot has its tables.
  };
  std::map<std::uint64_t, known_plan> plans;  ///< By epoch, two at most.
  std::shared_ptr<const std::vector<link_spec>> links;
  load_board loads;
  /// Counts the load reports and tables taken in; names the snapshot with the server.
  std::uint64_t snapshot = 0;
  execution_counts executions{};
  std::vector<execution_counts> by_layer;  ///< As many as were decided on.
  activation_report seen;                  ///< Where a monitor runs.
  std::uint32_t seen_rows = 0;
  struct calls_to {
    shard_actor shard;
    std::vector<expert_work> calls;
  };
  std::vector<calls_to> riding;  ///< Of the batch that is decided on.
  std::size_t most_riding = 0;   ///< Rows of it.

  const service_context& context() const { return *view->context; }

  /// A plan whose tables nobody has asked for yet is part of no snapshot: it may never come into force.
  void take_in(decide_by& message) {
    view = std::move(message.view);
    std::map<std::uint64_t, known_plan> next;
    for (auto& each : message.plans) {
      const auto before = plans.find(each->plan.epoch);
      next[each->plan.epoch] = {each, before != plans.end() && before->second.used};
    }
    const auto before = std::exchange(plans, std::move(next));
    const auto& first = plans.begin()->second.placed;
    if (snapshot == 0) {
      loads = load_board(context().n_servers());
      ++snapshot;
      links = first->links;
      plans.begin()->second.used = true;
      trace(trace::first_snapshot_line(id, view->time_ns(self)));
    }
    loads.price_by(first->tables->link_ns());
    for (const auto& [epoch, known] : plans)
      if (known.used && before.contains(epoch) &&
          known.placed->policy != before.at(epoch).placed->policy)
        note_tables(*known.placed);
    if (std::exchange(links, first->links) != first->links)
      trace(trace::links_line(id, ++snapshot, *links, view->time_ns(self)));
  }

  void note_tables(const plan_in_force& placed) {
    trace(trace::install_line(id, ++snapshot, {placed.plan.epoch, placed.policy},
                              view->time_ns(self)));
  }

  void trace(std::string line) const { view->trace(std::move(line)); }

  void take_in(const wire::load_report& report) {
    // Before the first plan there is nothing to decide by.
    if (!view || !loads.take(report)) return;
    ++snapshot;
    if (report.server == id) tell_monitor();
    if (view->tracing())
      view->trace(trace::snapshot_line(id, snapshot, view->time_ns(self), report));
  }

  void answer(select_query& query) {
    const auto known = plans.find(query.epoch);
    // Of a request that is over, under a plan that is gone.
    if (known == plans.end()) return;
    if (!std::exchange(known->second.used, true)) note_tables(*known->second.placed);
    const auto& placed = *known->second.placed;
    const auto& shape = context().shape();
    decide_input input;
    input.layer = query.layer;
    input.server = id;
    input.access = query.access;
    input.first = query.key.first;
    input.unread_before = query.unread_before;
    input.n_experts = shape.n_experts;
    input.top_k = shape.top_k;
    input.gates = shape.gates;
    input.logits = query.logits;
    input.allowance = query.allowance;
    input.pool = query.pool;
    input.tokens_left = query.tokens_left;
    input.wait_ns = loads.wait_ns();
    input.link_ns = loads.link_ns();
    const auto& members = placed.plan.residence[query.access].layers;
    if (query.layer + 1 < members.size()) input.next_members = members[query.layer + 1];
    auto choice = decide(*placed.tables, input);
    count(query.layer, choice);
    if (view->monitor && query.decodes) observe(query, choice);
    if (view->tracing())
      view->trace(trace::decision_line(
          {query.key, query.access, query.layer, query.logits, query.allowance, query.pool}, id,
          snapshot, view->time_ns(self), choice));
    if (query.lent && rides(query, choice)) return;
    self->send(query.token,
               decided{std::move(choice), std::move(query.hidden), std::move(query.normed),
                       std::move(query.allowance), std::move(query.lent)});
  }

  /// Whether it goes on without its token; its call waits for the others of its batch, then.
  bool rides(select_query& query, const chunk_decision& choice) {
    auto& rider = *query.lent;
    auto call = call_of_rider(choice, rider, query.normed);
    if (!call) return false;
    rider.state.hidden = std::move(query.hidden);
    rider.state.allowance = std::move(query.allowance);
    take_decision(*rider.view, choice, rider.state);
    const auto& shard = rider.view->shards[query.layer];
    auto found = std::ranges::find(riding, shard, &calls_to::shard);
    if (found == riding.end()) {
      found = riding.insert(riding.end(), {shard, {}});
      found->calls.reserve(most_riding);
    }
    found->calls.push_back({std::move(*call), query.token, query.epoch, std::move(query.lent)});
    return true;
  }

  void send_riding() {
    for (auto& each : riding) self->send(each.shard, expert_batch{std::move(each.calls)});
    riding.clear();
  }

  void count(std::uint32_t layer, const chunk_decision& choice) {
    if (by_layer.size() <= layer) by_layer.resize(layer + 1);
    for (const auto& row : choice.rows)
      for (std::uint32_t j = 0; j < row.choice.n_slots; ++j) {
        const auto kind = classify(id, row.targets[j], row.choice.slots[j]);
        ++executions[static_cast<std::size_t>(kind)];
        ++by_layer[layer][static_cast<std::size_t>(kind)];
      }
  }

  /// Targets of decoded rows, told to the monitor when they are many and with each load report of this server.
  void observe(const select_query& query, const chunk_decision& choice) {
    seen.targets.resize(context().shape().n_layers);
    auto& targets = seen.targets[query.layer];
    for (const auto& row : choice.rows) {
      if (row.targets.empty()) continue;
      const auto first = static_cast<std::ptrdiff_t>(targets.size());
      targets.insert(targets.end(), row.targets.begin(), row.targets.end());
      std::sort(targets.begin() + first, targets.end());
      observe_step(query, std::span(targets).last(row.targets.size()));
      ++seen_rows;
    }
    if (seen_rows >= context().activation_report_rows) tell_monitor();
  }

  /// What came before is told by another server, and may be anything.
  void observe_step(const select_query& query, std::span<const std::uint32_t> targets) {
    const auto& before = query.chosen;
    const auto& shape = context().shape();
    if (query.layer == 0 || before.size() != targets.size() || before.back() >= shape.n_experts)
      return;
    seen.steps.resize(shape.n_layers);
    auto& steps = seen.steps[query.layer];
    steps.insert(steps.end(), before.begin(), before.end());
    steps.insert(steps.end(), targets.begin(), targets.end());
  }

  void tell_monitor() {
    if (seen_rows == 0) return;
    self->send(view->monitor, std::exchange(seen, {}));
    seen_rows = 0;
  }
};

}  // namespace

selector_actor spawn_selector(caf::actor_system& system, std::uint32_t id) {
  return system.spawn(
      [id](selector_actor::stateful_pointer<selector_state> self) -> selector_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.id = id;
        return {
            // CAF tries one after the other, so the most frequent come first.
            [&state](select_batch& batch) {
              state.most_riding = batch.queries.size();
              for (auto& query : batch.queries) state.answer(query);
              state.send_riding();
            },
            [&state](const wire::load_report& report) { state.take_in(report); },
            [&state](decide_by& message) { state.take_in(message); },
            // What it counted is with the monitor before whoever asked can ask that.
            [&state](status_query) {
              state.tell_monitor();
              return selector_status{state.executions, state.by_layer, state.snapshot};
            },
        };
      });
}

}  // namespace ordermoe::actors
