#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/protocol/messages.hpp"
#include "actors/simulated_sessions.hpp"

/// The sessions between emulated servers and what happens to them. Virtual time: one thread.
namespace ordermoe::actors {

struct service_context;

class session_network {
 public:
  session_network(const simulated_sessions& options, const cluster& servers);
  ~session_network();

  /// One actor for each pair of servers moves its wires, tells edge servers what comes, and ends with the service.
  /// It is told of both ends by attach_view.
  std::vector<wire_actor> spawn(caf::actor_system& system,
                                const std::shared_ptr<const service_context>& context);
  /// Of the pair of these two.
  wire_actor between(std::uint32_t a, std::uint32_t b) const;

  std::shared_ptr<frame_outlet> outlet(std::uint32_t from, std::uint32_t to) const;
  /// Counts the starts of this server.
  std::uint32_t boot(std::uint32_t server) const { return boots_[server]; }
  void end(std::uint32_t server, net::simulated_pair::ending how);
  void start(std::uint32_t server, boot_count count);
  sessions_status status() const;

 private:
  struct wire;
  class outlet_of_one;
  struct progress;
  const std::shared_ptr<wire>& wire_between(std::uint32_t a, std::uint32_t b) const;

  std::uint32_t n_ = 0;
  std::shared_ptr<progress> progress_;
  std::vector<std::shared_ptr<wire>> wires_;  ///< [n * n] by (lower, higher); others are null.
  std::vector<std::uint32_t> boots_;
};

}  // namespace ordermoe::actors
