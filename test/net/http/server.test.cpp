#include "net/http/server.hpp"

#include <boost/test/unit_test.hpp>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "net/http/client.hpp"
#include "test/net/http/raw_client.hpp"

namespace ordermoe::net {

namespace {

using namespace std::chrono_literals;

/// A server that answers "METHOD path body", and keeps exchanges that ask for it.
struct echo {
  echo() : echo(defaults()) {}
  explicit echo(http_server_options options) {
    options.problem_body = [](int status, std::string_view what) {
      return "refused " + std::to_string(status) + ": " + std::string(what);
    };
    auto made = http_server::start(options, [this](std::shared_ptr<http_exchange> from) {
      const auto& request = from->request();
      if (request.path == "/keep") return keep(std::move(from));
      if (request.path == "/drop") return;
      from->respond(200, {{"X-Peer", request.peer}},
                    request.method + " " + request.path + " " + request.query + " " + request.body);
    });
    BOOST_TEST_REQUIRE(made.has_value(), (made ? "" : made.error().message));
    server = std::move(*made);
    at = server->listens_at();
  }

  void keep(std::shared_ptr<http_exchange> from) {
    from->on_gone([this] {
      const std::lock_guard lock(mutex);
      ++gone;
      changed.notify_all();
    });
    const std::lock_guard lock(mutex);
    kept = std::move(from);
    changed.notify_all();
  }
  std::shared_ptr<http_exchange> wait_for_kept() {
    std::unique_lock lock(mutex);
    BOOST_TEST_REQUIRE(changed.wait_for(lock, 20s, [&] { return kept != nullptr; }));
    return kept;
  }
  void wait_for_gone() {
    std::unique_lock lock(mutex);
    BOOST_TEST_REQUIRE(changed.wait_for(lock, 20s, [&] { return gone > 0; }));
  }

  static const http_server_options& defaults() {
    static const http_server_options made;
    return made;
  }

