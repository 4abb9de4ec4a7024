#include "net/relay/relay.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "cli/common.hpp"
#include "config/json_text.hpp"
#include "net/relay/command.hpp"

namespace ordermoe::cli {

namespace {

using net::direction;

struct relay_flags {
  std::string listen = "127.0.0.1:0", to;
  double delay_ms = 0, rate_mbit = 0, back_delay_ms = 0, back_rate_mbit = 0;
  std::uint64_t seed = 1, buffer_bytes = net::relay_options{}.least_buffer_bytes;
  bool allow_remote = false, no_commands = false, json = false;
};

constexpr std::size_t most_line_bytes = 4096;
constexpr int look_for_signals_ms = 100;

// ------------------------------------------------------------------------------------------ answers

/// One line, at once: whoever steers the relay waits for it.
void answer(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

double mbit_per_s(std::uint64_t bytes_per_s) {
  return static_cast<double>(bytes_per_s) * 8e-6;
}

nlohmann::ordered_json to_json(const net::link_conditions& now, const net::link_counters& counted,
                               std::uint64_t held_bytes) {
  return {{"delay_ms", static_cast<double>(now.delay_ns) / 1e6},
          {"rate_mbit_per_s", mbit_per_s(now.rate_bytes_per_s)},
          {"stalled", now.stalled},
          {"flip_chance", now.flip_chance},
          {"bytes_in", counted.bytes_in},
          {"bytes_out", counted.bytes_out},
          {"bytes_held", held_bytes},
          {"flipped_bits", counted.flipped_bits}};
}

nlohmann::ordered_json status(const net::relay& of) {
  const auto counted = of.counters();
  nlohmann::ordered_json j{{"connections", counted.connections},
                           {"accepted", counted.accepted},
                           {"refused", counted.refused},
                           {"unreached", counted.unreached}};
  for (const auto each : {direction::to, direction::back}) {
    const auto i = static_cast<std::size_t>(each);
    j[to_string(each)] = to_json(of.conditions(each), counted.links[i], counted.held_bytes[i]);
  }
  return j;
}

std::string plain(const nlohmann::ordered_json& status) {
  std::string text;
  for (const auto& [name, value] : status.items())
    text += value.is_object()
                ? fmt::format("{}{}: {}", text.empty() ? "" : "; ", name, plain(value))
                : fmt::format("{}{} {}", text.empty() ? "" : ", ", name, json_text(value));
  return text;
}

// ----------------------------------------------------------------------------------------- commands

/// Commands as they come, each answered by a line. Those that are not understood change nothing.
class steering {
 public:
  steering(net::relay& of, bool json) : relay_(of), json_(json) {}

  /// False after `quit`.
  bool take(const std::string& line) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) return true;
    const auto command = net::parse_relay_command(line);
    if (!command) return refuse(line, command.error());
    if (auto done = net::apply(*command, relay_); !done) return refuse(line, done.error());
    const bool asks = command->kind == net::relay_command::what::status;
    const auto figures = asks ? status(relay_) : nlohmann::ordered_json::object();
    if (json_) {
      nlohmann::ordered_json j{{"ok", true}, {"command", line}};
      j.update(figures);
      answer(json_text(j));
    } else {
      answer(asks ? plain(figures) : "ok: " + line);
    }
    return command->kind != net::relay_command::what::quit;
  }

  /// That every command was understood. Error: usage.
  result<void> all_were_good() const {
    if (n_refused_ == 0) return {};
    return error{errc::usage,
                 fmt::format("relay: {} of the commands not done; the first was '{}': {}",
                             n_refused_, first_refused_, why_.message)};
  }

 private:
  bool refuse(const std::string& line, const error& why) {
    if (n_refused_++ == 0) {
      first_refused_ = line.substr(0, 80);
      why_ = why;
    }
    const nlohmann::ordered_json j{{"ok", false}, {"command", line}, {"error", why.message}};
    answer(json_ ? json_text(j) : "error: " + why.message);
    return true;
  }

