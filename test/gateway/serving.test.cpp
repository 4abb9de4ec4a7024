#include "gateway/gateway.hpp"

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "test/gateway/scene.hpp"

namespace ordermoe::gateway {

namespace {

const std::string question = R"({"messages":[{"role":"user","content":"75 * 5"}])";

json body_of(const std::string& reply) {
  return json::parse(reply.substr(reply.find("\r\n\r\n") + 4));
}

/// The JSON of every event but the last, which is [DONE].
std::vector<json> events_of(const std::string& reply) {
  std::vector<json> made;
  for (auto at = reply.find("data: "); at != std::string::npos; at = reply.find("data: ", at + 1)) {
    const auto line = reply.substr(at + 6, reply.find('\n', at) - at - 6);
    if (line == "[DONE]") return made;
    made.push_back(json::parse(line));
  }
  BOOST_TEST(false, "no end of the stream");
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(serving)

BOOST_AUTO_TEST_CASE(a_chat_is_asked_as_its_template_says_and_answered) {
  scene at;
  const auto client = at.begin(
      "/v1/chat/completions", question + R"(,"temperature":0,"seed":9,"max_tokens":5,"stop":"x"})");
  const auto& spec = at.wait_for(0).wanted.spec;
  const auto model = describe_model(ORDERMOE_DATA "/models/lineage");
  BOOST_TEST(spec.prompt == model->tokens->encode("Q: 75 * 5\nA:"),
             boost::test_tools::per_element());
  BOOST_TEST(spec.max_new_tokens == 5u);
  BOOST_TEST(spec.sampling_seed == 9u);
  BOOST_TEST(spec.sampling_stream.value() == 0u);
  BOOST_TEST((spec.stop_strings == std::vector<std::string>{"x", "\n"}));
  at.end(0, " 375", "stop_string");
  const auto reply = client->all();
  BOOST_TEST(reply.starts_with("HTTP/1.1 200"));
  const auto body = body_of(reply);
  BOOST_TEST(body["choices"][0]["message"]["content"] == "375");
  BOOST_TEST(body["choices"][0]["finish_reason"] == "stop");
  BOOST_TEST(body["usage"]["completion_tokens"] == 2);
  BOOST_TEST(body["usage"]["prompt_tokens"] == static_cast<int>(spec.prompt.size()));
  BOOST_TEST(body["usage"]["ordermoe"]["reproducible"] == true);
}

BOOST_AUTO_TEST_CASE(servers_that_round_differently_claim_no_reproducible_answers) {
  scene at([](gateway_options& options) { options.model.computes_alike = false; });
  const auto client = at.begin("/v1/completions", R"({"prompt":"a","temperature":0})");
  at.wait_for(0);
  at.end(0, " b", "length");
  const auto body = body_of(client->all());
  BOOST_TEST(body["usage"]["ordermoe"]["reproducible"] == false);
  BOOST_TEST(body["system_fingerprint"].is_null());
}

BOOST_AUTO_TEST_CASE(a_stream_has_every_choice_its_end_and_what_it_used) {
  scene at;
  const auto client =
      at.begin("/v1/chat/completions",
               question + R"(,"n":2,"stream":true,"stream_options":{"include_usage":true}})");
  at.wait_for(1);
  at.say(1, 0, " b");
  at.say(0, 0, " a");
  at.say(0, 1, "");
  at.say(0, 2, "c");
  at.end(0, " acd", "length", {}, "d");
  at.end(1, " b", "end_of_text");
  const auto reply = client->all();
  BOOST_TEST(reply.find("Content-Type: text/event-stream") != std::string::npos);
  std::map<int, std::string> texts, ends;
  std::set<std::string> ids;
  json usage;
  for (const auto& event : events_of(reply)) {
    ids.insert(event["id"].get<std::string>());
    if (event["choices"].empty()) usage = event["usage"];
    for (const auto& choice : event["choices"]) {
      texts[choice["index"]] += choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) ends[choice["index"]] = choice["finish_reason"];
    }
  }
  BOOST_TEST(ids.size() == 1u);
  BOOST_TEST(texts[0] == "acd");
  BOOST_TEST(texts[1] == "b");
  BOOST_TEST(ends[0] == "length");
  BOOST_TEST(ends[1] == "stop");
  BOOST_TEST(usage["completion_tokens"] == 4);
}

BOOST_AUTO_TEST_CASE(offsets_in_a_stream_count_tokens_whose_text_is_held_back) {
  scene at;
  const auto client = at.begin("/v1/completions", R"({"prompt":"a","stream":true,"logprobs":1})");
  const auto ids = describe_model(ORDERMOE_DATA "/models/lineage")->tokens->encode("Q: 75");
  BOOST_TEST_REQUIRE(ids.size() > 2u);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    actors::answer_token token;
    token.request = 0;
    token.index = static_cast<std::uint32_t>(i);
    token.id = ids[i];
    token.logprobs = {{ids[i], -1.0}, {ids[0], -2.0}};
    if (i + 1 == ids.size()) token.text = "Q: 75";
    at.wait_for(0).sink.on_token(token);
  }
  at.end(0, "Q: 75", "length");
  std::size_t offset = 0, n_told = 0;
  for (const auto& event : events_of(client->all())) {
    const auto& told = event["choices"][0]["logprobs"];
    if (told.is_null()) continue;
    for (std::size_t i = 0; i < told["tokens"].size(); ++i, ++n_told) {
      BOOST_TEST(told["text_offset"][i] == offset);
      offset += told["tokens"][i].get<std::string>().size();
    }
  }
  BOOST_TEST(n_told == ids.size());
  BOOST_TEST(offset > 4u);
}

BOOST_AUTO_TEST_CASE(tokens_that_are_told_in_turns_do_not_wait_for_the_servers_thread) {
  scene at({}, true);
  const auto client = at.begin("/v1/chat/completions", question + R"(,"stream":true})");
  at.say(0, 0, "a");
  client->until(R"("content":"a")");
  at.hold_submits(true);
  const auto other = at.begin("/v1/chat/completions", question + "}");
  at.wait_until_submitting();
  at.script->begin_turn();
  at.say(0, 1, "b");
  at.say(0, 2, "c");
  at.script->end_turn();
  const auto told = client->until(R"("content":"c")");
  BOOST_TEST(told.find(R"("content":"b")") != std::string::npos);
  BOOST_TEST(told.ends_with(R"("content":"c")"));
  at.hold_submits(false);
  at.end(0, "abc", "length");
  BOOST_TEST(client->until("[DONE]").find(R"("finish_reason":"length")") != std::string::npos);
  at.end(1, "d", "length");
  BOOST_TEST(body_of(other->all())["choices"][0]["message"]["content"] == "d");
}

BOOST_AUTO_TEST_CASE(tokens_that_are_told_in_turns_stand_in_their_order_before_the_end) {
  scene at({}, true);
  const auto client = at.begin("/v1/chat/completions", question + R"(,"n":2,"stream":true})");
  at.wait_for(1);
  std::string expected;
  for (std::uint32_t i = 0; i < 300; ++i) expected += std::to_string(i) + ",";
  std::vector<std::thread> tellers;
  for (const std::uint64_t number : {0, 1})
    tellers.emplace_back([&at, sink = at.wait_for(number).sink] {
      actors::answer_token token;
      for (token.index = 0; token.index < 300; ++token.index) {
        token.text = std::to_string(token.index) + ",";
        at.script->begin_turn();
        sink.on_token(token);
        if (token.index % 3 == 0) at.script->end_turn();
      }
      at.script->end_turn();
      actors::request_outcome outcome;
      outcome.finish = "length";
      sink.on_end(outcome);
    });
  for (auto& each : tellers) each.join();
  std::map<int, std::string> texts, ends;
  for (const auto& event : events_of(client->all()))
    for (const auto& choice : event["choices"]) {
      BOOST_TEST(ends[choice["index"]] == "", "text behind its end");
      texts[choice["index"]] += choice["delta"].value("content", "");
      if (!choice["finish_reason"].is_null()) ends[choice["index"]] = choice["finish_reason"];
    }
  for (const int i : {0, 1}) {
    BOOST_TEST(texts[i] == expected);
    BOOST_TEST(ends[i] == "length");
  }
}

BOOST_AUTO_TEST_CASE(whoever_goes_away_while_tokens_are_told_in_turns_is_cancelled) {
  scene at({}, true);
  const auto client = at.begin("/v1/chat/completions", question + R"(,"stream":true})");
  const auto sink = at.wait_for(0).sink;
  std::atomic<bool> ends = false;
  std::thread teller([&] {
    actors::answer_token token;
    token.text = "a";
    while (!ends) {
      at.script->begin_turn();
      sink.on_token(token);
      at.script->end_turn();
    }
  });
  client->until(R"("content":"a")");
  client->close();
  at.wait_for_cancel(0);
  ends = true;
  teller.join();
  at.end(0, "", "cancelled");
  BOOST_TEST(at.fetch("GET", "/metrics").body.find("finished_reason=\"abort\"} 1") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_request_states_its_budget_and_is_told_what_was_in_force) {
  scene at([](gateway_options& options) { options.model.quality.percent = 2; });
  const auto asked = [](const char* percent, const char* more = "") {
    return std::string(R"({"prompt":"a","ordermoe":{"quality_budget_percent":)") + percent + "}" +
           more + "}";
  };
  // Above the plan's.
  auto client = at.begin("/v1/completions", asked("7", R"(,"n":2)"));
  BOOST_TEST(at.wait_for(0).wanted.spec.quality_percent.value() == 7);
  at.end_with(0, 2, 4'000'000'000, 1'000'000'000);
  BOOST_TEST(at.wait_for(1).wanted.spec.quality_percent.value() == 7);
  at.end_with(1, 2, 4'000'000'000, 500'000'000);
  auto body = body_of(client->all());
  auto ours = body["usage"]["ordermoe"];
  BOOST_TEST(ours["quality_budget_percent"] == 2);
  BOOST_TEST(ours["budget_nats"] == 8);
  BOOST_TEST(ours["spent_nats"] == 1.5);
  BOOST_TEST(ours["reproducible"] == false);
  BOOST_TEST(body["system_fingerprint"].is_null());
  // None at all.
  client = at.begin("/v1/completions", asked("0"));
  BOOST_TEST(at.wait_for(2).wanted.spec.quality_percent.value() == 0);
  at.end_with(2, 0, 0, 0);
  body = body_of(client->all());
  ours = body["usage"]["ordermoe"];
  BOOST_TEST(ours["quality_budget_percent"] == 0);
  BOOST_TEST(ours["reproducible"] == true);
  BOOST_TEST(body["system_fingerprint"].is_string());
  // Unstated: the plan's, which is told too.
  client = at.begin("/v1/completions", R"({"prompt":"a"})");
  BOOST_TEST(!at.wait_for(3).wanted.spec.quality_percent.has_value());
  at.end_with(3, 2, 4'000'000'000, 0);
  BOOST_TEST(body_of(client->all())["usage"]["ordermoe"]["quality_budget_percent"] == 2);
}

BOOST_AUTO_TEST_CASE(a_budget_without_limit_is_no_number) {
  scene at;
  auto client = at.begin("/v1/completions", R"({"prompt":"a"})");
  at.wait_for(0);
  at.end_with(0, 1, 4'000'000'000, 1'000'000'000);
  BOOST_TEST(body_of(client->all())["usage"]["ordermoe"]["budget_nats"] == 4);
  client = at.begin("/v1/completions", R"({"prompt":"a"})");
  at.wait_for(1);
  at.end_with(1, -1, unbounded_budget, 1'000'000'000);
  const auto ours = body_of(client->all())["usage"]["ordermoe"];
  BOOST_TEST(ours["budget_nats"].is_null());
  BOOST_TEST(ours["spent_nats"] == 1);
  // What the others were allowed can still be told.
  const auto told = json::parse(at.fetch("GET", "/ordermoe/status").body);
  BOOST_TEST(told["budget_nats"] == 4);
  BOOST_TEST(told["spent_nats"] == 2);
}

BOOST_AUTO_TEST_CASE(a_stream_tells_the_budget_in_force_with_each_end_and_with_the_usage) {
  for (const bool states : {true, false}) {
    scene at;
    const auto client = at.begin(
        "/v1/completions",
        std::string(R"({"prompt":"a","stream":true,"stream_options":{"include_usage":true})") +
            (states ? R"(,"ordermoe":{"quality_budget_percent":1}})" : "}"));
    at.say(0, 0, "b");
    at.end_with(0, 0.5, 4'000'000'000, 1'000'000'000);
    json end, usage;
    for (const auto& event : events_of(client->all())) {
      if (event["choices"].empty()) usage = event["usage"]["ordermoe"];
      for (const auto& choice : event["choices"])
        if (!choice["finish_reason"].is_null()) end = choice;
    }
    BOOST_TEST(usage["quality_budget_percent"] == 0.5);
    BOOST_TEST(usage["spent_nats"] == 1);
    BOOST_TEST(end.contains("ordermoe") == states);
    if (states)
      BOOST_TEST(end["ordermoe"] ==
                 (json{{"quality_budget_percent", 0.5}, {"budget_nats", 4}, {"spent_nats", 1}}));
  }
}

BOOST_AUTO_TEST_CASE(a_budget_that_the_plan_cannot_keep_is_refused_by_its_name) {
  const std::string body = R"({"prompt":"a","ordermoe":{"quality_budget_percent":1}})";
  for (const bool coarser : {true, false}) {
    scene at([&](gateway_options& options) {
      if (coarser)
        options.model.quality = {.percent = 5, .taken_nats = planning::nats_of_percent(2)};
      else
        options.model.quality = {.percent = -1, .is_kept = false};
    });
    const auto reply = at.fetch("POST", "/v1/completions", body);
    BOOST_TEST(reply.status == 400);
    const auto told = json::parse(reply.body)["error"];
    BOOST_TEST(told["param"] == "ordermoe.quality_budget_percent");
    BOOST_TEST(told["type"] == "invalid_request_error");
    BOOST_TEST(at.script->next == 0u);
  }
}

BOOST_AUTO_TEST_CASE(completions_answer_every_prompt_and_echo_it) {
  scene at;
  const auto client =
      at.begin("/v1/completions", R"({"prompt":["a","b"],"echo":true,"n":2,"max_tokens":3})");
  at.wait_for(3);
  for (std::uint64_t i = 0; i < 4; ++i) at.end(i, " " + std::to_string(i), "length");
  const auto body = body_of(client->all());
  BOOST_TEST(body["object"] == "text_completion");
  for (int i = 0; i < 4; ++i)
    BOOST_TEST(body["choices"][i]["text"] == (i < 2 ? "a " : "b ") + std::to_string(i));
}

BOOST_AUTO_TEST_CASE(whoever_goes_away_is_cancelled_and_makes_room) {
  scene at([](gateway_options& options) {
    options.most_running = 1;
    options.most_waiting = 2;
  });
  const auto streaming = at.begin("/v1/chat/completions", question + R"(,"stream":true})");
  at.wait_for(0);
  at.say(0, 0, "a");
  streaming->until("data: ");
  const auto waiting = at.begin("/v1/chat/completions", question + "}");
  const auto leaving = at.begin("/v1/chat/completions", question + "}");
  // The third is told when both wait: until then a fourth would find room.
  for (;;) {
    const auto metrics = at.fetch("GET", "/metrics").body;
    if (metrics.find("vllm:num_requests_waiting{model_name=\"lineage\"} 2") != std::string::npos)
      break;
  }
  const auto refused = at.begin("/v1/chat/completions", question + "}")->all();
  BOOST_TEST(refused.starts_with("HTTP/1.1 429"));
  BOOST_TEST(refused.find("Retry-After: ") != std::string::npos);
  BOOST_TEST(body_of(refused)["error"]["code"] == "rate_limit_exceeded");
  leaving->close();
  streaming->close();
  at.wait_for_cancel(0);
  at.end(0, "a", "cancelled");
  at.wait_for(1);
  at.end(1, " b", "length");
  BOOST_TEST(body_of(waiting->all())["choices"][0]["message"]["content"] == "b");
  BOOST_TEST(at.script->next == 2u, "what left while it waited was never asked");
}

BOOST_AUTO_TEST_CASE(what_fails_is_told_before_and_in_a_stream) {
  scene at;
  const error gone{errc::io, "s1 went away"};
  auto client = at.begin("/v1/chat/completions", question + "}");
  at.end(0, "", "failed", gone);
  auto reply = client->all();
  BOOST_TEST(reply.starts_with("HTTP/1.1 503"));
  BOOST_TEST(body_of(reply)["error"]["message"] == "s1 went away");
  client = at.begin("/v1/chat/completions", question + R"(,"stream":true,"n":2})");
  at.wait_for(2);
  at.say(1, 0, "a");
  at.end(1, "a", "failed", gone);
  at.wait_for_cancel(2);
  at.end(2, "", "cancelled");
  reply = client->all();
  BOOST_TEST(reply.starts_with("HTTP/1.1 200"));
  BOOST_TEST(events_of(reply).back()["error"]["message"] == "s1 went away");
  const auto metrics = at.fetch("GET", "/metrics").body;
  BOOST_TEST(metrics.find("finished_reason=\"error\"} 3") != std::string::npos, metrics);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_asked_is_refused_as_openai_does) {
  scene at([](gateway_options& options) { options.most_choices = 4; });
  struct {
    std::string method, path, body;
    int status;
    json param, code;
  } const cases[] = {
      {"GET", "/nowhere", "", 404, nullptr, nullptr},
      {"GET", "/v1/chat/completions", "", 405, nullptr, "method_not_supported"},
      {"DELETE", "/v1/models", "", 405, nullptr, "method_not_supported"},
      {"POST", "/health", "{}", 405, nullptr, "method_not_supported"},
      {"PUT", "/tokenize", "{}", 405, nullptr, "method_not_supported"},
      {"get", "/v1/models", "", 405, nullptr, "method_not_supported"},
      {"GET", "/v1/models/%00%ff", "", 404, "model", "model_not_found"},
      {"GET", "/dashboard/%2e%2e/%2e%2e/etc/passwd", "", 404, nullptr, nullptr},
      {"GET", "/dashboard/../../etc/passwd", "", 404, nullptr, nullptr},
      {"POST", "/v1/chat/completions", "{", 400, nullptr, nullptr},
      {"POST", "/v1/chat/completions", question + R"(,"n":5})", 400, "n", "invalid_value"},
      {"POST", "/v1/chat/completions", question + R"(,"model":"gpt-4"})", 404, "model",
       "model_not_found"},
      {"POST", "/v1/completions", R"({"model":"gpt-4","prompt":"a"})", 404, "model",
       "model_not_found"},
      {"GET", "/v1/models/gpt-4", "", 404, "model", "model_not_found"},
      {"POST", "/v1/completions", R"({"prompt":"a","max_tokens":512})", 400, "prompt",
       "context_length_exceeded"},
      {"POST", "/v1/chat/completions",
       R"({"messages":[{"role":"user","content":")" + std::string(4000, 'x') + R"("}]})", 400,
       "messages", "context_length_exceeded"},
      {"POST", "/v1/chat/completions", R"({"messages":[{"role":"assistant","content":"a"}]})", 400,
       "messages", "invalid_value"},
      {"POST", "/v1/chat/completions", question + R"(,"ordermoe":{"quality_budget_percent":101}})",
       400, "ordermoe.quality_budget_percent", "invalid_value"},
      {"POST", "/v1/completions", R"({"prompt":"a","ordermoe":{"quality_budget_percent":"1"}})",
       400, "ordermoe.quality_budget_percent", "invalid_type"},
      {"POST", "/v1/completions", R"({"prompt":"a","ordermoe":{"budget":1}})", 400,
       "ordermoe.budget", "unknown_parameter"},
  };
  for (const auto& [method, path, body, status, param, code] : cases) {
    const auto reply = at.fetch(method, path, body);
    BOOST_TEST(reply.status == status, method << " " << path << " " << body.substr(0, 80));
    const auto read = json::parse(reply.body)["error"];
    BOOST_TEST(read["param"] == param, reply.body);
    BOOST_TEST(read["code"] == code, reply.body);
    BOOST_TEST(!read["message"].get<std::string>().empty());
    BOOST_TEST(!read["type"].get<std::string>().empty());
  }
  BOOST_TEST(at.script->next == 0u, "nothing of this was asked");
}

BOOST_AUTO_TEST_CASE(keys_are_asked_for_but_by_health) {
  scene at([](gateway_options& options) {
    options.keys = api_keys({"0123456789abcdef"});
    options.pages = ORDERMOE_DATA "/dashboard";
  });
  auto reply = at.fetch("GET", "/v1/models");
  BOOST_TEST(reply.status == 401);
  BOOST_TEST(json::parse(reply.body)["error"]["code"].is_null());
  reply = at.fetch("GET", "/v1/models", "", {{"Authorization", "Bearer 0123456789abcdee"}});
  BOOST_TEST(reply.status == 401);
  BOOST_TEST(json::parse(reply.body)["error"]["code"] == "invalid_api_key");
  reply = at.fetch("GET", "/v1/models", "", {{"Authorization", "Bearer 0123456789abcdef"}});
  BOOST_TEST(reply.status == 200);
  BOOST_TEST(json::parse(reply.body)["data"][0]["id"] == "lineage");
  for (const char* path : {"/metrics", "/ordermoe/status"})
    BOOST_TEST(at.fetch("GET", path).status == 401);
  // Nothing is read of who may not ask, or of what is asked of nobody.
  for (const char* line : {"POST /v1/chat/completions", "POST /nowhere", "PUT /tokenize"}) {
    net::raw_client stranger(at.at);
    stranger.send(std::string(line) + " HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n{");
    const auto told = stranger.all();
    BOOST_TEST(told.starts_with("HTTP/1.1 4"), told);
    BOOST_TEST(told.find("\"error\"") != told.npos, told);
  }
  // Nor where there is nothing that a body could say, whoever asks.
  for (const char* line : {"GET /", "GET /health", "HEAD /health/live", "GET /dashboard/page.js"}) {
    net::raw_client stranger(at.at);
    stranger.send(std::string(line) + " HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n{");
    const auto told = stranger.all();
    BOOST_TEST(told.starts_with("HTTP/1.1 200"), line << ": " << told.substr(0, 200));
    BOOST_TEST(told.find("Connection: close\r\n") != told.npos, line);
  }
  // What comes behind a body is no field of its request.
  net::raw_client late(at.at);
  late.send(
      "POST /tokenize HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
      "0\r\nAuthorization: Bearer 0123456789abcdef\r\n\r\n");
  BOOST_TEST(late.all().starts_with("HTTP/1.1 401"));
  for (const char* path : {"/health", "/health/live", "/health/ready"})
    BOOST_TEST(at.fetch("GET", path).status == 200);
  at.script->is_ready = false;
  BOOST_TEST(at.fetch("GET", "/health/ready").status == 503);
  BOOST_TEST(at.fetch("GET", "/health/live").status == 200);
}

BOOST_AUTO_TEST_CASE(pages_of_strangers_are_not_answered_without_keys) {
  const scene at;
  const auto asked = [&](const std::string& fields) {
    net::raw_client client(at.at);
    client.send("GET /v1/models HTTP/1.1\r\nConnection: close\r\n" + fields + "\r\n");
    return client.all().substr(9, 3);
  };
  BOOST_TEST(asked("Host: localhost:8080\r\n") == "200");
  BOOST_TEST(asked("Host: LocalHost:8080\r\n") == "200");
  BOOST_TEST(asked("Host: 127.0.0.1:8080\r\nOrigin: http://127.0.0.1:8080\r\n") == "200");
  BOOST_TEST(asked("Host: [::1]:8080\r\n") == "200");
  BOOST_TEST(asked("Host: evil.example\r\n") == "403");
  BOOST_TEST(asked("Host: localhost:8080\r\nOrigin: http://evil.example\r\n") == "403");
  BOOST_TEST(asked("Host: localhost:8080\r\nOrigin: null\r\n") == "403");
}

BOOST_AUTO_TEST_CASE(texts_become_tokens_and_texts_again) {
  const scene at;
  auto reply = at.fetch("POST", "/tokenize", R"({"prompt":"Q: 75 * 5","return_token_strs":true})");
  BOOST_TEST_REQUIRE(reply.status == 200);
  const auto told = json::parse(reply.body);
  BOOST_TEST(told["count"] == static_cast<int>(told["tokens"].size()));
  std::string together;
  for (const auto& each : told["token_strs"]) together += each.get<std::string>();
  BOOST_TEST(together == "Q: 75 * 5");
  BOOST_TEST(told["max_model_len"] == 512);
  // Not looked at: too long for any context, or for the server's thread.
  reply = at.fetch("POST", "/v1/completions", json{{"prompt", std::string(70'000, 'a')}}.dump());
  BOOST_TEST(reply.status == 400);
  BOOST_TEST(json::parse(reply.body)["error"]["code"] == "context_length_exceeded");
  BOOST_TEST(reply.body.find("70000 bytes of text") != std::string::npos);
  reply = at.fetch("POST", "/tokenize", json{{"prompt", std::string(1u << 20, 'a')}}.dump());
  BOOST_TEST(reply.status == 413);
  reply = at.fetch("POST", "/detokenize", json{{"tokens", told["tokens"]}}.dump());
  BOOST_TEST(json::parse(reply.body)["prompt"] == "Q: 75 * 5");
  reply = at.fetch("POST", "/tokenize", question + "}");
  BOOST_TEST(json::parse(reply.body)["tokens"].size() > told["tokens"].size());
}

BOOST_AUTO_TEST_CASE(more_tokens_than_a_context_has_become_no_text) {
  const scene at;
  const auto asked = [&](std::size_t n) {
    return at.fetch("POST", "/detokenize",
                    json{{"tokens", std::vector<std::int32_t>(n, 1)}}.dump());
  };
  BOOST_TEST(asked(512).status == 200);
  const auto reply = asked(513);
  BOOST_TEST(reply.status == 400);
  const auto told = json::parse(reply.body)["error"];
  BOOST_TEST(told["param"] == "tokens");
  BOOST_TEST(told["code"] == "context_length_exceeded");
}

BOOST_AUTO_TEST_CASE(a_models_name_may_have_what_a_path_writes_otherwise) {
  const scene at([](gateway_options& options) { options.model.id = "a/b c%"; });
  const auto asked = [&](const std::string& name) {
    return at.fetch("GET", "/v1/models/" + name).status;
  };
  BOOST_TEST(asked("a%2Fb%20c%25") == 200);
  BOOST_TEST(asked("a/b%20c%25") == 200);
  BOOST_TEST(asked("a%2fb%20c%") == 200, "what is no escape stays as it is");
  BOOST_TEST(asked("a%2Fb%20c%2525") == 404, "once, and not again");
  BOOST_TEST(asked("a%2Fb%20c%2") == 404);
  BOOST_TEST(asked("%00%ff") == 404);
}

BOOST_AUTO_TEST_CASE(status_and_figures_are_told) {
  scene at;
  const auto client = at.begin("/v1/completions", R"({"prompt":"a"})");
  at.end(0, "b", "length");
  client->all();
  const auto status = json::parse(at.fetch("GET", "/ordermoe/status").body);
  BOOST_TEST(status["servers"][0]["epoch"] == 3);
  BOOST_TEST(status["generation_tokens"] == 2);
  const auto metrics = at.fetch("GET", "/metrics").body;
  for (const char* line :
       {"vllm:generation_tokens_total{model_name=\"lineage\"} 2",
        "vllm:request_success_total{model_name=\"lineage\",finished_reason=\"length\"} 1",
        "ordermoe_executions_total{server=\"s0\",kind=\"remote_substitute\"} 8",
        "ordermoe_layer_executions_total{server=\"s0\",layer=\"1\",kind=\"local_substitute\"} 4",
        "ordermoe_link_bytes_total{from=\"s0\",to=\"s0\",kind=\"token\"} 9",
        "ordermoe_plan_epoch{server=\"s0\"} 3",
        "# TYPE vllm:e2e_request_latency_seconds histogram"})
    BOOST_TEST(metrics.find(line) != std::string::npos, line << " is not in " << metrics);
}

BOOST_AUTO_TEST_CASE(what_a_server_does_not_tell_is_not_told_of_it) {
  scene at;
  at.script->servers = R"([{"name":"s1","server":1,"epoch":3,"late_frames":0,"links":[
      {"to":0,"charged_bytes":{"token":9}},{"to":2,"charged_bytes":{"token":8}},
      {"to":7,"charged_bytes":{"token":7}}],"peers":[{"name":"s0","server":0,"up":false}]},
      {"name":"s2","server":2,"epoch":"x","executions":[1,2,3,"4"],
      "layer_executions":[[1],{"a":1},5,[1,2,"3",4]],"links":{"to":1}},
      {"name":"s0","error":"not connected"},{"name":5,"kv_bytes":1,"server":null}])";
  const auto metrics = at.fetch("GET", "/metrics").body;
  BOOST_TEST(metrics.find("server=\"s0\"") == std::string::npos, metrics);
  for (const char* line :
       {"ordermoe_plan_epoch{server=\"s1\"} 3", "ordermoe_late_frames_total{server=\"s1\"} 0",
        "ordermoe_kv_bytes{server=\"?\"} 1",
        "ordermoe_executions_total{server=\"s2\",kind=\"remote_exact\"} 3",
        "ordermoe_layer_executions_total{server=\"s2\",layer=\"3\",kind=\"remote_substitute\"} 4",
        "ordermoe_link_bytes_total{from=\"s1\",to=\"s0\",kind=\"token\"} 9",
        "ordermoe_link_bytes_total{from=\"s1\",to=\"s2\",kind=\"token\"} 8",
        "ordermoe_link_bytes_total{from=\"s1\",to=\"7\",kind=\"token\"} 7"})
    BOOST_TEST(metrics.find(line) != std::string::npos, line << " is not in " << metrics);
  for (const char* none :
       {"ordermoe_plan_epoch{server=\"s2\"",
        "ordermoe_executions_total{server=\"s2\",kind=\"remote_substitute\"", "layer=\"0\""})
    BOOST_TEST(metrics.find(none) == std::string::npos, none << " is in " << metrics);
}

BOOST_AUTO_TEST_CASE(a_gateway_that_stops_waits_for_what_its_servers_are_asked) {
  scene at;
  at.hold_servers();
  const auto client = at.begin_look();
  at.wait_until_asked();
  // Time enough to stop in, for what does not wait.
  std::thread later([&] {
    std::this_thread::sleep_for(200ms);
    at.let_servers_answer();
  });
  at.running->stop();
  later.join();
  BOOST_TEST(at.script->was_stopped);
  BOOST_TEST(!at.script->stopped_while_asked);
  BOOST_TEST(at.script->n_asked == 1u);
}

BOOST_AUTO_TEST_CASE(servers_are_asked_once_for_all_who_wait_and_a_crowd_is_turned_away) {
  scene at;
  at.hold_servers();
  std::vector<std::unique_ptr<net::raw_client>> clients;
  constexpr std::size_t most_lookers = 256;
  for (std::size_t i = 0; i < most_lookers; ++i) {
    clients.push_back(at.begin_look());
    // What it asks next was read when this is answered.
    clients.back()->until("\"max_model_len\":512}");
  }
  at.wait_until_asked();
  const auto refused = at.fetch("GET", "/metrics");
  BOOST_TEST(refused.status == 503);
  BOOST_TEST(json::parse(refused.body)["error"]["code"] == "overloaded");
  at.let_servers_answer();
  for (const auto& client : clients)
    BOOST_TEST(client->all().find("\"epoch\":3") != std::string::npos);
  BOOST_TEST(at.script->n_asked == 2u, "once for the first, and once for all the others");
  BOOST_TEST(at.fetch("GET", "/metrics").status == 200);
}

BOOST_AUTO_TEST_CASE(nobody_listens_for_others_without_keys_and_tls) {
  gateway_options options;
  options.listen = {"0.0.0.0", 0};
  options.keys = api_keys({"0123456789abcdef"});
  auto refused = gateway::start(
      options, std::make_unique<scripted_backend>(std::make_shared<scripted_backend::state>()));
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("--tls-certificate") != std::string::npos);
  const auto before = check_gateway(options);
  BOOST_TEST_REQUIRE(!before.has_value());
  BOOST_TEST(before.error().message == refused.error().message);
}

BOOST_AUTO_TEST_CASE(what_a_gateway_cannot_listen_with_is_told_before) {
  const scene at;
  gateway_options options;
  options.listen = at.at;
  auto refused = check_gateway(options);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::io));
  options.listen.port = 0;
  BOOST_TEST(check_gateway(options).has_value());
  options.tls = {"/nowhere/tls.crt", "/nowhere/tls.key"};
  refused = check_gateway(options);
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("/nowhere/tls.crt") != std::string::npos);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
