#include "actors/session_network.hpp"

#include <boost/test/unit_test.hpp>

#include "test/actors/living.hpp"

namespace ordermoe {

namespace {

constexpr std::int64_t ms = 1'000'000;

/// A service whose servers talk over sessions, and requests that are asked once they are connected.
struct connected_servers {
  test::world world{"exact"};
  std::unique_ptr<actors::service> service;
  std::vector<test::followed_request> requests;

  connected_servers() {
    auto& setup = world.setup;
    setup.chosen.plan.residence =
        planning::roaming_residency(setup.servers.size(), setup.profile.n_layers);
    world.add_requests(6, 6, 0.8);
    actors::service_options options = setup;
    options.sessions.emplace();
    auto begun = actors::service::start(options);
    BOOST_REQUIRE_MESSAGE(begun.has_value(), (begun ? "" : begun.error().message));
    service = std::move(*begun);
    for (std::size_t i = 0; i < setup.requests.size(); ++i) {
      requests.emplace_back();
      requests.back().spec = setup.requests[i];
      requests.back().spec.sampling_stream = i;
    }
  }
  void run_to(std::int64_t time_ns) {
    bool there = false;
    service->at(time_ns, [&] { there = true; });
    BOOST_REQUIRE(service->run_until([&] { return there; }));
  }
  /// Asks it, once and now, and waits for its end.
  const actors::request_outcome& answer(std::size_t which) {
    auto& one = requests[which];
    one.spec.arrival_ns = 0;
    service->submit(one.spec, one.sink());
    BOOST_REQUIRE(service->run_until([&] { return one.ended.has_value(); }));
    return *one.ended;
  }
  bool is_reference(std::size_t which) const {
    return requests[which].streamed ==
           test::reference_ids(*world.setup.model, requests[which].spec, which);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(session_network)

BOOST_AUTO_TEST_CASE(servers_that_are_connected_answer_as_the_reference_and_rest_afterwards) {
  connected_servers servers;
  servers.run_to(300 * ms);
  for (std::size_t i = 0; i < servers.requests.size(); ++i) {
    BOOST_TEST(!servers.answer(i).problem.has_value());
    BOOST_TEST(servers.is_reference(i));
  }
  BOOST_REQUIRE(servers.service->settle().has_value());
  const auto sessions = servers.service->sessions();
  BOOST_TEST(sessions.at_rest);
  BOOST_TEST(sessions.broken == "");
  BOOST_TEST(sessions.counts.frames > 200u);
  // Two for each pair.
  BOOST_TEST(sessions.counts.connections == 20u);
  BOOST_TEST(sessions.counts.downs == 0u);
  BOOST_TEST(test::left_behind(*servers.service->status()) == "");
}

BOOST_AUTO_TEST_CASE(before_servers_are_connected_a_request_that_needs_another_one_ends) {
  connected_servers servers;
  const auto& end = servers.answer(0);
  BOOST_REQUIRE(end.problem.has_value());
  BOOST_TEST(end.problem->message.find("is not connected") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_server_that_crashes_is_missed_and_when_it_is_back_it_serves) {
  connected_servers servers;
  servers.run_to(300 * ms);
  servers.service->crash(2, net::simulated_pair::ending::process);
  servers.run_to(400 * ms);
  std::size_t asked = 0;
  while (servers.requests[asked].spec.access == 2) ++asked;
  const auto& missed = servers.answer(asked);
  BOOST_REQUIRE(missed.problem.has_value());
  servers.run_to(4000 * ms);
  servers.requests[asked + 1].spec.access = servers.requests[asked].spec.access;
  const auto& away = servers.answer(asked + 1);
  BOOST_REQUIRE(away.problem.has_value());
  BOOST_TEST(away.problem->message.find("server 2 (") != std::string::npos);
  servers.service->start_again(2, actors::boot_count::kept);
  servers.run_to(8000 * ms);
  for (auto i = asked + 2; i < servers.requests.size(); ++i) {
    servers.requests[i].spec.access = 2;
    BOOST_TEST(!servers.answer(i).problem.has_value());
    BOOST_TEST(servers.is_reference(i));
  }
  BOOST_REQUIRE(servers.service->settle().has_value());
  BOOST_TEST(test::left_behind(*servers.service->status()) == "");
}

BOOST_AUTO_TEST_CASE(sessions_are_simulated_in_emulated_mode_alone) {
  test::world world("exact");
  actors::service_options options = world.setup;
  options.sessions.emplace();
  options.mode = actors::run_mode::local;
  auto refused = actors::service::start(options);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::unsupported));
  options.mode = actors::run_mode::emulated;
  options.bad_links.seed = 1;
  BOOST_TEST(!actors::service::start(options).has_value());
  options.bad_links.seed = 0;
  options.servers.servers[1].uplink_bytes_per_s = 1e9;
  refused = actors::service::start(options);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("uplink") != std::string::npos, refused.error().message);
  options.servers.servers[1].uplink_bytes_per_s = 0;
  options.sessions->wire.chunk_bytes = 0;
  refused = actors::service::start(options);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::out_of_range));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
