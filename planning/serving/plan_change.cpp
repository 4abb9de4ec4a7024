#include "planning/serving/plan_change.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace ordermoe::serving {

namespace {

using message_kind = change_message::what;

constexpr std::array<const char*, 11> message_names{
    "prepare", "hold",  "install", "commit",    "abort",        "done",
    "failed",  "ended", "inquire", "committed", "not_committed"};

/// Of a step that a leader asks for.
constexpr message_kind message_of(change_step step) {
  return static_cast<message_kind>(step);  // In the same order; a leader does not ask to retire.
}
static_assert(message_of(change_step::prepare) == message_kind::prepare);
static_assert(message_of(change_step::abort) == message_kind::abort);

}  // namespace

const char* to_string(change_message::what kind) {
  return message_names[static_cast<std::size_t>(kind)];
}

std::optional<change_message::what> parse_change_message(std::string_view name) {
  for (std::size_t i = 0; i < message_names.size(); ++i)
    if (name == message_names[i]) return static_cast<message_kind>(i);
  return std::nullopt;
}

const char* to_string(change_phase phase) {
  constexpr const char* names[] = {"none",       "preparing",  "prepared",  "holding",
                                   "held",       "installing", "installed", "inquiring",
                                   "committing", "ending",     "retiring"};
  return names[static_cast<std::size_t>(phase)];
}

const char* to_string(change_step step) {
  constexpr const char* names[] = {"prepare", "hold", "install", "commit", "abort", "retire"};
  return names[static_cast<std::size_t>(step)];
}

// ------------------------------------------------------------------------------------------- leading

result<std::vector<change_action>> plan_changes::begin(change_id change, std::string plan,
                                                       bool holds) {
  if (is_under_way())
    return error{errc::failed, fmt::format("a change that server {} leads is under way",
                                           leading_   ? self_
                                           : waiting_ ? waiting_->first
                                                      : leader_)};
  if (const auto missing = missing_member())
    return error{
        errc::failed,
        fmt::format("server {} is not connected, and every server has to take part", *missing)};
  leading_ = lead{change, change_step::prepare, {}, std::move(plan), holds};
  actions todo;
  begin_step(todo, change_step::prepare);
  return todo;
}

std::optional<std::uint32_t> plan_changes::missing_member() const {
  const auto found = std::ranges::find_if(
      lost_, [this](std::uint32_t server) { return !absent_.contains(server); });
  return found == lost_.end() ? std::nullopt : std::optional(*found);
}

void plan_changes::begin_step(actions& todo, change_step step) {
  leading_->step = step;
  leading_->awaited.clear();
  const change_message message{leading_->change, message_of(step),
                               step == change_step::prepare ? leading_->plan : std::string()};
  for (std::uint32_t server = 0; server < n_servers_; ++server)
    if (!lost_.contains(server)) leading_->awaited.insert(server);
  for (std::uint32_t server = 0; server < n_servers_ && leading_; ++server)
    if (!lost_.contains(server)) tell(todo, server, message);
}

void plan_changes::count(actions& todo, std::uint32_t from, const change_message& message) {
  if (!leading_ || message.change != leading_->change) return;
  if (message.kind == message_kind::failed)
    return end_lead(todo, fmt::format("server {}: {}", from, message.text));
  if (leading_->awaited.erase(from) > 0 && leading_->awaited.empty()) next_step(todo);
}

void plan_changes::next_step(actions& todo) {
  switch (leading_->step) {
    case change_step::prepare:
      return begin_step(todo, leading_->holds ? change_step::hold : change_step::install);
    case change_step::hold:
      return begin_step(todo, change_step::install);
    case change_step::install:
      return begin_step(todo, change_step::commit);
    case change_step::commit:
      return finish(todo, std::exchange(leading_, std::nullopt)->change, {});
    case change_step::retire:
    case change_step::abort:
      return;
  }
}

