#pragma once

#include <caf/make_actor.hpp>
#include <caf/monitorable_actor.hpp>

#include <chrono>
#include <cstdint>
#include <utility>

#include "actors/scheduling/caf.hpp"

namespace ordermoe::actors {

/// What CAF's clock holds for a message that is to come later, in place of its receiver: a receiver that has ended meanwhile
/// is gone at once, and with it the thread of a detached one. Otherwise the clock would keep it for as long as its longest timer,
/// minutes, which in a system of somebody else's adds up.
class weak_receiver final : public caf::monitorable_actor {
 public:
  weak_receiver(caf::actor_config& config, caf::weak_actor_ptr meant)
      : caf::monitorable_actor(config), meant_(std::move(meant)) {}

  void enqueue(caf::mailbox_element_ptr what, caf::execution_unit* unit) override {
    if (const auto still_there = meant_.lock()) still_there->enqueue(std::move(what), unit);
  }

 private:
  caf::weak_actor_ptr meant_;
};

/// Delivers a message by the clock of the receiver's system, if the receiver is still there then.
template <class Handle, class Message>
void send_by_clock(const Handle& to, std::int64_t delay_ns, Message&& message) {
  const auto meant = caf::actor_cast<caf::strong_actor_ptr>(to);
  if (!meant) return;
  auto& system = *meant->home_system;
  caf::actor_config config;
  auto receiver = caf::make_actor<weak_receiver, caf::strong_actor_ptr>(
      system.next_actor_id(), system.node(), &system, config, caf::weak_actor_ptr(meant.get()));
  auto& clock = system.clock();
  clock.schedule_message(clock.now() + std::chrono::nanoseconds(delay_ns), std::move(receiver),
                         caf::make_mailbox_element(nullptr, caf::make_message_id(), {},
                                                   std::forward<Message>(message)));
}

}  // namespace ordermoe::actors
