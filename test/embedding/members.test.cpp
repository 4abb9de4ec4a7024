#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <deque>
#include <filesystem>
#include <future>
#include <mutex>
#include <nlohmann/json.hpp>

#include "config/log_events.hpp"
#include "embedding/configuration.hpp"
#include "net/identity/certificates.hpp"
#include "ordermoe/actors.hpp"
#include "test/embedding/fixture.hpp"

/// The faces with servers that are apart: members of a cluster in this process, and clients.
namespace ordermoe {

namespace {

namespace fs = std::filesystem;
using api::problem_code;

const std::string question = "Q: 75 * 5\nA:";

std::string config_of(const setup::cluster_folder& folder, int m) {
  return folder.config("s" + std::to_string(m)).string();
}

api::node member(const setup::cluster_folder& folder, int m, caf::actor_system* host = nullptr) {
  const api::member_options options{.config = config_of(folder, m)};
  auto begun = host != nullptr ? api::start_in(*host, options) : api::node::start(options);
  BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.problem().message));
  return std::move(*begun);
}

/// Whether the others are known to be there.
bool sees_all(api::node& node) {
  const auto status = node.status();
  BOOST_REQUIRE_MESSAGE(status, (status ? "" : status.problem().message));
  const auto read = nlohmann::json::parse(*status);
  for (const auto& peer : read["peers"])
    if (!peer["up"].get<bool>()) return false;
  return true;
}

void await_all(std::deque<api::node>& nodes) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  for (auto& node : nodes)
    while (!sees_all(node)) {
      BOOST_REQUIRE(std::chrono::steady_clock::now() < limit);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
}

