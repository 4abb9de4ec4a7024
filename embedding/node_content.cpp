#include "embedding/node_content.hpp"

#include <algorithm>
#include <future>
#include <limits>
#include <utility>

namespace ordermoe::api {

namespace {

/// A callback that this thread is in, and those that it is in besides.
struct callback_frame {
  const node_content* of;
  const callback_frame* outer;
};
thread_local const callback_frame* innermost = nullptr;
thread_local int n_log_callbacks = 0;

problem used_in_callback(const char* what) {
  return {problem_code::usage, std::string(what) +
                                   " was called from within a callback, of answers or of log "
                                   "records, where it would wait for itself; "
                                   "call it on another thread"};
}

problem used_after_stop() {
  return {problem_code::usage, "the node was stopped; start another"};
}

actors::remote_request request_of(const prompt& wanted) {
  actors::remote_request made;
  made.text = wanted.text;
  auto& spec = made.spec;
  spec.access = wanted.server;
  spec.prompt = wanted.ids;
  spec.max_new_tokens = wanted.max_tokens;
  spec.temperature = wanted.temperature;
  spec.sampling_seed = wanted.seed;
  spec.sampling_stream = wanted.stream;
  spec.stop_strings = wanted.stop;
  spec.quality_percent = wanted.quality_percent;
  // No node takes a longer one, and none one below 0.
  constexpr std::chrono::milliseconds least(-1), most = std::chrono::hours(24 * 365);
  spec.deadline_ns = std::chrono::nanoseconds(std::clamp(wanted.deadline, least, most)).count();
  return made;
}

answer answer_of(const actors::request_outcome& outcome) {
  answer made;
  made.finish = outcome.finish;
  if (outcome.problem) made.why = problem_of(*outcome.problem);
  made.text = outcome.text;
  made.tail = outcome.text_tail;
  made.ids = outcome.token_ids;
  made.attempts = outcome.attempts;
  if (outcome.first_token_ns > 0)
    made.first_token = std::chrono::nanoseconds(outcome.first_token_ns - outcome.arrival_ns);
  made.duration = std::chrono::nanoseconds(outcome.done_ns - outcome.arrival_ns);
  made.quality_percent = outcome.quality_percent;
  made.budget_nats = outcome.budget >= unbounded_budget
                         ? std::numeric_limits<double>::infinity()
                         : static_cast<double>(outcome.budget) / units_per_loss;
  made.spent_nats = static_cast<double>(outcome.spent) / units_per_loss;
  return made;
}

}  // namespace

log_callback::log_callback() {
  ++n_log_callbacks;
}

log_callback::~log_callback() {
  --n_log_callbacks;
}

problem problem_of(const ordermoe::error& why) {
  // One for one, in this order.
  static_assert(static_cast<int>(problem_code::failed) == static_cast<int>(errc::failed));
  return {static_cast<problem_code>(why.code), why.message};
}

/// Inside while it lives, if it is let in.
class node_content::visit {
 public:
  explicit visit(node_content& of) : of_(of) {
    const std::lock_guard lock(of.mutex_);
    is_let_in_ = of.state_ == state::serving;
    if (is_let_in_) ++of.inside_;
  }
  ~visit() {
    if (!is_let_in_) return;
    const std::lock_guard lock(of_.mutex_);
    --of_.inside_;
    of_.changed_.notify_all();
  }
  visit(const visit&) = delete;
  visit& operator=(const visit&) = delete;
  explicit operator bool() const { return is_let_in_; }

