#include "actors/admin/admin.hpp"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "test/actors/one_server.hpp"

namespace ordermoe {

namespace {

/// An admin beside a planner that answers nothing, as one that searches or loads experts.
struct one_admin : one_server {
  actors::admin_actor admin;
  std::string reply;  ///< The latest; empty: none came.

  one_admin() {
    context->seat.emplace().server = id;
    open();
    for (const std::uint32_t peer : {0u, 2u}) happens(peer, what::up);
    actors::admin_work work;
    work.context = context;
    work.planner = planner.as<actors::planner_actor>();
    work.server = edge;
    work.selector = view->selector;
    work.recorder = view->recorder;
    admin = keep(actors::spawn_admin(system(), std::move(work)));
  }

  const std::string& order(const std::string& verb, const std::string& arguments = "{}") {
    reply.clear();
    actors::admin_order given;
    given.who = "ada";
    given.role = "admin";
    given.text = fmt::format(R"({{"ref":1,"verb":"{}","arguments":{}}})", verb, arguments);
    given.reply = [this](std::string text) { reply = std::move(text); };
    tell(admin, std::move(given));
    return reply;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(node_orders)

BOOST_AUTO_TEST_CASE(what_concerns_no_plan_waits_for_no_planner) {
  one_admin world;
  BOOST_TEST(says(world.order("drain"), R"("drained":true)"), world.reply);
  BOOST_TEST(says(world.reply, R"("epoch_before":1,"epoch_after":1)"), world.reply);
  BOOST_TEST(world.status().drained);
  BOOST_TEST(says(world.order("resume"), R"("drained":false)"), world.reply);
  BOOST_TEST(!world.status().drained);
  world.submit();
  BOOST_TEST(says(world.order("requests.cancel", R"({"request":7})"), R"("request":7)"),
             world.reply);
  BOOST_TEST(world.finish() == "cancelled");
  BOOST_TEST(says(world.order("requests.cancel", R"({"request":7})"), "is not being answered"),
             world.reply);
  BOOST_TEST(says(world.order("cert.reload"), "has no certificate"), world.reply);
  // What does waits.
  BOOST_TEST(world.order("plan.show") == "");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