/// Before the commit; everybody is told.
void plan_changes::end_lead(actions& todo, const std::string& why) {
  if (!leading_ || leading_->step == change_step::commit) return;
  const auto change = std::exchange(leading_, std::nullopt)->change;
  for (std::uint32_t server = 0; server < n_servers_; ++server)
    if (!lost_.contains(server)) tell(todo, server, {change, message_kind::abort, why});
  given_up_ = change;
  unaware_ = lost_;
  finish(todo, change, why);
}

bool plan_changes::give_up(const std::string& why, std::vector<change_action>& actions) {
  if (!leading_ || leading_->step == change_step::commit) return false;
  end_lead(actions, why);
  return true;
}

// -------------------------------------------------------------------------------------- taking part

void plan_changes::tell(actions& todo, std::uint32_t server, change_message message) {
  if (server == self_) return take(todo, self_, message);
  todo.push_back({change_action::what::tell, server, std::move(message), {}, 0, {}});
}

void plan_changes::finish(actions& todo, change_id change, std::string why) {
  auto& action = todo.emplace_back();
  action.kind = change_action::what::finished;
  action.server = self_;
  action.change = change;
  action.text = std::move(why);
}

void plan_changes::do_here(actions& todo, change_step step, std::string text) {
  todo.push_back({change_action::what::step, self_, {}, step, change_, std::move(text)});
}

std::vector<change_action> plan_changes::hear(std::uint32_t from, const change_message& message) {
  actions todo;
  // One that is none any more was lost with what it sent, some of which may still have been on its way.
  if (from < n_servers_ && from != self_ && !absent_.contains(from)) take(todo, from, message);
  return todo;
}

void plan_changes::take(actions& todo, std::uint32_t from, const change_message& message) {
  switch (message.kind) {
    case message_kind::prepare:
      return prepare(todo, from, message);
    case message_kind::hold:
    case message_kind::install:
    case message_kind::commit:
    case message_kind::abort:
      return take_order(todo, from, message);
    case message_kind::done:
    case message_kind::failed:
      return count(todo, from, message);
    case message_kind::ended:
      return take_ended(todo, from, message);
    case message_kind::inquire:
      inquirers_[from] = message.change;
      return answer_inquirers(todo);
    case message_kind::committed:
    case message_kind::not_committed:
      return take_verdict(todo, from, message);
  }
}

/// Of two that lead at once neither is prepared by the other. The one with the lower number goes on: the other gives its own
/// change up when it hears of it, and who was told of the other first lets this one wait for that.
void plan_changes::prepare(actions& todo, std::uint32_t from, const change_message& message) {
  const bool prepares = phase_ == change_phase::preparing || phase_ == change_phase::prepared;
  const bool may_wait = is_ending() || (prepares && from < leader_);
  if (may_wait && (!waiting_ || from < waiting_->first)) {
    const auto why = fmt::format("server {} leads another change at the same time", from);
    if (from != self_ && leading_ && leading_->step == change_step::prepare) end_lead(todo, why);
    if (const auto behind = std::exchange(waiting_, std::nullopt))
      tell(todo, behind->first, {behind->second.change, message_kind::failed, why});
    // What this server led itself and prepared is over with that.
    if (phase_ != change_phase::none) return void(waiting_.emplace(from, message));
  }
  if (phase_ != change_phase::none)
    return tell(todo, from,
                {message.change, message_kind::failed,
                 fmt::format("a change that server {} leads is under way",
                             waiting_ ? waiting_->first : leader_)});
  // Of what it has under the plan before it could not tell that one.
  if (const auto missing = missing_member())
    return tell(todo, from,
                {message.change, message_kind::failed,
                 fmt::format("server {} is not connected to it", *missing)});
  phase_ = change_phase::preparing;
  change_ = message.change;
  leader_ = from;
  ended_ = lost_;
  do_here(todo, change_step::prepare, message.text);
}

