#include <algorithm>
#include <array>
#include <boost/asio/error.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>

#include "fuzz/support.hpp"
#include "net/http/connection.hpp"

/// What a peer says to the HTTP server, without a socket: the first byte chooses the limits and the sizes of the pieces in which the
/// rest comes. Whatever it is, requests that are handed on are within the limits, every answer is whole, and the same bytes in
/// other pieces are the same requests with the same answers.
namespace {

namespace om = ordermoe::net;
namespace detail = ordermoe::net::http_detail;
using boost::system::error_code;

/// A peer that says something when nothing else is left to do, and hears everything.
class scripted_stream final : public detail::byte_stream {
 public:
  struct state {
    char* to = nullptr;
    std::size_t most = 0;
    done reader;
    std::string written;
    bool is_closed = false, ended_writing = false;
  };
  scripted_stream(boost::asio::io_context& io, std::shared_ptr<state> of)
      : io_(io), state_(std::move(of)) {}

  void open(std::function<void(const error_code&)> told) override { told({}); }
  void read(char* to, std::size_t most, done told) override {
    ORDERMOE_CHECK(!state_->reader, "two reads at a time");
    state_->to = to;
    state_->most = most;
    state_->reader = std::move(told);
  }
  void write(std::string_view what, done told) override {
    ORDERMOE_CHECK(!state_->is_closed && !state_->ended_writing, "a write after the end");
    boost::asio::post(io_, [of = state_, what, told = std::move(told)] {
      // The text must live until now.
      of->written += what;
      told({}, what.size());
    });
  }
  void end_writing() override { state_->ended_writing = true; }
  void close() override {
    if (std::exchange(state_->is_closed, true)) return;
    if (auto reader = std::exchange(state_->reader, {}))
      boost::asio::post(io_, [reader] { reader(boost::asio::error::operation_aborted, 0); });
  }

