#include "cli/admin_verbs.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <thread>

#include "cli/admin_tables.hpp"
#include "config/files.hpp"
#include "config/json.hpp"
#include "config/json_text.hpp"
#include "net/identity/revocations.hpp"
#include "setup/cluster_folder.hpp"

namespace ordermoe::cli {

namespace {

using nlohmann::ordered_json;

constexpr std::chrono::seconds soon(15);

/// A new file that its owner alone reads. It is gone again where nothing was written to it.
class secret_file {
 public:
  secret_file() = default;
  secret_file(const secret_file&) = delete;
  secret_file& operator=(const secret_file&) = delete;
  ~secret_file() {
    if (file_ < 0) return;
    ::close(file_);
    if (!written_) ::unlink(path_.c_str());
  }

  result<void> open(const std::string& path) {
    path_ = path;
    file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (file_ >= 0) return {};
    return error{errc::io, fmt::format("--out {}: {}; no token was made, name a new file", path,
                                       std::strerror(errno))};
  }

  result<void> write(const std::string& secret) {
    const auto line = secret + "\n";
    written_ = ::write(file_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
    if (written_) return {};
    return error{errc::io,
                 fmt::format("--out {}: {}; the token was made and its secret is lost: revoke it",
                             path_, std::strerror(errno))};
  }

 private:
  std::string path_;
  int file_ = -1;
  bool written_ = false;
};

class verbs {
 public:
  verbs(CLI::App& parent, std::function<session_ptr()> session, bind_function bind)
      : parent_(parent), session_(std::move(session)), bind_(std::move(bind)) {}

  void add_all() {
    simple(parent_, "status", "How every node does, in a line each", "status", print_status);
    add_members();
    auto& requests = group("requests", "Requests of a node's users");
    simple(
        requests, "list", "Those that are being answered", "requests.list",
        table("requests", {"request", "phase", "attempt", "prompt_tokens", "new_tokens", "age_s"}));
    add_number(requests, "show", "One of them, and the memory that it has there", "requests.show");
    add_number(requests, "cancel", "End one; whoever asked is told", "requests.cancel");
    simple(parent_, "peers", "A node's sessions with the others: round trip, rate, credit, lanes",
           "peers", print_peers);
    simple(parent_, "topology", "Servers, and links as stated and as measured", "topology",
           print_topology);
    add_experts();
    simple(parent_, "drift",
           "What routers chose lately at all nodes, beside what the plan in force was made for",
           "drift", print_drift);
    add_plan();
    add_policy();
    add_drain("drain",
              "A node takes no requests of its users until `resume` or its end; its experts go on");
    add_drain("resume", "It takes them again");
    add_decommission();
    add_certificates();
    add_events();
    simple(parent_, "audit", "Who ordered what, and what came of it, at this node", "audit",
           table("orders", {"time_s", "operation", "who", "role", "what", "text", "token"}));
    add_log();
    add_tokens();
    add_examples(parent_, "");
  }

 private:
  /// What the help of each ends with.
  static void add_examples(CLI::App& of, const std::string& path) {
    static const std::map<std::string, std::string> arguments{
        {" requests", " list"},
        {" requests cancel", " 72057598332895235"},
        {" plan", " show"},
        {" plan propose", " --measured"},
        {" plan diff", " 1"},
        {" plan apply", " --drain-s 10"},
        {" policy", " get"},
        {" policy set", " omega_time=0.7"},
        {" members add", " s8 --address 10.0.0.18:7400"},
        {" members remove", " s2"},
        {" decommission", " s2"},
        {" drain", " s2"},
        {" resume", " s2"},
        {" events", " --follow"},
        {" cert", " show"},
        {" cert reload", " --node s2"},
        {" requests show", " 72057598332895235"},
        {" experts", " --layer 3"},
        {" log", " level get"},
        {" log level", " get"},
        {" log level set", " debug --node s2"},
        {" token", " list"},
        {" token create", " deploy --role operator --ttl 30d --out deploy.token"},
        {" token revoke", " deploy"}};
    for (auto* each : of.get_subcommands([](const CLI::App*) { return true; })) {
      const auto words = fmt::format("{} {}", path, each->get_name());
      const auto found = arguments.find(words);
      each->footer(fmt::format(
          "--dir, --node, --token-file, --dry-run and --json are those of `ordermoe admin`.\n"
          "Example:\n  ordermoe admin{}{} --dir edge",
          words, found == arguments.end() ? "" : found->second));
      add_examples(*each, words);
    }
  }

