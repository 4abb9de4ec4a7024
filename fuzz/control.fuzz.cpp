#include "actors/cluster/control.hpp"

#include "actors/cluster/plan_messages.hpp"
#include "fuzz/support.hpp"

/// The first byte chooses a message between clients, hosts that join and nodes, the rest is its text. What is accepted reads
/// the same when it is written again.
namespace {

namespace om = ordermoe::actors;

template <class Read, class Write>
void check(const std::string& text, Read read, Write write, const char* place) {
  const auto found = read(text);
  if (!found) {
    fuzz::check_refusal(found.error(), place);
    return;
  }
  const auto written = write(*found);
  const auto again = read(written);
  ORDERMOE_CHECK(again.has_value(), "what was written is refused");
  ORDERMOE_CHECK(write(*again) == written, "what was written reads differently");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto text = std::string(fuzz::text_of(data + 1, size - 1));
  switch (data[0] % 5) {
    case 0:
      check(text, om::parse_submit, om::submit_text, "submit");
      break;
    case 1:
      check(text, om::parse_cancel, om::cancel_text, "cancel");
      break;
    case 2:
      check(text, om::parse_token, om::token_text, "token");
      break;
    case 3:
      check(text, om::parse_ended, om::ended_text, "ended");
      break;
    default:
      check(text, om::parse_notice, om::notice_text, "plan_told");
  }
  return 0;
}