void plan_changes::take_order(actions& todo, std::uint32_t from, const change_message& message) {
  if (waiting_ && waiting_->first == from && waiting_->second.change == message.change) {
    if (message.kind == message_kind::abort) waiting_.reset();
    return;
  }
  // Nobody else's, and nothing of a change that is over here.
  if (phase_ == change_phase::none || message.change != change_ || from != leader_) return;
  const bool prepared = phase_ == change_phase::prepared;
  if (message.kind == message_kind::hold && prepared) {
    phase_ = change_phase::holding;
    do_here(todo, change_step::hold);
  } else if (message.kind == message_kind::install && (prepared || phase_ == change_phase::held)) {
    phase_ = change_phase::installing;
    do_here(todo, change_step::install);
  } else if (message.kind == message_kind::commit && phase_ == change_phase::installed) {
    commit(todo);
  } else if (message.kind == message_kind::abort && !is_committed() &&
             phase_ != change_phase::inquiring) {
    abandon(todo, message.text);
  }
}

std::vector<change_action> plan_changes::step_done(change_id change, const std::string& why) {
  actions todo;
  if (phase_ == change_phase::none || change != change_) return todo;
  const bool commits = phase_ == change_phase::committing;
  switch (phase_) {
    case change_phase::preparing:
      phase_ = change_phase::prepared;
      break;
    case change_phase::holding:
      phase_ = change_phase::held;
      break;
    case change_phase::installing:
      phase_ = change_phase::installed;
      break;
    case change_phase::committing:
      phase_ = change_phase::ending;
      break;
    case change_phase::retiring:
      end_change(todo);
      return todo;
    default:
      return todo;
  }
  // What is committed does not fail any more: a server that cannot go by it says so elsewhere.
  const bool failed = !why.empty() && !commits;
  if (!lost_.contains(leader_))
    tell(
        todo, leader_,
        {change, failed ? message_kind::failed : message_kind::done, failed ? why : std::string()});
  if (commits) retire_if_all_ended(todo);
  return todo;
}

// ------------------------------------------------------------------------------------ the plan before

std::vector<change_action> plan_changes::ended(change_id change) {
  actions todo;
  const bool begins = phase_ == change_phase::committing || phase_ == change_phase::ending;
  if (!begins || change != change_ || !ended_.insert(self_).second) return todo;
  for (std::uint32_t server = 0; server < n_servers_; ++server)
    if (server != self_ && !lost_.contains(server))
      tell(todo, server, {change, message_kind::ended, {}});
  retire_if_all_ended(todo);
  return todo;
}

void plan_changes::take_ended(actions& todo, std::uint32_t from, const change_message& message) {
  if (message.change != change_ || phase_ < change_phase::installed) return;
  // That all were told to commit does not follow for whoever asks: it may have been answered that nobody knows.
  ended_.insert(from);
  retire_if_all_ended(todo);
}

void plan_changes::retire_if_all_ended(actions& todo) {
  if (phase_ != change_phase::ending) return;
  for (std::uint32_t server = 0; server < n_servers_; ++server)
    if (!ended_.contains(server) && !lost_.contains(server)) return;
  phase_ = change_phase::retiring;
  do_here(todo, change_step::retire);
}

void plan_changes::end_change(actions& todo) {
  phase_ = change_phase::none;
  if (const auto next = std::exchange(waiting_, std::nullopt))
    prepare(todo, next->first, next->second);
}

void plan_changes::commit(actions& todo) {
  phase_ = change_phase::committing;
  committed_ = change_;
  answer_inquirers(todo);
  do_here(todo, change_step::commit);
}

void plan_changes::abandon(actions& todo, const std::string& why) {
  phase_ = change_phase::none;
  answer_inquirers(todo);
  do_here(todo, change_step::abort, why);
  if (const auto next = std::exchange(waiting_, std::nullopt))
    prepare(todo, next->first, next->second);
}

// ----------------------------------------------------------------------------------- without a leader

