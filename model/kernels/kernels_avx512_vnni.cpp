#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>

#include "model/kernels/kernel_sets.hpp"

// Everything below is compiled for AVX-512 with VNNI; kernels.cpp calls it only where the processor
// has both.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,prefer-vector-width=512")

#include "model/kernels/kernel_avx512_vnni.hpp"
#include "model/kernels/kernel_linear.hpp"

namespace ordermoe::model {
const kernel_set& avx512_vnni_kernels() {
  static constexpr kernel_set set = bodies::make_set<avx512_vnni>("avx512-vnni");
  return set;
}

}  // namespace ordermoe::model
#endif