 private:
  boost::asio::io_context& io_;
  std::shared_ptr<state> state_;
};

struct heard {
  std::vector<om::http_request> requests;
  std::string answers;  ///< Without what only says that a body may come.
  std::uint64_t refused = 0;
};

constexpr std::string_view go_on = "HTTP/1.1 100 Continue\r\n\r\n";

/// The status lines and bodies of `text`, which must be whole answers and nothing else.
void check_answers(std::string_view text, const std::vector<bool>& heads) {
  for (std::size_t i = 0; !text.empty(); ++i) {
    ORDERMOE_CHECK(text.starts_with("HTTP/1.1 ") || text.starts_with("HTTP/1.0 "),
                   "an answer without a status line");
    const auto end = text.find("\r\n\r\n");
    ORDERMOE_CHECK(end != std::string_view::npos, "an answer whose fields do not end");
    const auto head = text.substr(0, end + 2);
    text.remove_prefix(end + 4);
    const bool has_body = i >= heads.size() || !heads[i];
    constexpr std::string_view name = "Content-Length: ";
    if (const auto at = head.find(name); at != std::string_view::npos) {
      const auto length = std::strtoull(head.data() + at + name.size(), nullptr, 10);
      if (!has_body) continue;
      ORDERMOE_CHECK(text.size() >= length, "an answer that is cut off");
      text.remove_prefix(length);
    } else if (head.find("Transfer-Encoding: chunked") != std::string_view::npos) {
      if (!has_body) continue;
      const auto last = text.find("0\r\n\r\n");
      ORDERMOE_CHECK(last != std::string_view::npos, "chunks without an end");
      text.remove_prefix(last + 5);
    } else {
      // Of HTTP/1.0: to the end of the connection.
      text = {};
    }
  }
}

void check_request(const om::http_request& request, const om::http_limits& limits) {
  ORDERMOE_CHECK(request.body.size() <= limits.body_bytes, "a body beyond the limit");
  ORDERMOE_CHECK(!request.method.empty(), "a request without a method");
  ORDERMOE_CHECK(request.path.find_first_of(" \r\n?") == std::string::npos,
                 "a path with what ends it");
  std::size_t bytes = 0;
  for (const auto& [name, value] : request.fields) {
    bytes += name.size() + value.size();
    ORDERMOE_CHECK(std::ranges::none_of(name, [](char c) { return c >= 'A' && c <= 'Z'; }),
                   "a field that is not in lower case");
    ORDERMOE_CHECK((name + value).find_first_of("\r\n\0", 0, 3) == std::string::npos,
                   "a field with the end of a line");
  }
  ORDERMOE_CHECK(bytes <= limits.header_bytes, "fields beyond the limit");
  // Nobody who reads along takes another end of the body for the right one.
  if (const auto coding = request.field("transfer-encoding"); !coding.empty())
    ORDERMOE_CHECK(coding.size() == 7, "a transfer coding that is not chunked");
}

/// Answers half of the requests at once and half as a stream.
heard run(std::string_view text, const om::http_server_options& options,
          const std::array<std::size_t, 3>& pieces) {
  boost::asio::io_context io;
  heard found;
  std::vector<bool> heads;
  detail::server_side* turns = nullptr;
  const om::http_handler handler = [&](std::shared_ptr<om::http_exchange> from) {
    found.requests.push_back(from->request());
    heads.push_back(from->request().method == "HEAD");
    if (from->request().body.size() % 2 == 0) return from->respond(200, {{"X", "y"}}, "answer");
    from->begin_stream(200, {});
    from->write("part");
    boost::asio::post(io, [from, &turns] {
      turns->begin_turn();
      from->write("other");
      from->end();
      turns->end_turn();
    });
  };
  detail::server_side side{io, options, handler, {}, [](const detail::connection*) {}};
  turns = &side;
  auto of = std::make_shared<scripted_stream::state>();
  std::make_shared<detail::connection>(side, std::make_unique<scripted_stream>(io, of), "peer")
      ->open();
  for (std::size_t i = 0;; ++i) {
    // As long as something is left to do, timers aside, the peer says nothing.
    while (io.poll() > 0) {
    }
    const auto reader = std::exchange(of->reader, {});
    if (!reader) break;
    const auto n = std::min({pieces[i % pieces.size()], of->most, text.size()});
    std::ranges::copy(text.substr(0, n), of->to);
    text.remove_prefix(n);
    reader(n == 0 ? error_code(boost::asio::error::eof) : error_code(), n);
  }
  ORDERMOE_CHECK(of->is_closed, "a connection that is not closed when its peer has gone");
  ORDERMOE_CHECK(side.figures.requests == found.requests.size(), "a request that nobody heard of");
  found.answers = std::move(of->written);
  for (auto at = found.answers.find(go_on); at != std::string::npos; at = found.answers.find(go_on))
    found.answers.erase(at, go_on.size());
  found.refused = side.figures.refused;
  ORDERMOE_CHECK(found.refused <= 1, "a connection that is refused and goes on");
  check_answers(found.answers, heads);
  for (const auto& request : found.requests) check_request(request, options.limits);
  return found;
}

bool same(const om::http_request& a, const om::http_request& b) {
  return a.method == b.method && a.path == b.path && a.query == b.query && a.fields == b.fields &&
         a.body == b.body;
}

/// A request that never ends may be refused as soon as it makes no sense, or only where more of it comes: the parser looks at
/// fields as they come, or once all are there, by how they are cut. Otherwise no answer differs.
bool same_answers(const heard& a, const heard& b) {
  return a.answers.starts_with(b.answers) && a.refused >= b.refused &&
         (a.refused > b.refused) == (a.answers.size() > b.answers.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const bool is_tight = (data[0] & 1) != 0;
  om::http_server_options options;
  if (is_tight) options.limits.header_bytes = 128;
  if (is_tight) options.limits.body_bytes = 64;
  const auto text = fuzz::text_of(data + 1, size - 1);
  const std::size_t piece = 1 + (data[0] >> 1);
  const auto in_pieces = run(text, options, {piece, 1, 3 * piece});
  // Whatever is larger than one reading may be refused by where it is cut.
  constexpr std::size_t one_reading = 16u << 10;
  if (is_tight || text.size() > one_reading) return 0;
  const auto whole = run(text, options, {one_reading, one_reading, one_reading});
  ORDERMOE_CHECK(std::ranges::equal(in_pieces.requests, whole.requests, same),
                 "the same bytes in other pieces are other requests");
  ORDERMOE_CHECK(same_answers(in_pieces, whole) || same_answers(whole, in_pieces),
                 "the same bytes in other pieces have other answers");
  return 0;
}
