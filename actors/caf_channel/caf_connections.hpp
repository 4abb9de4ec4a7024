#pragma once

#include "net/channel/connections.hpp"

/// Connections through CAF's own middleman and its OpenSSL module, in the place of net/channel/tls_connections.hpp, for
/// whoever standardises on CAF's transport. A transport takes it as `carried_by`. No CAF type in this header.
///
/// An actor system of its own, apart from the service's, with one worker: that is the connections' thread. Both ends must
/// show a certificate of one authority, but CAF tells nobody whose it is: name and role are those that the other end says.
namespace ordermoe::actors {

/// Errors: those of check_identity; io.
result<std::unique_ptr<net::connections>> caf_connections(net::connections_options options,
                                                          net::connections_user& user);

}  // namespace ordermoe::actors
