#include "actors/admin/admin_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ordermoe::actors {

void admin_state::set_log_level(const order_ptr& order, const json_value& arguments) {
  arguments.only({"level"});
  const auto text = arguments.at("level").string();
  const auto level = parse_log_level(text);
  if (!level)
    return book->refuse(order, {errc::usage, fmt::format("found level '{}', expected debug, "
                                                         "info, warning, error or off",
                                                         text)});
  with_epoch(order, [this, order, level](std::uint64_t epoch) {
    const auto& log = context().seat->log;
    // A log that is to tell less has heard of that.
    const bool tells_less = *level > log.least();
    if (!order->dry_run) {
      if (!tells_less) log.set_least(*level);
      book->note(log_event::log_level_changed,
                 {{"least", to_string(*level)}, {"operation", order->operation}});
    }
    book->done(order, epoch, {{"node", name_of(id())}, {"level", to_string(*level)}});
    if (!order->dry_run && tells_less) log.set_least(*level);
  });
}

void admin_state::create_token(const order_ptr& order, const json_value& arguments) {
  arguments.only({"name", "role", "for_s"});
  const auto name = arguments.at("name").string(), role = arguments.at("role").string();
  const auto for_s = arguments.at("for_s").integer();
  with_epoch(order, [this, order, name, role, for_s](std::uint64_t epoch) {
    auto changed = tokens;
    const auto made = changed.make(name, role, for_s, seconds_now());
    if (!made) return book->refuse(order, made.error());
    ordered_json content{{"name", name}, {"role", role}, {"until_s", made->what.until_s}};
    if (order->dry_run) return book->done(order, epoch, std::move(content));
    change_tokens(std::move(changed));
    book->note(log_event::token_created,
               {{"token", name}, {"role", role}, {"operation", order->operation}});
    content["not_told"] = names_of(away_members());
    book->done(order, epoch, std::move(content), {{"token", made->secret}});
  });
}

void admin_state::revoke_token(const order_ptr& order, const json_value& arguments) {
  arguments.only({"name"});
  const auto name = arguments.at("name").string();
  with_epoch(order, [this, order, name](std::uint64_t epoch) {
    auto changed = tokens;
    if (auto revoked = changed.revoke(name, seconds_now()); !revoked)
      return book->refuse(order, revoked.error());
    if (!order->dry_run) {
      change_tokens(std::move(changed));
      book->note(log_event::token_revoked, {{"token", name}, {"operation", order->operation}});
    }
    book->done(order, epoch, {{"name", name}, {"not_told", names_of(away_members())}});
  });
}

void admin_state::change_tokens(token_book changed) {
  tokens = std::move(changed);
  keep(kept_tokens_name, tokens.text(), log_event::tokens_not_kept);
  say_to_all({{"tokens", tokens.text()}});
}

result<std::shared_ptr<net::identity_keeper>> admin_state::keeper() const {
  if (auto known = context().seat->identity) return known;
  return error{errc::unsupported, "this node has no certificate"};
}

void admin_state::reload_certificate(const order_ptr& order, const json_value& arguments) {
  arguments.only({"revocations"});
  const auto list = arguments.find("revocations");
  const auto pem = list ? list->string() : std::string();
  with_epoch(order, [this, order, pem](std::uint64_t epoch) {
    const auto known = keeper();
    if (!known) return book->refuse(order, known.error());
    const auto changed = reload_identity(**known, pem, order->dry_run);
    if (!changed) return book->refuse(order, changed.error());
    ordered_json told{{"node", name_of(id())}, {"changed", changed->has_value()}};
    told["list"] = (*changed ? (*changed)->next : (*known)->now())->revocations().number;
    if (*changed) told.update(change_json(**changed));
    if (*changed && !order->dry_run) identity_changed(change_json(**changed), id());
    book->done(order, epoch, std::move(told));
  });
}

void admin_state::cancel(const order_ptr& order, const json_value& arguments) {
  const auto request = arguments.at("request").unsigned_integer();
  with_epoch(order, [this, order, request](std::uint64_t epoch) {
    with_status([this, order, request, epoch](const server_status& status) {
      if (std::ranges::find(status.requests, request, &request_status::request) ==
          status.requests.end())
        return book->refuse(order, no_request(request));
      if (!order->dry_run) {
        self->send(work.server, cancel_request{request});
        book->note(log_event::request_cancelled,
                   {{"request", request}, {"operation", order->operation}});
      }
      book->done(order, epoch, {{"request", request}});
    });
  });
}

void admin_state::set_drained(const order_ptr& order, bool on) {
  with_epoch(order, [this, order, on](std::uint64_t epoch) {
    if (!order->dry_run) {
      self->send(work.server, drain_server{on});
      book->note(on ? log_event::node_drained : log_event::node_resumed,
                 {{"operation", order->operation}});
    }
    with_status([this, order, epoch](const server_status& status) {
      book->done(order, epoch,
                 {{"node", name_of(id())},
                  {"drained", status.drained},
                  {"requests", status.requests.size()}});
    });
  });
}

}  // namespace ordermoe::actors
