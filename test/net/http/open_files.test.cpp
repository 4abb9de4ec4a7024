#include "net/http/open_files.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <memory>
#include <vector>

#include "net/http/server.hpp"
#include "test/net/http/raw_client.hpp"

namespace ordermoe::net {

namespace {

constexpr rlim_t few = 40, most = 64;
constexpr int dialled = 16;

/// What the other process ends with.
enum exit_code { fine, not_raised, no_server, starved };

/// A server that says where it listens, and when it is asked opens as many files as somebody who dials others.
exit_code serve(int told, int asked) {
  const rlimit limit{few, most};
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return not_raised;
  raise_open_files();
  if (most_open_files() != most) return not_raised;
  const auto running = http_server::start(
      {}, [](const std::shared_ptr<http_exchange>& from) { from->respond(200, {}, ""); });
  if (!running) return no_server;
  const auto port = (*running)->listens_at().port;
  char byte = 0;
  if (::write(told, &port, sizeof port) != sizeof port || ::read(asked, &byte, 1) != 1)
    return no_server;
  for (int i = 0; i < dialled; ++i)
    if (::open("/dev/null", O_RDONLY | O_CLOEXEC) < 0) return starved;
  return fine;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(open_files)

BOOST_AUTO_TEST_CASE(a_crowd_leaves_a_process_with_few_descriptors_some) {
  int told[2], asked[2];
  BOOST_TEST_REQUIRE(::pipe(told) == 0);
  BOOST_TEST_REQUIRE(::pipe(asked) == 0);
  const auto child = ::fork();
  BOOST_TEST_REQUIRE(child >= 0);
  if (child == 0) ::_exit(serve(told[1], asked[0]));
  std::uint16_t port = 0;
  ::close(told[1]);
  BOOST_TEST(::read(told[0], &port, sizeof port) == static_cast<ssize_t>(sizeof port));
  const address at{"127.0.0.1", port};
  std::vector<std::unique_ptr<raw_client>> crowd;
  // As many as are served: of the 64, 32 are kept back, and of the rest an eighth is for being turned away.
  for (int i = 0; i < 28 && port != 0; ++i) {
    crowd.push_back(std::make_unique<raw_client>(at));
    crowd.back()->send("GET / HTTP/1.1\r\n\r\n");
    BOOST_TEST(crowd.back()->until("\r\n\r\n").starts_with("HTTP/1.1 200"));
  }
  if (port != 0) {
    raw_client refused(at);
    BOOST_TEST(refused.until("try again later").starts_with("HTTP/1.1 503"));
    for (std::size_t i = 0; i < 2 * most; ++i) crowd.push_back(std::make_unique<raw_client>(at));
    // The last of them was seen to.
    crowd.back()->all();
  }
  BOOST_TEST(::write(asked[1], "x", 1) == 1);
  int status = 0;
  BOOST_TEST_REQUIRE(::waitpid(child, &status, 0) == child);
  BOOST_TEST(WIFEXITED(status));
  BOOST_TEST(WEXITSTATUS(status) == fine);
  for (const int each : {told[0], asked[0], asked[1]}) ::close(each);
}

BOOST_AUTO_TEST_CASE(who_has_enough_serves_as_many_as_are_wanted) {
  if (most_open_files() < 400) return;
  const auto room = room_for_connections(100);
  BOOST_TEST(room.served == 100u);
  BOOST_TEST(room.turned_away == 100u);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::net
