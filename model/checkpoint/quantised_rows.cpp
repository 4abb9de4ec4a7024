#include "model/checkpoint/quantised_rows.hpp"

#include <algorithm>
#include <cstring>

#include "config/error.hpp"

namespace ordermoe::model {

const char* to_string(weight_storage storage) {
  switch (storage) {
    case weight_storage::fp32:
      return "fp32";
    case weight_storage::bf16:
      return "bf16";
    case weight_storage::int8:
      return "int8";
    case weight_storage::int4:
      return "int4";
  }
  return "";
}

namespace {

constexpr std::size_t group = packed_layout::group;
constexpr std::size_t half_group = group / 2;

/// Where an output's byte for an input is inside a block or a group of it.
std::size_t byte_at(std::size_t width, std::size_t output, std::size_t input) {
  return (input / 4 * width + output) * 4 + input % 4;
}

void check_block(const packed_layout& layout, weight_storage kept, std::size_t packed_bytes) {
  ORDERMOE_CHECK(
      quantised(kept) && layout.n_out <= packed_layout::block && packed_bytes == layout.bytes(kept),
      "no block of a quantised matrix");
}

}  // namespace

std::string scale_name(std::string_view matrix_name) {
  return std::string(matrix_name) + "_scale";
}

bool is_expert_matrix(std::string_view name) {
  return name.ends_with(".weight") && (name.find(".experts.") != std::string_view::npos ||
                                       name.find(".shared_expert.") != std::string_view::npos);
}

quantised_shape stored_shape(weight_storage kept, std::size_t n_out, std::size_t n_in) {
  const packed_layout layout{n_out, n_in};
  if (kept == weight_storage::int8)
    return {tensor_type::i8, tensor_type::f32, {n_out, n_in}, {n_out}};
  return {tensor_type::u8,
          tensor_type::bf16,
          {n_out, layout.n_groups() * half_group},
          {n_out, layout.n_groups()}};
}

quantised_block from_packed(const packed_layout& layout, weight_storage kept,
                            std::span<const std::byte> packed) {
  check_block(layout, kept, packed.size());
  const std::size_t width = layout.padded_out(), n_groups = layout.n_groups();
  const auto* bytes = reinterpret_cast<const char*>(packed.data());
  quantised_block rows;
  if (kept == weight_storage::int8) {
    rows.weight.resize(layout.n_out * layout.n_in);
    for (std::size_t o = 0; o < layout.n_out; ++o)
      for (std::size_t i = 0; i < layout.n_in; ++i)
        rows.weight[o * layout.n_in + i] = static_cast<char>(bytes[byte_at(width, o, i)] ^ '\x80');
    rows.scale.assign(bytes + n_groups * group * width, layout.n_out * 4);
    return rows;
  }
  rows.weight.resize(layout.n_out * n_groups * half_group);
  rows.scale.resize(layout.n_out * n_groups * 2);
  for (std::size_t g = 0; g < n_groups; ++g) {
    const char* from = bytes + g * width * (half_group + 2);
    for (std::size_t o = 0; o < layout.n_out; ++o) {
      char* target = rows.weight.data() + (o * n_groups + g) * half_group;
      for (std::size_t i = 0; i < half_group; ++i) target[i] = from[byte_at(width, o, i)];
      std::memcpy(rows.scale.data() + (o * n_groups + g) * 2, from + width * half_group + o * 2, 2);
    }
  }
  return rows;
}

void to_packed(const packed_layout& layout, weight_storage kept, std::span<const std::byte> weight,
               std::span<const std::byte> scale, std::span<std::byte> packed) {
  check_block(layout, kept, packed.size());
  const std::size_t width = layout.padded_out(), n_groups = layout.n_groups();
  const auto* from = reinterpret_cast<const char*>(weight.data());
  auto* bytes = reinterpret_cast<char*>(packed.data());
  if (kept == weight_storage::int8) {
    ORDERMOE_CHECK(weight.size() == layout.n_out * layout.n_in && scale.size() == layout.n_out * 4,
                   "int8 rows of another shape");
    // A weight of zero is 128.
    std::fill_n(bytes, n_groups * group * width, '\x80');
    for (std::size_t o = 0; o < layout.n_out; ++o)
      for (std::size_t i = 0; i < layout.n_in; ++i)
        bytes[byte_at(width, o, i)] = static_cast<char>(from[o * layout.n_in + i] ^ '\x80');
    char* scales = bytes + n_groups * group * width;
    std::fill_n(scales, width * 4, '\0');
    std::memcpy(scales, scale.data(), scale.size());
    return;
  }
  ORDERMOE_CHECK(weight.size() == layout.n_out * n_groups * half_group &&
                     scale.size() == layout.n_out * n_groups * 2,
                 "int4 rows of another shape");
  const auto* scales = reinterpret_cast<const char*>(scale.data());
  for (std::size_t g = 0; g < n_groups; ++g) {
    char* target = bytes + g * width * (half_group + 2);
    // Two weights of zero are 8 and 8.
    std::fill_n(target, width * half_group, '\x88');
    std::fill_n(target + width * half_group, width * 2, '\0');
    for (std::size_t o = 0; o < layout.n_out; ++o) {
      for (std::size_t i = 0; i < half_group; ++i)
        target[byte_at(width, o, i)] = from[(o * n_groups + g) * half_group + i];
      std::memcpy(target + width * half_group + o * 2, scales + (o * n_groups + g) * 2, 2);
    }
  }
}

}  // namespace ordermoe::model
