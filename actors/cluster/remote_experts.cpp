#include "actors/cluster/remote_experts.hpp"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

namespace ordermoe::actors {

namespace {

/// What is on its way for one call of run(), which returns only once all of it is back: answers are written to memory
/// of its caller.
class pieces {
 public:
  void begin() {
    const std::lock_guard lock(mutex_);
    ++under_way_;
  }

  void end(const expert_answer& answer, std::span<float> output) {
    const std::lock_guard lock(mutex_);
    if (!answer.problem.empty())
      fail({answer.code, answer.problem});
    else if (answer.rows.size() != output.size())
      fail({errc::malformed, "a node answered with another number of rows than it was asked for"});
    else
      std::ranges::copy(answer.rows, output.begin());
    --under_way_;
    changed_.notify_all();
  }

  bool has_failed() {
    const std::lock_guard lock(mutex_);
    return problem_.has_value();
  }

  std::optional<error> await_all() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return under_way_ == 0; });
    return problem_;
  }

 private:
  void fail(error why) {
    if (!problem_) problem_ = std::move(why);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t under_way_ = 0;
  std::optional<error> problem_;
};

}  // namespace

void remote_experts::run(layer_id layer, precision kept,
                         std::span<const model::expert_rows> work) const {
  const auto most = std::max<std::size_t>(1, most_row_bytes / sizeof(float) / width_) * width_;
  pieces all;
  for (const auto& each : work)
    for (std::size_t first = 0; first < each.normed.size() && !all.has_failed(); first += most) {
      const auto n = std::min(most, each.normed.size() - first);
      const auto input = each.normed.subspan(first, n);
      expert_ask ask;
      ask.layer = static_cast<std::uint32_t>(layer.index());
      ask.expert = static_cast<std::uint32_t>(each.expert.index());
      ask.kept = kept;
      ask.rows.assign(input.begin(), input.end());
      may_ask_.acquire();
      all.begin();
      client_->run_expert(std::move(ask), [this, &all, output = each.output.subspan(first, n)](
                                              const expert_answer& answer) {
        may_ask_.release();
        all.end(answer, output);
      });
    }
  if (auto problem = all.await_all()) throw model::expert_failure(std::move(*problem));
}

}  // namespace ordermoe::actors
