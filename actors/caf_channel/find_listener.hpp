#pragma once

#include <atomic>
#include <caf/actor.hpp>
#include <caf/event_based_actor.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "config/error.hpp"
#include "net/channel/address.hpp"

namespace ordermoe::actors {

struct listener_search {
  net::address at;
  std::int64_t limit_ns = 0;
  std::shared_ptr<std::atomic<bool>> goes_on;  ///< False: nobody waits for it any more.
};

/// Asks CAF's middleman for the actor that is published at an address, and tells it once, on any thread. To be spawned
/// detached: names are resolved here, and whether anybody answers there is tried first, since the middleman connects with
/// a call that blocks, and one host that is switched off would keep it from all others.
caf::behavior find_listener(caf::event_based_actor* self, listener_search what,
                            std::function<void(result<caf::actor>)> done);

/// The address of this host, in numbers, that the place names. Error: io, why nobody can listen there.
result<std::string> can_listen(const net::address& where);

}  // namespace ordermoe::actors
