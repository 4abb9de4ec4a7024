#include <optional>

#include "fuzz/support.hpp"
#include "planning/plan.hpp"
#include "planning/serving/plan_change.hpp"
#include "trace/header.hpp"

/// What one admin tells another: the first byte chooses a plan, a policy or the name of a step of a change, the rest is its text.
/// What is accepted reads the same when it is written again, and a plan that is accepted is valid.
namespace {

namespace om = ordermoe;

/// What was accepted.
template <class Read, class Write>
auto check(const std::string& text, Read read, Write write) {
  const auto found = read(text, "here");
  if (!found) {
    fuzz::check_refusal(found.error(), "here");
    return found;
  }
  const auto written = write(*found);
  const auto again = read(written, "again");
  ORDERMOE_CHECK(again.has_value(), "what was written is refused");
  ORDERMOE_CHECK(write(*again) == written, "what was written reads differently");
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const auto text = std::string(fuzz::text_of(data + 1, size - 1));
  switch (data[0] % 3) {
    case 0: {
      if (const auto plan = check(text, om::planning::parse_plan, om::planning::plan_json))
        ORDERMOE_CHECK(om::planning::validate(*plan).has_value(),
                       "a plan that holds not is accepted");
      break;
    }
    case 1:
      (void)check(text, om::trace::parse_policy, om::trace::policy_json);
      break;
    default:
      om::serving::parse_change_message(text);
  }
  return 0;
}
