#include <fmt/format.h>

#include "actors/server_actors.hpp"

namespace ordermoe::actors {

shard_actor spawn_shard(caf::actor_system& system, std::shared_ptr<const server_view> view,
                        std::uint32_t layer) {
  return system.spawn([view, layer](shard_actor::pointer self) -> shard_actor::behavior_type {
    return {[self, view, layer](expert_work& work) {
      for (const auto& item : work.call.items)
        if (!view->placed->index.hosts(view->id, layer, item.expert)) {
          view->run->books->fail(
              {errc::mismatch,
               fmt::format("server {} was asked to run expert {} of layer {}, which "
                           "the plan of epoch {} does not place there",
                           view->id, item.expert, layer, view->placed->plan.epoch)});
          return;
        }
      self->send(view->compute, std::move(work));
    }};
  });
}

}  // namespace ordermoe::actors
