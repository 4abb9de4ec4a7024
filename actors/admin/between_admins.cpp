#include "actors/admin/admin_state.hpp"

#include <utility>

#include "config/json.hpp"
#include "config/json_text.hpp"

namespace ordermoe::actors {

void admin_state::identity_changed(const ordered_json& what, std::uint32_t from) {
  book->note(log_event::identity_changed, what);
  if (!what.contains("revocations")) return;
  for (const auto server : present())
    if (server != from) tell_revocations(server);
}

void admin_state::tell_revocations(std::uint32_t server) {
  const auto known = context().seat->identity;
  if (!known) return;
  const auto now = known->now();
  if (now->revocations().number > 0) say(server, {{"revocations", now->revocations().pem}});
}

void admin_state::take_revocations(std::uint32_t from, const std::string& pem) {
  const auto known = keeper();
  if (!known) return;
  const auto changed = (*known)->take_revocations(pem);
  if (!changed) return ignore(from, changed.error());
  if (*changed) identity_changed(change_json(**changed), from);
}

void admin_state::say(std::uint32_t server, const ordered_json& content) {
  if (context().seat->tell_admin) context().seat->tell_admin(server, json_text(content));
}

std::set<std::uint32_t> admin_state::present() const {
  std::set<std::uint32_t> others;
  for (std::uint32_t server = 0; server < context().n_servers(); ++server)
    if (server != id() && !away.contains(server)) others.insert(server);
  return others;
}

void admin_state::say_to_all(const ordered_json& content) {
  for (const auto server : present()) say(server, content);
}

void admin_state::take(const peer_said& message) {
  auto document = json_document::parse(message.text, "admin message");
  if (!document) return ignore(message.server, document.error());
  const auto root = (*document)->root();
  if (message.server == id()) return take_own(message.text);
  if (const auto list = root.find("revocations")) {
    root.only({"revocations"});
    const auto pem = list->string();
    if (auto read = (*document)->finish(0); !read) return ignore(message.server, read.error());
    return take_revocations(message.server, pem);
  }
  if (const auto words = root.find("members")) {
    root.only({"members"});
    const auto text = words->string();
    if (auto read = (*document)->finish(0); !read) return ignore(message.server, read.error());
    return hear_members(message.server, text);
  }
  if (!root.find("change")) return take_talk(message.server, **document);
  root.only({"change", "kind", "text"});
  change_message said;
  said.change = root.at("change").unsigned_integer();
  const auto kind = serving::parse_change_message(root.at("kind").string());
  said.text = root.at("text").string();
  if (auto read = (*document)->finish(0); !read) return ignore(message.server, read.error());
  if (!kind) return ignore(message.server, {errc::malformed, "found a kind that no change has"});
  said.kind = *kind;
  act(rules->hear(message.server, said));
}

void admin_state::take_own(const std::string& text) {
  const auto said = ordered_json::parse(text);
  const auto event = find_log_event(said.at("event").get<std::string>());
  if (event == log_event::identity_changed) return identity_changed(said.at("about"), id());
  if (event) book->note(*event, said.at("about"));
}

void admin_state::take_talk(std::uint32_t from, json_document& document) {
  const auto root = document.root();
  root.only({"ask", "of", "told", "report", "policy", "tokens"});
  const auto ask = root.find("ask"), told = root.find("told"), set = root.find("policy"),
             shared = root.find("tokens");
  const auto what = root.find("of");
  const auto of = what ? static_cast<subject>(what->one_of({to_string(subject::status),
                                                            to_string(subject::activation),
                                                            to_string(subject::ways)}))
                       : subject::status;
  const auto question = ask    ? ask->unsigned_integer()
                        : told ? told->unsigned_integer()
                               : std::uint64_t{0};
  const auto text = told     ? root.at("report").string()
                    : set    ? set->string()
                    : shared ? shared->string()
                             : std::string();
  if (auto read = document.finish(0); !read) return ignore(from, read.error());
  if (ask) return tell_report(from, question, of);
  if (told) {
    auto report = parse_told(text);
    if (!report.is_object()) return ignore(from, {errc::malformed, "found a report that is none"});
    return gatherings.take(question, from, std::move(report), now_ns(self));
  }
  if (set) return take_policy(from, text);
  if (shared) return take_tokens(from, text);
  ignore(from, {errc::malformed, "found a message without content"});
}

void admin_state::take_policy(std::uint32_t from, const std::string& text) {
  auto theirs = parse_kept_policy(text, "policy");
  if (!theirs) return ignore(from, theirs.error());
  if (theirs->is_newer_than(policy)) adopt_policy(std::move(*theirs));
}

void admin_state::take_tokens(std::uint32_t from, const std::string& text) {
  const auto theirs = token_book::parse(text, "tokens");
  if (!theirs) return ignore(from, theirs.error());
  if (tokens.merge(*theirs, seconds_now()))
    keep(kept_tokens_name, tokens.text(), log_event::tokens_not_kept);
}

void admin_state::greet(std::uint32_t server) {
  if (policy.version > 0) say(server, {{"policy", text_of(policy)}});
  if (!tokens.empty()) say(server, {{"tokens", tokens.text()}});
}

void admin_state::ignore(std::uint32_t server, const error& why) {
  book->note(log_event::peer_ignored, {{"peer", name_of(server)}, {"why", why.message}});
}

void admin_state::take(const peer_changed& message) {
  if (message.server >= context().n_servers() || message.server == id()) return;
  book->keep_event(message.up ? log_event::session_up : log_event::session_down,
                   {{"peer", name_of(message.server)}});
  if (message.up) {
    away.erase(message.server);
    tell_members(message.server);
    greet(message.server);
    act(rules->found(message.server));
    tell_revocations(message.server);
  } else {
    away.insert(message.server);
    gatherings.lose(message.server);
    act(rules->lost(message.server));
  }
}

}  // namespace ordermoe::actors
