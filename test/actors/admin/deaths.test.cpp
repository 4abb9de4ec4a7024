#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "actors/admin/admin.hpp"
#include "test/actors/admin/steered.hpp"

/// Changes of plan that are aborted, or that a node leaves, at each of their steps.
namespace ordermoe {

namespace {

using test::asked_requests;
using test::check_answers;
using test::eventually;
using test::nodes;
using test::ordered_json;
using test::request_of;
using test::says;
using test::steered;

/// Keeps the admin of one node where it begins a step, until it is let go.
class held_step {
 public:
  held_step(std::uint32_t at, const std::string& step)
      : at_(at), words_("plan.step step=" + step) {}

  void hold(std::uint32_t m, const log_record& record) {
    if (m != at_ || text_of(record) != words_) return;
    std::unique_lock lock(mutex_);
    reached_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return let_go_; });
  }
  void await() {
    std::unique_lock lock(mutex_);
    BOOST_REQUIRE(changed_.wait_for(lock, test::patience, [&] { return reached_; }));
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    let_go_ = true;
    changed_.notify_all();
  }

 private:
  std::uint32_t at_;
  std::string words_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false, let_go_ = false;
};

/// A cluster whose nodes can end, also where a test fails.
struct held_cluster {
  held_step held;
  steered nodes;

  held_cluster(std::uint32_t at, const std::string& step, double memory_ratio)
      : held(at, step),
        nodes("exact", memory_ratio, {},
              [this](std::uint32_t m, const log_record& record) { held.hold(m, record); }) {}
  ~held_cluster() { held.let_go(); }
};

/// How servers change from plan to plan.
struct form {
  double memory_ratio;
  const char* to;
  const char* admission;
};
constexpr form beside{test::world::roomy, "layer-shards", "never stops"};
/// There is no room for another copy of anything, so no plan between.
constexpr form held{1.104, "paper", "held"};

enum class fate {
  aborted,
  server_dies,       ///< While all but one have done the step.
  leader_dies,       ///< Likewise.
  late_server_dies,  ///< The one that has not.
  late_leader_dies   ///< The leader has not.
};

constexpr std::uint32_t leader = 0, late = 2;

/// The last has users.
std::vector<std::uint32_t> living_after(fate what) {
  switch (what) {
    case fate::aborted:
      return {0, 2, 1};
    case fate::server_dies:
      return {0, 2};
    case fate::late_server_dies:
      return {0, 1};
    case fate::leader_dies:
    case fate::late_leader_dies:
      return {1, 2};
  }
  return {};
}

std::uint32_t victim_of(fate what) {
  return what == fate::server_dies ? 1 : what == fate::late_server_dies ? late : leader;
}

/// `after`: requests of a server that lives, from when the change is aborted.
void let_happen(held_cluster& cluster, fate what, bool is_committed, asked_requests& after) {
  auto& nodes = cluster.nodes;
  switch (what) {
    case fate::aborted: {
      const auto told = nodes.try_order(leader, "plan.abort");
      BOOST_TEST(told.has_value() == !is_committed);
      if (!told) BOOST_TEST(says(told.error().message, "it is committed"), told.error().message);
      // They begin by the plan that is in force, while the late one is on its way to the next and back.
      for (std::uint32_t i = 40; i < 60; ++i) after.ask(request_of(i, 55));
      BOOST_TEST(eventually([&] { return after.any_token(); }));
      return cluster.held.let_go();
    }
    case fate::server_dies:
    case fate::leader_dies:
      nodes.stop(victim_of(what));
      return cluster.held.let_go();
    case fate::late_server_dies:
    case fate::late_leader_dies: {
      const auto ends = std::async(std::launch::async, [&] { nodes.stop(victim_of(what)); });
      // Sessions end before its admin does.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return cluster.held.let_go();
    }
  }
}

/// Those that live go by one plan, have no other and let requests begin; its epoch.
std::uint64_t epoch_of_all(steered& cluster, const std::vector<std::uint32_t>& living) {
  const auto first = living.front();
  BOOST_REQUIRE(eventually([&] {
    const auto epoch = cluster.epoch(first);
    return std::ranges::all_of(living, [&](std::uint32_t m) {
      const auto now = cluster.order(m, "members")["result"];
      return now["change"] == "none" && now["admitting"] == true && now["epoch"] == epoch &&
             now["epochs"] == std::vector<std::uint64_t>{epoch};
    });
  }));
  const auto plan = cluster.order(first, "plan.show")["result"];
  for (const auto m : living) BOOST_TEST(cluster.order(m, "plan.show")["result"] == plan);
  return cluster.epoch(first);
}