  net::relay& relay_;
  bool json_;
  std::size_t n_refused_ = 0;
  std::string first_refused_;
  error why_;
};

/// Whether commands can come from standard input, and its end ends the relay: not from /dev/null.
bool is_source_of_commands(int file) {
  struct stat facts {};
  if (::fstat(file, &facts) != 0) return false;
  return !S_ISCHR(facts.st_mode) || ::isatty(file) != 0;
}

/// Waits until there is something to read, or a while. False after a signal to stop.
bool wait_for_input(pollfd* input) {
  if (input != nullptr) input->revents = 0;
  ::poll(input, input != nullptr ? 1 : 0, look_for_signals_ms);
  return !stop_requested();
}

/// The lines that are complete; what is left of `text` is not. False after `quit`.
bool take_lines(std::string& text, steering& by) {
  std::size_t begin = 0;
  for (auto end = text.find('\n'); end != std::string::npos; end = text.find('\n', begin)) {
    if (!by.take(text.substr(begin, end - begin))) return false;
    begin = end + 1;
  }
  text.erase(0, begin);
  return true;
}

/// Until `quit`, the input's end or a signal. Error: usage, for lines too long.
result<void> follow_commands(steering& by) {
  pollfd input{STDIN_FILENO, POLLIN, 0};
  std::string text;
  char part[512];
  while (wait_for_input(&input)) {
    if (input.revents == 0) continue;
    const auto n = ::read(STDIN_FILENO, part, sizeof part);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {  // The last line may have no end.
      by.take(text);
      return {};
    }
    text.append(part, static_cast<std::size_t>(n));
    if (!take_lines(text, by)) return {};
    if (text.size() > most_line_bytes)
      return error{errc::usage, fmt::format("relay: found a line of more than {} bytes, expected "
                                            "commands, a line each",
                                            most_line_bytes)};
  }
  return {};
}

// ------------------------------------------------------------------------------------------ command

result<net::relay_options> options_of(const relay_flags& flags) {
  net::relay_options options;
  const auto listen = net::parse_endpoint(flags.listen);
  if (!listen) return at("--listen", listen.error());
  const auto target = net::parse_endpoint(flags.to);
  if (!target) return at("--to", target.error());
  if (!flags.allow_remote && !is_loopback(*listen))
    return error{errc::usage,
                 fmt::format("--listen: found {}, which other hosts may reach; expected a loopback "
                             "address such as 127.0.0.1, or --allow-remote",
                             flags.listen)};
  if (target->port == 0)
    return error{errc::usage, fmt::format("--to: found {}, expected a port above 0", flags.to)};
  options.listen = *listen;
  options.target = *target;
  options.from = flags.allow_remote ? net::reach::anywhere : net::reach::loopback;
  options.seed = flags.seed;
  options.least_buffer_bytes = flags.buffer_bytes;
  options.conditions[0].delay_ns = net::nanoseconds(flags.delay_ms);
  options.conditions[0].rate_bytes_per_s = net::bytes_per_s(flags.rate_mbit);
  options.conditions[1].delay_ns = net::nanoseconds(flags.back_delay_ms);
  options.conditions[1].rate_bytes_per_s = net::bytes_per_s(flags.back_rate_mbit);
  return options;
}

void say_where(const net::relay_options& options, std::uint16_t port, bool json) {
  const auto listen = to_string(net::endpoint{options.listen.address, port});
  const auto to = to_string(options.target);
  const nlohmann::ordered_json j{{"listen", listen}, {"port", port}, {"to", to}};
  answer(json ? json_text(j) : fmt::format("listening on {}, to {}", listen, to));
}

result<void> run_relay(const relay_flags& flags) {
  const auto options = options_of(flags);
  if (!options) return options.error();
  // Before the relay opens anything: that might become standard input where there was none.
  const bool steered = !flags.no_commands && is_source_of_commands(STDIN_FILENO);
  const auto started = net::relay::start(*options);
  if (!started) return started.error();
  say_where(*options, (*started)->port(), flags.json);
  if (!steered) {
    while (wait_for_input(nullptr)) {
    }
    return {};
  }
  steering by(**started, flags.json);
  if (auto followed = follow_commands(by); !followed) return followed;
  return by.all_were_good();
}

void add_conditions(CLI::App& command, relay_flags& flags) {
  const auto delay = number_from(0, net::most_delay_ms);
  const auto rate = number_from(0, net::most_rate_mbit);
  command
      .add_option("--delay-ms", flags.delay_ms,
                  "Each byte goes out to the target so long after it came in")
      ->check(delay)
      ->capture_default_str();
  command
      .add_option("--rate-mbit", flags.rate_mbit,
                  "All connections together, 10^6 bits a second; 0: no bound")
      ->check(rate)
      ->capture_default_str();
  command.add_option("--back-delay-ms", flags.back_delay_ms, "The same of bytes from the target")
      ->check(delay)
      ->capture_default_str();
  command.add_option("--back-rate-mbit", flags.back_rate_mbit, "The same of bytes from the target")
      ->check(rate)
      ->capture_default_str();
  command
      .add_option("--buffer-bytes", flags.buffer_bytes,
                  "What a connection may hold each way, where twice rate times delay is less")
      ->check(whole_from(1024, std::uint64_t{1} << 40))
      ->capture_default_str();
}

}  // namespace

void add_relay(CLI::App& app) {
  auto& command = *app.add_subcommand(
      "relay", "Pass TCP connections on as a distant or broken network would, to rehearse with");
  auto options = std::make_shared<relay_flags>();
  command
      .add_option("--listen", options->listen, "Address and port; port 0: any, which is printed")
      ->capture_default_str();
  command.add_option("--to", options->to, "Address and port of the target")->required();
  add_conditions(command, *options);
  add_seed(command, options->seed, "Of the bits that are flipped");
  command.add_flag("--allow-remote", options->allow_remote,
                   "--listen may be an address that other hosts reach");
  command.add_flag("--no-commands", options->no_commands,
                   "Do not read standard input; SIGINT or SIGTERM ends the relay");
  command.add_flag("--json", options->json, "Answer by a line of JSON each");
  command.footer(
      "Commands on standard input, a line each, while it runs:\n"
      "  delay to|back MS      rate to|back MBIT      stall to|back      release to|back\n"
      "  cut [after to|back BYTES] [refuse MS]        flip to|back [CHANCE]\n"
      "  status                quit\n"
      "The input's end ends it too. Exit code 2 where a command was not understood.\n"
      "Example:\n"
      "  ordermoe relay --listen 127.0.0.1:7100 --to 127.0.0.1:7000 --delay-ms 20 --rate-mbit 100");
  set_body(command, [options] { return run_relay(*options); });
}

}  // namespace ordermoe::cli
