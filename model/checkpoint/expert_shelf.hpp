#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/error.hpp"
#include "config/ids.hpp"
#include "model/architecture/model_config.hpp"
#include "model/architecture/tensor_plan.hpp"
#include "model/checkpoint/checksums.hpp"
#include "model/checkpoint/part.hpp"
#include "model/checkpoint/safetensors.hpp"

/// The experts that a host has on its disk: those of its model's folder, and those that came from other hosts since.
///
/// An expert goes from host to host as a safetensors file of its own: a header that both ends make alike, padded to a page,
/// then its matrices as they stand in the model's files, so that it is mapped and read like the model is. A part of a model
/// knows the size and SHA-256 of every expert's file (experts.json, by `model shard`, from the whole model): who receives
/// one believes that list and nobody else.
///
/// What comes is written to a folder of its own, and not kept in memory: it may be larger than the memory that is free, it
/// goes on where it was when either end starts again, and a host that starts again under a plan finds what the plan needs.
///
///   L-E.coming        some of it: begun, appended to, found again by the next process
///   L-E.safetensors   all of it, of the digest that it should have
namespace ordermoe::model {

inline constexpr const char* expert_list_name = "experts.json";

/// Of an expert's file.
struct expert_facts {
  std::uint64_t bytes = 0;
  std::string sha256;  ///< Hexadecimal.
  friend bool operator==(const expert_facts&, const expert_facts&) = default;
};

struct expert_list {
  std::string of;                                  ///< model_digest() of the model.
  std::vector<std::vector<expert_facts>> experts;  ///< [n_layers][n_experts]
};

/// Of all experts of a whole model; reads each once. Errors: interrupted, io.
result<expert_list> list_experts(const checkpoint& source, const model_config& config,
                                 std::string of, const work_watch& watch = {});
std::string expert_list_text(const expert_list& list);
/// FOLDER/experts.json; nothing where there is none. Errors: io; malformed or out_of_range, naming the member.
result<std::optional<expert_list>> read_expert_list(const std::filesystem::path& folder,
                                                    const model_config& config);

/// An expert's file as it would be, where its matrices lie.
class expert_image {
 public:
  /// Nothing where the checkpoint lacks a matrix of it. `all` is tensors_by_use() of the config, which names every tensor of the
  /// model: made once for all experts.
  static std::optional<expert_image> of(std::shared_ptr<const checkpoint> source,
                                        const model_config& config, const model_tensors& all,
                                        layer_id layer, expert_id expert);
  std::uint64_t bytes() const { return bytes_; }
  /// So many bytes from there. Precondition: there are so many. Error: io, naming the tensor.
  result<std::string> read(std::uint64_t offset, std::size_t n) const;

 private:
  std::shared_ptr<const checkpoint> source_;
  std::string header_;
  std::vector<const tensor_view*> tensors_;
  std::uint64_t bytes_ = 0;
};

/// An expert on its way here. One thread at a time.
class coming_expert {
 public:
  ~coming_expert();
  coming_expert(const coming_expert&) = delete;
  coming_expert& operator=(const coming_expert&) = delete;

  const expert_facts& facts() const { return facts_; }
  std::uint64_t bytes_there() const { return there_; }
  /// What is there, in order and in pieces. Error: io.
  result<void> each_piece(const std::function<result<void>(std::string_view)>& use) const;
  /// Error: io, naming the file and what to do.
  result<void> append(std::string_view bytes);
  /// What came is of no use. Error: io.
  result<void> begin_anew();

 private:
  friend class expert_shelf;
  coming_expert(std::filesystem::path path, expert_facts facts, int file, std::uint64_t there)
      : path_(std::move(path)), facts_(std::move(facts)), file_(file), there_(there) {}
  error problem(const char* step) const;

  std::filesystem::path path_;
  expert_facts facts_;
  int file_;
  std::uint64_t there_;
};

/// From any thread.
class expert_shelf {
 public:
  /// `folder` is the model's, `beside` where those go that come; made when one does. Errors: those of
  /// checkpoint::open_folder and read_part; mismatch where experts.json is of another model.
  static result<std::shared_ptr<expert_shelf>> open(const std::filesystem::path& folder,
                                                    std::filesystem::path beside);

  /// Whether it is on the disk, whole.
  bool has(layer_id layer, expert_id expert) const;
  bool is_in_model(layer_id layer, expert_id expert) const;
  /// Its file, where the expert is on the disk. Errors: not_found; those of opening it.
  result<expert_image> find(layer_id layer, expert_id expert) const;
  /// The file of one that came, compared with its digest the first time. Errors: not_found; mismatch, naming the file and what to do.
  result<std::shared_ptr<const checkpoint>> open_came(layer_id layer, expert_id expert) const;

  /// What it would be. Errors: out_of_range; unsupported, where the part was written without the list.
  result<expert_facts> facts(layer_id layer, expert_id expert) const;
  /// To receive it, or the rest of it. Errors: those of facts(); io.
  result<std::unique_ptr<coming_expert>> receive(layer_id layer, expert_id expert) const;
  /// All of it is there and is what it should be. Error: io.
  result<void> keep(layer_id layer, expert_id expert, std::unique_ptr<coming_expert> come);
  /// Removes those that came, or began to, and are not wanted any more.
  void keep_only(const std::function<bool(layer_id, expert_id)>& wanted);

  const model_config& config() const { return config_; }

 private:
  using key = std::pair<std::size_t, std::size_t>;
  expert_shelf() = default;
  void look_beside();
  std::filesystem::path path_of(const key& which, const char* end) const;

  std::filesystem::path folder_, beside_;
  model_config config_;
  model_tensors tensors_;  ///< Of the config.
  std::shared_ptr<const checkpoint> source_;
  std::optional<model_part> part_;
  std::optional<expert_list> list_;
  mutable std::mutex mutex_;  ///< Of what follows.
  mutable std::set<key> came_;
  mutable std::set<key> compared_;  ///< With their digests, by this process.
};

}  // namespace ordermoe::model
