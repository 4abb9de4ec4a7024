#include "actors/cluster/plan_fetch.hpp"

#include <fmt/format.h>

#include <boost/test/unit_test.hpp>
#include <cstring>

#include "actors/cluster/plan_desk.hpp"
#include "config/files.hpp"
#include "config/random.hpp"
#include "test/actors/cluster/nodes.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using actors::control_kind;
using actors::paper;
using actors::plan_at_hand;
using actors::plan_notice;
using actors::plan_told_of;
using net::peer_id;
using test::bare_end;
using test::eventually;
using test::says;

struct scratch {
  fs::path path;
  scratch() {
    std::string pattern = (fs::temp_directory_path() / "ordermoe-joining-XXXXXX").string();
    BOOST_REQUIRE(::mkdtemp(pattern.data()) != nullptr);
    path = pattern;
  }
  ~scratch() { fs::remove_all(path); }
};

/// Long enough for some windows, and without a period.
std::string long_text(std::uint64_t seed, std::size_t bytes = 300'000) {
  std::string text;
  for (auto x = mix64(seed); text.size() < bytes; x = mix64(x))
    text.append(reinterpret_cast<const char*>(&x), sizeof(x));
  return text;
}

std::shared_ptr<actors::kept_papers> some_papers(std::uint64_t seed, std::uint64_t epoch = 1,
                                                 const std::string& model = "a model") {
  auto made = std::make_shared<actors::kept_papers>(model, "a cluster file");
  made->put_plan(long_text(seed), epoch);
  made->put(paper::profile, "a profile");
  return made;
}

/// What a member says to a host that joins.
struct saying {
  control_kind kind{};
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::string payload;
};

/// A member of a cluster of s0, s1 and s2, s0 being the host that joins: it has papers, and says what a test makes of it.
class member_end final : public net::transport_user {
 public:
  /// May change what is said; false: it is not.
  using twist = std::function<bool(saying& said)>;

  member_end(const test::scratch_authority& authority, const std::string& name,
             std::shared_ptr<const actors::kept_papers> papers, twist through = {},
             bool absent = false)
      : through_(std::move(through)),
        desk_(std::move(papers), [this](peer_id to, control_kind kind, std::uint64_t request,
                                        std::uint32_t attempt, std::string payload) {
          say(to, {kind, request, attempt, std::move(payload)});
        }) {
    net::transport_options options;
    options.identity = authority.identity(name);
    options.listen = {{"127.0.0.1", 0}};
    net::transport_peer host{"s0", std::nullopt};
    host.absent = absent;
    options.peers = {host};
    options.takes_clients = true;
    auto begun = net::transport::start(std::move(options), *this);
    BOOST_REQUIRE_MESSAGE(begun.has_value(), (begun ? "" : begun.error().message));
    transport_ = std::move(*begun);
    ready_ = true;
    ready_.notify_all();
  }
  ~member_end() override { transport_->stop(); }

  net::address at() const { return transport_->listens_at().front(); }
  void admit(bool member) { transport_->admit(0, member, std::nullopt); }
  void leave(peer_id host) { transport_->leave(host, "a test"); }
  void say(peer_id to, saying said) {
    ++sayings;
    if (through_ && !through_(said)) return;
    transport_->send(to, net::lane::control, static_cast<std::uint8_t>(said.kind), said.request,
                     said.attempt, 0, std::move(said.payload));
  }

  std::atomic<std::size_t> sayings = 0, hosts_came = 0, hosts_left = 0;
  /// Of the asks for papers, in order; once the fetch is over.
  std::vector<std::uint64_t> offsets;
  peer_id last_host = 0;

 private:
  void take(peer_id from, std::vector<net::session_event> events) override {
    ready_.wait(false);
    for (const auto& each : events) {
      if (each.kind == net::session_event::what::down) {
        desk_.left(from);
        ++hosts_left;
      }
      if (each.kind != net::session_event::what::frame) continue;
      transport_->used(from, each.header.of, net::session::frame_bytes(each.header));
      if (static_cast<control_kind>(each.header.kind) == control_kind::paper_asked) {
        std::uint64_t offset = 0;
        std::memcpy(&offset, each.text.data(), sizeof(offset));
        offsets.push_back(offset);
      }
      if (auto taken = desk_.take(from, each.header, each.text); !taken)
        transport_->leave(from, taken.error().message);
    }
  }
  void client_came(peer_id id, const net::certificate_name& who) override {
    if (who.of != net::role::node) return;
    desk_.came(id);
    last_host = id;
    ++hosts_came;
  }
  void problem(const std::string&, const error&) override {}

