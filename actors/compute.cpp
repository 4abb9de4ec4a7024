#include "actors/compute.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "actors/device/device_thread.hpp"
#include "actors/device/kv_presence.hpp"
#include "actors/passage.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "config/cluster.hpp"
#include "trace/lines.hpp"

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

/// The KV rows of one attempt at a request.
struct kept_sequence {
  std::uint32_t attempt = 0;
  std::vector<kv_presence> layers;  ///< [n_layers]
};

struct compute_state {
  compute_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  std::optional<virtual_device> emulated;  ///< Virtual time; there is a thread otherwise.
  std::shared_ptr<device_thread> thread;
  server_ledger ledger;
  std::unordered_map<std::uint64_t, kept_sequence> sequences;  ///< By request.
  std::vector<std::uint32_t> items_of_expert;  ///< [n_experts] while a call is taken in.
  std::uint64_t lacks_under = 0;               ///< Of install_plans.
  std::vector<expert_work> for_want_of_experts;
  std::vector<attend_work> ready;  ///< Attention that may begin, while a message is taken in.

  const service_context& context() const { return *view->context; }

  /// change(queue), and what it puts there runs.
  template <class Change>
  void queue(Change change) {
    if (thread) return thread->queue(change);
    change(emulated->waiting);
    start_next();
  }

  /// On the device, before any batch that begins later.
  template <class Job>
  void on_device(Job job) {
    if (thread)
      thread->post(std::move(job));
    else
      job(emulated->tensors);
  }

  void attach(attach_view& message) {
    view = std::move(message.view);
    if (message.model)
      on_device([model = std::move(message.model)](device& tensors) { tensors.use(model); });
    if (lacks_under == message.lacks_under) return;
    lacks_under = message.lacks_under;
    for (auto& work : std::exchange(for_want_of_experts, {})) run_experts(work);
  }

  void open(const open_sequence& message) {
    forget(message.request);
    auto& sequence = sequences[message.request];
    sequence.attempt = message.attempt;
    sequence.layers.resize(context().shape().n_layers);
  }

  void forget(std::uint64_t request) {
    if (sequences.erase(request) == 0) return;
    queue([request](batch_queue& waiting) { waiting.drop(request); });
    on_device([request](device& tensors) { tensors.drop(request); });
  }

  /// Null where no rows of this attempt are kept.
  kv_presence* presence_of(std::uint64_t request, std::uint32_t attempt, std::uint32_t layer) {
    const auto found = sequences.find(request);
    if (found == sequences.end() || found->second.attempt != attempt) return nullptr;
    return &found->second.layers[layer];
  }

  void attend(attend_work& work) {
    take_ready(work);
    enqueue_ready();
  }

  /// It is ready, with what waited for its rows, or waits for earlier rows itself.
  void take_ready(attend_work& work) {
    auto* presence = presence_of(work.terms.request, work.terms.attempt, work.layer);
    if (presence == nullptr) return;
    if (!presence->ready_for(work.first)) return presence->waiting.push_back(std::move(work));
    presence->add(work.first, work.n);
    ready.push_back(std::move(work));
    wake(*presence);
  }

  void wake(kv_presence& presence) {
    while (auto work = presence.take_ready()) {
      presence.add(work->first, work->n);
      ready.push_back(std::move(*work));
    }
  }

  /// On the wall clock all in one, so that no batch begins with some of them; in virtual time one after the other.
  void enqueue_ready() {
    const auto join = [](batch_queue& waiting, attend_work& work) {
      waiting.joinable(work_kind::attend, work.layer, 0).attends.push_back(std::move(work));
    };
    const auto n = thread ? ready.size() : 1;
    for (auto first = ready.begin(); first != ready.end(); first += static_cast<std::ptrdiff_t>(n))
      queue([&](batch_queue& waiting) {
        for (std::size_t i = 0; i < n; ++i) join(waiting, first[static_cast<std::ptrdiff_t>(i)]);
      });
    ready.clear();
  }

  void run_experts(expert_work& work) {
    if (lacks_under != 0 && work.epoch == lacks_under)
      return for_want_of_experts.push_back(std::move(work));
    queue([&](batch_queue& waiting) { share_out(work, waiting); });
  }

