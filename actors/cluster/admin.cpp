#include "actors/cluster/admin.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "actors/virtual_time_worker.hpp"
#include "config/json.hpp"
#include "trace/header.hpp"

namespace ordermoe::actors {

namespace {

using nlohmann::ordered_json;
using serving::change_action;
using serving::change_message;
using serving::change_step;

enum class rank { viewer, operator_, admin };

rank rank_of(const std::string& role) {
  return role == "admin" ? rank::admin : role == "operator" ? rank::operator_ : rank::viewer;
}

const char* to_string(rank of) {
  return of == rank::admin ? "admin" : of == rank::operator_ ? "operator" : "viewer";
}

constexpr std::size_t most_kept = 1000;  ///< Events, and orders in the audit.
constexpr std::size_t most_proposals = 8;
constexpr std::int64_t longest_drain_s = 3600;

/// A plan that was made and changes nothing yet.
struct proposal {
  std::uint64_t number = 0;
  plan_proposal content;
};

/// An order, from when it came until it is answered.
struct order_in_hand {
  std::uint64_t ref = 0;
  std::string who, role, verb, arguments;
  bool dry_run = false;
  std::string operation;  ///< Empty where it changes nothing.
  std::uint64_t epoch_before = 0;
  std::function<void(std::string)> reply;
};
using order_ptr = std::shared_ptr<order_in_hand>;

/// A change of plan that this server leads.
struct led_change {
  order_ptr order;
  std::uint64_t epoch_after = 0;
};

struct admin_state {
  admin_actor::pointer self = nullptr;
  admin_work work;
  std::optional<serving::plan_changes> rules;
  std::uint64_t n_changes = 0, n_operations = 0, n_proposals = 0, n_events = 0;
  std::deque<proposal> proposals;
  std::map<serving::change_id, led_change> led;
  std::shared_ptr<const planning::plan> prepared;  ///< Of the change under way.
  std::int64_t drain_ns = 30'000'000'000;          ///< Likewise, where another leads.
  std::deque<ordered_json> events, audit;
  std::set<std::uint32_t> away;

  const service_context& context() const { return *work.context; }
  std::uint32_t id() const { return context().seat->server; }
  const std::string& name_of(std::uint32_t server) const {
    return context().servers.servers[server].name;
  }
  double time_s() const { return static_cast<double>(now_ns(self) - context().start_ns) * 1e-9; }

  void start() {
    rules.emplace(id(), context().n_servers());
    for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
      if (server == id()) continue;
      away.insert(server);
      act(rules->lost(server));
    }
  }

  void note(const std::string& event, ordered_json about = ordered_json::object()) {
    ordered_json line{{"number", ++n_events}, {"time_s", time_s()}, {"event", event}};
    line.update(about);
    if (context().seat->log) context().seat->log(fmt::format("event {} {}", event, about.dump()));
    keep(events, std::move(line));
  }

  static void keep(std::deque<ordered_json>& kept, ordered_json line) {
    if (kept.size() == most_kept) kept.pop_front();
    kept.push_back(std::move(line));
  }

  // ------------------------------------------------------------------------------------------ orders

  using handler = void (admin_state::*)(const order_ptr&, const json_value&);
  struct verb {
    const char* name;
    rank least;
    bool changes;
    handler run;
  };
  static const std::array<verb, 15>& verbs();

  void take(admin_order& order) {
    auto taken = std::make_shared<order_in_hand>();
    taken->who = order.who;
    taken->role = order.role;
    taken->reply = std::move(order.reply);
    auto document = json_document::parse(order.text, "order");
    if (!document) return refuse(taken, document.error());
    const auto root = (*document)->root();
    root.only({"ref", "verb", "arguments", "dry_run"});
    taken->ref = root.at("ref").unsigned_integer();
    taken->verb = root.at("verb").string();
    if (const auto dry = root.find("dry_run")) taken->dry_run = dry->boolean();
    const auto arguments = root.at("arguments");
    const auto found =
        std::ranges::find_if(verbs(), [&](const verb& each) { return taken->verb == each.name; });
    if (auto read = (*document)->finish(0); !read) return refuse(taken, read.error());
    if (found == verbs().end())
      return refuse(taken, {errc::usage, fmt::format("found verb '{}', expected one of those of "
                                                     "`ordermoe admin --help`",
                                                     taken->verb)});
    if (rank_of(taken->role) < found->least)
      return refuse(
          taken, {errc::usage, fmt::format("{} takes a certificate of role {}, this one is of {}; "
                                           "issue one with `ordermoe cert issue NAME --role {}`",
                                           taken->verb, to_string(found->least), taken->role,
                                           to_string(found->least))});
    if (found->changes) {
      taken->operation =
          fmt::format("{}.{}.{}", name_of(id()), context().seat->boot, ++n_operations);
      audit_line(taken, "ordered", order.text.substr(0, 500));
    }
    (this->*found->run)(taken, arguments);
    if (auto read = (*document)->finish(0); !read) refuse(taken, read.error());
  }

