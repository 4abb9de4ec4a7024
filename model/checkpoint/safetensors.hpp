#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"

/// Reading and writing weights in the safetensors format: eight bytes of header length, a JSON
/// header that gives each tensor's type, shape and byte range, then the bytes.
///
/// A file may come from anywhere, so nothing in it is believed before it is checked: the header is
/// bounded, products and sums are checked for overflow, ranges must fill the data without gap or
/// overlap, and file names in an index may not leave the folder.
namespace ordermoe::model {

/// i8 and u8 hold quantised weights (quantised_rows.hpp, packed_tensors.hpp), nothing else.
/// i16 is of packed checkpoints alone (packed_tensors.hpp).
enum class tensor_type { f32, f16, bf16, i16, i8, u8 };
const char* to_string(tensor_type type);
std::size_t bytes_per_number(tensor_type type);

/// Stored numbers widened to fp32. Precondition: stored holds numbers.size() numbers of the type.
void widen(tensor_type type, std::span<const std::byte> stored, std::span<float> numbers);
/// Whether none of the stored numbers is infinite or not a number.
bool all_finite(tensor_type type, std::span<const std::byte> stored);

/// One tensor of an open checkpoint; the bytes live as long as the checkpoint.
struct tensor_view {
  std::string name;
  tensor_type type = tensor_type::f32;
  std::vector<std::size_t> shape;  ///< Row-major; empty for a scalar.
  std::span<const std::byte> bytes;
  std::filesystem::path file;
  bool mapped = false;     ///< Whether the bytes are pages of the file.
  int descriptor = -1;     ///< Of the file, open as long as the checkpoint; -1 where not mapped.
  std::size_t offset = 0;  ///< Place of the first byte in the file.
  /// Version of packed_tensors.hpp that the file says it is written in; 0: none, row by row.
  unsigned packed = 0;

  std::size_t size() const;
  /// The numbers widened to fp32, row-major.
  std::vector<float> to_fp32() const;
};

/// The tensors of one file, or of all files of a sharded folder, mapped into memory.
class checkpoint {
 public:
  /// One .safetensors file. Errors: not_found, io, malformed, unsupported.
  static result<std::shared_ptr<const checkpoint>> open_file(const std::filesystem::path& path);
  /// FOLDER/model.safetensors, or the shards that FOLDER/model.safetensors.index.json names.
  static result<std::shared_ptr<const checkpoint>> open_folder(const std::filesystem::path& folder);

  const std::map<std::string, tensor_view, std::less<>>& tensors() const { return tensors_; }
  /// Null where there is no such tensor.
  const tensor_view* find(std::string_view name) const;
  /// The tensor. Errors: mismatch, where it is absent or of another shape.
  result<const tensor_view*> get(std::string_view name, std::span<const std::size_t> shape) const;
  /// The same in fp32.
  result<std::vector<float>> read(std::string_view name, std::span<const std::size_t> shape) const;
  /// What messages call the whole: the file or the folder.
  const std::filesystem::path& place() const { return place_; }
  /// Keeps the bytes of all tensors mapped when the checkpoint is gone.
  std::shared_ptr<const void> memory() const;

 private:
  class mapping;
  result<void> add_file(const std::filesystem::path& path);

  std::filesystem::path place_;
  std::vector<std::shared_ptr<const mapping>> mappings_;
  std::map<std::string, tensor_view, std::less<>> tensors_;
};

/// Tells the system that bytes of a mapped tensor are read soon: the disk works while the processor
/// does.
void expect_reading(const tensor_view& view, std::size_t first, std::size_t n);
/// Brings pages of a mapped tensor into memory and into this process's page tables. False where the
/// disk does not give them or the file has become shorter.
bool bring_in(const tensor_view& view, std::size_t first, std::size_t n);
/// Copies bytes of a mapped tensor out of its file; a reused target is cheaper than page table
/// entries that come and go. False, with the target undefined, where the system refuses or the file
/// has become shorter.
bool copy_stored(const tensor_view& view, std::size_t first, std::span<std::byte> target);
/// Tells the system that bytes of a mapped tensor are not needed before they are read again: whole
/// pages of them no longer count as this process's memory. They can still be read.
void finish_reading(const tensor_view& view, std::size_t first, std::size_t n);
/// Whether two tensors hold the same numbers, whatever they are stored as.
bool same_numbers(const tensor_view& a, const tensor_view& b);

/// With what the format in a file's metadata begins where packed_tensors.hpp describes it.
inline constexpr std::string_view packed_format_prefix = "ordermoe-packed-";

/// A model.safetensors.index.json: which file of the folder holds which tensor.
struct shard_index {
  std::map<std::string, std::string> file_of;  ///< By tensor; plain names of files.
  std::optional<std::uint64_t> total_size;     ///< Bytes of all tensors, where it is stated.

  /// Every file once, in order, with the tensors that it should hold.
  std::map<std::string, std::vector<std::string>> files() const;
};
inline constexpr const char* shard_index_name = "model.safetensors.index.json";
/// Reads FOLDER/model.safetensors.index.json without looking at the files it names. Errors:
/// not_found, io, malformed.
result<shard_index> read_shard_index(const std::filesystem::path& folder);

/// What ties a profile or a plan to a model: SHA-256 over config.json and, of every tensor by name,
/// type, shape, size and its first and last 4 KiB. Reads little even of a large model, and changes
/// when a model is trained on. Of a part of a model (part.hpp) it is that of the whole. Errors: those of read_file and
/// checkpoint::open_folder; mismatch where a part's tensors are not those that it was written with.
result<std::string> model_digest(const std::filesystem::path& folder);
/// The same of the text of a config.json and tensors.
std::string digest_of(const std::string& config,
                      const std::map<std::string, tensor_view, std::less<>>& tensors);

/// A tensor to write.
struct tensor_data {
  std::string name;
  tensor_type type = tensor_type::f32;
  std::vector<std::size_t> shape;
  std::string bytes;  ///< Little-endian numbers, row-major.
};

/// fp32 numbers as bytes of a type, rounded to nearest, ties to even. Precondition: the type is no
/// integer.
std::string to_bytes(std::span<const float> numbers, tensor_type type);

/// Writes one file in one step: wider types first (so that all numbers are aligned), then by name.
/// Errors: io; out_of_range where bytes and shape disagree or a name comes twice.
result<void> write_safetensors(const std::filesystem::path& path,
                               std::span<const tensor_data> tensors);

}  // namespace ordermoe::model
