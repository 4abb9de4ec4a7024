#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <fstream>
#include <future>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "actors/cluster/client.hpp"
#include "cli/cluster_commands.hpp"
#include "cli/cluster_network.hpp"
#include "cli/cluster_processes.hpp"
#include "cli/cluster_states.hpp"
#include "cli/common.hpp"
#include "cli/log_writer.hpp"
#include "cli/planning_flags.hpp"
#include "config/devices.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"
#include "net/identity/certificates.hpp"
#include "planning/profile.hpp"
#include "planning/strategies/left_out.hpp"
#include "setup/channel.hpp"
#include "setup/cluster_folder.hpp"
#include "setup/node_setup.hpp"
#include "setup/plan_file.hpp"
#include "setup/preparation.hpp"

namespace ordermoe::cli {

namespace {

namespace fs = std::filesystem;
using setup::cluster_folder;

struct up_command {
  world_flags world;
  planning_flags planning;
  std::string folder, plan;
  std::size_t threads = 0;
  std::uint16_t first_port = 7400;
  std::uint32_t most_positions = 0;
  bool trace = false, netns = false, rehearse = false;
  double dilation = 1;
  std::string channel = "asio", links = "measured";
  double load_period_ms = node_file{}.load_period_ms;
  double busy_poll_us = node_file{}.busy_poll_us;
  std::vector<std::string> spares;     ///< Names of servers that are no members yet.
  std::vector<std::string> addresses;  ///< "NAME=HOST:PORT", of a cluster on several hosts.
  std::string host_model;              ///< Where the model is on those; empty: as here.
  log_choice log;                      ///< Of every node.
};

// ------------------------------------------------------------------------------------------ processes

/// The next port of loopback from here on that nobody listens at.
std::optional<std::uint16_t> free_port(std::uint16_t& from) {
  // Beyond the last one there is none: the next is 0.
  for (; from != 0; ++from) {
    const int with = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(with, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(from);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool is_free = ::bind(with, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0;
    ::close(with);
    if (is_free) return from++;
  }
  return std::nullopt;
}

result<pid_t> read_pid(const cluster_folder& folder, const std::string& name) {
  const auto text = read_file(folder.pid(name), 64);
  if (!text) return text.error();
  pid_t pid = 0;
  std::from_chars(text->data(), text->data() + text->size(), pid);
  if (pid <= 1)
    return error{errc::malformed, fmt::format("{}: found no process number; remove the file",
                                              folder.pid(name).string())};
  return pid;
}

/// Of a node's configuration, the same from wherever and however the folder is named.
std::string config_of(const cluster_folder& folder, const std::string& name) {
  std::error_code failed;
  const auto path = fs::canonical(folder.config(name), failed);
  return (failed ? fs::absolute(folder.config(name)) : path).string();
}

/// Whether this process runs, and is a node of this folder: numbers are used again. Whoever started it by hand may have
/// named its file from where they were.
bool is_node(pid_t pid, const cluster_folder& folder, const std::string& name) {
  const auto line = read_file(fmt::format("/proc/{}/cmdline", pid), 1 << 16);
  if (!line) return false;
  std::error_code failed;
  const auto place = fs::read_symlink(fmt::format("/proc/{}/cwd", pid), failed);
  const auto config = config_of(folder, name);
  constexpr std::string_view flag = "--config=";
  std::istringstream words(*line);
  for (std::string word; std::getline(words, word, '\0');) {
    if (word.starts_with(flag)) word.erase(0, flag.size());
    if (!word.empty() && fs::weakly_canonical(place / word, failed) == config) return true;
  }
  return false;
}

result<pid_t> start_node(const cluster_folder& folder, const std::string& name) {
  auto arguments = cluster_network(folder).prefix(name);
  for (const auto& word :
       {own_program(), std::string("node"), std::string("--config"), config_of(folder, name)})
    arguments.push_back(word);
  const auto pid = start_program(arguments, {}, folder.log(name));
  if (!pid) return at(fmt::format("node {}", name), pid.error());
  if (auto written = write_file(folder.pid(name), fmt::format("{}\n", *pid)); !written) {
    // Nobody would find it any more.
    ::kill(*pid, SIGTERM);
    ::waitpid(*pid, nullptr, 0);
    return written.error();
  }
  return pid;
}

/// A process that this command started, and where its part of the log begins.
struct started_node {
  pid_t pid = 0;
  std::uintmax_t log_begin = 0;
};

std::uintmax_t size_of(const fs::path& file) {
  std::error_code failed;
  const auto size = fs::file_size(file, failed);
  return failed ? 0 : size;
}

/// What a log has from there on, whole lines of its end where that is much.
std::string last_lines(const fs::path& log, std::uintmax_t from) {
  constexpr std::uintmax_t most = 2000;
  const auto size = size_of(log);
  const auto begin = std::max(from, size > most ? size - most : 0);
  std::ifstream file(log, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(begin));
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (begin > from) text.erase(0, text.find('\n') + 1);
  text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

bool runs(const cluster_folder& folder, const std::string& name) {
  const auto pid = read_pid(folder, name);
  return pid && is_node(*pid, folder, name);
}

/// Ends what runs: asked first, then made to. Gives the names of what did.
std::vector<std::string> end_processes(const cluster_folder& folder,
                                       const std::vector<std::string>& names) {
  std::map<std::string, pid_t> running;
  std::vector<std::string> ended;
  for (const auto& name : names)
    if (const auto pid = read_pid(folder, name); pid && is_node(*pid, folder, name)) {
      running[name] = *pid;
      ended.push_back(name);
    }
  for (const auto& [name, pid] : running) ::kill(pid, SIGTERM);
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!running.empty()) {
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    std::erase_if(running,
                  [&](const auto& each) { return !is_node(each.second, folder, each.first); });
    if (std::chrono::steady_clock::now() > limit)
      for (const auto& [name, pid] : running) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::error_code ignored;
  for (const auto& name : names) fs::remove(folder.pid(name), ignored);
  return ended;
}

// ------------------------------------------------------------------------------------------------ up

/// Ports of this machine, one for each server.
result<std::vector<std::string>> local_addresses(std::size_t n, std::uint16_t port) {
  const auto first = port;
  std::vector<std::string> addresses;
  while (addresses.size() < n) {
    const auto found = free_port(port);
    if (!found)
      return error{errc::failed,
                   fmt::format("no free port from {} on; choose another --port", first)};
    addresses.push_back(fmt::format("127.0.0.1:{}", *found));
  }
  return addresses;
}

/// Those that were given, one for each server: "-" for one that nobody can dial.
result<std::vector<std::string>> given_addresses(const std::vector<std::string>& given,
                                                 const cluster& servers) {
  std::map<std::string, std::string> by_name;
  for (const auto& text : given) {
    const auto equals = text.find('=');
    const auto name = text.substr(0, equals);
    const auto value = equals == std::string::npos ? "" : text.substr(equals + 1);
    const bool known =
        std::ranges::find(servers.servers, name, &server_spec::name) != servers.servers.end();
    if (!known)
      return error{errc::usage,
                   fmt::format("--address '{}': found the name '{}', expected one of "
                               "the cluster file's servers, as in {}=192.168.1.10:7400",
                               text, name, servers.servers.front().name)};
    if (value != "-")
      if (const auto read = net::parse_address(value); !read)
        return at(fmt::format("--address '{}'", text), read.error());
    if (!by_name.emplace(name, value == "-" ? "" : value).second)
      return error{errc::usage, fmt::format("--address '{}': found another address of {}, expected "
                                            "one",
                                            text, name)};
    const auto same = std::ranges::find_if(by_name, [&](const auto& each) {
      return each.first != name && value != "-" && each.second == value;
    });
    if (same != by_name.end())
      return error{errc::usage, fmt::format("--address '{}': found the address of {}, expected "
                                            "another for each server",
                                            text, same->first)};
  }
  std::vector<std::string> addresses;
  for (const auto& server : servers.servers) {
    const auto found = by_name.find(server.name);
    if (found == by_name.end())
      return error{errc::usage,
                   fmt::format("--address: none for server {}; give NAME=HOST:PORT for "
                               "each, or NAME=- for one that nobody can dial",
                               server.name)};
    addresses.push_back(found->second);
  }
  if (std::ranges::count(addresses, "") > 1)
    return error{
        errc::usage,
        "--address: two servers that nobody can dial cannot reach each other; give all but "
        "one an address, by forwarding a port of theirs if need be"};
  return addresses;
}

/// Two nodes greet each other in four ways over their link, and give up on who takes longer.
result<void> check_dilation(double dilation, const cluster& servers) {
  std::int64_t longest_ns = 1;
  for (std::size_t from = 0; from < servers.size(); ++from)
    for (std::size_t to = 0; to < servers.size(); ++to)
      if (from != to)
        longest_ns = std::max(longest_ns, servers.link(server_id{from}, server_id{to}).latency_ns);
  const auto most =
      static_cast<double>(net::session_limits{}.hello_ns) / (4 * static_cast<double>(longest_ns));
  if (dilation <= most) return {};
  return error{errc::out_of_range,
               fmt::format("--dilation: found {:g}, expected {:.0f} at most: with links of {:g} ms "
                           "nodes would not greet each other in time; choose less",
                           dilation, std::floor(most), static_cast<double>(longest_ns) * 1e-6)};
}

/// What is rehearsed. Links that are there can be neither slowed nor widened: only those of --netns are.
result<std::optional<rehearsal>> rehearsal_of(const up_command& options,
                                              const setup::world& loaded) {
  if (!options.rehearse) return std::optional<rehearsal>();
  rehearsal made;
  made.dilation = options.dilation;
  made.stretch = setup::least_stretch(loaded.costs, loaded.model->config(), loaded.loading.kv);
  if (options.netns) {
    if (auto fits = check_dilation(made.dilation, loaded.servers); !fits) return fits.error();
    return std::optional(made);
  }
  if (made.dilation != 1)
    return error{errc::usage,
                 "--dilation: only the links of --netns can be slowed likewise; add "
                 "--netns, or leave it out"};
  if (made.stretch != 1)
    return error{errc::usage,
                 fmt::format("--rehearse: rows of this model are up to {} times the bytes that {} "
                             "charges, and cannot be sent in fewer; choose the --costs of a larger "
                             "model, or --netns, whose links can be made as many times faster",
                             made.stretch, loaded.costs.name)};
  return std::optional(made);
}

result<planning::server_mask> spares_among(const cluster& servers,
                                           const std::vector<std::string>& names) {
  planning::server_mask mask = 0;
  for (const auto& name : names) {
    const auto found = std::ranges::find(servers.servers, name, &server_spec::name);
    if (found == servers.servers.end())
      return error{errc::usage,
                   fmt::format("--spare: found '{}', expected a server of the cluster file", name)};
    mask |= planning::server_bit(static_cast<std::size_t>(found - servers.servers.begin()));
  }
  return mask;
}

/// One that was made elsewhere may not know of them.
result<void> check_spares(const planning::plan& plan, const cluster& servers,
                          planning::server_mask spares) {
  const auto used =
      planning::needed(plan, planning::all_servers(servers.size()) & ~spares) & spares;
  if (used == 0) return {};
  return error{errc::mismatch,
               fmt::format("--spare: the plan has experts, or rows of others' requests, on {}; "
                           "leave --plan out, or name another",
                           servers.servers[static_cast<std::size_t>(std::countr_zero(used))].name)};
}

/// What the nodes will do, worked out once, here.
result<setup::cluster_folder_contents> plan_cluster(const up_command& options) {
  std::optional<setup::plan_file> given;
  if (!options.plan.empty()) {
    auto read = setup::read_plan_file(options.plan);
    if (!read) return read.error();
    given = std::move(*read);
  }
  auto request = options.planning.request(options.world, setup::expected_concurrency(4), given);
  if (!request) return request.error();
  const auto loaded = load_world_to_plan(options.world, given, *request);
  if (!loaded) return loaded.error();
  const auto spares = spares_among(loaded->servers, options.spares);
  if (!spares) return spares.error();
  request->options.without = *spares;
  const progress_display shown;
  const auto ready = setup::prepare(*loaded, *request, work());
  if (!ready) return ready.error();
  if (auto fits = check_spares(ready->service.chosen.plan, loaded->servers, *spares); !fits)
    return fits.error();
  setup::cluster_folder_contents contents;
  contents.spares.insert(options.spares.begin(), options.spares.end());
  contents.servers = loaded->servers;
  contents.plan = setup::plan_file_json(*loaded, *request, *ready);
  contents.profile = planning::profile_json(loaded->profile);
  contents.model = options.host_model.empty() ? options.world.model : options.host_model;
  contents.costs = options.world.costs;
  contents.kv_precision = options.world.kv_precision;
  contents.channel = options.channel;
  contents.most_positions = options.most_positions;
  contents.trace = options.trace;
  contents.load_period_ms = options.load_period_ms;
  contents.busy_poll_us = options.busy_poll_us;
  contents.measures_links = options.links == "measured";
  contents.log = options.log;
  const auto rehearsed = rehearsal_of(options, *loaded);
  if (!rehearsed) return rehearsed.error();
  contents.rehearsed = *rehearsed;
  const auto n = contents.servers.size();
  contents.threads = options.threads;
  if (options.threads == 0 && options.addresses.empty())
    contents.threads = std::max<std::size_t>(1, std::thread::hardware_concurrency() / n);
  if (options.netns) {
    cluster_network({options.folder}).address(contents);
    return contents;
  }
  auto addresses = options.addresses.empty() ? local_addresses(n, options.first_port)
                                             : given_addresses(options.addresses, contents.servers);
  if (!addresses) return addresses.error();
  contents.addresses = std::move(*addresses);
  return contents;
}

result<void> await_all(const cluster_folder& folder, const std::vector<node_file>& files,
                       const std::map<std::string, started_node>& started,
                       std::vector<node_state>& states) {
  const auto identity = setup::console_identity(folder);
  if (!identity) return identity.error();
  for (;;) {
    if (stop_requested())
      return error{errc::interrupted, "interrupted; the nodes that it started were ended"};
    for (const auto& [name, each] : started)
      if (::waitpid(each.pid, nullptr, WNOHANG) == each.pid)
        return error{errc::failed, fmt::format("node {} ended at its start; the end of {}:\n{}",
                                               name, folder.log(name).string(),
                                               last_lines(folder.log(name), each.log_begin))};
    states.clear();
    for (const auto& file : files) {
      states.push_back(ask(file, *identity));
      if (!states.back().is_up() && !file.listen.empty()) break;
    }
    judge_by_others(states);
    if (states.size() == files.size() && std::ranges::all_of(states, &node_state::is_up)) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

result<void> check_rehearsal(const up_command& options) {
  if (options.dilation == 1 || options.rehearse) return {};
  return error{errc::usage, "--dilation: nothing is rehearsed; add --rehearse, or leave it out"};
}

result<void> prepare(const up_command& options) {
  const cluster_folder folder{options.folder};
  std::error_code ignored;
  if (fs::exists(folder.cluster(), ignored))
    return error{errc::usage, fmt::format("{}: there is a cluster already; start it with `ordermoe "
                                          "cluster start --dir {}`, or remove the folder",
                                          options.folder, options.folder)};
  if (auto checked = check_rehearsal(options); !checked) return checked;
  auto planned = plan_cluster(options);
  if (!planned) return planned.error();
  return setup::write_cluster_folder(folder, *planned);
}

/// What is rehearsed in a folder; all nodes were told the same.
result<std::optional<rehearsal>> rehearsed_in(const cluster_folder& folder) {
  const auto files = setup::read_cluster_folder(folder);
  if (!files) return files.error();
  return files->front().rehearsed;
}

result<void> up(const up_command& options) {
  if (auto prepared = prepare(options); !prepared) return prepared;
  if (options.netns) {
    const cluster_network network({options.folder});
    const auto servers = read_cluster(cluster_folder{options.folder}.cluster());
    if (!servers) return servers.error();
    const auto rehearsed = rehearsed_in({options.folder});
    if (!rehearsed) return rehearsed.error();
    if (auto made = network.make(*servers, *rehearsed); !made) {
      network.remove();
      return made;
    }
  }
  return start_cluster(options.folder, options.world.json);
}

result<void> prepare_for_hosts(const up_command& options) {
  if (auto prepared = prepare(options); !prepared) return prepared;
  const auto files = setup::read_cluster_folder({options.folder});
  if (!files) return files.error();
  if (!options.world.json) {
    for (const auto& file : *files)
      fmt::print("{:<12} {}\n", file.name,
                 file.listen.empty() ? "dials only" : file.listen.front());
    return {};
  }
  auto all = nlohmann::ordered_json::array();
  for (const auto& file : *files)
    all.push_back(
        {{"name", file.name},
         {"config", (fs::path(options.folder) / "nodes" / file.name / "node.toml").string()},
         {"listen", file.listen}});
  fmt::print("{}\n", json_text(nlohmann::ordered_json{{"nodes", all}}, 2));
  return {};
}

result<void> down(const std::string& path, bool json) {
  const cluster_folder folder{path};
  const auto files = setup::read_cluster_folder(folder);
  if (!files) return files.error();
  std::vector<std::string> names;
  for (const auto& file : *files) names.push_back(file.name);
  const auto ended = end_processes(folder, names);
  if (const cluster_network network(folder); network.is_there()) network.remove();
  if (json)
    fmt::print("{}\n", json_text(nlohmann::ordered_json{{"ended", ended}}, 2));
  else if (ended.empty())
    fmt::print("no node ran\n");
  else
    fmt::print("{} nodes ended: {}\n", ended.size(), fmt::join(ended, ", "));
  return {};
}

/// "; s2 is drained: `ordermoe admin --dir edge resume s2` ends that" for each.
std::string drained_text(const std::vector<node_state>& states, const std::string& path) {
  std::string text;
  for (const auto& each : states)
    if (each.drained)
      text += fmt::format("; {0} is drained: `ordermoe admin --dir {1} resume {0}` ends that",
                          each.name, path);
  return text;
}

result<void> status(const std::string& path, bool json) {
  const auto files = setup::read_cluster_folder({path});
  if (!files) return files.error();
  const auto identity = setup::console_identity({path});
  if (!identity) return identity.error();
  std::vector<std::future<node_state>> asked;
  for (const auto& file : *files)
    asked.push_back(std::async(std::launch::async, [&] { return ask(file, *identity); }));
  std::vector<node_state> states;
  for (auto& each : asked) states.push_back(each.get());
  if (auto done = leave_out_absent(*files, states); !done) return done;
  judge_by_others(states);
  print_states(states, json);
  const auto n = std::ranges::count(states, true, &node_state::serves);
  if (static_cast<std::size_t>(n) == states.size()) return {};
  return error{errc::failed,
               fmt::format("{} of {} nodes serve{}", n, states.size(), drained_text(states, path))};
}

}  // namespace

result<void> start_cluster(const std::string& path, bool json) {
  const cluster_folder folder{path};
  const auto files = members_of(folder);
  if (!files) return files.error();
  std::vector<std::string> running, missing;
  for (const auto& file : *files)
    (runs(folder, file.name) ? running : missing).push_back(file.name);
  if (missing.empty())
    return error{errc::usage,
                 fmt::format("all nodes run already: {}; `ordermoe cluster status --dir {}` says "
                             "how they do, `ordermoe cluster down --dir {}` ends them",
                             fmt::join(running, ", "), path, path)};
  if (!running.empty())
    fmt::print(stderr, "ordermoe: starting {}; already there: {}\n", fmt::join(missing, ", "),
               fmt::join(running, ", "));
  std::map<std::string, started_node> started;
  std::vector<node_state> states;
  result<void> done;
  for (const auto& name : missing) {
    const auto log_begin = size_of(folder.log(name));
    const auto pid = start_node(folder, name);
    if (!pid) done = pid.error();
    if (!pid) break;
    started[name] = {*pid, log_begin};
  }
  // Relays are there as long as any node is.
  const cluster_network network(folder);
  const bool has_network = running.empty() && network.is_there();
  if (done && has_network)
    if (const auto servers = read_cluster(folder.cluster()); servers)
      done = network.start_relays(*servers, files->front().rehearsed);
  if (done) done = await_all(folder, *files, started, states);
  if (!done) {
    end_processes(folder, missing);
    if (has_network) network.remove();
    return done;
  }
  if (json)
    print_states(states, true);
  else
    fmt::print("{}\n", states.front().address);
  return {};
}

namespace {

/// What `up` and `prepare` are told alike.
void add_preparation(CLI::App& command, up_command& options) {
  options.world.add(command, true);
  options.world.add_choices(command);
  add_device(command, options.world.device);
  options.planning.add(command);
  command.add_option("--dir", options.folder, "Folder for configuration, certificates and logs")
      ->type_name(folder_value)
      ->required();
  command.add_option("--plan", options.plan, "Use this plan.json instead of making one")
      ->type_name(file_value);
  command.add_option("--spare", options.spares,
                     "A server of the cluster file that is no member yet: the plan places nothing "
                     "there until `ordermoe admin members add`");
  command
      .add_option("--max-positions", options.most_positions,
                  "Of a request, prompt and answer together; 0: twice the model's context")
      ->check(whole_from(0, 1 << 24))
      ->capture_default_str();
  command
      .add_option("--channel", options.channel,
                  "What carries the sessions: TLS over TCP (asio), or CAF's own transport with its "
                  "OpenSSL module, which vouches for no names (caf; docs/OPERATING.md)")
      ->check(CLI::IsMember({"asio", "caf"}))
      ->capture_default_str();
  add_log_flags(command, options.log, false);
  command.add_flag("--trace", options.trace, "Each node writes nodes/NAME/trace.jsonl");
  command.add_flag("--rehearse", options.rehearse,
                   "Devices wait the time that --costs charges, and frames are padded to the "
                   "charged bytes");
  command
      .add_option("--load-period-ms", options.load_period_ms,
                  "How often a server that works looks whether to tell the others of its waits; 0: "
                  "never")
      ->check(number_from(0, 60'000))
      ->capture_default_str();
  command
      .add_option(
          "--busy-poll-us", options.busy_poll_us,
          "How long a node looks for frames before it sleeps, where they usually come sooner; "
          "0: it sleeps at once")
      ->check(number_from(0, 10'000))
      ->capture_default_str();
  command
      .add_option("--links", options.links,
                  "Decide by links as they are measured, or as the cluster file has them (stated)")
      ->check(CLI::IsMember({"measured", "stated"}))
      ->capture_default_str();
}

void add_up(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "up", "Start one process on this machine for each server of a cluster file");
  auto options = std::make_shared<up_command>();
  add_preparation(command, *options);
  command
      .add_option("--threads", options->threads,
                  "Threads that each node computes with; 0: this machine's, shared between them")
      ->check(whole_from(0, 1024))
      ->capture_default_str();
  command.add_option("--port", options->first_port, "Nodes listen at free ports from here on")
      ->check(whole_from(1, 65'535))
      ->capture_default_str();
  command.add_flag("--netns", options->netns,
                   "Each node in a network namespace of its own, with the cluster file's rates and "
                   "delays between them; needs root, ip and tc");
  command
      .add_option("--dilation", options->dilation,
                  "With --rehearse and --netns: everything that is charged takes so many times as "
                  "long, so that a machine keeps up")
      ->check(number_from(least_dilation, most_dilation))
      ->capture_default_str();
  command.footer(
      "Prints the first node's address once all serve.\n"
      "Example:\n  ordermoe cluster up --model data/models/lineage --cluster "
      "data/clusters/edge8.toml --dir edge");
  set_body(command, [options] { return up(*options); });
}

void add_prepare(CLI::App& parent) {
  auto& command = *parent.add_subcommand(
      "prepare", "Write plan, certificates and node.toml of each host, and start nothing");
  auto options = std::make_shared<up_command>();
  add_preparation(command, *options);
  command
      .add_option("--address", options->addresses,
                  "NAME=HOST:PORT where each server listens; NAME=- for one that nobody can dial")
      ->required();
  command
      .add_option("--host-model", options->host_model,
                  "Where the model's folder is on the hosts; default: as here")
      ->type_name(folder_value);
  command.footer(
      "docs/OPERATING.md says what goes to which host.\n"
      "Example:\n  ordermoe cluster draw --servers 2 --out two.toml\n"
      "  ordermoe cluster prepare --model data/models/lineage --cluster two.toml --dir edge \\\n"
      "    --address s0=192.168.1.10:7400 --address s1=192.168.1.11:7400");
  set_body(command, [options] { return prepare_for_hosts(*options); });
}

}  // namespace

void add_cluster_processes(CLI::App& parent) {
  add_up(parent);
  add_prepare(parent);
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  const auto add = [&](const char* name, const char* what) -> CLI::App& {
    auto& command = *parent.add_subcommand(name, what);
    command.add_option("--dir", *path, "Folder that `cluster up` made")
        ->type_name(folder_value)
        ->required();
    command.add_flag("--json", *json, "Print JSON on standard output");
    command.footer(fmt::format("Example:\n  ordermoe cluster {} --dir edge", name));
    return command;
  };
  set_body(add("start", "Start the nodes of a folder on this machine, or those that are missing"),
           [path, json] { return start_cluster(*path, *json); });
  set_body(add("status", "Ask every node how it is; exit code 0 only where all serve"),
           [path, json] { return status(*path, *json); });
  set_body(add("down", "End every node"), [path, json] { return down(*path, *json); });
}

}  // namespace ordermoe::cli
