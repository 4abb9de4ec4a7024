#pragma once

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "config/random.hpp"
#include "planning/serving/plan_change.hpp"

/// Servers that change their plan together, as far as the rules of plan_change.hpp go: what they say takes its time, and they
/// begin requests, join, leave and die meanwhile.
namespace ordermoe::changing_servers {

using serving::change_action;
using serving::change_id;
using serving::change_message;
using serving::change_phase;
using serving::change_step;
using serving::plan_changes;

/// What is done at a server for a request of another one's users, and then, maybe, at a third.
struct visit {
  std::uint32_t owner = 0;
  std::uint64_t plan = 0;  ///< That the request began under.
  std::uint64_t request = 0;
  std::optional<std::uint32_t> next;
};
/// The work of a visit is done.
struct answer {
  std::uint64_t request = 0;
};
struct owner_lost {};
/// The last word on whether a server is a member: the higher one holds.
struct member_word {
  std::uint64_t number = 0;
  std::uint32_t by = 0;
  bool member = true;
  auto operator<=>(const member_word&) const = default;
};
using member_words = std::map<std::uint32_t, member_word>;
using parcel = std::variant<change_message, visit, answer, owner_lost, member_words>;

/// Servers whose messages take their time, one after the other between two, and requests that begin, visit other servers and
/// end meanwhile. What a server that dies had sent comes before its death is known, as much of it as the seed wants. Servers
/// join and leave: who is told that one is a member connects with it where both have the same plan, who is told that it is
/// none lets go of it.
class world {
 public:
  /// The last `spares` are no members at first.
  world(std::uint32_t n, std::uint64_t seed, std::uint32_t spares = 0) : draws_(seed, 0x706c616e) {
    for (std::uint32_t i = 0; i < n; ++i) servers_.emplace_back(i, n);
    for (std::uint32_t i = 0; i < n; ++i)
      for (std::uint32_t spare = n - spares; spare < n; ++spare) {
        servers_[spare].alive = false;
        learn(i, {{spare, {1, 0, false}}});
      }
    for (std::uint32_t i = 0; i < n - spares; ++i)
      for (std::uint32_t other = 0; other < n - spares; ++other)
        if (i != other) connected_.insert({i, other});
  }

  struct server {
    server(std::uint32_t id, std::uint32_t n) : rules(id, n) {}
    plan_changes rules;
    bool alive = true;
    std::uint64_t plan = 0,
                  prepared = 0;       ///< By change: that requests begin under, and what is ready.
    std::set<std::uint64_t> live{0};  ///< Plans that are here.
    bool holds = false, drained = false;
    /// Steps that are being done here.
    std::deque<std::pair<change_step, change_id>> doing;
    std::map<change_id, std::string> outcomes;  ///< Of what it led.
    std::map<std::uint64_t, std::uint64_t>
        requests;  ///< Of its users, in flight: the plan of each.
    change_id said_ended = 0;
    std::size_t served_two = 0, begun_early = 0;
    member_words words;
    bool is_absent(std::uint32_t other) const {
      const auto found = words.find(other);
      return found != words.end() && !found->second.member;
    }
  };

  /// By order of an operator at another server. False where that refuses it, as the admin does.
  bool set_member(std::uint32_t asked, std::uint32_t id, bool member) {
    const auto& at = servers_[asked];
    if (!at.alive || asked == id || at.is_absent(asked) || at.is_absent(id) != member ||
        at.rules.phase() != change_phase::none)
      return false;
    if (member ? is_known(id) : !servers_[id].requests.empty()) return false;
    servers_[id].drained = !member;
    // With the plan in force.
    if (member) begin_anew(id, at.plan);
    const auto known = at.words.find(id);
    const auto number = known == at.words.end() ? 1 : known->second.number + 1;
    learn(asked, {{id, {number, asked, member}}});
    return true;
  }
  /// Of the living who is a member by the last words: those that hear of each other, the most of them.
  std::vector<std::uint32_t> members() const {
    member_words last;
    for (const auto& each : servers_)
      if (each.alive)
        for (const auto& [server, word] : each.words) last[server] = std::max(last[server], word);
    std::vector<std::uint32_t> most;
    for (std::uint32_t first = 0; first < servers_.size(); ++first) {
      std::vector<std::uint32_t> group;
      const auto add = [&](std::uint32_t id) {
        const bool is_in = std::ranges::find(group, id) != group.end();
        const auto word = last.find(id);
        if (!is_in && servers_[id].alive && (word == last.end() || word->second.member))
          group.push_back(id);
      };
      add(first);
      for (std::size_t i = 0; i < group.size(); ++i)
        for (std::uint32_t other = 0; other < servers_.size(); ++other)
          if (are_connected(group[i], other)) add(other);
      if (group.size() > most.size()) most = std::move(group);
    }
    return most;
  }
  bool are_connected(std::uint32_t one, std::uint32_t other) const {
    return connected_.contains({one, other}) && connected_.contains({other, one});
  }

