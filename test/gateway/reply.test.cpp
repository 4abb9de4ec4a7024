#include "gateway/openai/reply.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

namespace ordermoe::gateway {

namespace {

using nlohmann::json;

const reply_head chat_head{reply_kind::chat, "chatcmpl-1", "mo\"del", "fp_1", 1700000000};
const reply_head completion_head{reply_kind::completion, "cmpl-1", "model", "", 1700000000};

/// The JSON of one event.
json event(const std::string& text) {
  BOOST_TEST_REQUIRE(text.starts_with("data: "));
  BOOST_TEST_REQUIRE(text.ends_with("\n\n"));
  const auto line = text.substr(6, text.size() - 8);
  BOOST_TEST(line.find('\n') == std::string::npos);
  return json::parse(line);
}

token_report report_of(std::int32_t id, std::string text, double logprob) {
  return {{id, text, logprob}, {{id, text, logprob}, {id + 1, "other", logprob - 1}}};
}

}  // namespace

BOOST_AUTO_TEST_SUITE(reply)

BOOST_AUTO_TEST_CASE(a_chat_is_answered_as_openai_does) {
  reply_choice choice{
      1, "two\nlines", "stop",
      std::vector{report_of(5, "\xc3\xbc", -0.5), report_of(7, "\xef\xbf\xbd", -0.5)}};
  reply_usage usage;
  usage.prompt_tokens = 3;
  usage.completion_tokens = 4;
  usage.ran = {{"local_exact", 1}, {"remote_substitute", 4}};
  usage.is_reproducible = false;
  usage.quality = {2.5, 0.5, 0.25};
  const auto read = json::parse(reply_json(chat_head, {choice}, usage));
  BOOST_TEST(read["object"] == "chat.completion");
  BOOST_TEST(read["model"] == "mo\"del");
  BOOST_TEST(read["system_fingerprint"] == "fp_1");
  const auto& one = read["choices"][0];
  BOOST_TEST(one["index"] == 1);
  BOOST_TEST(one["message"]["role"] == "assistant");
  BOOST_TEST(one["message"]["content"] == "two\nlines");
  BOOST_TEST(one["finish_reason"] == "stop");
  const auto& token = one["logprobs"]["content"][0];
  BOOST_TEST(token["bytes"] == json::array({0xc3, 0xbc}));
  BOOST_TEST(token["top_logprobs"].size() == 2u);
  BOOST_TEST(token["top_logprobs"][1]["logprob"] == -1.5);
  const auto& part = one["logprobs"]["content"][1];
  BOOST_TEST(part["token"] == "\xef\xbf\xbd");
  BOOST_TEST(part["bytes"].is_null(), "the bytes of a part of a character are not known");
  BOOST_TEST(part["top_logprobs"][1]["bytes"].size() == 5u);
  BOOST_TEST(read["usage"]["total_tokens"] == 7);
  BOOST_TEST(read["usage"]["ordermoe"]["reproducible"] == false);
  BOOST_TEST(read["usage"]["ordermoe"]["executions"]["remote_substitute"] == 4);
  BOOST_TEST(read["usage"]["ordermoe"]["quality_budget_percent"] == 2.5);
  BOOST_TEST(read["usage"]["ordermoe"]["budget_nats"] == 0.5);
  BOOST_TEST(read["usage"]["ordermoe"]["spent_nats"] == 0.25);
}

BOOST_AUTO_TEST_CASE(a_completion_has_lists_of_logprobs) {
  reply_choice choice{0, "abc", "length",
                      std::vector{report_of(5, "ab", -0.5), report_of(6, "c", -0.25)}};
  const auto read = json::parse(reply_json(completion_head, {choice}, {}));
  BOOST_TEST(read["object"] == "text_completion");
  BOOST_TEST(read["system_fingerprint"].is_null());
  BOOST_TEST(read["choices"][0]["text"] == "abc");
  const auto& logprobs = read["choices"][0]["logprobs"];
  BOOST_TEST(logprobs["tokens"] == json::array({"ab", "c"}));
  BOOST_TEST(logprobs["text_offset"] == json::array({0, 2}));
  BOOST_TEST(logprobs["token_logprobs"] == json::array({-0.5, -0.25}));
  BOOST_TEST(logprobs["top_logprobs"][0]["other"] == -1.5);
}

BOOST_AUTO_TEST_CASE(chunks_are_events_of_one_line) {
  const chunk_writer writer(chat_head, true);
  chunk_content content;
  content.begins = true;
  auto read = event(writer.chunk(content));
  BOOST_TEST(read["object"] == "chat.completion.chunk");
  BOOST_TEST(read["choices"][0]["delta"]["role"] == "assistant");
  BOOST_TEST(read["choices"][0]["delta"]["content"] == "");
  BOOST_TEST(read["choices"][0]["finish_reason"].is_null());
  BOOST_TEST(read["usage"].is_null());
  content = {};
  content.index = 3;
  content.text = "a \"quoted\"\nline\x01";
  content.traced_id = 17;
  content.ran = {{"local_exact", 1}, {"remote_exact", 0}};
  read = event(writer.chunk(content));
  BOOST_TEST(read["choices"][0]["index"] == 3);
  BOOST_TEST(read["choices"][0]["delta"] == (json{{"content", "a \"quoted\"\nline\x01"}}));
  BOOST_TEST(read["choices"][0]["ordermoe"]["id"] == 17);
  BOOST_TEST(read["choices"][0]["ordermoe"]["executions"]["local_exact"] == 1);
  content = {};
  content.finish = "length";
  read = event(writer.chunk(content));
  BOOST_TEST(read["choices"][0]["delta"] == json::object());
  BOOST_TEST(read["choices"][0]["finish_reason"] == "length");
  BOOST_TEST(!read["choices"][0].contains("ordermoe"));
  // Whatever a chunk says besides that it is the last one.
  content.text = "end";
  read = event(writer.chunk(content));
  BOOST_TEST(read["choices"][0]["delta"] == (json{{"content", "end"}}));
  BOOST_TEST(read["choices"][0]["finish_reason"] == "length");
  content.text = "";
  content.begins = true;
  read = event(writer.chunk(content));
  BOOST_TEST(read["choices"][0]["delta"] == (json{{"role", "assistant"}, {"content", ""}}));
  content = {};
  BOOST_TEST(event(writer.chunk(content))["choices"][0]["delta"] == (json{{"content", ""}}));
  content.finish = "length";
  content.quality = {1, 0.5, 0.25};
  read = event(writer.chunk(content));
  BOOST_TEST(read["choices"][0]["ordermoe"] ==
             (json{{"quality_budget_percent", 1}, {"budget_nats", 0.5}, {"spent_nats", 0.25}}));
  reply_usage usage;
  usage.completion_tokens = 2;
  read = event(writer.usage(usage));
  BOOST_TEST(read["choices"].empty());
  BOOST_TEST(read["usage"]["completion_tokens"] == 2);
}

BOOST_AUTO_TEST_CASE(chunks_without_usage_do_not_speak_of_it) {
  const chunk_writer writer(completion_head, false);
  chunk_content content;
  content.text = "a";
  const auto tokens = std::vector{report_of(5, "a", -0.5)};
  content.logprobs = &tokens;
  content.text_offset = 9;
  const auto read = event(writer.chunk(content));
  BOOST_TEST(read["object"] == "text_completion");
  BOOST_TEST(read["choices"][0]["text"] == "a");
  BOOST_TEST(read["choices"][0]["logprobs"]["text_offset"] == json::array({9}));
  BOOST_TEST(!read.contains("usage"));
}

BOOST_AUTO_TEST_CASE(text_that_is_no_utf8_is_replaced) {
  const chunk_writer writer(chat_head, false);
  chunk_content content;
  content.text = "\xff";
  BOOST_TEST(event(writer.chunk(content))["choices"][0]["delta"]["content"] == "\xef\xbf\xbd");
}

BOOST_AUTO_TEST_CASE(a_chunk_says_every_text_as_json_does) {
  const chunk_writer writer(completion_head, false);
  std::vector<std::string> texts{"", " a plain text", "gr\u00fcn \u4e2d", "\xf0\x9f\x99\x82",
                                 "\"\\/"};
  for (int c = 1; c < 128; ++c) texts.push_back("a" + std::string(1, static_cast<char>(c)) + "b");
  for (const auto& text : texts) {
    chunk_content content;
    content.text = text;
    const auto said = writer.chunk(content);
    BOOST_TEST_CONTEXT(json(text).dump()) {
      BOOST_TEST(event(said)["choices"][0]["text"].get<std::string>() == text);
      BOOST_TEST(said.find("\"text\":" + json(text).dump()) != std::string::npos);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_traced_token_has_its_id_and_what_is_known_of_its_executions) {
  const chunk_writer writer(completion_head, false);
  chunk_content content;
  content.traced_id = -1;
  BOOST_TEST(event(writer.chunk(content))["choices"][0]["ordermoe"] == (json{{"id", -1}}));
  content.ran = {{"local_exact", 18446744073709551615u}, {"remote_exact", 2}};
  const json ran{{"local_exact", 18446744073709551615u}, {"remote_exact", 2}};
  BOOST_TEST(event(writer.chunk(content))["choices"][0]["ordermoe"] ==
             (json{{"id", -1}, {"executions", ran}}));
  content.quality = {0.0, 0, 0};
  const auto both = event(writer.chunk(content))["choices"][0]["ordermoe"];
  BOOST_TEST(both["id"] == -1);
  BOOST_TEST(both["executions"] == ran);
  BOOST_TEST(both["quality_budget_percent"] == 0);
  // Where no token is traced nothing is said of what it ran.
  content.traced_id.reset();
  BOOST_TEST(!event(writer.chunk(content))["choices"][0]["ordermoe"].contains("executions"));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::gateway
