#include "actors/admin/admin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "actors/admin/gathering.hpp"
#include "actors/admin/identity_report.hpp"
#include "actors/admin/kept_policy.hpp"
#include "actors/admin/orders.hpp"
#include "actors/admin/overview.hpp"
#include "actors/admin/reports.hpp"
#include "actors/admin/tokens.hpp"
#include "actors/scheduling/virtual_time_worker.hpp"
#include "config/json.hpp"
#include "planning/serving/two_plans.hpp"
#include "trace/header.hpp"

namespace ordermoe::actors {

namespace {

using nlohmann::ordered_json;
using serving::change_action;
using serving::change_message;
using serving::change_step;

constexpr std::size_t most_proposals = 8;
constexpr std::int64_t longest_drain_s = 3600;

/// A change of plan that this server leads.
struct led_change {
  order_ptr order;
  std::deque<planning::plan> way;  ///< What comes after it, the plan that was wanted the last.
  std::uint64_t epoch = 0;         ///< That it leads to itself.
  std::int64_t drain_s = 0;
  std::string admission;
};

struct admin_state {
  admin_actor::pointer self = nullptr;
  admin_work work;
  std::optional<serving::plan_changes> rules;
  std::uint64_t n_changes = 0, n_operations = 0, n_proposals = 0;
  std::deque<proposal> proposals;
  std::map<serving::change_id, led_change> led;
  std::shared_ptr<const planning::plan> prepared;  ///< Of the change under way.
  std::int64_t drain_ns = 30'000'000'000;          ///< Likewise.
  bool holds = false;                              ///< Likewise.
  std::optional<order_book> book;
  std::set<std::uint32_t> away;
  gathering_book gatherings;
  token_book tokens;
  kept_policy policy;          ///< That operators set last, at any node; version 0: none did.
  bool policy_is_due = false;  ///< It was kept, and the planner does not go by it yet.
  bool ticking = false;

  const service_context& context() const { return *work.context; }
  std::uint32_t id() const { return context().seat->server; }
  const std::string& name_of(std::uint32_t server) const {
    return context().servers.servers[server].name;
  }
  double time_s() const { return static_cast<double>(now_ns(self) - context().start_ns) * 1e-9; }

  void start() {
    book.emplace([this] { return time_s(); }, context().seat->log);
    rules.emplace(id(), context().n_servers());
    for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
      if (server == id()) continue;
      away.insert(server);
      act(rules->lost(server));
    }
    read_kept();
  }

  /// What cannot be read is told, and done without.
  void read_kept() {
    const auto& kept = context().seat->kept;
    if (const auto text = kept.find(kept_tokens_name); text != kept.end()) {
      if (auto read = token_book::parse(text->second, kept_tokens_name))
        tokens = std::move(*read);
      else
        book->note(log_event::tokens_not_kept, {{"why", read.error().message}});
    }
    if (const auto text = kept.find(kept_policy_name); text != kept.end()) {
      if (auto read = parse_kept_policy(text->second, kept_policy_name)) {
        policy = std::move(*read);
        policy_is_due = true;
        tick_soon();
      } else {
        book->note(log_event::policy_not_kept, {{"why", read.error().message}});
      }
    }
  }

  void keep(const char* name, const std::string& text, log_event where_not) {
    const auto& to = context().seat->keep;
    if (!to) return;
    if (auto kept = to(name, text); !kept) book->note(where_not, {{"why", kept.error().message}});
  }

  // ------------------------------------------------------------------------------------------ time

  static std::int64_t seconds_now() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  void tick_soon() {
    constexpr std::int64_t period_ns = 100'000'000;
    if (std::exchange(ticking, true)) return;
    send_later(self, caf::actor_cast<admin_actor>(self), period_ns, timer_tick{}, later::timer);
  }

  void tick() {
    ticking = false;
    gatherings.expire(now_ns(self));
    if (policy_is_due) follow_kept_policy();
    if (!gatherings.empty() || policy_is_due) tick_soon();
  }

  // ------------------------------------------------------------------------------------------ orders

  using handler = void (admin_state::*)(const order_ptr&, const json_value&);
  struct verb {
    const char* name;
    rank least;
    bool changes;
    handler run;
  };
  static const std::array<verb, 27>& verbs();

