#include "actors/admin/orders.hpp"

#include <utility>

namespace ordermoe::actors {

using nlohmann::ordered_json;

namespace {

log_field field_of(const std::string& name, const ordered_json& value) {
  if (value.is_boolean()) return {name, value.get<bool>()};
  if (value.is_number_unsigned()) return {name, value.get<std::uint64_t>()};
  if (value.is_number_integer()) return {name, value.get<std::int64_t>()};
  if (value.is_number()) return {name, value.get<double>()};
  return {name, value.is_string() ? value.get<std::string>() : value.dump()};
}

std::vector<log_field> fields_of(const ordered_json& about) {
  std::vector<log_field> fields;
  for (const auto& [name, value] : about.items()) fields.push_back(field_of(name, value));
  return fields;
}

const char* what_of(log_event audited) {
  return audited == log_event::audit_ordered         ? "ordered"
         : audited == log_event::audit_done          ? "done"
         : audited == log_event::audit_would_be_done ? "would be done"
                                                     : "refused";
}

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

void order_book::log(log_event event, const ordered_json& about) const {
  log_.tell(event, fields_of(about));
}

void order_book::note(log_event event, const ordered_json& about) {
  log(event, about);
  keep_event(event, about);
}

void order_book::keep_event(log_event event, const ordered_json& about) {
  ordered_json line{
      {"number", ++n_events_}, {"time_s", time_s_()}, {"event", facts_of(event).name}};
  for (const auto& [name, value] : about.items())
    if (!line.contains(name)) line[name] = value;
  keep(events_, std::move(line));
}

void order_book::audit(const order_ptr& order, log_event what, const std::string& text) {
  ordered_json line{{"operation", order->operation}, {"who", order->who}, {"role", order->role}};
  if (!order->token.empty()) line["token"] = order->token;
  line["text"] =
      text.size() <= most_audited_bytes
          ? text
          : fmt::format("{}... ({} bytes)", text.substr(0, most_audited_bytes), text.size());
  log_.tell(what, fields_of(line));
  ordered_json kept{{"time_s", time_s_()}, {"what", what_of(what)}};
  kept.update(line);
  keep(audit_, std::move(kept));
}

void order_book::answer(const order_ptr& order, ordered_json reply) {
  const auto tell = std::exchange(order->reply, nullptr);
  if (!tell) return;
  ordered_json full{{"ref", order->ref}};
  if (order->by_token_alone && !order->token.empty())
    full["bearer"] = {{"token", order->token}, {"role", order->role}};
  for (auto& [name, value] : reply.items()) full[name] = std::move(value);
  tell(full.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
}

void order_book::refuse(const order_ptr& order, const error& why, const char* lacks) {
  if (!order->operation.empty() && order->reply)
    audit(order, log_event::audit_refused, why.message);
  ordered_json problem{{"code", static_cast<int>(why.code)}, {"message", why.message}};
  if (lacks != nullptr) problem["lacks"] = lacks;
  answer(order, {{"problem", std::move(problem)}});
}

void order_book::tell(const order_ptr& order, ordered_json content) {
  answer(order, {{"result", std::move(content)}});
}

void order_book::done(const order_ptr& order, std::uint64_t epoch_after, ordered_json content,
                      const ordered_json& secret) {
  if (order->reply)
    audit(order, order->dry_run ? log_event::audit_would_be_done : log_event::audit_done,
          content.dump());
  content.update(secret);
  answer(order, {{"operation", order->operation},
                 {"dry_run", order->dry_run},
                 {"epoch_before", order->epoch_before},
                 {"epoch_after", epoch_after},
                 {"result", std::move(content)}});
}

ordered_json latest_of(const order_book::lines& kept, std::size_t most_bytes) {
  std::size_t bytes = 0;
  auto first = kept.end();
  while (first != kept.begin()) {
    bytes += std::prev(first)->dump(-1, ' ', false, ordered_json::error_handler_t::replace).size();
    if (bytes > most_bytes) break;
    --first;
  }
  auto told = ordered_json::array();
  for (; first != kept.end(); ++first) told.push_back(*first);
  return told;
}

}  // namespace ordermoe::actors
