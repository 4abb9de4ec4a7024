#include <malloc.h>

#include <boost/test/unit_test.hpp>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <filesystem>
#include <future>
#include <iterator>
#include <thread>

#include "actors/scheduling/caf.hpp"
#include "test/actors/living.hpp"

/// A service in the actor system of somebody else, and services whose threads come and go.
namespace ordermoe {

namespace {

struct host_system {
  caf::actor_system_config config;
  caf::actor_system system;
  host_system() : system(two_threads(config)) {}
  static caf::actor_system_config& two_threads(caf::actor_system_config& config) {
    config.set("scheduler.max-threads", 2u);
    return config;
  }
  std::size_t n_actors() { return system.registry().running(); }
};

std::size_t threads_of_this_process() {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
}

actors::service_options options_in(caf::actor_system* system, const test::world& world) {
  actors::service_options options = world.setup;
  options.mode = actors::run_mode::local;
  options.system = system;
  return options;
}

std::unique_ptr<actors::service> started(const actors::service_options& options) {
  auto begun = actors::service::start(options);
  BOOST_REQUIRE_MESSAGE(begun.has_value(), (begun ? "" : begun.error().message));
  return std::move(*begun);
}

test::followed_request some_request(std::uint32_t access, std::uint32_t new_tokens = 5) {
  test::followed_request request;
  request.spec.access = access;
  request.spec.prompt = {5, 6, 7, 8, 9};
  request.spec.max_new_tokens = new_tokens;
  request.spec.sampling_stream = 0;
  return request;
}

void check_answer(actors::service& service, const model::transformer& model, std::uint32_t access) {
  auto request = some_request(access);
  service.submit(request.spec, request.sink());
  BOOST_REQUIRE(service.run_until([&] { return service.outstanding() == 0; }));
  BOOST_TEST(request.mistake == "");
  BOOST_TEST(request.streamed == test::reference_ids(model, request.spec, 0),
             boost::test_tools::per_element());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(host_system)

BOOST_AUTO_TEST_CASE(a_service_answers_in_the_hosts_system_and_leaves_no_actor_there) {
  struct host_system host;
  const auto before = host.n_actors();
  const test::world world("paper");
  const auto service = started(options_in(&host.system, world));
  BOOST_TEST(host.n_actors() > before + 3 * world.setup.servers.size());
  for (std::uint32_t access = 0; access < 3; ++access)
    check_answer(*service, *world.setup.model, access);
  BOOST_REQUIRE(service->settle().has_value());
  BOOST_TEST(test::left_behind(*service->status()) == "");
  service->stop();
  BOOST_TEST(host.n_actors() == before);
}

BOOST_AUTO_TEST_CASE(two_services_share_the_hosts_system_and_end_one_by_one) {
  struct host_system host;
  const auto before = host.n_actors();
  const test::world first("exact"), second("paper", 5, 2);
  const auto one = started(options_in(&host.system, first));
  const auto two = started(options_in(&host.system, second));
  auto of_one = some_request(0, 12), of_two = some_request(1, 12);
  one->submit(of_one.spec, of_one.sink());
  two->submit(of_two.spec, of_two.sink());
  BOOST_REQUIRE(one->run_until([&] { return one->outstanding() == 0; }));
  one->stop();
  BOOST_TEST(host.n_actors() > before);
  BOOST_REQUIRE(two->run_until([&] { return two->outstanding() == 0; }));
  BOOST_TEST((of_one.mistake + of_two.mistake) == "");
  BOOST_TEST(of_one.ended->finish == "length");
  BOOST_TEST(of_two.ended->finish == "length");
  two->stop();
  BOOST_TEST(host.n_actors() == before);
}

BOOST_AUTO_TEST_CASE(two_hundred_starts_and_stops_leave_no_actor_thread_or_memory_behind) {
  struct host_system host;
  const auto actors_before = host.n_actors();
  const test::world world("exact", 0, 1, 3);
  const auto options = options_in(&host.system, world);
  const auto cycle = [&](std::uint32_t i) {
    const auto service = started(options);
    // Every other one is stopped while it answers.
    auto request = some_request(i % 3, i % 2 == 0 ? 2 : 50);
    request.spec.ignore_end_of_text = true;
    std::promise<void> first_token;
    service->submit(request.spec, {[&](const actors::answer_token& token) {
                                     if (token.index == 0) first_token.set_value();
                                   },
                                   {}});
    BOOST_REQUIRE(first_token.get_future().wait_for(std::chrono::seconds(60)) ==
                  std::future_status::ready);
    if (i % 2 == 0) service->run_until([&] { return service->outstanding() == 0; });
    service->stop();
    BOOST_TEST(host.n_actors() == actors_before);
  };
  constexpr std::uint32_t n = 200, warm_up = 40;
  const auto threads = threads_of_this_process();
  std::size_t early = 0;
  for (std::uint32_t i = 0; i < n; ++i) {
    cycle(i);
    if (i + 1 == warm_up) {
      early = ::mallinfo2().uordblks;
    }
  }
  const auto late = ::mallinfo2().uordblks;
  BOOST_TEST_MESSAGE("after " << warm_up << " starts " << early << " bytes and " << threads
                              << " threads, after " << n << " " << late);
  // One service is some hundred actors and a megabyte. What is left, some 6 kB of each start, is timers that have not rung:
  // they do, two and a half minutes later at most.
  constexpr double most_bytes_a_start = 16'384;
  BOOST_TEST(static_cast<double>(late) - static_cast<double>(early) <
             most_bytes_a_start * (n - warm_up));
  // A detached actor's thread ends a moment after it.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (threads_of_this_process() > threads && std::chrono::steady_clock::now() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  BOOST_TEST(threads_of_this_process() <= threads);
}

BOOST_AUTO_TEST_CASE(virtual_time_is_refused_in_the_hosts_system) {
  struct host_system host;
  const test::world world("exact");
  auto options = options_in(&host.system, world);
  options.mode = actors::run_mode::emulated;
  const auto refused = actors::service::start(options);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::unsupported));
  BOOST_TEST(refused.error().message.find("wall clock") != std::string::npos);
}

/// CAF's systems wait at their end for every thread that spawned in them and is still there.
BOOST_AUTO_TEST_CASE(a_thread_that_started_a_service_may_outlive_it) {
  const test::world world("exact");
  std::promise<std::unique_ptr<actors::service>> made;
  std::promise<void> ended;
  std::thread starter([&, wait = ended.get_future()] {
    made.set_value(started(options_in(nullptr, world)));
    wait.wait();
  });
  auto service = made.get_future().get();
  check_answer(*service, *world.setup.model, 0);
  service->stop();
  service.reset();
  ended.set_value();
  starter.join();
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
