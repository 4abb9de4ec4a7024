#include "gateway/starting_backend.hpp"

#include <boost/test/unit_test.hpp>
#include <future>
#include <nlohmann/json.hpp>

#include "test/gateway/scene.hpp"

namespace ordermoe::gateway {

namespace {

using made = result<std::unique_ptr<backend>>;

/// A gateway in front of what starts when the test says so.
struct starting_scene {
  starting_scene() {
    gateway_options options;
    options.listen.port = 0;
    auto model = describe_model(ORDERMOE_DATA "/models/lineage");
    BOOST_TEST_REQUIRE(model.has_value());
    options.model = std::move(*model);
    auto behind_it = std::make_unique<starting_backend>(
        [start = std::make_shared<std::future<made>>(begun.get_future())] { return start->get(); });
    behind = behind_it.get();
    auto started = gateway::start(std::move(options), std::move(behind_it));
    BOOST_TEST_REQUIRE(started.has_value());
    running = std::move(*started);
  }

  net::http_reply fetch(const std::string& method, const std::string& path,
                        const std::string& body = {}) const {
    net::http_ask ask;
    ask.to = {false, running->listens_at(), ""};
    ask.method = method;
    ask.path = path;
    ask.body = body;
    ask.fields = {{"Authorization", "Bearer t"}};
    auto reply = net::http_fetch(ask);
    BOOST_TEST_REQUIRE(reply.has_value(), (reply ? "" : reply.error().message));
    return *reply;
  }
  void await_outcome() const {
    while (!behind->outcome()) std::this_thread::yield();
  }

  std::promise<made> begun;
  starting_backend* behind = nullptr;
  std::unique_ptr<gateway> running;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(starting)

BOOST_AUTO_TEST_CASE(a_gateway_is_live_and_not_ready_while_its_servers_load) {
  starting_scene at;
  BOOST_TEST(at.fetch("GET", "/health/live").status == 200);
  const auto unready = at.fetch("GET", "/health/ready");
  BOOST_TEST(unready.status == 503);
  BOOST_TEST(unready.body.find("still starting") != std::string::npos, unready.body);
  // What is asked is told to come later; what needs no server is answered.
  for (const char* path : {"/v1/completions", "/admin/orders"})
    BOOST_TEST(at.fetch("POST", path, R"({"prompt":"a"})").status == 503, path);
  BOOST_TEST(at.fetch("GET", "/ordermoe/status").status == 503);
  BOOST_TEST(at.fetch("GET", "/v1/models").status == 200);
  BOOST_TEST(at.fetch("GET", "/metrics").status == 200);
  BOOST_TEST(!at.behind->outcome().has_value());
  const auto script = std::make_shared<scripted_backend::state>();
  at.begun.set_value(std::unique_ptr<backend>(new scripted_backend(script)));
  at.await_outcome();
  BOOST_TEST(at.behind->outcome()->has_value());
  BOOST_TEST(at.fetch("GET", "/health/ready").status == 200);
  BOOST_TEST(at.fetch("GET", "/ordermoe/status").status == 200);
  at.running->stop();
  BOOST_TEST(script->was_stopped);
  // Once, whoever ends behind it.
  at.running.reset();
  BOOST_TEST(script->n_stopped == 1u);
}

BOOST_AUTO_TEST_CASE(servers_that_do_not_start_say_why) {
  starting_scene at;
  at.begun.set_value(error{errc::infeasible, "nothing fits"});
  at.await_outcome();
  BOOST_TEST(at.behind->outcome()->error().message == "nothing fits");
  BOOST_TEST(at.fetch("GET", "/health/live").status == 200);
  BOOST_TEST(at.fetch("GET", "/health/ready").status == 503);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