  CLI::App& group(const std::string& name, const std::string& what) {
    auto& made = *parent_.add_subcommand(name, what);
    made.require_subcommand(1);
    return made;
  }

  void simple(CLI::App& parent, const std::string& name, const std::string& what,
              const std::string& verb, show_function show) {
    auto& command = *parent.add_subcommand(name, what);
    bind_(command, [session = session_, verb, show = std::move(show)]() -> result<void> {
      return ask(session(), {}, verb, ordered_json::object(), soon, show);
    });
  }

  static result<void> ask(const session_ptr& session, const std::string& node,
                          const std::string& verb, const ordered_json& arguments,
                          std::chrono::seconds longest, const show_function& show) {
    const auto reply = session->order(node, verb, arguments, longest);
    if (!reply) return reply.error();
    print_reply(session->flags(), *reply, show);
    return {};
  }

  void add_members() {
    auto& members =
        *parent_.add_subcommand("members", "Servers, who is connected, and what is in force");
    // CLI11 calls the body of `members` after that of a verb below it.
    auto chosen = std::make_shared<command_body>();
    const auto change = [&](const char* name, const char* what) -> CLI::App& {
      return *members.add_subcommand(name, what);
    };
    auto name = std::make_shared<std::string>();
    auto address = std::make_shared<std::string>();
    auto lost = std::make_shared<bool>(false);
    auto& add = change("add",
                       "A server of the cluster file is a member from now on; `plan propose` and "
                       "`plan apply` give it experts");
    add.add_option("NAME", *name, "As the cluster file has it")->required();
    add.add_option("--address", *address, "HOST:PORT where it is dialled, if not as in node.toml");
    add.callback([chosen, session = session_, name, address] {
      *chosen = [session, name, address] {
        ordered_json arguments{{"name", *name}};
        if (!address->empty()) arguments["address"] = *address;
        const auto here = session();
        const auto other = here->other_than(*name);
        if (!other) return result<void>(other.error());
        return ask(here, *other, "members.add", arguments, soon, print_member_change);
      };
    });
    auto& remove = change("remove",
                          "One that hosts nothing is no member any more: nobody dials it "
                          "or lets it in");
    remove.add_option("NAME", *name, "Which; `decommission` it first")->required();
    remove.add_flag(
        "--lost", *lost,
        "It is gone and does not come back as it was: also where it hosts experts, which "
        "the next `plan propose` and `plan apply` place elsewhere");
    remove.callback([chosen, session = session_, name, lost] {
      *chosen = [session, name, lost] {
        const auto here = session();
        const auto other = here->other_than(*name);
        if (!other) return result<void>(other.error());
        return ask(here, *other, "members.remove", {{"name", *name}, {"lost", *lost}}, soon,
                   print_member_change);
      };
    });
    bind_(members, [chosen, session = session_] {
      if (*chosen) return (*chosen)();
      return ask(session(), {}, "members", ordered_json::object(), soon, print_members_table);
    });
  }

  struct decommission_wish {
    std::string node, strategy;
    std::int64_t drain_s = 30;
    std::size_t longest_s = 600;
    bool detach = false;
  };

  void add_decommission() {
    auto wanted = std::make_shared<decommission_wish>();
    auto& command = *parent_.add_subcommand(
        "decommission",
        "A node takes no requests of its users any more, and its experts go to others; then "
        "`members remove`");
    command.add_option("NODE", wanted->node, "Which")->required();
    command.add_option("--strategy", wanted->strategy,
                       "How experts are placed without it; default: as in force");
    command
        .add_option("--drain-s", wanted->drain_s,
                    "Seconds that requests in flight have when the plan changes")
        ->check(whole_from(0, 3600))
        ->capture_default_str();
    command.add_option("--timeout-s", wanted->longest_s, "Wait so many seconds at most")
        ->check(whole_from(1, 86400))
        ->capture_default_str();
    command.add_flag("--detach", wanted->detach, "Do not wait until the plan has changed");
    bind_(command, [session = session_, wanted]() -> result<void> {
      return decommission(session(), *wanted);
    });
  }

