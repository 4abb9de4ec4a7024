#include "cli/cluster_processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <unistd.h>

#include <cstring>

extern char** environ;

namespace ordermoe::cli {

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

result<pid_t> start_program(const std::vector<std::string>& arguments, const process_input& input,
                            const std::filesystem::path& log) {
  std::vector<char*> words;
  for (const auto& word : arguments) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, input.path.c_str(), input.flags, 0);
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // It goes on when this command and its terminal are gone.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
  pid_t pid = 0;
  const int failed =
      ::posix_spawnp(&pid, words.front(), &files, &attributes, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  if (failed != 0)
    return error{errc::io,
                 fmt::format("{} cannot be started: {}", arguments.front(), std::strerror(failed))};
  return pid;
}

}  // namespace ordermoe::cli
