#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/checkpoint/safetensors.hpp"
#include "model/kernels/kernels.hpp"

/// Quantised expert matrices as a checkpoint stores them, row by row; a matrix [n_out, n_in] named
/// X.weight in other checkpoints is here
///   int8: X.weight, I8 [n_out, n_in], and X.weight_scale, F32 [n_out]: a weight is its integer
///   times the scale of its row;
///   int4: X.weight, U8 [n_out, 16 * groups], and X.weight_scale, BF16 [n_out, groups], with groups
///   of 32 inputs, the last one padded with zeros: byte j of a group has input j in its low half
///   and input 16 + j in its high half, each the integer plus 8; a weight is its integer times the
///   scale of its group.
/// The integers and scales are those that pack() of kernels.hpp finds, so that loading them gives
/// the bits of quantising when loading.
namespace ordermoe::model {

/// Name of the scales of a matrix.
std::string scale_name(std::string_view matrix_name);

/// Whether a checkpoint's tensor of that name is a matrix of an expert, a shared one included.
bool is_expert_matrix(std::string_view name);

/// Types and shapes of the two tensors. Precondition: `kept` is quantised.
struct quantised_shape {
  tensor_type weight_type, scale_type;
  std::vector<std::size_t> weight, scale;
};
quantised_shape stored_shape(weight_storage kept, std::size_t n_out, std::size_t n_in);

/// Rows of both tensors, out of a block of a packed matrix. Precondition: layout.n_out is at most
/// packed_layout::block.
struct quantised_block {
  std::string weight, scale;
};
quantised_block from_packed(const packed_layout& layout, weight_storage kept,
                            std::span<const std::byte> packed);
/// The opposite.
void to_packed(const packed_layout& layout, weight_storage kept, std::span<const std::byte> weight,
               std::span<const std::byte> scale, std::span<std::byte> packed);

}  // namespace ordermoe::model
