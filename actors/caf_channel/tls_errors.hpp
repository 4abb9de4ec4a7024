#pragma once

#include <caf/fwd.hpp>

namespace ordermoe::actors {

/// Keeps connections of CAF's OpenSSL module apart from each other's failures. That module leaves what OpenSSL says of a
/// failed handshake in the queue of errors of CAF's I/O thread, and takes it for the fault of whichever connection it
/// reads or writes next: so anybody who can open a TCP connection would break all that are there. Once the I/O thread has
/// been told, its queue is cleared where a handshake fails and where a connection ends. To be called before anything
/// listens or dials.
void keep_tls_errors_apart(caf::actor_system& of);

}  // namespace ordermoe::actors
