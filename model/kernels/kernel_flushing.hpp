#pragma once

#include <immintrin.h>

/// For the sources of x86-64's instruction sets, after their target options are in force; every
/// source has its own type.
namespace ordermoe::model {
namespace {

/// While it lives, denormal numbers are zeros of their sign in this thread's vector arithmetic, as
/// inputs and as results.
class flushing {
 public:
  flushing() { _mm_setcsr(before_ | results_are_zero | inputs_are_zero); }
  ~flushing() { _mm_setcsr(before_); }
  flushing(const flushing&) = delete;
  flushing& operator=(const flushing&) = delete;

 private:
  static constexpr unsigned results_are_zero = 0x8000, inputs_are_zero = 0x0040;
  unsigned before_ = _mm_getcsr();
};

}  // namespace
}  // namespace ordermoe::model
