#pragma once

#include <cstring>

#include "model/kernels/kernel_avx512.hpp"

/// AVX-512 with VNNI's products of bytes, for the sources that are compiled for both.
namespace ordermoe::model {
namespace {

struct avx512_vnni : avx512 {
  static ints dot(ints sums, bytes w, const std::int8_t* values) {
    std::int32_t four;
    std::memcpy(&four, values, sizeof four);
    return _mm512_dpbusd_epi32(sums, w, _mm512_set1_epi32(four));
  }
};

}  // namespace
}  // namespace ordermoe::model
