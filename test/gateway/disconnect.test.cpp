#include <boost/test/unit_test.hpp>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "config/job.hpp"
#include "gateway/gateway.hpp"
#include "net/http/client.hpp"
#include "test/net/http/raw_client.hpp"

/// The bundled model on its servers, in this process, behind a gateway.
namespace ordermoe::gateway {

namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using wall = std::chrono::steady_clock;

struct bundled_gateway {
  bundled_gateway() {
    api::cluster_options what;
    what.model = ORDERMOE_DATA "/models/lineage";
    what.cluster = ORDERMOE_DATA "/clusters/edge8.toml";
    what.plan = ORDERMOE_DATA "/plans/lineage-edge8.json";
    auto behind = start_cluster(what, work);
    BOOST_TEST_REQUIRE(behind.has_value(), (behind ? "" : behind.error().message));
    gateway_options options;
    options.listen.port = 0;
    auto model = describe_model(what.model);
    BOOST_TEST_REQUIRE(model.has_value());
    options.model = std::move(*model);
    auto started = gateway::start(std::move(options), std::move(*behind));
    BOOST_TEST_REQUIRE(started.has_value());
    running = std::move(*started);
  }

  std::string fetch(const std::string& path) const {
    net::http_ask ask;
    ask.to = {false, running->listens_at(), ""};
    ask.path = path;
    auto reply = net::http_fetch(ask);
    BOOST_TEST_REQUIRE(reply.has_value());
    return reply->body;
  }
  /// KV memory that requests have, at all servers.
  std::int64_t reserved_bytes() const {
    std::int64_t sum = 0;
    const auto told = json::parse(fetch("/ordermoe/status"));
    for (const auto& each : told["servers"]) sum += each["reserved_bytes"].get<std::int64_t>();
    return sum;
  }

  job work;
  std::unique_ptr<gateway> running;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(disconnect)

BOOST_AUTO_TEST_CASE(whoever_disconnects_gives_back_the_memory_of_his_answers) {
  const bundled_gateway at;
  net::raw_client client(at.running->listens_at());
  const std::string body =
      R"({"prompt":"Q: 75 * 5\nA:","n":16,"max_tokens":400,"stream":true,"ignore_eos":true,)"
      R"("temperature":1,"seed":1})";
  client.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n" + body);
  client.until("data: ");
  BOOST_TEST(at.reserved_bytes() > 0);
  client.close();
  const auto left = wall::now();
  while (at.reserved_bytes() > 0 && wall::now() - left < 20s) std::this_thread::sleep_for(5ms);
  const std::chrono::duration<double> took = wall::now() - left;
  BOOST_TEST_MESSAGE("memory was free after " << took.count() << " s");
  BOOST_TEST(took.count() < 1.0);
  // They were cut short, and did not end by themselves.
  const auto metrics = at.fetch("/metrics");
  const auto aborted = metrics.find("finished_reason=\"abort\"} ");
  BOOST_TEST_REQUIRE(aborted != std::string::npos, metrics);
  BOOST_TEST(std::stoi(metrics.substr(aborted + 25)) >= 8);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
