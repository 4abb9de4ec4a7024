#include "net/http/connection.hpp"

#include <algorithm>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/test/unit_test.hpp>
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
    std::vector<std::string> writes;
    done reader;
  };
  noting_stream(boost::asio::io_context& io, std::shared_ptr<state> of)
      : io_(io), state_(std::move(of)) {}

  void open(std::function<void(const error_code&)> told) override { told({}); }
  void read(char* to, std::size_t most, done told) override {
    if (state_->says.empty()) {
      state_->reader = std::move(told);
      return;
    }
    const auto n = std::min(most, state_->says.size());
    std::ranges::copy(state_->says.substr(0, n), to);
    state_->says.erase(0, n);
    boost::asio::post(io_, [n, told = std::move(told)] { told({}, n); });
  }
  void write(std::string_view what, done told) override {
    state_->writes.emplace_back(what);
    boost::asio::post(io_, [n = what.size(), told = std::move(told)] { told({}, n); });
  }
  void end_writing() override {}
  void close() override {
    // Whoever reads has the connection, which has this.
    if (auto reader = std::exchange(state_->reader, {}))
      boost::asio::post(io_, [reader] { reader(boost::asio::error::operation_aborted, 0); });
  }

 private:
  boost::asio::io_context& io_;
  std::shared_ptr<state> state_;
};

/// A connection whose request has come and is not answered.
struct scene {
  scene() {
    peer->says = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    made = std::make_shared<connection>(side, std::make_unique<noting_stream>(io, peer), "peer");
    made->open();
    run();
    BOOST_TEST_REQUIRE(asked != nullptr);
  }
  ~scene() {
    asked.reset();
    made->close();
    run();
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
