#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "config/error.hpp"
#include "config/log_events.hpp"

/// Operators' orders: who may give which, how they are answered, and what is kept of them and of what happened. No CAF
/// type in this header.
namespace ordermoe::actors {

enum class rank { viewer, operator_, admin };

/// Of a certificate's role; whatever is not known is a viewer.
rank rank_of(const std::string& role);
const char* to_string(rank of);

/// An order, from when it came until it is answered.
struct order_in_hand {
  std::uint64_t ref = 0;
  std::string who, role, verb;
  bool dry_run = false;
  std::string operation;        ///< Empty where it changes nothing.
  std::string token;            ///< By whose name it has its role; empty: by the certificate.
  bool by_token_alone = false;  ///< Its role is the token's, whatever the certificate's.
  std::uint64_t epoch_before = 0;
  std::function<void(std::string)> reply;  ///< Empty once it is answered.
};
using order_ptr = std::shared_ptr<order_in_hand>;

/// Answers orders, each once: the first answer stands. Keeps the latest events, numbered from 1, and of each order that
/// changes something that it came and what came of it. One thread at a time.
class order_book {
 public:
  static constexpr std::size_t most_kept = 1000;  ///< Events, and lines of the audit.
  static constexpr std::size_t most_audited_bytes =
      500;  ///< Of what an order is, or what came of it.
  using lines = std::deque<nlohmann::ordered_json>;

  /// `time_s`: since the start of the service.
  order_book(std::function<double()> time_s, log_outlet log)
      : time_s_(std::move(time_s)), log_(std::move(log)) {}

  /// Into the log alone; `about` has the event's fields.
  void log(log_event event, const nlohmann::ordered_json& about) const;
  /// Into the events and the log; `about` has the event's fields.
  void note(log_event event,
            const nlohmann::ordered_json& about = nlohmann::ordered_json::object());
  /// Into the events alone: of what the log has from elsewhere. What is called as an event's own number, time or name is not told.
  void keep_event(log_event event, const nlohmann::ordered_json& about);
  /// `what` is one of the audit's events; of a longer text its beginning is kept.
  void audit(const order_ptr& order, log_event what, const std::string& text);

  /// `lacks`: "token" or "role" where another bearer might be heard; null: whoever asks, it is refused.
  void refuse(const order_ptr& order, const error& why, const char* lacks = nullptr);
  /// Of an order that changes nothing.
  void tell(const order_ptr& order, nlohmann::ordered_json content);
  /// Of one that does, or would. `secret`: members of the reply that are kept nowhere.
  void done(const order_ptr& order, std::uint64_t epoch_after, nlohmann::ordered_json content,
            const nlohmann::ordered_json& secret = nlohmann::ordered_json::object());

  std::uint64_t latest_event() const { return n_events_; }
  const lines& events() const { return events_; }
  const lines& audited() const { return audit_; }

 private:
  void answer(const order_ptr& order, nlohmann::ordered_json reply);

  std::function<double()> time_s_;
  log_outlet log_;
  std::uint64_t n_events_ = 0;
  lines events_, audit_;
};

/// The latest of them that have so many bytes together, the oldest first.
nlohmann::ordered_json latest_of(const order_book::lines& kept, std::size_t most_bytes);

}  // namespace ordermoe::actors
