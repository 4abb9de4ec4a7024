#include "actors/device/device_thread.hpp"

#include <sys/prctl.h>

#include <caf/scheduler/abstract_coordinator.hpp>

#include <algorithm>
#include <cfenv>
#include <chrono>

#include "actors/scheduling/processor_time.hpp"
#include "model/kernels/thread_team.hpp"

namespace ordermoe::actors {

device_thread::device_thread(caf::actor_system& system,
                             std::shared_ptr<const model::transformer> model, std::size_t n_threads,
                             charge_function charge, std::optional<rehearsal> rehearsed,
                             std::shared_ptr<frame_turns> turns, bool leaves_unread)
    : caf::execution_unit(&system),
      tensors_(model, leaves_unread),
      n_threads_(n_threads),
      charge_(std::move(charge)),
      rehearsed_(rehearsed),
      turns_(std::move(turns)),
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
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (!must_wake()) return;
  }
  wake_.notify_one();
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
  if (rehearsed_)
    wait = static_cast<std::int64_t>(static_cast<double>(wait) / rehearsed_->dilation);
  for (const auto& each : waiting_.waiting()) wait += charge_(*each);
  return wait;
}

std::size_t device_thread::n_waiting() {
  const std::lock_guard lock(mutex_);
  return waiting_.waiting().size() + (running_ ? 1 : 0);
}

rehearsal_figures device_thread::rehearsed_so_far() {
  const std::lock_guard lock(mutex_);
  return charged_.figures();
}

void device_thread::run() {
  // Whatever rounding and denormal numbers are like where it was started: other servers must get the same bits. Its team inherits it.
  std::fesetenv(FE_DFL_ENV);
  // The kernel may let a sleep end later than asked, to save wake-ups: by 50 us where nothing else is said.
  if (rehearsed_) ::prctl(PR_SET_TIMERSLACK, 1UL);
  model::thread_team team(n_threads_);
  const model::team_scope scope(&team);
  std::unique_lock lock(mutex_);
  for (;;) {
    if (turns_ && (!has_work() || claimed_) && turns_->holds()) {
      lock.unlock();
      turns_->write(0);
      lock.lock();
    }
    asleep_ = true;
    while (!has_work() || claimed_) {
      woken_ = false;
      wake_.wait(lock);
    }
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

std::int64_t device_thread::may_hold_ns() {
  constexpr std::int64_t most_ns = 50'000;
  const std::lock_guard lock(mutex_);
  const bool more_soon = !rehearsed_ && jobs_.empty() && !waiting_.empty() && recent_ns_ < most_ns;
  return more_soon ? most_ns : 0;
}

bool device_thread::may_help() const {
  return asleep_ && !claimed_ && !stopping_ && jobs_.empty() && !waiting_.empty() && all_is_short();
}

bool device_thread::all_is_short() const {
  // A network that is not read for longer is a slow one.
  constexpr std::int64_t most_ns = 100'000;
  // Those before were short with few rows: what a prompt has at once takes longer.
  constexpr std::size_t most_rows = 48;
  const auto n = static_cast<std::int64_t>(waiting_.waiting().size());
  if (rehearsed_ || n * recent_ns_ > most_ns) return false;
  std::size_t rows = 0;
  for (const auto& each : waiting_.waiting()) rows += each->waiting_rows();
  return rows <= most_rows;
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
  const bool leaves = has_work() && !(helps && may_help()) && must_wake();
  lock.unlock();
  if (leaves) wake_.notify_one();
  return helps;
}

void device_thread::leave() {
  {
    const std::lock_guard lock(mutex_);
    if (!has_work() || !must_wake()) return;
  }
  wake_.notify_one();
}

void device_thread::compute(std::unique_lock<std::mutex>& lock, caf::execution_unit* unit) {
  auto next = waiting_.take();
  running_ = true;
  begin(*next);
  lock.unlock();
  const auto worked_before = rehearsed_ ? processor_ns() : 0;
  tensors_.run(*next);
  next->end_ns = clock_ns();
  lock.lock();
  if (rehearsed_) sit_out(lock, *next, processor_ns() - worked_before);
  running_ = false;
  note_time(next->end_ns - next->start_ns);
  const bool more = has_work();
  lock.unlock();
  if (more && !next->matters()) {
    untold_.push_back(std::move(next));
  } else if (const auto owner = owner_.lock()) {
    batch_done done{std::move(next), std::exchange(untold_, {})};
    owner->enqueue(caf::make_mailbox_element(nullptr, caf::make_message_id(), {}, std::move(done)),
                   unit);
  }
  lock.lock();
}

/// One that was interrupted for long says little of those to come; where all take longer, it shows soon all the same.
void device_thread::note_time(std::int64_t took_ns) {
  constexpr std::int64_t least_ns = 10'000;
  recent_ns_ += (std::min(took_ns, 2 * recent_ns_ + least_ns) - recent_ns_) / 8;
}

/// Lock held.
void device_thread::begin(batch& next) {
  const auto charge_ns = dilated(charge_(next));
  if (!rehearsed_) {
    next.start_ns = clock_ns();
    running_until_ns_ = next.start_ns + charge_ns;
    return;
  }
  charged_.begin(asked_ns_, charge_ns);
  // The next one was asked for by now, if there is one.
  asked_ns_ = clock_ns();
  next.start_ns = charged_.start_ns();
  running_until_ns_ = charged_.due_ns();
}

void device_thread::sit_out(std::unique_lock<std::mutex>& lock, batch& content,
                            std::int64_t worked_ns) {
  using std::chrono::steady_clock;
  if (content.end_ns < charged_.sleep_until_ns()) {
    const auto until =
        steady_clock::time_point() + std::chrono::nanoseconds(charged_.sleep_until_ns());
    wake_.wait_until(lock, until, [this] { return stopping_; });
    charged_.woke(clock_ns());
  }
  lock.unlock();
  const auto since = clock_ns();
  auto now = since;
  for (; now < charged_.due_ns() && now - since < sleep_lead::most_ns; now = clock_ns())
    std::this_thread::yield();
  lock.lock();
  content.end_ns = charged_.end(now, worked_ns);
}

/// While a batch waits. Waking another thread for the rest would take as long as the least of these, and keep this one; and
/// where what waits is short, frames that actors send from here go out together, and what they lead to joins it.
std::int64_t device_thread::most_lent_ns() const {
  constexpr std::int64_t least_ns = 20'000, most_ns = 1'000'000;
  return turns_ && all_is_short() ? most_ns : least_ns;
}

void device_thread::lend() {
  constexpr std::size_t most_messages = 64;
  std::optional<work_limit> while_work_waits;
  if (turns_) turns_->begin();
  while (!ready_.empty()) {
    auto* job = ready_.front();
    ready_.pop_front();
    if (resume(job, this, most_messages)) ready_.push_back(job);
    if (turns_ && turns_->holds()) turns_->write(may_hold_ns());
    if (ready_.empty()) break;
    const std::lock_guard lock(mutex_);
    if (!has_work()) {
      while_work_waits.reset();
      continue;
    }
    if (!while_work_waits) while_work_waits.emplace();
    if (!while_work_waits->is_over(most_lent_ns())) continue;
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