/// Answers are the reference's, or end because `dead` did.
void check_ends(const steered& cluster, const asked_requests& asked, std::uint32_t dead) {
  const auto name = nodes::name_of(dead);
  for (const auto& each : asked.all()) {
    BOOST_REQUIRE(each.ended.has_value());
    if (each.ended->problem)
      BOOST_TEST(says(each.ended->problem->message, name), each.ended->problem->message);
    else
      BOOST_TEST(each.streamed == test::reference_ids(cluster.model(), each.spec, 0),
                 boost::test_tools::per_element());
  }
}

void check_one_plan_stays(const form& by, const std::string& step, fate what) {
  const bool is_committed = step == "commit" || step == "retire";
  held_cluster cluster(what == fate::late_leader_dies ? leader : late, step, by.memory_ratio);
  auto& nodes = cluster.nodes;
  const auto living = living_after(what);
  const auto user = nodes.client(living.back(), "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 30; ++i) asked.ask(request_of(i, 55));
  BOOST_REQUIRE(eventually([&] { return asked.any_token(); }));
  const auto proposed = nodes.order(leader, "plan.propose", {{"strategy", by.to}});
  BOOST_TEST(says(proposed["result"]["admission"], by.admission), proposed.dump());
  auto applied = std::async(std::launch::async, [&] {
    return nodes.try_order(leader, "plan.apply", {{"drain_s", 30}}).has_value();
  });
  cluster.held.await();
  asked_requests after(*user);
  let_happen(cluster, what, is_committed, after);
  const bool was_applied = applied.get();
  asked.await_all();
  after.await_all();
  const auto epoch = epoch_of_all(nodes, living);
  // One that ends late may have said before that it had done the step.
  if (what != fate::late_server_dies && what != fate::late_leader_dies)
    BOOST_TEST(epoch == (is_committed ? 2u : 1u));
  if (std::ranges::find(living, leader) != living.end()) BOOST_TEST(was_applied == (epoch == 2));
  for (std::uint32_t i = 30; i < 34; ++i) after.ask(request_of(i));
  after.await_all();
  if (what == fate::aborted) {
    check_answers(nodes, asked);
    check_answers(nodes, after);
  } else {
    check_ends(nodes, asked, victim_of(what));
    check_ends(nodes, after, victim_of(what));
  }
}

void check_each_fate(const form& by, const std::string& step) {
  for (const auto what : {fate::aborted, fate::server_dies, fate::leader_dies,
                          fate::late_server_dies, fate::late_leader_dies})
    BOOST_TEST_CONTEXT("fate " << static_cast<int>(what)) check_one_plan_stays(by, step, what);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(deaths)

BOOST_AUTO_TEST_CASE(at_prepare) {
  check_each_fate(beside, "prepare");
}
BOOST_AUTO_TEST_CASE(at_install) {
  check_each_fate(beside, "install");
}
BOOST_AUTO_TEST_CASE(at_commit) {
  check_each_fate(beside, "commit");
}
BOOST_AUTO_TEST_CASE(at_retire) {
  check_each_fate(beside, "retire");
}
BOOST_AUTO_TEST_CASE(at_prepare_where_admission_is_held) {
  check_each_fate(held, "prepare");
}
BOOST_AUTO_TEST_CASE(at_hold) {
  check_each_fate(held, "hold");
}
BOOST_AUTO_TEST_CASE(at_install_where_admission_is_held) {
  check_each_fate(held, "install");
}
BOOST_AUTO_TEST_CASE(at_commit_where_admission_is_held) {
  check_each_fate(held, "commit");
}
BOOST_AUTO_TEST_CASE(at_retire_where_admission_is_held) {
  check_each_fate(held, "retire");
}

BOOST_AUTO_TEST_CASE(while_a_change_is_under_way_no_other_plan_is_searched_for) {
  held_cluster cluster(late, "prepare", beside.memory_ratio);
  auto& nodes = cluster.nodes;
  nodes.order(leader, "plan.propose", {{"strategy", beside.to}});
  auto applied = std::async(std::launch::async, [&] {
    return nodes.try_order(leader, "plan.apply", {{"drain_s", 30}}).has_value();
  });
  cluster.held.await();
  const auto refused = nodes.refused(leader, "plan.propose", {{"strategy", beside.to}});
  BOOST_TEST(says(refused, "a change of plan is under way"), refused);
  cluster.held.let_go();
  BOOST_TEST(applied.get());
  // What ends under the plan before keeps nobody from it.
  nodes.order(leader, "plan.propose", {{"strategy", "exact"}});
}

BOOST_AUTO_TEST_CASE(a_node_that_cannot_write_the_new_plan_is_with_those_that_go_by_it) {
  steered cluster("exact", beside.memory_ratio);
  cluster.has_no_room[2] = true;
  cluster.change_to(0, beside.to);
  cluster.await_epochs(2);
  BOOST_TEST(cluster.log_of(2).has("plan.not_kept"));
  BOOST_TEST(cluster.kept_epochs[2] == 0u);
  cluster.stop(1);
  cluster.plan_digest[1] = "plan of epoch 2";
  cluster.start(1);
  cluster.await_up(1, {0, 2});
}

/// Whatever the change had reached: the two that are left go by the same plan, and go on.
void check_the_leader_may_die(double memory_ratio, const std::string& admission) {
  steered cluster("exact", memory_ratio);
  const auto user = cluster.client(1, "bob");
  asked_requests asked(*user);
  // Long enough to be in flight when admission is held.
  for (std::uint32_t i = 0; i < 30; ++i) asked.ask(request_of(i, 55));
  BOOST_REQUIRE(eventually([&] { return asked.any_token(); }));
  const auto proposed = cluster.order(0, "plan.propose", {{"strategy", "layer-shards"}});
  BOOST_TEST(says(proposed["result"]["admission"], admission), proposed.dump());
  auto applied = std::async(std::launch::async, [&] {
    return cluster.try_order(0, "plan.apply", {{"drain_s", 30}}).has_value();
  });
  BOOST_REQUIRE(eventually([&] {
    const auto members = cluster.order(2, "members")["result"];
    return members["change"] != "none" || members["epoch"] == 2;
  }));
  cluster.stop(0);
  applied.wait();
  asked.await_all();
  BOOST_REQUIRE(eventually([&] {
    const auto one = cluster.order(1, "members")["result"];
    const auto other = cluster.order(2, "members")["result"];
    return one["change"] == "none" && other["change"] == "none" && one["epoch"] == other["epoch"] &&
           one["admitting"] == true && other["admitting"] == true;
  }));
}

BOOST_AUTO_TEST_CASE(where_the_leader_dies_in_a_change_the_others_go_by_one_plan) {
  check_the_leader_may_die(test::world::roomy, "never stops");
}

BOOST_AUTO_TEST_CASE(where_the_leader_dies_on_the_way_over_several_plans_the_others_go_by_one) {
  check_the_leader_may_die(2.0, "plans one after the other");
}

BOOST_AUTO_TEST_CASE(
    where_admission_was_held_requests_wait_for_experts_that_are_on_their_way_back) {
  held_step early(1, "install"), back(late, "abort");
  steered cluster("exact", held.memory_ratio, {}, [&](std::uint32_t m, const log_record& record) {
    early.hold(m, record);
    back.hold(m, record);
  });
  const auto end = [&] {
    early.let_go();
    back.let_go();
  };
  const std::shared_ptr<void> at_the_end(nullptr, [&](void*) { end(); });
  cluster.order(leader, "plan.propose", {{"strategy", held.to}});
  auto applied = std::async(std::launch::async, [&] {
    return cluster.try_order(leader, "plan.apply", {{"drain_s", 30}}).has_value();
  });
  early.await();
  // It has let go of what the plan in force places there and the next one does not.
  BOOST_REQUIRE(eventually(
      [&] { return cluster.order(late, "members")["result"]["change"] == "installed"; }));
  cluster.order(leader, "plan.abort");
  back.await();
  const auto user = cluster.client(leader, "bob");
  asked_requests asked(*user);
  for (std::uint32_t i = 0; i < 20; ++i) asked.ask(request_of(i));
  early.let_go();
  // As long as it takes them to come to the late one.
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  BOOST_TEST(user->outstanding() == 20u);
  end();
  asked.await_all();
  check_answers(cluster, asked);
  BOOST_TEST(!applied.get());
  BOOST_TEST(epoch_of_all(cluster, {0, 1, 2}) == 1u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
