#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "config/error.hpp"
#include "net/relay/endpoint.hpp"
#include "net/relay/link.hpp"

/// A listener that connects whoever dials it to a target and passes bytes both ways, on a thread of its own, as late,
/// as slowly and as wrong as it is told.
///
/// Goals: what a distant or broken network does to TCP streams, on command and while they live. Each direction is one
/// bottleneck, at which connections take turns. A byte counts as come in when the relay reads it; it does that as soon
/// as it comes while a connection holds less than link::buffer_bytes(), and not at all beyond it, so that senders
/// wait as TCP lets them.
/// Non-goals: datagrams, loss and reordering, which TCP hides; the delay of dialling; names.
namespace ordermoe::net {

enum class reach : std::uint8_t {
  loopback,  ///< Only this host may dial.
  anywhere,
};

struct relay_options {
  endpoint listen;  ///< Port 0: any that is free.
  endpoint target;
  reach from = reach::loopback;
  std::uint64_t seed = 1;  ///< Of what is flipped.
  /// Of a connection and direction, where rate and delay ask for less. Without a rate it bounds what may be on its
  /// way: divided by the delay it is then the most that passes.
  std::uint64_t least_buffer_bytes = 4u << 20;
  std::array<link_conditions, n_directions> conditions;  ///< At first; by direction.
};

struct cut_options {
  /// Each connection goes on until so many further bytes have gone out this way; 0: it is closed at once. Bytes that
  /// the relay still holds then are lost, those that went out before are not.
  std::uint64_t after_bytes = 0;
  direction of = direction::to;
  /// So long, from now, whoever dials is reset at once, while dialling or on first reading.
  std::int64_t refuse_ns = 0;
};

struct relay_counters {
  std::uint64_t connections = 0;  ///< Now, those that are still dialling the target among them.
  std::uint64_t accepted = 0;     ///< Since the start, without those refused.
  std::uint64_t refused = 0;      ///< Reset after a cut.
  std::uint64_t unreached = 0;    ///< Reset because the target took no connection.
  std::array<link_counters, n_directions> links;
  std::array<std::uint64_t, n_directions> held_bytes{};  ///< Read and not yet going out.
};

/// Any thread may call, and what is asked for has begun to hold when a call returns.
class relay {
 public:
  /// Error: usage, for an address that others can reach without `anywhere`, or a target without port; out_of_range,
  /// for conditions; io, where it cannot listen.
  static result<std::unique_ptr<relay>> start(const relay_options& options);
  /// Closes everything.
  ~relay();
  relay(const relay&) = delete;
  relay& operator=(const relay&) = delete;

  /// That it listens on.
  std::uint16_t port() const;
  /// For bytes on their way as well: a shorter delay lets some out at once. Error: out_of_range.
  result<void> set(direction of, const link_conditions& wanted);
  link_conditions conditions(direction of) const;
  /// The next byte that goes out this way has a wrong bit; asked for twice, the next two.
  void flip_next(direction of);
  void cut(const cut_options& how = {});
  relay_counters counters() const;

 private:
  struct state;
  explicit relay(std::unique_ptr<state> made);
  std::unique_ptr<state> state_;
};

}  // namespace ordermoe::net
