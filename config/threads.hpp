#pragma once

#include <cstddef>

#include "config/error.hpp"

namespace ordermoe {

/// Whether the system gives this process so many threads more at once: starts them and ends them
/// again, for commands, before work that cannot do with fewer. Error: failed, saying how many it
/// gives.
result<void> check_threads(std::size_t n);

}  // namespace ordermoe
