#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <variant>
#include <vector>

#include "gateway/figures.hpp"
#include "gateway/gateway.hpp"
#include "gateway/openai/problem.hpp"
#include "gateway/openai/request.hpp"
#include "gateway/order_desk.hpp"

/// Between the HTTP server and what answers. On the server's thread, but for what is said otherwise.
namespace ordermoe::gateway {

class job;

/// Answers with a problem, once.
void refuse(net::http_exchange& to, const api_problem& what);
void reply(net::http_exchange& to, std::string_view json);

class desk {
 public:
  /// `server` is there before the first request, and outlives what was posted to it.
  desk(const gateway_options& options, backend& behind);
  /// stop().
  ~desk();
  /// The backend is not asked from here any more when it returns; what waits for a status is left. Once the server has
  /// stopped, and before the backend does. Not on the server's thread.
  void stop();
  /// `tells_in_turns`: backend::tell_in_turns.
  void use(net::http_server& server, bool tells_in_turns) {
    server_ = &server;
    tells_in_turns_ = tells_in_turns;
    orders_.use(server);
  }

  void take(std::shared_ptr<net::http_exchange> from);
  /// How many bytes of its body are read; 0 where take() refuses it by its path or fields alone, and where a body says nothing.
  std::size_t most_body(const net::http_request& head) const;

  // Of jobs:
  const gateway_options& options() const { return options_; }
  backend& behind() { return behind_; }
  net::http_server& server() { return *server_; }
  bool tells_in_turns() const { return tells_in_turns_; }
  gateway_figures& figures() { return figures_; }
  std::uint64_t random() { return random_(); }
  std::string new_id(const char* kind);
  /// A token's text inside others, with the space that it may begin with; U+FFFD where it is a part of a character, whose bytes are
  /// not known then. From any thread.
  const std::string& piece_of(std::int32_t id) const;
  /// So many answers ended, of those that were running.
  void ended(std::size_t answers);
  /// The peer of a job that waits went away.
  void forget(const job* waiting);

 private:
  using exchange = std::shared_ptr<net::http_exchange>;
  using answer_function = void (desk::*)(const exchange&);
  /// Who may ask: everybody, who has a key where there are keys, or who has a token of the cluster, which its nodes look at.
  enum class guard { open, key, token };

  struct route {
    std::string_view method;
    std::string_view path;
    answer_function answer;
    guard by;
    std::size_t most_body = SIZE_MAX;
  };
  static const route* find_route(std::string_view path);
  /// Why it is not let in.
  std::optional<api_problem> shut_out(const route& at, const net::http_request& request) const;
  bool is_strange(guard by, const net::http_request& request) const;
  bool knows(net::http_exchange& from, const std::string& model) const;
  request_limits limits() const;
  /// Whether a text may be short enough for the context, or is refused before it is looked at.
  bool may_fit(net::http_exchange& from, std::size_t text_bytes, const char* param) const;

  void live(const exchange& from);
  void ready(const exchange& from);
  void models(const exchange& from);
  void completions(const exchange& from);
  void chat(const exchange& from);
  void tokenize(const exchange& from);
  void detokenize(const exchange& from);
  void status(const exchange& from);
  void metrics(const exchange& from);
  void page(const exchange& from);
  void take_order(const exchange& from) { orders_.take(from); }
  void look_at_order(const exchange& from) { orders_.look(from); }

  void admit(std::shared_ptr<job> asked);
  /// Starts those that wait, as far as there is room.
  void start_waiting();
  int retry_after_s() const;

  using servers_function = std::function<void(const result<std::string>& servers)>;
  /// Asks the backend, which may take long, on a thread beside. One question at a time: its answer is for all who waited when
  /// it was asked. Where too many wait, `from` is told to come later.
  void with_servers(const exchange& from, servers_function told);
  void ask_servers();
  void take_servers(const result<std::string>& servers);

  const gateway_options& options_;
  mutable std::once_flag has_pieces_;
  mutable std::vector<std::string> pieces_;  ///< Of all tokens, once one was asked for.
  backend& behind_;
  order_desk orders_;
  net::http_server* server_ = nullptr;
  bool tells_in_turns_ = false;
  gateway_figures figures_;
  std::mt19937_64 random_;
  std::deque<std::shared_ptr<job>> waiting_;
  std::size_t n_waiting_ = 0, n_running_ = 0;  ///< Answers.
  std::vector<servers_function> answered_next_,
      answered_later_;  ///< By the question that is asked, and by another.

  std::mutex mutex_;  ///< Of what follows.
  std::condition_variable changed_;
  bool is_wanted_ = false, ends_ = false;
  std::thread asker_;
};

}  // namespace ordermoe::gateway
