#include "actors/session_frames.hpp"

namespace ordermoe::actors {

net::lane lane_of(wire::frame_kind kind) {
  switch (kind) {
    case wire::frame_kind::kv:
      return net::lane::kv;
    case wire::frame_kind::load:
      return net::lane::load;
    default:
      return net::lane::token;
  }
}

namespace {

wire::frame frame_of(net::session_event& event, std::uint32_t from, std::uint32_t to) {
  wire::frame content;
  content.kind = static_cast<wire::frame_kind>(event.header.kind);
  content.from = from;
  content.to = to;
  content.epoch = event.header.epoch;
  content.request = event.header.request;
  content.attempt = event.header.attempt;
  content.bytes = std::move(event.text);
  return content;
}

}  // namespace

std::optional<peer_event> event_without_receipt(net::session_event& event, std::uint32_t from,
                                                std::uint32_t to) {
  using what = net::session_event::what;
  peer_event made;
  made.server = from;
  switch (event.kind) {
    case what::frame:
      made.content = frame_of(event, from, to);
      return made;
    case what::up:
      made.kind = peer_event::what::up;
      return made;
    case what::down:
      made.kind = peer_event::what::down;
      return made;
    case what::congested:
      made.kind = peer_event::what::congested;
      return made;
    case what::relieved:
      made.kind = peer_event::what::relieved;
      return made;
    case what::resumed:
    case what::cut:
    case what::suspect:
    case what::heard:
    case what::refused:
    case what::fault:
      return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace ordermoe::actors
