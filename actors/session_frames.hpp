#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "actors/protocol/cluster_seat.hpp"
#include "net/session/session.hpp"

/// What a frame between servers is in a session, and what a session's events are to an edge server: the same over
/// sockets (cluster/node) and over simulated wires (session_network). No CAF type in this header.
namespace ordermoe::actors {

net::lane lane_of(wire::frame_kind kind);

/// Through send(lane, kind, request, attempt, epoch, payload), which says whether it took it.
template <class Send>
bool send_frame(wire::frame content, Send send) {
  return send(lane_of(content.kind), static_cast<std::uint8_t>(content.kind), content.request,
              content.attempt, static_cast<std::uint32_t>(content.epoch), std::move(content.bytes));
}

/// Without a receipt. Takes the event's payload. Nothing where only a log is told.
std::optional<peer_event> event_without_receipt(net::session_event& event, std::uint32_t from,
                                                std::uint32_t to);

/// What server `to` is told of an event of its session with server `from`. used(lane, bytes) is called once it has
/// taken the frame in.
template <class Used>
std::optional<peer_event> event_of(net::session_event& event, std::uint32_t from, std::uint32_t to,
                                   Used used) {
  auto made = event_without_receipt(event, from, to);
  if (made && made->kind == peer_event::what::frame)
    made->receipt = std::shared_ptr<const void>(
        nullptr,
        [used = std::move(used), of = event.header.of,
         bytes = net::session::frame_bytes(event.header)](const void*) { used(of, bytes); });
  return made;
}

}  // namespace ordermoe::actors