  bool begin(std::uint32_t leader, change_id change, bool holds = false) {
    auto todo = servers_[leader].rules.begin(change, "plan", holds);
    if (!todo) return false;
    if (holds) held_.insert(change);
    act(leader, *todo);
    return true;
  }

  /// So many more requests may begin.
  void allow_requests(std::size_t n) { may_begin_ = n; }

  void kill(std::uint32_t id) {
    if (!servers_[id].alive) return;
    servers_[id].alive = false;
    for (auto& [pair, queue] : wires_)
      if (pair.first == id && !queue.empty()) queue.resize(draws_.below(queue.size() + 1));
    for (std::uint32_t other = 0; other < servers_.size(); ++other) {
      if (other == id) continue;
      wires_[{id, other}].emplace_back(owner_lost{});
      end_visits(other, id);
    }
  }

  /// A server that died begins anew with the plan that it kept, once nothing is on its way. False where others, who are
  /// between plans or by another one, do not take it.
  bool start_again(std::uint32_t id) {
    const auto n = static_cast<std::uint32_t>(servers_.size());
    const auto plan = servers_[id].plan;
    for (const auto& each : servers_)
      if (each.alive &&
          (each.is_absent(id) || each.plan != plan || each.rules.phase() != change_phase::none))
        return false;
    begin_anew(id, plan);
    for (std::uint32_t other = 0; other < n; ++other)
      if (other != id && servers_[other].alive && !servers_[id].is_absent(other)) meet(other, id);
    return true;
  }

  /// Something that can happen, drawn among all; false where nothing can.
  bool step(double failures = 0) {
    std::vector<std::function<void()>> ways;
    for (auto& [pair, queue] : wires_)
      if (!queue.empty() && servers_[pair.second].alive)
        ways.emplace_back([this, from = pair.first, to = pair.second] { deliver(from, to); });
    for (const auto& [one, other] : meeting_)
      if (servers_[one].alive && servers_[other].alive &&
          servers_[one].plan == servers_[other].plan && !servers_[other].is_absent(one))
        ways.emplace_back([this, one = one, other = other] { meet(one, other); });
    for (std::uint32_t id = 0; id < servers_.size(); ++id) {
      auto& self = servers_[id];
      if (!self.alive) continue;
      if (!self.doing.empty())
        ways.emplace_back([this, id, failures] { work(id, draws_.unit() < failures); });
      if (!self.holds && !self.drained && may_begin_ > 0)
        ways.emplace_back([this, id] { begin_request(id); });
      const auto change = self.rules.change();
      if (self.plan == change && change != 0 && self.said_ended != change && !has_earlier(self))
        ways.emplace_back([this, id, change] {
          servers_[id].said_ended = change;
          act(id, servers_[id].rules.ended(change));
        });
    }
    if (ways.empty()) return false;
    ways[draws_.below(ways.size())]();
    return true;
  }

  std::vector<server>& servers() { return servers_; }
  random_stream& draws() { return draws_; }

 private:
  static bool has_earlier(const server& self) {
    return std::ranges::any_of(self.requests,
                               [&](const auto& each) { return each.second != self.plan; });
  }

  void begin_request(std::uint32_t id) {
    --may_begin_;
    auto& self = servers_[id];
    const auto number = ++n_requests_;
    self.requests[number] = self.plan;
    self.served_two += self.live.size() > 1;
    if (servers_.size() == 1) return void(self.requests.erase(number));
    visit first{id, self.plan, number, std::nullopt};
    if (draws_.below(2) == 0) first.next = other_than(id);
    send(id, other_than(id), first);
  }

  bool is_known(std::uint32_t id) const {
    for (std::uint32_t other = 0; other < servers_.size(); ++other)
      if (servers_[other].alive && connected_.contains({other, id})) return true;
    return false;
  }