  twist through_;
  actors::plan_desk desk_;
  std::unique_ptr<net::transport> transport_;
  std::atomic<bool> ready_ = false;
};

/// The host that joins.
struct joining {
  test::scratch_authority authority;
  scratch place;
  test::kept_lines log;
  actors::plan_fetch_options options;

  joining() {
    options.identity = authority.identity("s0");
    options.model = "a model";
    options.cluster_file = "a cluster file";
    options.folder = place.path / "joining";
    options.again_after = std::chrono::milliseconds(20);
    options.log =
        log_outlet([this](const log_record& record) { log.add(record); }, log_level::debug);
    const auto until = std::chrono::steady_clock::now() + test::patience;
    options.pause = [until] { return std::chrono::steady_clock::now() > until; };
  }
  void asks(const std::string& name, const member_end& member) {
    options.members.push_back({name, member.at()});
  }
  result<std::optional<actors::fetched_plan>> fetch() { return actors::fetch_plan(options); }
  /// The plan that came; fails where none did.
  actors::fetched_plan fetched() {
    auto done = fetch();
    BOOST_REQUIRE_MESSAGE(done.has_value(), (done ? "" : done.error().message));
    BOOST_REQUIRE(done->has_value());
    return std::move(**done);
  }
  bool keeps_nothing() const { return !fs::exists(options.folder) || fs::is_empty(options.folder); }
};

const std::string& text_of(const actors::fetched_plan& fetched, paper which) {
  const auto& text = fetched.texts[static_cast<std::size_t>(which)];
  BOOST_REQUIRE(text.has_value());
  return *text;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_fetch)

BOOST_AUTO_TEST_CASE(a_notice_reads_back_and_one_that_makes_no_sense_is_refused_by_member) {
  auto papers = some_papers(1, 7);
  papers->put(paper::activation, "an activation");
  const auto notice = papers->notice();
  const auto text = actors::notice_text(notice);
  const auto again = actors::parse_notice(text);
  BOOST_REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().message));
  BOOST_CHECK(*again == notice);
  BOOST_TEST(notice.epoch == 7u);
  const auto refused = [&](const std::string& from, const std::string& to, const char* words) {
    auto other = text;
    const auto at = other.find(from);
    BOOST_REQUIRE(at != std::string::npos);
    other.replace(at, from.size(), to);
    const auto read = actors::parse_notice(other);
    BOOST_REQUIRE_MESSAGE(!read, other);
    BOOST_TEST(says(read.error().message, words), read.error().message);
  };
  const auto& digest = notice.plan().sha256;
  refused("\"bytes\":300000", "\"bytes\":67108865", "plan.bytes");
  refused("\"bytes\":300000", "\"bytes\":0", "plan.bytes");
  refused("\"bytes\":300000", "\"bytes\":-1", "plan.bytes");
  refused(digest, "../../etc/passwd", "plan.sha256");
  refused(digest, digest.substr(1), "plan.sha256");
  refused(digest, "", "plan.sha256");
  refused("\"plan\"", "\"plans\"", "plan");
  refused("\"profile\"", "\"activation2\"", "activation2");
  refused("\"version\":1", "\"version\":2", "version");
  refused("a model", std::string(5000, 'a'), "expected at most 4096");
  for (std::size_t n = 0; n < text.size(); ++n)
    BOOST_CHECK(!actors::parse_notice(text.substr(0, n)));
}

BOOST_AUTO_TEST_CASE(which_plan_a_host_goes_over_to) {
  const auto taken = [](std::optional<plan_at_hand> mine, std::vector<plan_told_of> told,
                        std::size_t n = 4) { return actors::plan_to_take(mine, told, n); };
  BOOST_TEST(taken({}, {}) == "");
  BOOST_TEST(taken({}, {{"a", 1, 1}}) == "a");
  BOOST_TEST(taken({}, {{"a", 1, 2}, {"b", 9, 1}}) == "a");
  BOOST_TEST(taken({}, {{"a", 1, 1}, {"b", 9, 1}}) == "b");
  // Its own is among them.
  BOOST_TEST(taken(plan_at_hand{"a", 1}, {{"a", 1, 3}}) == "a");
  // A later one, and an earlier one by which more than half of all go.
  BOOST_TEST(taken(plan_at_hand{"a", 1}, {{"b", 2, 1}}) == "b");
  BOOST_TEST(taken(plan_at_hand{"a", 2}, {{"b", 1, 3}}) == "b");
  BOOST_TEST(taken(plan_at_hand{"a", 2}, {{"b", 2, 3}}) == "b");
  // Of two hosts that missed a change each, the one that has the later plan keeps it.
  BOOST_TEST(taken(plan_at_hand{"a", 2}, {{"b", 1, 1}}, 2) == "");
  BOOST_TEST(taken(plan_at_hand{"b", 1}, {{"a", 2, 1}}, 2) == "a");
  // Of the same epoch no two change places.
  BOOST_TEST(taken(plan_at_hand{"a", 2}, {{"b", 2, 1}}, 2) == "");
  BOOST_TEST(taken(plan_at_hand{"a", 2}, {{"b", 1, 2}}, 4) == "");
}

