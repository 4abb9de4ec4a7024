#include "gateway/order_desk.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "test/gateway/scene.hpp"

namespace ordermoe::gateway {

namespace {

const std::string path = "/admin/orders";
const std::string drain = R"({"verb":"drain","node":"s1"})";
/// What an admin says to whom it hears.
const std::string done = R"({"bearer":{"token":"ada","role":"admin"},"operation":"s1.1.1",
    "epoch_before":3,"epoch_after":3,"result":{"drained":true}})";

std::string refusal(errc code, const std::string& lacks = {}) {
  json problem{{"code", static_cast<int>(code)}, {"message", "no, since"}};
  if (!lacks.empty()) problem["lacks"] = lacks;
  return json{{"problem", problem}}.dump();
}

net::http_fields bearer(const std::string& token) {
  return {{"Authorization", "Bearer " + token}};
}

/// An order that is on its way when it returns.
std::unique_ptr<net::raw_client> begin_order(const scene& at, const std::string& body,
                                             const std::string& token,
                                             const std::string& fields = {},
                                             const char* from = nullptr) {
  auto client = std::make_unique<net::raw_client>(at.at, 0, from);
  client->send("POST /admin/orders HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + fields +
               "Authorization: Bearer " + token +
               "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  return client;
}

int status_of(const std::string& reply) {
  BOOST_TEST_REQUIRE(reply.size() > 12u);
  return std::stoi(reply.substr(9, 3));
}

json body_of(const std::string& reply) {
  return json::parse(reply.substr(reply.find("\r\n\r\n") + 4));
}

/// Answers the i-th order with this; gives what whoever gave it is told.
std::string answered(scene& at, std::size_t i, const std::string& token,
                     const result<std::string>& reply, const std::string& body = drain) {
  const auto client = begin_order(at, body, token);
  at.wait_for_order(i).sink(reply);
  return client->all();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(orders)

BOOST_AUTO_TEST_CASE(an_order_goes_to_its_node_with_its_token_and_the_reply_comes_back) {
  scene at;
  const auto client = begin_order(
      at, R"({"verb":"plan.propose","node":"s2","arguments":{"strategy":"exact"},"dry_run":true})",
      "omt_0_1");
  const auto order = at.wait_for_order(0);
  BOOST_TEST(order.node == "s2");
  BOOST_TEST(order.wanted.verb == "plan.propose");
  BOOST_TEST(order.wanted.arguments == R"({"strategy":"exact"})");
  BOOST_TEST(order.wanted.token == "omt_0_1");
  BOOST_TEST(order.wanted.dry_run);
  order.sink(done);
  const auto reply = client->all();
  BOOST_TEST(status_of(reply) == 200);
  BOOST_TEST(reply.find("Cache-Control: no-store") != std::string::npos);
  BOOST_TEST(reply.find("omt_0_1") == std::string::npos, "the token is not told to anybody");
  BOOST_TEST(reply.find("Access-Control") == std::string::npos);
  const auto told = body_of(reply);
  BOOST_TEST(told["state"] == "done");
  BOOST_TEST(told["node"] == "s2");
  BOOST_TEST(told["bearer"]["role"] == "admin");
  BOOST_TEST(told["epoch_after"] == 3);
  BOOST_TEST(told["result"]["drained"] == true);
  // What is left out: no arguments, whichever node, and it is meant.
  begin_order(at, R"({"verb":"members"})", "omt_0_1")->send("");
  const auto plain = at.wait_for_order(1);
  BOOST_TEST(plain.node.empty());
  BOOST_TEST(plain.wanted.arguments == "{}");
  BOOST_TEST(!plain.wanted.dry_run);
}

BOOST_AUTO_TEST_CASE(what_a_node_refuses_is_told_in_the_words_of_http) {
  struct {
    result<std::string> reply;
    int status;
    json code;
  } const cases[] = {
      {refusal(errc::usage, "token"), 401, "invalid_token"},
      {refusal(errc::usage, "role"), 403, "insufficient_role"},
      {refusal(errc::usage), 400, nullptr},
      {refusal(errc::out_of_range), 400, nullptr},
      {refusal(errc::not_found), 404, "not_found"},
      {refusal(errc::mismatch), 409, "conflict"},
      {refusal(errc::failed), 409, "conflict"},
      {refusal(errc::infeasible), 409, "conflict"},
      {error{errc::io, "no, since"}, 503, "server_lost"},
      {std::string(R"({"problem":{"code":0,"message":"no, since","lacks":5}})"), 400, nullptr},
  };
  for (const auto& [reply, status, code] : cases) {
    // One each: several would be a crowd of strangers.
    scene at;
    const auto told = answered(at, 0, "omt_0_1", reply);
    BOOST_TEST(status_of(told) == status, told);
    BOOST_TEST(body_of(told)["error"]["code"] == code, told);
    BOOST_TEST(body_of(told)["error"]["message"] == "no, since");
  }
}

BOOST_AUTO_TEST_CASE(without_a_token_nothing_is_asked_of_a_node) {
  scene at;
  for (const char* field : {"", "Bearer ", "Bearer", "Basic YTpi", "omt_0_1"}) {
    const auto reply = at.fetch("POST", path, drain, {{"Authorization", field}});
    BOOST_TEST(reply.status == 401, field);
    BOOST_TEST(at.fetch("GET", path + "/order-0", "", {{"Authorization", field}}).status == 401);
  }
  BOOST_TEST(at.fetch("POST", path, drain).status == 401);
  // Nor does an API key say anything of an operator.
  scene locked([](gateway_options& options) { options.keys = api_keys({"0123456789abcdef"}); });
  BOOST_TEST(locked.fetch("POST", path, drain).status == 401);
  BOOST_TEST(answered(locked, 0, "0123456789abcdef", refusal(errc::usage, "token"))
                 .starts_with("HTTP/1.1 401"));
  BOOST_TEST(locked.wait_for_order(0).wanted.token == "0123456789abcdef");
  BOOST_TEST(at.n_orders() == 0u);
}

BOOST_AUTO_TEST_CASE(bodies_that_are_no_orders_are_refused_by_name) {
  scene at;
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  struct {
    std::string body;
    int status;
    json param;
  } const cases[] = {
      {"", 400, nullptr},
      {"{", 400, nullptr},
      {"[]", 400, nullptr},
      {"\xff\xfe", 400, nullptr},
      {R"({"verb":"drain","verb":"resume"})", 400, nullptr},
      {R"({"verb":"drain","arguments":)" + deep + "}", 400, nullptr},
      {R"({"node":"s0"})", 400, "verb"},
      {R"({"verb":7})", 400, "verb"},
      {R"({"verb":"token.create","arguments":{"name":"x","role":"admin"}})", 400, "verb"},
      {R"({"verb":"policy.set"})", 400, "verb"},
      {R"({"verb":"cert.reload"})", 400, "verb"},
      {R"({"verb":"members.remove"})", 400, "verb"},
      {R"({"verb":"audit"})", 400, "verb"},
      {R"({"verb":"drain","arguments":[]})", 400, "arguments"},
      {R"({"verb":"drain","arguments":"x"})", 400, "arguments"},
      {R"({"verb":"drain","node":5})", 400, "node"},
      {R"({"verb":"drain","dry_run":"yes"})", 400, "dry_run"},
      {R"({"verb":"drain","token":"omt"})", 400, "token"},
      {R"({"verb":"drain","by_token_alone":false})", 400, "by_token_alone"},
      {R"({"verb":"drain","node":")" + std::string(17u << 10, 'x') + "\"}", 413, nullptr},
  };
  for (const auto& [body, status, param] : cases) {
    const auto reply = at.fetch("POST", path, body, bearer("omt_0_1"));
    BOOST_TEST(reply.status == status, body.substr(0, 80) << " " << reply.body);
    BOOST_TEST(json::parse(reply.body)["error"]["param"] == param, reply.body);
  }
  BOOST_TEST(at.n_orders() == 0u);
}

BOOST_AUTO_TEST_CASE(other_methods_and_other_pages_give_no_orders) {
  scene at;
  for (const char* method : {"GET", "PUT", "DELETE", "OPTIONS", "PATCH"})
    BOOST_TEST(at.fetch(method, path, drain, bearer("t")).status == 405, method);
  for (const char* method : {"POST", "PUT", "DELETE", "OPTIONS"})
    BOOST_TEST(at.fetch(method, path + "/order-0", "", bearer("t")).status == 405, method);
  for (const char* fields : {"Origin: http://evil.example\r\n", "Origin: null\r\n",
                             "Origin: https://localhost.evil\r\n"})
    BOOST_TEST(begin_order(at, drain, "t", fields)->all().starts_with("HTTP/1.1 403"), fields);
  // With keys as well, where hosts may have any name.
  scene locked([](gateway_options& options) { options.keys = api_keys({"0123456789abcdef"}); });
  BOOST_TEST(begin_order(locked, drain, "t", "Origin: http://evil.example\r\n")
                 ->all()
                 .starts_with("HTTP/1.1 403"));
  BOOST_TEST(at.n_orders() + locked.n_orders() == 0u);
  const auto own = begin_order(locked, drain, "t", "Origin: http://localhost\r\n");
  locked.wait_for_order(0).sink(done);
  BOOST_TEST(own->all().starts_with("HTTP/1.1 200"));
}

BOOST_AUTO_TEST_CASE(servers_of_one_process_have_nothing_to_administer) {
  scene at;
  at.script->takes_orders = false;
  const auto reply = at.fetch("POST", path, drain, bearer("t"));
  BOOST_TEST(reply.status == 404);
  BOOST_TEST(json::parse(reply.body)["error"]["code"] == "nothing_to_administer");
  BOOST_TEST(json::parse(at.fetch("GET", "/ordermoe/status").body)["takes_orders"] == false);
  BOOST_TEST(at.n_orders() == 0u);
}

BOOST_AUTO_TEST_CASE(a_long_order_is_told_of_while_it_goes_on_and_to_its_token_alone) {
  scene at([](gateway_options& options) { options.orders.hold = 20ms; });
  const auto client = begin_order(at, R"({"verb":"plan.apply","node":"s1"})", "ada");
  const auto began = client->all();
  BOOST_TEST(status_of(began) == 202);
  const auto told = body_of(began);
  BOOST_TEST(told["state"] == "running");
  BOOST_TEST(told["verb"] == "plan.apply");
  BOOST_TEST(told["seconds"].get<double>() >= 0);
  const auto where = path + "/" + told["order"].get<std::string>();
  BOOST_TEST(began.find("Location: " + where + "\r\n") != std::string::npos, began);
  BOOST_TEST(at.fetch("GET", where, "", bearer("ada")).status == 202);
  const auto other = at.fetch("GET", where, "", bearer("eve"));
  BOOST_TEST(other.status == 404);
  BOOST_TEST(other.body == at.fetch("GET", path + "/order-0", "", bearer("eve")).body,
             "one that is there looks like one that is not");
  at.wait_for_order(0).sink(done);
  for (int i = 0; i < 2; ++i) {
    const auto ended = at.fetch("GET", where, "", bearer("ada"));
    BOOST_TEST(ended.status == 200);
    BOOST_TEST(json::parse(ended.body)["operation"] == "s1.1.1");
  }
  // Whoever looks when it ends is told at once, and refusals likewise.
  const auto refused = body_of(begin_order(at, drain, "ada")->all());
  net::http_reply late;
  std::thread looker([&] {
    late = at.fetch("GET", path + "/" + refused["order"].get<std::string>(), "", bearer("ada"));
  });
  at.wait_for_order(1).sink(refusal(errc::usage, "role"));
  looker.join();
  BOOST_TEST((late.status == 403 || late.status == 202));
  BOOST_TEST(
      at.fetch("GET", path + "/" + refused["order"].get<std::string>(), "", bearer("ada")).status ==
      403);
}

BOOST_AUTO_TEST_CASE(an_order_that_is_never_answered_ends_and_makes_room) {
  scene at([](gateway_options& options) { options.orders.second = 10ms; });
  const auto client = begin_order(at, drain, "ada");
  at.wait_for_order(0);
  const auto late = client->all();
  BOOST_TEST(status_of(late) == 504, late);
  // What comes afterwards changes nothing.
  at.wait_for_order(0).sink(done);
  BOOST_TEST(at.fetch("GET", "/health/live").status == 200);
}

BOOST_AUTO_TEST_CASE(a_crowd_of_strangers_holds_up_nobody_who_is_known) {
  scene at;
  BOOST_TEST(answered(at, 0, "ada", done).starts_with("HTTP/1.1 200"));
  // One more of this address begins in this second, or it is another second: at most so many are under way all the same.
  std::vector<std::unique_ptr<net::raw_client>> crowd;
  while (at.n_orders() < 1 + order_desk::most_strangers) {
    const auto before = at.n_orders();
    crowd.push_back(begin_order(at, drain, "wrong" + std::to_string(crowd.size())));
    // Refused for coming too fast, or taken.
    for (int i = 0; i < 200 && at.n_orders() == before; ++i) std::this_thread::sleep_for(5ms);
  }
  const auto refused = begin_order(at, drain, "wrong")->all();
  BOOST_TEST(refused.starts_with("HTTP/1.1 429"), refused);
  BOOST_TEST(refused.find("Retry-After: 1") != std::string::npos);
  BOOST_TEST(answered(at, at.n_orders(), "ada", done).starts_with("HTTP/1.1 200"));
  BOOST_TEST(at.fetch("GET", "/health/live").status == 200);
  // A token that does not hold any more is a stranger's.
  BOOST_TEST(answered(at, at.n_orders(), "ada", refusal(errc::usage, "token"))
                 .starts_with("HTTP/1.1 401"));
  BOOST_TEST(begin_order(at, drain, "ada")->all().starts_with("HTTP/1.1 429"));
}

BOOST_AUTO_TEST_CASE(a_crowd_of_strangers_throws_away_nothing_of_who_is_known) {
  scene at([](gateway_options& options) { options.orders.hold = 20ms; });
  const auto began = begin_order(at, R"({"verb":"plan.apply","node":"s1"})", "ada")->all();
  BOOST_TEST_REQUIRE(status_of(began) == 202);
  const auto where = path + "/" + body_of(began)["order"].get<std::string>();
  at.wait_for_order(0).sink(done);
  for (std::size_t i = 0; i < order_desk::most_kept; ++i) {
    // As many addresses as it takes not to be told to come later.
    const auto from = "127.0.1." + std::to_string(1 + i / order_desk::most_strangers_a_second);
    const auto stranger = begin_order(at, drain, "guess" + std::to_string(i), {}, from.c_str());
    at.wait_for_order(1 + i).sink(refusal(errc::usage, "token"));
    // The latter where somebody else needed the machine.
    const auto told = status_of(stranger->all());
    BOOST_TEST((told == 401 || told == 202), told);
  }
  BOOST_TEST(at.fetch("GET", where, "", bearer("ada")).status == 200);
}

BOOST_AUTO_TEST_CASE(wrong_tokens_of_one_address_are_tried_so_often_a_second) {
  scene at;
  std::thread refuser([&] {
    // As fast as a node says so.
    for (std::size_t i = 0; i < order_desk::most_strangers_a_second; ++i)
      at.wait_for_order(i).sink(refusal(errc::usage, "token"));
  });
  const auto begun = std::chrono::steady_clock::now();
  std::vector<int> told;
  for (std::size_t i = 0; i <= order_desk::most_strangers_a_second; ++i)
    told.push_back(status_of(begin_order(at, drain, "guess" + std::to_string(i))->all()));
  refuser.join();
  const bool in_one_second = std::chrono::steady_clock::now() - begun < 1s;
  if (in_one_second) BOOST_TEST(told.back() == 429);
  BOOST_TEST(told.front() == 401);
}

BOOST_AUTO_TEST_CASE(only_so_many_orders_are_under_way) {
  scene at;
  BOOST_TEST(answered(at, 0, "ada", done).starts_with("HTTP/1.1 200"));
  std::vector<std::unique_ptr<net::raw_client>> clients;
  for (std::size_t i = 0; i < order_desk::most_running; ++i)
    clients.push_back(begin_order(at, drain, "ada"));
  at.wait_for_order(order_desk::most_running);
  BOOST_TEST(begin_order(at, drain, "ada")->all().starts_with("HTTP/1.1 429"));
  at.wait_for_order(1).sink(done);
  BOOST_TEST(clients.front()->all().starts_with("HTTP/1.1 200"));
  const auto next = begin_order(at, drain, "ada");
  at.wait_for_order(order_desk::most_running + 1).sink(done);
  BOOST_TEST(next->all().starts_with("HTTP/1.1 200"));
}

BOOST_AUTO_TEST_CASE(a_gateway_stops_with_orders_under_way) {
  scene at;
  const auto client = begin_order(at, drain, "ada");
  const auto order = at.wait_for_order(0);
  at.running->stop();
  BOOST_TEST(client->all().empty());
  order.sink(done);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
