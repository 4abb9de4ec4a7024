#pragma once

#include <caf/scheduler/test_coordinator.hpp>

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "actors/protocol/messages.hpp"
#include "actors/scheduling/caf.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"

/// One actor alone: everybody that it knows is a probe, which only listens, and time is virtual.
namespace ordermoe::test {

/// CAF's testing scheduler as the emulation drives it. Nothing runs but inside its members.
class probe_world {
 public:
  /// 0: jobs run in the order in which they became ready.
  explicit probe_world(std::uint64_t order_seed = 0) : system_(configure(config_)) {
    auto* scheduler = dynamic_cast<caf::scheduler::test_coordinator*>(&system_.scheduler());
    ORDERMOE_CHECK(scheduler != nullptr, "the testing scheduler was asked for");
    worker_.emplace(*scheduler, order_seed);
    scheduler_ = scheduler;
    scheduler_->clock().current_time = caf::actor_clock::time_point{} + std::chrono::seconds(1);
  }
  /// Ends what it was told to keep, and forgets what probes heard.
  ~probe_world() {
    forget();
    for (const auto& actor : kept_) caf::anon_send_exit(actor, caf::exit_reason::kill);
    run_ready();
    forget();
    kept_.clear();
    worker_.reset();
  }
  probe_world(const probe_world&) = delete;
  probe_world& operator=(const probe_world&) = delete;

  caf::actor_system& system() { return system_; }
  actors::virtual_time_worker& worker() { return *worker_; }
  std::int64_t now_ns() const {
    return std::chrono::nanoseconds(scheduler_->clock().current_time.time_since_epoch()).count();
  }
  /// Time passes, and nothing that is due is delivered.
  void advance_ns(std::int64_t by) {
    scheduler_->clock().current_time += std::chrono::nanoseconds(by);
  }

  void run_ready() {
    while (worker_->run_one()) {
    }
  }
  /// The next message that is to come later, and what follows from it now; false where there is none.
  bool run_next() {
    if (!worker_->deliver_next()) return false;
    run_ready();
    return true;
  }
  /// Until nothing is left to happen.
  void run_all() {
    run_ready();
    while (run_next()) {
    }
  }

  /// The actor ends with this world.
  template <class Handle>
  Handle keep(Handle actor) {
    kept_.push_back(caf::actor_cast<caf::actor>(actor));
    return actor;
  }
  /// Sends, and lets what follows happen.
  template <class Handle, class Message>
  void tell(const Handle& to, Message message) {
    caf::anon_send(to, std::move(message));
    run_ready();
  }
  /// What the actor answers at once.
  template <class Answer, class Handle, class Query>
  Answer ask(const Handle& whom, Query query) {
    auto answer = std::make_shared<std::optional<Answer>>();
    const auto asker = keep(system_.spawn([=](caf::event_based_actor* self) {
      self->request(whom, caf::infinite, query).then([=](const Answer& told) { *answer = told; });
    }));
    run_ready();
    BOOST_REQUIRE(answer->has_value());
    return std::move(**answer);
  }

  using log = std::vector<caf::message>;
  std::shared_ptr<log> new_log() {
    logs_.push_back(std::make_shared<log>());
    return logs_.back();
  }

 private:
  static caf::actor_system_config& configure(caf::actor_system_config& config) {
    config.set("scheduler.policy", caf::atom("testing"));
    return config;
  }
  void forget() {
    for (const auto& each : logs_) each->clear();
  }

  caf::actor_system_config config_;
  caf::actor_system system_;
  caf::scheduler::test_coordinator* scheduler_ = nullptr;
  std::optional<actors::virtual_time_worker> worker_;
  std::vector<caf::actor> kept_;
  std::vector<std::shared_ptr<log>> logs_;
};

/// An actor that keeps what it is told, in order, and answers nothing. Several may share a log.
class probe {
 public:
  explicit probe(probe_world& world) : probe(world, world.new_log()) {}
  probe(probe_world& world, std::shared_ptr<probe_world::log> into)
      : log_(std::move(into)),
        ended_(std::make_shared<bool>(false)),
        actor_(world.keep(world.system().spawn([log = log_, ended = ended_](
                                                   caf::event_based_actor* self) -> caf::behavior {
          self->set_default_handler([log](caf::scheduled_actor*,
                                          caf::message_view& content) -> caf::result<caf::message> {
            log->push_back(content.move_content_to_message());
            return caf::delegated<caf::message>{};
          });
          self->set_exit_handler([ended](caf::exit_msg&) { *ended = true; });
          return {[](caf::unit_t) {}};
        }))) {}

  /// As whom the actor under test knows it.
  template <class Handle = caf::actor>
  Handle as() const {
    return caf::actor_cast<Handle>(caf::actor_cast<caf::strong_actor_ptr>(actor_));
  }

  template <class Message>
  std::vector<Message> all() const {
    std::vector<Message> found;
    for (const auto& each : *log_)
      if (each.match_elements<Message>()) found.push_back(each.get_as<Message>(0));
    return found;
  }
  /// The one message of this kind.
  template <class Message>
  Message only() const {
    auto found = all<Message>();
    BOOST_REQUIRE_EQUAL(found.size(), 1u);
    return std::move(found.front());
  }
  template <class Message>
  std::size_t count() const {
    return all<Message>().size();
  }
  /// The one message of this kind, which is forgotten with all that came before it.
  template <class Message>
  Message take() {
    auto found = only<Message>();
    forget();
    return found;
  }
  std::size_t heard() const { return log_->size(); }
  void forget() { log_->clear(); }
  /// Whether somebody told it to end.
  bool ended() const { return *ended_; }

 private:
  std::shared_ptr<probe_world::log> log_;
  std::shared_ptr<bool> ended_;
  caf::actor actor_;
};

}  // namespace ordermoe::test
