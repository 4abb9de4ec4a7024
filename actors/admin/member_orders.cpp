#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/admin/admin_state.hpp"
#include "actors/admin/member_roll.hpp"
#include "net/channel/address.hpp"
#include "planning/strategies/left_out.hpp"

namespace ordermoe::actors {

bool admin_state::is_member(std::uint32_t server) const {
  const auto& roll = context().seat->members;
  return !roll || !roll->is_absent(name_of(server));
}

planning::server_mask admin_state::absent_mask() const {
  const auto& roll = context().seat->members;
  return roll ? mask_of(roll->absent(), context().servers) : 0;
}

std::set<std::uint32_t> admin_state::absent() const {
  std::set<std::uint32_t> all;
  planning::for_each_server(
      absent_mask(), [&](std::size_t server) { all.insert(static_cast<std::uint32_t>(server)); });
  return all;
}

std::set<std::uint32_t> admin_state::away_members() const {
  auto all = away;
  std::erase_if(all, [this](std::uint32_t server) { return !is_member(server); });
  return all;
}

result<std::uint32_t> admin_state::server_called(const std::string& name) const {
  std::string names;
  for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
    if (name_of(server) == name) return server;
    names += (names.empty() ? "" : ", ") + name_of(server);
  }
  return error{
      errc::usage,
      fmt::format("found '{}', expected one of {}, the servers of the cluster file", name, names)};
}

void admin_state::add_member(const order_ptr& order, const json_value& arguments) {
  arguments.only({"name", "address"});
  const auto address = arguments.find("address");
  change_member(order, {arguments.at("name").string(), address ? address->string() : std::string(),
                        true, false});
}

void admin_state::remove_member(const order_ptr& order, const json_value& arguments) {
  arguments.only({"name", "lost"});
  const auto lost = arguments.find("lost");
  change_member(order, {arguments.at("name").string(), {}, false, lost && lost->boolean()});
}

void admin_state::change_member(const order_ptr& order, const member_wish& wish) {
  with_plan(order, [this, order, wish](const in_force& now) {
    const auto server = server_called(wish.name);
    if (!context().seat->members)
      return book->refuse(order, {errc::unsupported, "members do not change here"});
    if (!server) return book->refuse(order, server.error());
    if (!wish.address.empty())
      if (const auto at = net::parse_address(wish.address); !at)
        return book->refuse(order, ordermoe::at("address", at.error()));
    if (auto may = may_change(*server, wish, now.content->plan); !may)
      return book->refuse(order, may.error());
    if (wish.member || away.contains(*server)) return settle_member(order, *server, wish);
    ask_before_removing(order, *server, wish);
  });
}

void admin_state::ask_before_removing(const order_ptr& order, std::uint32_t server,
                                      const member_wish& wish) {
  constexpr std::int64_t longest_ns = 2'000'000'000;
  if (gatherings.full()) return book->refuse(order, asked_too_much());
  const auto now = now_ns(self);
  const auto question = gatherings.begin(
      {server}, {}, {now, now + longest_ns},
      [this, order, server, wish](const told_reports& told, const auto&) {
        const auto found = told.find(server);
        if (found == told.end() && !away.contains(server))
          return book->refuse(order,
                              {errc::failed, fmt::format("{} does not say whether it still answers "
                                                         "requests; try again, or end it first",
                                                         wish.name)});
        if (found != told.end())
          if (auto idle = check_idle(wish.name, found->second); !idle)
            return book->refuse(order, idle.error());
        // What was so when it was asked may be otherwise by now.
        with_plan(order, [this, order, server, wish](const in_force& now) {
          if (auto may = may_change(server, wish, now.content->plan); !may)
            return book->refuse(order, may.error());
          settle_member(order, server, wish);
        });
      });
  say(server, {{"ask", question}});
  tick_soon();
}

result<void> admin_state::check_idle(const std::string& name, const ordered_json& report) {
  const auto requests = report.value("requests", ordered_json());
  const auto state = report.value("state", ordered_json());
  if (requests.is_number_integer() && requests != 0)
    return error{errc::failed,
                 fmt::format("{} still answers {} requests of its users; wait until they have "
                             "ended, as `ordermoe admin decommission {}` does",
                             name, requests.get<std::int64_t>(), name)};
  if (state == "UL") return {};
  return error{errc::failed,
               fmt::format("{} still takes requests of its users; take that from it with `ordermoe "
                           "admin decommission {}`",
                           name, name)};
}

