#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "config/error.hpp"
#include "config/log.hpp"

/// How a process writes its log, by whoever says it first: a flag, then the environment, then the node file.
namespace ordermoe {

enum class log_format : std::uint8_t { text, json };
const char* to_string(log_format of);
std::optional<log_format> parse_log_format(std::string_view text);

struct log_settings {
  log_level level = log_level::info;
  log_format format = log_format::text;
  std::string file;  ///< Appended to; empty: standard error.
};

/// What one source says; what it says nothing of is left to the next.
struct log_choice {
  std::optional<std::string> level, format, file;
};

/// ORDERMOE_LOG_LEVEL, _FORMAT and _FILE; `get` as std::getenv. An empty variable says nothing.
log_choice log_choice_of_environment(const std::function<const char*(const char*)>& get);

/// Error: usage, naming the source, what was found and what is expected.
result<log_settings> choose_log(const log_choice& flags, const log_choice& environment,
                                const log_choice& file);

}  // namespace ordermoe
