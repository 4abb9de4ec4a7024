#include "gateway/openai/request.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

namespace ordermoe::gateway {

namespace {

constexpr request_limits limits{.choices = 8, .vocabulary = 100, .max_tokens = 1000};

std::string with(std::string object, const std::string& members) {
  return object + (members.empty() ? "" : ",") + members + "}";
}
std::string chat(const std::string& members) {
  return with(R"({"messages":[{"role":"user","content":"hello"}])", members);
}
std::string completion(const std::string& members) {
  return with(R"({"prompt":"hello")", members);
}

/// What is wrong with a body, and the member that is to blame.
struct bad_case {
  std::string body;
  std::string param, code;
};

void check(const std::optional<api_problem>& found, const bad_case& expected) {
  BOOST_TEST_REQUIRE(found.has_value(), "taken: " << expected.body.substr(0, 200));
  BOOST_TEST(found->status == 400, expected.body.substr(0, 200));
  BOOST_TEST(found->param == expected.param, expected.body.substr(0, 200)
                                                 << ": " << found->message);
  BOOST_TEST(found->code == expected.code, expected.body.substr(0, 200) << ": " << found->message);
  BOOST_TEST(!found->message.empty());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(request)

/// A parser that looks at all that it has each time takes some twenty minutes for this.
BOOST_AUTO_TEST_CASE(a_body_of_many_small_values_is_read_in_a_moment) {
  std::string many;
  for (int i = 0; i < 1'000'000; ++i) many += "{},";
  const auto body = R"({"messages":[)" + many + "{}]}";
  const auto made = parse_chat(body, limits);
  BOOST_REQUIRE(made.problem.has_value());
  BOOST_TEST(made.problem->param == "messages[0].role");
}

BOOST_AUTO_TEST_CASE(what_is_no_json_object_is_refused) {
  std::string deep, deep_end;
  for (int i = 0; i < 100'000; ++i) {
    deep += "[";
    deep_end += "]";
  }
  for (const auto& body : {std::string(),
                           std::string("{"),
                           std::string("[]"),
                           std::string("7"),
                           std::string("null"),
                           std::string("{\"a\":1}x"),
                           std::string("{\"messages\":\"\xff\xfe\"}"),
                           std::string("{\"messages\":\"\xc3\"}"),
                           std::string("{\"temperature\":1e999}"),
                           std::string("{\"n\":01}"),
                           std::string("{\"n\":NaN}"),
                           "{\"messages\":" + deep + deep_end + "}",
                           "{\"messages\":" + deep,
                           std::string("{\"n\":1,\"n\":2}"),
                           std::string("\0", 1),
                           std::string("{\"n\":1,}"),
                           std::string("{/**/\"n\":1}"),
                           std::string("{'n':1}"),
                           std::string("{\"n\":1}{\"n\":1}"),
                           std::string("{\"user\":\"\\ud800\"}"),
                           std::string("{\"user\":\"\xc0\x80\"}"),
                           std::string("{\"user\":\"\xed\xa0\x80\"}"),
                           std::string("{\"user\":\"\xf5\x80\x80\x80\"}"),
                           std::string("\xff\xfe{\0}\0", 6)}) {
    check(parse_chat(body, limits).problem, {body, "", ""});
    check(parse_completion(body, limits).problem, {body, "", ""});
    check(parse_tokenize(body, limits).problem, {body, "", ""});
    check(parse_detokenize(body, limits).problem, {body, "", ""});
  }
}

BOOST_AUTO_TEST_CASE(what_both_kinds_of_request_refuse) {
  std::string many_biases = R"("logit_bias":{"0":1)", many_members = R"("k0":1)";
  for (int i = 1; i <= 1024; ++i) many_biases += ",\"" + std::to_string(i) + "\":1";
  many_biases += "}";
  for (int i = 1; i < 100'000; ++i) many_members += ",\"k" + std::to_string(i) + "\":1";
  const bad_case cases[] = {
      {R"("temperature":-0.1)", "temperature", "invalid_value"},
      {R"("temperature":2.1)", "temperature", "invalid_value"},
      {R"("temperature":"1")", "temperature", "invalid_type"},
      {R"("temperature":[])", "temperature", "invalid_type"},
      {R"("top_p":0)", "top_p", "invalid_value"},
      {R"("top_p":1.5)", "top_p", "invalid_value"},
      {R"("top_p":true)", "top_p", "invalid_type"},
      {R"("top_k":-2)", "top_k", "invalid_value"},
      {R"("top_k":1.5)", "top_k", "invalid_type"},
      {R"("top_k":99999999999999999999)", "top_k", "invalid_type"},
      {R"("top_k":18446744073709551615)", "top_k", "invalid_value"},
      {R"("presence_penalty":-2.5)", "presence_penalty", "invalid_value"},
      {R"("frequency_penalty":3)", "frequency_penalty", "invalid_value"},
      {R"("frequency_penalty":{})", "frequency_penalty", "invalid_type"},
      {R"("n":0)", "n", "invalid_value"},
      {R"("n":-1)", "n", "invalid_value"},
      {R"("n":9)", "n", "invalid_value"},
      {R"("n":16384)", "n", "invalid_value"},
      {R"("n":9223372036854775808)", "n", "invalid_value"},
      {R"("n":2.0)", "n", "invalid_type"},
      {R"("max_tokens":0)", "max_tokens", "invalid_value"},
      {R"("max_tokens":-5)", "max_tokens", "invalid_value"},
      {R"("max_tokens":1001)", "max_tokens", "invalid_value"},
      {R"("max_tokens":"many")", "max_tokens", "invalid_type"},
      {R"("max_tokens":99999999999999999999)", "max_tokens", "invalid_type"},
      {R"("max_tokens":4294967297)", "max_tokens", "invalid_value"},
      {R"("seed":99999999999999999999)", "seed", "invalid_type"},
      {R"("seed":1.5)", "seed", "invalid_type"},
      {R"("seed":"1")", "seed", "invalid_type"},
      {R"("stream":1)", "stream", "invalid_type"},
      {R"("stream":"yes")", "stream", "invalid_type"},
      {R"("stream_options":{"include_usage":true})", "stream_options", ""},
      {R"("stream":true,"stream_options":[])", "stream_options", "invalid_type"},
      {R"("stream":true,"stream_options":{"include_usage":2})", "stream_options.include_usage",
       "invalid_type"},
      {R"("stream":true,"stream_options":{"usage":true})", "stream_options.usage",
       "unknown_parameter"},
      {R"("stop":7)", "stop", "invalid_value"},
      {R"("stop":"")", "stop", "invalid_value"},
      {R"("stop":["a",""])", "stop", "invalid_value"},
      {R"("stop":["a",null])", "stop", "invalid_value"},
      {R"("stop":")" + std::string(1025, 'x') + "\"", "stop", "invalid_value"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
       "stop", "invalid_value"},
      {R"("logit_bias":[])", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"x":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"-1":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"100":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"7":1,"07":2})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{" 7":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"+7":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"18446744073709551623":1})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"7":1e300})", "logit_bias", "invalid_value"},
      {many_biases, "logit_bias", "invalid_value"},
      {R"("logit_bias":{"1":101})", "logit_bias", "invalid_value"},
      {R"("logit_bias":{"1":"a"})", "logit_bias", "invalid_value"},
      {R"("user":7)", "user", "invalid_type"},
      {R"("model":7)", "model", "invalid_type"},
      {R"("ignore_eos":0)", "ignore_eos", "invalid_type"},
      {R"("ordermoe":true)", "ordermoe", "invalid_type"},
      {R"("ordermoe":{"tracing":true})", "ordermoe.tracing", "unknown_parameter"},
      {R"("ordermoe":{"quality_budget_percent":-1})", "ordermoe.quality_budget_percent",
       "invalid_value"},
      {R"("ordermoe":{"quality_budget_percent":-1e-9})", "ordermoe.quality_budget_percent",
       "invalid_value"},
      {R"("ordermoe":{"quality_budget_percent":100.5})", "ordermoe.quality_budget_percent",
       "invalid_value"},
      {R"("ordermoe":{"quality_budget_percent":1e308})", "ordermoe.quality_budget_percent",
       "invalid_value"},
      {R"("ordermoe":{"quality_budget_percent":18446744073709551615})",
       "ordermoe.quality_budget_percent", "invalid_value"},
      {R"("ordermoe":{"quality_budget_percent":"1"})", "ordermoe.quality_budget_percent",
       "invalid_type"},
      {R"("ordermoe":{"quality_budget_percent":true})", "ordermoe.quality_budget_percent",
       "invalid_type"},
      {R"("ordermoe":{"quality_budget_percent":[1]})", "ordermoe.quality_budget_percent",
       "invalid_type"},
      {R"("ordermoe":{"quality_budget":1})", "ordermoe.quality_budget", "unknown_parameter"},
      {R"("ordermoe":{"trace":[]})", "ordermoe.trace", "invalid_type"},
      {R"("temprature":1)", "temprature", "unknown_parameter"},
      {R"("__proto__":{})", "__proto__", "unknown_parameter"},
      {many_members, "k0", "unknown_parameter"},
  };
  for (const auto& each : cases) {
    check(parse_chat(chat(each.body), limits).problem, each);
    check(parse_completion(completion(each.body), limits).problem, each);
  }
}

