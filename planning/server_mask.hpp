#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

/// Sets of at most 64 servers.
namespace ordermoe::planning {

using server_mask = std::uint64_t;

constexpr server_mask server_bit(std::size_t server) {
  return server_mask{1} << server;
}

constexpr server_mask all_servers(std::size_t n_servers) {
  return n_servers >= 64 ? ~server_mask{0} : server_bit(n_servers) - 1;
}

/// Calls visit(server) for each member, ascending.
template <class Visit>
inline void for_each_server(server_mask servers, Visit&& visit) {
  for (; servers != 0; servers &= servers - 1)
    visit(static_cast<std::size_t>(std::countr_zero(servers)));
}

}  // namespace ordermoe::planning
