#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "actors/cluster/node.hpp"
#include "config/job.hpp"
#include "config/log_events.hpp"
#include "embedding/configuration.hpp"
#include "embedding/engine.hpp"
#include "embedding/float_environment.hpp"
#include "setup/joining.hpp"
#include "setup/node_setup.hpp"
#include "trace/sink.hpp"

namespace ordermoe::embedding {

namespace {

/// A node, and what goes with it.
struct running_node {
  std::unique_ptr<actors::node> node;
  std::shared_ptr<const model::tokenizer> tokens;
  std::shared_ptr<trace::sink> trace;  ///< Null: none is written.

  void stop() {
    // As far as the others let it come to rest: a trace without its last lines says so itself.
    if (trace) static_cast<void>(node->close_trace());
    node->stop();
    if (trace) static_cast<void>(trace->close());
  }
};

error ended_for_plan(const std::string& name) {
  return {errc::interrupted,
          fmt::format("{}: goes over to the plan that is in force by now; ask again", name)};
}

/// Within a catch. Where there is no memory for more it is a text that takes none.
error what_was_thrown(const std::string& name) noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return {errc::failed, name + ": memory is exhausted"};
    } catch (const std::exception& thrown) {
      return {errc::failed, name + ": " + thrown.what()};
    } catch (...) {
      return {errc::failed, name + ": something unknown went wrong"};
    }
  } catch (...) {
    return {errc::failed, "out of memory"};
  }
}

using steady = std::chrono::steady_clock;

/// Of a request that states none, as nodes have it.
constexpr std::chrono::minutes default_deadline(2);

std::chrono::nanoseconds deadline_of(const actors::request_spec& wanted) {
  if (wanted.deadline_ns == 0) return default_deadline;
  return std::chrono::nanoseconds(wanted.deadline_ns);
}

/// One server of a cluster.
///
///   serving   --the others refuse it for its plan, and another came--> changing
///   changing  its node has ended: answers that had begun are told `failed`; what is asked for waits, no longer than its deadline
///             and until it is cancelled
///             --another node serves by the files that came--> serving
///             --it cannot--> down
///   down      whatever is asked for is told why
///   each      --stop()--> its node and its thread end, and nobody is told anything any more
///
/// Where it does not fetch plans it is serving, always. Sinks are called by the node, or by the thread that watches over its plan while
/// there is none: one at a time, as it promises.
class member final : public engine {
 public:
  member(member_configuration how, caf::actor_system* system)
      : file_(std::move(how.file)),
        log_(std::move(how.log)),
        is_silent_(std::move(how.is_silent)),
        system_(system) {}
  ~member() override { stop(); }

