#pragma once

#include "net/channel/connections.hpp"

namespace ordermoe::net {

/// TLS 1.3 over TCP. One thread reads all sockets; writing writes to the socket on whatever thread writes.
result<std::unique_ptr<connections>> tls_connections(connections_options options,
                                                     connections_user& user);

}  // namespace ordermoe::net
