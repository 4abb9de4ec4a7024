#include <boost/test/unit_test.hpp>
#include <future>

#include "actors/admin/admin.hpp"
#include "test/actors/cluster/nodes.hpp"

/// Orders for whoever has a token, handed on by others: a gateway has a certificate, and speaks for people who have none.
namespace ordermoe {

namespace {

using nlohmann::ordered_json;
using test::eventually;
using test::nodes;
using test::says;

struct tokened : nodes {
  std::unique_ptr<actors::cluster_client> console;
  std::map<std::string, std::string> secrets;  ///< By role.

  tokened() : nodes("exact", test::world::roomy) {
    start_all();
    // What hands orders on may do everything itself.
    console = client(0, "ada", net::role::admin);
    for (const char* role : {"viewer", "operator", "admin"}) {
      const ordered_json arguments{
          {"name", fmt::format("of-{}", role)}, {"role", role}, {"for_s", 3600}};
      const auto made = console->order("token.create", arguments.dump(), false, test::patience);
      BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
      secrets[role] = ordered_json::parse(*made)["result"]["token"];
    }
  }

  template <class Giver>
  ordered_json give(Giver& to, const std::string& token, const std::string& verb,
                    const ordered_json& arguments = ordered_json::object(), bool dry_run = false) {
    auto told = std::make_shared<std::promise<ordered_json>>();
    to.give({verb, arguments.dump(), token, dry_run}, [told](const result<std::string>& reply) {
      told->set_value(reply ? ordered_json::parse(*reply)
                            : ordered_json{{"lost", reply.error().message}});
    });
    auto future = told->get_future();
    BOOST_REQUIRE((future.wait_for(test::patience) == std::future_status::ready));
    return future.get();
  }
  static std::string lacks(const ordered_json& reply) {
    return reply.contains("problem") ? reply["problem"].value("lacks", "") : "";
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(bearer)

BOOST_AUTO_TEST_CASE(an_order_for_a_token_counts_by_the_token_alone) {
  tokened cluster;
  struct one {
    const char* verb;
    std::size_t least;  ///< Place among the roles.
  };
  const one all[] = {{"members", 0}, {"plan.show", 0},    {"plan.diff", 0},  {"drain", 1},
                     {"resume", 1},  {"plan.propose", 1}, {"plan.abort", 2}, {"plan.apply", 2},
                     {"audit", 2},   {"token.create", 2}};
  const char* roles[] = {"viewer", "operator", "admin"};
  for (const auto& [verb, least] : all) {
    BOOST_TEST_CONTEXT(verb) {
      for (std::size_t role = 0; role < 3; ++role) {
        const auto reply = cluster.give(*cluster.console, cluster.secrets[roles[role]], verb,
                                        ordered_json::object(), true);
        BOOST_TEST(cluster.lacks(reply) == (role < least ? "role" : ""), reply.dump());
        BOOST_TEST(reply["bearer"]["role"] == roles[role]);
        BOOST_TEST(reply["bearer"]["token"] == fmt::format("of-{}", roles[role]));
      }
      auto wrong = cluster.secrets["admin"];
      wrong.back() = wrong.back() == '0' ? '1' : '0';
      for (const auto& none : {std::string(), std::string("nonsense"), wrong}) {
        const auto reply = cluster.give(*cluster.console, none, verb);
        BOOST_TEST(cluster.lacks(reply) == "token", reply.dump());
        BOOST_TEST(!reply.contains("bearer"));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(what_a_token_did_is_audited_by_its_name_and_revoking_it_ends_it) {
  tokened cluster;
  const auto drained = [&] {
    const auto told = cluster.console->order("members", "{}", false, test::patience);
    return ordered_json::parse(*told)["result"]["drained"].get<bool>();
  };
  const auto& secret = cluster.secrets["operator"];
  auto reply = cluster.give(*cluster.console, secret, "drain", ordered_json::object(), true);
  BOOST_TEST(reply["dry_run"] == true);
  BOOST_TEST(!drained());
  reply = cluster.give(*cluster.console, secret, "drain");
  BOOST_TEST(reply["operation"].get<std::string>() != "");
  BOOST_TEST(drained());
  // A user of the node's own process has no certificate at all.
  reply = cluster.give(cluster[0], secret, "resume");
  BOOST_TEST(reply.contains("result"), reply.dump());
  BOOST_TEST(!reply.contains("ref"));
  BOOST_TEST(!drained());
  BOOST_TEST(cluster.lacks(cluster.give(cluster[0], "", "resume")) == "token");
  const auto told = cluster.console->order("audit", "{}", false, test::patience);
  const auto orders = ordered_json::parse(*told)["result"]["orders"];
  const auto is_of = [](const char* who, const char* role) {
    return [=](const ordered_json& line) {
      return line["who"] == who && line["role"] == role &&
             line.value("token", "") == "of-operator" && line["what"] == "done";
    };
  };
  BOOST_TEST(std::ranges::any_of(orders, is_of("ada", "operator")), orders.dump());
  BOOST_TEST(std::ranges::any_of(orders, is_of("gateway", "operator")), orders.dump());
  BOOST_TEST(!says(orders.dump(), secret.substr(secret.rfind('_') + 1)));
  BOOST_TEST(
      cluster.console->order("token.revoke", R"({"name":"of-operator"})", false, test::patience)
          .has_value());
  BOOST_TEST(cluster.lacks(cluster.give(*cluster.console, secret, "drain")) == "token");
  BOOST_TEST(!drained());
}

BOOST_AUTO_TEST_CASE(an_order_whose_node_goes_away_ends_by_name) {
  tokened cluster;
  const auto reply = cluster.give(*cluster.console, cluster.secrets["viewer"], "members");
  BOOST_TEST(reply["result"]["node"] == "s0");
  cluster.stop(0);
  BOOST_REQUIRE(eventually([&] { return !cluster.console->is_up(); }));
  const auto lost = cluster.give(*cluster.console, cluster.secrets["viewer"], "members");
  BOOST_TEST(says(lost.value("lost", ""), "s0 is not connected"), lost.dump());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
