#pragma once

#include <cstddef>

/// How many files this process may have open, connections among them. Whoever takes connections until there are no more
/// descriptors can neither say so nor read a file or dial anybody.
namespace ordermoe::net {

/// As many as the system lets it have without asking anybody (`ulimit -Hn`). Of whole processes alone: the limit is an
/// embedding program's own.
void raise_open_files();
std::size_t most_open_files();

struct connection_room {
  std::size_t served = 0;
  std::size_t turned_away = 0;  ///< Further ones, that are only told to come later.
};
/// Of so many wanted, as many as leave descriptors for everything else.
connection_room room_for_connections(std::size_t wanted);

}  // namespace ordermoe::net
