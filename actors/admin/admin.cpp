#include "actors/admin/admin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "actors/scheduling/virtual_time_worker.hpp"

#include "actors/admin/admin_state.hpp"

namespace ordermoe::actors {

const std::string& admin_state::name_of(std::uint32_t server) const {
  return context().servers.servers[server].name;
}

void admin_state::start() {
  book.emplace([this] { return time_s(); }, context().seat->log);
  rules.emplace(id(), context().n_servers());
  for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
    if (server == id()) continue;
    away.insert(server);
    act(rules->lost(server));
    act(rules->set_member(server, is_member(server)));
  }
  read_kept();
  if (context().seat->drift.margin_percent > 0) look_for_drift_soon();
}

void admin_state::read_kept() {
  const auto tell = [this](log_event event, const error& why) {
    book->note(event, {{"why", fmt::format("state/{}; this node does without what it has: set that "
                                           "anew, or mend the file and start the node again",
                                           why.message)}});
  };
  const auto& kept = context().seat->kept;
  if (const auto text = kept.find(kept_tokens_name); text != kept.end()) {
    if (auto read = token_book::parse(text->second, kept_tokens_name))
      tokens = std::move(*read);
    else
      tell(log_event::tokens_not_kept, read.error());
  }
  if (const auto text = kept.find(kept_policy_name); text != kept.end()) {
    if (auto read = parse_kept_policy(text->second, kept_policy_name)) {
      policy = std::move(*read);
      policy_is_due = true;
      tick_soon();
    } else {
      tell(log_event::policy_not_kept, read.error());
    }
  }
}

void admin_state::keep(const char* name, const std::string& text, log_event where_not) {
  const auto& to = context().seat->keep;
  if (!to) return;
  if (auto kept = to(name, text); !kept) book->note(where_not, {{"why", kept.error().message}});
}

std::int64_t admin_state::seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void admin_state::tick_soon() {
  constexpr std::int64_t period_ns = 100'000'000;
  if (std::exchange(ticking, true)) return;
  send_later(self, caf::actor_cast<admin_actor>(self), period_ns, timer_tick{}, later::timer);
}

void admin_state::tick() {
  ticking = false;
  gatherings.expire(now_ns(self));
  if (policy_is_due) follow_kept_policy();
  if (!gatherings.empty() || policy_is_due) tick_soon();
}

void admin_state::take(admin_order& order) {
  auto taken = std::make_shared<order_in_hand>();
  taken->who = order.who;
  taken->role = order.role;
  taken->reply = std::move(order.reply);
  auto document = json_document::parse(order.text, "order");
  if (!document) return book->refuse(taken, document.error());
  const auto root = (*document)->root();
  root.only({"ref", "verb", "arguments", "dry_run", "token", "by_token_alone"});
  taken->ref = root.at("ref").unsigned_integer();
  taken->verb = root.at("verb").string();
  if (const auto dry = root.find("dry_run")) taken->dry_run = dry->boolean();
  std::string secret;
  if (const auto token = root.find("token")) secret = token->string();
  if (const auto alone = root.find("by_token_alone")) taken->by_token_alone = alone->boolean();
  const auto arguments = root.at("arguments");
  const auto found =
      std::ranges::find_if(verbs(), [&](const verb& each) { return taken->verb == each.name; });
  if (auto read = (*document)->finish(0); !read) return book->refuse(taken, read.error());
  if (found == verbs().end())
    return book->refuse(taken,
                        {errc::usage, fmt::format("found verb '{}', expected one of those of "
                                                  "`ordermoe admin --help`",
                                                  taken->verb)});
  if (!secret.empty() || taken->by_token_alone)
    if (auto raised = raise(*taken, secret); !raised)
      return book->refuse(taken, raised.error(), "token");
  if (rank_of(taken->role) < found->least)
    return book->refuse(taken, lacks_role(*taken, found->least), "role");
  if (found->changes) {
    taken->operation = fmt::format("{}.{}.{}", name_of(id()), context().seat->boot, ++n_operations);
    book->audit(taken, log_event::audit_ordered, without_secret(order.text));
  }
  (this->*found->run)(taken, arguments);
  if (auto read = (*document)->finish(0); !read) book->refuse(taken, read.error());
}

