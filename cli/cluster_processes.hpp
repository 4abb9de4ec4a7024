#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "config/error.hpp"

/// Processes that go on when the command that started them has ended.
namespace ordermoe::cli {

/// Of this command: /proc/self/exe.
std::string own_program();

struct process_input {
  std::filesystem::path path = "/dev/null";
  int flags = 0;  ///< As of open(2).
};

/// Its number. What it says goes to the end of `log`. Error: io.
result<pid_t> start_program(const std::vector<std::string>& arguments, const process_input& input,
                            const std::filesystem::path& log);

}  // namespace ordermoe::cli
