#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/desk.hpp"
#include "gateway/openai/reply.hpp"

namespace ordermoe::gateway {

/// One request for answers: README.md has its states. On the server's thread, but for hear().
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
    std::size_t bytes = 0;  ///< Of its tokens whose logprobs were told.
    actors::request_outcome outcome;
    std::vector<token_report> reports;  ///< That were not told yet.
  };

  actors::answer_sink sink_of(std::size_t i);
  /// A token, on the thread that tells it: of a stream that has begun, and of which nothing is on its way to the server's
  /// thread, it is written there, where whoever tells it has time for that.
  void hear(std::size_t i, const actors::answer_token& told);
  actors::remote_request request_of(std::size_t i);
  /// Lock held.
  void take(std::size_t i, const actors::answer_token& told);
  void end(std::size_t i, actors::request_outcome told);
  void fail(const api_problem& why);
  void finish();
  void gone();
  void cancel_the_rest();
  void set_over();
  // Lock held:
  void begin_stream();
  void put_end(std::size_t i, const std::string& finish);
  /// Of `text`.
  std::string_view text_of(choice& of, std::string_view text) const;
  void put(std::size_t i, chunk_content& content);
  token_report report_of(const actors::answer_token& told) const;
  reply_usage usage() const;
  void count(choice& of);
  void count_the_rest(const char* reason);

  desk& desk_;
  std::shared_ptr<net::http_exchange> from_;
  order order_;
  reply_head head_;
  std::vector<choice> choices_;
  std::uint64_t seed_ = 0;
  bool has_started_ = false;
  std::chrono::steady_clock::time_point came_ = std::chrono::steady_clock::now();
  double waited_s_ = 0;  ///< For its turn.

  /// Of what is streamed: of what follows, and of a choice what was told of its text.
  std::mutex mutex_;
  std::optional<chunk_writer> writer_;  ///< Once a stream has begun.
  bool is_over_ = false;      ///< Changed on the server's thread alone, which reads it without.
  std::size_t n_posted_ = 0;  ///< Tokens that are on their way to the server's thread.
};

}  // namespace ordermoe::gateway
