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

/// What a chunk of a token says, from values of JSON.
std::string chunk_by_library(const reply_head& head, bool says_usage, const chunk_content& of) {
  using nlohmann::ordered_json;
  const bool is_chat = head.kind == reply_kind::chat;
  ordered_json choice{{"index", of.index}};
  if (is_chat) {
    choice["delta"] = ordered_json::object();
    if (of.begins) choice["delta"]["role"] = "assistant";
    if (of.begins || !of.text.empty() || of.finish.empty()) choice["delta"]["content"] = of.text;
  } else {
    choice["text"] = of.text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = of.finish.empty() ? ordered_json() : ordered_json(of.finish);
  if (of.traced_id) choice["ordermoe"]["id"] = *of.traced_id;
  for (const auto& [name, n] : of.ran) choice["ordermoe"]["executions"][std::string(name)] = n;
  ordered_json all{{"id", head.id},
                   {"object", is_chat ? "chat.completion.chunk" : "text_completion"},
                   {"created", head.created_s},
                   {"model", head.model},
                   {"system_fingerprint",
                    head.fingerprint.empty() ? ordered_json() : ordered_json(head.fingerprint)},
                   {"choices", ordered_json::array({choice})}};
  if (says_usage) all["usage"] = nullptr;
  std::string made = "data: ";
  made += all.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  made += "\n\n";
  return made;
}

BOOST_AUTO_TEST_CASE(a_chunk_is_what_the_json_library_writes) {
  // Quotes, controls, other languages, and what is no UTF-8: pieces of characters, surrogates, overlong ones, stray bytes.
  const std::string_view texts[] = {"",
                                    " a",
                                    "\"\\/",
                                    "\b\f\n\r\t\x01\x1f\x7f",
                                    "gr\u00fcn \u4e2d\u2028",
                                    "\xf0\x9f\x99\x82",
                                    "\xf0\x9f\x99",
                                    "\x82 ",
                                    "a\xe4\xb8",
                                    "\xed\xa0\xbd\xed\xb8\x82",
                                    "\xc0\x80",
                                    "\xf8\xff",
                                    {"nul\0", 4}};
  const reply_head heads[] = {
      chat_head, completion_head, {reply_kind::chat, "\"\xff", "m\n", "", 0}};
  for (const auto& head : heads)
    for (const bool says_usage : {false, true}) {
      const chunk_writer writer(head, says_usage);
      for (const auto text : texts)
        for (int bits = 0; bits < 16; ++bits) {
          chunk_content content;
          content.index = (bits & 1) != 0 ? 4294967295u : 0;
          content.text = text;
          if ((bits & 2) != 0) content.finish = "stop";
          if ((bits & 4) != 0) content.traced_id = -7;
          if ((bits & 4) != 0 && (bits & 1) != 0)
            content.ran = {{"local_exact", 18446744073709551615u}, {"remote_exact", 0}};
          content.begins = head.kind == reply_kind::chat && (bits & 8) != 0;
          const auto expected = chunk_by_library(head, says_usage, content);
          BOOST_TEST(writer.chunk(content) == expected);
          std::string behind = "before";
          writer.append_chunk(behind, content);
          BOOST_TEST(behind.substr(6) == expected);
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
