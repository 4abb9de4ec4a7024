#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "config/error.hpp"
#include "model/architecture/model_config.hpp"
#include "model/training/safetensors_file.hpp"
#include "model/training/text_source.hpp"
#include "model/training/train.hpp"

/// What train() has computed for it: the only part of training that needs LibTorch. The interface
/// crosses into the module (model/torch_module.hpp) as it stands.
namespace ordermoe::training {

/// References that outlive the call.
struct training_job {
  const train_options& options;  ///< Checked.
  const piece_encoder& pieces;
  const text_source& source;
  std::string text_hash;        ///< Of all that the weights are made from but the options.
  std::filesystem::path state;  ///< Folder of the checkpoints, which is there.
};

struct trained_model {
  model::model_config shape;
  std::vector<stored_tensor> tensors;    ///< In bf16, by their Hugging Face names.
  train_report report;                   ///< Without its folder.
  std::unique_ptr<trained_model> plain;  ///< As it was before the outages, where that is asked for.
};

/// What the module's entry ordermoe_torch_training returns.
class training_backend {
 public:
  virtual ~training_backend() = default;
  /// Errors: io; mismatch (the folder holds the state of another run); interrupted; unsupported
  /// where there is no such device; failed where LibTorch refuses or the loss is no number.
  virtual result<trained_model> run(const training_job& job) const = 0;
};

}  // namespace ordermoe::training
