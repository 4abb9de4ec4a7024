#include "model/kernels.hpp"

#include <algorithm>
#include <bit>

#include "config/error.hpp"
#include "model/kernel_sets.hpp"

namespace ordermoe::model {

namespace {

template <class Number, class Convert>
void pack_as(const packed_layout& layout, std::span<const float> row_major,
             std::span<Number> packed, Convert convert) {
  ORDERMOE_CHECK(row_major.size() == layout.n_out * layout.n_in, "a matrix of another shape");
  ORDERMOE_CHECK(packed.size() == layout.size(), "room for a packed matrix of another shape");
  const std::size_t padded = layout.padded_out();
  std::size_t at = 0;
  for (std::size_t start = 0; start < padded; start += packed_layout::block) {
    const std::size_t width = std::min(packed_layout::block, padded - start);
    for (std::size_t k = 0; k < layout.n_in; ++k)
      for (std::size_t o = start; o < start + width; ++o)
        packed[at++] = o < layout.n_out ? convert(row_major[o * layout.n_in + k]) : Number{};
  }
}

}  // namespace

void pack(const packed_layout& layout, std::span<const float> row_major, std::span<float> packed) {
  pack_as(layout, row_major, packed, [](float x) { return x; });
}

void pack(const packed_layout& layout, std::span<const float> row_major,
          std::span<std::uint16_t> packed) {
  pack_as(layout, row_major, packed, [](float x) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
  });
}

bool fits_bf16(std::span<const float> numbers) {
  return std::ranges::all_of(
      numbers, [](float x) { return (std::bit_cast<std::uint32_t>(x) & 0xffffu) == 0; });
}

std::vector<const kernel_set*> available_kernels() {
  std::vector<const kernel_set*> sets{&portable_kernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    sets.push_back(&avx2_kernels());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && sets.size() == 2)
    sets.push_back(&avx512_kernels());
#endif
  return sets;
}

const kernel_set& kernels() {
  static const kernel_set& best = *available_kernels().back();
  return best;
}

}  // namespace ordermoe::model