  std::mutex mutex;
  std::condition_variable changed;
  std::shared_ptr<http_exchange> kept;
  int gone = 0;
  address at;
  std::unique_ptr<http_server> server;
};

http_server_options limited() {
  http_server_options options;
  options.limits.header_bytes = 1000;
  options.limits.body_bytes = 2000;
  options.limits.header_time = 200ms;
  options.limits.body_time = 200ms;
  options.limits.idle_time = 200ms;
  options.limits.write_time = 200ms;
  options.limits.unsent_bytes = 100'000;
  options.limits.connections = 4;
  return options;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(server)

BOOST_AUTO_TEST_CASE(a_request_is_answered) {
  const echo running;
  http_ask ask;
  ask.to = {false, running.at, ""};
  ask.method = "POST";
  ask.path = "/a/b?c=d";
  ask.body = "text";
  const auto reply = http_fetch(ask);
  BOOST_TEST_REQUIRE(reply.has_value(), (reply ? "" : reply.error().message));
  BOOST_TEST(reply->status == 200);
  BOOST_TEST(reply->body == "POST /a/b c=d text");
}

BOOST_AUTO_TEST_CASE(one_connection_carries_several_requests_also_at_once) {
  const echo running;
  raw_client client(running.at);
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  BOOST_TEST(client.until("GET /1  ").ends_with("GET /1  "));
  client.send(
      "GET /2 HTTP/1.1\r\nHost: x\r\n\r\nPOST /3 HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi"
      "GET /4 HTTP/1.1\r\nConnection: close\r\n\r\n");
  const auto rest = client.all();
  BOOST_TEST(rest.find("GET /2  ") < rest.find("POST /3  hi"));
  BOOST_TEST(rest.find("POST /3  hi") < rest.find("GET /4  "));
  BOOST_TEST(rest.ends_with("GET /4  "));
}

BOOST_AUTO_TEST_CASE(what_comes_behind_requests_that_waited_is_taken_as_it_came) {
  const echo running;
  raw_client client(running.at);
  client.send("GET /kept HTTP/1.1\r\n\r\nPOST /waits HTTP/1.1\r\nContent-Length: 5\r\n\r\nfirst");
  BOOST_TEST(client.until("POST /waits  first").ends_with("POST /waits  first"));
  client.send("PUT /later HTTP/1.1\r\nConnection: close\r\nContent-Length: 4\r\n\r\nlast");
  BOOST_TEST(client.all().ends_with("PUT /later  last"));
}

BOOST_AUTO_TEST_CASE(a_body_may_come_in_chunks_and_after_leave_was_asked) {
  const echo running;
  raw_client client(running.at);
  client.send("POST /a HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
  BOOST_TEST(client.until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("3\r\nabc\r\n");
  client.send("2\r\nde\r\n0\r\n\r\n");
  BOOST_TEST(client.until("abcde").ends_with("POST /a  abcde"));
}

BOOST_AUTO_TEST_CASE(old_clients_are_closed_and_heads_have_no_body) {
  const echo running;
  raw_client old(running.at);
  old.send("GET /a HTTP/1.0\r\n\r\n");
  BOOST_TEST(old.all().starts_with("HTTP/1.0 200 OK\r\n"));
  raw_client head(running.at);
  head.send("HEAD /a HTTP/1.1\r\nConnection: close\r\n\r\n");
  const auto text = head.all();
  BOOST_TEST(text.find("Content-Length: 9\r\n") != std::string::npos);
  BOOST_TEST(text.ends_with("\r\n\r\n"));
}

BOOST_AUTO_TEST_CASE(what_is_too_large_too_slow_or_no_request_is_refused) {
  auto options = limited();
  options.limits.header_time = options.limits.body_time = 1s;
  const echo running(options);
  const std::string post = "POST / HTTP/1.1\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  struct {
    std::string sent;
    const char* status;
  } const cases[] = {
      {"GET / HTTP/1.1\r\nX: " + std::string(2000, 'x'), "431"},
      {"GET /" + std::string(2000, 'x') + " HTTP/1.1\r\n\r\n", "431"},
      {"POST / HTTP/1.1\r\nContent-Length: 2001\r\n\r\n", "413"},
      {"POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "400"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d1\r\n" + std::string(2001, 'x'),
       "413"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
       "400"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", "400"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(2000, 'x'), "431"},
      {"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: " + std::string(2000, 'x'),
       "431"},
      // What another reader may understand otherwise: where a body ends, and whom it is for.
      {post + "Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcGET /b HTTP/1.1\r\n\r\n", "400"},
      {post + "Content-Length: +3\r\n\r\nabc", "400"},
      {post + "Content-Length: 0x3\r\n\r\nabc", "400"},
      {post + "Content-Length: \r\n\r\nabc", "400"},
      {post + "Content-Length : 3\r\n\r\nabc", "400"},
      {post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {post + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", "501"},
      {post + "Transfer-Encoding: identity\r\n\r\nGET /b HTTP/1.1\r\n\r\n", "501"},
      {post + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", "501"},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "501"},
      {post + "Transfer-Encoding: \r\n\r\nGET /b HTTP/1.1\r\n\r\n", "501"},
      {post + "Transfer-Encoding: \x0b"
              "chunked\r\n\r\n0\r\n\r\n",
       "400"},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", "400"},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400"},
      {chunked + "ffffffffffffffffff\r\nabc", "400"},
      {chunked + "-1\r\nabc", "400"},
      {chunked + "0x3\r\nabc\r\n0\r\n\r\n", "400"},
      {chunked + "2\r\nabcdef\r\n0\r\n\r\n", "400"},
      {chunked + "3\nabc\n0\n\n", "408"},
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\n X: a\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nX: a\rY: b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\nX: a\n\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nX: a" + std::string(1, '\0') + "b\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nX\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\n: x\r\n\r\n", "400"},
      {"G(T / HTTP/1.1\r\n\r\n", "400"},
      {"GET  / HTTP/1.1\r\n\r\n", "400"},
      {"GET /a b HTTP/1.1\r\n\r\n", "400"},
      {"GET /\r\n\r\n", "400"},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "400"},
      {"\x16\x03\x01 a handshake\r\n\r\n", "400"},
      {"GET / HTTP/9.9\r\n\r\n", "400"},
      {"GET / HTTP/1.1\r\nX: a", "408"},
      {"POST / HTTP/1.1\r\nContent-Length: 20\r\n\r\nabc", "408"},
  };
  for (const auto& [sent, status] : cases) {
    raw_client client(running.at);
    client.send(sent);
    const auto text = client.all();
    BOOST_TEST(text.starts_with(std::string("HTTP/1.1 ") + status),
               sent.substr(0, 60) << " -> " << text.substr(0, 100));
    BOOST_TEST(text.find(std::string("refused ") + status) != std::string::npos);
  }
  BOOST_TEST(raw_client(running.at).all().empty(), "an idle connection is closed without a word");
}

BOOST_AUTO_TEST_CASE(whoever_says_a_little_now_and_then_is_not_waited_for) {
  const echo running(limited());
  for (const char* begin : {"GET / HTTP/1.1\r\n", "POST / HTTP/1.1\r\nContent-Length: 2000\r\n\r\n",
                            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n7d0\r\n"}) {
    raw_client client(running.at);
    client.send(begin);
    // Three times as long as it may take in all.
    for (int i = 0; i < 30; ++i) {
      std::this_thread::sleep_for(20ms);
      client.send(i % 2 == 0 ? "X:" : "\r\n");
    }
    BOOST_TEST(client.all().starts_with("HTTP/1.1 408"), begin);
  }
}

BOOST_AUTO_TEST_CASE(the_first_head_has_its_time_from_when_the_connection_was_opened) {
  auto options = limited();
  options.limits.header_time = 4s;
  const echo running(options);
  const auto begin = std::chrono::steady_clock::now();
  raw_client client(running.at);
  std::this_thread::sleep_for(3s);
  client.send("GET / HTTP/1.1\r\n");
  BOOST_TEST(client.all().starts_with("HTTP/1.1 408"));
  // As it would be if the time began anew with its first byte.
  BOOST_TEST((std::chrono::steady_clock::now() - begin < 6500ms));
}

BOOST_AUTO_TEST_CASE(a_crowd_is_turned_away) {
  http_server_options options;
  options.limits.connections = 4;
  const echo running(options);
  std::vector<std::unique_ptr<raw_client>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<raw_client>(running.at));
  // Whoever connects later is accepted later: one thread accepts.
  BOOST_TEST(raw_client(running.at).all().starts_with("HTTP/1.1 503"));
}

BOOST_AUTO_TEST_CASE(whoever_is_turned_away_and_stays_takes_nobodys_place) {
  http_server_options options;
  options.limits.connections = 4;
  const echo running(options);
  std::vector<std::unique_ptr<raw_client>> clients;
  for (int i = 0; i < 4; ++i) clients.push_back(std::make_unique<raw_client>(running.at));
  raw_client stays(running.at);
  BOOST_TEST(stays.until("\r\n\r\n").starts_with("HTTP/1.1 503"));
  clients.pop_back();
  // The server hears of that before long, and far sooner than it closes who was turned away.
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<raw_client>> others;
  std::string head;
  while (!head.starts_with("HTTP/1.1 200") && std::chrono::steady_clock::now() - begin < 1s) {
    others.push_back(std::make_unique<raw_client>(running.at));
    others.back()->send("GET / HTTP/1.1\r\n\r\n");
    head = others.back()->until("\r\n\r\n");
    std::this_thread::sleep_for(20ms);
  }
  BOOST_TEST(head.starts_with("HTTP/1.1 200"));
}

BOOST_AUTO_TEST_CASE(a_stream_comes_part_by_part) {
  echo running;
  raw_client client(running.at);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  const auto kept = running.wait_for_kept();
  running.server->post([kept] {
    kept->begin_stream(200, {{"Content-Type", "text/event-stream"}});
    kept->write("one");
  });
  BOOST_TEST(client.until("one\r\n").find("Transfer-Encoding: chunked") != std::string::npos);
  running.server->post([kept] {
    kept->write("two");
    kept->end();
    kept->write("never");
  });
  BOOST_TEST(client.until("0\r\n\r\n") == "3\r\ntwo\r\n0\r\n\r\n");
  client.send("GET /after HTTP/1.1\r\n\r\n");
  BOOST_TEST(client.until("/after").ends_with("GET /after"));
}

BOOST_AUTO_TEST_CASE(what_is_posted_is_one_turn_which_is_written_behind_it) {
  echo running;
  raw_client client(running.at);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  const auto kept = running.wait_for_kept();
  std::promise<bool> was_written;
  running.server->post([&, kept] {
    kept->begin_stream(200, {});
    kept->write("one");
    was_written.set_value(client.has_more());
    kept->end();
  });
  BOOST_TEST(!was_written.get_future().get());
  BOOST_TEST(client.until("0\r\n\r\n").ends_with("3\r\none\r\n0\r\n\r\n"));
}

BOOST_AUTO_TEST_CASE(a_part_is_written_by_whoever_has_it) {
  echo running;
  raw_client client(running.at);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  const auto kept = running.wait_for_kept();
  running.server->post([kept] { kept->begin_stream(200, {}); });
  client.until("\r\n\r\n");
  std::promise<void> held, release;
  running.server->post([&] {
    held.set_value();
    release.get_future().wait();
  });
  held.get_future().wait();
  running.server->begin_turn();
  kept->write("one");
  kept->write("two");
  running.server->end_turn();
  BOOST_TEST(client.until("two\r\n") == "3\r\none\r\n3\r\ntwo\r\n");
  release.set_value();
  running.server->post([kept] { kept->end(); });
  BOOST_TEST(client.until("0\r\n\r\n") == "0\r\n\r\n");
}

BOOST_AUTO_TEST_CASE(what_another_thread_says_faster_than_it_is_read_comes_whole_and_in_order) {
  constexpr std::size_t n_parts = 100, part_bytes = 10'000;
  echo running;
  raw_client client(running.at, 4096);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  const auto kept = running.wait_for_kept();
  running.server->post([kept] { kept->begin_stream(200, {}); });
  client.until("\r\n\r\n");
  std::string expected;
  for (std::size_t i = 0; i < n_parts; ++i) {
    const std::string part(part_bytes, static_cast<char>('a' + i % 26));
    expected += "2710\r\n" + part + "\r\n";
    kept->write(part);
  }
  running.server->post([kept] { kept->end(); });
  const bool is_whole = client.until("\r\n0\r\n\r\n") == expected + "0\r\n\r\n";
  BOOST_TEST(is_whole);
}

BOOST_AUTO_TEST_CASE(whoever_answers_is_told_that_the_peer_is_gone) {
  echo running;
  raw_client client(running.at);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  const auto kept = running.wait_for_kept();
  client.close();
  running.wait_for_gone();
  // And what it still says has no effect.
  running.server->post([kept] { kept->respond(200, {}, "late"); });
}

BOOST_AUTO_TEST_CASE(a_body_that_nobody_wants_is_not_read) {
  auto options = limited();
  options.limits.header_time = options.limits.body_time = options.limits.idle_time = 20s;
  options.most_body = [](const http_request& head) {
    return head.path == "/none" || head.field("x-key").empty() ? 0u : 10u;
  };
  const echo running(options);
  // Neither the bytes that were announced nor leave for them are waited for.
  for (const std::string how : {"Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n",
                                "Content-Length: 9\r\nExpect: 100-continue\r\n"}) {
    raw_client client(running.at);
    client.send("POST /a?b HTTP/1.1\r\n" + how + "\r\n");
    const auto told = client.all();
    BOOST_TEST(told.starts_with("HTTP/1.1 200"), told);
    BOOST_TEST(told.find("Connection: close") != told.npos, told);
    BOOST_TEST(told.ends_with("POST /a b "), told);
  }
  // What comes with the fields is no other request.
  raw_client early(running.at);
  early.send(
      "POST /none HTTP/1.1\r\nX-Key: 1\r\nContent-Length: 30\r\n\r\nGET /b HTTP/1.1\r\n\r\n");
  BOOST_TEST(early.all().ends_with("POST /none  "));
  // Without a body the connection stays, and as many bytes as may be are read.
  raw_client client(running.at);
  client.send("GET /none HTTP/1.1\r\n\r\n");
  BOOST_TEST(client.until("GET /none  ").starts_with("HTTP/1.1 200"));
  client.send("POST /a HTTP/1.1\r\nX-Key: 1\r\nContent-Length: 10\r\n\r\n0123456789");
  BOOST_TEST(client.until("POST /a  0123456789").ends_with("POST /a  0123456789"));
  client.send("POST /a HTTP/1.1\r\nX-Key: 1\r\nContent-Length: 11\r\n\r\n");
  BOOST_TEST(client.all().find("refused 413: the body of the request has more than 10 bytes") !=
             std::string::npos);
  raw_client chunked(running.at);
  chunked.send(
      "POST /a HTTP/1.1\r\nX-Key: 1\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n0123456789a\r\n");
  BOOST_TEST(chunked.all().find("more than 10 bytes") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(whoever_reads_slowly_and_goes_on_reading_gets_all_of_it) {
  auto options = limited();
  options.limits.write_time = 2s;
  echo running(options);
  raw_client client(running.at, 4096);
  client.send("GET /keep HTTP/1.1\r\nConnection: close\r\n\r\n");
  const auto kept = running.wait_for_kept();
  constexpr std::size_t n = 12u << 20;
  running.server->post([kept] { kept->respond(200, {}, std::string(n, 'x')); });
  const auto begin = std::chrono::steady_clock::now();
  std::size_t got = 0;
  for (int i = 0; i < 120; ++i) {
    got += client.some(64u << 10);
    std::this_thread::sleep_for(40ms);
  }
  got += client.all().size();
  BOOST_TEST((std::chrono::steady_clock::now() - begin > 2 * options.limits.write_time));
  BOOST_TEST(got > n);
}

BOOST_AUTO_TEST_CASE(whoever_does_not_read_is_cut_off) {
  echo running(limited());
  raw_client client(running.at, 4096);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  const auto kept = running.wait_for_kept();
  running.server->post([kept] {
    kept->begin_stream(200, {});
    for (int i = 0; i < 1000; ++i) kept->write(std::string(50'000, 'x'));
  });
  running.wait_for_gone();
}

BOOST_AUTO_TEST_CASE(an_exchange_that_is_dropped_closes_its_connection) {
  const echo running;
  raw_client client(running.at);
  client.send("GET /drop HTTP/1.1\r\n\r\n");
  BOOST_TEST(client.all().empty());
}

BOOST_AUTO_TEST_CASE(a_server_that_stops_tells_whoever_answers) {
  echo running;
  raw_client client(running.at);
  client.send("GET /keep HTTP/1.1\r\n\r\n");
  running.wait_for_kept();
  running.server->stop();
  running.wait_for_gone();
  BOOST_TEST(client.all().empty());
}

BOOST_AUTO_TEST_CASE(addresses_of_others_are_refused_unless_allowed) {
  http_server_options options;
  options.listen = {"0.0.0.0", 0};
  const auto refused = http_server::start(options, [](auto) {});
  BOOST_TEST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::usage));
  options.allows_remote = true;
  BOOST_TEST(http_server::start(options, [](auto) {}).has_value());
}

BOOST_AUTO_TEST_CASE(urls_are_read) {
  const auto plain = parse_url("http://127.0.0.1:8080/v1/");
  BOOST_TEST_REQUIRE(plain.has_value());
  BOOST_TEST(!plain->tls);
  BOOST_TEST(plain->at.port == 8080);
  BOOST_TEST(plain->path == "/v1");
  BOOST_TEST(parse_url("https://api.example")->at.port == 443);
  BOOST_TEST(parse_url("localhost:99")->at.port == 99);
  BOOST_TEST(parse_url("http://[::1]")->at.host == "::1");
  for (const char* wrong :
       {"", "http://", "ftp://a", "http://a:b", "http://a/ b", "http://a:70000"})
    BOOST_TEST(!parse_url(wrong).has_value(), wrong);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::net
