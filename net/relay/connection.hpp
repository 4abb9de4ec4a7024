#pragma once

#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/relay/arrival.hpp"
#include "net/relay/shaper.hpp"

/// Two sockets of a relay, a shaper each way, and what ends them. On the thread of their io_context alone.
///
/// A side that ends its stream ends it for the other one too, once the bytes before are through and the delay has
/// passed; a side that breaks, likewise, but then everything is closed. What cannot be written any more is dropped.
namespace ordermoe::net {

class relayed_connection : public std::enable_shared_from_this<relayed_connection> {
 public:
  using links = std::array<link, n_directions>;
  /// Something happened after which the owner shall pump() this direction of all connections.
  using changed = std::function<void(direction)>;

  /// `near`: accepted. `number`: the connection's, for the seed of what is flipped. The owner, and with it the links,
  /// must outlive the io_context's last handler.
  relayed_connection(boost::asio::ip::tcp::socket near, links& of, std::uint64_t number,
                     changed tell);

  /// Dials the target. Until that is there nothing is read; where it is not, the near side is reset.
  void open(const boost::asio::ip::tcp::endpoint& target, std::function<void()> unreached);
  /// Reads where there is room, writes what is due.
  void pump(direction of, std::int64_t now_ns);
  /// When pump() has something to do, if nothing else happens before.
  std::optional<std::int64_t> next_ns(direction of, std::int64_t now_ns) const;
  /// Closes once so many further bytes have gone out this way, and lets no more out.
  void close_after(direction of, std::uint64_t bytes);
  void close();
  /// The same by RST: whoever dialled finds that nobody was there.
  void reset();
  bool closed() const { return phase_ == phase::closed; }
  std::uint64_t held_bytes(direction of) const;

 private:
  enum class phase { dialling, open, closed };
  using socket = boost::asio::ip::tcp::socket;
  using error_code = boost::system::error_code;
  struct way {
    explicit way(shaper line) : line(std::move(line)) {}
    shaper line;
    std::vector<char> in;               ///< What is being read.
    std::string out;                    ///< What is being written.
    std::optional<std::uint64_t> left;  ///< Bytes until the connection is closed.
    std::int64_t read_ns = 0;           ///< When the latest of it came.
    bool reading = false, writing = false;
    bool ended = false;     ///< Nothing more comes in.
    bool broken = false;    ///< That was by an error.
    bool finished = false;  ///< Nothing more goes out.
  };

  way& at(direction of) { return ways_[static_cast<std::size_t>(of)]; }
  const way& at(direction of) const { return ways_[static_cast<std::size_t>(of)]; }
  link& link_of(direction of) { return links_[static_cast<std::size_t>(of)]; }
  socket& from(direction of) { return of == direction::to ? near_ : far_; }
  socket& into(direction of) { return of == direction::to ? far_ : near_; }

  void dialled(const error_code& problem, const std::function<void()>& unreached);
  void read(direction of);
  void can_read(direction of, std::size_t most, error_code problem);
  void was_read(direction of, const error_code& problem, const arrival& got);
  void write(direction of, std::int64_t now_ns);
  void was_written(direction of, const error_code& problem, std::size_t n_bytes);
  void finish(direction of);

  socket near_, far_;
  links& links_;
  changed tell_;
  phase phase_ = phase::dialling;
  std::array<way, n_directions> ways_;
};

/// Steady time, as all of the relay counts it.
std::int64_t steady_ns();

}  // namespace ordermoe::net