  /// Whether the plan in force places anything on a server of this name, as another node knows. Error: it is not there.
  static result<bool> hosts(const session_ptr& session, const std::string& other,
                            const std::string& name) {
    const auto reply = session->order(other, "members", ordered_json::object(), soon);
    if (!reply) return reply.error();
    for (const auto& each : reply->at("result").at("members")) {
      if (each.at("name") != name) continue;
      if (each.value("up", false)) return each.value("hosts", false);
      return error{errc::failed,
                   fmt::format("{} is not connected to {}; start it, or give it up with `ordermoe "
                               "admin members remove {} --lost`",
                               name, other, name)};
    }
    return error{errc::usage,
                 fmt::format("found node '{}', expected one of those of `members`", name)};
  }

  /// Planned first: where that cannot be everything is left as it is; where the plan cannot be applied the node is drained. With --json what is told last is told alone.
  static result<void> decommission(const session_ptr& here, const decommission_wish& wanted) {
    const auto other = here->other_than(wanted.node);
    if (!other) return other.error();
    const auto has = hosts(here, *other, wanted.node);
    if (!has) return has.error();
    ordered_json proposal;
    if (*has) {
      ordered_json how{{"without", {wanted.node}}};
      if (!wanted.strategy.empty()) how["strategy"] = wanted.strategy;
      const auto made =
          here->order(*other, "plan.propose", how, std::chrono::seconds(wanted.longest_s));
      if (!made) return made.error();
      if (here->flags().dry_run) {
        print_reply(here->flags(), *made, print_diff);
        return {};
      }
      proposal = {{"proposal", made->at("result").at("proposal")}};
    }
    const auto drained = here->order(wanted.node, "drain", ordered_json::object(), soon);
    if (!drained) return drained.error();
    if (!*has || !here->flags().json) print_reply(here->flags(), *drained, {});
    if (here->flags().dry_run) return {};
    if (*has) {
      proposal["drain_s"] = wanted.drain_s;
      const std::chrono::seconds longest(wanted.detach ? 1 : wanted.longest_s);
      auto applied = ask(here, *other, "plan.apply", proposal, longest, print_summary);
      if (wanted.detach && !applied && applied.error().code == errc::timed_out) return {};
      if (!applied)
        return at(fmt::format("{} stays drained until `ordermoe admin resume {}`", wanted.node,
                              wanted.node),
                  applied.error());
    }
    return wanted.detach ? result<void>{} : wait_until_empty(here, wanted.node, wanted.longest_s);
  }

  /// Of one request.
  void add_number(CLI::App& requests, const std::string& name, const std::string& what,
                  const std::string& verb) {
    auto& command = *requests.add_subcommand(name, what);
    auto number = std::make_shared<std::uint64_t>(0);
    command.add_option("REQUEST", *number, "Number, as `requests list` tells it")
        ->required()
        ->check(whole_from(0, UINT64_MAX));
    bind_(command, [session = session_, verb, number] {
      return ask(session(), {}, verb, {{"request", *number}}, soon, {});
    });
  }

  void add_experts() {
    struct wish {
      std::optional<std::uint32_t> layer;
      std::string server;
    };
    auto wanted = std::make_shared<wish>();
    auto& command = *parent_.add_subcommand("experts", "Which servers host which experts");
    command.add_option("--layer", wanted->layer, "Of this layer alone, from 0")
        ->check(whole_from(0, UINT32_MAX));
    command.add_option("--server", wanted->server, "On this server alone");
    bind_(command, [session = session_, wanted] {
      auto arguments = ordered_json::object();
      if (wanted->layer) arguments["layer"] = *wanted->layer;
      if (!wanted->server.empty()) arguments["server"] = wanted->server;
      return ask(session(), {}, "experts", arguments, soon, print_experts);
    });
  }

  void add_log() {
    auto& level = *group("log", "What a node writes into its log")
                       .add_subcommand("level", "The least that is written");
    level.require_subcommand(1);
    simple(level, "get", "Which it is", "log.level", {});
    auto& set = *level.add_subcommand("set", "Another, until the node ends");
    auto wanted = std::make_shared<std::string>();
    set.add_option("LEVEL", *wanted, "debug, info, warning, error or off")->required();
    bind_(set, [session = session_, wanted] {
      return ask(session(), {}, "log.set_level", {{"level", *wanted}}, soon, {});
    });
  }