  void run_experts(expert_batch& batch) {
    if (lacks_under != 0)
      std::erase_if(batch.calls, [this](expert_work& work) {
        const bool waits = work.epoch == lacks_under;
        if (waits) for_want_of_experts.push_back(std::move(work));
        return waits;
      });
    if (batch.calls.empty()) return;
    queue([&](batch_queue& waiting) {
      for (auto& work : batch.calls) share_out(work, waiting);
    });
  }

  /// A call's items join the batches of their experts.
  void share_out(expert_work& work, batch_queue& waiting) {
    auto running_here = std::make_shared<running_call>();
    running_here->work = std::move(work);
    const auto& call = running_here->work.call;
    running_here->outputs.resize(call.items.size() * context().shape().hidden_size);
    items_of_expert.assign(context().shape().n_experts, 0);
    for (const auto& item : call.items)
      if (items_of_expert[item.expert]++ == 0) ++running_here->batches_left;
    for (std::uint32_t expert = 0; expert < items_of_expert.size(); ++expert)
      if (const auto n = items_of_expert[expert]; n > 0)
        waiting.joinable(work_kind::expert, call.layer, expert)
            .experts.push_back({running_here, n});
  }

  void head(head_work& work) {
    queue([&](batch_queue& waiting) {
      waiting.joinable(work_kind::head, 0, 0).heads.push_back(std::move(work));
    });
  }

  void store(store_kv& message) {
    auto& blocks = message.content.blocks;
    const auto layer = message.content.layer;
    std::erase_if(blocks, [&](const wire::kv_block& block) {
      return presence_of(block.request, block.attempt, layer) == nullptr;
    });
    std::vector<kv_presence*> changed;
    changed.reserve(blocks.size());
    for (const auto& block : blocks) {
      auto* presence = presence_of(block.request, block.attempt, layer);
      presence->add(block.first, block.n);
      changed.push_back(presence);
    }
    on_device([content = std::move(message)](device& tensors) { tensors.store(content); });
    for (auto* presence : changed) wake(*presence);
    enqueue_ready();
  }

  void start_next() {
    auto& site = *emulated;
    if (site.running || site.waiting.empty()) return;
    site.running = site.waiting.take();
    auto& content = *site.running;
    content.start_ns = now_ns(self);
    const auto cost = charge(context(), view->id, content);
    site.running_until_ns = content.end_ns = content.start_ns + cost;
    site.tensors.run(content);
    send_later(self, caf::actor_cast<compute_actor>(self), cost, batch_done{site.running, {}});
  }

  void finish(std::shared_ptr<batch> done) {
    auto& content = *done;
    count(content);
    if (emulated) emulated->running.reset();
    if (content.failed) fail(content);
    for (auto& work : content.unserved) self->send(work.token, work_failed{std::move(work.why)});
    if (!content.attended.empty())
      self->send(view->selector, select_batch{std::exchange(content.attended, {})});
    if (!content.streamed.content.blocks.empty())
      self->send(view->server, std::move(content.streamed));
    for (std::size_t i = 0; i < content.head_results.size(); ++i)
      self->send(content.heads[i].token, std::move(content.head_results[i]));
    ride_on(content.complete);
    for (const auto& call : content.complete)
      if (!call->work.lent) answer(*call);
    queue([&](batch_queue& waiting) { waiting.recycle(std::move(done)); });
  }

  /// Positions whose tokens lent their state go on to the next layer, or to the head, all together.
  void ride_on(const std::vector<std::shared_ptr<running_call>>& complete) {
    std::vector<head_work> behind;
    for (const auto& call : complete) {
      if (!call->work.lent) continue;
      const auto rider = call->work.lent;
      if (call->failed) {
        self->send(rider->token, work_failed{*call->failed});
        continue;
      }
      add_outputs_of_rider(*call, *rider);
      if (rider->state.layer < context().decoding.n_layers) {
        auto work = attention_of(rider->token, *rider->view, rider->state);
        work.lent = rider;
        take_ready(work);
      } else {
        behind.push_back({rider->token, rider->state.hidden, rider});
      }
    }
    enqueue_ready();
    if (behind.empty()) return;
    queue([&](batch_queue& waiting) {
      auto& heads = waiting.joinable(work_kind::head, 0, 0).heads;
      std::ranges::move(behind, std::back_inserter(heads));
    });
  }

