#include "net/http/connection.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <thread>
#include <utility>

namespace ordermoe {

namespace {

using namespace net;
using namespace net::http_detail;
using boost::system::error_code;

/// A peer that has said one request, and what is written to it, write by write.
class noting_stream final : public byte_stream {
 public:
  struct state {
    std::string says;
    std::size_t says_at_once = SIZE_MAX;
    std::vector<std::string> writes;
    std::vector<std::string> writes_now;
    std::size_t room = 0;  ///< For what is written at once.
    bool are_kept = true;  ///< The bytes of each write, until it is told that they are written.
    bool takes = true;     ///< Else no write ends.
    bool has_ended = false;
    done reader, writer;
  };
  noting_stream(boost::asio::io_context& io, std::shared_ptr<state> of)
      : io_(io), state_(std::move(of)) {}

  void open(std::function<void(const error_code&)> told) override { told({}); }
  void read(char* to, std::size_t most, done told) override {
    if (state_->says.empty()) {
      state_->reader = std::move(told);
      return;
    }
    const auto n = std::min({most, state_->says.size(), state_->says_at_once});
    std::ranges::copy(state_->says.substr(0, n), to);
    state_->says.erase(0, n);
    boost::asio::post(io_, [n, told = std::move(told)] { told({}, n); });
  }
  void write(std::string_view what, done told) override {
    BOOST_TEST(!what.empty());
    state_->writes.emplace_back(what);
    if (!state_->takes) {
      state_->writer = std::move(told);
      return;
    }
    const auto i = state_->writes.size() - 1;
    boost::asio::post(io_, [what, i, of = state_, told = std::move(told)] {
      of->are_kept = of->are_kept && what == of->writes[i];
      told({}, what.size());
    });
  }
  std::size_t write_now(std::string_view what) override {
    const auto n = std::min(state_->room, what.size());
    if (n > 0) state_->writes_now.emplace_back(what.substr(0, n));
    state_->room -= n;
    return n;
  }
  void end_writing(std::function<void()> told) override {
    state_->has_ended = true;
    told();
  }
  void close() override {
    // Whoever reads or writes has the connection, which has this.
    for (auto* each : {&state_->reader, &state_->writer})
      if (auto told = std::exchange(*each, {}))
        boost::asio::post(io_, [told] { told(boost::asio::error::operation_aborted, 0); });
  }

 private:
  boost::asio::io_context& io_;
  std::shared_ptr<state> state_;
};

/// A connection whose request has come and is not answered.
struct scene {
  explicit scene(std::string says = "GET / HTTP/1.1\r\nHost: a\r\n\r\n") {
    peer->says = std::move(says);
    made = open(peer);
  }
  ~scene() {
    asked.reset();
    made->close();
    run();
  }
  std::shared_ptr<connection> open(const std::shared_ptr<noting_stream::state>& to) {
    auto opened = begin(to);
    BOOST_TEST_REQUIRE(asked != nullptr);
    return opened;
  }
  /// Whatever comes of it.
  std::shared_ptr<connection> begin(const std::shared_ptr<noting_stream::state>& to) {
    asked = nullptr;
    auto opened =
        std::make_shared<connection>(side, std::make_unique<noting_stream>(io, to), "peer");
    opened->open();
    run();
    return opened;
  }
  void run() {
    io.restart();
    while (io.poll() > 0) {
    }
  }

