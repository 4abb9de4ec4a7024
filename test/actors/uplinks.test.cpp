#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <numeric>

#include "config/sha256.hpp"
#include "test/actors/fixture.hpp"
#include "trace/verify.hpp"

/// Emulated servers whose links share uplinks.
namespace ordermoe {

namespace {

struct scratch_file {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("ordermoe-uplinks-" + std::to_string(::getpid()) + ".jsonl");
  ~scratch_file() { std::filesystem::remove(path); }
};

/// Of ten requests that come close to each other, with all links as slow as the uplinks.
test::world world_of(bool shared) {
  test::world made("exact", 0, 3, 4);
  for (auto& link : made.setup.servers.links) link.bandwidth_bytes_per_s = 2e6;
  if (shared)
    for (auto& server : made.setup.servers.servers) server.uplink_bytes_per_s = 2e6;
  bound_by_uplinks(made.setup.servers);
  made.add_requests(10, 6, 0.0);
  return made;
}

double mean_ms(const actors::run_result& outcome) {
  double sum = 0;
  for (const auto& each : outcome.outcomes)
    sum += static_cast<double>(each.done_ns - each.arrival_ns) * 1e-6;
  return sum / static_cast<double>(outcome.outcomes.size());
}

}  // namespace

BOOST_AUTO_TEST_SUITE(uplinks)

BOOST_AUTO_TEST_CASE(links_that_share_uplinks_are_slower_and_answer_the_same) {
  const scratch_file file;
  auto apart = world_of(false), together = world_of(true);
  together.setup.trace = file.path;
  const auto alone = actors::run_requests(apart.setup);
  const auto shared = actors::run_requests(together.setup);
  BOOST_REQUIRE_MESSAGE(alone.has_value(), (alone ? "" : alone.error().message));
  BOOST_REQUIRE_MESSAGE(shared.has_value(), (shared ? "" : shared.error().message));
  for (std::size_t i = 0; i < alone->outcomes.size(); ++i)
    BOOST_TEST(alone->outcomes[i].token_ids == shared->outcomes[i].token_ids,
               boost::test_tools::per_element());
  BOOST_TEST(mean_ms(*shared) > 1.1 * mean_ms(*alone));
  // Every transfer begins when the uplinks of the trace's cluster have room for it.
  const auto checked = trace::verify_trace(file.path);
  BOOST_REQUIRE_MESSAGE(checked.has_value(), (checked ? "" : checked.error().message));
  // Another cluster's would not.
  auto text = *read_file(file.path);
  const std::string rate = "uplink_gbps = 0.016";
  const auto place = text.find(rate);
  BOOST_REQUIRE(place != std::string::npos);
  text.replace(place, rate.size(), "uplink_gbps = 0.032");
  const auto end = text.rfind("{\"type\":\"end\"");
  const auto seal = text.rfind("sha256\":\"") + 9;
  text.replace(seal, 64, sha256_hex(text.substr(0, end)));
  BOOST_REQUIRE(write_file(file.path, text).has_value());
  const auto refused = trace::verify_trace(file.path);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(refused.error().message.find("start_ns") != std::string::npos,
             refused.error().message);
}

BOOST_AUTO_TEST_CASE(a_run_with_shared_uplinks_repeats_to_the_nanosecond) {
  auto first = world_of(true), second = world_of(true);
  const auto a = actors::run_requests(first.setup), b = actors::run_requests(second.setup);
  BOOST_REQUIRE(a.has_value());
  BOOST_REQUIRE(b.has_value());
  for (std::size_t i = 0; i < a->outcomes.size(); ++i)
    BOOST_TEST(a->outcomes[i].done_ns == b->outcomes[i].done_ns);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
