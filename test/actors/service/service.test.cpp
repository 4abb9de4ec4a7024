#include "actors/service/service.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <thread>

#include "actors/service/runtime.hpp"
#include "test/actors/living.hpp"

namespace ordermoe {

namespace {

std::unique_ptr<actors::service> started(const actors::service_options& options) {
  auto begun = actors::service::start(options);
  BOOST_REQUIRE_MESSAGE(begun.has_value(), (begun ? "" : begun.error().message));
  return std::move(*begun);
}

void answer_all(actors::service& service) {
  BOOST_REQUIRE(service.run_until([&] { return service.outstanding() == 0; }));
}

actors::service_status status_of(actors::service& service) {
  auto status = service.status();
  BOOST_REQUIRE_MESSAGE(status.has_value(), (status ? "" : status.error().message));
  return std::move(*status);
}

void check_rest(actors::service& service) {
  BOOST_REQUIRE(service.settle().has_value());
  BOOST_TEST(test::left_behind(status_of(service)) == "");
}

/// A request of its own to the world's model.
actors::request_spec some_request(const test::world& world, std::uint32_t access,
                                  std::uint32_t new_tokens = 6) {
  actors::request_spec spec;
  spec.access = access;
  spec.prompt = {5, 6, 7, 8, 9};
  spec.max_new_tokens = new_tokens;
  static_cast<void>(world);
  return spec;
}

const std::vector<actors::run_mode> both_clocks{actors::run_mode::emulated,
                                                actors::run_mode::local};

}  // namespace

BOOST_AUTO_TEST_SUITE(service)

BOOST_AUTO_TEST_CASE(requests_that_hardly_ever_come_come_in_order_all_the_same) {
  const test::world asked("exact", 0, 1, 2);
  for (const double rate : {1e-300, 1e-9, 1e6}) {
    std::vector<actors::request_spec> requests(20);
    actors::draw_arrivals(requests, asked.setup.servers, rate, 3);
    BOOST_TEST(requests.front().arrival_ns >= 0);
    BOOST_TEST(std::ranges::is_sorted(requests, {}, &actors::request_spec::arrival_ns));
  }
}

BOOST_AUTO_TEST_CASE(requests_come_at_any_time_and_are_answered_token_by_token) {
  for (const auto mode : both_clocks) {
    BOOST_TEST_CONTEXT(to_string(mode)) {
      test::world world("exact");
      world.setup.mode = mode;
      const auto service = started(world.setup);
      for (std::uint64_t round = 0; round < 3; ++round) {
        test::followed_request request;
        request.spec = some_request(world, static_cast<std::uint32_t>(round));
        BOOST_TEST(service->submit(request.spec, request.sink()) == round);
        answer_all(*service);
        BOOST_TEST(request.mistake == "");
        BOOST_TEST(request.streamed == test::reference_ids(*world.setup.model, request.spec, round),
                   boost::test_tools::per_element());
        BOOST_TEST(request.ended->finish == "length");
      }
      check_rest(*service);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_request_that_cannot_be_answered_is_told_why_and_others_go_on) {
  test::world world("exact");
  const auto service = started(world.setup);
  const auto refused = [&](auto change) {
    test::followed_request bad;
    bad.spec = some_request(world, 1);
    change(bad.spec);
    service->submit(bad.spec, bad.sink());
    answer_all(*service);
    BOOST_REQUIRE(bad.ended->problem.has_value());
    return bad.ended->problem->message;
  };
  const auto says = [](const std::string& text, const std::string& words) {
    return text.find(words) != std::string::npos;
  };
  BOOST_TEST(says(refused([](auto& spec) { spec.prompt.clear(); }), "no tokens"));
  BOOST_TEST(says(refused([](auto& spec) { spec.prompt[0] = 1 << 30; }), "vocabulary"));
  BOOST_TEST(says(refused([](auto& spec) { spec.access = 99; }), "99"));
  BOOST_TEST(says(refused([](auto& spec) { spec.max_new_tokens = 1u << 30; }), "positions"));
  BOOST_TEST(says(refused([](auto& spec) { spec.temperature = -1; }), "temperature"));
  test::followed_request good;
  good.spec = some_request(world, 0);
  const auto number = service->submit(good.spec, good.sink());
  answer_all(*service);
  BOOST_TEST(good.streamed == test::reference_ids(*world.setup.model, good.spec, number),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_cancelled_request_frees_its_memory_and_tokens_at_once) {
  test::world world("paper");
  const auto service = started(world.setup);
  test::followed_request request;
  request.spec = some_request(world, 0, 40);
  const auto number = service->submit(request.spec, request.sink());
  service->run_until([&] { return request.streamed.size() == 3; });
  std::int64_t reserved = 0;
  for (const auto& server : status_of(*service).servers) reserved += server.reserved_bytes;
  BOOST_TEST(reserved > 0);
  const auto before = service->now_ns();
  service->cancel(number);
  answer_all(*service);
  BOOST_TEST(request.ended->finish == "cancelled");
  BOOST_TEST(!request.ended->problem.has_value());
  BOOST_TEST(request.streamed.size() == 3u);
  BOOST_TEST(request.mistake == "");
  // Members hear of it by a message: what is left lasts as long as the slowest link.
  check_rest(*service);
  BOOST_TEST(service->now_ns() - before < 100'000'000);
}

BOOST_AUTO_TEST_CASE(a_request_ends_by_its_own_deadline_in_both_clocks) {
  for (const auto mode : both_clocks) {
    BOOST_TEST_CONTEXT(to_string(mode)) {
      test::world world("paper");
      world.setup.mode = mode;
      world.setup.stream_kv = false;  // Tokens wait for rows that never come.
      const auto service = started(world.setup);
      test::followed_request stuck;
      stuck.spec = some_request(world, 0, 30);
      stuck.spec.deadline_ns = 300'000'000;
      service->submit(stuck.spec, stuck.sink());
      answer_all(*service);
      BOOST_REQUIRE(stuck.ended->problem.has_value());
      BOOST_TEST((stuck.ended->problem->code == errc::timed_out));
      BOOST_TEST(stuck.ended->done_ns - stuck.ended->arrival_ns >= 300'000'000);
      if (mode == actors::run_mode::emulated)
        BOOST_TEST(stuck.ended->done_ns - stuck.ended->arrival_ns == 300'000'000);
      check_rest(*service);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_request_that_comes_between_hold_and_resume_is_held) {
  // Moving weights takes minutes of virtual time: what arrives meanwhile waits for it.
  test::world world("exact");
  const auto service = started(world.setup);
  std::vector<test::followed_request> requests(6);
  actors::replan_order order;
  order.strategy = "layer-shards";
  requests[0].spec = some_request(world, 0, 20);
  service->submit(requests[0].spec, requests[0].sink());
  service->run_until([&] { return requests[0].streamed.size() == 2; });
  service->change_plan(order);
  for (std::size_t i = 1; i < requests.size(); ++i) {
    requests[i].spec = some_request(world, static_cast<std::uint32_t>(i % 5));
    requests[i].spec.arrival_ns = service->now_ns() + static_cast<std::int64_t>(i) * 1'000'000'000;
    service->submit(requests[i].spec, requests[i].sink());
  }
  answer_all(*service);
  const auto history = service->history();
  BOOST_REQUIRE(history.has_value());
  BOOST_REQUIRE_EQUAL(history->plan_changes.size(), 1u);
  const auto& change = history->plan_changes[0];
  BOOST_REQUIRE_MESSAGE(change.refused.empty(), change.refused);
  std::size_t held = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const auto& one = requests[i];
    BOOST_TEST(one.mistake == "");
    BOOST_TEST(one.streamed == test::reference_ids(*world.setup.model, one.spec, i),
               boost::test_tools::per_element());
    if (one.ended->arrival_ns > change.asked_ns && one.ended->arrival_ns < change.done_ns) {
      ++held;
      BOOST_TEST(one.ended->first_token_ns > change.done_ns);
    }
  }
  BOOST_TEST(held >= 2u);
  check_rest(*service);
}

BOOST_AUTO_TEST_CASE(another_policy_decides_from_then_on_and_what_cannot_be_is_refused) {
  test::world world("layer-shards");
  const auto service = started(world.setup);
  actors::policy_order order;
  order.policy = world.setup.chosen.policy;
  order.policy.horizon = 0;
  service->change_policy(order);
  order.policy.candidates = planning::candidate_rule::group;  // The plan has no groups.
  service->change_policy(order);
  test::followed_request request;
  request.spec = some_request(world, 2);
  service->submit(request.spec, request.sink());
  answer_all(*service);
  BOOST_TEST(request.streamed == test::reference_ids(*world.setup.model, request.spec, 0),
             boost::test_tools::per_element());
  const auto history = service->history();
  BOOST_REQUIRE(history.has_value());
  BOOST_REQUIRE_EQUAL(history->policy_changes.size(), 2u);
  BOOST_TEST(history->policy_changes[0].refused == "");
  BOOST_TEST(history->policy_changes[0].version == 1u);
  BOOST_TEST(history->policy_changes[1].refused.find("group") != std::string::npos);
  for (const auto& server : status_of(*service).servers) BOOST_TEST(server.policy == 1u);
}

BOOST_AUTO_TEST_CASE(the_sampling_stream_and_not_the_number_makes_the_answer) {
  test::world world("exact");
  const auto service = started(world.setup);
  std::vector<test::followed_request> requests(3);
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].spec = some_request(world, 0, 12);
    requests[i].spec.temperature = 1;
    if (i < 2) requests[i].spec.sampling_stream = 77;
    service->submit(requests[i].spec, requests[i].sink());
  }
  answer_all(*service);
  BOOST_TEST(requests[0].streamed == requests[1].streamed, boost::test_tools::per_element());
  BOOST_TEST((requests[2].streamed != requests[1].streamed));
}

BOOST_AUTO_TEST_CASE(a_stalled_emulation_ends_although_loads_are_told) {
  test::world world("paper");
  world.setup.stream_kv = false;
  world.add_requests(4, 8, 0);
  world.setup.request_timeout_ns = 60'000'000'000;
  const auto service = started(world.setup);
  std::size_t failed = 0;
  for (const auto& spec : world.setup.requests)
    service->submit(spec, {{}, [&](const actors::request_outcome& outcome) {
                             failed += outcome.problem.has_value();
                           }});
  answer_all(*service);
  BOOST_TEST(failed > 0u);
  check_rest(*service);
}

BOOST_AUTO_TEST_CASE(what_a_client_throws_harms_nobody) {
  test::world world("exact");
  const auto service = started(world.setup);
  test::followed_request quiet;
  quiet.spec = some_request(world, 0);
  service->submit(quiet.spec, {[](const auto&) { throw std::runtime_error("from a client"); },
                               [](const auto&) { throw std::runtime_error("from a client"); }});
  service->submit(quiet.spec, quiet.sink());
  answer_all(*service);
  BOOST_TEST(quiet.streamed == test::reference_ids(*world.setup.model, quiet.spec, 1),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(options_that_do_not_fit_together_are_refused) {
  const auto refused = [](auto change) {
    test::world world("exact");
    change(world.setup);
    const auto begun = actors::service::start(world.setup);
    return begun ? std::string() : begun.error().message;
  };
  BOOST_TEST(refused([](auto& setup) { setup.threads_per_server = 0; }) != "");
  BOOST_TEST(refused([](auto& setup) { setup.chunk_rows = 0; }) != "");
  BOOST_TEST(refused([](auto& setup) { setup.server_models.push_back(setup.model); }) != "");
  BOOST_TEST(refused([](auto& setup) {
               setup.promised_positions.assign(5, 1u << 28);
             }).find("KV rows") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_service_that_is_stopped_ends_with_requests_in_flight) {
  for (const auto mode : both_clocks)
    for (int i = 0; i < 10; ++i) {
      test::world world("paper");
      world.setup.mode = mode;
      const auto service = started(world.setup);
      for (std::uint32_t access = 0; access < 5; ++access)
        service->submit(some_request(world, access, 40), {});
      // Asked after every job in virtual time, every 10 ms on the wall clock.
      int asked = 0;
      const int most = mode == actors::run_mode::emulated ? 200 * i : i / 3;
      service->run_until([&] { return ++asked > most; });
      service->stop();
    }
}

BOOST_AUTO_TEST_CASE(rehearsed_devices_take_what_is_charged_and_count_where_they_took_longer) {
  test::world world("exact");
  world.setup.mode = actors::run_mode::local;
  world.setup.rehearsed = rehearsal{};
  const auto service = started(world.setup);
  BOOST_TEST(service->rehearsed()->batches == 0u);
  service->submit(some_request(world, 0), {});
  answer_all(*service);
  const auto told = *service->rehearsed();
  std::int64_t busy_ns = 0, batches = 0;
  for (const auto& server : status_of(*service).servers) {
    busy_ns += server.ledger.busy_ns;
    batches += server.ledger.batches;
  }
  BOOST_TEST(batches > 0);
  BOOST_TEST(told.batches == static_cast<std::uint64_t>(batches));
  BOOST_TEST(told.charged_ns > 0);
  // What a batch takes is its charge, or as much more as is counted.
  BOOST_TEST(busy_ns == told.charged_ns + told.exceeded_ns);
  BOOST_TEST((told.exceeded == 0) == (told.exceeded_ns == 0));

  // Of a model that is charged nearly nothing every batch takes longer.
  world.setup.costs = {};
  world.setup.costs.kv_row_bytes = 1;
  const auto hurried = started(world.setup);
  hurried->submit(some_request(world, 0), {});
  answer_all(*hurried);
  BOOST_TEST(hurried->rehearsed()->batches > 0u);
  BOOST_TEST(hurried->rehearsed()->exceeded == hurried->rehearsed()->batches);
  BOOST_TEST(hurried->rehearsed()->most_exceeded_ns > 0);
}

BOOST_AUTO_TEST_CASE(waits_of_a_dilated_rehearsal_are_told_as_charged_and_its_end_waits_for_none) {
  test::world world("exact");
  world.setup.mode = actors::run_mode::local;
  world.setup.rehearsed = rehearsal{1000, 1};
  const auto service = started(world.setup);
  service->submit(some_request(world, 0), {});
  std::int64_t most_ns = 0;
  for (int seen = 0; seen < 20;) {
    for (const auto& server : status_of(*service).servers) {
      most_ns = std::max(most_ns, server.wait_ns);
      seen += server.wait_ns > 0 ? 1 : 0;
    }
    std::this_thread::yield();
  }
  // A batch is charged a few hundred microseconds and takes as many milliseconds on the clock.
  BOOST_TEST(most_ns > 0);
  BOOST_TEST(most_ns < 20'000'000);
  BOOST_TEST(service->outstanding() == 1u);
  service->stop();
}

BOOST_AUTO_TEST_CASE(virtual_time_is_not_rehearsed) {
  test::world world("exact");
  world.setup.rehearsed = rehearsal{};
  const auto begun = actors::service::start(world.setup);
  BOOST_REQUIRE(!begun.has_value());
  BOOST_TEST(begun.error().message.find("virtual time") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