BOOST_AUTO_TEST_CASE(a_host_without_a_plan_gets_all_that_is_in_force) {
  joining host;
  auto papers = some_papers(1, 5);
  papers->put(paper::activation, "an activation");
  member_end member(host.authority, "s1", papers);
  host.asks("s1", member);
  const auto fetched = host.fetched();
  BOOST_CHECK(text_of(fetched, paper::plan) == long_text(1));
  BOOST_TEST(text_of(fetched, paper::profile) == "a profile");
  BOOST_TEST(text_of(fetched, paper::activation) == "an activation");
  BOOST_TEST(fetched.told.epoch == 5u);
  BOOST_TEST(fetched.from == "s1");
  BOOST_TEST(host.keeps_nothing());
  // The profile, the activation, and some windows of the plan.
  BOOST_TEST(member.offsets.size() >= 6u);
}

BOOST_AUTO_TEST_CASE(what_a_host_has_already_does_not_come_again) {
  joining host;
  const auto papers = some_papers(1);
  member_end member(host.authority, "s1", papers);
  host.asks("s1", member);
  host.options.profile = papers->notice().profile().sha256;
  const auto fetched = host.fetched();
  BOOST_CHECK(!fetched.texts[static_cast<std::size_t>(paper::profile)]);
  // With that plan nothing does.
  host.options.mine = plan_at_hand{papers->notice().plan().sha256, 1};
  const auto again = host.fetch();
  BOOST_REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().message));
  BOOST_CHECK(!again->has_value());
}

BOOST_AUTO_TEST_CASE(who_is_no_member_is_let_in_once_it_is_added_and_not_when_it_is_removed) {
  joining host;
  member_end member(host.authority, "s1", some_papers(1), {}, true);
  host.asks("s1", member);
  std::thread adds([&] {
    BOOST_CHECK(eventually([&] { return host.log.has("expected a node of the member list"); }));
    member.admit(true);
  });
  BOOST_CHECK(text_of(host.fetched(), paper::plan) == long_text(1));
  adds.join();
  BOOST_TEST(member.hosts_came == 1u);
  // A session that there is ends with the membership.
  bare_end another;
  net::transport_options options;
  options.identity = host.authority.identity("s0");
  options.peers = {{"s1", member.at()}};
  options.is_client = true;
  options.dials_for = net::dial_purpose::joining;
  another.start(std::move(options));
  BOOST_REQUIRE(eventually([&] { return another.is_up(); }));
  member.admit(false);
  std::string heard;
  const bool is_told = eventually([&] {
    heard.clear();
    for (const auto& each : another.events(net::session_event::what::down))
      heard += each.text + "; ";
    return says(heard, "no member");
  });
  BOOST_CHECK_MESSAGE(is_told, "it heard: " << heard);
}

BOOST_AUTO_TEST_CASE(whoever_is_no_node_does_not_join) {
  joining host;
  member_end member(host.authority, "s1", some_papers(1));
  bare_end console;
  net::transport_options options;
  options.identity = host.authority.identity("ann", net::role::admin);
  options.peers = {{"s1", member.at()}};
  options.is_client = true;
  options.dials_for = net::dial_purpose::joining;
  console.start(std::move(options));
  BOOST_CHECK(
      eventually([&] { return !console.events(net::session_event::what::refused).empty(); }));
  BOOST_TEST(member.hosts_came == 0u);
}

