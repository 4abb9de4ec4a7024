#pragma once

#include <caf/actor.hpp>
#include <caf/meta/type_name.hpp>
#include <caf/type_id.hpp>
#include <cstdint>
#include <functional>
#include <string>

/// What the two ends of a connection over CAF say to each other.
///
///   dialler                                   listener
///     | -- caf_dial ----------------------------> |  to the actor that is published at the address
///     | <------------------------- caf_welcome -- |  from an actor that is the other end of this connection; or
///     | <------------------------- caf_refusal -- |  why there is none
///     | -- caf_bytes --> ... <------- caf_bytes -- |
///     | <---- caf_taken ...                        |  how many have come so far: the sender keeps within its window
///     | -- caf_end ---> ... <----------- caf_end -- |  each end says no more; then its actor ends
///
/// Each carries the number that the dialler drew for this connection: what is said to an actor of an earlier process, which
/// may have had the same address, is dropped.
namespace ordermoe::actors {

inline constexpr std::uint32_t caf_channel_version = 1;

/// In the place of a stream: dial_purpose::joining.
inline constexpr std::uint8_t caf_dial_joins = 2;

struct caf_dial {
  std::uint32_t version = caf_channel_version;
  std::uint64_t key = 0;
  std::string who;         ///< ordermoe://CLUSTER/ROLE/NAME, as the dialler says.
  std::uint8_t which = 0;  ///< A stream, or caf_dial_joins.
  caf::actor from;
};
struct caf_welcome {
  std::uint64_t key = 0;
  std::string who;  ///< As above, of the listener.
  caf::actor from;
};
struct caf_refusal {
  std::uint64_t key = 0;
  std::string why;
};
struct caf_bytes {
  std::uint64_t key = 0;
  std::string bytes;
};
struct caf_taken {
  std::uint64_t key = 0, bytes = 0;
};
struct caf_end {
  std::uint64_t key = 0;
};

/// Within a process: to be run on the channel's thread.
struct caf_task {
  std::function<void()> run;
};

template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, caf_dial& x) {
  return f(caf::meta::type_name("caf_dial"), x.version, x.key, x.who, x.which, x.from);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, caf_welcome& x) {
  return f(caf::meta::type_name("caf_welcome"), x.key, x.who, x.from);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, caf_refusal& x) {
  return f(caf::meta::type_name("caf_refusal"), x.key, x.why);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, caf_bytes& x) {
  return f(caf::meta::type_name("caf_bytes"), x.key, x.bytes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, caf_taken& x) {
  return f(caf::meta::type_name("caf_taken"), x.key, x.bytes);
}
template <class Inspector>
typename Inspector::result_type inspect(Inspector& f, caf_end& x) {
  return f(caf::meta::type_name("caf_end"), x.key);
}

}  // namespace ordermoe::actors

CAF_BEGIN_TYPE_ID_BLOCK(ordermoe_caf_channel, first_custom_type_id)
CAF_ADD_TYPE_ID(ordermoe_caf_channel, (ordermoe::actors::caf_dial))
CAF_ADD_TYPE_ID(ordermoe_caf_channel, (ordermoe::actors::caf_welcome))
CAF_ADD_TYPE_ID(ordermoe_caf_channel, (ordermoe::actors::caf_refusal))
CAF_ADD_TYPE_ID(ordermoe_caf_channel, (ordermoe::actors::caf_bytes))
CAF_ADD_TYPE_ID(ordermoe_caf_channel, (ordermoe::actors::caf_taken))
CAF_ADD_TYPE_ID(ordermoe_caf_channel, (ordermoe::actors::caf_end))
CAF_END_TYPE_ID_BLOCK(ordermoe_caf_channel)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(ordermoe::actors::caf_task)
