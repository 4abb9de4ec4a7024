#include <algorithm>
#include <boost/test/unit_test.hpp>

#include "test/actors/fixture.hpp"

namespace ordermoe {

namespace {

std::int64_t largest_need(const test::world& world) {
  std::size_t positions = 0;
  for (const auto& spec : world.setup.requests)
    positions = std::max(positions, spec.prompt.size() + spec.max_new_tokens);
  return static_cast<std::int64_t>(positions * world.setup.profile.n_layers) *
         world.setup.costs.kv_row_bytes;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(liveness)

BOOST_AUTO_TEST_CASE(
    with_kv_memory_for_one_request_every_request_is_answered_in_any_order_of_arrival) {
  for (const std::string strategy : {"exact", "layer-shards", "paper", "ordermoe"})
    for (std::uint64_t order = 1; order <= 3; ++order) {
      BOOST_TEST_CONTEXT(strategy << ", order " << order) {
        test::world world(strategy);
        world.add_requests(14, 6, 0);
        auto& requests = world.setup.requests;
        random_stream draws(order);
        for (std::size_t i = requests.size(); i > 1; --i)
          std::swap(requests[i - 1].arrival_ns, requests[draws.below(i)].arrival_ns);
        for (auto& server : world.setup.servers.servers) {
          const auto spare = server.kv_bytes - largest_need(world);
          server.kv_bytes -= spare;
          server.memory_bytes -= spare;
        }
        world.setup.chunk_rows = 3;
        const auto outcome = actors::run_requests(world.setup);
        BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
        BOOST_TEST(outcome->outcomes.size() == requests.size());
        for (const auto& server : outcome->servers)
          BOOST_TEST(server.kv_peak_bytes <= world.setup.servers.servers[server.server].kv_bytes);
      }
    }
}

BOOST_AUTO_TEST_CASE(a_request_that_never_fits_is_refused_with_the_server_and_the_bytes) {
  test::world world("exact");
  world.add_requests(2, 6, 0);
  for (auto& server : world.setup.servers.servers) server.kv_bytes = 1000;
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::infeasible));
  BOOST_TEST(outcome.error().message.find("bytes on server") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(without_kv_streaming_a_roaming_token_waits_for_ever_and_the_run_says_so) {
  test::world world("paper");
  world.add_requests(4, 8, 0);
  BOOST_REQUIRE(actors::run_requests(world.setup).has_value());
  world.setup.stream_kv = false;
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::timed_out));
}

BOOST_AUTO_TEST_CASE(prompts_that_do_not_fit_are_refused_with_the_request_named) {
  const auto refuse = [](auto change) {
    test::world world("exact");
    world.add_requests(3, 4, 0);
    change(world.setup.requests[1]);
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE(!outcome.has_value());
    BOOST_TEST((outcome.error().code == errc::out_of_range));
    BOOST_TEST(outcome.error().message.find("request 1") != std::string::npos);
  };
  refuse([](auto& spec) { spec.prompt.clear(); });
  refuse([](auto& spec) { spec.prompt.assign(1000, 5); });
  refuse([](auto& spec) { spec.prompt[0] = -1; });
  refuse([](auto& spec) { spec.prompt[0] = 1'000'000; });
  refuse([](auto& spec) { spec.access = 99; });
}

BOOST_AUTO_TEST_CASE(a_user_can_stop_a_run) {
  test::world world("exact");
  world.add_requests(40, 20, 0);
  world.setup.should_stop = [] { return true; };
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::interrupted));
}

BOOST_AUTO_TEST_CASE(stop_strings_end_an_answer_and_keep_the_budget_exact) {
  test::world world("ordermoe", 20);
  world.add_requests(6, 12, 1.0);
  const auto tokens = model::tokenizer::load(ORDERMOE_TEST_DATA "/mixtral-tiny");
  BOOST_REQUIRE(tokens.has_value());
  world.setup.tokens = *tokens;
  const auto free = actors::run_requests(world.setup);
  BOOST_REQUIRE(free.has_value());
  const auto longest =
      std::max_element(free->outcomes.begin(), free->outcomes.end(),
                       [](const auto& a, const auto& b) { return a.text.size() < b.text.size(); });
  BOOST_REQUIRE_GE(longest->text.size(), 2u);
  const auto stop = longest->text.substr(longest->text.size() / 2, 1);
  for (auto& spec : world.setup.requests) spec.stop_strings = {stop};
  const auto stopped = actors::run_requests(world.setup);
  BOOST_REQUIRE(stopped.has_value());
  bool any = false;
  for (const auto& answer : stopped->outcomes) {
    any = any || answer.finish == "stop_string";
    BOOST_TEST(answer.text.find(stop) == std::string::npos);
    BOOST_TEST(answer.spent <= answer.budget);
  }
  BOOST_TEST(any);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