  void audit_line(const order_ptr& order, const std::string& what, const std::string& text) {
    keep(audit, {{"time_s", time_s()},
                 {"operation", order->operation},
                 {"who", order->who},
                 {"role", order->role},
                 {"what", what},
                 {"text", text}});
    if (context().seat->log)
      context().seat->log(fmt::format("audit {} by {} ({}): {}: {}", order->operation, order->who,
                                      order->role, what, text));
  }

  /// Once: the first answer stands.
  void answer(const order_ptr& order, ordered_json reply) {
    const auto tell = std::exchange(order->reply, nullptr);
    if (!tell) return;
    ordered_json full{{"ref", order->ref}};
    full.update(reply);
    tell(full.dump(-1, ' ', false, ordered_json::error_handler_t::replace));
  }

  void refuse(const order_ptr& order, const error& why) {
    if (!order->operation.empty() && order->reply) audit_line(order, "refused", why.message);
    answer(order, {{"problem", {{"code", static_cast<int>(why.code)}, {"message", why.message}}}});
  }

  /// Of an order that changes nothing.
  void tell(const order_ptr& order, ordered_json content) {
    answer(order, {{"result", std::move(content)}});
  }

  void done(const order_ptr& order, std::uint64_t epoch_after, ordered_json content) {
    if (order->reply) audit_line(order, order->dry_run ? "would be done" : "done", content.dump());
    answer(order, {{"operation", order->operation},
                   {"dry_run", order->dry_run},
                   {"epoch_before", order->epoch_before},
                   {"epoch_after", epoch_after},
                   {"result", std::move(content)}});
  }

