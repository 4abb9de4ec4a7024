#include "actors/device_thread.hpp"

#include <caf/scheduler/abstract_coordinator.hpp>

#include <algorithm>
#include <chrono>

#include "model/kernels/thread_team.hpp"

namespace ordermoe::actors {

device_thread::device_thread(caf::actor_system& system,
                             std::shared_ptr<const model::transformer> model, std::size_t n_threads,
                             charge_function charge)
    : caf::execution_unit(&system),
      tensors_(model),
      n_threads_(n_threads),
      charge_(std::move(charge)),
      waiting_(model->config()),
      thread_([this] { run(); }) {}

device_thread::~device_thread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void device_thread::post(std::function<void(device&)> job) {
  const std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (asleep_) wake_.notify_one();
}

std::int64_t device_thread::clock_ns() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             system().clock().now().time_since_epoch())
      .count();
}

std::int64_t device_thread::wait_ns() {
  const std::lock_guard lock(mutex_);
  if (!running_) return 0;
  auto wait = std::max<std::int64_t>(0, running_until_ns_ - clock_ns());
  for (const auto& each : waiting_.waiting()) wait += charge_(*each);
  return wait;
}

std::size_t device_thread::n_waiting() {
  const std::lock_guard lock(mutex_);
  return waiting_.waiting().size() + (running_ ? 1 : 0);
}

void device_thread::run() {
  model::thread_team team(n_threads_);
  const model::team_scope scope(&team);
  std::unique_lock lock(mutex_);
  for (;;) {
    asleep_ = true;
    wake_.wait(lock, [this] { return has_work() && !claimed_; });
    asleep_ = false;
    if (stopping_) break;
    claimed_ = true;
    if (jobs_.empty()) {
      compute(lock, this);
      claimed_ = false;
      lock.unlock();
      lend();
      lock.lock();
      continue;
    }
    const auto jobs = std::exchange(jobs_, {});
    lock.unlock();
    for (const auto& job : jobs) job(tensors_);
    lock.lock();
    claimed_ = false;
  }
  lock.unlock();
  // CAF keeps a system alive for threads whose log it is in.
  leave_log();
}

void device_thread::begin_helping() {
  const std::lock_guard lock(mutex_);
  helper_ = std::this_thread::get_id();
}

bool device_thread::may_help() const {
  // A network that is not read for longer is a slow one.
  constexpr std::int64_t most_ns = 100'000;
  return asleep_ && !claimed_ && !stopping_ && jobs_.empty() && waiting_.waiting().size() == 1 &&
         recent_ns_ <= most_ns;
}

bool device_thread::help(caf::execution_unit* unit) {
  std::unique_lock lock(mutex_);
  const bool helps = may_help();
  if (helps) {
    claimed_ = true;
    compute(lock, unit);
    claimed_ = false;
  }
  // What is left to the device's thread: it was not woken before.
  if (asleep_ && has_work() && !(helps && may_help())) wake_.notify_one();
  return helps;
}

void device_thread::compute(std::unique_lock<std::mutex>& lock, caf::execution_unit* unit) {
  auto next = waiting_.take();
  next->start_ns = clock_ns();
  running_ = true;
  running_until_ns_ = next->start_ns + charge_(*next);
  lock.unlock();
  tensors_.run(*next);
  next->end_ns = clock_ns();
  lock.lock();
  running_ = false;
  recent_ns_ += (next->end_ns - next->start_ns - recent_ns_) / 8;
  const bool more = has_work();
  lock.unlock();
  if (more && !next->matters()) {
    untold_.push_back(std::move(next));
  } else if (const auto owner = owner_.lock()) {
    batch_done done{std::move(next), std::exchange(untold_, {})};
    owner->enqueue(caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(done)),
                   more ? nullptr : unit);
  }
  lock.lock();
}

void device_thread::lend() {
  constexpr std::size_t most_messages = 64;
  // While a batch waits. Waking another thread for the rest would take as long, and keep this one.
  constexpr std::int64_t most_ns = 20'000;
  std::int64_t work_since_ns = 0;
  while (!ready_.empty()) {
    auto* job = ready_.front();
    ready_.pop_front();
    if (resume(job, this, most_messages)) ready_.push_back(job);
    if (ready_.empty()) break;
    const std::lock_guard lock(mutex_);
    if (!has_work()) {
      work_since_ns = 0;
      continue;
    }
    const auto now = clock_ns();
    if (work_since_ns == 0) work_since_ns = now;
    if (now - work_since_ns < most_ns) continue;
    for (auto* other : ready_) system().scheduler().enqueue(other);
    ready_.clear();
  }
  leave_log();
}

void device_thread::exec_later(caf::resumable* job) {
  if (std::this_thread::get_id() == thread_.get_id())
    ready_.push_back(job);
  else
    system().scheduler().enqueue(job);
}

}  // namespace ordermoe::actors
