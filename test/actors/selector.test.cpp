#include <boost/test/unit_test.hpp>
#include <numeric>

#include "actors/server_actors.hpp"
#include "test/actors/probe_server.hpp"

namespace ordermoe {

namespace {

using actors::decided;

struct one_selector : test::probe_server {
  actors::selector_actor selecting = keep(actors::spawn_selector(system(), id));

  void attach() { tell(selecting, actors::decide_by{view, {view->placed}}); }
  /// Another plan: every expert of every layer on the servers of the mask.
  void place_everywhere(std::uint64_t epoch, planning::server_mask on) {
    auto content = plan();
    content.experts.clear();
    for (std::uint32_t m = 0; m < n_servers; ++m)
      for (std::uint32_t layer = 0; layer < n_layers; ++layer)
        for (std::uint32_t expert = 0; expert < n_experts; ++expert)
          if ((on >> m) & 1u) {
            planning::placed_expert each;
            each.server = server_id{m};
            each.layer = layer_id{layer};
            each.expert = expert_id{expert};
            content.experts.push_back(each);
          }
    auto next = std::make_shared<actors::server_view>(*view);
    next->placed = plan_of_epoch(epoch, std::move(content));
    view = next;
    attach();
  }
  actors::selector_status status() {
    return ask<actors::selector_status>(selecting, actors::status_query{});
  }
  /// A row that wants experts 4 and 2 at layer 1, of a user of server 1.
  actors::select_query query(std::uint64_t request = 7) const {
    actors::select_query made;
    made.token = token.as<actors::token_actor>();
    made.epoch = view->placed->plan.epoch;
    made.key.request = request;
    made.access = 1;
    made.layer = 1;
    made.hidden = {1, 2};
    made.normed = {3, 4};
    made.logits = {0, 0, 2, 0, 3, 0};
    made.allowance = {0};
    made.decodes = true;
    return made;
  }
  decided decide() {
    tell(selecting, actors::select_batch{{query()}});
    return token.take<decided>();
  }
  /// Everything waits this long at a server.
  void load(std::uint32_t server, std::uint64_t number, std::int64_t wait_ns) {
    tell(selecting, wire::load_report{server, number, wait_ns, {0, 0, 0}});
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(selector)

BOOST_AUTO_TEST_CASE(each_token_of_a_batch_hears_what_runs_where_and_gets_its_rows_back) {
  one_selector world;
  world.attach();
  test::probe other(world);
  auto second = world.query();
  second.token = other.as<actors::token_actor>();
  second.logits = {9, 0, 0, 8, 0, 0};
  second.hidden = {5, 6};
  second.normed = {7, 8};
  world.tell(world.selecting, actors::select_batch{{world.query(), second}});
  const auto first_answer = world.token.only<decided>();
  const auto second_answer = other.only<decided>();
  BOOST_REQUIRE_EQUAL(first_answer.choice.rows.size(), 1u);
  const auto& row = first_answer.choice.rows[0];
  BOOST_REQUIRE_EQUAL(row.executed.size(), 2u);
  BOOST_TEST(row.executed[0].expert == 4u);
  BOOST_TEST(row.executed[0].server == 1u);
  BOOST_TEST(row.executed[1].expert == 2u);
  BOOST_TEST(row.executed[1].server == 2u);
  const std::vector<float> hidden{1, 2}, normed{3, 4}, second_hidden{5, 6};
  BOOST_TEST(first_answer.hidden == hidden, boost::test_tools::per_element());
  BOOST_TEST(first_answer.normed == normed, boost::test_tools::per_element());
  BOOST_TEST(first_answer.allowance.size() == 1u);
  BOOST_TEST(second_answer.choice.rows[0].targets[0] == 0u);
  BOOST_TEST(second_answer.hidden == second_hidden, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(the_residence_is_one_of_the_next_layers_members) {
  one_selector world;
  world.attach();
  // Layer 2 of users of server 1 runs at servers 1 and 2, of users of server 2 only there.
  BOOST_TEST((0b110 >> world.decide().choice.residence & 1) == 1);
  auto query = world.query();
  query.access = 2;
  world.tell(world.selecting, actors::select_batch{{query}});
  BOOST_TEST(world.token.take<decided>().choice.residence == 2u);
}

BOOST_AUTO_TEST_CASE(waits_that_servers_tell_enter_decisions_until_they_tell_others) {
  one_selector world;
  world.attach();
  world.place_everywhere(2, 0b111);
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == 1u);
  world.load(1, 1, 1'000'000'000);
  const auto elsewhere = world.decide().choice.rows[0].executed[0].server;
  BOOST_TEST(elsewhere != 1u);
  world.load(1, 1, 0);  // Not new.
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == elsewhere);
  world.load(1, 2, 0);
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == 1u);
}

BOOST_AUTO_TEST_CASE(a_new_view_decides_from_then_on_and_waits_stay) {
  one_selector world;
  world.attach();
  BOOST_TEST(world.decide().choice.rows[0].executed[1].server == 2u);
  world.place_everywhere(2, 0b111);
  world.load(1, 1, 1'000'000'000);
  world.place_everywhere(3, 0b011);
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == 0u);
}

BOOST_AUTO_TEST_CASE(tables_for_other_links_are_taken_in_as_a_snapshot) {
  one_selector world;
  world.attach();
  world.place_everywhere(2, 0b111);
  world.decide();
  const auto before = world.status().snapshot;
  world.load(1, 1, 1'000'000'000);
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == 0u);
  // The way to server 0 becomes long, and server 2 is left.
  auto known = world.context->servers;
  known.links[1 * 3 + 0].latency_ns = known.links[0 * 3 + 1].latency_ns = 500'000'000;
  auto placed = std::make_shared<serving::plan_in_force>(*world.view->placed);
  auto tables = planning::selection_tables::build(
      *placed->profile, placed->plan, planning::make_cost_model(known, world.context->costs),
      world.policy(), 0);
  BOOST_REQUIRE(tables.has_value());
  placed->tables = std::move(*tables);
  placed->links = std::make_shared<const std::vector<link_spec>>(known.links);
  auto next = std::make_shared<actors::server_view>(*world.view);
  next->placed = placed;
  world.view = next;
  world.attach();
  BOOST_TEST(world.status().snapshot == before + 2);
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == 2u);
  // The same again is nothing new.
  world.attach();
  BOOST_TEST(world.status().snapshot == before + 2);
}

BOOST_AUTO_TEST_CASE(other_tables_and_new_reports_make_snapshots) {
  one_selector world;
  world.load(2, 1, 5);  // Before the first plan nothing is decided, and nothing is kept.
  BOOST_TEST(world.status().snapshot == 0u);
  world.attach();
  BOOST_TEST(world.status().snapshot == 1u);
  world.load(2, 1, 5);
  world.load(2, 1, 6);
  BOOST_TEST(world.status().snapshot == 2u);
  world.attach();
  BOOST_TEST(world.status().snapshot == 2u);
  // A plan's tables are in a snapshot once somebody asks for them: it may be given up before.
  world.place_everywhere(2, 0b111);
  BOOST_TEST(world.status().snapshot == 2u);
  world.decide();
  BOOST_TEST(world.status().snapshot == 3u);
  world.decide();
  BOOST_TEST(world.status().snapshot == 3u);
}

BOOST_AUTO_TEST_CASE(each_query_is_answered_by_its_plan) {
  one_selector world;
  world.attach();
  const auto before = world.view->placed;
  world.place_everywhere(2, 0b100);
  world.tell(world.selecting, actors::decide_by{world.view, {before, world.view->placed}});
  auto query = world.query();
  query.epoch = 1;
  world.tell(world.selecting, actors::select_batch{{query}});
  BOOST_TEST(world.token.take<decided>().choice.rows[0].executed[0].server == 1u);
  BOOST_TEST(world.decide().choice.rows[0].executed[0].server == 2u);
  // Of a request that is over.
  world.tell(world.selecting, actors::decide_by{world.view, {world.view->placed}});
  world.tell(world.selecting, actors::select_batch{{query}});
  BOOST_TEST(world.token.heard() == 0u);
}

BOOST_AUTO_TEST_CASE(another_policy_makes_a_snapshot_for_each_plan_that_was_asked_for) {
  one_selector world, other;
  other.place_everywhere(2, 0b111);
  const auto with_policy = [&](std::uint64_t version) {
    std::vector<std::shared_ptr<const actors::plan_in_force>> plans;
    for (const auto& each : {world.view->placed, other.view->placed}) {
      auto next = std::make_shared<actors::plan_in_force>(*each);
      next->policy = version;
      plans.push_back(next);
    }
    world.tell(world.selecting, actors::decide_by{world.view, plans});
  };
  with_policy(0);
  BOOST_TEST(world.status().snapshot == 1u);
  with_policy(1);
  BOOST_TEST(world.status().snapshot == 2u);
  auto query = world.query();
  query.epoch = 2;
  world.tell(world.selecting, actors::select_batch{{query}});
  BOOST_TEST(world.status().snapshot == 3u);
  with_policy(2);
  BOOST_TEST(world.status().snapshot == 5u);
}

BOOST_AUTO_TEST_CASE(slots_are_counted_by_how_they_run) {
  one_selector world;
  world.attach();
  world.decide();
  world.decide();
  const auto counts = world.status().executions;
  BOOST_TEST(counts[static_cast<std::size_t>(serving::execution_kind::local_exact)] == 2);
  BOOST_TEST(counts[static_cast<std::size_t>(serving::execution_kind::remote_exact)] == 2);
  BOOST_TEST(std::accumulate(counts.begin(), counts.end(), std::int64_t{0}) == 4);
}

BOOST_AUTO_TEST_CASE(a_monitor_hears_what_followed_what_where_that_makes_sense) {
  one_selector world;
  world.with_monitor();
  world.context->activation_report_rows = 5;
  world.attach();
  const std::vector<std::vector<std::uint16_t>> before{{}, {1, 3}, {1, 6}, {1}, {0, 1, 2}};
  for (const auto& chosen : before) {
    auto query = world.query();
    query.chosen = chosen;
    world.tell(world.selecting, actors::select_batch{{query}});
    world.token.take<decided>();
  }
  const auto told = world.monitor.take<actors::activation_report>();
  BOOST_TEST(told.targets[1].size() == 10u);
  BOOST_REQUIRE_EQUAL(told.steps.size(), world.n_layers);
  const std::vector<std::uint32_t> step{1, 3, 2, 4};
  BOOST_TEST(told.steps[1] == step, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(a_monitor_hears_of_choices_when_they_are_many_and_with_the_own_load) {
  one_selector world;
  world.with_monitor();
  world.context->activation_report_rows = 3;
  world.attach();
  world.decide();
  world.decide();
  world.load(2, 1, 5);
  auto prompt = world.query();
  prompt.decodes = false;
  world.tell(world.selecting, actors::select_batch{{prompt}});
  world.token.take<decided>();
  BOOST_TEST(world.monitor.heard() == 0u);
  world.decide();
  const auto full = world.monitor.take<actors::activation_report>();
  BOOST_REQUIRE_EQUAL(full.targets.size(), world.n_layers);
  BOOST_TEST(full.targets[0].empty());
  const std::vector<std::uint32_t> rows{2, 4, 2, 4, 2, 4};
  BOOST_TEST(full.targets[1] == rows, boost::test_tools::per_element());
  world.decide();
  world.load(world.id, 1, 5);
  BOOST_TEST(world.monitor.take<actors::activation_report>().targets[1].size() == 2u);
  world.load(world.id, 2, 6);
  BOOST_TEST(world.monitor.heard() == 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