  void take(admin_order& order) {
    auto taken = std::make_shared<order_in_hand>();
    taken->who = order.who;
    taken->role = order.role;
    taken->reply = std::move(order.reply);
    auto document = json_document::parse(order.text, "order");
    if (!document) return book->refuse(taken, document.error());
    const auto root = (*document)->root();
    root.only({"ref", "verb", "arguments", "dry_run", "token"});
    taken->ref = root.at("ref").unsigned_integer();
    taken->verb = root.at("verb").string();
    if (const auto dry = root.find("dry_run")) taken->dry_run = dry->boolean();
    std::string secret;
    if (const auto token = root.find("token")) secret = token->string();
    const auto arguments = root.at("arguments");
    const auto found =
        std::ranges::find_if(verbs(), [&](const verb& each) { return taken->verb == each.name; });
    if (auto read = (*document)->finish(0); !read) return book->refuse(taken, read.error());
    if (found == verbs().end())
      return book->refuse(taken,
                          {errc::usage, fmt::format("found verb '{}', expected one of those of "
                                                    "`ordermoe admin --help`",
                                                    taken->verb)});
    if (!secret.empty())
      if (auto raised = raise(*taken, secret); !raised) return book->refuse(taken, raised.error());
    if (rank_of(taken->role) < found->least)
      return book->refuse(
          taken, {errc::usage,
                  fmt::format("{} takes a certificate of role {}, this one is of {}; "
                              "issue one with `ordermoe cert issue NAME --role {}`, or show a "
                              "token of `token create` by --token-file",
                              taken->verb, to_string(found->least), taken->role,
                              to_string(found->least))});
    if (found->changes) {
      taken->operation =
          fmt::format("{}.{}.{}", name_of(id()), context().seat->boot, ++n_operations);
      book->audit(taken, log_event::audit_ordered, without_secret(order.text).substr(0, 500));
    }
    (this->*found->run)(taken, arguments);
    if (auto read = (*document)->finish(0); !read) book->refuse(taken, read.error());
  }

  static std::string without_secret(const std::string& text) {
    auto told = ordered_json::parse(text, nullptr, false);
    if (told.is_object()) told.erase("token");
    return told.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  }

  /// To the role of a token, where that is more than the certificate's.
  result<void> raise(order_in_hand& order, const std::string& secret) {
    const auto shown = tokens.check(secret, seconds_now());
    if (!shown) {
      book->note(log_event::token_refused, {{"client", order.who}, {"why", shown.error().message}});
      return shown.error();
    }
    if (rank_of(shown->role) <= rank_of(order.role)) return {};
    order.role = shown->role;
    order.token = shown->name;
    return {};
  }

  /// use(what is in force), where there is a plan.
  template <class Use>
  void with_plan(const order_ptr& order, Use use) {
    self->request(work.planner, caf::infinite, in_force_query{})
        .then([this, order, use](const in_force& now) {
          // Its arguments made no sense.
          if (!order->reply) return;
          if (!now.content) return book->refuse(order, {errc::failed, "no plan is in force yet"});
          order->epoch_before = now.content->plan.epoch;
          use(now);
        });
  }

  template <class Use>
  void with_status(Use use) {
    self->request(work.server, caf::infinite, status_query{}).then([use](const edge_status& now) {
      use(now.content);
    });
  }

  // ------------------------------------------------------------------------------------------- looking

