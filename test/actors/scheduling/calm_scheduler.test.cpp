#include "actors/scheduling/calm_scheduler.hpp"

#include <caf/after.hpp>
#include <caf/scoped_actor.hpp>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <future>
#include <thread>

namespace ordermoe {

namespace {

using namespace std::chrono_literals;

/// Counts what reaches it.
class counting_clock final : public caf::detail::thread_safe_actor_clock {
 public:
  void set_ordinary_timeout(time_point, caf::abstract_actor*, caf::atom_value,
                            std::uint64_t) override {
    ++set;
  }
  void set_request_timeout(time_point, caf::abstract_actor*, caf::message_id) override { ++set; }
  void cancel_timeouts(caf::abstract_actor*) override { ++cancelled; }
  int set = 0, cancelled = 0;
};

struct calm_system {
  caf::actor_system_config config;
  caf::actor_system system;
  calm_system() : system(config.load<actors::calm_scheduler>()) {}
};

caf::abstract_actor* raw(const caf::actor& of) {
  return caf::actor_cast<caf::abstract_actor*>(of);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(calm_scheduler)

BOOST_AUTO_TEST_CASE(the_clock_hears_of_the_end_of_those_that_had_a_timeout_and_once) {
  calm_system world;
  caf::scoped_actor one(world.system), two(world.system);
  counting_clock inner;
  actors::calm_clock clock(inner);
  const auto at = clock.now();
  clock.cancel_timeouts(raw(caf::actor_cast<caf::actor>(one)));
  BOOST_TEST(inner.cancelled == 0);
  clock.set_request_timeout(at, raw(caf::actor_cast<caf::actor>(one)), caf::make_message_id());
  clock.set_ordinary_timeout(at, raw(caf::actor_cast<caf::actor>(one)), caf::atom("any"), 1);
  BOOST_TEST(inner.set == 2);
  clock.cancel_timeouts(raw(caf::actor_cast<caf::actor>(two)));
  BOOST_TEST(inner.cancelled == 0);
  clock.cancel_timeouts(raw(caf::actor_cast<caf::actor>(one)));
  clock.cancel_timeouts(raw(caf::actor_cast<caf::actor>(one)));
  BOOST_TEST(inner.cancelled == 1);
}

BOOST_AUTO_TEST_CASE(a_system_takes_it_for_its_own_and_time_passes) {
  calm_system world;
  BOOST_REQUIRE(dynamic_cast<actors::calm_scheduler*>(&world.system.scheduler()) != nullptr);
  BOOST_TEST(dynamic_cast<actors::calm_clock*>(&world.system.clock()) != nullptr);
  // A message that is sent later, a request that nobody answers, and silence, each of an actor of its own.
  std::promise<void> later, request, silence;
  world.system.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    self->delayed_send(self, 5ms, 1);
    return {[&, self](int) {
      later.set_value();
      self->quit();
    }};
  });
  const auto mute = world.system.spawn([](caf::event_based_actor* self) -> caf::behavior {
    return {[self](int) { return self->make_response_promise<int>(); }};
  });
  world.system.spawn([&, mute](caf::event_based_actor* self) {
    self->request(mute, 5ms, 1).then([](int) {}, [&](caf::error&) { request.set_value(); });
  });
  world.system.spawn([&](caf::event_based_actor* self) -> caf::behavior {
    return {[](int) {}, caf::after(5ms) >>
                            [&, self] {
                              silence.set_value();
                              self->quit();
                            }};
  });
  for (auto* each : {&later, &request, &silence})
    BOOST_TEST((each->get_future().wait_for(10s) == std::future_status::ready));
  caf::anon_send_exit(mute, caf::exit_reason::user_shutdown);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