 private:
  node_content& of_;
  bool is_let_in_ = false;
};

result<std::uint64_t> node_content::submit(const prompt& wanted, answer_sink sink) {
  if (wanted.text.empty() == wanted.ids.empty())
    return problem{problem_code::usage, wanted.text.empty()
                                            ? "the prompt has neither text nor ids; give one"
                                            : "the prompt has text and ids; give one"};
  const visit inside(*this);
  if (!inside) return used_after_stop();
  auto with = std::make_shared<conversation>();
  with->sink = std::move(sink);
  std::unique_lock lock(mutex_);
  const auto id = with->so_far.request = next_++;
  conversations_[id] = with;
  lock.unlock();
  try {
    const auto number = engine_->submit(
        request_of(wanted),
        {[this, id, with](const actors::answer_token& told) { take(id, *with, told); },
         [this, id, with](const actors::request_outcome& told) {
           end(id, *with, answer_of(told));
         }});
    lock.lock();
    with->number = number;
  } catch (...) {
    lock.lock();
    conversations_.erase(id);
    changed_.notify_all();
    throw;
  }
  with->is_numbered = true;
  const bool cancels = with->is_cancelled;
  lock.unlock();
  if (cancels) engine_->cancel(with->number);
  return id;
}

result<answer> node_content::ask(const prompt& wanted) {
  if (is_called_back()) return used_in_callback("ask()");
  auto told = std::make_shared<std::promise<answer>>();
  auto future = told->get_future();
  const auto asked = submit(wanted, {{}, [told](const answer& all) { told->set_value(all); }});
  if (!asked) return asked.problem();
  auto all = future.get();
  std::unique_lock lock(mutex_);
  // It counts as outstanding until its callback has returned.
  changed_.wait(lock, [&] { return !conversations_.contains(*asked); });
  lock.unlock();
  if (all.why) return *all.why;
  return all;
}

void node_content::cancel(std::uint64_t request) {
  const visit inside(*this);
  if (!inside) return;
  std::unique_lock lock(mutex_);
  const auto found = conversations_.find(request);
  if (found == conversations_.end()) return;
  const auto with = found->second;
  with->is_cancelled = true;
  if (!with->is_numbered) return;
  lock.unlock();
  engine_->cancel(with->number);
}

std::size_t node_content::outstanding() const {
  const std::lock_guard lock(mutex_);
  return conversations_.size();
}

result<std::string> node_content::status() {
  if (is_called_back()) return used_in_callback("status()");
  const visit inside(*this);
  if (!inside) return used_after_stop();
  auto told = engine_->status();
  if (!told) return problem_of(told.error());
  return std::move(*told);
}

result<std::string> node_content::order(const admin_order& wanted) {
  if (is_called_back()) return used_in_callback("order()");
  const visit inside(*this);
  if (!inside) return used_after_stop();
  auto told = engine_->order(wanted);
  if (!told) return problem_of(told.error());
  return std::move(*told);
}

std::vector<std::string> node_content::listens_at() {
  const visit inside(*this);
  return inside ? engine_->listens_at() : std::vector<std::string>();
}

result<void> node_content::stop() {
  if (is_called_back()) return used_in_callback("stop()");
  std::unique_lock lock(mutex_);
  if (state_ != state::serving) {
    changed_.wait(lock, [this] { return state_ == state::stopped; });
    return {};
  }
  state_ = state::stopping;
  lock.unlock();
  engine_->interrupt();
  lock.lock();
  changed_.wait(lock, [this] { return inside_ == 0; });
  lock.unlock();
  std::exception_ptr thrown;
  try {
    engine_->stop();
    end_all_that_are_left();
    engine_.reset();
    for (const auto& each : closers_) each.close();
  } catch (...) {
    thrown = std::current_exception();  // Stopped all the same: others may wait for that.
  }
  lock.lock();
  state_ = state::stopped;
  changed_.notify_all();
  lock.unlock();
  if (thrown) std::rethrow_exception(thrown);
  return {};
}

result<void> node_content::closes_with(closer what) {
  const std::lock_guard lock(mutex_);
  if (state_ != state::serving) return used_after_stop();
  std::erase_if(closers_, [](const closer& each) { return each.is_over(); });
  closers_.push_back(std::move(what));
  return {};
}

bool node_content::is_called_back() const {
  const auto* each = innermost;
  while (each != nullptr && each->of != this) each = each->outer;
  return each != nullptr || n_log_callbacks > 0;
}

void node_content::silence() {
  {
    const std::lock_guard lock(mutex_);
    is_silent_ = true;
  }
  if (engine_) engine_->silence();
}

void node_content::call(const std::function<void()>& what) {
  {
    const std::lock_guard lock(mutex_);
    if (is_silent_) return;
  }
  const callback_frame here{this, innermost};
  innermost = &here;
  try {
    what();
  } catch (...) {
    // The answer goes on.
  }
  innermost = here.outer;
}

void node_content::take(std::uint64_t id, conversation& with, const actors::answer_token& told) {
  with.so_far.ids.push_back(told.id);
  with.so_far.text += told.text;
  if (!with.sink.on_token) return;
  const token shown{id, told.index, told.id, told.text};
  call([&] { with.sink.on_token(shown); });
}

void node_content::end(std::uint64_t id, conversation& with, answer told) {
  if (std::exchange(with.has_ended, true)) return;
  told.request = id;
  if (with.sink.on_end) call([&] { with.sink.on_end(told); });
  // What the host gave is not kept for as long as some actor may remember the request.
  with.sink = {};
  const std::lock_guard lock(mutex_);
  conversations_.erase(id);
  changed_.notify_all();
}

/// Nobody else is there any more.
void node_content::end_all_that_are_left() {
  const auto left = conversations_;
  for (const auto& [id, with] : left) {
    auto told = with->so_far;
    told.finish = "stopped";
    end(id, *with, std::move(told));
  }
}

}  // namespace ordermoe::api
