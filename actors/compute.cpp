#include "actors/compute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "actors/device_thread.hpp"
#include "actors/kv_presence.hpp"
#include "actors/virtual_time_worker.hpp"
#include "config/cluster.hpp"

namespace ordermoe::actors {

namespace {

/// Tensors are computed where their batch starts; its result comes when its charged time has
/// passed.
struct virtual_device {
  device tensors;
  batch_queue waiting;
  std::shared_ptr<batch> running;
  std::int64_t running_until_ns = 0;  ///< End of `running`.
};

struct compute_state {
  compute_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  std::optional<virtual_device> emulated;  ///< Virtual time; there is a thread otherwise.
  std::shared_ptr<device_thread> thread;
  server_ledger ledger;
  std::unordered_map<std::uint64_t, std::vector<kv_presence>> kv;  ///< By request, then layer.
  std::vector<std::uint32_t> items_of_expert;  ///< [n_experts] while a call is taken in.

  const run_context& run() const { return *view->run; }

  /// change(queue), and what it puts there runs.
  template <class Change>
  void queue(Change change) {
    if (thread) return thread->queue(change);
    change(emulated->waiting);
    start_next();
  }

  kv_presence& presence_of(std::uint64_t request, std::uint32_t layer) {
    auto& layers = kv[request];
    if (layers.empty()) layers.resize(run().shape().n_layers);
    return layers[layer];
  }

  void attend(attend_work& work) {
    auto& presence = presence_of(work.terms.request, work.layer);
    if (!presence.ready_for(work.first)) return presence.waiting.push_back(std::move(work));
    enqueue(presence, std::move(work));
    wake(presence);
  }

  void enqueue(kv_presence& presence, attend_work work) {
    presence.add(work.first, work.n);
    queue([&](batch_queue& waiting) {
      waiting.joinable(work_kind::attend, work.layer, 0).attends.push_back(std::move(work));
    });
  }

  void wake(kv_presence& presence) {
    while (auto work = presence.take_ready()) enqueue(presence, std::move(*work));
  }

  void run_experts(expert_work& work) {
    auto running_here = std::make_shared<running_call>();
    running_here->work = std::move(work);
    const auto& call = running_here->work.call;
    running_here->outputs.resize(call.items.size() * run().shape().hidden_size);
    items_of_expert.assign(run().shape().n_experts, 0);
    for (const auto& item : call.items)
      if (items_of_expert[item.expert]++ == 0) ++running_here->batches_left;
    queue([&](batch_queue& waiting) {
      for (std::uint32_t expert = 0; expert < items_of_expert.size(); ++expert)
        if (const auto n = items_of_expert[expert]; n > 0)
          waiting.joinable(work_kind::expert, call.layer, expert)
              .experts.push_back({running_here, n});
    });
  }

  void head(head_work& work) {
    queue([&](batch_queue& waiting) {
      waiting.joinable(work_kind::head, 0, 0).heads.push_back(std::move(work));
    });
  }

  void store(store_kv& content) {
    std::vector<kv_presence*> changed;
    changed.reserve(content.content.blocks.size());
    for (const auto& block : content.content.blocks) {
      auto& presence = presence_of(block.request, content.content.layer);
      presence.add(block.first, block.n);
      changed.push_back(&presence);
    }
    if (thread)
      thread->post([content = std::move(content)](device& tensors) { tensors.store(content); });
    else
      emulated->tensors.store(content);
    for (auto* presence : changed) wake(*presence);
  }

  void drop(std::uint64_t request) {
    kv.erase(request);
    if (!thread) return emulated->tensors.drop(request);
    thread->post([request](device& tensors) { tensors.drop(request); });
  }

  void start_next() {
    auto& site = *emulated;
    if (site.running || site.waiting.empty()) return;
    site.running = site.waiting.take();
    auto& content = *site.running;
    content.start_ns = now_ns(self);
    const auto cost = charge(run(), view->id, content);
    site.running_until_ns = content.end_ns = content.start_ns + cost;
    site.tensors.run(content);
    send_later(self, caf::actor_cast<compute_actor>(self), cost, batch_done{site.running, {}});
  }

