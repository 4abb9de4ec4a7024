#include "gateway/openai/reply.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <nlohmann/json.hpp>

#include "gateway/openai/json_text.hpp"

namespace ordermoe::gateway {

using nlohmann::ordered_json;

namespace {

const char* object_of(reply_kind kind, bool in_chunks) {
  if (kind == reply_kind::completion) return "text_completion";
  return in_chunks ? "chat.completion.chunk" : "chat.completion";
}

/// Null where they are not known: what is told of a part of a character is U+FFFD.
ordered_json bytes_of(const std::string& text) {
  if (text.find("\xef\xbf\xbd") != std::string::npos) return nullptr;
  auto bytes = ordered_json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

ordered_json chat_choice(const token_choice& of) {
  return {{"token", of.text}, {"logprob", of.logprob}, {"bytes", bytes_of(of.text)}};
}

ordered_json chat_logprobs(const std::vector<token_report>& tokens) {
  auto content = ordered_json::array();
  for (const auto& each : tokens) {
    auto one = chat_choice(each.chosen);
    one["top_logprobs"] = ordered_json::array();
    for (const auto& other : each.top) one["top_logprobs"].push_back(chat_choice(other));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

ordered_json completion_logprobs(const std::vector<token_report>& tokens, std::size_t offset) {
  ordered_json made{{"text_offset", ordered_json::array()},
                    {"token_logprobs", ordered_json::array()},
                    {"tokens", ordered_json::array()},
                    {"top_logprobs", ordered_json::array()}};
  for (const auto& each : tokens) {
    made["text_offset"].push_back(offset);
    made["token_logprobs"].push_back(each.chosen.logprob);
    made["tokens"].push_back(each.chosen.text);
    auto top = ordered_json::object();
    for (const auto& other : each.top) top[other.text] = other.logprob;
    made["top_logprobs"].push_back(std::move(top));
    offset += each.chosen.text.size();
  }
  return made;
}

ordered_json logprobs_of(reply_kind kind, const std::vector<token_report>* tokens,
                         std::size_t offset) {
  if (tokens == nullptr) return nullptr;
  return kind == reply_kind::chat ? chat_logprobs(*tokens) : completion_logprobs(*tokens, offset);
}

ordered_json json_of(const named_counts& counts) {
  auto made = ordered_json::object();
  for (const auto& [name, n] : counts) made[std::string(name)] = n;
  return made;
}

ordered_json json_of(const reply_quality& quality) {
  return {
      {"quality_budget_percent", quality.percent ? ordered_json(*quality.percent) : ordered_json()},
      {"budget_nats",
       std::isfinite(quality.budget_nats) ? ordered_json(quality.budget_nats) : ordered_json()},
      {"spent_nats", quality.spent_nats}};
}

ordered_json json_of(const reply_usage& usage) {
  ordered_json ours{{"reproducible", usage.is_reproducible}, {"attempts", usage.attempts}};
  ours.update(json_of(usage.quality));
  if (!usage.ran.empty()) ours["executions"] = json_of(usage.ran);
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
          {"ordermoe", std::move(ours)}};
}

// A chunk is written for each token, so it is put together without values of JSON between.

void append(std::string& to, std::integral auto number) {
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  to.append(digits.data(), end);
}

void append(std::string& to, std::string_view text) {
  if (!is_plain(text)) {
    to += json_text(ordered_json(text));
    return;
  }
  to += '"';
  to += text;
  to += '"';
}

void append_said(std::string& to, const chunk_content& content, bool is_chat) {
  if (!is_chat) {
    to += R"("text":)";
    return append(to, content.text);
  }
  if (!content.begins && content.text.empty() && !content.finish.empty()) {
    to += R"("delta":{})";
    return;
  }
  to += content.begins ? R"("delta":{"role":"assistant","content":)" : R"("delta":{"content":)";
  append(to, content.text);
  to += '}';
}

void append_ours(std::string& to, const chunk_content& content) {
  if (content.quality) {
    ordered_json told;
    if (content.traced_id) told["id"] = *content.traced_id;
    if (content.traced_id && !content.ran.empty()) told["executions"] = json_of(content.ran);
    told.update(json_of(*content.quality));
    to += R"(,"ordermoe":)" + json_text(told);
    return;
  }
  if (!content.traced_id) return;
  to += R"(,"ordermoe":{"id":)";
  append(to, *content.traced_id);
  for (std::size_t i = 0; i < content.ran.size(); ++i) {
    to += i == 0 ? R"(,"executions":{)" : ",";
    append(to, content.ran[i].first);
    to += ':';
    append(to, content.ran[i].second);
  }
  to += content.ran.empty() ? "}" : "}}";
}

ordered_json fingerprint_of(const reply_head& head) {
  return head.fingerprint.empty() ? ordered_json() : ordered_json(head.fingerprint);
}

}  // namespace

std::string reply_json(const reply_head& head, const std::vector<reply_choice>& choices,
                       const reply_usage& usage) {
  auto list = ordered_json::array();
  for (const auto& each : choices) {
    ordered_json one{{"index", each.index}};
    if (head.kind == reply_kind::chat)
      one["message"] = {{"role", "assistant"}, {"content", each.text}, {"refusal", nullptr}};
    else
      one["text"] = each.text;
    one["logprobs"] = logprobs_of(head.kind, each.logprobs ? &*each.logprobs : nullptr, 0);
    one["finish_reason"] = each.finish;
    list.push_back(std::move(one));
  }
  return json_text(ordered_json{{"id", head.id},
                                {"object", object_of(head.kind, false)},
                                {"created", head.created_s},
                                {"model", head.model},
                                {"system_fingerprint", fingerprint_of(head)},
                                {"choices", std::move(list)},
                                {"usage", json_of(usage)}});
}

chunk_writer::chunk_writer(const reply_head& head, bool says_usage)
    : is_chat_(head.kind == reply_kind::chat) {
  head_ = fmt::format(
      R"(data: {{"id":{},"object":"{}","created":{},"model":{},"system_fingerprint":{},)",
      json_text(ordered_json(head.id)), object_of(head.kind, true), head.created_s,
      json_text(ordered_json(head.model)), json_text(fingerprint_of(head)));
  begin_ = head_ + R"("choices":[{"index":)";
  end_ = says_usage ? "}],\"usage\":null}\n\n" : "}]}\n\n";
}

std::string chunk_writer::chunk(const chunk_content& content) const {
  std::string made;
  append_chunk(made, content);
  return made;
}

void chunk_writer::append_chunk(std::string& to, const chunk_content& content) const {
  to += begin_;
  append(to, content.index);
  to += ',';
  append_said(to, content, is_chat_);
  to += R"(,"logprobs":)";
  if (content.logprobs == nullptr)
    to += "null";
  else
    to += json_text(logprobs_of(is_chat_ ? reply_kind::chat : reply_kind::completion,
                                content.logprobs, content.text_offset));
  to += R"(,"finish_reason":)";
  if (content.finish.empty())
    to += "null";
  else
    append(to, content.finish);
  append_ours(to, content);
  to += end_;
}

std::string chunk_writer::usage(const reply_usage& usage) const {
  return fmt::format("{}\"choices\":[],\"usage\":{}}}\n\n", head_, json_text(json_of(usage)));
}

std::string problem_event(std::string_view problem_json) {
  return fmt::format("data: {}\n\n", problem_json);
}

std::string model_json(const std::string& id, std::int64_t created_s, std::size_t context) {
  return json_text(ordered_json{{"id", id},
                                {"object", "model"},
                                {"created", created_s},
                                {"owned_by", "ordermoe"},
                                {"max_model_len", context}});
}

std::string models_json(const std::string& model) {
  return fmt::format(R"({{"object":"list","data":[{}]}})", model);
}

}  // namespace ordermoe::gateway