BOOST_AUTO_TEST_CASE(what_a_chat_refuses) {
  const bad_case cases[] = {
      {R"({})", "messages", "missing_required_parameter"},
      {R"({"messages":null})", "messages", "missing_required_parameter"},
      {R"({"messages":[]})", "messages", "invalid_type"},
      {R"({"messages":"hello"})", "messages", "invalid_type"},
      {R"({"messages":["hello"]})", "messages[0]", "invalid_type"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content", "missing_required_parameter"},
      {R"({"messages":[{"role":"user","content":7}]})", "messages[0].content", "invalid_type"},
      {R"({"messages":[{"role":"tool","content":"x"}]})", "messages[0].role", "invalid_value"},
      {R"({"messages":[{"role":7,"content":"x"}]})", "messages[0].role", "invalid_type"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role", "invalid_value"},
      {R"({"messages":[{"role":"user","content":null}]})", "messages[0].content",
       "missing_required_parameter"},
      {R"({"messages":[{"role":"user","content":"x","tools":[]}]})", "messages[0].tools",
       "unknown_parameter"},
      {R"({"messages":[{"role":"user","content":[7]}]})", "messages[0].content", "invalid_type"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url"}]}]})",
       "messages[0].content[0].type", "invalid_value"},
      {chat(R"("logprobs":1)"), "logprobs", "invalid_type"},
      {chat(R"("top_logprobs":3)"), "top_logprobs", ""},
      {chat(R"("logprobs":true,"top_logprobs":21)"), "top_logprobs", "invalid_value"},
      {chat(R"("max_completion_tokens":0)"), "max_completion_tokens", "invalid_value"},
      {chat(R"("tools":[{"type":"function"}])"), "tools", "unsupported_parameter"},
      {chat(R"("response_format":{"type":"json_object"})"), "response_format",
       "unsupported_parameter"},
      {chat(R"("reasoning_effort":"low")"), "reasoning_effort", "unsupported_parameter"},
      {chat(R"("verbosity":"low")"), "verbosity", "unsupported_parameter"},
      {chat(R"("echo":true)"), "echo", "unknown_parameter"},
  };
  for (const auto& each : cases) check(parse_chat(each.body, limits).problem, each);
}

BOOST_AUTO_TEST_CASE(what_a_completion_refuses) {
  const bad_case cases[] = {
      {R"({})", "prompt", "missing_required_parameter"},
      {R"({"prompt":7})", "prompt", "invalid_type"},
      {R"({"prompt":""})", "prompt", "invalid_value"},
      {R"({"prompt":[]})", "prompt", "invalid_type"},
      {R"({"prompt":[[]]})", "prompt", "invalid_type"},
      {R"({"prompt":["a",7]})", "prompt", "invalid_type"},
      {R"({"prompt":[1,"a"]})", "prompt", "invalid_value"},
      {R"({"prompt":[1,-2]})", "prompt", "invalid_value"},
      {R"({"prompt":[100]})", "prompt", "invalid_value"},
      {R"({"prompt":[18446744073709551616]})", "prompt", "invalid_value"},
      {R"({"prompt":[[1],[1.5]]})", "prompt", "invalid_value"},
      {R"({"prompt":["a","b","c"],"n":3})", "n", "invalid_value"},
      {R"({"prompt":["a","b","c","d","e","f","g","h","i"]})", "prompt", "invalid_value"},
      {completion(R"("logprobs":6)"), "logprobs", "invalid_value"},
      {completion(R"("logprobs":true)"), "logprobs", "invalid_type"},
      {completion(R"("logprobs":-1)"), "logprobs", "invalid_value"},
      {completion(R"("logprobs":4294967296)"), "logprobs", "invalid_value"},
      {completion(R"("echo":true,"logprobs":1)"), "echo", "unsupported_parameter"},
      {completion(R"("best_of":2)"), "best_of", "unsupported_parameter"},
      {completion(R"("suffix":"x")"), "suffix", "unsupported_parameter"},
      {completion(R"("messages":[])"), "messages", "unknown_parameter"},
  };
  for (const auto& each : cases) check(parse_completion(each.body, limits).problem, each);
}

BOOST_AUTO_TEST_CASE(what_tokenizing_refuses) {
  const bad_case tokenize[] = {
      {R"({})", "prompt", "missing_required_parameter"},
      {R"({"prompt":"a","messages":[]})", "prompt", "missing_required_parameter"},
      {R"({"prompt":7})", "prompt", "invalid_type"}};
  for (const auto& each : tokenize) check(parse_tokenize(each.body, limits).problem, each);
  const bad_case detokenize[] = {{R"({})", "tokens", "missing_required_parameter"},
                                 {R"({"tokens":"a"})", "tokens", "invalid_type"},
                                 {R"({"tokens":[1,100]})", "tokens", "invalid_value"}};
  for (const auto& each : detokenize) check(parse_detokenize(each.body, limits).problem, each);
}

BOOST_AUTO_TEST_CASE(a_chat_is_read_as_it_is_meant) {
  const auto read = parse_chat(
      R"({"model":"m","messages":[{"role":"developer","content":"be brief"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
          {"role":"assistant","content":"c"},{"role":"user","content":"d","name":"eve"}],
          "max_completion_tokens":7,"max_tokens":9,"temperature":0,"top_p":0.5,"top_k":-1,
          "presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"9":-100,"3":1.5},
          "logprobs":true,"top_logprobs":4,"seed":-1,"stop":["x","y"],"n":2,"stream":true,
          "stream_options":{"include_usage":true},"user":"eve","store":false,"metadata":{"a":"b"},
          "tools":[],"response_format":{"type":"text"},"ignore_eos":true,
          "ordermoe":{"trace":true,"quality_budget_percent":7}})",
      limits);
  BOOST_TEST_REQUIRE(!read.problem.has_value());
  const auto& [model, messages, how] = read.content;
  BOOST_TEST(model == "m");
  BOOST_TEST_REQUIRE(messages.size() == 4u);
  BOOST_TEST((messages[0].role == model::chat_role::system));
  BOOST_TEST(messages[1].content == "ab");
  BOOST_TEST((messages[2].role == model::chat_role::assistant));
  BOOST_TEST(how.max_tokens.value() == 7u);
  BOOST_TEST(how.temperature == 0);
  BOOST_TEST(how.top_k == 0u);
  BOOST_TEST((how.logit_bias == std::vector<std::pair<std::int32_t, double>>{{3, 1.5}, {9, -100}}));
  BOOST_TEST(how.logprobs.value() == 4u);
  BOOST_TEST(how.seed.value() == ~std::uint64_t{0});
  BOOST_TEST((how.stop == std::vector<std::string>{"x", "y"}));
  BOOST_TEST(how.include_usage);
  BOOST_TEST(how.trace);
  BOOST_TEST(how.quality_percent.value() == 7);
}

