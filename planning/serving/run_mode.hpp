#pragma once

namespace ordermoe::serving {

enum class run_mode {
  emulated,  ///< Virtual time under CAF's testing scheduler: deterministic, links and servers charged.
  local,     ///< Wall clock under CAF's normal scheduler, all servers in this process.
};

constexpr const char* to_string(run_mode mode) {
  return mode == run_mode::emulated ? "emulated" : "local";
}

}  // namespace ordermoe::serving