void admin_state::settle_member(const order_ptr& order, std::uint32_t server,
                                const member_wish& wish) {
  auto words = context().seat->members->now();
  auto word = words[wish.name];
  if (word.number >= member_word::most_number)
    return book->refuse(order, {errc::failed, fmt::format("whether {} is a member was changed as "
                                                          "often as can be counted",
                                                          wish.name)});
  ++word.number;
  word.by = name_of(id());
  word.member = wish.member;
  if (!wish.address.empty()) word.address = wish.address;
  if (!order->dry_run) take_words(id(), {{wish.name, word}});
  auto not_told = away_members();
  not_told.erase(server);
  book->done(order, order->epoch_before,
             {{"name", wish.name},
              {"member", wish.member},
              {"number", word.number},
              {"not_told", names_of(not_told)}});
}

result<void> admin_state::may_change(std::uint32_t server, const member_wish& wish,
                                     const planning::plan& plan) const {
  const auto& name = wish.name;
  // Added again with another address it is dialled there.
  if (wish.member == is_member(server) && wish.address.empty())
    return error{errc::usage, fmt::format("{} {} a member", name, wish.member ? "is" : "is not")};
  if (server == id())
    return error{errc::usage, fmt::format("{} does not decide whether itself is a member; ask "
                                          "another node with --node",
                                          name)};
  // Else one server might go by a change of plan of which another knows that it goes on without it.
  if (rules->phase() != serving::change_phase::none)
    return error{errc::failed, "a change of plan is under way; wait until it is over"};
  if (auto most = knows_most(server); !most) return most;
  return wish.member ? result<void>{} : may_remove(server, wish, plan);
}

result<void> admin_state::knows_most(std::uint32_t but) const {
  std::size_t members = 0, here = 0;
  for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
    if (server == but || !is_member(server)) continue;
    ++members;
    here += !away.contains(server);
  }
  if (is_member(id()) && 2 * here > members) return {};
  return error{errc::failed,
               fmt::format("{} is connected to no more than half of the other members; ask a node "
                           "that is",
                           name_of(id()))};
}

result<void> admin_state::may_remove(std::uint32_t server, const member_wish& wish,
                                     const planning::plan& plan) const {
  const auto bit = planning::server_bit(server);
  const auto others = planning::all_servers(context().n_servers()) & ~absent_mask() & ~bit;
  const bool is_away = away.contains(server);
  if (wish.lost && !is_away)
    return error{errc::usage,
                 fmt::format("--lost: {} is connected; take what it has from it with `ordermoe "
                             "admin decommission {}`, or end it first",
                             wish.name, wish.name)};
  if ((planning::needed(plan, others) & bit) == 0 || wish.lost) return {};
  return error{
      errc::failed,
      fmt::format("{} hosts experts, or keeps rows of other servers' requests; {}", wish.name,
                  is_away ? "start it again and `ordermoe admin decommission` it, or give "
                            "it up with --lost"
                          : fmt::format("take that from it with `ordermoe admin "
                                        "decommission {}`",
                                        wish.name))};
}

void admin_state::take_words(std::uint32_t from, const member_words& words) {
  const auto roll = context().seat->members;
  if (!roll) return;
  const auto taken = roll->take(words);
  if (!taken.kept) book->note(log_event::members_not_kept, {{"why", taken.kept.error().message}});
  if (taken.changed.empty()) return;
  const auto now = roll->now();
  for (const auto& name : taken.changed) {
    const auto& word = now.at(name);
    book->note(
        log_event::members_changed,
        {{"server", name}, {"member", word.member}, {"change", word.number}, {"by", word.by}});
    act(rules->set_member(*server_called(name), word.member));
  }
  for (const auto server : present())
    if (server != from) tell_members(server);
}

void admin_state::tell_members(std::uint32_t server) {
  const auto& roll = context().seat->members;
  if (!roll) return;
  const auto now = roll->now();
  const bool any =
      std::ranges::any_of(now, [](const auto& each) { return each.second.number > 0; });
  if (any) say(server, {{"members", members_text(now)}});
}

void admin_state::hear_members(std::uint32_t from, const std::string& text) {
  const auto said = parse_members(text, "members");
  if (!said) return ignore(from, said.error());
  for (const auto& [name, word] : *said) {
    if (auto known = server_called(name); !known) return ignore(from, known.error());
    if (auto known = server_called(word.by); !known) return ignore(from, known.error());
  }
  take_words(from, *said);
}

}  // namespace ordermoe::actors
