#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gateway/backend.hpp"
#include "gateway/gateway.hpp"
#include "gateway/openai/problem.hpp"
#include "net/http/server.hpp"

/// Operators' orders over HTTP, handed to the admin of a node with the token of whoever gives them. Who may do what the node
/// decides, by the token alone; here is bounded how much a crowd can ask.
///
///   POST /admin/orders      {"verb", "arguments", "node", "dry_run"}, Authorization: Bearer TOKEN
///   GET /admin/orders/ID    by the same token: what came of it
///
///   taken --the node's reply--> ended: the answer of whoever waits, kept for GET until most_kept orders ended later
///     | after `hold`: 202 with its ID, and it goes on
///     | after its verb's time: 504; what came of it is in the node's audit
///
/// A token that was right before is a known one, and the others are strangers: only so many of their orders are under way, and
/// only so many of an address begin in a second, and only so many that ended are kept. A crowd with wrong tokens holds up nobody whose
/// token is known, and throws away nothing that came of that one's orders.
namespace ordermoe::gateway {

class order_desk {
 public:
  static constexpr std::size_t most_body_bytes = 16u << 10;
  static constexpr std::size_t most_running = 16;            ///< Orders under way.
  static constexpr std::size_t most_strangers = 4;           ///< Of them, of tokens not known.
  static constexpr std::size_t most_strangers_a_second = 4;  ///< That begin, of one address.
  static constexpr std::size_t most_strange_addresses = 64;  ///< In one second.
  static constexpr std::size_t most_kept = 64;               ///< Orders that ended.
  static constexpr std::size_t most_kept_of_strangers = 8;   ///< Beside them.
  static constexpr std::size_t most_known = 64;              ///< Tokens.
  static constexpr std::size_t most_lookers = 8;             ///< That wait for one order.

  using exchange = std::shared_ptr<net::http_exchange>;
  using clock = std::chrono::steady_clock;

  order_desk(backend& behind, const order_times& times);
  ~order_desk();
  /// As desk has them.
  void use(net::http_server& server) { server_ = &server; }
  void stop();

  // On the server's thread:
  /// Of POST.
  void take(const exchange& from);
  /// Of GET.
  void look(const exchange& from);

 private:
  struct answer {
    int status = 200;
    net::http_fields fields;
    std::string body;
  };
  struct looker {
    exchange from;
    clock::time_point until;
  };
  struct order {
    std::string digest;  ///< Of the token.
    std::string verb, node;
    bool is_stranger = true;
    clock::time_point began, until;
    std::optional<answer> told;  ///< None: under way.
    std::vector<looker> lookers;
  };
  struct wish;

  std::optional<api_problem> read(const net::http_request& from, wish& into) const;
  std::optional<api_problem> admit(const wish& of, const std::string& peer);
  bool has_begun_enough(const std::string& peer);
  void begin(const exchange& from, wish of);
  /// Answers now, or when it has ended, or after the hold.
  void wait(const exchange& from, const std::string& id, order& of);
  void end(const std::string& id, const result<std::string>& reply);
  void settle(const std::string& id, order& of, answer told);
  answer answer_of(const std::string& id, const order& of, const result<std::string>& reply);
  void remember(const std::string& digest);
  /// The oldest of these is forgotten for it where there are too many.
  void keep(const std::string& id, std::vector<std::string>& among, std::size_t most);
  void tick();
  void set_busy();
  static void say_running(net::http_exchange& to, const std::string& id, const order& of);
  std::string new_id();

  backend& behind_;
  const order_times times_;
  net::http_server* server_ = nullptr;
  std::mt19937_64 random_;
  std::map<std::string, order> orders_;           ///< By id.
  std::vector<std::string> ended_;                ///< Ids, the oldest first.
  std::vector<std::string> ended_of_strangers_;   ///< Likewise, of tokens not known.
  std::vector<std::string> known_;                ///< Digests of tokens, the latest used last.
  std::map<std::string, std::size_t> strangers_;  ///< That began in this second, by address.
  clock::time_point second_;                      ///< When it began.
  std::size_t n_running_ = 0, n_strangers_ = 0;

  std::mutex mutex_;  ///< Of what follows.
  std::condition_variable changed_;
  bool is_busy_ = false, ends_ = false;
  std::thread clock_;
};

}  // namespace ordermoe::gateway
