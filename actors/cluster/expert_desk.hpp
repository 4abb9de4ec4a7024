#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "actors/cluster/expert_messages.hpp"
#include "model/transformer.hpp"

/// Runs a node's experts on rows that no request brings: those of a calibration. On a thread of its own, one ask after
/// the other, beside what is served.
namespace ordermoe::actors {

class expert_desk {
 public:
  using answer_sink = std::function<void(expert_answer)>;

  /// `coarser` may be null: then experts run as they are kept only. `runs_as_stored`: whether that is as the model has
  /// them.
  expert_desk(std::shared_ptr<const model::transformer> model,
              std::shared_ptr<const model::expert_reader> coarser, bool runs_as_stored,
              std::size_t n_threads);
  ~expert_desk();

  /// Whether it can run this ask's expert, as the ask wants it kept. Error: out_of_range for an ask that no server can
  /// run, naming what was found.
  result<bool> takes(const expert_ask& ask) const;
  /// The sink is called once, on the desk's thread, but for what is left when it stops. False where most_waiting_asks
  /// wait already: nothing is done. Precondition: takes(ask).
  bool run(expert_ask ask, answer_sink sink);
  /// The model with other experts, for asks that begin later.
  void use(std::shared_ptr<const model::transformer> model);
  void stop();

 private:
  struct waiting_ask {
    expert_ask ask;
    answer_sink sink;
  };
  void work();
  expert_answer answer(const expert_ask& ask, const model::transformer& model);
  result<void> run_coarser(const expert_ask& ask, const model::transformer& model,
                           std::vector<float>& output);

  std::shared_ptr<const model::transformer> model_;
  std::shared_ptr<const model::expert_reader> coarser_;
  bool runs_as_stored_;
  std::size_t n_threads_;
  /// The coarser expert that ran last: rows of one expert come one message after the other.
  std::optional<std::tuple<std::uint32_t, std::uint32_t, precision>> latest_;
  model::expert_weights latest_weights_;
  mutable std::mutex mutex_;  ///< Of model_ and what follows.
  std::condition_variable wake_;
  std::deque<waiting_ask> waiting_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace ordermoe::actors