  /// What it kept is its plan, and who belongs to the cluster.
  void begin_anew(std::uint32_t id, std::uint64_t plan) {
    const auto n = static_cast<std::uint32_t>(servers_.size());
    auto before = std::move(servers_[id]);
    servers_[id] = server(id, n);
    servers_[id].outcomes = std::move(before.outcomes);
    servers_[id].plan = plan;
    servers_[id].live = {plan};
    for (std::uint32_t other = 0; other < n; ++other) {
      wires_[{other, id}].clear();
      wires_[{id, other}].clear();
      connected_.erase({id, other});
      connected_.erase({other, id});
      if (other != id) act(id, servers_[id].rules.lost(other));
    }
    learn(id, before.words);
  }

  void meet(std::uint32_t one, std::uint32_t other) {
    for (const auto& [at, whom] : {std::pair(one, other), std::pair(other, one)}) {
      meeting_.erase({at, whom});
      // What was said before is of a session that is over.
      wires_[{at, whom}].clear();
      connected_.insert({at, whom});
    }
    for (const auto& [at, whom] : {std::pair(one, other), std::pair(other, one)}) {
      wires_[{at, whom}].emplace_back(servers_[at].words);
      act(at, servers_[at].rules.found(whom));
    }
  }

  /// The words that are news, and on to the others.
  void learn(std::uint32_t at, const member_words& words, std::optional<std::uint32_t> from = {}) {
    auto& self = servers_[at];
    bool any = false;
    for (const auto& [server, word] : words) {
      auto& known = self.words[server];
      if (!(known < word)) continue;
      const bool differs = known.member != word.member;
      known = word;
      any = true;
      if (server == at) continue;
      if (!word.member) {
        meeting_.erase({at, server});
        if (differs) let_go(at, server);
      } else if (!connected_.contains({at, server})) {
        meeting_.insert({at, server});
      }
      act(at, self.rules.set_member(server, word.member));
    }
    if (!any) return;
    for (std::uint32_t other = 0; other < servers_.size(); ++other)
      if (other != at && other != from && servers_[other].alive && connected_.contains({at, other}))
        wires_[{at, other}].emplace_back(self.words);
  }

  /// It ends the session; the other end hears so. What was said of changes may still be on its way from there.
  void let_go(std::uint32_t at, std::uint32_t server) {
    end_visits(at, server);
    std::erase_if(wires_[{server, at}],
                  [](const parcel& each) { return !std::holds_alternative<change_message>(each); });
    wires_[{at, server}].clear();
    connected_.erase({at, server});
    lose(at, server);
    if (connected_.erase({server, at}) > 0 && servers_[server].alive)
      wires_[{at, server}].emplace_back(owner_lost{});
  }

  void end_visits(std::uint32_t at, std::uint32_t on_way_to) {
    for (auto& each : wires_[{at, on_way_to}])
      if (const auto* work = std::get_if<visit>(&each)) end_visit(at, *work);
  }

  /// Whoever cannot reach the next server says so to the owner.
  void send(std::uint32_t from, std::uint32_t to, const visit& what) {
    if (servers_[to].alive && connected_.contains({from, to}))
      wires_[{from, to}].emplace_back(what);
    else
      end_visit(from, what);
  }
  void end_visit(std::uint32_t at, const visit& what) {
    if (at == what.owner)
      servers_[at].requests.erase(what.request);
    else if (servers_[at].alive && connected_.contains({at, what.owner}))
      wires_[{at, what.owner}].emplace_back(answer{what.request});
    else if (servers_[at].alive)
      // Of a session that is over; and no plan has anything of others' at a server that leaves.
      servers_[what.owner].requests.erase(what.request);
  }
  std::uint32_t other_than(std::uint32_t id) {
    const auto other = static_cast<std::uint32_t>(draws_.below(servers_.size() - 1));
    return other + (other >= id ? 1 : 0);
  }

  void serve(std::uint32_t id, const visit& what) {
    auto& self = servers_[id];
    // Where nobody waits for it any more it may find nothing.
    const auto& owner = servers_[what.owner];
    if (owner.alive && owner.requests.contains(what.request))
      BOOST_TEST(self.live.contains(what.plan));
    self.begun_early += what.plan != self.plan && what.plan == self.prepared;
    if (what.next && *what.next != id && *what.next != what.owner)
      send(id, *what.next, {what.owner, what.plan, what.request, std::nullopt});
    else
      end_visit(id, what);
  }

