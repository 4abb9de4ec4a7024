#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gateway/desk.hpp"
#include "gateway/openai/reply.hpp"

namespace ordermoe::gateway {

/// One request for answers: README.md has its states. On the server's thread.
class job final : public std::enable_shared_from_this<job> {
 public:
  /// What is asked for.
  struct order {
    reply_kind kind = reply_kind::chat;
    std::vector<std::vector<std::int32_t>> prompts;
    std::vector<std::string> echoed;  ///< What each answer begins with; empty: nothing.
    generation how;
    std::uint32_t max_tokens = 0;
  };
  job(desk& at, std::shared_ptr<net::http_exchange> from, order what);

  std::size_t answers() const { return choices_.size(); }
  /// Before it is started or waits.
  void watch_peer();
  void start();
  void turn_away(const api_problem& why);

 private:
  struct choice {
    std::size_t prompt = 0;
    std::uint64_t request = 0;
    bool has_ended = false, is_counted = false, has_text = false;
    std::size_t bytes = 0;  ///< Of its text, that were told.
    actors::request_outcome outcome;
    std::vector<token_report> reports;  ///< That were not told yet.
  };

  actors::answer_sink sink_of(std::size_t i);
  actors::remote_request request_of(std::size_t i);
  void take(std::size_t i, const actors::answer_token& told);
  void end(std::size_t i, actors::request_outcome told);
  void fail(const api_problem& why);
  void finish();
  void gone();
  void cancel_the_rest();
  void begin_stream();
  std::string text_of(choice& of, std::string text) const;
  void put(std::size_t i, chunk_content content);
  token_report report_of(const actors::answer_token& told) const;
  reply_usage usage() const;
  void count(choice& of);
  void count_the_rest(const char* reason);

  desk& desk_;
  std::shared_ptr<net::http_exchange> from_;
  order order_;
  reply_head head_;
  std::vector<choice> choices_;
  std::optional<chunk_writer> writer_;  ///< Once a stream has begun.
  std::uint64_t seed_ = 0;
  bool has_started_ = false, is_over_ = false;
};

}  // namespace ordermoe::gateway
