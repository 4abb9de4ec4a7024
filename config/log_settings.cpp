#include "config/log_settings.hpp"

#include <fmt/format.h>

#include <array>

namespace ordermoe {

namespace {

struct source {
  const log_choice& says;
  const char *level, *format;  ///< As messages name them.
};

template <class Value, class Parse>
result<void> read(const std::optional<std::string>& text, const char* name, const char* expected,
                  Parse parse, Value& into) {
  const auto value = parse(*text);
  if (!value)
    return error{errc::usage, fmt::format("{}: found '{}', expected one of {}; correct it", name,
                                          *text, expected)};
  into = *value;
  return {};
}

}  // namespace

const char* to_string(log_format of) {
  return of == log_format::json ? "json" : "text";
}

std::optional<log_format> parse_log_format(std::string_view text) {
  if (text == "text") return log_format::text;
  if (text == "json") return log_format::json;
  return std::nullopt;
}

log_choice log_choice_of_environment(const std::function<const char*(const char*)>& get) {
  const auto of = [&](const char* name) -> std::optional<std::string> {
    const char* value = get(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  };
  return {of("ORDERMOE_LOG_LEVEL"), of("ORDERMOE_LOG_FORMAT"), of("ORDERMOE_LOG_FILE")};
}

result<log_settings> choose_log(const log_choice& flags, const log_choice& environment,
                                const log_choice& file) {
  log_settings chosen;
  // The last that says something stands.
  for (const auto& each : {source{file, "[log] level", "[log] format"},
                           source{environment, "ORDERMOE_LOG_LEVEL", "ORDERMOE_LOG_FORMAT"},
                           source{flags, "--log-level", "--log-format"}}) {
    if (each.says.level)
      if (auto good = read(each.says.level, each.level, "debug, info, warning, error, off",
                           parse_log_level, chosen.level);
          !good)
        return good.error();
    if (each.says.format)
      if (auto good =
              read(each.says.format, each.format, "text, json", parse_log_format, chosen.format);
          !good)
        return good.error();
    if (each.says.file) chosen.file = *each.says.file;
  }
  return chosen;
}

}  // namespace ordermoe
