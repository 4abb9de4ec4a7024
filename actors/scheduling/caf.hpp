#pragma once

#include <caf/actor_clock.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/event_based_actor.hpp>
#include <caf/execution_unit.hpp>
#include <caf/logger.hpp>
#include <caf/resumable.hpp>
#include <caf/scheduled_actor.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_actor.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>

#include "config/error.hpp"

/// What the actors use of CAF 0.17. Besides this header only device_thread, virtual_time_worker and the
/// services that make an actor system include CAF. A port to another CAF release starts here.
///
/// Two rules keep clear of that release's traps. Floating point never passes through CAF's
/// serialisers: what crosses between servers is a `frame` of bytes (net/wire). Messages inside a
/// process carry plain structs that are declared unsafe to serialise.
namespace ordermoe::actors {

/// Nanoseconds on the system's clock: virtual in emulated mode, steady wall clock otherwise.
inline std::int64_t now_ns(caf::scheduled_actor* self) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             self->clock().now().time_since_epoch())
      .count();
}

/// Calls tell(error) where a handler of the actor throws; the actor ends then.
template <class Self, class Tell>
void tell_exceptions(Self* self, Tell tell) {
  self->set_exception_handler([tell](std::exception_ptr& thrown) -> caf::error {
    error what{errc::failed, "an exception of unknown type"};
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_alloc&) {
      what.message = "memory is exhausted";
    } catch (const std::exception& problem) {
      what.message = problem.what();
    } catch (...) {
    }
    tell(what);
    return caf::exit_reason::unhandled_exception;
  });
}

/// Takes this thread out of CAF's log, which nobody reads: otherwise the name of the running actor
/// is kept there, behind a lock, before and after every message. Spawning an actor undoes it.
inline void leave_log() {
  caf::logger::set_current_actor_system(nullptr);
}

/// As long as it lives, spawning may take this thread into CAF's log; afterwards it is out again, unless it was in that log
/// before. A system's end waits for every thread that is in its log and still there.
class spawning_scope {
 public:
  spawning_scope() : before_(caf::logger::current_logger()) {}
  ~spawning_scope() {
    if (caf::logger::current_logger() != before_) leave_log();
  }
  spawning_scope(const spawning_scope&) = delete;
  spawning_scope& operator=(const spawning_scope&) = delete;

 private:
  caf::logger* before_;
};

/// Lets an actor that is ready handle up to so many messages on this unit; whether it has more and
/// stays with the caller.
inline bool resume(caf::resumable* job, caf::execution_unit* unit, std::size_t most_messages) {
  switch (job->resume(unit, most_messages)) {
    case caf::resumable::resume_later:
      return true;
    case caf::resumable::awaiting_message:
    case caf::resumable::done:
      caf::intrusive_ptr_release(job);
      break;
    case caf::resumable::shutdown_execution_unit:
      break;
  }
  return false;
}

}  // namespace ordermoe::actors
