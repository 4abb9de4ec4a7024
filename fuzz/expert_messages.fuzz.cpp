#include "actors/cluster/expert_messages.hpp"

#include "fuzz/support.hpp"

/// The first byte chooses an ask for an expert or an expert's answer, the rest are its bytes. What is accepted is written as
/// the same bytes.
namespace {

namespace om = ordermoe::actors;

template <class Read>
void check(std::string_view bytes, Read read, const char* place) {
  const auto found = read(bytes);
  if (!found) {
    fuzz::check_refusal(found.error(), place);
    return;
  }
  ORDERMOE_CHECK(found->rows.size() * sizeof(float) <= om::most_row_bytes, "more rows than may be");
  ORDERMOE_CHECK(om::encode(*found) == bytes, "a message of two encodings");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto bytes = fuzz::text_of(data + 1, size - 1);
  if (data[0] % 2 == 0)
    check(bytes, om::decode_expert_ask, "an ask for an expert");
  else
    check(bytes, om::decode_expert_answer, "an expert's answer");
  return 0;
}