  void act(std::uint32_t id, const std::vector<change_action>& todo) {
    for (const auto& each : todo) switch (each.kind) {
        case change_action::what::tell:
          BOOST_REQUIRE(each.server != id);
          if (!connected_.contains({id, each.server})) break;
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
    const auto content = std::move(queue.front());
    queue.pop_front();
    auto& self = servers_[to];
    if (const auto* message = std::get_if<change_message>(&content))
      act(to, self.rules.hear(from, *message));
    else if (const auto* work = std::get_if<visit>(&content))
      serve(to, *work);
    else if (const auto* done = std::get_if<answer>(&content))
      self.requests.erase(done->request);
    else if (const auto* words = std::get_if<member_words>(&content))
      learn(to, *words, from);
    else
      lose(to, from);
  }

  /// Requests that may need it end: here all do.
  void lose(std::uint32_t id, std::uint32_t lost) {
    servers_[id].requests.clear();
    act(id, servers_[id].rules.lost(lost));
  }

  void work(std::uint32_t id, bool fails) {
    auto& self = servers_[id];
    const auto [step, change] = self.doing.front();
    self.doing.pop_front();
    switch (step) {
      case change_step::prepare:
        BOOST_TEST(self.live.size() == 1u);
        if (!fails) self.prepared = change;
        return act(id, self.rules.step_done(change, fails ? "no memory" : ""));
      case change_step::hold:
        BOOST_TEST(held_.contains(change));
        self.holds = true;
        if (!self.requests.empty() && !fails) {
          // Until they have ended, or it is given up.
          if (self.doing.empty()) self.doing.emplace_back(step, change);
          return;
        }
        return act(id, self.rules.step_done(change, fails ? "still answering" : ""));
      case change_step::install:
        BOOST_TEST(self.holds == held_.contains(change));
        // Another step overtook it.
        if (self.rules.phase() != change_phase::installing || self.rules.change() != change) return;
        if (!fails) self.live.insert(change);
        return act(id, self.rules.step_done(change, fails ? "no memory for both" : ""));
      case change_step::commit:
        BOOST_TEST(self.prepared == change);
        BOOST_TEST(self.live.contains(change));
        self.plan = change;
        self.holds = false;
        return act(id, self.rules.step_done(change));
      case change_step::retire:
        BOOST_TEST(self.plan == change);
        BOOST_TEST(!has_earlier(self));
        self.live = {change};
        return act(id, self.rules.step_done(change));
      case change_step::abort:
        BOOST_TEST(self.plan != change);
        self.live.erase(change);
        self.holds = false;
        return;
    }
  }

  random_stream draws_;
  std::vector<server> servers_;
  std::set<change_id> held_;
  std::size_t may_begin_ = 0;
  std::uint64_t n_requests_ = 0;
  /// By sender and receiver.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::deque<parcel>> wires_;
  std::set<std::pair<std::uint32_t, std::uint32_t>> connected_;  ///< From one to another.
  std::set<std::pair<std::uint32_t, std::uint32_t>> meeting_;    ///< The first lets the other in.
};

inline void check_agreement(world& of, std::uint64_t seed) {
  std::optional<std::uint64_t> plan;
  const auto members = of.members();
  for (const auto id : members) {
    const auto& each = of.servers()[id];
    BOOST_TEST_CONTEXT("seed " << seed << ", server " << id) {
      BOOST_TEST((each.rules.phase() == change_phase::none));
      BOOST_TEST(!each.rules.leads());
      BOOST_TEST(!each.rules.waits());
      BOOST_TEST(!each.holds);
      BOOST_TEST(each.requests.empty());
      if (!plan) plan = each.plan;
      BOOST_TEST(each.plan == *plan);
      BOOST_TEST((each.live == std::set<std::uint64_t>{*plan}));
      for (const auto other : members)
        if (other != id) BOOST_TEST(of.are_connected(id, other));
    }
  }
}

/// What the leader was told is what came of it.
inline void check_outcomes(world& of, std::uint64_t seed) {
  std::set<change_id> committed;
  for (const auto id : of.members()) committed.insert(of.servers()[id].plan);
  for (const auto id : of.members())
    for (const auto& [change, why] : of.servers()[id].outcomes)
      if (!why.empty()) BOOST_TEST(!committed.contains(change), "seed " << seed);
}

/// Of a change that another one, which began at the same time, went before: whichever word of it came first.
inline bool says_who_goes_before(const std::string& why) {
  return why.ends_with("server 1 leads another change at the same time") ||
         why.ends_with("a change that server 1 leads is under way");
}

/// Until nothing happens any more.
inline void run(world& of, double failures = 0) {
  while (of.step(failures)) {
  }
}

}  // namespace ordermoe::changing_servers