BOOST_AUTO_TEST_CASE(another_plan_than_was_told_is_dropped_and_another_member_asked) {
  joining host;
  // As long as it should be, and with one bit changed.
  member_end liar(host.authority, "s1", some_papers(1), [](saying& said) {
    if (said.kind == control_kind::paper_part) said.payload.back() ^= 1;
    return true;
  });
  member_end honest(host.authority, "s2", some_papers(1));
  host.asks("s1", liar);
  host.asks("s2", honest);
  const auto fetched = host.fetched();
  BOOST_CHECK(text_of(fetched, paper::plan) == long_text(1));
  BOOST_TEST(fetched.from == "s2");
  BOOST_TEST(host.log.has("plan.refused peer=s1"));
  BOOST_TEST(host.log.has("found SHA-256"));
  BOOST_TEST(host.keeps_nothing());
}

BOOST_AUTO_TEST_CASE(parts_of_another_size_are_refused_before_any_silence) {
  joining host;
  host.options.silent_for = std::chrono::seconds(60);
  // Each part in two, with the offsets that they have then: with patience all of it would be there.
  member_end* self = nullptr;
  constexpr std::size_t whole = net::bulk_part_bytes + sizeof(std::uint64_t), half = whole / 2;
  member_end halves(host.authority, "s1", some_papers(1), [&](saying& said) {
    if (said.kind != control_kind::paper_part || said.payload.size() != whole) return true;
    std::uint64_t offset = 0;
    std::memcpy(&offset, said.payload.data(), sizeof(offset));
    offset += half - sizeof(offset);
    auto second = said;
    second.payload = std::string(reinterpret_cast<const char*>(&offset), sizeof(offset)) +
                     said.payload.substr(half);
    said.payload.resize(half);
    self->say(self->last_host, said);
    self->say(self->last_host, std::move(second));
    return false;
  });
  self = &halves;
  member_end good(host.authority, "s2", some_papers(1));
  host.asks("s1", halves);
  host.asks("s2", good);
  const auto fetched = host.fetched();
  BOOST_CHECK(text_of(fetched, paper::plan) == long_text(1));
  BOOST_TEST(fetched.from == "s2");
  BOOST_TEST(host.log.has(fmt::format("found a part of {} bytes, expected {}", half, whole)));
}

BOOST_AUTO_TEST_CASE(a_host_gets_all_of_the_plan_that_it_asked_for_where_another_comes_meanwhile) {
  joining host;
  const auto papers = some_papers(1);
  // One part of the profile, then the first window of the plan.
  std::atomic<int> parts = 0;
  member_end member(host.authority, "s1", papers, [&](saying& said) {
    if (said.kind == control_kind::paper_part &&
        ++parts == 1 + static_cast<int>(actors::papers_window))
      papers->put_plan(long_text(2), 2);
    return true;
  });
  host.asks("s1", member);
  const auto before = host.fetched();
  BOOST_CHECK(text_of(before, paper::plan) == long_text(1));
  BOOST_TEST(before.told.epoch == 1u);
  BOOST_TEST(!host.log.has("plan.refused"));
  // Asked again, the member tells of the other one and gives it.
  host.options.mine = plan_at_hand{before.told.plan().sha256, 1};
  const auto after = host.fetched();
  BOOST_CHECK(text_of(after, paper::plan) == long_text(2));
  BOOST_TEST(after.told.epoch == 2u);
}

BOOST_AUTO_TEST_CASE(a_host_goes_on_where_a_member_left_it) {
  joining host;
  // Longer than the test has patience: the end of the connection is seen as such.
  host.options.silent_for = std::chrono::seconds(60);
  static_assert(test::patience < std::chrono::seconds(60));
  std::atomic<int> parts = 0;
  member_end* first = nullptr;
  member_end ends(host.authority, "s1", some_papers(1), [&](saying& said) {
    if (said.kind == control_kind::paper_part && ++parts == 8) first->leave(first->last_host);
    return parts < 8;
  });
  first = &ends;
  member_end other(host.authority, "s2", some_papers(1));
  host.asks("s1", ends);
  host.asks("s2", other);
  BOOST_CHECK(text_of(host.fetched(), paper::plan) == long_text(1));
  // One part of the profile, six of the plan.
  BOOST_REQUIRE(!other.offsets.empty());
  BOOST_TEST(other.offsets.front() == 6 * net::bulk_part_bytes);
  BOOST_TEST(host.log.has("its connection ended"));
}

