#include "net/relay/connection.hpp"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/write.hpp>
#include <chrono>

namespace ordermoe::net {

namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// Of one read or write.
constexpr std::size_t part_bytes = 64u << 10;

void close_socket(tcp::socket& which) {
  boost::system::error_code ignored;
  which.shutdown(tcp::socket::shutdown_both, ignored);
  which.close(ignored);
}

void reset_socket(tcp::socket& which) {
  boost::system::error_code ignored;
  which.set_option(asio::socket_base::linger(true, 0), ignored);
  which.close(ignored);
}

}  // namespace

std::int64_t steady_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

relayed_connection::relayed_connection(tcp::socket near, links& of, std::uint64_t number,
                                       changed tell)
    : near_(std::move(near)),
      far_(near_.get_executor()),
      links_(of),
      tell_(std::move(tell)),
      ways_{way(shaper(of[0], number)), way(shaper(of[1], number))} {
  for (auto& each : ways_) each.in.resize(part_bytes);
}

void relayed_connection::open(const tcp::endpoint& target, std::function<void()> unreached) {
  far_.async_connect(target, [self = shared_from_this(), unreached = std::move(unreached)](
                                 const error_code& problem) { self->dialled(problem, unreached); });
}

void relayed_connection::dialled(const error_code& problem,
                                 const std::function<void()>& unreached) {
  if (closed()) return;
  if (problem) {
    reset();
    unreached();
    return;
  }
  error_code ignored;  // A socket that is gone already is noticed by reading.
  near_.set_option(tcp::no_delay(true), ignored);
  far_.set_option(tcp::no_delay(true), ignored);
  stamp_arrivals(near_.native_handle());
  stamp_arrivals(far_.native_handle());
  phase_ = phase::open;
  tell_(direction::to);
  tell_(direction::back);
}

void relayed_connection::pump(direction of, std::int64_t now_ns) {
  if (phase_ != phase::open) return;
  read(of);
  write(of, now_ns);
}

std::optional<std::int64_t> relayed_connection::next_ns(direction of, std::int64_t now_ns) const {
  const auto& way = at(of);
  if (phase_ != phase::open || way.writing || way.finished) return {};
  return way.line.next_ns(now_ns);
}

std::uint64_t relayed_connection::held_bytes(direction of) const {
  return at(of).line.held_bytes();
}

void relayed_connection::read(direction of) {
  auto& way = at(of);
  const auto n = std::min(way.in.size(), way.line.room());
  if (way.reading || way.ended || way.finished || n == 0) return;
  way.reading = true;
  from(of).async_wait(tcp::socket::wait_read,
                      [self = shared_from_this(), of, n](const error_code& problem) {
                        self->can_read(of, n, problem);
                      });
}

void relayed_connection::can_read(direction of, std::size_t most, error_code problem) {
  auto& way = at(of);
  way.reading = false;
  if (closed() || way.finished) return;
  arrival got{0, steady_ns()};
  if (!problem) got = receive(from(of).native_handle(), {way.in.data(), most}, problem);
  if (problem == asio::error::would_block) return read(of);
  was_read(of, problem, got);
}

void relayed_connection::was_read(direction of, const error_code& problem, const arrival& got) {
  auto& way = at(of);
  // The clock by which arrivals are stamped may be set.
  const auto now_ns = way.read_ns = std::max(way.read_ns, got.came_ns);
  way.line.take({way.in.data(), got.n_bytes}, now_ns);
  if (problem) {
    way.line.end(now_ns);
    way.ended = true;
    way.broken = problem != asio::error::eof;
  }
  tell_(of);
}

void relayed_connection::write(direction of, std::int64_t now_ns) {
  auto& way = at(of);
  if (closed() || way.writing || way.finished) return;
  const auto most = std::min<std::uint64_t>(part_bytes, way.left.value_or(part_bytes));
  way.out.clear();
  const auto n = way.line.give(way.out, most, now_ns);
  if (n == 0) {
    if (way.line.over(now_ns)) finish(of);
    return;
  }
  if (way.left) *way.left -= n;
  way.writing = true;
  asio::async_write(
      into(of), asio::buffer(way.out),
      [self = shared_from_this(), of](const error_code& problem, std::size_t n_bytes) {
        self->was_written(of, problem, n_bytes);
      });
}

void relayed_connection::was_written(direction of, const error_code& problem, std::size_t n_bytes) {
  auto& way = at(of);
  way.writing = false;
  link_of(of).counted.bytes_out += n_bytes;
  if (closed()) return;
  if (way.left && *way.left == 0) {
    close();
  } else if (problem) {
    finish(of);
  }
  tell_(of);
}

void relayed_connection::finish(direction of) {
  auto& way = at(of);
  way.finished = true;
  error_code ignored;
  into(of).shutdown(tcp::socket::shutdown_send, ignored);
  // A side that broke takes nothing either; one that cannot be written to ends what it sends by itself.
  if (way.broken || (ways_[0].finished && ways_[1].finished)) close();
}

void relayed_connection::close_after(direction of, std::uint64_t bytes) {
  if (bytes == 0 || phase_ != phase::open)
    close();
  else
    at(of).left = bytes;
}

void relayed_connection::close() {
  if (closed()) return;
  phase_ = phase::closed;
  close_socket(near_);
  close_socket(far_);
}

void relayed_connection::reset() {
  if (closed()) return;
  phase_ = phase::closed;
  reset_socket(near_);
  reset_socket(far_);
}

}  // namespace ordermoe::net
