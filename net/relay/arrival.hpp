#pragma once

#include <boost/system/error_code.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

/// Reading from a TCP socket with the time at which the bytes came to it: whoever reads may be woken long after that.
namespace ordermoe::net {

struct arrival {
  std::size_t n_bytes = 0;
  std::int64_t came_ns = 0;  ///< Steady time of the last of them, and no later than now.
  bool stamped = false;      ///< By the kernel; otherwise came_ns is when they were read.
};

/// The kernel notes from now on when bytes come. Where it does not, receive() says when they were read.
void stamp_arrivals(int socket);

/// What is there, without waiting. `problem`: boost::asio::error::eof where nothing more comes, would_block where nothing is
/// there yet, or why it cannot be read.
arrival receive(int socket, std::span<char> into, boost::system::error_code& problem);

}  // namespace ordermoe::net
