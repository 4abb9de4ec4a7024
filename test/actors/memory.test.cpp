#include <malloc.h>

#include <boost/test/unit_test.hpp>

#include "test/actors/living.hpp"
#include "test/support/seeds.hpp"

/// What stays in memory, and for how long.
namespace ordermoe {

namespace {

std::size_t bytes_in_use() {
  return ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
}

/// Answers so many more requests, and forgets what came of them.
void answer_requests(actors::service& service, const test::world& world, std::uint64_t n) {
  constexpr std::size_t n_at_once = 4;
  std::size_t answered = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    auto spec = world.setup.requests[i % world.setup.requests.size()];
    spec.arrival_ns = 0;
    service.submit(spec, {{}, [&answered](const actors::request_outcome& outcome) {
                            answered += outcome.problem ? 0 : 1;
                          }});
    service.run_until([&] { return service.outstanding() < n_at_once; });
  }
  service.run_until([&] { return service.outstanding() == 0; });
  BOOST_TEST(answered == n);
}

test::world small_world() {
  test::world world("exact");
  world.setup.keep_final_hidden = false;
  world.add_requests(8, 2, 0, 4);
  return world;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(memory)

/// `scripts/campaign memory` answers 100,000.
BOOST_AUTO_TEST_CASE(answered_requests_leave_no_memory_behind) {
  const auto world = small_world();
  auto begun = actors::service::start(world.setup);
  BOOST_REQUIRE(begun.has_value());
  auto& service = **begun;
  const auto n = test::count(4000);
  answer_requests(service, world, n / 100);
  const auto early = bytes_in_use();
  answer_requests(service, world, n - n / 100);
  const auto late = bytes_in_use();
  BOOST_TEST_MESSAGE("after " << n / 100 << " requests " << early << " bytes, after " << n << " "
                              << late);
  // Buffers grow to the largest that they ever held; less than a tenth of a byte a request is no
  // memory of requests.
  const auto grown = static_cast<double>(late) - static_cast<double>(early);
  BOOST_TEST(grown < std::max(65536.0, 0.1 * static_cast<double>(n)));
  BOOST_TEST(test::left_behind(*service.status()).empty());
}

BOOST_AUTO_TEST_CASE(a_cancelled_request_leaves_its_servers_at_once) {
  auto world = small_world();
  auto begun = actors::service::start(world.setup);
  BOOST_REQUIRE(begun.has_value());
  auto& service = **begun;
  auto spec = world.setup.requests[0];
  spec.arrival_ns = 0;
  spec.max_new_tokens = 50;
  spec.ignore_end_of_text = true;
  std::size_t tokens = 0;
  bool ended = false;
  const auto number = service.submit(spec, {[&](const actors::answer_token&) { ++tokens; },
                                            [&](const actors::request_outcome&) { ended = true; }});
  service.run_until([&] { return tokens == 10; });
  const auto busy = service.status();
  BOOST_REQUIRE(busy.has_value());
  BOOST_TEST(!test::left_behind(*busy).empty());
  const auto asked_ns = service.now_ns();
  service.cancel(number);
  service.run_until([&] { return ended; });
  BOOST_TEST(service.now_ns() == asked_ns);
  // Other servers hear of it as fast as the links are.
  service.run_until([&] { return service.now_ns() > asked_ns + 100'000'000; });
  BOOST_TEST(test::left_behind(*service.status()) == "");
}

/// `scripts/campaign memory` does it a thousand times, with LeakSanitizer.
BOOST_AUTO_TEST_CASE(services_that_were_stopped_leave_no_memory_behind) {
  auto world = small_world();
  const auto once = [&](actors::run_mode mode) {
    world.setup.mode = mode;
    auto begun = actors::service::start(world.setup);
    BOOST_REQUIRE(begun.has_value());
    auto& service = **begun;
    for (const auto& spec : world.setup.requests) service.submit(spec, {});
    service.run_until([&] { return service.outstanding() < 4; });
    // Stopped with requests that are being answered.
    service.stop();
  };
  const auto n = test::count(40);
  for (std::uint64_t i = 0; i < 10; ++i) once(actors::run_mode::emulated);
  const auto early = bytes_in_use();
  for (std::uint64_t i = 0; i < n; ++i) once(actors::run_mode::emulated);
  const auto late = bytes_in_use();
  BOOST_TEST_MESSAGE("after 10 services " << early << " bytes, after " << n << " more " << late);
  BOOST_TEST(static_cast<double>(late) < static_cast<double>(early) + 65536.0);
  for (std::uint64_t i = 0; i < n; ++i) once(actors::run_mode::local);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