  void add_tokens() {
    auto& tokens = group("token", "Secrets by which a console has a role");
    simple(tokens, "list", "Those that there are; no secrets", "token.list", print_tokens);
    auto& revoke = *tokens.add_subcommand("revoke", "One does not hold any more, at any node");
    auto name = std::make_shared<std::string>();
    revoke.add_option("NAME", *name, "Which")->required();
    bind_(revoke, [session = session_, name] {
      return ask(session(), {}, "token.revoke", {{"name", *name}}, soon, {});
    });
    add_create_token(tokens);
  }

  void add_create_token(CLI::App& tokens) {
    struct wish {
      std::string name, role, holds_for = "90d", out;
    };
    auto wanted = std::make_shared<wish>();
    auto& command = *tokens.add_subcommand(
        "create", "A new one; its secret is shown this once and kept nowhere");
    command.add_option("NAME", wanted->name, "As orders of its bearer are audited")->required();
    command.add_option("--role", wanted->role, "viewer, operator or admin")
        ->required()
        ->check(CLI::IsMember({"viewer", "operator", "admin"}));
    command
        .add_option("--ttl", wanted->holds_for,
                    "How long it holds: 90d, 12h, 30m, 45s; 0: for ever")
        ->capture_default_str();
    command
        .add_option("--out", wanted->out,
                    "Write the secret to this new file, which its owner alone may read, and do "
                    "not print it")
        ->type_name(file_value);
    bind_(command, [session = session_, wanted]() -> result<void> {
      const auto seconds = seconds_of(wanted->holds_for);
      if (!seconds) return seconds.error();
      const auto here = session();
      const bool to_file = !wanted->out.empty() && !here->flags().dry_run;
      // First, so that nothing is made whose secret has no place.
      secret_file out;
      if (to_file)
        if (auto opened = out.open(wanted->out); !opened) return opened;
      auto reply =
          here->order({}, "token.create",
                      {{"name", wanted->name}, {"role", wanted->role}, {"for_s", *seconds}}, soon);
      if (!reply) return reply.error();
      auto& told = reply->at("result");
      if (to_file && told.contains("token")) {
        if (auto written = out.write(told.value("token", "")); !written) return written;
        told["token"] = fmt::format("in {}", wanted->out);
      }
      print_reply(here->flags(), *reply, {});
      return {};
    });
  }

  static result<std::int64_t> seconds_of(const std::string& text) {
    if (text == "0") return std::int64_t{0};
    static const std::map<char, std::int64_t> units{
        {'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86'400}};
    std::int64_t number = 0;
    const auto* end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    const auto unit = read.ptr + 1 == end ? units.find(*read.ptr) : units.end();
    if (read.ec != std::errc{} || unit == units.end() || number < 1 || number > 100'000'000)
      return error{
          errc::usage,
          fmt::format("--ttl: found '{}', expected a number with s, m, h or d behind it, as "
                      "90d, or 0",
                      text)};
    return number * unit->second;
  }

  void add_plan() {
    auto& plan = group("plan", "The plan in force, and others");
    simple(plan, "show", "How many experts are where; with --json the plan itself", "plan.show",
           table("servers", {"name", "experts", "bytes", "most_bytes"}));
    simple(plan, "history", "Changes since this node started, and those that were refused",
           "plan.history",
           table("changes",
                 {"epoch", "reason", "asked_s", "held", "done_s", "moved_bytes", "refused"}));
    simple(plan, "abort", "Give up a change that this node leads and is not committed",
           "plan.abort", {});
    add_propose(plan);
    auto& diff = *plan.add_subcommand("diff", "Which experts a proposal gives and takes");
    auto proposal = std::make_shared<std::uint64_t>(0);
    diff.add_option("PROPOSAL", *proposal, "Number; default: the latest")
        ->check(whole_from(1, UINT64_MAX));
    bind_(diff, [session = session_, proposal] {
      return ask(session(), {}, "plan.diff", chosen(*proposal), soon, print_diff);
    });
    add_apply(plan);
  }

  static ordered_json chosen(std::uint64_t proposal) {
    auto arguments = ordered_json::object();
    if (proposal > 0) arguments["proposal"] = proposal;
    return arguments;
  }

