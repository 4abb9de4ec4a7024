#include "actors/admin/orders.hpp"

#include <fmt/format.h>

#include <utility>

namespace ordermoe::actors {

using nlohmann::ordered_json;

namespace {

void keep(order_book::lines& kept, ordered_json line) {
  if (kept.size() == order_book::most_kept) kept.pop_front();
  kept.push_back(std::move(line));
}

}  // namespace

rank rank_of(const std::string& role) {
  return role == "admin" ? rank::admin : role == "operator" ? rank::operator_ : rank::viewer;
}

const char* to_string(rank of) {
  return of == rank::admin ? "admin" : of == rank::operator_ ? "operator" : "viewer";
}

void order_book::note(const std::string& event, const ordered_json& about) {
  ordered_json line{{"number", ++n_events_}, {"time_s", time_s_()}, {"event", event}};
  line.update(about);
  if (log_) log_(fmt::format("event {} {}", event, about.dump()));
  keep(events_, std::move(line));
}

void order_book::audit(const order_ptr& order, const std::string& what, const std::string& text) {
  keep(audit_, {{"time_s", time_s_()},
                {"operation", order->operation},
                {"who", order->who},
                {"role", order->role},
                {"what", what},
                {"text", text}});
  if (log_)
    log_(fmt::format("audit {} by {} ({}): {}: {}", order->operation, order->who, order->role, what,
                     text));
}

void order_book::answer(const order_ptr& order, const ordered_json& reply) {
  const auto tell = std::exchange(order->reply, nullptr);
  if (!tell) return;
  ordered_json full{{"ref", order->ref}};
  full.update(reply);
  tell(full.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

void order_book::refuse(const order_ptr& order, const error& why) {
  if (!order->operation.empty() && order->reply) audit(order, "refused", why.message);
  answer(order, {{"problem", {{"code", static_cast<int>(why.code)}, {"message", why.message}}}});
}

void order_book::tell(const order_ptr& order, ordered_json content) {
  answer(order, {{"result", std::move(content)}});
}

void order_book::done(const order_ptr& order, std::uint64_t epoch_after, ordered_json content) {
  if (order->reply) audit(order, order->dry_run ? "would be done" : "done", content.dump());
  answer(order, {{"operation", order->operation},
                 {"dry_run", order->dry_run},
                 {"epoch_before", order->epoch_before},
                 {"epoch_after", epoch_after},
                 {"result", std::move(content)}});
}

}  // namespace ordermoe::actors