BOOST_AUTO_TEST_CASE(an_answer_may_be_said_again_as_openais_library_writes_it) {
  const auto said = [](const std::string& members) {
    return R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)" +
           members + R"(},{"role":"user","content":"c"}]})";
  };
  for (const char* members :
       {R"("refusal":null,"annotations":[],"audio":null,"function_call":null,"tool_calls":null)",
        R"("refusal":null,"annotations":null,"tool_calls":[],"reasoning_content":null)"}) {
    const auto read = parse_chat(said(members), limits);
    BOOST_TEST(!read.problem.has_value(), (read.problem ? read.problem->message : ""));
    BOOST_TEST(read.content.messages.size() == 3u);
  }
  const bad_case cases[] = {
      {said(R"("tool_calls":[{"id":"x"}])"), "messages[1].tool_calls", "unknown_parameter"},
      {said(R"("function_call":{"name":"f"})"), "messages[1].function_call", "unknown_parameter"},
      {said(R"("audio":{"id":"x"})"), "messages[1].audio", "unknown_parameter"},
      {said(R"("annotations":[{}])"), "messages[1].annotations", "unknown_parameter"},
      {said(R"("tool_calls":{})"), "messages[1].tool_calls", "unknown_parameter"},
      {said(R"("tool_call_id":null)"), "messages[1].tool_call_id", "unknown_parameter"},
  };
  for (const auto& each : cases) check(parse_chat(each.body, limits).problem, each);
}

