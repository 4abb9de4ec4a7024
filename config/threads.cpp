#include "config/threads.hpp"

#include <fmt/format.h>

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace ordermoe {

result<void> check_threads(std::size_t n) {
  std::atomic<bool> done{false};
  std::vector<std::jthread> threads;
  threads.reserve(n);
  bool all = true;
  try {
    for (std::size_t i = 0; i < n; ++i) threads.emplace_back([&] { done.wait(false); });
  } catch (const std::system_error&) {
    all = false;
  }
  done = true;
  done.notify_all();
  if (all) return {};
  return error{errc::failed, fmt::format("the system gives {} threads, expected {}; ask for fewer "
                                         "with --threads, or raise its limits",
                                         threads.size(), n)};
}

}  // namespace ordermoe