  boost::asio::io_context io;
  http_server_options options;
  std::shared_ptr<http_exchange> asked;
  http_handler handler = [this](std::shared_ptr<http_exchange> from) { asked = std::move(from); };
  server_side side{io, options, handler, {}, [](const connection*) {}};
  std::shared_ptr<noting_stream::state> peer = std::make_shared<noting_stream::state>();
  std::shared_ptr<connection> made;
};

}  // namespace

BOOST_AUTO_TEST_SUITE(connection)

BOOST_AUTO_TEST_CASE(what_is_said_outside_of_turns_is_written_at_once) {
  scene at;
  at.asked->begin_stream(200, {});
  BOOST_TEST(at.peer->writes.size() == 1u);
  at.run();
  at.asked->write("a");
  BOOST_TEST(at.peer->writes.size() == 2u);
  BOOST_TEST(at.peer->writes.back() == "1\r\na\r\n");
}

BOOST_AUTO_TEST_CASE(fields_beyond_the_limit_are_refused_however_they_come) {
  std::string fields;
  for (int i = 0; i < 2000; ++i) fields += "X" + std::to_string(1000 + i) + ": value\r\n";
  const std::string heads[] = {
      "GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n",
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n" + fields +
          "\r\n"};
  scene at;
  BOOST_TEST_REQUIRE(fields.size() > at.options.limits.header_bytes);
  // Each is within the limit, and so is what is read at once.
  for (const auto& head : heads)
    for (const std::size_t at_once : {1, 13, 1000, 100'000}) {
      const auto peer = std::make_shared<noting_stream::state>();
      peer->says = head;
      peer->says_at_once = at_once;
      const auto made = at.begin(peer);
      BOOST_TEST(at.asked == nullptr);
      BOOST_TEST_REQUIRE(!peer->writes.empty());
      BOOST_TEST(peer->writes[0].starts_with("HTTP/1.1 431 "));
      made->close();
      at.run();
    }
}

BOOST_AUTO_TEST_CASE(whoever_does_not_take_the_leave_to_go_on_that_it_asked_for_is_cut_off) {
  const std::string head =
      "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n";
  for (const std::string body : {"abc", ""}) {
    scene at;
    at.options.limits.write_time = at.options.limits.body_time = std::chrono::milliseconds(20);
    const auto slow = std::make_shared<noting_stream::state>();
    slow->says = head + body;
    slow->says_at_once = head.size();
    slow->takes = false;
    const auto opened = at.begin(slow);
    BOOST_TEST_REQUIRE(slow->writes.size() == 1u);
    BOOST_TEST(slow->writes[0].starts_with("HTTP/1.1 100"));
    BOOST_TEST((at.asked != nullptr) == !body.empty());
    bool is_gone = false;
    at.side.forget = [&](const http_detail::connection* of) {
      is_gone = is_gone || of == opened.get();
    };
    if (at.asked) at.asked->respond(200, {}, "answer");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!is_gone && std::chrono::steady_clock::now() < end) {
      at.io.restart();
      at.io.run_one_for(std::chrono::milliseconds(5));
    }
    BOOST_TEST(is_gone);
    opened->close();
  }
}

BOOST_AUTO_TEST_CASE(what_is_said_in_one_turn_is_one_write) {
  scene at;
  at.side.begin_turn();
  at.asked->begin_stream(200, {});
  at.asked->write(std::string(171, 'a'));
  at.asked->write("b");
  at.asked->end();
  BOOST_TEST(at.peer->writes.empty());
  at.side.end_turn();
  BOOST_TEST_REQUIRE(at.peer->writes.size() == 1u);
  BOOST_TEST(at.peer->writes[0].starts_with("HTTP/1.1 200 OK\r\n"));
  BOOST_TEST(at.peer->writes[0].ends_with("\r\n\r\nab\r\n" + std::string(171, 'a') +
                                          "\r\n1\r\nb\r\n0\r\n\r\n"));
  at.run();
  // The next turn has nothing of this one.
  at.side.begin_turn();
  at.side.end_turn();
  BOOST_TEST(at.peer->writes.size() == 1u);
}

BOOST_AUTO_TEST_CASE(of_each_connection_what_is_said_in_a_turn_is_written_at_its_end) {
  scene at;
  const auto first = at.asked;
  const auto other_peer = std::make_shared<noting_stream::state>();
  other_peer->says = "GET /other HTTP/1.1\r\nHost: a\r\n\r\n";
  const auto other = at.open(other_peer);
  for (std::size_t turn = 1; turn <= 3; ++turn) {
    at.side.begin_turn();
    for (const auto& each : {first, at.asked})
      turn == 1 ? each->begin_stream(200, {}) : each->write("a");
    for (const auto& each : {at.peer, other_peer}) BOOST_TEST(each->writes.size() == turn - 1);
    at.side.end_turn();
    for (const auto& each : {at.peer, other_peer}) BOOST_TEST(each->writes.size() == turn);
    at.run();
  }
  other->close();
  at.run();
}

BOOST_AUTO_TEST_CASE(what_is_said_while_something_is_written_waits_and_changes_nothing_of_it) {
  scene at;
  at.asked->begin_stream(200, {});
  at.asked->write("a");
  at.asked->write(std::string(10'000, 'b'));
  at.asked->end();
  BOOST_TEST(at.peer->writes.size() == 1u);
  at.run();
  BOOST_TEST_REQUIRE(at.peer->writes.size() == 2u);
  BOOST_TEST(at.peer->writes[1] ==
             "1\r\na\r\n2710\r\n" + std::string(10'000, 'b') + "\r\n0\r\n\r\n");
  BOOST_TEST(at.peer->are_kept);
}

BOOST_AUTO_TEST_CASE(what_there_is_room_for_is_written_at_once_and_the_rest_behind_it) {
  scene at;
  at.options.limits.write_time = std::chrono::seconds(1);
  at.asked->begin_stream(200, {});
  at.run();
  at.peer->room = 4;
  at.side.begin_turn();
  at.asked->write("a");
  at.asked->write("b");
  BOOST_TEST(at.peer->writes_now.empty());
  at.side.end_turn();
  BOOST_TEST((at.peer->writes_now == std::vector<std::string>{"1\r\na"}));
  BOOST_TEST(at.peer->writes.back() == "\r\n1\r\nb\r\n");
  // While that is under way nothing overtakes it.
  at.peer->room = 100;
  at.asked->write("c");
  BOOST_TEST(at.peer->writes_now.size() == 1u);
  at.run();
  BOOST_TEST(at.peer->writes_now.back() == "1\r\nc\r\n");
  BOOST_TEST(at.peer->writes.size() == 2u);
  // Nobody waits for the peer any more.
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  at.run();
  at.asked->write("d");
  BOOST_TEST(at.peer->writes_now.back() == "1\r\nd\r\n");
}

BOOST_AUTO_TEST_CASE(a_stream_without_an_end_of_its_own_ends_with_its_connection) {
  scene at("GET / HTTP/1.0\r\n\r\n");
  at.peer->room = 1000;
  at.asked->begin_stream(200, {});
  at.asked->write("a");
  BOOST_TEST(at.peer->writes_now.back() == "a");
  at.asked->end();
  at.run();
  BOOST_TEST(at.peer->writes.empty());
  BOOST_TEST(at.peer->has_ended);
}

BOOST_AUTO_TEST_CASE(a_stream_for_who_wants_the_fields_alone_has_no_body) {
  scene at("HEAD / HTTP/1.1\r\nHost: a\r\n\r\nGET /b HTTP/1.1\r\nHost: a\r\n\r\n");
  at.asked->begin_stream(200, {});
  at.asked->write("a");
  at.asked->end();
  at.run();
  BOOST_TEST_REQUIRE(at.peer->writes.size() == 1u);
  BOOST_TEST(at.peer->writes[0].ends_with("\r\n\r\n"));
  BOOST_TEST(at.peer->writes[0].find("\r\n0\r\n") == std::string::npos);
  BOOST_TEST(at.asked->request().path == "/b");
}

BOOST_AUTO_TEST_CASE(what_another_thread_has_no_room_for_the_servers_own_writes) {
  scene at;
  at.asked->begin_stream(200, {});
  at.run();
  std::thread([&] {
    at.asked->write("a");
    at.asked->write("b");
  }).join();
  BOOST_TEST(at.peer->writes.size() == 1u);
  at.run();
  BOOST_TEST_REQUIRE(at.peer->writes.size() == 2u);
  BOOST_TEST(at.peer->writes.back() == "1\r\na\r\n1\r\nb\r\n");
}

BOOST_AUTO_TEST_CASE(what_comes_after_the_end_or_the_peer_is_gone_is_not_written) {
  for (const bool ends : {true, false}) {
    scene at;
    at.peer->room = 1000;
    at.asked->begin_stream(200, {});
    ends ? at.asked->end() : at.made->close();
    at.run();
    const auto n = at.peer->writes_now.size() + at.peer->writes.size();
    std::thread([&] { at.asked->write("late"); }).join();
    at.run();
    BOOST_TEST(at.peer->writes_now.size() + at.peer->writes.size() == n);
  }
}

BOOST_AUTO_TEST_CASE(a_connection_that_is_closed_within_a_turn_is_written_nothing) {
  scene at;
  at.side.begin_turn();
  at.asked->begin_stream(200, {});
  at.made->close();
  at.side.end_turn();
  at.run();
  BOOST_TEST(at.peer->writes.empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
