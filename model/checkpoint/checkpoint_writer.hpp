#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/error.hpp"
#include "model/checkpoint/safetensors.hpp"

/// Writing a whole model's folder from front to back, in little memory whatever the model.
///
/// Everything goes to a folder beside the target that is renamed once all of it is on the disk, so
/// that an interrupt, a full disk or a crash leaves no target, never half of one. A crash may leave
/// the folder beside it (TARGET.XXXXXX), which nothing reads.
namespace ordermoe::model {

/// Most bytes of tensors in one file, where nobody says otherwise.
inline constexpr std::size_t default_shard_bytes = std::size_t{4} << 30;

/// A tensor that a checkpoint is going to have.
struct tensor_entry {
  std::string name;
  tensor_type type = tensor_type::bf16;
  std::vector<std::size_t> shape;

  /// Of its numbers. Precondition: the product fits.
  std::uint64_t n_bytes() const;
};

/// What stands before these tensors in a file of their own: the length, the JSON and blanks up to a whole page.
std::string safetensors_header(std::span<const tensor_entry> tensors, const std::string& format);

struct written_model {
  std::size_t n_tensors = 0;
  std::size_t n_files = 0;  ///< Of weights.
  std::uint64_t weight_bytes = 0;
};

/// Refuses a target that is there and is no empty folder. Error: io.
result<void> check_free(const std::filesystem::path& target);

class checkpoint_writer {
 public:
  /// Tensors go to files in their order, to a new file where one would have more than shard_bytes;
  /// each file's first tensor begins at a multiple of 4096 bytes.
  /// `format` is what the files' metadata says: "pt" where others may read them. Errors: io (the
  /// target is there and not empty, or the disk has no room).
  static result<std::unique_ptr<checkpoint_writer>> begin(const std::filesystem::path& target,
                                                          std::vector<tensor_entry> tensors,
                                                          std::size_t shard_bytes,
                                                          std::string format = "pt");
  /// Removes what was written unless finish() succeeded.
  ~checkpoint_writer();
  checkpoint_writer(const checkpoint_writer&) = delete;
  checkpoint_writer& operator=(const checkpoint_writer&) = delete;

  /// All tensors in the order in which append() wants their bytes.
  const std::vector<tensor_entry>& tensors() const;
  /// The next bytes of the tensors, little-endian and row-major; a call may not reach into another
  /// tensor's. Errors: io.
  result<void> append(std::string_view bytes);
  /// Where the folder is until finish(); what append() and add_file() were given is there.
  const std::filesystem::path& folder() const;
  /// Another file of the folder. Errors: io.
  result<void> add_file(const std::string& name, std::string_view bytes);
  /// One that may be replaced later, and is not in SHA256SUMS. Errors: io.
  result<void> add_unlisted_file(const std::string& name, std::string_view bytes);
  /// Writes the index where there are several files of weights, and SHA256SUMS; renames the folder.
  /// Precondition: every tensor has its bytes. Errors: io.
  result<written_model> finish();

 private:
  struct state;
  explicit checkpoint_writer(std::unique_ptr<state> content);
  std::unique_ptr<state> state_;
};

}  // namespace ordermoe::model
