#pragma once

#include <caf/policy/work_stealing.hpp>
#include <caf/scheduler/coordinator.hpp>

#include <mutex>
#include <unordered_set>
#include <utility>

#include "actors/scheduling/caf.hpp"

/// CAF's scheduler, but for what the end of an actor costs: CAF tells its clock of each, and the clock's thread wakes to
/// find that the actor had no timeouts. Token actors end at every hop; for a small model these wakes were nearly half of
/// all that a process asked of the kernel.
namespace ordermoe::actors {

/// Passes everything on to another clock, except the end of actors that never had a timeout.
class calm_clock final : public caf::detail::thread_safe_actor_clock {
 public:
  explicit calm_clock(caf::detail::thread_safe_actor_clock& inner) : inner_(inner) {}

  time_point now() const noexcept override { return inner_.now(); }
  duration_type difference(caf::atom_value measurement, long units, time_point t0,
                           time_point t1) const noexcept override {
    return inner_.difference(measurement, units, t0, t1);
  }
  void set_ordinary_timeout(time_point t, caf::abstract_actor* self, caf::atom_value type,
                            std::uint64_t id) override {
    note(self);
    inner_.set_ordinary_timeout(t, self, type, id);
  }
  void set_request_timeout(time_point t, caf::abstract_actor* self, caf::message_id id) override {
    note(self);
    inner_.set_request_timeout(t, self, id);
  }
  void set_multi_timeout(time_point t, caf::abstract_actor* self, caf::atom_value type,
                         std::uint64_t id) override {
    note(self);
    inner_.set_multi_timeout(t, self, type, id);
  }
  void cancel_ordinary_timeout(caf::abstract_actor* self, caf::atom_value type) override {
    inner_.cancel_ordinary_timeout(self, type);
  }
  void cancel_request_timeout(caf::abstract_actor* self, caf::message_id id) override {
    inner_.cancel_request_timeout(self, id);
  }
  void cancel_timeouts(caf::abstract_actor* self) override {
    if (forget(self)) inner_.cancel_timeouts(self);
  }
  void schedule_message(time_point t, caf::strong_actor_ptr receiver,
                        caf::mailbox_element_ptr content) override {
    inner_.schedule_message(t, std::move(receiver), std::move(content));
  }
  void schedule_message(time_point t, caf::group target, caf::strong_actor_ptr sender,
                        caf::message content) override {
    inner_.schedule_message(t, std::move(target), std::move(sender), std::move(content));
  }
  void cancel_all() override { inner_.cancel_all(); }

 private:
  void note(const caf::abstract_actor* self) {
    const std::lock_guard lock(mutex_);
    with_timeouts_.insert(self->id());
  }
  bool forget(const caf::abstract_actor* self) {
    const std::lock_guard lock(mutex_);
    return with_timeouts_.erase(self->id()) > 0;
  }

  caf::detail::thread_safe_actor_clock& inner_;
  std::mutex mutex_;
  std::unordered_set<caf::actor_id> with_timeouts_;
};

/// Loaded into a configuration as a module: `config.load<calm_scheduler>()`.
class calm_scheduler final : public caf::scheduler::coordinator<caf::policy::work_stealing> {
 public:
  using super = caf::scheduler::coordinator<caf::policy::work_stealing>;
  explicit calm_scheduler(caf::actor_system& system) : super(system), clock_(super::clock()) {}

  caf::detail::thread_safe_actor_clock& clock() noexcept override { return clock_; }

  static caf::actor_system::module* make(caf::actor_system& system, caf::detail::type_list<>) {
    return new calm_scheduler(system);
  }

 private:
  calm_clock clock_;
};

}  // namespace ordermoe::actors
