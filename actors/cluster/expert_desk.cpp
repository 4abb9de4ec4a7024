#include "actors/cluster/expert_desk.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "model/kernels/thread_team.hpp"

namespace ordermoe::actors {

expert_desk::expert_desk(std::shared_ptr<const model::transformer> model,
                         std::shared_ptr<const model::expert_reader> coarser, bool runs_as_stored,
                         std::size_t n_threads)
    : model_(std::move(model)),
      coarser_(std::move(coarser)),
      runs_as_stored_(runs_as_stored),
      n_threads_(n_threads),
      thread_([this] { work(); }) {}

expert_desk::~expert_desk() {
  stop();
}

void expert_desk::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

void expert_desk::use(std::shared_ptr<const model::transformer> model) {
  const std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

result<bool> expert_desk::takes(const expert_ask& ask) const {
  const std::lock_guard lock(mutex_);
  const auto& shape = model_->config();
  if (ask.layer >= shape.n_layers || ask.expert >= shape.n_experts ||
      ask.rows.size() % shape.hidden_size != 0)
    return error{errc::out_of_range,
                 fmt::format("an ask for expert {} of layer {} with {} numbers, expected one of {} "
                             "experts of {} layers and rows of {}",
                             ask.expert, ask.layer, ask.rows.size(), shape.n_experts,
                             shape.n_layers, shape.hidden_size)};
  if (!model_->hosts(layer_id{ask.layer}, expert_id{ask.expert})) return false;
  return ask.kept == precision::stored ? runs_as_stored_ : coarser_ != nullptr;
}

bool expert_desk::run(expert_ask ask, answer_sink sink) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || waiting_.size() >= most_waiting_asks) return false;
  waiting_.push_back({std::move(ask), std::move(sink)});
  wake_.notify_one();
  return true;
}

void expert_desk::work() {
  model::thread_team team(n_threads_);
  const model::team_scope scope(&team);
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (stopping_) return;
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    const auto model = model_;
    lock.unlock();
    next.sink(answer(next.ask, *model));
    lock.lock();
    if (!waiting_.empty() || !latest_) continue;
    // Memory for one more expert is taken only while it is used.
    latest_.reset();
    latest_weights_ = {};
  }
}

expert_answer expert_desk::answer(const expert_ask& ask, const model::transformer& model) {
  expert_answer made;
  made.ref = ask.ref;
  try {
    std::vector<float> output(ask.rows.size());
    // The plan may have changed since it was asked for.
    if (!model.hosts(layer_id{ask.layer}, expert_id{ask.expert}))
      throw model::expert_failure({errc::failed, fmt::format("expert {} of layer {} is not here "
                                                             "any more",
                                                             ask.expert, ask.layer)});
    if (ask.kept == precision::stored)
      model.run_expert(layer_id{ask.layer}, expert_id{ask.expert}, ask.rows, output);
    else if (auto ran = run_coarser(ask, model, output); !ran)
      throw model::expert_failure(ran.error());
    made.rows = std::move(output);
  } catch (const model::expert_failure& failed) {
    made.code = failed.why.code;
    made.problem = failed.why.message;
  } catch (const std::exception& failed) {
    made.problem = fmt::format("expert {} of layer {}: {}", ask.expert, ask.layer, failed.what());
  }
  return made;
}

result<void> expert_desk::run_coarser(const expert_ask& ask, const model::transformer& model,
                                      std::vector<float>& output) {
  const std::tuple which{ask.layer, ask.expert, ask.kept};
  if (latest_ != which) {
    latest_.reset();
    latest_weights_ = {};
    auto read = coarser_->read(layer_id{ask.layer}, expert_id{ask.expert}, ask.kept);
    if (!read) return read.error();
    latest_weights_ = std::move(*read);
    latest_ = which;
  }
  latest_weights_.apply(ask.rows.data(), output.data(),
                        ask.rows.size() / model.config().hidden_size);
  return {};
}

}  // namespace ordermoe::actors
