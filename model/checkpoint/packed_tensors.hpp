#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/matrix_source.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "model/kernels/kernels.hpp"

/// Weights that stand in their files as they are computed with, so that loading maps the files and
/// copies nothing.
///
/// Every matrix that rows are multiplied by is a tensor of one side: the bytes of packed_layout
/// (kernels.hpp, the same for every instruction set), then zeros up to whole pages. It begins at a
/// multiple of packed_alignment in its file. The type is the form: F32 fp32, BF16 bf16 by rows as
/// they are, I16 bf16 by rows rounded to bf16, I8 int8, U8 int4. Query, key and value are one matrix, the rows one below the other, as they are when
/// they are computed with; an output head that is the embedding is there once more, packed. The
/// embedding stays row by row, vectors and tables of positions as they were. A file says in its
/// metadata that its format is "ordermoe-packed-N", N the version of all this.
namespace ordermoe::model {

inline constexpr unsigned packed_version = 2;
inline constexpr std::size_t packed_alignment = 4096;

/// What the metadata of files in this version says.
std::string packed_format();

/// A tensor of a packed checkpoint.
struct packed_tensor {
  enum class role {
    expert,    ///< A matrix of an expert, shared ones included: load_options::expert_precision.
    dense,     ///< load_options::dense_precision.
    unrouted,  ///< Routers and shared experts' gates, which stay as they are stored.
    rows,      ///< The embedding: row-major, bf16 where that keeps every number.
    plain,     ///< As other checkpoints have it.
  };
  std::string name;
  role kind = role::plain;
  std::vector<std::string> parts;  ///< Of other checkpoints, one below the other.
  std::vector<std::size_t> shape;  ///< Of all parts together, row-major.
  std::string like;  ///< Of the matrix that is kept in the same storage, gate for up and the other
                     ///< way round; empty: of none.

  bool packed() const { return kind != role::rows && kind != role::plain; }
};
/// All tensors of a model, the packed ones first.
std::vector<packed_tensor> packed_tensors(const model_config& config);

/// Name of the matrix that a tensor of other checkpoints is in: that of all three for the query's,
/// key's and value's, else its own.
std::string packed_name(std::string_view name);

tensor_type packed_type(const kept_form& kept);
/// Numbers of that type.
std::size_t packed_size(const packed_layout& layout, weight_storage storage);

/// The matrix [n_out, n_in] where it is mapped. Errors, naming file and tensor: unsupported
/// (another version), mismatch (row by row, another size, not at a page of its file).
result<packed_matrix> packed_view(const tensor_view& view, std::size_t n_out, std::size_t n_in);

using tensor_map = std::map<std::string, tensor_view, std::less<>>;
/// Whether a file of them says so.
bool is_packed(const tensor_map& tensors);
/// Tensors of a packed checkpoint against a config.json: a problem for each that is missing, is not
/// as packed_tensors() and packed_view() have it, or has no place in the model. `place` is what
/// messages about missing ones name; `may_lack` may be missing (part.hpp). Reads no numbers.
std::vector<error> compare_packed(const model_config& config, const std::string& place,
                                  const tensor_map& tensors,
                                  const std::set<std::string, std::less<>>& may_lack = {});

/// Whether numbers, or the scales of int8 and int4, are finite: of outputs `first`, a multiple of
/// 64, to `end` - 1.
bool all_finite(const packed_matrix& matrix, std::size_t first, std::size_t end);

}  // namespace ordermoe::model