std::string admin_state::without_secret(const std::string& text) {
  auto told = ordered_json::parse(text, nullptr, false);
  if (told.is_object()) told.erase("token");
  return told.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

result<void> admin_state::raise(order_in_hand& order, const std::string& secret) {
  const auto shown = tokens.check(secret, seconds_now());
  if (!shown) {
    book->note(log_event::token_refused, {{"client", order.who}, {"why", shown.error().message}});
    return shown.error();
  }
  if (!order.by_token_alone && rank_of(shown->role) <= rank_of(order.role)) return {};
  order.role = shown->role;
  order.token = shown->name;
  return {};
}

error admin_state::lacks_role(const order_in_hand& order, rank least) {
  if (order.by_token_alone)
    return {errc::usage,
            fmt::format("{} takes a token of role {}, this one is of {}; make one with "
                        "`ordermoe admin token create NAME --role {}`",
                        order.verb, to_string(least), order.role, to_string(least))};
  return {errc::usage, fmt::format("{} takes a certificate of role {}, this one is of {}; "
                                   "issue one with `ordermoe cert issue NAME --role {}`, or show a "
                                   "token of `token create` by --token-file",
                                   order.verb, to_string(least), order.role, to_string(least))};
}

ordered_json admin_state::names_of(const std::set<std::uint32_t>& servers) const {
  auto names = ordered_json::array();
  for (const auto server : servers) names.push_back(name_of(server));
  return names;
}

std::string admin_state::server_name(std::uint32_t server) const {
  return server < context().n_servers() ? name_of(server) : std::string();
}

const std::array<admin_state::verb, 30>& admin_state::verbs() {
  static const std::array<verb, 30> all{{
      {"status", rank::viewer, false, &admin_state::tell_status},
      {"peers", rank::viewer, false, &admin_state::tell_peers},
      {"topology", rank::viewer, false, &admin_state::tell_topology},
      {"experts", rank::viewer, false, &admin_state::tell_experts},
      {"requests.show", rank::viewer, false, &admin_state::show_request},
      {"log.level", rank::viewer, false, &admin_state::get_log_level},
      {"log.set_level", rank::operator_, true, &admin_state::set_log_level},
      {"token.list", rank::admin, false, &admin_state::list_tokens},
      {"token.create", rank::admin, true, &admin_state::create_token},
      {"token.revoke", rank::admin, true, &admin_state::revoke_token},
      {"members", rank::viewer, false, &admin_state::members},
      {"requests.list", rank::viewer, false, &admin_state::list_requests},
      {"plan.show", rank::viewer, false, &admin_state::show_plan},
      {"plan.diff", rank::viewer, false, &admin_state::diff},
      {"plan.history", rank::viewer, false, &admin_state::tell_history},
      {"policy.get", rank::viewer, false, &admin_state::get_policy},
      {"events", rank::viewer, false, &admin_state::tell_events},
      {"audit", rank::admin, false, &admin_state::tell_audit},
      {"cert.show", rank::viewer, false, &admin_state::show_certificate},
      {"cert.reload", rank::admin, true, &admin_state::reload_certificate},
      {"members.add", rank::admin, true, &admin_state::add_member},
      {"members.remove", rank::admin, true, &admin_state::remove_member},
      {"requests.cancel", rank::operator_, true, &admin_state::cancel},
      {"drain", rank::operator_, true, &admin_state::drain},
      {"resume", rank::operator_, true, &admin_state::resume},
      {"drift", rank::viewer, false, &admin_state::tell_drift},
      {"plan.propose", rank::operator_, true, &admin_state::propose},
      {"plan.apply", rank::admin, true, &admin_state::apply},
      {"plan.abort", rank::admin, true, &admin_state::abort},
      {"policy.set", rank::admin, true, &admin_state::set_policy},
  }};
  return all;
}

admin_actor spawn_admin(caf::actor_system& system, admin_work work) {
  return system.spawn([work = std::move(work)](admin_actor::stateful_pointer<admin_state> self)
                          -> admin_actor::behavior_type {
    auto& state = self->state;
    state.self = self;
    state.work = work;
    state.start();
    return {
        [&state](admin_order& order) { state.take(order); },
        [&state](const peer_said& message) { state.take(message); },
        [&state](const peer_changed& message) { state.take(message); },
        [&state](const plan_step_done& message) { state.take(message); },
        [&state](const plan_before_ended& message) {
          state.act(state.rules->ended(message.change));
        },
        [&state](const timer_tick&) { state.tick(); },
        [&state](look_for_drift) { state.look_for_drift(); },
    };
  });
}

}  // namespace ordermoe::actors
