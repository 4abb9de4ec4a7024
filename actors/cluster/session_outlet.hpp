#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "actors/service/service.hpp"
#include "net/channel/transport.hpp"

/// The way of an edge server's frames to another server: sessions of a transport, which there may not be yet.
namespace ordermoe::actors {

/// Null until the transport has started.
using transport_place = std::shared_ptr<std::atomic<net::transport*>>;

/// Frames to one server.
class session_outlet final : public frame_outlet {
 public:
  session_outlet(transport_place through, net::peer_id to, const service_options& options);
  bool send(wire::frame content) override;

 private:
  std::size_t padding_of(const wire::frame& content) const;

  transport_place through_;
  net::peer_id to_;
  std::shared_ptr<trace::sink> trace_;  ///< Null: none is written.
  cost_profile costs_;
  std::int64_t stretch_ = 0;  ///< 0: nothing is rehearsed.
};

/// Turns of the transport.
class session_turns final : public frame_turns {
 public:
  explicit session_turns(transport_place through) : through_(std::move(through)) {}
  void begin() override;
  bool holds() const override;
  void write(std::int64_t held_ns) override;

 private:
  transport_place through_;
};

}  // namespace ordermoe::actors
