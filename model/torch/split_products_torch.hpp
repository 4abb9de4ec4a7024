#pragma once

#include <ATen/ATen.h>

/// Products of fp32 rows with wide matrices kept in bf16, where a device multiplies bf16 and adds in fp32 (matrix units do, many times as
/// fast as fp32): half the memory, and nothing of a row is rounded away.
///
/// A number in fp32 has 24 significant bits and one in bf16 has 8, so that each row is the exact sum of three rows in bf16;
/// all three go through the weights in one product, which reads them once. After Henry, Tang, Heinecke, "Leveraging the
/// bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations" (2019), with weights of one part. What is
/// lost: parts below bf16's least normal number, some 1e-38, and what a matrix unit drops where it adds: on one H200 results were off by up to 9e-6
/// of the largest (by 3e-6 in fp32).
namespace ordermoe::model {

/// Whether this LibTorch has such products on the device.
bool has_split_products(at::Device device);

/// The weights in bf16 where a split product is worth it and loses nothing, else as they are. [n_out, n_in], fp32, on a
/// device that has split products.
at::Tensor kept_for_split_products(at::Tensor weights);

/// [n, width] fp32 to [3 n, width] bf16: the lowest parts of all rows, the middle ones, the highest.
at::Tensor split_in_three(const at::Tensor& rows);

/// Rows [n, n_in] in fp32 by weights [n_out, n_in] in fp32, or in bf16 where the device has split products: [n, n_out] fp32.
at::Tensor product(const at::Tensor& rows, const at::Tensor& weights);

}  // namespace ordermoe::model
