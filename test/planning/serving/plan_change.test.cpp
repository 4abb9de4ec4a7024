#include "planning/serving/plan_change.hpp"

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "config/random.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

using serving::change_action;
using serving::change_id;
using serving::change_message;
using serving::change_phase;
using serving::change_step;
using serving::plan_changes;

/// Servers whose messages take their time, one after the other between two. What a server that dies had sent comes
/// before its death is known, as much of it as the seed wants.
class world {
 public:
  world(std::uint32_t n, std::uint64_t seed) : draws_(seed, 0x706c616e) {
    for (std::uint32_t i = 0; i < n; ++i) servers_.emplace_back(i, n);
  }

  struct server {
    server(std::uint32_t id, std::uint32_t n) : rules(id, n) {}
    plan_changes rules;
    bool alive = true;
    std::uint64_t plan = 0, prepared = 0;  ///< By change.
    bool holds = false;
    /// Steps that are being done here.
    std::deque<std::pair<change_step, change_id>> doing;
    std::map<change_id, std::string> outcomes;  ///< Of what it led.
  };

  bool begin(std::uint32_t leader, change_id change) {
    auto todo = servers_[leader].rules.begin(change, "plan");
    if (!todo) return false;
    act(leader, *todo);
    return true;
  }

  void kill(std::uint32_t id) {
    if (!servers_[id].alive) return;
    servers_[id].alive = false;
    for (auto& [pair, queue] : wires_)
      if (pair.first == id && !queue.empty()) queue.resize(draws_.below(queue.size() + 1));
    for (std::uint32_t other = 0; other < servers_.size(); ++other)
      if (other != id) wires_[{id, other}].push_back(std::nullopt);
  }

  /// Something that can happen, drawn among all; false where nothing can.
  bool step(double failures = 0) {
    std::vector<std::function<void()>> ways;
    for (auto& [pair, queue] : wires_)
      if (!queue.empty() && servers_[pair.second].alive)
        ways.emplace_back([this, from = pair.first, to = pair.second] { deliver(from, to); });
    for (std::uint32_t id = 0; id < servers_.size(); ++id)
      if (servers_[id].alive && !servers_[id].doing.empty())
        ways.emplace_back([this, id, failures] { work(id, draws_.unit() < failures); });
    if (ways.empty()) return false;
    ways[draws_.below(ways.size())]();
    return true;
  }

  std::vector<server>& servers() { return servers_; }
  random_stream& draws() { return draws_; }

 private:
  void act(std::uint32_t id, const std::vector<change_action>& todo) {
    for (const auto& each : todo) switch (each.kind) {
        case change_action::what::tell:
          BOOST_REQUIRE(each.server != id);
          wires_[{id, each.server}].emplace_back(each.message);
          break;
        case change_action::what::step:
          servers_[id].doing.emplace_back(each.step, each.change);
          break;
        case change_action::what::finished:
          BOOST_TEST(!servers_[id].outcomes.contains(each.change));
          servers_[id].outcomes[each.change] = each.text;
          break;
      }
  }

  void deliver(std::uint32_t from, std::uint32_t to) {
    auto& queue = wires_[{from, to}];
    const auto message = std::move(queue.front());
    queue.pop_front();
    auto& rules = servers_[to].rules;
    act(to, message ? rules.hear(from, *message) : rules.lost(from));
  }

  void work(std::uint32_t id, bool fails) {
    auto& self = servers_[id];
    const auto [step, change] = self.doing.front();
    self.doing.pop_front();
    switch (step) {
      case change_step::prepare:
        if (!fails) self.prepared = change;
        return act(id, self.rules.step_done(change, fails ? "no memory" : ""));
      case change_step::hold:
        self.holds = !fails;
        return act(id, self.rules.step_done(change, fails ? "still answering" : ""));
      case change_step::commit:
        BOOST_TEST(self.prepared == change);
        BOOST_TEST(self.holds);
        self.plan = change;
        return act(id, self.rules.step_done(change));
      case change_step::resume:
        BOOST_TEST(self.plan == change);
        self.holds = false;
        return;
      case change_step::abort:
        BOOST_TEST(self.plan != change);
        self.holds = false;
        return;
    }
  }

  random_stream draws_;
  std::vector<server> servers_;
  /// By sender and receiver; nothing: the sender is lost.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<std::optional<change_message>>>
      wires_;
};

