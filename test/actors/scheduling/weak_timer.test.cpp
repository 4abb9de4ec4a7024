#include "actors/scheduling/weak_timer.hpp"

#include <boost/test/unit_test.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <chrono>
#include <future>
#include <thread>

namespace ordermoe {

namespace {

struct bell {
  int number = 0;
};

using bell_actor = caf::typed_actor<caf::reacts_to<bell>>;

constexpr std::int64_t an_hour_ns = 3'600'000'000'000;

}  // namespace

}  // namespace ordermoe

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::bell)

namespace ordermoe {

BOOST_AUTO_TEST_SUITE(weak_timer)

BOOST_AUTO_TEST_CASE(messages_come_by_time) {
  caf::actor_system_config config;
  caf::actor_system system(config);
  std::vector<int> rung;
  std::promise<void> third;
  const bell_actor actor = system.spawn([&](bell_actor::pointer) -> bell_actor::behavior_type {
    return {[&](const bell& each) {
      rung.push_back(each.number);
      if (rung.size() == 3) third.set_value();
    }};
  });
  actors::send_by_clock(actor, 20'000'000, bell{3});
  actors::send_by_clock(actor, 1'000'000, bell{2});
  actors::send_by_clock(actor, 0, bell{1});
  third.get_future().wait();
  BOOST_TEST(rung == (std::vector<int>{1, 2, 3}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_receiver_that_has_ended_is_not_kept_until_the_time) {
  caf::actor_system_config config;
  caf::actor_system system(config);
  const auto held = std::make_shared<int>(0);
  bell_actor actor =
      system.spawn<caf::detached>([held](bell_actor::pointer) -> bell_actor::behavior_type {
        return {[held](const bell&) {}};
      });
  const caf::weak_actor_ptr seen(caf::actor_cast<caf::strong_actor_ptr>(actor).get());
  actors::send_by_clock(actor, an_hour_ns, bell{});
  BOOST_TEST((seen.lock() != nullptr));
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  actor = nullptr;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (seen.lock() != nullptr) {
    BOOST_REQUIRE(std::chrono::steady_clock::now() < limit);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
