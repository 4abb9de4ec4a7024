#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "actors/messages.hpp"
#include "config/cost_profile.hpp"
#include "model/kv_cache.hpp"
#include "model/transformer.hpp"

/// The tensor side of a server: KV caches and the model's pieces on batches. No actor in here; one
/// thread at a time.
namespace ordermoe::actors {

enum class work_kind : std::uint8_t { attend, expert, head };
const char* to_string(work_kind kind);

/// One expert call while its batches run.
struct running_call {
  expert_work work;
  std::vector<float> outputs;  ///< [items, hidden_size]
  std::size_t batches_left = 0;
};

struct expert_share {
  std::shared_ptr<running_call> call;
  std::uint32_t n = 0;  ///< Of call->work.call.items, how many are for this batch's expert.
};

/// Work of one kind that runs as one: all rows that waited for the same weights.
struct batch {
  work_kind kind = work_kind::attend;
  std::uint32_t layer = 0;
  std::uint32_t expert = 0;
  std::vector<attend_work> attends;
  std::vector<expert_share> experts;
  std::vector<head_work> heads;
  // Filled by device::run:
  std::vector<select_query> attended;   ///< One for each of `attends`.
  std::vector<head_done> head_results;  ///< One for each of `heads`.
  kv_written streamed;
  std::int64_t tensor_ns = 0;
  // Filled by the compute actor:
  std::int64_t start_ns = 0;
  std::int64_t rows = 0, flops = 0, bytes_read = 0;

  /// `expert_bytes`: of one expert on this server.
  void count_cost(const cost_profile& costs, std::int64_t expert_bytes, std::size_t hidden_size);
  /// Back to no work, with the memory of what it had.
  void clear();
};

class device {
 public:
  explicit device(std::shared_ptr<const model::transformer> model) : model_(std::move(model)) {}
  void run(batch& content);
  void store(const store_kv& content);
  void drop(std::uint64_t request);

 private:
  model::kv_cache& cache(std::uint64_t request, std::uint32_t layer, std::size_t capacity);
  void run_attention(batch& content);
  void run_experts(batch& content);
  void run_heads(batch& content);

  std::shared_ptr<const model::transformer> model_;
  /// By request, then layer; without capacity until used.
  std::unordered_map<std::uint64_t, std::vector<model::kv_cache>> caches_;
};

/// The outputs of a call whose batches have all run: rows whose slots were all here are weighed and
/// summed in rank order into one row.
expert_output assemble_output(const running_call& call, std::size_t hidden_size);

}  // namespace ordermoe::actors
