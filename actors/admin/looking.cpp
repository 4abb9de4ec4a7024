#include "actors/admin/admin_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "net/session/session.hpp"
#include "trace/header.hpp"

namespace ordermoe::actors {

void admin_state::members(const order_ptr& order, const json_value&) {
  with_plan(order, [this, order](const in_force& now) {
    with_status([this, order, now](const server_status& status) {
      book->tell(order, members_report(context(), now, status, away, absent(), rules->phase()));
    });
  });
}

void admin_state::list_requests(const order_ptr& order, const json_value&) {
  with_status([this, order](const server_status& status) {
    book->tell(order, requests_report(context(), status, now_ns(self) - context().start_ns));
  });
}

void admin_state::show_request(const order_ptr& order, const json_value& arguments) {
  const auto request = arguments.at("request").unsigned_integer();
  with_status([this, order, request](const server_status& status) {
    auto told = request_report(context(), status, request, now_ns(self) - context().start_ns);
    if (told.is_null()) return book->refuse(order, no_request(request));
    book->tell(order, std::move(told));
  });
}

error admin_state::no_request(std::uint64_t request) const {
  return {errc::not_found, fmt::format("request {} is not being answered at {}; `requests list` "
                                       "has those that are",
                                       request, name_of(id()))};
}

ordered_json admin_state::figures() const {
  const auto& ask = context().seat->figures;
  return ask ? ordered_json::parse(ask(), nullptr, false) : ordered_json::object();
}

void admin_state::tell_peers(const order_ptr& order, const json_value&) {
  book->tell(order, peers_report(context(), figures(), away));
}

void admin_state::tell_experts(const order_ptr& order, const json_value& arguments) {
  arguments.only({"layer", "server"});
  std::optional<std::uint32_t> layer, server;
  if (const auto of = arguments.find("layer"))
    layer = static_cast<std::uint32_t>(of->unsigned_integer(0, UINT32_MAX));
  if (const auto of = arguments.find("server")) {
    const auto name = of->string();
    const auto& all = context().servers.servers;
    const auto found = std::ranges::find(all, name, &server_spec::name);
    if (found == all.end())
      return book->refuse(order, {errc::usage, fmt::format("found server '{}', expected one of "
                                                           "those of `members`",
                                                           name)});
    server = static_cast<std::uint32_t>(found - all.begin());
  }
  with_plan(order, [this, order, layer, server](const in_force& now) {
    const auto& plan = now.content->plan;
    if (layer && *layer >= plan.n_layers)
      return book->refuse(order, {errc::usage, fmt::format("found layer {}, expected 0 to {}",
                                                           *layer, plan.n_layers - 1)});
    book->tell(order, experts_report(context(), now, layer, server));
  });
}

void admin_state::tell_status(const order_ptr& order, const json_value&) {
  gather(
      order,
      [this](const told_reports& told) { return cluster_report(context(), told, away, absent()); },
      subject::status);
}

void admin_state::tell_topology(const order_ptr& order, const json_value&) {
  gather(
      order, [this](const told_reports& told) { return topology_report(context(), told); },
      subject::ways);
}

void admin_state::gather(const order_ptr& order,
                         const std::function<ordered_json(const told_reports&)>& report,
                         subject of) {
  if (gatherings.full()) return book->refuse(order, asked_too_much());
  ask_all(of, [this, order, report](const told_reports& told, const auto&) {
    book->tell(order, report(told));
  });
}

error admin_state::asked_too_much() const {
  return {errc::failed, "too many questions to the whole cluster at once; ask again"};
}

void admin_state::ask_all(subject of, const gathering_book::finish& done) {
  constexpr std::int64_t longest_ns = 1'000'000'000;
  tell_own(of, [this, of, done](ordered_json own) {
    const auto others = present();
    const auto now = now_ns(self);
    const auto question =
        gatherings.begin(others, {{id(), std::move(own)}}, {now, now + longest_ns}, done);
    if (question == 0) return;
    for (const auto server : others) say(server, {{"ask", question}, {"of", to_string(of)}});
    tick_soon();
  });
}

void admin_state::tell_own(subject of, const std::function<void(ordered_json)>& use) {
  if (of != subject::activation)
    return with_status([this, of, use](const server_status& status) {
      auto report = node_report(context(), status, *work.tokens, away);
      if (of == subject::ways) report["peers"] = ways_report(context(), figures());
      use(std::move(report));
    });
  // The selector tells the monitor what it has counted and not told yet.
  self->request(work.selector, caf::infinite, status_query{})
      .then([this, use](const selector_status&) {
        self->request(work.monitor, caf::infinite, status_query{})
            .then([this, use](const observations& seen) {
              const auto text = planning::activation_json(seen.activation);
              keep_counts(seen, text);
              use(ordered_json::parse(text));
            });
      });
}

/// What only became older stands there with the time at which it was written.
void admin_state::keep_counts(const observations& seen, const std::string& text) {
  if (seen.activation_rows == kept_rows) return;
  kept_rows = seen.activation_rows;
  keep(kept_counts_name, text, log_event::counts_not_kept);
}

void admin_state::tell_report(std::uint32_t to, std::uint64_t question, subject of) {
  tell_own(of, [this, to, question](const ordered_json& own) {
    say(to, {{"told", question}, {"report", own.dump()}});
  });
}

void admin_state::get_log_level(const order_ptr& order, const json_value&) {
  book->tell(order, {{"node", name_of(id())}, {"level", to_string(context().seat->log.least())}});
}

void admin_state::list_tokens(const order_ptr& order, const json_value&) {
  auto list = ordered_json::array();
  const auto now = seconds_now();
  for (const auto& each : tokens.all())
    list.push_back({{"name", each.name},
                    {"role", each.role},
                    {"id", each.id},
                    {"state", each.revoked      ? "revoked"
                              : each.holds(now) ? "holds"
                                                : "expired"},
                    {"made_s", each.made_s},
                    {"until_s", each.until_s}});
  book->tell(order, {{"node", name_of(id())}, {"tokens", std::move(list)}});
}

void admin_state::show_plan(const order_ptr& order, const json_value&) {
  with_plan(order,
            [this, order](const in_force& now) { book->tell(order, plan_report(context(), now)); });
}

void admin_state::tell_history(const order_ptr& order, const json_value&) {
  self->request(work.recorder, caf::infinite, history_query{})
      .then([this, order](const history& known) { book->tell(order, history_report(known)); });
}

void admin_state::get_policy(const order_ptr& order, const json_value&) {
  with_plan(order, [this, order](const in_force& now) {
    book->tell(order, {{"version", policy.version},
                       {"set_at", policy.version == 0 ? "" : server_name(policy.by)},
                       {"operation", policy.operation},
                       {"kept", policy.version > 0 && context().seat->keep != nullptr},
                       {"policy", ordered_json::parse(trace::policy_json(now.policy))}});
  });
}

namespace {

/// Of lines in one reply; the rest of a message is its own.
std::size_t most_told_bytes() {
  return net::session_limits{}.largest_frame[static_cast<std::size_t>(net::lane::control)] / 4 * 3;
}

}  // namespace

void admin_state::tell_events(const order_ptr& order, const json_value& arguments) {
  const auto since = arguments.find("since") ? arguments.at("since").unsigned_integer() : 0;
  with_plan(order, [this, order, since](const in_force&) {
    order_book::lines later;
    for (const auto& each : book->events())
      if (each.at("number").get<std::uint64_t>() > since) later.push_back(each);
    book->tell(order,
               {{"latest", book->latest_event()}, {"events", latest_of(later, most_told_bytes())}});
  });
}

void admin_state::tell_audit(const order_ptr& order, const json_value&) {
  book->tell(order, {{"orders", latest_of(book->audited(), most_told_bytes())}});
}

void admin_state::show_certificate(const order_ptr& order, const json_value&) {
  const auto known = keeper();
  if (!known) return book->refuse(order, known.error());
  auto told = certificate_json(*(*known)->now(), seconds_now());
  told["node"] = name_of(id());
  book->tell(order, std::move(told));
}

}  // namespace ordermoe::actors
