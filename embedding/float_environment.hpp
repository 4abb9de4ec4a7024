#pragma once

#include <cfenv>

namespace ordermoe::embedding {

/// While it lives, this thread and those that it starts compute as they do by default, whatever the host has set: rounding to
/// nearest, denormal numbers as they are (a program that is linked with -ffast-math flushes them), no traps. Servers of one
/// cluster must get the same bits.
class default_float_environment {
 public:
  default_float_environment() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~default_float_environment() { std::fesetenv(&before_); }
  default_float_environment(const default_float_environment&) = delete;
  default_float_environment& operator=(const default_float_environment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace ordermoe::embedding
