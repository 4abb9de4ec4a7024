#pragma once

#include <boost/test/unit_test.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gateway/gateway.hpp"
#include "net/http/client.hpp"
#include "test/net/http/raw_client.hpp"

/// A gateway in front of a script.
namespace ordermoe::gateway {

using namespace std::chrono_literals;
using nlohmann::json;

/// What answers when the test says so.
class scripted_backend final : public backend {
 public:
  struct request {
    actors::remote_request wanted;
    actors::answer_sink sink;
    bool is_cancelled = false;
  };
  struct given_order {
    std::string node;
    actors::bearer_order wanted;
    actors::order_sink sink;
  };
  struct state {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<std::uint64_t, request> requests;
    std::uint64_t next = 0;
    bool is_ready = true;
    // How the servers are:
    std::string servers = R"([{"name":"s0","server":0,"epoch":3,"executions":[5,6,7,8],
        "layer_executions":[[2,2,7,8],[3,4,0,0]],"links":[
        {"to":0,"charged_bytes":{"token":9}}]}])";
    bool holds_servers = false;  ///< Whoever asks waits.
    bool is_asked = false, was_stopped = false, stopped_while_asked = false;
    std::size_t n_asked = 0, n_stopped = 0;
    // Operators' orders:
    bool takes_orders = true;
    // Whether it tells in turns, and of which gateway:
    bool tells_in_turns = false;
    std::function<void()> begin_turn, end_turn;
    bool holds_submits = false, is_submitting = false;  ///< Whoever submits waits.
    std::vector<given_order> orders;
  };
  explicit scripted_backend(std::shared_ptr<state> of) : state_(std::move(of)) {}

  std::uint64_t submit(actors::remote_request wanted, actors::answer_sink sink) override {
    std::unique_lock lock(state_->mutex);
    const auto number = state_->next++;
    state_->requests[number] = {std::move(wanted), std::move(sink), false};
    state_->is_submitting = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, 20s, [&] { return !state_->holds_submits; });
    state_->is_submitting = false;
    return number;
  }
  bool tell_in_turns(std::function<void()> begin, std::function<void()> end) override {
    state_->begin_turn = std::move(begin);
    state_->end_turn = std::move(end);
    return state_->tells_in_turns;
  }
  void cancel(std::uint64_t number) override {
    const std::lock_guard lock(state_->mutex);
    state_->requests[number].is_cancelled = true;
    state_->changed.notify_all();
  }
  bool is_ready() const override { return state_->is_ready; }
  result<std::string> servers() override {
    std::unique_lock lock(state_->mutex);
    ++state_->n_asked;
    state_->is_asked = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, 20s, [&] { return !state_->holds_servers; });
    state_->is_asked = false;
    return state_->servers;
  }
  bool takes_orders() const override { return state_->takes_orders; }
  std::string order(const std::string& node, const actors::bearer_order& wanted,
                    actors::order_sink sink) override {
    const std::lock_guard lock(state_->mutex);
    state_->orders.push_back({node, wanted, std::move(sink)});
    state_->changed.notify_all();
    return node.empty() ? "s0" : node;
  }
  void stop() override {
    const std::lock_guard lock(state_->mutex);
    state_->was_stopped = true;
    ++state_->n_stopped;
    state_->stopped_while_asked = state_->is_asked;
  }

 private:
  std::shared_ptr<state> state_;
};

/// A gateway with the bundled model's words, in front of a script.
struct scene {
  explicit scene(std::function<void(gateway_options&)> change = {}, bool tells_in_turns = false) {
    script->tells_in_turns = tells_in_turns;
    gateway_options options;
    options.listen.port = 0;
    auto model = describe_model(ORDERMOE_DATA "/models/lineage");
    BOOST_TEST_REQUIRE(model.has_value(), (model ? "" : model.error().message));
    options.model = std::move(*model);
    if (change) change(options);
    auto made = gateway::start(std::move(options), std::make_unique<scripted_backend>(script));
    BOOST_TEST_REQUIRE(made.has_value(), (made ? "" : made.error().message));
    running = std::move(*made);
    at = running->listens_at();
  }

