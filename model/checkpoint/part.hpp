#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "config/ids.hpp"
#include "model/architecture/model_config.hpp"
#include "model/checkpoint/checkpoint_writer.hpp"
#include "model/checkpoint/checksums.hpp"

/// A folder with what one server needs of a model: all that is no expert, and some of the experts.
///
/// It has the model's own config.json, tokenizer and tensors, and a part.json that says of which model it is: the
/// model's digest, so that plans and profiles fit it as they fit the whole, and a digest of the tensors that are here,
/// which is compared whenever the model's is asked for. Its experts.json has the size and SHA-256 of every expert of the
/// whole, by which those that come from other hosts are checked (expert_shelf.hpp).
namespace ordermoe::model {

inline constexpr const char* part_name = "part.json";

struct model_part {
  std::string of;                                   ///< model_digest() of the whole.
  std::string digest;                               ///< Likewise, over the tensors that are here.
  std::string server;                               ///< For whom it was written.
  std::vector<std::vector<std::uint32_t>> experts;  ///< [n_layers] those that are here, ascending.

  bool has(layer_id layer, expert_id expert) const;
};

/// Nothing where the folder is a whole model's. Errors: io; malformed or out_of_range, naming the member of part.json.
result<std::optional<model_part>> read_part(const std::filesystem::path& folder);

/// The tensors of experts that a part does not have, by name.
std::set<std::string, std::less<>> left_out(const model_config& config, const model_part& part);

/// Writes a part's folder, whose experts hosts() chooses, in one step (checkpoint_writer.hpp); tensors stay as they are
/// stored. Reads the whole model once, and what goes into the part again. Memory: some MiB. Errors: io; interrupted; unsupported where the folder is a part itself; those of reading.
result<written_model> write_part(const std::filesystem::path& folder,
                                 const std::filesystem::path& target, const std::string& server,
                                 const std::function<bool(layer_id, expert_id)>& hosts,
                                 const work_watch& watch = {});

}  // namespace ordermoe::model
