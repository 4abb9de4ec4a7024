#include "net/relay/arrival.hpp"

#include <sys/socket.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <string>

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

std::int64_t steady_now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Two ends of a TCP connection.
struct pair {
  pair() {
    tcp::acceptor acceptor(io, {asio::ip::address_v4::loopback(), 0});
    near.connect(acceptor.local_endpoint());
    far = acceptor.accept();
    ordermoe::net::stamp_arrivals(far.native_handle());
  }

  ordermoe::net::arrival receive(boost::system::error_code& problem) {
    return ordermoe::net::receive(far.native_handle(), into, problem);
  }
  void await() { far.wait(tcp::socket::wait_read); }

  asio::io_context io;
  tcp::socket near{io}, far{io};
  std::array<char, 100> into{};
};

}  // namespace

BOOST_AUTO_TEST_SUITE(arrival)

BOOST_AUTO_TEST_CASE(bytes_are_stamped_when_they_came_and_not_when_they_were_read) {
  pair ends;
  // A kernel may begin to stamp a little after it is asked to, and some never do.
  for (int trial = 0; trial < 20; ++trial) {
    const auto before = steady_now();
    asio::write(ends.near, asio::buffer(std::string("hello")));
    ends.await();
    const auto there = steady_now();
    // Whoever reads is busy with something else until the clock says otherwise.
    while (steady_now() - there < 20'000'000) {
    }
    const auto read = steady_now();
    boost::system::error_code problem;
    const auto got = ends.receive(problem);
    BOOST_TEST(!problem);
    BOOST_TEST(std::string(ends.into.data(), got.n_bytes) == "hello");
    BOOST_TEST(got.came_ns >= before - 1'000'000);
    BOOST_TEST(got.came_ns <= steady_now());
    if (!got.stamped) {
      BOOST_TEST(got.came_ns >= read);
      continue;
    }
    BOOST_TEST(got.came_ns <= there + 1'000'000);
    return;
  }
  BOOST_TEST_MESSAGE("this kernel does not say when bytes came");
}

BOOST_AUTO_TEST_CASE(where_nothing_is_there_it_says_so_and_does_not_wait) {
  pair ends;
  boost::system::error_code problem;
  BOOST_TEST(ends.receive(problem).n_bytes == 0u);
  BOOST_TEST((problem == asio::error::would_block));
}

BOOST_AUTO_TEST_CASE(the_end_of_what_comes_is_told) {
  pair ends;
  ends.near.shutdown(tcp::socket::shutdown_send);
  ends.await();
  boost::system::error_code problem;
  BOOST_TEST(ends.receive(problem).n_bytes == 0u);
  BOOST_TEST((problem == asio::error::eof));
}

BOOST_AUTO_TEST_CASE(more_than_there_is_room_for_stays_for_the_next_time) {
  pair ends;
  asio::write(ends.near, asio::buffer(std::string(150, 'x')));
  std::size_t n = 0;
  while (n < 150) {
    ends.await();
    boost::system::error_code problem;
    const auto got = ends.receive(problem);
    BOOST_REQUIRE(!problem);
    BOOST_TEST(got.n_bytes <= 100u);
    n += got.n_bytes;
  }
  BOOST_TEST(n == 150u);
}

BOOST_AUTO_TEST_SUITE_END()
