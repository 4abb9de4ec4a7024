#include "cli/log_writer.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/common.hpp"
#include "config/files.hpp"
#include "config/json_text.hpp"

namespace ordermoe::cli {

namespace {

spdlog::level::level_enum spdlog_level(log_level of) {
  switch (of) {
    case log_level::debug:
      return spdlog::level::debug;
    case log_level::info:
      return spdlog::level::info;
    case log_level::warning:
      return spdlog::level::warn;
    case log_level::error:
      return spdlog::level::err;
    case log_level::off:
      break;
  }
  return spdlog::level::off;
}

/// What goes before a record, and after it; times are UTC.
std::string pattern_of(log_format format, const std::string& node) {
  constexpr auto time = "%Y-%m-%dT%H:%M:%S.%eZ";
  // A percent sign of the name's would begin a flag.
  std::string name;
  for (const char c : node) name += c == '%' ? std::string("%%") : std::string(1, c);
  if (format == log_format::json)
    return fmt::format(R"({{"time":"{}","level":"%l","node":{},%v}})", time,
                       json_text(nlohmann::json(name)));
  return fmt::format("{} %-7l {} %v", time, name);
}

spdlog::sink_ptr sink_of(const log_settings& settings) {
  if (settings.file.empty()) return std::make_shared<spdlog::sinks::stderr_sink_mt>();
  return std::make_shared<spdlog::sinks::basic_file_sink_mt>(settings.file);
}

/// A file that is there is appended to, so that its folder need not be writable. spdlog would make folders that are missing.
result<void> check_appendable(const std::string& file) {
  std::error_code status;
  if (file.empty() || (std::filesystem::is_regular_file(file, status) &&
                       ::faccessat(AT_FDCWD, file.c_str(), W_OK, AT_EACCESS) == 0))
    return {};
  if (auto writable = check_writable(file); !writable) return at("log", writable.error());
  return {};
}

/// Says once that records are lost, and not again for each.
std::function<void(const std::string&)> teller_of_loss(const std::string& file) {
  auto told = std::make_shared<std::atomic<bool>>(false);
  return [told, file](const std::string& problem) {
    if (told->exchange(true)) return;
    // As in "Failed flush to file FILE: No space left on device".
    const auto why = problem.rfind(": ");
    std::fputs(fmt::format("ordermoe: log: {}: cannot be written ({}): records are lost as long as "
                           "that is so\n",
                           file.empty() ? "standard error" : file,
                           why == std::string::npos ? problem : problem.substr(why + 2))
                   .c_str(),
               stderr);
  };
}

}  // namespace

result<log_outlet> open_log(const log_settings& settings, const std::string& node) try {
  if (auto good = check_appendable(settings.file); !good) return good.error();
  const auto writer = std::make_shared<spdlog::logger>(node, sink_of(settings));
  writer->set_error_handler(teller_of_loss(settings.file));
  writer->set_pattern(pattern_of(settings.format, node), spdlog::pattern_time_type::utc);
  // What is told at all is the outlet's to say.
  writer->set_level(spdlog::level::debug);
  writer->flush_on(spdlog::level::debug);
  return log_outlet(
      [writer, format = settings.format](const log_record& record) {
        writer->log(spdlog_level(record.level()),
                    spdlog::string_view_t(format == log_format::json ? json_members_of(record)
                                                                     : text_of(record)));
      },
      settings.level);
} catch (const spdlog::spdlog_ex& problem) {
  return error{errc::io, fmt::format("log: {}; name a file that can be written, or none for "
                                     "standard error",
                                     problem.what())};
}

result<log_outlet> open_log_as_told(const log_choice& flags, const log_choice& file,
                                    const std::string& node) {
  const auto environment =
      log_choice_of_environment([](const char* name) -> const char* { return std::getenv(name); });
  const auto chosen = choose_log(flags, environment, file);
  if (!chosen) return chosen.error();
  return open_log(*chosen, node);
}

void add_log_flags(CLI::App& command, log_choice& flags, bool with_file) {
  command
      .add_option("--log-level", flags.level,
                  "What the log has: debug, info, warning, error or off; else ORDERMOE_LOG_LEVEL, "
                  "[log] in node.toml, info")
      ->check(CLI::IsMember({"debug", "info", "warning", "error", "off"}));
  command
      .add_option("--log-format", flags.format,
                  "How: text, or json (an object a line); else ORDERMOE_LOG_FORMAT, [log], text")
      ->check(CLI::IsMember({"text", "json"}));
  if (with_file)
    command
        .add_option("--log-file", flags.file,
                    "Where, appended to; else ORDERMOE_LOG_FILE, [log], standard error")
        ->type_name(file_value);
}

}  // namespace ordermoe::cli
