#include "actors/compute.hpp"

#include <fmt/format.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "actors/device.hpp"
#include "actors/kv_presence.hpp"
#include "actors/virtual_time_worker.hpp"
#include "config/cluster.hpp"

namespace ordermoe::actors {

namespace {

/// The private thread of one device: jobs in order. LibTorch and the kernels run only here.
class device_thread {
 public:
  device_thread() : thread_([this] { run(); }) {}
  ~device_thread() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void post(std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      auto job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  std::thread thread_;
};

struct compute_state {
  compute_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  std::unique_ptr<device> tensors;
  std::unique_ptr<device_thread> thread;     ///< Wall clock only.
  std::deque<std::shared_ptr<batch>> queue;  ///< Oldest first.
  std::vector<batch*> open;  ///< Those of the queue, by the weights that they need (weights_index).
  std::vector<std::shared_ptr<batch>> spare;  ///< Done, kept for their memory.
  std::shared_ptr<batch> running;
  std::int64_t running_until_ns = 0;  ///< Expected end of `running`.
  server_ledger ledger;
  std::unordered_map<std::uint64_t, std::vector<kv_presence>> kv;  ///< By request, then layer.
  std::vector<std::uint32_t> items_of_expert;  ///< [n_experts] while a call is taken in.

  const run_context& run() const { return *view->run; }
  const server_spec& server() const { return run().servers.servers[view->id]; }

  /// Each layer has one attention and its experts; the head comes last.
  std::size_t weights_index(work_kind kind, std::uint32_t layer, std::uint32_t expert) const {
    const auto& shape = run().shape();
    if (kind == work_kind::head) return shape.n_layers * (shape.n_experts + 1);
    return layer * (shape.n_experts + 1) + (kind == work_kind::expert ? expert + 1 : 0);
  }

  batch& waiting_batch(work_kind kind, std::uint32_t layer, std::uint32_t expert) {
    const auto index = weights_index(kind, layer, expert);
    if (index >= open.size()) open.resize(weights_index(work_kind::head, 0, 0) + 1, nullptr);
    auto& found = open[index];
    if (found == nullptr) {
      auto next = new_batch();
      next->kind = kind;
      next->layer = layer;
      next->expert = expert;
      found = next.get();
      queue.push_back(std::move(next));
    }
    return *found;
  }

  std::shared_ptr<batch> new_batch() {
    if (spare.empty()) return std::make_shared<batch>();
    auto next = std::move(spare.back());
    spare.pop_back();
    return next;
  }

  void keep(std::shared_ptr<batch> done) {
    constexpr std::size_t most_spare = 16;
    if (done.use_count() > 1 || spare.size() >= most_spare) return;
    done->clear();
    spare.push_back(std::move(done));
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
    waiting_batch(work_kind::attend, work.layer, 0).attends.push_back(std::move(work));
    start_next();
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
    for (std::uint32_t expert = 0; expert < items_of_expert.size(); ++expert)
      if (const auto n = items_of_expert[expert]; n > 0)
        waiting_batch(work_kind::expert, call.layer, expert).experts.push_back({running_here, n});
    start_next();
  }

  void head(head_work& work) {
    waiting_batch(work_kind::head, 0, 0).heads.push_back(std::move(work));
    start_next();
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
      thread->post(
          [tensors = tensors.get(), content = std::move(content)] { tensors->store(content); });
    else
      tensors->store(content);
    for (auto* presence : changed) wake(*presence);
  }

  void drop(std::uint64_t request) {
    kv.erase(request);
    if (!thread) return tensors->drop(request);
    thread->post([tensors = tensors.get(), request] { tensors->drop(request); });
  }

  void count_cost(batch& content) const {
    content.count_cost(run().costs, expert_bytes(server(), run().costs), run().shape().hidden_size);
  }

  std::int64_t cost_ns(const batch& content) const {
    return compute_ns(server(), content.flops, content.bytes_read);
  }

  void start_next() {
    if (running || queue.empty()) return;
    running = std::move(queue.front());
    queue.pop_front();
    open[weights_index(running->kind, running->layer, running->expert)] = nullptr;
    running->start_ns = now_ns(self);
    count_cost(*running);
    const auto cost = cost_ns(*running);
    running_until_ns = running->start_ns + cost;
    if (run().clock == clock_kind::virtual_time) {
      tensors->run(*running);
      send_later(self, caf::actor_cast<compute_actor>(self), cost, batch_done{running});
    } else {
      thread->post(
          [tensors = tensors.get(), content = running, me = caf::actor_cast<compute_actor>(self)] {
            tensors->run(*content);
            caf::anon_send(me, batch_done{content});
          });
    }
  }

  void finish(std::shared_ptr<batch> done) {
    auto& content = *done;
    const auto end_ns = now_ns(self);
    ledger.batches += 1;
    ledger.rows += content.rows;
    ledger.flops += content.flops;
    ledger.bytes_read += content.bytes_read;
    ledger.busy_ns += end_ns - content.start_ns;
    ledger.tensor_ns += content.tensor_ns;
    if (run().books->tracing())
      run().books->trace(fmt::format(
          R"({{"type":"batch","server":{},"work":"{}","layer":{},"expert":{},"rows":{},"flops":{},"bytes":{},"start_ns":{},"end_ns":{}}})",
          view->id, to_string(content.kind), content.layer, content.expert, content.rows,
          content.flops, content.bytes_read, content.start_ns - run().start_ns,
          end_ns - run().start_ns));
    running.reset();
    if (!content.attended.empty())
      self->send(view->selector, select_batch{std::exchange(content.attended, {})});
    if (!content.streamed.content.blocks.empty())
      self->send(view->server, std::move(content.streamed));
    for (std::size_t i = 0; i < content.heads.size(); ++i)
      self->send(content.heads[i].token, std::move(content.head_results[i]));
    for (auto& share : content.experts)
      if (--share.call->batches_left == 0) answer(*share.call);
    keep(std::move(done));
    start_next();
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
  std::int64_t wait_ns() const {
    if (!running) return 0;
    auto wait = std::max<std::int64_t>(0, running_until_ns - now_ns(self));
    for (const auto& waiting : queue) {
      count_cost(*waiting);
      wait += cost_ns(*waiting);
    }
    return wait;
  }
};

}  // namespace

compute_actor spawn_compute(caf::actor_system& system, std::shared_ptr<const run_context> run,
                            std::uint32_t id) {
  return system.spawn(
      [run,
       id](compute_actor::stateful_pointer<compute_state> self) -> compute_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.ledger.server = id;
        state.tensors = std::make_unique<device>(run->models[id]);
        if (run->clock == clock_kind::wall) state.thread = std::make_unique<device_thread>();
        return {
            // CAF tries one after the other, so the most frequent come first.
            [&state](batch_done& done) { state.finish(std::exchange(done.content, nullptr)); },
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
}

}  // namespace ordermoe::actors
