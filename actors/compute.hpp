#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "actors/context.hpp"
#include "actors/device/device_thread.hpp"
#include "net/wire/codec.hpp"

namespace ordermoe::actors {

/// The one place of a server where tensor work runs. Batches wait in FIFO order of their first
/// arrival; what needs the same weights (the attention of a layer, one expert, the head) joins the
/// batch that still waits. A batch keeps the server busy for max(FLOPs / F, bytes read / memory
/// bandwidth), weights read once.
///
/// Virtual time: tensors are computed when the batch starts, results are sent when its charged time
/// has passed. Wall clock: `thread` computes, results are sent when it is done; it must live until
/// the system's actors are done. Precondition: a thread if and only if the clock is the wall's.
///
/// KV: rows are kept for the attempts that the edge server opened, and for no others. A sequence's rows at
/// a layer are known to be here from the moment their attention is queued here or their frame was
/// stored; work whose earlier rows are not all here waits, and goes on as soon as they are.
///
/// A batch that fails (memory is exhausted) fails those who wait for it and nobody else.
compute_actor spawn_compute(caf::actor_system& system,
                            std::shared_ptr<const service_context> context, std::uint32_t id,
                            std::shared_ptr<device_thread> thread);

/// The time in ns that a batch keeps a server busy; fills its counts.
std::int64_t charge(const service_context& context, std::uint32_t server, batch& content);

/// An output goes to where the call says that it is awaited.
template <class Self>
void send_output(Self* self, const server_view& view, const expert_work& work,
                 wire::expert_output output) {
  if (work.call.reply_to != view.id)
    view.send(self, work.call.reply_to, wire::encode(output), work.epoch);
  else if (work.token)
    self->send(work.token, arrived_output{std::move(output), view.id});
  else
    self->send(view.server, arrived_output{std::move(output), view.id});
}

}  // namespace ordermoe::actors
