#include "actors/service/console.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <chrono>

#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using namespace std::chrono_literals;

/// Two servers whose actors answer with numbers that tell them apart; server actors answer after or
/// before their compute and selector.
struct asked : test::probe_world {
  actors::console_actor console = keep(actors::spawn_console(system()));
  std::vector<std::shared_ptr<actors::server_view>> views;
  actors::planner_actor planner;
  actors::monitor_actor monitor;

  template <class Handle, class Answer>
  Handle answers(Answer with) {
    const auto actor = keep(system().spawn([with](caf::event_based_actor*) -> caf::behavior {
      return {[with](actors::status_query) { return with; }};
    }));
    return caf::actor_cast<Handle>(caf::actor_cast<caf::strong_actor_ptr>(actor));
  }

  asked() {
    for (std::uint32_t m = 0; m < 2; ++m) {
      auto view = std::make_shared<actors::server_view>();
      view->id = m;
      actors::edge_status edge;
      edge.content.server = m;
      edge.content.name = fmt::format("s{}", m);
      edge.content.reserved_bytes = 10 + m;
      edge.content.ledger.kv_peak_bytes = 20 + m;
      actors::compute_status compute;
      compute.ledger.server = m;
      compute.ledger.batches = 30 + m;
      compute.sequences = 40 + m;
      compute.waiting_batches = 50 + m;
      compute.wait_ns = 60 + m;
      actors::selector_status selector;
      selector.snapshot = 70 + m;
      selector.executions[1] = 80 + m;
      actors::link_status link;
      link.wait_ns = 90 + m;
      view->server = answers<actors::edge_server_actor>(edge);
      view->compute = answers<actors::compute_actor>(compute);
      view->selector = answers<actors::selector_actor>(selector);
      view->links.resize(2);
      view->links[1 - m] = answers<actors::link_actor>(link);
      views.push_back(std::move(view));
    }
    actors::planner_status plans;
    plans.epoch = 5;
    planner = answers<actors::planner_actor>(plans);
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(console)

BOOST_AUTO_TEST_CASE(a_job_runs_as_an_actor_and_not_before) {
  asked world;
  int runs = 0;
  caf::anon_send(world.console, actors::console_job{[&](actors::console_self* self) {
                   BOOST_TEST((caf::actor_cast<actors::console_actor>(self) == world.console));
                   ++runs;
                 }});
  BOOST_TEST(runs == 0);
  world.run_ready();
  BOOST_TEST(runs == 1);
}

BOOST_AUTO_TEST_CASE(a_status_is_put_together_from_what_every_actor_answers) {
  for (const std::uint64_t monitored : {0, 1}) {
    asked world;
    actors::observations observed;
    observed.requests = 99;
    if (monitored != 0) world.monitor = world.answers<actors::monitor_actor>(observed);
    const auto pending = std::make_shared<actors::pending_answer<actors::service_status>>();
    actors::ask_status(pending, world.views, world.planner, world.monitor, world.console);
    BOOST_TEST(!pending->complete());
    world.run_ready();
    BOOST_REQUIRE(pending->complete());
    const auto status = pending->take();
    BOOST_TEST(status.planner.epoch == 5u);
    BOOST_TEST(status.observed.has_value() == (monitored != 0));
    BOOST_REQUIRE_EQUAL(status.servers.size(), 2u);
    BOOST_REQUIRE_EQUAL(status.links.size(), 2u);
    for (std::uint32_t m = 0; m < 2; ++m) {
      const auto& server = status.servers[m];
      BOOST_TEST(server.name == fmt::format("s{}", m));
      BOOST_TEST(server.reserved_bytes == 10 + m);
      BOOST_TEST(server.ledger.kv_peak_bytes == 20 + m);
      BOOST_TEST(server.ledger.batches == 30 + m);
      BOOST_TEST(server.kv_sequences == 40 + m);
      BOOST_TEST(server.waiting_batches == 50 + m);
      BOOST_TEST(server.wait_ns == 60 + m);
      BOOST_TEST(server.snapshot == 70 + m);
      BOOST_TEST(server.executions[1] == 80 + m);
      BOOST_TEST(status.links[m].wait_ns == 90 + m);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_status_without_one_answer_stays_incomplete) {
  asked world;
  test::probe silent(world);
  world.views[1]->links[0] = silent.as<actors::link_actor>();
  const auto pending = std::make_shared<actors::pending_answer<actors::service_status>>();
  actors::ask_status(pending, world.views, world.planner, world.monitor, world.console);
  world.run_ready();
  BOOST_TEST(silent.count<actors::status_query>() == 1u);
  BOOST_TEST(!pending->complete());
  pending->wait(0ms);
  BOOST_TEST(!pending->complete());
}

BOOST_AUTO_TEST_CASE(the_history_is_what_the_recorder_knows) {
  asked world;
  actors::history known;
  known.problems.resize(3);
  const auto recorder =
      world.keep(world.system().spawn([known](caf::event_based_actor*) -> caf::behavior {
        return {[known](actors::history_query) { return known; }};
      }));
  const auto pending = std::make_shared<actors::pending_answer<actors::history>>();
  actors::ask_history(
      pending,
      caf::actor_cast<actors::recorder_actor>(caf::actor_cast<caf::strong_actor_ptr>(recorder)),
      world.console);
  world.run_ready();
  BOOST_REQUIRE(pending->complete());
  BOOST_TEST(pending->take().problems.size() == 3u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