  /// use(what is in force), where there is a plan.
  template <class Use>
  void with_plan(const order_ptr& order, Use use) {
    self->request(work.planner, caf::infinite, in_force_query{})
        .then([this, order, use](const in_force& now) {
          // Its arguments made no sense.
          if (!order->reply) return;
          if (!now.content) return refuse(order, {errc::failed, "no plan is in force yet"});
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
        auto servers = ordered_json::array();
        for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
          const bool up = server == id() || !away.contains(server);
          servers.push_back({{"name", name_of(server)},
                             {"server", server},
                             {"self", server == id()},
                             {"up", up}});
        }
        tell(order, {{"node", name_of(id())},
                     {"boot", context().seat->boot},
                     {"epoch", now.content->plan.epoch},
                     {"strategy", now.content->plan.strategy},
                     {"policy", now.content->policy},
                     {"admitting", status.admitting},
                     {"drained", status.drained},
                     {"requests", status.requests.size()},
                     {"change", serving::to_string(rules->phase())},
                     {"members", std::move(servers)}});
      });
    });
  }

  void list_requests(const order_ptr& order, const json_value&) {
    with_status([this, order](const server_status& status) {
      auto requests = ordered_json::array();
      const auto now = now_ns(self) - context().start_ns;
      for (const auto& each : status.requests)
        requests.push_back({{"request", each.request},
                            {"phase", to_string(each.phase)},
                            {"attempt", each.attempt},
                            {"prompt_tokens", each.prompt_tokens},
                            {"new_tokens", each.new_tokens},
                            {"age_s", static_cast<double>(now - each.arrival_ns) * 1e-9}});
      tell(order, {{"node", name_of(id())}, {"requests", std::move(requests)}});
    });
  }

  void show_plan(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      const auto& plan = now.content->plan;
      auto servers = ordered_json::array();
      for (std::uint32_t server = 0; server < context().n_servers(); ++server)
        servers.push_back({{"name", name_of(server)},
                           {"experts", std::ranges::count_if(plan.experts,
                                                             [&](const auto& each) {
                                                               return each.server.index() == server;
                                                             })},
                           {"bytes", plan.expert_bytes_used[server]},
                           {"most_bytes", plan.expert_bytes_limit[server]}});
      tell(order, {{"epoch", plan.epoch},
                   {"strategy", plan.strategy},
                   {"servers", std::move(servers)},
                   {"plan", ordered_json::parse(planning::plan_json(plan))}});
    });
  }

  void tell_history(const order_ptr& order, const json_value&) {
    self->request(work.recorder, caf::infinite, history_query{})
        .then([this, order](const history& known) {
          auto changes = ordered_json::array();
          for (const auto& each : known.plan_changes)
            changes.push_back({{"epoch", each.epoch},
                               {"reason", each.reason},
                               {"refused", each.refused},
                               {"asked_s", static_cast<double>(each.asked_ns) * 1e-9},
                               {"drained_s", static_cast<double>(each.drained_ns) * 1e-9},
                               {"done_s", static_cast<double>(each.done_ns) * 1e-9},
                               {"moved_bytes", each.moved_bytes},
                               {"cost_before_ns", each.cost_before_ns},
                               {"cost_after_ns", each.cost_after_ns}});
          auto problems = ordered_json::array();
          for (const auto& each : known.problems)
            problems.push_back({{"scope", to_string(each.of)},
                                {"count", each.count},
                                {"message", each.what.message}});
          tell(order, {{"changes", std::move(changes)}, {"problems", std::move(problems)}});
        });
  }

  void get_policy(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      tell(order, {{"version", now.content->policy},
                   {"policy", ordered_json::parse(trace::policy_json(now.policy))}});
    });
  }

  void tell_events(const order_ptr& order, const json_value& arguments) {
    const auto since = arguments.find("since") ? arguments.at("since").unsigned_integer() : 0;
    with_plan(order, [this, order, since](const in_force&) {
      auto lines = ordered_json::array();
      for (const auto& each : events)
        if (each.at("number").get<std::uint64_t>() > since) lines.push_back(each);
      tell(order, {{"latest", n_events}, {"events", std::move(lines)}});
    });
  }

  void tell_audit(const order_ptr& order, const json_value&) {
    auto lines = ordered_json::array();
    for (const auto& each : audit) lines.push_back(each);
    tell(order, {{"orders", std::move(lines)}});
  }

  // ------------------------------------------------------------------------------ requests, this node

  void cancel(const order_ptr& order, const json_value& arguments) {
    const auto request = arguments.at("request").unsigned_integer();
    with_plan(order, [this, order, request](const in_force& now) {
      const auto epoch = now.content->plan.epoch;
      with_status([this, order, request, epoch](const server_status& status) {
        if (std::ranges::find(status.requests, request, &request_status::request) ==
            status.requests.end())
          return refuse(order,
                        {errc::not_found, fmt::format("request {} is not being answered at {}; "
                                                      "`requests list` has those that are",
                                                      request, name_of(id()))});
        if (!order->dry_run) {
          self->send(work.server, cancel_request{request});
          note("request_cancelled", {{"request", request}, {"operation", order->operation}});
        }
        done(order, epoch, {{"request", request}});
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
        note(on ? "drained" : "resumed", {{"operation", order->operation}});
      }
      with_status([this, order, epoch](const server_status& status) {
        done(order, epoch,
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
      if (!changed) return refuse(order, changed.error());
      if (!order->dry_run) {
        const auto text = trace::policy_json(*changed);
        for (std::uint32_t server = 0; server < context().n_servers(); ++server)
          if (server != id() && !away.contains(server))
            say(server, {{"policy", text}, {"operation", order->operation}});
        adopt_policy(*changed, order->operation);
      }
      auto missed = ordered_json::array();
      for (const auto server : away) missed.push_back(name_of(server));
      done(order, now.content->plan.epoch,
           {{"policy", ordered_json::parse(trace::policy_json(*changed))},
            {"not_told", std::move(missed)}});
    });
  }

  void adopt_policy(const planning::selection_policy& policy, const std::string& operation) {
    auto wanted = std::make_shared<policy_order>();
    wanted->policy = policy;
    self->send(work.planner, change_policy{std::move(wanted)});
    note("policy_changed", {{"operation", operation}});
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
          .then([this, order, epoch](const plan_proposal& made) {
            if (!made.plan) return refuse(order, {errc::failed, made.refused});
            if (proposals.size() == most_proposals) proposals.pop_front();
            proposals.push_back({++n_proposals, made});
            note("plan_proposed", {{"proposal", n_proposals}, {"operation", order->operation}});
            done(order, epoch, summary(proposals.back()));
          });
    });
  }

  ordered_json summary(const proposal& of) const {
    ordered_json servers = ordered_json::array();
    for (std::uint32_t server = 0; server < context().n_servers(); ++server)
      servers.push_back(
          {{"name", name_of(server)}, {"bytes_to_load", of.content.bytes_to[server]}});
    return {{"proposal", of.number},
            {"strategy", of.content.strategy},
            {"epoch", of.content.plan->epoch},
            {"cost_before_ms", of.content.cost_before_ns * 1e-6},
            {"cost_after_ms", of.content.cost_after_ns * 1e-6},
            {"servers", std::move(servers)}};
  }

  const proposal* proposal_of(const order_ptr& order, const json_value& arguments) {
    const auto wanted = arguments.find("proposal");
    if (proposals.empty()) {
      refuse(order, {errc::not_found, "nothing was proposed at this node; `plan propose` first"});
      return nullptr;
    }
    if (!wanted) return &proposals.back();
    const auto number = wanted->unsigned_integer();
    const auto found = std::ranges::find(proposals, number, &proposal::number);
    if (found != proposals.end()) return &*found;
    refuse(order,
           {errc::not_found, fmt::format("found proposal {}, expected one of {} to {}", number,
                                         proposals.front().number, proposals.back().number)});
    return nullptr;
  }

  void diff(const order_ptr& order, const json_value& arguments) {
    const auto* chosen = proposal_of(order, arguments);
    if (chosen == nullptr) return;
    with_plan(order, [this, order, of = *chosen](const in_force& now) {
      const planning::placement_index after(*of.content.plan);
      auto servers = ordered_json::array();
      for (std::uint32_t server = 0; server < context().n_servers(); ++server) {
        auto gains = ordered_json::array(), loses = ordered_json::array();
        for (std::uint32_t layer = 0; layer < context().shape().n_layers; ++layer)
          for (std::uint32_t expert = 0; expert < context().shape().n_experts; ++expert) {
            const bool had = now.content->index.hosts(server, layer, expert);
            const bool has = after.hosts(server, layer, expert);
            if (has && !had) gains.push_back({layer, expert});
            if (had && !has) loses.push_back({layer, expert});
          }
        servers.push_back(
            {{"name", name_of(server)}, {"gains", std::move(gains)}, {"loses", std::move(loses)}});
      }
      auto told = summary(of);
      told["servers"] = std::move(servers);
      tell(order, std::move(told));
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
        return refuse(
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
      return refuse(order, {errc::failed, fmt::format("{} is not connected, and every server has "
                                                      "to take part",
                                                      name_of(*away.begin()))});
    auto told = summary(of);
    told["drain_s"] = drain_s;
    told["note"] = fmt::format(
        "servers load what they lack while requests are answered; then new requests wait until "
        "those "
        "in flight have ended; what is in flight after {} s ends with an error that says so",
        drain_s);
    done(order, of.content.plan->epoch, std::move(told));
  }

  void lead(const order_ptr& order, const proposal& of, std::int64_t drain_s) {
    const auto change = (std::uint64_t{id()} + 1) << 56 |
                        (std::uint64_t{context().seat->boot} & 0xffffff) << 32 | ++n_changes;
    const ordered_json text{{"plan", planning::plan_json(*of.content.plan)},
                            {"drain_ns", drain_s * 1'000'000'000},
                            {"operation", order->operation}};
    auto todo = rules->begin(change, text.dump());
    if (!todo) return refuse(order, todo.error());
    led[change] = {order, of.content.plan->epoch};
    act(*todo);
  }

  void abort(const order_ptr& order, const json_value&) {
    with_plan(order, [this, order](const in_force& now) {
      if (!rules->leads() || rules->is_committed())
        return refuse(order, {errc::failed,
                              "no change that this node leads can be aborted: none is under "
                              "way, or it is committed"});
      std::vector<change_action> todo;
      if (!order->dry_run)
        rules->give_up(fmt::format("aborted by {} (operation {})", order->who, order->operation),
                       todo);
      act(todo);
      done(order, now.content->plan.epoch, ordered_json::object());
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
        note("plan_change_begins", {{"leader", name_of(rules->leader())}});
        if (auto read = read_plan(what.text); !read)
          return act(rules->step_done(what.change, read.error().message));
        step.plan = prepared;
        break;
      }
      case change_step::hold:
        step.drain_ns = drain_ns;
        note("admission_held");
        break;
      case change_step::commit:
        break;
      case change_step::resume:
        note("plan_changed", {{"epoch", prepared ? prepared->epoch : 0}});
        break;
      case change_step::abort:
        step.why = what.text;
        note("plan_change_aborted", {{"why", what.text}});
        break;
    }
    self->send(work.planner, std::move(step));
  }

  /// The text of a prepare, into `prepared`.
  result<void> read_plan(const std::string& text) {
    auto document = json_document::parse(text, "plan change");
    if (!document) return document.error();
    const auto root = (*document)->root();
    root.only({"plan", "drain_ns", "operation"});
    const auto plan_text = root.at("plan").string();
    const auto longest = root.at("drain_ns").integer(0, longest_drain_s * 1'000'000'000);
    root.at("operation").string();
    if (auto read = (*document)->finish(0); !read) return read.error();
    auto plan = planning::parse_plan(plan_text, "plan change");
    if (!plan) return plan.error();
    prepared = std::make_shared<const planning::plan>(std::move(*plan));
    drain_ns = longest;
    return {};
  }

  void take(const plan_step_done& message) {
    const auto& why = message.why;
    if (message.step == change_step::commit && why.empty() && prepared && context().seat->adopt)
      if (auto kept = context().seat->adopt(*prepared); !kept)
        note("plan_not_kept", {{"why", kept.error().message}});
    act(rules->step_done(message.change, why));
  }

  void finish(serving::change_id change, const std::string& why) {
    auto found = led.extract(change);
    if (found.empty()) return;
    const auto& [order, epoch_after] = found.mapped();
    if (!why.empty()) return refuse(order, {errc::failed, fmt::format("the plan stays: {}", why)});
    done(order, epoch_after, {{"epoch", epoch_after}});
  }

  void take(const peer_said& message) {
    auto document = json_document::parse(message.text, "admin message");
    if (!document) return ignore(message.server, document.error());
    const auto root = (*document)->root();
    if (const auto policy = root.find("policy")) {
      root.only({"policy", "operation"});
      const auto text = policy->string();
      const auto operation = root.at("operation").string();
      if (auto read = (*document)->finish(0); !read) return ignore(message.server, read.error());
      const auto parsed = trace::parse_policy(text, "policy");
      if (!parsed) return ignore(message.server, parsed.error());
      return adopt_policy(*parsed, operation);
    }
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

  void ignore(std::uint32_t server, const error& why) {
    note("peer_makes_no_sense", {{"peer", name_of(server)}, {"why", why.message}});
  }

  void take(const peer_changed& message) {
    if (message.server >= context().n_servers() || message.server == id()) return;
    note(message.up ? "peer_up" : "peer_down", {{"peer", name_of(message.server)}});
    if (message.up) {
      away.erase(message.server);
      rules->found(message.server);
    } else {
      away.insert(message.server);
      act(rules->lost(message.server));
    }
  }
};

const std::array<admin_state::verb, 15>& admin_state::verbs() {
  static const std::array<verb, 15> all{{
      {"members", rank::viewer, false, &admin_state::members},
      {"requests.list", rank::viewer, false, &admin_state::list_requests},
      {"plan.show", rank::viewer, false, &admin_state::show_plan},
      {"plan.diff", rank::viewer, false, &admin_state::diff},
      {"plan.history", rank::viewer, false, &admin_state::tell_history},
      {"policy.get", rank::viewer, false, &admin_state::get_policy},
      {"events", rank::viewer, false, &admin_state::tell_events},
      {"audit", rank::admin, false, &admin_state::tell_audit},
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
    };
  });
}

}  // namespace ordermoe::actors