  net::http_reply fetch(const std::string& method, const std::string& path,
                        const std::string& body = {}, const net::http_fields& fields = {}) const {
    net::http_ask ask;
    ask.to = {false, at, ""};
    ask.method = method;
    ask.path = path;
    ask.body = body;
    ask.fields = fields;
    auto reply = net::http_fetch(ask);
    BOOST_TEST_REQUIRE(reply.has_value(), (reply ? "" : reply.error().message));
    return *reply;
  }

  /// A request that waits for its answer.
  std::unique_ptr<net::raw_client> begin(const std::string& path, const std::string& body) const {
    auto client = std::make_unique<net::raw_client>(at);
    client->send("POST " + path +
                 " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
                 std::to_string(body.size()) + "\r\n\r\n" + body);
    return client;
  }

  /// Asks for the model, and then how the servers are.
  std::unique_ptr<net::raw_client> begin_look() const {
    auto client = std::make_unique<net::raw_client>(at);
    client->send(
        "GET /v1/models/lineage HTTP/1.1\r\n\r\n"
        "GET /ordermoe/status HTTP/1.1\r\nConnection: close\r\n\r\n");
    return client;
  }

  scripted_backend::request& wait_for(std::uint64_t number) {
    std::unique_lock lock(script->mutex);
    BOOST_TEST_REQUIRE(
        script->changed.wait_for(lock, 20s, [&] { return script->requests.contains(number); }));
    return script->requests[number];
  }
  void wait_for_cancel(std::uint64_t number) {
    std::unique_lock lock(script->mutex);
    BOOST_TEST_REQUIRE(
        script->changed.wait_for(lock, 20s, [&] { return script->requests[number].is_cancelled; }));
  }

  /// The i-th order that came.
  scripted_backend::given_order wait_for_order(std::size_t i) {
    std::unique_lock lock(script->mutex);
    BOOST_TEST_REQUIRE(
        script->changed.wait_for(lock, 20s, [&] { return script->orders.size() > i; }));
    return script->orders[i];
  }
  std::size_t n_orders() const {
    const std::lock_guard lock(script->mutex);
    return script->orders.size();
  }

  void hold_submits(bool whether) {
    const std::lock_guard lock(script->mutex);
    script->holds_submits = whether;
    script->changed.notify_all();
  }
  void wait_until_submitting() {
    std::unique_lock lock(script->mutex);
    BOOST_TEST_REQUIRE(script->changed.wait_for(lock, 20s, [&] { return script->is_submitting; }));
  }

  void hold_servers() {
    const std::lock_guard lock(script->mutex);
    script->holds_servers = true;
  }
  void wait_until_asked() {
    std::unique_lock lock(script->mutex);
    BOOST_TEST_REQUIRE(script->changed.wait_for(lock, 20s, [&] { return script->is_asked; }));
  }
  void let_servers_answer() {
    const std::lock_guard lock(script->mutex);
    script->holds_servers = false;
    script->changed.notify_all();
  }

  void say(std::uint64_t number, std::uint32_t index, const std::string& text) {
    actors::answer_token token;
    token.request = number;
    token.index = index;
    token.id = static_cast<std::int32_t>(index);
    token.text = text;
    wait_for(number).sink.on_token(token);
  }
  /// With a budget, in units and as it was in force.
  void end_with(std::uint64_t number, double percent, loss_units budget, loss_units spent) {
    actors::request_outcome outcome;
    outcome.request = number;
    outcome.text = "b";
    outcome.token_ids = {1, 2};
    outcome.finish = "length";
    outcome.quality_percent = percent;
    outcome.budget = budget;
    outcome.spent = spent;
    wait_for(number).sink.on_end(outcome);
  }
  void end(std::uint64_t number, const std::string& text, const std::string& finish,
           std::optional<error> problem = {}, const std::string& tail = {}) {
    actors::request_outcome outcome;
    outcome.request = number;
    outcome.text = text;
    outcome.text_tail = tail;
    outcome.token_ids = {1, 2};
    outcome.finish = finish;
    outcome.problem = std::move(problem);
    wait_for(number).sink.on_end(outcome);
  }

  std::shared_ptr<scripted_backend::state> script = std::make_shared<scripted_backend::state>();
  std::unique_ptr<gateway> running;
  net::address at;
};

}  // namespace ordermoe::gateway
