#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <string>

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

namespace {

std::int64_t number_in(const std::string& line, const std::string& name) {
  const auto at = line.find('"' + name + "\":");
  BOOST_REQUIRE(at != std::string::npos);
  return std::stoll(line.substr(at + name.size() + 3));
}

std::string sealed(std::string text) {
  const auto end = text.rfind("{\"type\":\"end\"");
  const auto seal = text.rfind("sha256\":\"") + 9;
  return text.replace(seal, 64, sha256_hex(text.substr(0, end)));
}

}  // namespace

BOOST_AUTO_TEST_CASE(what_is_short_does_not_wait_for_a_whole_prompt) {
  const scratch_file file;
  auto made = world_of(true);
  made.setup.requests.clear();
  made.add_requests(12, 6, 0.0, 24);
  made.setup.trace = file.path;
  const auto outcome = actors::run_requests(made.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  const auto checked = trace::verify_trace(file.path);
  BOOST_REQUIRE_MESSAGE(checked.has_value(), (checked ? "" : checked.error().message));
  const auto text = *read_file(file.path);
  std::istringstream lines(text);
  std::size_t n_parts = 0, n_whole = 0;
  std::int64_t longest_short_wait = 0;
  const auto part_ns = static_cast<std::int64_t>(16384 / 2e6 * 1e9);
  for (std::string line; std::getline(lines, line);) {
    n_parts += line.starts_with("{\"type\":\"part\"") ? 1 : 0;
    if (!line.starts_with("{\"type\":\"transfer\"")) continue;
    const auto bytes = number_in(line, "hidden_bytes") + number_in(line, "kv_bytes") +
                       number_in(line, "other_bytes");
    if (bytes > 20'000) {
      ++n_whole;
    } else {
      longest_short_wait =
          std::max(longest_short_wait, number_in(line, "start_ns") - number_in(line, "sent_ns"));
    }
  }
  BOOST_TEST(n_parts > n_whole);
  BOOST_TEST(n_whole > 20u);
  BOOST_TEST(longest_short_wait < 12 * part_ns);
  // What is changed is found.
  const auto refused = [&](std::string changed) {
    BOOST_REQUIRE(write_file(file.path, sealed(std::move(changed))).has_value());
    const auto verified = trace::verify_trace(file.path);
    return verified ? std::string() : verified.error().message;
  };
  const auto part = text.find("{\"type\":\"part\"");
  const auto behind = text.find('\n', part) + 1;
  BOOST_TEST(refused(text.substr(0, part) + text.substr(behind)).find("found") !=
             std::string::npos);
  auto smaller = text;
  smaller.replace(text.find("16384", part), 5, "16383");
  BOOST_TEST(refused(smaller).find("bytes: found 16383, expected 16384") != std::string::npos);
  auto earlier = text;
  const auto second = text.find("{\"type\":\"part\"", behind);
  const auto sent = text.find("\"sent_ns\":", second) + 10;
  earlier.replace(sent, text.find(',', sent) - sent, "1");
  const auto why = refused(earlier);
  BOOST_TEST(why.find("found 1") != std::string::npos, why);
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