std::vector<change_action> plan_changes::lost(std::uint32_t server) {
  actions todo;
  if (server >= n_servers_ || server == self_ || !lost_.insert(server).second) return todo;
  inquirers_.erase(server);
  if (leading_) {
    if (leading_->step != change_step::commit)
      end_lead(todo, fmt::format("server {} was lost", server));
    else if (leading_->awaited.erase(server) > 0 && leading_->awaited.empty())
      next_step(todo);
  }
  if (waiting_ && waiting_->first == server) waiting_.reset();
  // Whoever leads may see it still. Back again it would begin requests, of which nobody waits for the end here.
  if (phase_ != change_phase::none && phase_ <= change_phase::installed && leader_ != self_ &&
      leader_ != server && !lost_.contains(leader_))
    tell(todo, leader_,
         {change_, message_kind::failed, fmt::format("server {} was lost to it", server)});
  // Its requests are over.
  ended_.insert(server);
  if (phase_ == change_phase::inquiring) {
    unsure_.erase(server);
    asks_ ? decide_if_known(todo) : inquire(todo);
  } else if (phase_ != change_phase::none && leader_ == server) {
    lose_leader(todo);
  }
  retire_if_all_ended(todo);
  answer_inquirers(todo);
  return todo;
}

std::vector<change_action> plan_changes::found(std::uint32_t server) {
  actions todo;
  // Of one that is none any more there may be word on its way.
  if (absent_.contains(server) || lost_.erase(server) == 0) return todo;
  end_lead(todo, fmt::format("server {} has come meanwhile", server));
  // It may have been told to prepare by the session that there is now, before the end of the last one was known.
  if (unaware_.erase(server) > 0)
    tell(todo, server,
         {given_up_, message_kind::abort, "it was given up while this server was away"});
  return todo;
}

std::vector<change_action> plan_changes::set_member(std::uint32_t server, bool member) {
  actions todo;
  if (server >= n_servers_ || server == self_) return todo;
  if (member ? absent_.erase(server) == 0 : !absent_.insert(server).second) return todo;
  end_lead(todo, fmt::format("server {} {} meanwhile", server,
                             member ? "became a member" : "was removed"));
  if (!member) std::ranges::move(lost(server), std::back_inserter(todo));
  return todo;
}

void plan_changes::lose_leader(actions& todo) {
  if (is_committed()) return;
  if (phase_ != change_phase::installed) return abandon(todo, leader_lost());
  phase_ = change_phase::inquiring;
  asks_ = false;
  inquire(todo);
}

std::string plan_changes::leader_lost() const {
  return fmt::format("server {}, which led the change, was lost", leader_);
}

bool plan_changes::is_first_left(std::uint32_t server) const {
  for (std::uint32_t before = 0; before < server; ++before)
    if (!lost_.contains(before)) return false;
  return true;
}

void plan_changes::inquire(actions& todo) {
  if (!is_first_left(self_)) {
    // It asks for all, or knows already.
    std::uint32_t first = 0;
    while (lost_.contains(first)) ++first;
    return tell(todo, first, {change_, message_kind::inquire, {}});
  }
  asks_ = true;
  unsure_.clear();
  for (std::uint32_t server = 0; server < n_servers_; ++server)
    if (server != self_ && !lost_.contains(server)) unsure_.insert(server);
  for (const auto server : unsure_) tell(todo, server, {change_, message_kind::inquire, {}});
  decide_if_known(todo);
}

void plan_changes::answer_inquirers(actions& todo) {
  for (auto each = inquirers_.begin(); each != inquirers_.end();) {
    const auto [from, change] = *each;
    const bool under_way = phase_ != change_phase::none && change_ == change;
    const bool knows = change == committed_ || !under_way ||
                       (phase_ == change_phase::inquiring && is_first_left(from));
    if (!knows) {
      ++each;
      continue;
    }
    tell(
        todo, from,
        {change, change == committed_ ? message_kind::committed : message_kind::not_committed, {}});
    each = inquirers_.erase(each);
  }
}

void plan_changes::take_verdict(actions& todo, std::uint32_t from, const change_message& message) {
  if (phase_ != change_phase::inquiring || message.change != change_) return;
  if (message.kind == message_kind::committed) return commit(todo);
  if (!asks_) return abandon(todo, leader_lost());
  unsure_.erase(from);
  decide_if_known(todo);
}

void plan_changes::decide_if_known(actions& todo) {
  if (!unsure_.empty()) return;
  abandon(todo, leader_lost());
}

}  // namespace ordermoe::serving