  void add_propose(CLI::App& plan) {
    struct wish {
      std::string strategy;
      std::size_t steps = 10'000;
      std::uint64_t seed = 1;
      bool measured = false;
    };
    auto wanted = std::make_shared<wish>();
    auto& command =
        *plan.add_subcommand("propose", "Plan by what is known now of links; nothing changes");
    command.add_option("--strategy", wanted->strategy,
                       "How experts are placed; default: as in force");
    command.add_option("--search-steps", wanted->steps, "Moves that the ordermoe planner tries")
        ->check(whole_from(1, 1'000'000'000))
        ->capture_default_str();
    add_seed(command, wanted->seed, "Seed of the search");
    command.add_flag(
        "--measured", wanted->measured,
        "By what routers chose lately at all nodes (see `drift`), and not by the profile");
    bind_(command, [session = session_, wanted] {
      ordered_json arguments{{"steps", wanted->steps}, {"seed", wanted->seed}};
      if (!wanted->strategy.empty()) arguments["strategy"] = wanted->strategy;
      if (wanted->measured) arguments["measured"] = true;
      return ask(session(), {}, "plan.propose", arguments, std::chrono::seconds(600),
                 print_summary);
    });
  }

  void add_apply(CLI::App& plan) {
    struct wish {
      std::uint64_t proposal = 0;
      std::int64_t drain_s = 30;
    };
    auto wanted = std::make_shared<wish>();
    auto& command = *plan.add_subcommand(
        "apply", "All servers go over to a proposal, or none; waits until requests begin under it");
    command.add_option("PROPOSAL", wanted->proposal, "Number; default: the latest")
        ->check(whole_from(1, UINT64_MAX));
    command
        .add_option("--drain-s", wanted->drain_s,
                    "Seconds that requests under the plan before have; then they end by name")
        ->check(whole_from(0, 3600))
        ->capture_default_str();
    bind_(command, [session = session_, wanted] {
      auto arguments = chosen(wanted->proposal);
      arguments["drain_s"] = wanted->drain_s;
      return ask(session(), {}, "plan.apply", arguments,
                 std::chrono::seconds(wanted->drain_s + 600), print_summary);
    });
  }

  void add_policy() {
    auto& policy = group("policy", "How tokens decide what runs where");
    simple(policy, "get", "The policy in force", "policy.get", print_json);
    auto& set = *policy.add_subcommand("set", "Change members of it, on all servers");
    auto members = std::make_shared<std::vector<std::string>>();
    set.add_option("MEMBER=VALUE", *members, "As in `omega_time=0.7 horizon=4`")->required();
    bind_(set, [session = session_, members]() -> result<void> {
      auto changes = ordered_json::object();
      for (const auto& each : *members) {
        const auto split = each.find('=');
        if (split == std::string::npos || split == 0)
          return error{errc::usage,
                       fmt::format("found '{}', expected MEMBER=VALUE, as omega_time=0.7", each)};
        const auto value = parse_told(each.substr(split + 1));
        changes[each.substr(0, split)] =
            value.is_discarded() ? ordered_json(each.substr(split + 1)) : value;
      }
      return ask(session(), {}, "policy.set", {{"policy", json_text(changes)}}, soon, print_json);
    });
  }

  void add_certificates() {
    auto& certificates =
        group("cert", "Certificates of running nodes (`ordermoe cert` makes them)");
    auto& show = *certificates.add_subcommand(
        "show", "Until when each node's is in force, and which list of what is revoked it has");
    bind_(show, [session = session_] {
      return ask_each(session(), "cert.show", ordered_json::object(),
                      {"node", "days_left", "serial", "revoked", "revocations", "n_revoked"});
    });
    auto& reload = *certificates.add_subcommand(
        "reload",
        "Nodes read certificate, key and ca.crl anew, and take the ca.crl of --dir; without --node "
        "all of them");
    bind_(reload, [session = session_]() -> result<void> {
      const auto here = session();
      const auto list =
          setup::cluster_folder{here->flags().folder}.certificates() / net::revocations_file;
      const auto text = read_file(list, net::most_revocations_bytes);
      auto arguments = ordered_json::object();
      if (text)
        arguments["revocations"] = *text;
      else if (text.error().code != errc::not_found)
        return text.error();
      const auto known = number_of_list(list);
      return ask_each(here, "cert.reload", arguments, {"node", "changed", "list"},
                      [&](const ordered_json& told) { warn_of_list(list, known, told); });
    });
  }

  /// 0: there is none, or none that the authority signed, which the nodes say.
  static std::uint64_t number_of_list(const std::filesystem::path& list) {
    const auto read = net::read_revocations(list, list.parent_path() / "ca.crt");
    return read && *read ? (*read)->number : 0;
  }

  static void warn_of_list(const std::filesystem::path& list, std::uint64_t known,
                           const ordered_json& told) {
    const auto there = told.value("list", std::uint64_t{0});
    if (known > 0 && there > known)
      fmt::print(stderr,
                 "ordermoe: warning: {} is list {}, and {} has list {}; bring back the latest, as "
                 "from state/ca.crl of a node, before you revoke more\n",
                 list.string(), known, told.value("node", ""), there);
  }

  /// Of each chosen node a line; who does not answer is named in the end.
  static result<void> ask_each(const session_ptr& session, const std::string& verb,
                               const ordered_json& arguments,
                               const std::vector<std::string>& columns,
                               const show_function& look_at = {}) {
    const auto nodes = session->chosen_nodes();
    if (!nodes) return nodes.error();
    auto replies = ordered_json::array(), rows = ordered_json::array();
    result<void> outcome;
    for (const auto& node : *nodes) {
      const auto reply = session->order(node, verb, arguments, soon);
      if (!reply) {
        if (!outcome) report(outcome.error());
        outcome = at(node, reply.error());
        continue;
      }
      replies.push_back(*reply);
      rows.push_back(reply->at("result"));
      if (look_at) look_at(rows.back());
    }
    const auto& flags = session->flags();
    if (flags.json)
      fmt::print("{}\n", json_text(ordered_json{{"nodes", replies}}, 2));
    else if (!rows.empty())
      print_rows(rows, columns);
    if (!flags.json && flags.dry_run) fmt::print("nothing was done\n");
    std::fflush(stdout);
    return outcome;
  }

  void add_drain(const std::string& name, const std::string& what) {
    struct wish {
      std::string node;
      bool detach = false;
      std::size_t longest_s = 600;
    };
    auto wanted = std::make_shared<wish>();
    auto& command = *parent_.add_subcommand(name, what);
    command.add_option("NODE", wanted->node, "Which")->required();
    const bool drains = name == "drain";
    if (drains) {
      command.add_flag("--detach", wanted->detach, "Do not wait until its last request has ended");
      command.add_option("--timeout-s", wanted->longest_s, "Wait so many seconds at most")
          ->check(whole_from(1, 86400))
          ->capture_default_str();
    }
    bind_(command, [session = session_, wanted, name, drains]() -> result<void> {
      const auto here = session();
      if (auto asked = ask(here, wanted->node, name, ordered_json::object(), soon, {});
          !asked || !drains || wanted->detach || here->flags().dry_run)
        return asked;
      return wait_until_empty(here, wanted->node, wanted->longest_s);
    });
  }

  static result<void> wait_until_empty(const session_ptr& session, const std::string& node,
                                       std::size_t longest_s) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(longest_s);
    for (;;) {
      const auto reply = session->order(node, "requests.list", ordered_json::object(), soon);
      if (!reply) return reply.error();
      const auto left = reply->at("result").at("requests").size();
      if (left == 0) return {};
      if (stop_requested()) return error{errc::interrupted, "interrupted; it stays drained"};
      if (std::chrono::steady_clock::now() > until)
        return error{errc::timed_out,
                     fmt::format("{} still answers {} requests after {} s; it stays drained", node,
                                 left, longest_s)};
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void add_events() {
    auto follow = std::make_shared<bool>(false);
    auto& command = *parent_.add_subcommand("events", "What happened at this node");
    command.add_flag("--follow", *follow, "And what happens, until it is interrupted");
    bind_(command, [session = session_, follow]() -> result<void> {
      const auto here = session();
      std::uint64_t since = 0;
      do {
        const auto reply = here->order({}, "events", {{"since", since}}, soon);
        if (!reply) return reply.error();
        const auto& told = reply->at("result");
        since = told.value("latest", since);
        for (const auto& event : told.at("events")) print_event(here->flags(), event);
        if (*follow) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      } while (*follow && !stop_requested());
      return {};
    });
  }

  CLI::App& parent_;
  std::function<session_ptr()> session_;
  bind_function bind_;
};

}  // namespace

void add_verbs(CLI::App& parent, std::function<session_ptr()> session, bind_function bind) {
  verbs(parent, std::move(session), std::move(bind)).add_all();
}

}  // namespace ordermoe::cli