  void count(const batch& content) {
    ledger.batches += 1;
    ledger.rows += content.rows;
    ledger.flops += content.flops;
    ledger.bytes_read += content.bytes_read;
    ledger.busy_ns += content.end_ns - content.start_ns;
    ledger.tensor_ns += content.tensor_ns;
    if (view->tracing())
      view->trace(trace::batch_line({view->id, to_string(content.kind), content.layer,
                                     content.expert, content.rows, content.flops,
                                     content.bytes_read, content.start_ns - context().start_ns,
                                     content.end_ns - context().start_ns}));
  }

  void fail(const batch& content) {
    for (const auto& work : content.attends) self->send(work.token, work_failed{*content.failed});
    for (const auto& work : content.heads) self->send(work.token, work_failed{*content.failed});
  }

  void answer(const running_call& call) {
    const auto& asked = call.work.call;
    auto output = call.failed ? failed_output(asked, *call.failed)
                              : assemble_output(call, context().wire.hidden_size);
    if (!all_finite(output.y))
      output = failed_output(
          asked, {errc::failed, fmt::format("experts of layer {} on server {} give numbers that "
                                            "are not finite",
                                            asked.layer, view->id)});
    send_output(self, *view, call.work, std::move(output));
  }

  /// Time until work that arrives now could start: the rest of the running batch and what waits
  /// before it.
  std::int64_t wait_ns() {
    if (thread) return thread->wait_ns();
    if (!emulated->running) return 0;
    auto wait = std::max<std::int64_t>(0, emulated->running_until_ns - now_ns(self));
    for (const auto& each : emulated->waiting.waiting()) wait += charge(context(), view->id, *each);
    return wait;
  }

  compute_status tell() {
    const auto waiting = thread ? thread->n_waiting()
                                : emulated->waiting.waiting().size() + (emulated->running ? 1 : 0);
    return {ledger, sequences.size(), waiting, wait_ns()};
  }
};

}  // namespace

std::int64_t charge(const service_context& context, std::uint32_t server, batch& content) {
  const auto& spec = context.servers.servers[server];
  content.count_cost(context.costs, expert_bytes(spec, context.costs), context.wire.hidden_size);
  const bool offloaded = content.kind == work_kind::expert &&
                         context.is_offloaded(server, content.layer, content.expert);
  return (offloaded ? offloaded_ns : compute_ns)(spec, content.flops, content.bytes_read);
}

compute_actor spawn_compute(caf::actor_system& system,
                            std::shared_ptr<const service_context> context, std::uint32_t id,
                            std::shared_ptr<device_thread> thread) {
  ORDERMOE_CHECK((thread != nullptr) == (context->clock == clock_kind::wall),
                 "a device's thread goes with the wall clock");
  const auto compute = system.spawn(
      [context, id, thread](
          compute_actor::stateful_pointer<compute_state> self) -> compute_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.ledger.server = id;
        state.thread = thread;
        if (!thread)
          state.emulated.emplace(virtual_device{device(context->models[id]),
                                                batch_queue(context->shape()), nullptr, 0});
        return {
            // CAF tries one after the other, so the most frequent come first.
            [&state](batch_done& done) {
              for (auto& earlier : done.earlier) state.finish(std::move(earlier));
              state.finish(std::move(done.content));
            },
            [&state](expert_batch& calls) { state.run_experts(calls); },
            [&state](expert_work& work) { state.run_experts(work); },
            [&state](attend_work& work) { state.attend(work); },
            [&state](store_kv& content) { state.store(content); },
            [&state](head_work& work) { state.head(work); },
            [&state](const open_sequence& message) { state.open(message); },
            [&state](drop_sequence message) { state.forget(message.request); },
            [self, &state](tell_load) {
              self->send(state.view->server, compute_load{state.wait_ns()});
            },
            [&state](attach_view& message) { state.attach(message); },
            [&state](status_query) { return state.tell(); },
        };
      });
  if (thread) thread->report_to(compute);
  return compute;
}

}  // namespace ordermoe::actors