  void finish(std::shared_ptr<batch> done) {
    auto& content = *done;
    ledger.batches += 1;
    ledger.rows += content.rows;
    ledger.flops += content.flops;
    ledger.bytes_read += content.bytes_read;
    ledger.busy_ns += content.end_ns - content.start_ns;
    ledger.tensor_ns += content.tensor_ns;
    if (run().books->tracing())
      run().books->trace(fmt::format(
          R"({{"type":"batch","server":{},"work":"{}","layer":{},"expert":{},"rows":{},"flops":{},"bytes":{},"start_ns":{},"end_ns":{}}})",
          view->id, to_string(content.kind), content.layer, content.expert, content.rows,
          content.flops, content.bytes_read, content.start_ns - run().start_ns,
          content.end_ns - run().start_ns));
    if (emulated) emulated->running.reset();
    if (!content.attended.empty())
      self->send(view->selector, select_batch{std::exchange(content.attended, {})});
    if (!content.streamed.content.blocks.empty())
      self->send(view->server, std::move(content.streamed));
    for (std::size_t i = 0; i < content.heads.size(); ++i)
      self->send(content.heads[i].token, std::move(content.head_results[i]));
    for (const auto& call : content.complete) answer(*call);
    queue([&](batch_queue& waiting) { waiting.recycle(std::move(done)); });
  }

  void answer(const running_call& call) {
    auto output = assemble_output(call, run().shape().hidden_size);
    const auto to = call.work.call.reply_to;
    if (to != view->id)
      view->send(to, encode(output));
    else if (call.work.token)
      self->send(call.work.token, std::move(output));
    else
      self->send(view->server, encode(output));
  }

  void report_load() {
    self->send(view->server, load_report{view->id, now_ns(self) - run().start_ns, wait_ns()});
  }

  /// Time until work that arrives now could start: the rest of the running batch and what waits
  /// before it.
  std::int64_t wait_ns() {
    if (thread) return thread->wait_ns();
    if (!emulated->running) return 0;
    auto wait = std::max<std::int64_t>(0, emulated->running_until_ns - now_ns(self));
    for (const auto& each : emulated->waiting.waiting()) wait += charge(run(), view->id, *each);
    return wait;
  }
};

}  // namespace

std::int64_t charge(const run_context& run, std::uint32_t server, batch& content) {
  const auto& spec = run.servers.servers[server];
  content.count_cost(run.costs, expert_bytes(spec, run.costs), run.shape().hidden_size);
  return compute_ns(spec, content.flops, content.bytes_read);
}

compute_actor spawn_compute(caf::actor_system& system, std::shared_ptr<const run_context> run,
                            std::uint32_t id, std::shared_ptr<device_thread> thread) {
  ORDERMOE_CHECK((thread != nullptr) == (run->clock == clock_kind::wall),
                 "a device's thread goes with the wall clock");
  const auto compute = system.spawn(
      [run, id, thread](
          compute_actor::stateful_pointer<compute_state> self) -> compute_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.ledger.server = id;
        state.thread = thread;
        if (!thread)
          state.emulated.emplace(
              virtual_device{device(run->models[id]), batch_queue(run->shape()), nullptr, 0});
        return {
            // CAF tries one after the other, so the most frequent come first.
            [&state](batch_done& done) {
              for (auto& earlier : done.earlier) state.finish(std::move(earlier));
              state.finish(std::move(done.content));
            },
            [&state](expert_work& work) { state.run_experts(work); },
            [&state](attend_work& work) { state.attend(work); },
            [&state](store_kv& content) { state.store(content); },
            [&state](head_work& work) { state.head(work); },
            [&state](drop_sequence content) { state.drop(content.request); },
            [&state](attach_view& message) { state.view = std::move(message.view); },
            [&state](tell_load) { state.report_load(); },
            [&state](tell_ledger) { state.run().books->add(state.ledger); },
        };
      });
  if (thread) thread->report_to(compute);
  return compute;
}

}  // namespace ordermoe::actors
