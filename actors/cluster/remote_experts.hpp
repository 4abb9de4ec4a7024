#pragma once

#include <memory>
#include <semaphore>

#include "actors/cluster/client.hpp"
#include "model/expert_source.hpp"

/// The experts of a running cluster, as a model of this process runs them. No CAF type in this header.
namespace ordermoe::actors {

class remote_experts final : public model::expert_source {
 public:
  /// Rows of `width` numbers.
  remote_experts(std::shared_ptr<cluster_client> client, std::size_t width)
      : client_(std::move(client)), width_(width) {}
  remote_experts(const remote_experts&) = delete;
  remote_experts& operator=(const remote_experts&) = delete;

  /// In pieces of most_row_bytes, most_asks of them at once from all threads together, wherever the experts are.
  void run(layer_id layer, precision kept, std::span<const model::expert_rows> work) const override;

 private:
  std::shared_ptr<cluster_client> client_;
  std::size_t width_;
  /// Of all threads together.
  mutable std::counting_semaphore<most_asks> may_ask_{most_asks};
};

}  // namespace ordermoe::actors