  void members(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      with_status([this, order, now](const server_status& status) {
        book->tell(order, members_report(context(), now, status, away, rules->phase()));
      });
    });
  }

  void list_requests(const order_ptr& order, const json_value&) {
    with_status([this, order](const server_status& status) {
      book->tell(order, requests_report(context(), status, now_ns(self) - context().start_ns));
    });
  }

  void show_request(const order_ptr& order, const json_value& arguments) {
    const auto request = arguments.at("request").unsigned_integer();
    with_status([this, order, request](const server_status& status) {
      auto told = request_report(context(), status, request, now_ns(self) - context().start_ns);
      if (told.is_null()) return book->refuse(order, no_request(request));
      book->tell(order, std::move(told));
    });
  }

  error no_request(std::uint64_t request) const {
    return {errc::not_found, fmt::format("request {} is not being answered at {}; `requests list` "
                                         "has those that are",
                                         request, name_of(id()))};
  }

  ordered_json figures() const {
    const auto& ask = context().seat->figures;
    return ask ? ordered_json::parse(ask(), nullptr, false) : ordered_json::object();
  }

  void tell_peers(const order_ptr& order, const json_value&) {
    book->tell(order, peers_report(context(), figures(), away));
  }

  void tell_experts(const order_ptr& order, const json_value& arguments) {
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
      book->tell(order, experts_report(context(), plan, layer, server));
    });
  }

  // --------------------------------------------------------------------------------- the whole cluster

  void tell_status(const order_ptr& order, const json_value&) {
    gather(order,
           [this](const told_reports& told) { return cluster_report(context(), told, away); });
  }

  void tell_topology(const order_ptr& order, const json_value&) {
    gather(order, [this](const told_reports& told) { return topology_report(context(), told); });
  }

  /// Answers with what `report` makes of what all nodes say of themselves, who does not in time left out.
  void gather(const order_ptr& order,
              const std::function<ordered_json(const told_reports&)>& report) {
    constexpr std::int64_t longest_ns = 1'000'000'000;
    if (gatherings.full())
      return book->refuse(
          order, {errc::failed, "too many questions to the whole cluster at once; ask again"});
    with_status([this, order, report](const server_status& status) {
      std::set<std::uint32_t> others;
      for (std::uint32_t server = 0; server < context().n_servers(); ++server)
        if (server != id() && !away.contains(server)) others.insert(server);
      const auto question = gatherings.begin(
          others, {{id(), node_report(context(), status, figures(), away)}},
          now_ns(self) + longest_ns,
          [this, order, report](const told_reports& told) { book->tell(order, report(told)); });
      if (question == 0) return;
      for (const auto server : others) say(server, {{"ask", question}});
      tick_soon();
    });
  }

  void tell_report(std::uint32_t to, std::uint64_t question) {
    with_status([this, to, question](const server_status& status) {
      say(to,
          {{"told", question}, {"report", node_report(context(), status, figures(), away).dump()}});
    });
  }

  // ------------------------------------------------------------------------------------------- the log

  void get_log_level(const order_ptr& order, const json_value&) {
    book->tell(order, {{"node", name_of(id())}, {"level", to_string(context().seat->log.least())}});
  }

  void set_log_level(const order_ptr& order, const json_value& arguments) {
    arguments.only({"level"});
    const auto text = arguments.at("level").string();
    const auto level = parse_log_level(text);
    if (!level)
      return book->refuse(order, {errc::usage, fmt::format("found level '{}', expected debug, "
                                                           "info, warning, error or off",
                                                           text)});
    with_epoch(order, [this, order, level](std::uint64_t epoch) {
      if (!order->dry_run) {
        context().seat->log.set_least(*level);
        book->note(log_event::log_level_changed,
                   {{"level", to_string(*level)}, {"operation", order->operation}});
      }
      book->done(order, epoch, {{"node", name_of(id())}, {"level", to_string(*level)}});
    });
  }

  /// use(epoch), of what changes something and no plan.
  template <class Use>
  void with_epoch(const order_ptr& order, Use use) {
    with_status([order, use](const server_status& status) {
      // Its arguments made no sense.
      if (!order->reply) return;
      order->epoch_before = status.epoch;
      use(status.epoch);
    });
  }

  // ------------------------------------------------------------------------------------------- tokens

  void create_token(const order_ptr& order, const json_value& arguments) {
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
      content["not_told"] = names_of(away);
      book->done(order, epoch, std::move(content), {{"token", made->secret}});
    });
  }

  void revoke_token(const order_ptr& order, const json_value& arguments) {
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
      book->done(order, epoch, {{"name", name}, {"not_told", names_of(away)}});
    });
  }

  void list_tokens(const order_ptr& order, const json_value&) {
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

  /// Here, on disk, and at all that are connected; the others hear of it when they are.
  void change_tokens(token_book changed) {
    tokens = std::move(changed);
    keep(kept_tokens_name, tokens.text(), log_event::tokens_not_kept);
    for (std::uint32_t server = 0; server < context().n_servers(); ++server)
      if (server != id() && !away.contains(server)) say(server, {{"tokens", tokens.text()}});
  }

  ordered_json names_of(const std::set<std::uint32_t>& servers) const {
    auto names = ordered_json::array();
    for (const auto server : servers) names.push_back(name_of(server));
    return names;
  }

  // ------------------------------------------------------------------------------ looking at this node

  void show_plan(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      book->tell(order, plan_report(context(), now.content->plan));
    });
  }

  void tell_history(const order_ptr& order, const json_value&) {
    self->request(work.recorder, caf::infinite, history_query{})
        .then([this, order](const history& known) { book->tell(order, history_report(known)); });
  }

  void get_policy(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      book->tell(order, {{"version", policy.version},
                         {"set_at", policy.version == 0 ? "" : server_name(policy.by)},
                         {"operation", policy.operation},
                         {"kept", policy.version > 0 && context().seat->keep != nullptr},
                         {"policy", ordered_json::parse(trace::policy_json(now.policy))}});
    });
  }

  void tell_events(const order_ptr& order, const json_value& arguments) {
    const auto since = arguments.find("since") ? arguments.at("since").unsigned_integer() : 0;
    with_plan(order, [this, order, since](const in_force&) {
      auto lines = ordered_json::array();
      for (const auto& each : book->events())
        if (each.at("number").get<std::uint64_t>() > since) lines.push_back(each);
      book->tell(order, {{"latest", book->latest_event()}, {"events", std::move(lines)}});
    });
  }

  void tell_audit(const order_ptr& order, const json_value&) {
    auto lines = ordered_json::array();
    for (const auto& each : book->audited()) lines.push_back(each);
    book->tell(order, {{"orders", std::move(lines)}});
  }

  // ------------------------------------------------------------------------------------- certificates

  result<std::shared_ptr<net::identity_keeper>> keeper() const {
    if (auto known = context().seat->identity) return known;
    return error{errc::unsupported, "this node has no certificate"};
  }

  void show_certificate(const order_ptr& order, const json_value&) {
    const auto known = keeper();
    if (!known) return book->refuse(order, known.error());
    auto told = certificate_json(*(*known)->now(), seconds_now());
    told["node"] = name_of(id());
    book->tell(order, std::move(told));
  }

  void reload_certificate(const order_ptr& order, const json_value& arguments) {
    arguments.only({"revocations"});
    const auto list = arguments.find("revocations");
    const auto pem = list ? list->string() : std::string();
    with_plan(order, [this, order, pem](const in_force& now) {
      const auto known = keeper();
      if (!known) return book->refuse(order, known.error());
      const auto changed = reload_identity(**known, pem, order->dry_run);
      if (!changed) return book->refuse(order, changed.error());
      ordered_json told{{"node", name_of(id())}, {"changed", changed->has_value()}};
      told["list"] = (*changed ? (*changed)->next : (*known)->now())->revocations().number;
      if (*changed) told.update(change_json(**changed));
      if (*changed && !order->dry_run) identity_changed(change_json(**changed), id());
      book->done(order, now.content->plan.epoch, std::move(told));
    });
  }

  /// The others take a newer list from whoever has it; `from` has.
  void identity_changed(const ordered_json& what, std::uint32_t from) {
    book->note(log_event::identity_changed, what);
    if (!what.contains("revocations")) return;
    for (std::uint32_t server = 0; server < context().n_servers(); ++server)
      if (server != id() && server != from && !away.contains(server)) tell_revocations(server);
  }

  void tell_revocations(std::uint32_t server) {
    const auto known = context().seat->identity;
    if (!known) return;
    const auto now = known->now();
    if (now->revocations().number > 0) say(server, {{"revocations", now->revocations().pem}});
  }

  void take_revocations(std::uint32_t from, const std::string& pem) {
    const auto known = keeper();
    if (!known) return;
    const auto changed = (*known)->take_revocations(pem);
    if (!changed) return ignore(from, changed.error());
    if (*changed) identity_changed(change_json(**changed), from);
  }

  // ------------------------------------------------------------------------------ requests, this node

  void cancel(const order_ptr& order, const json_value& arguments) {
    const auto request = arguments.at("request").unsigned_integer();
    with_plan(order, [this, order, request](const in_force& now) {
      const auto epoch = now.content->plan.epoch;
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

  void drain(const order_ptr& order, const json_value&) { set_drained(order, true); }
  void resume(const order_ptr& order, const json_value&) { set_drained(order, false); }

  void set_drained(const order_ptr& order, bool on) {
    with_plan(order, [this, order, on](const in_force& now) {
      const auto epoch = now.content->plan.epoch;
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

  // ------------------------------------------------------------------------------------------ policies

  /// What the policy in force becomes; members that are not named stay.
  result<planning::selection_policy> changed_policy(const planning::selection_policy& now,
                                                    const std::string& members) const {
    auto whole = ordered_json::parse(trace::policy_json(now));
    const auto changes = ordered_json::parse(members, nullptr, false);
    if (!changes.is_object() || changes.empty())
      return error{errc::usage, "arguments.policy: expected an object with the members to change"};
    for (const auto& [name, value] : changes.items()) {
      if (!whole.contains(name))
        return error{errc::usage,
                     fmt::format("arguments.policy: found '{}', expected a member of what "
                                 "`policy get` tells",
                                 name)};
      whole[name] = value;
    }
    return trace::parse_policy(whole.dump(), "arguments.policy");
  }

  void set_policy(const order_ptr& order, const json_value& arguments) {
    const auto members = arguments.at("policy").string();
    with_plan(order, [this, order, members](const in_force& now) {
      const auto changed = changed_policy(now.policy, members);
      if (!changed) return book->refuse(order, changed.error());
      const auto version = policy.version + 1;
      if (!order->dry_run) {
        adopt_policy({version, id(), order->operation, *changed});
        for (std::uint32_t server = 0; server < context().n_servers(); ++server)
          if (server != id() && !away.contains(server)) say(server, {{"policy", text_of(policy)}});
      }
      book->done(order, now.content->plan.epoch,
                 {{"version", version},
                  {"policy", ordered_json::parse(trace::policy_json(*changed))},
                  {"not_told", names_of(away)}});
    });
  }

  void adopt_policy(kept_policy next) {
    policy = std::move(next);
    // One that was kept is older.
    policy_is_due = false;
    order_policy();
    keep(kept_policy_name, text_of(policy), log_event::policy_not_kept);
  }

  void order_policy() {
    auto wanted = std::make_shared<policy_order>();
    wanted->policy = policy.policy;
    self->send(work.planner, change_policy{std::move(wanted)});
    book->note(log_event::policy_changed,
               {{"operation", policy.operation}, {"version", policy.version}});
  }

  /// The planner has no use for a policy before its first plan.
  void follow_kept_policy() {
    self->request(work.planner, caf::infinite, in_force_query{}).then([this](const in_force& now) {
      if (now.content && std::exchange(policy_is_due, false)) order_policy();
    });
  }

  std::string server_name(std::uint32_t server) const {
    return server < context().n_servers() ? name_of(server) : std::string();
  }

  // --------------------------------------------------------------------------------------------- plans

  void propose(const order_ptr& order, const json_value& arguments) {
    arguments.only({"strategy", "steps", "seed"});
    auto wanted = std::make_shared<replan_order>();
    const auto strategy = arguments.find("strategy");
    if (strategy) wanted->strategy = strategy->string();
    if (const auto steps = arguments.find("steps"))
      wanted->planning.search_steps =
          static_cast<std::size_t>(steps->unsigned_integer(1, 1'000'000'000));
    if (const auto seed = arguments.find("seed")) wanted->planning.seed = seed->unsigned_integer();
    with_plan(order, [this, order, wanted](const in_force& now) {
      const auto epoch = now.content->plan.epoch;
      self->request(work.planner, caf::infinite, plan_query{wanted})
          .then([this, order, epoch, before = now.content](const plan_proposal& made) {
            if (!made.plan) return book->refuse(order, {errc::failed, made.refused});
            if (proposals.size() == most_proposals) proposals.pop_front();
            proposals.push_back({++n_proposals, made, way_to(before->plan, *made.plan)});
            book->note(log_event::plan_proposed,
                       {{"proposal", n_proposals}, {"operation", order->operation}});
            book->done(order, epoch, proposal_report(context(), proposals.back()));
          });
    });
  }

  std::vector<planning::plan> way_to(const planning::plan& before,
                                     const planning::plan& after) const {
    return serving::plans_between(before, after, context().servers, context().costs);
  }

  const proposal* proposal_of(const order_ptr& order, const json_value& arguments) {
    const auto wanted = arguments.find("proposal");
    if (proposals.empty()) {
      book->refuse(order,
                   {errc::not_found, "nothing was proposed at this node; `plan propose` first"});
      return nullptr;
    }
    if (!wanted) return &proposals.back();
    const auto number = wanted->unsigned_integer();
    const auto found = std::ranges::find(proposals, number, &proposal::number);
    if (found != proposals.end()) return &*found;
    book->refuse(
        order, {errc::not_found, fmt::format("found proposal {}, expected one of {} to {}", number,
                                             proposals.front().number, proposals.back().number)});
    return nullptr;
  }

  void diff(const order_ptr& order, const json_value& arguments) {
    const auto* chosen = proposal_of(order, arguments);
    if (chosen == nullptr) return;
    with_plan(order, [this, order, of = *chosen](const in_force& now) {
      book->tell(order, difference_report(context(), now.content->index, of));
    });
  }

  void apply(const order_ptr& order, const json_value& arguments) {
    arguments.only({"proposal", "drain_s"});
    const auto drain = arguments.find("drain_s");
    const auto drain_s = drain ? drain->integer(0, longest_drain_s) : 30;
    const auto* chosen = proposal_of(order, arguments);
    if (chosen == nullptr) return;
    with_plan(order, [this, order, drain_s, of = *chosen](const in_force& now) {
      if (of.content.plan->epoch != now.content->plan.epoch + 1)
        return book->refuse(
            order, {errc::mismatch,
                    fmt::format("proposal {} follows the plan of epoch {}, in force is "
                                "that of epoch {}; propose again",
                                of.number, of.content.plan->epoch - 1, now.content->plan.epoch)});
      if (order->dry_run) return tell_dry_run(order, of, drain_s);
      lead(order, of, drain_s);
    });
  }

  void tell_dry_run(const order_ptr& order, const proposal& of, std::int64_t drain_s) {
    if (!away.empty())
      return book->refuse(order,
                          {errc::failed, fmt::format("{} is not connected, and every server has "
                                                     "to take part",
                                                     name_of(*away.begin()))});
    auto told = proposal_report(context(), of);
    told["drain_s"] = drain_s;
    told["note"] =
        !of.way.empty()
            ? fmt::format(
                  "servers load what they lack while requests are answered; then new ones begin "
                  "under the new plan, and those before end under theirs; what has not ended {} s "
                  "later ends with an error that says so",
                  drain_s)
            : fmt::format(
                  "admission will be held for up to {} s, and for as long as servers take to load "
                  "what they lack: new requests wait until those in flight have ended; what is in "
                  "flight then ends with an error that says so",
                  drain_s);
    book->done(order, of.way.empty() ? of.content.plan->epoch : of.way.back().epoch,
               std::move(told));
  }

  void lead(const order_ptr& order, const proposal& of, std::int64_t drain_s) {
    led_change first{order, {of.way.begin(), of.way.end()}, 0, drain_s, admission_during(of)};
    const bool holds = of.way.empty();
    if (holds) first.way.push_back(*of.content.plan);
    if (const auto begun = lead_next(std::move(first), holds); !begun)
      book->refuse(order, begun.error());
  }

  /// The first of its plans that are left.
  result<void> lead_next(led_change next, bool holds) {
    const auto change = (std::uint64_t{id()} + 1) << 56 |
                        (std::uint64_t{context().seat->boot} & 0xffffff) << 32 | ++n_changes;
    const auto plan = std::move(next.way.front());
    next.way.pop_front();
    next.epoch = plan.epoch;
    const ordered_json text{{"plan", planning::plan_json(plan)},
                            {"drain_ns", next.drain_s * 1'000'000'000},
                            {"holds", holds},
                            {"operation", next.order->operation}};
    auto todo = rules->begin(change, text.dump(), holds);
    if (!todo) return todo.error();
    led[change] = std::move(next);
    act(*todo);
    return {};
  }

  void abort(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      std::vector<change_action> todo;
      const auto why = fmt::format("aborted by {} (operation {})", order->who, order->operation);
      auto tried = *rules;
      if (!(order->dry_run ? tried : *rules).give_up(why, todo))
        return book->refuse(order, {errc::failed,
                                    "no change that this node leads can be aborted: none is under "
                                    "way, or it is committed"});
      if (!order->dry_run) act(todo);
      book->done(order, now.content->plan.epoch, ordered_json::object());
    });
  }

  // ------------------------------------------------------------------------------ changes of the cluster

  void say(std::uint32_t server, const ordered_json& content) {
    if (context().seat->tell_admin) context().seat->tell_admin(server, content.dump());
  }

  void act(const std::vector<change_action>& todo) {
    for (const auto& each : todo) switch (each.kind) {
        case change_action::what::tell:
          say(each.server, {{"change", each.message.change},
                            {"kind", to_string(each.message.kind)},
                            {"text", each.message.text}});
          break;
        case change_action::what::step:
          take_step(each);
          break;
        case change_action::what::finished:
          finish(each.change, each.text);
          break;
      }
  }

  void take_step(const change_action& what) {
    plan_step step;
    step.change = what.change;
    step.step = what.step;
    step.admin = caf::actor_cast<caf::strong_actor_ptr>(self);
    switch (what.step) {
      case change_step::prepare: {
        book->note(log_event::plan_change_begins, {{"leader", name_of(rules->leader())}});
        if (auto read = read_plan(what.text); !read)
          return act(rules->step_done(what.change, read.error().message));
        step.plan = prepared;
        step.drain_ns = drain_ns;
        step.holds = holds;
        break;
      }
      case change_step::hold:
        book->note(log_event::plan_admission_held);
        break;
      case change_step::install:
      case change_step::commit:
      case change_step::retire:
        break;
      case change_step::abort:
        step.why = what.text;
        book->note(log_event::plan_change_aborted, {{"why", what.text}});
        break;
    }
    self->send(work.planner, std::move(step));
  }

  /// The text of a prepare, into `prepared`.
  result<void> read_plan(const std::string& text) {
    auto document = json_document::parse(text, "plan change");
    if (!document) return document.error();
    const auto root = (*document)->root();
    root.only({"plan", "drain_ns", "holds", "operation"});
    const auto plan_text = root.at("plan").string();
    const auto longest = root.at("drain_ns").integer(0, longest_drain_s * 1'000'000'000);
    const auto no_request_begins = root.at("holds").boolean();
    root.at("operation").string();
    if (auto read = (*document)->finish(0); !read) return read.error();
    auto plan = planning::parse_plan(plan_text, "plan change");
    if (!plan) return plan.error();
    prepared = std::make_shared<const planning::plan>(std::move(*plan));
    drain_ns = longest;
    holds = no_request_begins;
    return {};
  }

  void take(const plan_step_done& message) {
    const auto& why = message.why;
    const auto about = ordered_json{{"epoch", prepared ? prepared->epoch : 0}};
    if (message.step == change_step::commit && prepared) keep_plan();
    if (message.step == change_step::commit) book->note(log_event::plan_changed, about);
    if (message.step == change_step::retire) book->note(log_event::plan_before_gone, about);
    act(rules->step_done(message.change, why));
  }

  void keep_plan() {
    if (!context().seat->adopt) return;
    if (auto kept = context().seat->adopt(*prepared); !kept)
      book->note(log_event::plan_not_kept, {{"why", kept.error().message}});
  }

  void finish(serving::change_id change, const std::string& why) {
    auto found = led.extract(change);
    if (found.empty()) return;
    auto& change_led = found.mapped();
    const auto order = change_led.order;
    const auto epoch = change_led.epoch;
    if (!why.empty()) return stay(order, epoch - 1, why);
    if (change_led.way.empty())
      return book->done(order, epoch,
                        {{"epoch", epoch}, {"admission", std::move(change_led.admission)}});
    // It waits until the plan before this one is gone.
    if (const auto begun = lead_next(std::move(change_led), false); !begun)
      stay(order, epoch, begun.error().message);
  }

  void stay(const order_ptr& order, std::uint64_t epoch, const std::string& why) {
    if (epoch == order->epoch_before)
      return book->refuse(order, {errc::failed, fmt::format("the plan stays: {}", why)});
    book->refuse(
        order, {errc::failed,
                fmt::format("on the way, by the plan of epoch {}: {}; all requests are answered by "
                            "it, propose again to go on",
                            epoch, why)});
  }

  void take(const peer_said& message) {
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

  /// From the node around it: an event.
  void take_own(const std::string& text) {
    const auto said = ordered_json::parse(text);
    const auto event = find_log_event(said.at("event").get<std::string>());
    if (event == log_event::identity_changed) return identity_changed(said.at("about"), id());
    if (event) book->note(*event, said.at("about"));
  }

  /// What is no part of a change of plan: {"ask"}, {"told", "report"}, {"policy"} or {"tokens"}.
  void take_talk(std::uint32_t from, json_document& document) {
    const auto root = document.root();
    root.only({"ask", "told", "report", "policy", "tokens"});
    const auto ask = root.find("ask"), told = root.find("told"), set = root.find("policy"),
               shared = root.find("tokens");
    const auto question = ask    ? ask->unsigned_integer()
                          : told ? told->unsigned_integer()
                                 : std::uint64_t{0};
    const auto text = told     ? root.at("report").string()
                      : set    ? set->string()
                      : shared ? shared->string()
                               : std::string();
    if (auto read = document.finish(0); !read) return ignore(from, read.error());
    if (ask) return tell_report(from, question);
    if (told) {
      auto report = ordered_json::parse(text, nullptr, false);
      if (!report.is_object())
        return ignore(from, {errc::malformed, "found a report that is none"});
      return gatherings.take(question, from, std::move(report));
    }
    if (set) return take_policy(from, text);
    if (shared) return take_tokens(from, text);
    ignore(from, {errc::malformed, "found a message without content"});
  }

  void take_policy(std::uint32_t from, const std::string& text) {
    auto theirs = parse_kept_policy(text, "policy");
    if (!theirs) return ignore(from, theirs.error());
    if (theirs->is_newer_than(policy)) adopt_policy(std::move(*theirs));
  }

  void take_tokens(std::uint32_t from, const std::string& text) {
    const auto theirs = token_book::parse(text, "tokens");
    if (!theirs) return ignore(from, theirs.error());
    if (tokens.merge(*theirs, seconds_now()))
      keep(kept_tokens_name, tokens.text(), log_event::tokens_not_kept);
  }

  /// What it may have missed.
  void greet(std::uint32_t server) {
    if (policy.version > 0) say(server, {{"policy", text_of(policy)}});
    if (!tokens.empty()) say(server, {{"tokens", tokens.text()}});
  }

  void ignore(std::uint32_t server, const error& why) {
    book->note(log_event::peer_ignored, {{"peer", name_of(server)}, {"why", why.message}});
  }

  void take(const peer_changed& message) {
    if (message.server >= context().n_servers() || message.server == id()) return;
    book->keep_event(message.up ? log_event::session_up : log_event::session_down,
                     {{"peer", name_of(message.server)}});
    if (message.up) {
      away.erase(message.server);
      greet(message.server);
      rules->found(message.server);
      tell_revocations(message.server);
    } else {
      away.insert(message.server);
      gatherings.lose(message.server);
      act(rules->lost(message.server));
    }
  }
};

const std::array<admin_state::verb, 27>& admin_state::verbs() {
  static const std::array<verb, 27> all{{
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
      {"requests.cancel", rank::operator_, true, &admin_state::cancel},
      {"drain", rank::operator_, true, &admin_state::drain},
      {"resume", rank::operator_, true, &admin_state::resume},
      {"plan.propose", rank::operator_, true, &admin_state::propose},
      {"plan.apply", rank::admin, true, &admin_state::apply},
      {"plan.abort", rank::admin, true, &admin_state::abort},
      {"policy.set", rank::admin, true, &admin_state::set_policy},
  }};
  return all;
}

}  // namespace

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
    };
  });
}

}  // namespace ordermoe::actors
