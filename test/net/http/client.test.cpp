#include "net/http/client.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <future>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace ordermoe::net {

namespace {

using namespace std::chrono_literals;

constexpr std::string_view head =
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/plain\r\n\r\n";

/// Says to one client whatever it is told to say.
class sayer {
 public:
  sayer() : listens_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* any = reinterpret_cast<sockaddr*>(&at);
    BOOST_REQUIRE(::bind(listens_, any, size) == 0);
    BOOST_REQUIRE(::listen(listens_, 1) == 0);
    BOOST_REQUIRE(::getsockname(listens_, any, &size) == 0);
    ask.to.at = {"127.0.0.1", ntohs(at.sin_port)};
    ask.silence = 20s;
  }
  ~sayer() {
    hang_up();
    ::close(listens_);
  }
  /// Of the one who comes, whose request ends with an empty line.
  void hear() {
    peer_ = ::accept(listens_, nullptr, nullptr);
    std::string request;
    char one = 0;
    while (!request.ends_with("\r\n\r\n") && ::recv(peer_, &one, 1, 0) == 1) request += one;
  }
  void say(std::string_view what) {
    BOOST_TEST(::send(peer_, what.data(), what.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(what.size()));
  }
  void say_chunk(std::string_view what) { say(fmt::format("{:x}\r\n{}\r\n", what.size(), what)); }
  void hang_up() {
    if (peer_ >= 0) ::close(peer_);
    peer_ = -1;
  }
  /// A connection that is closed so tells its peer that it was broken off.
  void break_off() {
    const linger at_once{1, 0};
    ::setsockopt(peer_, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    hang_up();
  }

  http_ask ask;

 private:
  int listens_, peer_ = -1;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(client)

BOOST_AUTO_TEST_CASE(each_part_is_told_before_the_next_is_there) {
  sayer other;
  std::promise<void> heard[3];
  std::vector<std::string> parts;
  std::jthread saying([&] {
    other.hear();
    other.say(head);
    for (int i = 0; i < 3; ++i) {
      other.say_chunk(std::string(1, static_cast<char>('a' + i)));
      heard[i].get_future().wait();
    }
    other.say("0\r\n\r\n");
  });
  const auto reply = http_fetch(other.ask, [&](std::string_view part) {
    parts.emplace_back(part);
    heard[parts.size() - 1].set_value();
  });
  BOOST_TEST_REQUIRE(reply.has_value());
  BOOST_TEST(reply->status == 200);
  BOOST_TEST(reply->body == "");
  BOOST_TEST(parts == (std::vector<std::string>{"a", "b", "c"}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_answer_that_comes_byte_by_byte_is_whole) {
  sayer other;
  const std::string body(100, 'x');
  std::jthread saying([&] {
    other.hear();
    for (const char each : fmt::format("{}64\r\n{}\r\n0\r\n\r\n", head, body))
      other.say({&each, 1});
  });
  std::string all;
  const auto reply = http_fetch(other.ask, [&](std::string_view part) { all += part; });
  BOOST_TEST_REQUIRE(reply.has_value());
  BOOST_TEST(all == body);
}

BOOST_AUTO_TEST_CASE(an_answer_without_a_length_ends_with_its_connection) {
  sayer other;
  std::jthread saying([&] {
    other.hear();
    other.say("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nall that there is");
    other.hang_up();
  });
  const auto reply = http_fetch(other.ask);
  BOOST_TEST_REQUIRE(reply.has_value());
  BOOST_TEST(reply->body == "all that there is");
}

BOOST_AUTO_TEST_CASE(a_connection_that_is_closed_before_any_answer_has_none) {
  sayer other;
  std::jthread saying([&] {
    other.hear();
    other.hang_up();
  });
  const auto reply = http_fetch(other.ask);
  BOOST_TEST_REQUIRE(!reply.has_value());
  BOOST_TEST((reply.error().code == errc::io));
  BOOST_TEST(reply.error().message.find("closed without an answer") != std::string::npos,
             reply.error().message);
}

BOOST_AUTO_TEST_CASE(an_answer_that_is_cut_off_is_none) {
  sayer other;
  std::promise<void> has_part;
  bool breaks_off = false;
  for (const auto code : {errc::malformed, errc::io}) {
    breaks_off = code == errc::io;
    has_part = {};
    std::jthread saying([&] {
      other.hear();
      other.say(head);
      other.say_chunk("half");
      has_part.get_future().wait();
      breaks_off ? other.break_off() : other.hang_up();
    });
    const auto reply = http_fetch(other.ask, [&](std::string_view) { has_part.set_value(); });
    BOOST_TEST_REQUIRE(!reply.has_value());
    BOOST_TEST((reply.error().code == code), reply.error().message);
    BOOST_TEST(reply.error().message.find(to_string(other.ask.to.at)) != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(whoever_says_nothing_for_too_long_is_not_waited_for) {
  sayer other;
  other.ask.silence = 150ms;
  std::promise<void> over;
  std::jthread saying([&] {
    other.hear();
    other.say(head);
    over.get_future().wait();
  });
  const auto begin = std::chrono::steady_clock::now();
  const auto reply = http_fetch(other.ask);
  over.set_value();
  BOOST_TEST_REQUIRE(!reply.has_value());
  BOOST_TEST((reply.error().code == errc::timed_out), reply.error().message);
  BOOST_TEST((std::chrono::steady_clock::now() - begin >= other.ask.silence));
}

BOOST_AUTO_TEST_CASE(whoever_waits_may_be_asked_to_stop) {
  sayer other;
  std::promise<void> over;
  std::jthread saying([&] {
    other.hear();
    other.say(head);
    over.get_future().wait();
  });
  int asked = 0;
  const auto reply = http_fetch(other.ask, {}, [&] { return ++asked == 2; });
  over.set_value();
  BOOST_TEST_REQUIRE(!reply.has_value());
  BOOST_TEST((reply.error().code == errc::interrupted), reply.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::net
