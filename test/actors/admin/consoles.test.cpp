#include <boost/test/unit_test.hpp>
#include <deque>
#include <optional>

#include "actors/admin/admin.hpp"
#include "config/random.hpp"
#include "net/relay/relay.hpp"
#include "test/actors/cluster/nodes.hpp"
#include "test/support/seeds.hpp"

namespace ordermoe {

namespace {

using nlohmann::ordered_json;
using test::asked_requests;
using test::bare_end;
using test::eventually;
using test::nodes;
using test::request_of;

struct verb {
  const char* name;
  ordered_json arguments = ordered_json::object();
  bool dry_run = false;  ///< Of what is there to end requests.
};

/// Every verb; what would refuse or end requests on purpose is only talked of.
const std::vector<verb>& verbs() {
  static const std::vector<verb> all{
      {"status"},
      {"topology"},
      {"peers"},
      {"experts"},
      {"members"},
      {"requests.list"},
      {"requests.show", {{"request", 1}}},
      {"requests.cancel", {{"request", 1}}},
      {"plan.show"},
      {"plan.propose", {{"strategy", "layer-shards"}}},
      {"plan.propose", {{"strategy", "exact"}}},
      {"plan.diff"},
      {"plan.apply", {{"drain_s", 60}}},
      {"plan.abort"},
      {"plan.history"},
      {"policy.get"},
      {"policy.set", {{"policy", R"({"horizon":2})"}}},
      {"drain", ordered_json::object(), true},
      {"resume"},
      {"events", {{"since", 0}}},
      {"audit"},
      {"log.level"},
      {"log.set_level", {{"level", "warning"}}},
      {"token.list"},
      {"token.create", {{"name", "short"}, {"role", "viewer"}, {"for_s", 1}}},
      {"token.revoke", {{"name", "short"}}}};
  return all;
}

std::string order_text(const verb& of, std::uint64_t ref) {
  return ordered_json{
      {"ref", ref}, {"verb", of.name}, {"arguments", of.arguments}, {"dry_run", of.dry_run}}
      .dump();
}

/// A console that does what none should, from its start to its end.
class hostile_console {
 public:
  hostile_console(const nodes& cluster, std::uint64_t seed) : draws_(seed, 7), end_(seed % 3 != 1) {
    const auto m = static_cast<std::uint32_t>(draws_.below(nodes::n));
    auto dialled = cluster.dialling(m, "ada", net::role::admin);
    const bool dies = seed % 3 == 2;
    if (dies) {
      net::relay_options between;
      between.target.port = cluster.at(m).port;
      auto made = net::relay::start(between);
      BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
      relay_ = std::move(*made);
      dialled.peers.front().at = net::address{"127.0.0.1", relay_->port()};
    }
    end_.start(std::move(dialled));
    BOOST_REQUIRE(eventually([&] { return end_.is_up(); }));
    if (dies)
      die_within(verbs()[(seed / 3) % verbs().size()]);
    else if (seed % 3 == 1)
      read_nothing();
    else
      say_anything();
  }
  hostile_console(const hostile_console&) = delete;
  hostile_console& operator=(const hostile_console&) = delete;

 private:
  /// The connection ends without a word while an order, or its reply, is on its way.
  void die_within(const verb& what) {
    net::cut_options how;
    how.after_bytes = draws_.below(1500);
    how.of = draws_.below(2) == 0 ? net::direction::to : net::direction::back;
    relay_->cut(how);
    for (int i = 0; i < 3; ++i) end_.say(actors::control_kind::order, order_text(what, 1));
  }

  /// Asks for much and takes in none of it.
  void read_nothing() {
    for (std::uint64_t i = 0; i < 100; ++i)
      end_.say(actors::control_kind::order, order_text({i % 2 == 0 ? "plan.show" : "topology"}, i));
  }

  /// Frames of any kind, on any lane, of orders with flipped bytes or of nothing but random ones.
  void say_anything() {
    for (int i = 0; i < 12; ++i) {
      auto text = order_text(verbs()[draws_.below(verbs().size())], draws_.bits());
      if (draws_.below(3) == 0)
        for (auto& c : text) c = static_cast<char>(draws_.below(256));
      for (auto flips = draws_.below(6); flips > 0; --flips)
        text[draws_.below(text.size())] = static_cast<char>(draws_.below(256));
      text.resize(draws_.below(text.size() + 1));
      const auto kind = draws_.below(2) == 0
                            ? static_cast<std::uint8_t>(actors::control_kind::order)
                            : static_cast<std::uint8_t>(draws_.below(256));
      end_.send(0, static_cast<net::lane>(draws_.below(net::n_lanes)), kind, text, draws_.bits());
    }
  }

  random_stream draws_;
  std::unique_ptr<net::relay> relay_;
  bare_end end_;
};

/// A user who asks ten requests, and ten more when those have ended.
class busy_user {
 public:
  busy_user(const nodes& cluster, std::uint32_t m)
      : cluster_(cluster), client_(cluster.client(m, "bob")), next_(1000 * m) {
    ask();
  }
  /// How many were right so far.
  std::size_t n_right() const { return n_right_; }

  void look() {
    if (client_->outstanding() == 0) check(), ask();
  }
  void finish() {
    asked_->await_all();
    check();
  }

 private:
  void ask() {
    asked_.emplace(*client_);
    for (int i = 0; i < 10; ++i) asked_->ask(request_of(next_++, 24));
  }
  void check() {
    for (const auto& each : asked_->all()) {
      BOOST_REQUIRE(each.ended.has_value());
      BOOST_REQUIRE_MESSAGE(!each.ended->problem.has_value(),
                            (each.ended->problem ? each.ended->problem->message : ""));
      BOOST_TEST(each.streamed == test::reference_ids(cluster_.model(), each.spec, 0),
                 boost::test_tools::per_element());
      ++n_right_;
    }
  }

  const nodes& cluster_;
  std::unique_ptr<actors::cluster_client> client_;
  std::optional<asked_requests> asked_;
  std::uint32_t next_;
  std::size_t n_right_ = 0;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(consoles)

/// `scripts/campaign consoles-in-process` has a thousand, and `scripts/campaign consoles` a thousand against processes.
BOOST_AUTO_TEST_CASE(whatever_consoles_do_no_request_fails) {
  nodes cluster;
  auto opened = model::expert_reader::open(ORDERMOE_TEST_DATA "/mixtral-tiny");
  BOOST_REQUIRE(opened.has_value());
  cluster.reader = std::move(*opened);
  cluster.start_all();
  std::deque<busy_user> users;
  for (std::uint32_t m = 0; m < nodes::n; ++m) users.emplace_back(cluster, m);
  // Some are there at a time.
  std::deque<hostile_console> at_once;
  const auto range = test::seeds(39);
  for (auto seed = range.first; seed <= range.last; ++seed) {
    BOOST_TEST_CONTEXT("console " << seed) {
      if (at_once.size() == 8) at_once.pop_front();
      at_once.emplace_back(cluster, seed);
    }
    for (auto& each : users) each.look();
  }
  at_once.clear();
  std::size_t n_right = 0;
  for (auto& each : users) {
    each.finish();
    n_right += each.n_right();
  }
  // And whoever comes now is answered as ever.
  const auto admin = cluster.client(0, "eve", net::role::admin);
  BOOST_TEST(admin->order("status", "{}", false, test::patience).has_value());
  BOOST_TEST_MESSAGE("consoles " << range.first << " to " << range.last << ": " << n_right
                                 << " requests were answered as by the reference");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