  result<void> start(const api::member_options& options) {
    const std::stop_callback stops(options.give_up, [this] { work_.stop(); });
    if (setup::lacks_plan(file_))
      if (auto there = await_plan(options); !there) return there;
    auto begun = begin();
    if (work_.stopped()) return given_up();
    if (!begun) return begun;
    if (options.fetches_plan) watch_ = std::thread([this] { watch_over_plan(); });
    return {};
  }

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    auto each = std::make_shared<asked>();
    each->wanted = std::move(wanted);
    each->sink = std::move(sink);
    each->asked_at = steady::now();
    std::unique_lock lock(mutex_);
    const auto id = next_++;
    asked_[id] = each;
    if (state_ != state::serving) {
      waiting_.push_back(id);
      changed_.notify_all();
      return id;
    }
    const visit inside(*this, lock);
    try {
      give(id, each);
    } catch (...) {
      const std::lock_guard again(mutex_);
      asked_.erase(id);
      throw;
    }
    return id;
  }

  void cancel(std::uint64_t id) override {
    std::unique_lock lock(mutex_);
    const auto found = asked_.find(id);
    if (found == asked_.end()) return;
    found->second->is_cancelled = true;
    const auto number = found->second->number;
    if (!number || state_ != state::serving) return;
    const visit inside(*this, lock);
    running_->node->cancel(*number);
  }

  result<std::string> status() override {
    std::unique_lock lock(mutex_);
    if (state_ == state::changing) return ended_for_plan(file_.name);
    if (state_ == state::down) return *why_down_;
    const visit inside(*this, lock);
    return running_->node->status_json();
  }

  std::vector<std::string> listens_at() const override {
    const std::lock_guard lock(mutex_);
    return places_;
  }

  void silence() override { *is_silent_ = true; }

  void stop() override {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
      changed_.notify_all();
    }
    work_.stop();
    if (watch_.joinable()) watch_.join();
    if (running_) running_->stop();
    running_.reset();
  }

 private:
  enum class state { serving, changing, down };

  /// One request, from submit() until its end is told.
  struct asked {
    actors::remote_request wanted;  ///< Until the node has it.
    actors::answer_sink sink;
    steady::time_point asked_at;
    actors::request_outcome so_far;       ///< What was told of it.
    std::optional<std::uint64_t> number;  ///< The node's.
    bool is_cancelled = false;

    /// Until the node has it.
    bool is_late(steady::time_point now) const {
      const auto within = deadline_of(wanted.spec);
      return within.count() > 0 && now - asked_at >= within;
    }
  };

  /// While it lives, the node stays. `lock` is given back, and not taken again.
  class visit {
   public:
    visit(member& of, std::unique_lock<std::mutex>& lock) : of_(of) {
      ++of_.inside_;
      lock.unlock();
    }
    ~visit() {
      const std::lock_guard lock(of_.mutex_);
      --of_.inside_;
      of_.changed_.notify_all();
    }
    visit(const visit&) = delete;
    visit& operator=(const visit&) = delete;

   private:
    member& of_;
  };

  error given_up() const {
    return {errc::interrupted, fmt::format("{}: was given up while it started", file_.name)};
  }

  result<void> await_plan(const api::member_options& options) {
    if (!options.fetches_plan)
      return error{errc::not_found,
                   fmt::format("{}: {} or {} is not there, and fetches_plan is off: bring both, or "
                               "let the other members send them",
                               options.config, file_.plan.string(), file_.profile.string())};
    setup::awaiting_ways how{log_, [this] { return work_.stopped(); }, {}};
    if (options.longest.count() > 0) how.longest = countable(options.longest);
    return setup::await_plan(file_, how);
  }

  /// A node by the files that are there. Nobody is inside.
  result<void> begin() {
    auto ready = setup::prepare_node(file_, work_);
    if (!ready) return ready.error();
    ready->log = log_;
    ready->service.system = system_;
    const auto boot = ready->transport.boot;
    running_node made{nullptr, ready->service.tokens, ready->service.sink};
    auto begun = actors::node::start(std::move(*ready));
    if (!begun) return begun.error();
    made.node = std::move(*begun);
    std::vector<std::string> places;
    for (const auto& each : made.node->listens_at()) places.push_back(net::to_string(each));
    log_.tell(log_event::node_ready,
              {{"address", places.empty() ? "nowhere" : places.front()}, {"boot", boot}});
    const std::lock_guard lock(mutex_);
    running_ = std::move(made);
    places_ = std::move(places);
    return {};
  }

  /// To the node, which stays meanwhile.
  void give(std::uint64_t id, const std::shared_ptr<asked>& each) {
    const auto number = running_->node->submit(spec_of(std::move(each->wanted), *running_->tokens),
                                               sink_of(id, each));
    std::unique_lock lock(mutex_);
    each->number = number;
    const bool is_cancelled = each->is_cancelled;
    lock.unlock();
    if (is_cancelled) running_->node->cancel(number);
  }

  actors::answer_sink sink_of(std::uint64_t id, const std::shared_ptr<asked>& each) {
    return {[each](const actors::answer_token& told) {
              each->so_far.token_ids.push_back(told.id);
              each->so_far.text += told.text;
              if (each->sink.on_token) each->sink.on_token(told);
            },
            [this, id, each](const actors::request_outcome& told) { end(id, *each, told); }};
  }

  void end(std::uint64_t id, const asked& each, const actors::request_outcome& told) {
    {
      const std::lock_guard lock(mutex_);
      asked_.erase(id);
    }
    if (each.sink.on_end) each.sink.on_end(told);
  }

  void fail(std::uint64_t id, const asked& each, const error& why) {
    auto told = each.so_far;
    told.finish = "failed";
    told.problem = why;
    end(id, each, told);
  }

  /// A request that ends without a node.
  struct ending {
    std::uint64_t id;
    std::shared_ptr<asked> of;
    bool is_cancelled;
  };

  void tell(const ending& of, const error& why) {
    if (!of.is_cancelled) return fail(of.id, *of.of, why);
    auto told = of.of->so_far;
    told.finish = "cancelled";
    end(of.id, *of.of, told);
  }

  // ------------------------------------------------------------------ of the thread that watches over the plan

  static constexpr std::chrono::milliseconds look_again{50};

  void watch_over_plan() {
    setup::plan_watch plans(file_, log_);
    const auto pause = [this] { return work_.stopped(); };
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait_for(lock, look_again, [this] {
        return is_ending_ || (state_ == state::down && !waiting_.empty());
      });
      if (is_ending_) return;
      const bool is_down = state_ == state::down;
      lock.unlock();
      if (is_down)
        refuse_waiting();
      else if (is_another_there(plans, pause))
        go_over();
      lock.lock();
    }
  }

  /// What cannot be fetched now, as for want of memory, may be a moment later.
  bool is_another_there(setup::plan_watch& plans, const std::function<bool()>& pause) {
    try {
      return plans.look(*running_->node, pause);
    } catch (...) {
      return false;
    }
  }

  /// Ends the node, and starts another by the files that came.
  void go_over() {
    {
      std::unique_lock lock(mutex_);
      state_ = state::changing;
      changed_.wait(lock, [this] { return inside_ == 0; });
    }
    result<void> begun;
    try {
      // Nobody is told anything meanwhile but by it. What it had in memory is not to be there twice.
      running_->stop();
      running_.reset();
      fail_begun();
      begun = begin_while_others_wait();
    } catch (...) {
      begun = what_was_thrown(file_.name);
    }
    if (begun) return give_waiting();
    running_.reset();
    go_down(begun.error());
  }

  void go_down(const error& why) {
    try {
      if (why.code != errc::interrupted) log_.tell(log_event::plan_refused, {{"why", why.message}});
      const std::lock_guard lock(mutex_);
      why_down_ = why;
    } catch (...) {
      const std::lock_guard lock(mutex_);
      why_down_ = what_was_thrown(file_.name);
    }
    const std::lock_guard lock(mutex_);
    state_ = state::down;
  }

  /// On another thread: it takes as long as weights take to load.
  result<void> begin_while_others_wait() {
    auto beginning = std::async(std::launch::async, [this] { return begin(); });
    while (beginning.wait_for(look_again) != std::future_status::ready) end_in_time();
    end_in_time();
    return beginning.get();
  }

  /// Of those who wait for a node: who cancelled, and whose time is over.
  void end_in_time() {
    const auto now = steady::now();
    std::vector<ending> over;
    {
      const std::lock_guard lock(mutex_);
      std::erase_if(waiting_, [&](std::uint64_t id) {
        const auto& each = asked_.at(id);
        if (!each->is_cancelled && !each->is_late(now)) return false;
        over.push_back({id, each, each->is_cancelled});
        return true;
      });
    }
    for (const auto& each : over)
      tell(each,
           {errc::timed_out,
            fmt::format("not answered within {:.1f} s",
                        std::chrono::duration<double>(deadline_of(each.of->wanted.spec)).count())});
  }

  /// What the node that has ended told no end of.
  void fail_begun() {
    std::vector<ending> left;
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [id, each] : asked_)
        if (each->number) left.push_back({id, each, each->is_cancelled});
    }
    const auto why = ended_for_plan(file_.name);
    for (const auto& each : left) tell(each, why);
  }

  void give_waiting() {
    std::unique_lock lock(mutex_);
    state_ = state::serving;
    const auto waited = std::exchange(waiting_, {});
    lock.unlock();
    for (const auto id : waited) {
      const auto each = still_asked(id);
      if (!each) continue;
      // What it has waited counts.
      if (auto& spec = each->wanted.spec; spec.deadline_ns >= 0)
        spec.deadline_ns = std::max<std::int64_t>(
            1,
            std::chrono::nanoseconds(deadline_of(spec) - (steady::now() - each->asked_at)).count());
      try {
        give(id, each);
      } catch (...) {
        try_to_fail(id, *each, what_was_thrown(file_.name));
      }
    }
  }

  void refuse_waiting() {
    std::unique_lock lock(mutex_);
    const auto waited = std::exchange(waiting_, {});
    lock.unlock();
    for (const auto id : waited)
      if (const auto each = still_asked(id)) try_to_fail(id, *each, *why_down_);
  }

  std::shared_ptr<asked> still_asked(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = asked_.find(id);
    return found != asked_.end() ? found->second : nullptr;
  }

  /// Whoever cannot even be told, for want of memory, is told by stop().
  void try_to_fail(std::uint64_t id, const asked& each, const error& why) {
    try {
      fail(id, each, why);
    } catch (...) {
    }
  }

  const node_file file_;
  const log_outlet log_;
  const std::shared_ptr<std::atomic<bool>> is_silent_;
  caf::actor_system* const system_;
  job work_;
  /// Of whoever is inside while it serves, and of the watching thread.
  std::optional<running_node> running_;
  std::thread watch_;
  mutable std::mutex mutex_;  ///< Of everything below.
  std::condition_variable changed_;
  state state_ = state::serving;
  bool is_ending_ = false;
  std::size_t inside_ = 0;
  std::optional<error> why_down_;
  std::vector<std::string> places_;
  std::uint64_t next_ = 0;
  std::map<std::uint64_t, std::shared_ptr<asked>> asked_;
  std::vector<std::uint64_t> waiting_;  ///< Asked for while there is no node.
};

}  // namespace

result<std::unique_ptr<engine>> start_engine(const api::member_options& options,
                                             caf::actor_system* system) {
  const default_float_environment here;
  auto how = configure(options);
  if (!how) return how.error();
  auto made = std::make_unique<member>(std::move(*how), system);
  if (auto begun = made->start(options); !begun) return begun.error();
  return std::unique_ptr<engine>(std::move(made));
}

}  // namespace ordermoe::embedding