void check_agreement(world& of, std::uint64_t seed) {
  std::optional<std::uint64_t> plan;
  for (std::uint32_t id = 0; id < of.servers().size(); ++id) {
    const auto& each = of.servers()[id];
    if (!each.alive) continue;
    BOOST_TEST_CONTEXT("seed " << seed << ", server " << id) {
      BOOST_TEST((each.rules.phase() == change_phase::none));
      BOOST_TEST(!each.rules.leads());
      BOOST_TEST(!each.holds);
      if (!plan) plan = each.plan;
      BOOST_TEST(each.plan == *plan);
      for (const auto& [change, why] : each.outcomes)
        BOOST_TEST((why.empty() ? each.plan >= change : each.plan != change));
    }
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_change)

BOOST_AUTO_TEST_CASE(all_go_by_the_new_plan_where_nothing_happens) {
  world four(4, 1);
  BOOST_REQUIRE(four.begin(2, 7));
  BOOST_TEST(!four.begin(2, 8));
  while (four.step()) {
  }
  check_agreement(four, 1);
  for (const auto& each : four.servers()) BOOST_TEST(each.plan == 7u);
  BOOST_TEST(four.servers()[2].outcomes.at(7).empty());
  // And again, led by another.
  BOOST_REQUIRE(four.begin(0, 9));
  while (four.step()) {
  }
  for (const auto& each : four.servers()) BOOST_TEST(each.plan == 9u);
}

BOOST_AUTO_TEST_CASE(one_that_cannot_ends_it_for_all_and_is_named) {
  world three(3, 1);
  BOOST_REQUIRE(three.begin(0, 5));
  while (three.step(1)) {
  }
  check_agreement(three, 1);
  BOOST_TEST(three.servers()[1].plan == 0u);
  BOOST_TEST(three.servers()[0].outcomes.at(5).find("no memory") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(nothing_begins_while_a_server_is_lost_or_a_change_is_under_way) {
  world three(3, 1);
  three.kill(1);
  while (three.step()) {
  }
  const auto refused = three.servers()[0].rules.begin(1, "plan");
  BOOST_REQUIRE(!refused);
  BOOST_TEST(refused.error().message.find("server 1") != std::string::npos);
  three.servers()[0].rules.found(1);
  BOOST_TEST(bool(three.servers()[0].rules.begin(1, "plan")));
}

BOOST_AUTO_TEST_CASE(it_can_be_given_up_until_it_is_committed) {
  world two(2, 1);
  std::vector<change_action> todo;
  BOOST_TEST(!two.servers()[0].rules.give_up("no", todo));
  auto begun = two.servers()[0].rules.begin(3, "plan");
  BOOST_REQUIRE(begun);
  BOOST_TEST(two.servers()[0].rules.give_up("the operator's wish", todo));
  const auto said = std::ranges::find(todo, change_action::what::finished, &change_action::kind);
  BOOST_REQUIRE(said != todo.end());
  BOOST_TEST(said->text == "the operator's wish");
  // A lone server, to the end.
  plan_changes lone(0, 1);
  BOOST_REQUIRE(lone.begin(1, "plan"));
  lone.step_done(1);
  lone.step_done(1);
  BOOST_TEST(lone.is_committed());
  BOOST_TEST(!lone.give_up("too late", todo));
}

BOOST_AUTO_TEST_CASE(frames_of_nobody_and_of_changes_that_are_over_do_nothing) {
  plan_changes rules(1, 3);
  BOOST_TEST(rules.hear(9, {1, change_message::what::prepare, "plan"}).empty());
  BOOST_TEST(rules.hear(1, {1, change_message::what::prepare, "plan"}).empty());
  for (const auto kind :
       {change_message::what::hold, change_message::what::commit, change_message::what::resume,
        change_message::what::abort, change_message::what::done, change_message::what::failed,
        change_message::what::committed, change_message::what::not_committed})
    BOOST_TEST(rules.hear(0, {1, kind, {}}).empty());
  BOOST_TEST(rules.step_done(1).empty());
  BOOST_TEST(rules.hear(0, {1, change_message::what::prepare, "plan"}).size() == 1u);
  // Not of its leader, not of its change, not yet.
  BOOST_TEST(rules.hear(2, {1, change_message::what::abort, {}}).empty());
  BOOST_TEST(rules.hear(0, {2, change_message::what::abort, {}}).empty());
  BOOST_TEST(rules.hear(0, {1, change_message::what::commit, {}}).empty());
  BOOST_TEST((rules.phase() == change_phase::preparing));
}

BOOST_AUTO_TEST_CASE(names_of_messages_are_read_back) {
  for (int kind = 0; kind < 10; ++kind) {
    const auto one = static_cast<change_message::what>(kind);
    BOOST_TEST((serving::parse_change_message(to_string(one)) == one));
  }
  BOOST_TEST(!serving::parse_change_message("prepared").has_value());
}

BOOST_AUTO_TEST_CASE(the_living_agree_whoever_dies_whenever) {
  std::size_t committed = 0, given_up = 0, deaths = 0;
  const auto range = test::seeds(2000);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    random_stream draws(seed, 1);
    const auto n = static_cast<std::uint32_t>(2 + draws.below(4));
    world cluster(n, seed);
    const double failures = draws.below(3) == 0 ? 0.1 : 0;
    change_id next = 0;
    for (int round = 0; round < 3; ++round) {
      // Two leaders at once, now and then.
      for (int leaders = draws.below(4) == 0 ? 2 : 1; leaders > 0; --leaders) {
        const auto leader = static_cast<std::uint32_t>(draws.below(n));
        if (cluster.servers()[leader].alive) cluster.begin(leader, ++next);
      }
      const auto dies_at = draws.below(60);
      for (std::uint64_t i = 0; cluster.step(failures); ++i) {
        if (i != dies_at && i != dies_at + 5) continue;
        std::size_t alive = 0;
        for (const auto& each : cluster.servers()) alive += each.alive ? 1 : 0;
        const auto victim = static_cast<std::uint32_t>(draws.below(n));
        if (alive < 2 || draws.below(2) == 0 || !cluster.servers()[victim].alive) continue;
        cluster.kill(victim);
        ++deaths;
      }
      check_agreement(cluster, seed);
    }
    for (const auto& each : cluster.servers())
      for (const auto& [change, why] : each.outcomes) ++(why.empty() ? committed : given_up);
  }
  BOOST_TEST(committed > 0u);
  BOOST_TEST(given_up > 0u);
  BOOST_TEST(deaths > 0u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
