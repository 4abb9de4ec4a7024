#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "actors/protocol/messages.hpp"
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
  std::vector<float> outputs;    ///< [items, hidden_size]
  std::size_t batches_left = 0;  ///< Not computed yet; the device counts it down.
  std::optional<error> failed;   ///< One of its batches did.
};

struct expert_share {
  std::shared_ptr<running_call> call;
  std::uint32_t n = 0;  ///< Of call->work.call.items, how many are for this batch's expert.
};

/// Attention that its token waits for in vain.
struct unserved_work {
  token_actor token;
  error why;
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
  std::vector<select_query> attended;   ///< One for each of `attends` that can go on.
  std::vector<head_done> head_results;  ///< One for each of `heads`.
  kv_written streamed;
  std::vector<std::shared_ptr<running_call>> complete;  ///< Calls whose last batch this was.
  std::vector<unserved_work> unserved;                  ///< Of what `attends` had.
  std::int64_t tensor_ns = 0;
  std::optional<error> failed;  ///< Nothing came of it.
  // Filled by whoever starts and ends it:
  std::int64_t start_ns = 0, end_ns = 0;
  std::int64_t rows = 0, flops = 0, bytes_read = 0;
  std::size_t overtaken = 0;  ///< How many that came later were taken while it waited.

  /// `expert_bytes`: of one expert on this server.
  void count_cost(const cost_profile& costs, std::int64_t expert_bytes, std::size_t hidden_size);
  /// Once it has run: whether anything can go on because of it.
  bool matters() const { return kind != work_kind::expert || !complete.empty(); }
  /// Of the work in it, before it runs.
  std::size_t waiting_rows() const;
  /// Back to no work, with the memory of what it had.
  void clear();
};

/// Batches that wait for a device. One thread at a time.
///
/// Rows at different layers share no weights. So those that are farthest on go first, whoever comes later waits at its layer
/// until they come there again, and all go on as one. Steps are the attention of a layer, its experts, the next attention, ...,
/// the head; of two steps that follow each other the earlier one goes first, as its rows can join the other's. Batches of one
/// step go as they came. One that as many have overtaken as a pass through all weights takes goes before all others.
class batch_queue {
 public:
  explicit batch_queue(const model::model_config& shape)
      : n_layers_(shape.n_layers), n_experts_(shape.n_experts) {}

  bool empty() const { return waiting_.empty(); }
  /// The batch that waits for these weights, at the end of the queue where there was none.
  batch& joinable(work_kind kind, std::uint32_t layer, std::uint32_t expert);
  /// The next, which nothing joins any more; null where none waits.
  std::shared_ptr<batch> take();
  /// Forgets attention that waits for rows of this request.
  void drop(std::uint64_t request);
  /// Keeps the memory of a batch that is done for one to come, unless somebody else holds it.
  void recycle(std::shared_ptr<batch> done);
  const std::deque<std::shared_ptr<batch>>& waiting() const { return waiting_; }

 private:
  /// Each layer has one attention and its experts; the head comes last.
  std::size_t index_of(work_kind kind, std::uint32_t layer, std::uint32_t expert) const {
    if (kind == work_kind::head) return n_layers_ * (n_experts_ + 1);
    return layer * (n_experts_ + 1) + (kind == work_kind::expert ? expert + 1 : 0);
  }

  /// In waiting_; some batch waits.
  std::size_t next() const;
  std::size_t step_of(const batch& waiting) const {
    if (waiting.kind == work_kind::head) return 2 * n_layers_;
    return 2 * std::size_t{waiting.layer} + (waiting.kind == work_kind::expert ? 1 : 0);
  }

  std::size_t n_layers_, n_experts_;
  std::deque<std::shared_ptr<batch>> waiting_;
  std::vector<batch*> open_;  ///< Those of waiting_, by index_of.
  std::vector<std::shared_ptr<batch>> spare_;
};

class device {
 public:
  /// `leaves_unread`: of a decoder's given positions behind which nobody reads logits, the last layer computes keys and values
  /// alone, and they run no expert there.
  explicit device(std::shared_ptr<const model::transformer> model, bool leaves_unread = false)
      : model_(std::move(model)), leaves_unread_(leaves_unread) {}
  /// Where it throws, the batch has failed, and the calls that wait for it.
  void run(batch& content);
  /// Where rows cannot be kept, the request is not served any more until drop().
  void store(const store_kv& content);
  void drop(std::uint64_t request);
  /// The same model with other experts, from the next batch on.
  void use(std::shared_ptr<const model::transformer> model) { model_ = std::move(model); }

 private:
  model::kv_cache& cache(std::uint64_t request, std::uint32_t layer, std::size_t capacity);
  bool can_attend(const batch& content, const attend_work& work) const;
  void compute(batch& content);
  static void fail(batch& content, error what);
  void set_apart_incomplete(batch& content);
  void run_attention(batch& content);
  void run_experts(batch& content);
  void run_heads(batch& content);
  std::shared_ptr<std::vector<float>> logit_room();

  bool is_unread(const wire::request_terms& terms, std::size_t layer, std::size_t position) const;

  std::shared_ptr<const model::transformer> model_;
  bool leaves_unread_;
  std::unordered_set<std::uint64_t> incomplete_;  ///< Requests that lost rows.
  /// By request, then layer; without capacity until used.
  std::unordered_map<std::uint64_t, std::vector<model::kv_cache>> caches_;
  std::vector<std::shared_ptr<std::vector<float>>> logit_rooms_;  ///< Of batches before.
};

/// No infinity, no NaN: no other server takes in what has one.
bool all_finite(std::span<const float> numbers);

/// The outputs of a call whose batches have all run: rows whose slots were all here are weighed and
/// summed in rank order into one row.
wire::expert_output assemble_output(const running_call& call, std::size_t hidden_size);
/// What goes in its place where the call cannot be run.
wire::expert_output failed_output(const wire::expert_call& call, const error& why);

}  // namespace ordermoe::actors