api::node connected(const setup::cluster_folder& folder, const std::string& address) {
  auto client = api::node::connect({.address = address, .folder = folder.path.string()});
  BOOST_REQUIRE_MESSAGE(client, (client ? "" : client.problem().message));
  return std::move(*client);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(members)

BOOST_AUTO_TEST_CASE(members_and_clients_answer_with_the_references_ids) {
  const test::scratch_folder scratch;
  const auto folder = test::prepare_cluster(scratch);
  caf::actor_system_config config;
  caf::actor_system host(config);
  const auto before = host.registry().running();
  {
    // Two of them in one system of the host's, one in its own.
    std::deque<api::node> nodes;
    nodes.push_back(member(folder, 0, &host));
    nodes.push_back(member(folder, 1, &host));
    nodes.push_back(member(folder, 2));
    await_all(nodes);
    const auto expected = test::reference_ids(question, 12);
    const auto of_member = nodes[1].ask({.text = question, .max_tokens = 12});
    BOOST_REQUIRE_MESSAGE(of_member, (of_member ? "" : of_member.problem().message));
    BOOST_TEST(of_member->ids == expected, boost::test_tools::per_element());

    const auto address = nodes[0].listens_at().at(0);
    auto client = connected(folder, address);
    test::heard_answer heard;
    BOOST_REQUIRE(client.submit({.text = question, .max_tokens = 12}, heard.sink()));
    const auto told = heard.wait();
    BOOST_TEST(heard.mistake() == "");
    BOOST_TEST(told.ids == expected, boost::test_tools::per_element());
    const auto status = client.status();
    BOOST_REQUIRE(status);
    BOOST_TEST(nlohmann::json::parse(*status)["name"].get<std::string>() == "s0");

    // What is wrong with a prompt is known at the node, and told by it.
    const auto refused = client.ask({.text = "Q", .max_tokens = 100'000});
    BOOST_REQUIRE(!refused);
    BOOST_TEST(test::says(refused.problem().message, "positions"));

    // Cancelled, and stopped while it answers.
    test::heard_answer cancelled, stopped;
    const auto asked =
        client.submit({.text = "In early spring", .max_tokens = 300}, cancelled.sink());
    cancelled.wait_for_tokens(2);
    client.cancel(*asked);
    BOOST_TEST(cancelled.wait().finish == "cancelled");
    BOOST_REQUIRE(client.submit({.text = "In early spring", .max_tokens = 300}, stopped.sink()));
    stopped.wait_for_tokens(2);
    BOOST_TEST(bool(client.stop()));
    BOOST_REQUIRE(stopped.has_ended());
    BOOST_TEST(stopped.wait().finish == "stopped");

    // The node goes away: a client's answers end by name.
    auto left = connected(folder, address);
    test::heard_answer lost;
    BOOST_REQUIRE(left.submit({.text = "In early spring", .max_tokens = 300}, lost.sink()));
    lost.wait_for_tokens(1);
    BOOST_TEST(bool(nodes[0].stop()));
    const auto ended = lost.wait();
    BOOST_REQUIRE(ended.why.has_value());
    BOOST_TEST(test::says(ended.why->message, "s0"));
    BOOST_TEST((left.ask({.text = "Q"}).problem().code == problem_code::io));
    BOOST_TEST((left.status().problem().code == problem_code::io));
  }
  BOOST_TEST(host.registry().running() == before);
}

BOOST_AUTO_TEST_CASE(what_waits_for_a_node_refuses_within_its_log) {
  const test::scratch_folder scratch;
  const auto folder = test::prepare_cluster(scratch);
  std::atomic<api::node*> itself = nullptr;
  std::once_flag once;
  std::promise<bool> refused;
  std::deque<api::node> nodes;
  const auto log = [&](const api::log_record& record) {
    if (itself.load() == nullptr || record.event != "session.down") return;
    std::call_once(once, [&] {
      const auto told = itself.load()->stop();
      refused.set_value(!told && told.problem().code == problem_code::usage);
    });
  };
  auto begun = api::node::start(api::member_options{.config = config_of(folder, 0), .log = log});
  BOOST_REQUIRE_MESSAGE(begun, (begun ? "" : begun.problem().message));
  nodes.push_back(std::move(*begun));
  for (const int m : {1, 2}) nodes.push_back(member(folder, m));
  await_all(nodes);
  itself = &nodes[0];
  BOOST_TEST(bool(nodes[2].stop()));
  BOOST_TEST(refused.get_future().get());
  itself = nullptr;
  BOOST_TEST(bool(nodes[0].stop()));
}

BOOST_AUTO_TEST_CASE(a_log_is_told_nothing_once_it_is_to_be_silent) {
  const test::scratch_folder scratch;
  const auto folder = test::prepare_cluster(scratch);
  std::size_t n = 0;
  const auto how = embedding::configure(api::member_options{
      .config = config_of(folder, 0), .log = [&](const api::log_record&) { ++n; }});
  BOOST_REQUIRE_MESSAGE(how.has_value(), (how ? "" : how.error().message));
  how->log.tell(log_event::node_ends, {});
  BOOST_TEST(n == 1u);
  *how->is_silent = true;
  how->log.tell(log_event::node_ends, {});
  BOOST_TEST(n == 1u);
}

BOOST_AUTO_TEST_CASE(a_client_may_wait_for_as_long_as_it_takes) {
  const test::scratch_folder scratch;
  const auto folder = test::prepare_cluster(scratch);
  const auto node = member(folder, 0);
  constexpr auto longest = std::chrono::milliseconds::max();
  auto client = api::node::connect(
      {.address = node.listens_at().at(0), .folder = folder.path.string(), .longest = longest});
  BOOST_REQUIRE_MESSAGE(client, (client ? "" : client.problem().message));
  const auto told = client->order({.verb = "status", .longest = longest});
  BOOST_TEST(bool(told), (told ? "" : told.problem().message));
}

BOOST_AUTO_TEST_CASE(whoever_cannot_connect_is_told_why) {
  const test::scratch_folder scratch;
  const auto folder = test::prepare_cluster(scratch);
  const auto node = member(folder, 0);
  const auto good = api::client_options{.address = node.listens_at().at(0),
                                        .folder = folder.path.string(),
                                        .longest = std::chrono::seconds(10)};
  const auto refused = [&](const std::function<void(api::client_options&)>& change,
                           problem_code code, const std::string& words) {
    auto options = good;
    change(options);
    const auto client = api::node::connect(options);
    BOOST_REQUIRE_MESSAGE(!client, words);
    BOOST_TEST((client.problem().code == code), client.problem().message);
    BOOST_TEST(test::says(client.problem().message, words),
               "'" << client.problem().message << "' has no '" << words << "'");
  };
  refused([](auto& o) { o.address = "nonsense"; }, problem_code::malformed, "address");
  refused([](auto& o) { o.folder = ""; }, problem_code::usage, "folder");
  refused([](auto& o) { o.key = "other.key"; }, problem_code::usage, "folder");
  refused([](auto& o) { o.folder = "/nowhere"; }, problem_code::not_found, "/nowhere");
  // Nobody is there.
  const auto free = test::free_addresses(1).at(0);
  refused(
      [&](auto& o) {
        o.address = free;
        o.longest = std::chrono::milliseconds(300);
      },
      problem_code::io, free);
  // A certificate of another authority: each end refuses the other.
  const auto stranger = scratch.path / "stranger";
  BOOST_REQUIRE(net::make_authority(stranger, "edge3", 2).has_value());
  BOOST_REQUIRE(net::issue(stranger, {net::role::admin, "console", {}, 1}).has_value());
  refused(
      [&](auto& o) {
        o.folder = "";
        o.authority = (folder.certificates() / "ca.crt").string();
        o.certificate = (stranger / "console.crt").string();
        o.key = (stranger / "console.key").string();
      },
      problem_code::mismatch, "");
  refused([&](auto& o) { o.folder = scratch.path.string(); }, problem_code::not_found, "ca.crt");
}

BOOST_AUTO_TEST_CASE(a_member_that_cannot_start_is_told_why) {
  const test::scratch_folder scratch;
  const auto folder = test::prepare_cluster(scratch);
  const auto refused = [&](const std::string& config, problem_code code, const std::string& words) {
    const auto begun = api::node::start(api::member_options{.config = config});
    BOOST_REQUIRE_MESSAGE(!begun, words);
    BOOST_TEST((begun.problem().code == code), begun.problem().message);
    BOOST_TEST(test::says(begun.problem().message, words),
               "'" << begun.problem().message << "' has no '" << words << "'");
  };
  refused("", problem_code::usage, "config");
  refused("/nowhere/node.toml", problem_code::not_found, "/nowhere/node.toml");
  refused(scratch.write("node.toml", "name = 3\n"), problem_code::malformed, "node.toml:1");
  // The place that it would listen at is another's.
  const auto first = member(folder, 0);
  refused(config_of(folder, 0), problem_code::io, first.listens_at().at(0));
  // Its certificate is another node's.
  fs::copy_file(folder.certificates() / "s2.crt", folder.certificates() / "s1.crt",
                fs::copy_options::overwrite_existing);
  fs::copy_file(folder.certificates() / "s2.key", folder.certificates() / "s1.key",
                fs::copy_options::overwrite_existing);
  refused(config_of(folder, 1), problem_code::mismatch, "s1.crt");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
