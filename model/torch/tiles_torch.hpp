#pragma once

#include <ATen/ATen.h>

#include <functional>

/// How rows go through LibTorch with the bits that each has alone.
///
/// A library's product gives a row other bits in a batch of another size, and in some sizes elsewhere
/// in the batch. So rows go in tiles of one number of rows, the last one filled up with zeros, and that
/// number is the largest at which a row was seen to have the same bits in each place of a tile and
/// beside zeros. One row at a time always is.
namespace ordermoe::model {

/// [n_rows, *] to [n_rows, *], row by row as far as anybody knows.
using row_function = std::function<at::Tensor(const at::Tensor& rows)>;

/// Whether each of `rows` has the same bits wherever it is among them, and beside zeros alone.
bool keeps_rows(const row_function& run, const at::Tensor& rows);

/// The rows of a tile through this function of rows [n, n_in] on the device.
std::int64_t rows_of_tile(const row_function& run, std::int64_t n_in, at::Device device);

/// run(row) of each row where the processor computes, whose vectors end where a tile's numbers do; else
/// of all at once.
at::Tensor each_row(const at::Tensor& rows, const row_function& run);

}  // namespace ordermoe::model
