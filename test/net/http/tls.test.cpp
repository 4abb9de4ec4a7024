#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "net/http/server.hpp"
#include "test/net/channel/credentials.hpp"

namespace ordermoe::net {

namespace {

namespace asio = boost::asio;
using boost::system::error_code;

/// A server with a certificate of its own, which begins a stream for every request and reads the body of none.
struct secret {
  secret() {
    issued.sign({"web", {}});
    options.tls = {issued.file("web.crt"), issued.file("web.key")};
    options.most_body = [](const http_request&) { return 0; };
  }

  result<std::unique_ptr<http_server>> start() const {
    return http_server::start(options, [](const std::shared_ptr<http_exchange>& from) {
      from->begin_stream(200, {});
      from->write("a part,");
      from->write(" and the last");
      from->end();
    });
  }
  void set_mode(unsigned mode) const {
    std::filesystem::permissions(issued.file("web.key"), std::filesystem::perms(mode));
  }

  test::credentials issued{"http-tls"};
  http_server_options options;
};

/// Believes every certificate.
class client {
 public:
  explicit client(const address& at) {
    stream_.next_layer().connect({asio::ip::make_address(at.host), at.port});
    stream_.handshake(asio::ssl::stream_base::client);
  }
  /// What cannot be sent any more is not.
  void send(const std::string& text) {
    error_code ignored;
    asio::write(stream_, asio::buffer(text), ignored);
  }
  struct heard {
    std::string text;
    error_code end;
  };
  heard all() {
    heard made;
    asio::read(stream_, asio::dynamic_buffer(made.text), made.end);
    return made;
  }

 private:
  asio::io_context io_;
  asio::ssl::context context_{asio::ssl::context::tls_client};
  asio::ssl::stream<asio::ip::tcp::socket> stream_{io_, context_};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(tls_server, secret)

BOOST_AUTO_TEST_CASE(an_answer_that_ends_with_its_connection_is_whole_where_that_is_said) {
  const auto running = start();
  BOOST_TEST_REQUIRE(running.has_value(), (running ? "" : running.error().message));
  client old((*running)->listens_at());
  old.send("GET / HTTP/1.0\r\n\r\n");
  const auto told = old.all();
  BOOST_TEST(told.text.ends_with("\r\n\r\na part, and the last"), told.text);
  BOOST_TEST((told.end == asio::error::eof), told.end.message());
}

BOOST_AUTO_TEST_CASE(whoever_is_answered_before_all_of_a_body_is_sent_reads_the_answer) {
  const auto running = start();
  BOOST_TEST_REQUIRE(running.has_value(), (running ? "" : running.error().message));
  client eager((*running)->listens_at());
  eager.send("POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n");
  for (int i = 0; i < 40; ++i) eager.send(std::string(100'000, 'x'));
  const auto told = eager.all();
  BOOST_TEST(told.text.ends_with("0\r\n\r\n"), told.text);
  BOOST_TEST((told.end == asio::error::eof), told.end.message());
}

BOOST_AUTO_TEST_CASE(a_key_that_everybody_can_read_is_refused) {
  for (const unsigned mode : {0600u, 0640u, 0400u}) {
    set_mode(mode);
    BOOST_TEST(check_listen(options).has_value());
    BOOST_TEST(start().has_value());
  }
  for (const unsigned mode : {0644u, 0604u}) {
    set_mode(mode);
    const auto refused = start();
    BOOST_TEST_REQUIRE(!refused.has_value());
    BOOST_TEST((refused.error().code == errc::mismatch));
    BOOST_TEST(refused.error().message.find("web.key: found mode 6") != std::string::npos,
               refused.error().message);
    BOOST_TEST(!check_listen(options).has_value());
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::net
