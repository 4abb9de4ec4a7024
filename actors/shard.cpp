#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "actors/compute.hpp"
#include "actors/server_actors.hpp"

namespace ordermoe::actors {

namespace {

struct shard_state {
  shard_actor::pointer self = nullptr;
  std::shared_ptr<const server_view> view;
  std::uint32_t layer = 0;

  /// Whether it may run; what may not is answered.
  bool is_mine(const expert_work& work) {
    const auto elsewhere = std::ranges::find_if(work.call.items, [this](const auto& item) {
      return !view->placed->index.hosts(view->id, layer, item.expert);
    });
    if (elsewhere == work.call.items.end()) return true;
    error why{errc::mismatch,
              fmt::format("server {} was asked to run expert {} of layer {}, "
                          "which the plan of epoch {} does not place there",
                          view->id, elsewhere->expert, layer, view->placed->plan.epoch)};
    if (work.lent)
      self->send(work.token, work_failed{std::move(why)});
    else
      send_output(self, *view, work, failed_output(work.call, why));
    return false;
  }

  void run(expert_work& work) {
    if (is_mine(work)) self->send(view->compute, std::move(work));
  }

  void run(expert_batch& batch) {
    std::erase_if(batch.calls, [this](const expert_work& work) { return !is_mine(work); });
    if (!batch.calls.empty()) self->send(view->compute, std::move(batch));
  }
};

}  // namespace

shard_actor spawn_shard(caf::actor_system& system, std::shared_ptr<const server_view> view,
                        std::uint32_t layer) {
  return system.spawn(
      [view = std::move(view), layer](
          shard_actor::stateful_pointer<shard_state> self) mutable -> shard_actor::behavior_type {
        auto& state = self->state;
        state.self = self;
        state.view = std::move(view);
        actor_census::count(state.view->context->census, self);
        state.layer = layer;
        return {[&state](expert_work& work) { state.run(work); },
                [&state](expert_batch& batch) { state.run(batch); }};
      });
}

}  // namespace ordermoe::actors