BOOST_AUTO_TEST_CASE(a_completion_has_openais_defaults_and_every_kind_of_prompt) {
  const auto one =
      parse_completion(R"({"prompt":"a","seed":18446744073709551615,"best_of":1})", limits);
  BOOST_TEST_REQUIRE(!one.problem.has_value());
  BOOST_TEST(one.content.how.max_tokens.value() == 16u);
  BOOST_TEST(one.content.how.temperature == 1);
  BOOST_TEST(one.content.how.seed.value() == ~std::uint64_t{0});
  BOOST_TEST(one.content.prompts.front().text == "a");
  BOOST_TEST(parse_completion(R"({"prompt":["a","b"]})", limits).content.prompts.size() == 2u);
  BOOST_TEST(parse_completion(R"({"prompt":[1,2,3]})", limits).content.prompts.front().ids.size() ==
             3u);
  const auto several = parse_completion(R"({"prompt":[[1,2],[3]]})", limits).content.prompts;
  BOOST_TEST_REQUIRE(several.size() == 2u);
  BOOST_TEST(several[1].ids.front() == 3);
}

BOOST_AUTO_TEST_CASE(a_budget_of_null_is_not_stated_and_one_of_0_is) {
  for (const auto* ours : {"null", "{}", R"({"quality_budget_percent":null})"}) {
    const auto read = parse_completion(completion(std::string(R"("ordermoe":)") + ours), limits);
    BOOST_TEST_REQUIRE(!read.problem.has_value(), ours);
    BOOST_TEST(!read.content.how.quality_percent.has_value(), ours);
  }
  for (const auto* zero : {"0", "0.0", "-0.0"}) {
    const auto read = parse_chat(
        chat(std::string(R"("ordermoe":{"quality_budget_percent":)") + zero + "}"), limits);
    BOOST_TEST_REQUIRE(!read.problem.has_value(), zero);
    BOOST_TEST_REQUIRE(read.content.how.quality_percent.has_value(), zero);
    BOOST_TEST(*read.content.how.quality_percent == 0);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