BOOST_AUTO_TEST_CASE(a_later_process_goes_on_where_one_before_it_was) {
  joining host;
  std::atomic<int> parts = 0;
  {
    member_end member(host.authority, "s1", some_papers(1), [&](saying& said) {
      return said.kind != control_kind::paper_part || ++parts < 8;
    });
    host.asks("s1", member);
    host.options.once = true;
    host.options.silent_for = std::chrono::seconds(2);
    const auto none = host.fetch();
    BOOST_REQUIRE_MESSAGE(none.has_value(), (none ? "" : none.error().message));
    BOOST_CHECK(!none->has_value());
    BOOST_TEST(!host.keeps_nothing());
    BOOST_TEST(host.log.has("has sent no 4 parts within 2 s"));
  }
  host.options.members.clear();
  host.options.silent_for = std::chrono::seconds(10);
  member_end member(host.authority, "s1", some_papers(1));
  host.asks("s1", member);
  BOOST_CHECK(text_of(host.fetched(), paper::plan) == long_text(1));
  // The profile was kept nowhere, as nobody had used it.
  BOOST_REQUIRE(member.offsets.size() > 1);
  BOOST_TEST(member.offsets[1] == 6 * net::bulk_part_bytes);
}

BOOST_AUTO_TEST_CASE(a_member_that_never_comes_to_an_end_is_given_up) {
  // The same part again and again; parts of a byte; nothing at all; and what no member says to a host that joins.
  const std::vector<std::function<bool(member_end&, saying&)>> ways{
      [](member_end& self, saying& said) {
        if (said.kind != control_kind::paper_part) return true;
        --said.attempt;
        for (int i = 0; i < 200; ++i) self.say(self.last_host, said);
        return true;
      },
      [](member_end&, saying& said) {
        if (said.kind == control_kind::paper_part) said.payload.resize(9);
        return true;
      },
      [](member_end&, saying& said) { return said.kind != control_kind::paper_part; },
      [](member_end&, saying& said) {
        if (said.kind == control_kind::paper_part) said.kind = control_kind::status;
        return true;
      },
      [](member_end&, saying& said) {
        if (said.kind == control_kind::plan_told) said.payload = "{\"version\":1}";
        return true;
      },
      [](member_end&, saying& said) {
        if (said.kind == control_kind::plan_told) said.payload.append(70'000, ' ');
        return true;
      }};
  for (const auto& way : ways) {
    joining host;
    host.options.silent_for = std::chrono::seconds(2);
    std::atomic<bool> inside = false;
    member_end* self = nullptr;
    member_end bad(host.authority, "s1", some_papers(1), [&](saying& said) {
      if (inside.exchange(true)) return true;
      const auto goes_on = way(*self, said);
      inside = false;
      return goes_on;
    });
    self = &bad;
    member_end good(host.authority, "s2", some_papers(1));
    host.asks("s1", bad);
    host.asks("s2", good);
    const auto fetched = host.fetched();
    BOOST_CHECK(text_of(fetched, paper::plan) == long_text(1));
    BOOST_TEST(fetched.from == "s2");
    BOOST_TEST(host.log.has("plan.refused peer=s1"));
  }
}

BOOST_AUTO_TEST_CASE(a_plan_of_another_model_or_cluster_is_refused_by_name) {
  joining host;
  member_end member(host.authority, "s1", some_papers(1, 1, "another model"));
  host.asks("s1", member);
  const auto other = host.fetch();
  BOOST_REQUIRE(!other);
  BOOST_TEST(says(other.error().message, "s1 goes by a plan for another model"),
             other.error().message);
  host.options.model = "another model";
  host.options.cluster_file = "another cluster file";
  const auto another = host.fetch();
  BOOST_REQUIRE(!another);
  BOOST_TEST(says(another.error().message, "s1 goes by a plan for another cluster file"),
             another.error().message);
  BOOST_TEST(member.offsets.empty());
}

BOOST_AUTO_TEST_CASE(a_plan_that_changes_meanwhile_is_asked_for_anew) {
  joining host;
  const auto papers = some_papers(1, 1);
  std::atomic<int> parts = 0;
  member_end member(host.authority, "s1", papers, [&](saying& said) {
    // Told of the one, it asks for that; by then it is another.
    if (said.kind == control_kind::plan_told && parts++ == 0) papers->put_plan(long_text(2), 2);
    return true;
  });
  host.asks("s1", member);
  const auto fetched = host.fetched();
  BOOST_CHECK(text_of(fetched, paper::plan) == long_text(2));
  BOOST_TEST(fetched.told.epoch == 2u);
  BOOST_TEST(host.log.has("another plan by now"));
}

BOOST_AUTO_TEST_CASE(the_plan_of_most_members_is_fetched) {
  joining host;
  member_end stale(host.authority, "s1", some_papers(1, 9));
  member_end one(host.authority, "s2", some_papers(2, 3));
  member_end two(host.authority, "s3", some_papers(2, 3));
  host.asks("s1", stale);
  host.asks("s2", one);
  host.asks("s3", two);
  BOOST_CHECK(text_of(host.fetched(), paper::plan) == long_text(2));
}

BOOST_AUTO_TEST_CASE(without_anybody_to_ask_the_remedy_is_named_and_one_round_ends) {
  joining host;
  host.options.members = {{"s1", std::nullopt}};
  const auto nobody = host.fetch();
  BOOST_REQUIRE(!nobody);
  BOOST_TEST(says(nobody.error().message, "bring plan and profile here by hand"),
             nobody.error().message);
  host.options.members = {{"s1", net::address{"127.0.0.1", 1}}};
  host.options.once = true;
  const auto away = host.fetch();
  BOOST_REQUIRE_MESSAGE(away.has_value(), (away ? "" : away.error().message));
  BOOST_CHECK(!away->has_value());
  host.options.once = false;
  host.options.pause = [] { return true; };
  const auto stopped = host.fetch();
  BOOST_REQUIRE(!stopped);
  BOOST_CHECK(stopped.error().code == errc::interrupted);
}

BOOST_AUTO_TEST_CASE(a_node_tells_a_host_that_joins_its_plan_and_nothing_else) {
  test::nodes cluster;
  cluster.papers = some_papers(1);
  cluster.start(1);
  bare_end host;
  auto options = cluster.dialling(1, "s0", net::role::node);
  options.dials_for = net::dial_purpose::joining;
  host.start(options);
  BOOST_REQUIRE(eventually([&] { return host.is_up(); }));
  BOOST_REQUIRE(host.say(control_kind::plan_asked, ""));
  BOOST_REQUIRE(eventually([&] { return host.n_frames() == 1; }));
  const auto told = host.frames().front();
  BOOST_CHECK(static_cast<control_kind>(told.header.kind) == control_kind::plan_told);
  BOOST_CHECK(*actors::parse_notice(told.text) == cluster.papers->notice());
  // Neither requests nor orders: it is no console.
  for (const auto kind : {control_kind::submit, control_kind::order, control_kind::run_expert}) {
    bare_end another;
    another.start(options);
    BOOST_REQUIRE(eventually([&] { return another.is_up(); }));
    another.say(kind, R"({"ref":1,"verb":"status","arguments":{},"dry_run":false})");
    BOOST_CHECK(eventually([&] {
      for (const auto& each : another.events(net::session_event::what::down))
        if (says(each.text, "expected plan_asked or paper_asked")) return true;
      return false;
    }));
    BOOST_TEST(another.n_frames() == 0u);
  }
  BOOST_TEST(host.is_up());
}

BOOST_AUTO_TEST_CASE(a_node_that_all_refuse_for_its_plan_knows_it_until_it_is_with_them) {
  test::nodes cluster;
  cluster.plan_digest[0] = "another plan";
  cluster.start(2);
  cluster.start(1);
  cluster.await_up(1, {2});
  BOOST_TEST(!cluster[1].is_refused_for_plan());
  cluster.start(0);
  BOOST_REQUIRE(eventually([&] { return cluster[0].is_refused_for_plan(); }));
  // Those who are with each other do not doubt theirs.
  BOOST_TEST(!cluster[1].is_refused_for_plan());
  BOOST_TEST(!cluster[2].is_refused_for_plan());
  cluster.stop(0);
  cluster.plan_digest[0] = cluster.plan_digest[1];
  cluster.start(0);
  cluster.await_up(0, {1, 2});
  BOOST_TEST(!cluster[0].is_refused_for_plan());
}

BOOST_AUTO_TEST_CASE(one_that_comes_and_goes_takes_no_refusal_of_another_back) {
  test::nodes cluster;
  cluster.plan_digest[1] = "another plan";
  // Known by its address, and not there yet.
  cluster.start_bare(2).stop();
  auto& refuses = cluster.start_bare(1);
  cluster.start(0);
  BOOST_REQUIRE(eventually([&] { return cluster[0].is_refused_for_plan(); }));
  refuses.stop();
  auto& comes = cluster.start_bare(2);
  cluster.await_up(0, {2});
  BOOST_TEST(!cluster[0].is_refused_for_plan());
  comes.stop();
  BOOST_TEST(eventually([&] { return cluster[0].is_refused_for_plan(); }));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
