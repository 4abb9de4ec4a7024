#pragma once

#include "model/kernels/kernels.hpp"

/// The sets that kernels.cpp chooses from; the wider ones exist on x86-64 only.
namespace ordermoe::model {

const kernel_set& portable_kernels();
#if defined(__x86_64__)
const kernel_set& avx2_kernels();
const kernel_set& avx512_kernels();
const kernel_set& avx512_vnni_kernels();
#endif

}  // namespace ordermoe::model
