#include "net/bulk/transfer.hpp"

#include <algorithm>

#include "fuzz/support.hpp"

/// Frames of a peer on lane bulk, to a sender and to a receiver. Each has a byte for its kind and the end that it goes to, one
/// for request and attempt, one for its length, and its payload. A sender sends no more than it was asked for and in
/// frames that a session takes; a receiver hands on what is missing and no more.
namespace {

namespace om = ordermoe::net;

constexpr std::uint64_t thing_bytes = 40'000;

/// Has one thing.
struct shelf : om::bulk_shelf {
  ordermoe::result<std::uint64_t> find(const std::string& name) override {
    ORDERMOE_CHECK(!name.empty() && name.size() <= om::most_bulk_name_bytes, "a name out of range");
    if (name == "thing") return thing_bytes;
    return ordermoe::error{ordermoe::errc::not_found, name + ": not here"};
  }
  ordermoe::result<std::string> read(const std::string& name, std::uint64_t offset,
                                     std::size_t bytes) override {
    ORDERMOE_CHECK(name == "thing" && offset <= thing_bytes && bytes <= thing_bytes - offset,
                   "what is read is not there");
    return std::string(bytes, 'x');
  }
};

void send(om::bulk_sender& from) {
  for (int i = 0; i < 4 && from.has_next(); ++i) {
    const auto next = from.next();
    if (!next) return;
    ORDERMOE_CHECK(next->payload.size() <= om::bulk_part_bytes + sizeof(std::uint64_t),
                   "a frame that is larger than may be");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  shelf things;
  om::bulk_sender sender(things);
  std::uint64_t came = 0;
  const om::bulk_item wanted{"thing", 64, std::string(64, '0')};
  om::bulk_receiver receiver(wanted, 0, [&](std::string_view bytes) {
    came += bytes.size();
    return ordermoe::result<void>{};
  });
  receiver.ask();
  bool over = false;
  for (auto rest = fuzz::text_of(data, size); rest.size() >= 3;) {
    const auto at = [&](std::size_t i) { return static_cast<std::uint8_t>(rest[i]); };
    om::frame_header header;
    header.of = om::lane::bulk;
    header.kind = at(0) >> 1;
    header.request = at(1) & 15;
    header.attempt = at(1) >> 4;
    const bool to_sender = (at(0) & 1) != 0;
    const auto payload = rest.substr(3, at(2));
    rest.remove_prefix(std::min(rest.size(), 3 + payload.size()));
    if (to_sender) {
      if (const auto taken = sender.take(header, payload); !taken)
        fuzz::check_refusal(taken.error(), "bulk");
      send(sender);
    } else if (!over && !receiver.done()) {
      over = !receiver.take(header, payload);
      ORDERMOE_CHECK(came <= wanted.bytes && came == receiver.bytes_there(),
                     "what is handed on is not what came");
    }
  }
  return 0;
}
