#pragma once

#include "model/kernels/kernels.hpp"

/// The sets that kernels.cpp chooses from; the wider ones exist on x86-64 only.
namespace ordermoe::model {

const kernel_set& portable_kernels();
#if defined(__x86_64__)
const kernel_set& avx2_kernels();
const kernel_set& avx512_kernels();
const kernel_set& avx512_vnni_kernels();
const kernel_set& avx512_bf16_kernels();
const kernel_set& avx512_zen4_kernels();  ///< Of the same instructions, with other fetching.
#endif

/// Whether a set's products of rounded rows are those of the portable one, over some thousand
/// outputs of numbers that tell what the definition says from what else a processor's instruction
/// could do.
bool rounds_as_defined(const kernel_set& set);

}  // namespace ordermoe::model
