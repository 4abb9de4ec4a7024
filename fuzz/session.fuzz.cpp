#include "net/session/session.hpp"

#include "fuzz/support.hpp"

/// What a peer says over a connection: the first byte chooses the stream, whether the peer has introduced itself before, and the
/// size of the pieces in which the rest comes. Whatever it is, what it has sent and not been confirmed stays within the credit,
/// every frame is of an open session and in the order of its lane, and the connection is closed by what makes no sense.
namespace {

namespace om = ordermoe::net;

constexpr std::int64_t now_ns = 1'000'000'000;

om::session_config config_of(const char* self, const char* peer) {
  om::session_config config;
  config.self.cluster = "fuzz";
  config.self.node = self;
  config.self.self.boot = 1;
  config.self.agreed = {{"model", "abc"}};
  config.peer = peer;
  config.limits.largest_frame.fill(4096);
  config.limits.credit.fill(8192);
  return config;
}

void check_events(om::session& of, std::array<std::uint64_t, om::n_lanes>& next) {
  for (const auto& event : of.take_events()) {
    if (event.kind == om::session_event::what::up) next.fill(0);
    if (event.kind != om::session_event::what::frame) continue;
    auto& expected = next[static_cast<std::size_t>(event.header.of)];
    ORDERMOE_CHECK(event.header.sequence == expected++, "a frame out of its order");
    // Padding counts on the wire, and no user sees it.
    const bool padded = event.header.word == om::session_word::padded;
    ORDERMOE_CHECK(padded ? event.text.size() + om::padding_mark_bytes <= event.header.length
                          : event.text.size() == event.header.length,
                   "a frame of another length");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto which = (data[0] & 1) != 0 ? om::stream::bulk : om::stream::fast;
  const std::size_t piece = 1 + (data[0] >> 2) * 16u;
  om::session here(config_of("a", "b"), now_ns), there(config_of("b", "a"), now_ns);
  std::array<std::uint64_t, om::n_lanes> next{};
  here.connected(1, om::stream::fast, true, "b", now_ns);
  if ((data[0] & 2) != 0) {
    there.connected(1, om::stream::fast, false, "a", now_ns);
    std::string said;
    there.write(1, said, 1 << 16, now_ns);
    here.receive(1, said, now_ns);
    here.send(om::lane::token, 1, 2, 3, 4, "what is kept until it is confirmed");
    std::string out;
    here.write(1, out, 1 << 16, now_ns);
  }
  om::session::connection_id from = 1;
  if (which == om::stream::bulk) here.connected(from = 2, which, false, "b", now_ns);
  std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  while (!text.empty()) {
    here.receive(from, text.substr(0, piece), now_ns);
    text.remove_prefix(std::min(piece, text.size()));
    check_events(here, next);
    std::string out;
    here.write(from, out, 1 << 16, now_ns);
  }
  here.tick(now_ns + 10'000'000'000);
  check_events(here, next);
  ORDERMOE_CHECK(here.now_in() == om::session::phase::away, "a silent peer that is not given up");
  return 0;
}
