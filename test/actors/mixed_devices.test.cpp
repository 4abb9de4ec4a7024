#include <unistd.h>

#include <array>
#include <boost/test/unit_test.hpp>
#include <filesystem>

#include "test/actors/fixture.hpp"
#include "test/support/devices.hpp"
#include "trace/verify.hpp"

/// Servers of one process that compute on different devices.
namespace ordermoe {

namespace {

constexpr auto kind = model::family::mixtral;

/// Four requests on five servers, of which those of odd numbers compute on LibTorch.
test::world mixed_world() {
  test::world world("exact", 0, 1, 5, test::random_model(kind));
  auto& setup = world.setup;
  const auto device = test::libtorch_device();
  setup.on_devices[device] = test::random_model(kind, {.device = device});
  for (std::size_t m = 1; m < setup.servers.size(); m += 2)
    setup.servers.servers[m].device = device;
  world.add_requests(4, 12, 0.0);
  return world;
}

struct scratch_file {
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("ordermoe-mixed-" + std::to_string(::getpid()) + ".jsonl");
  ~scratch_file() { std::filesystem::remove(path); }
};

trace::trace_summary traced(test::world& world) {
  const scratch_file file;
  world.setup.trace = file.path;
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
  auto summary = trace::verify_trace(file.path);
  BOOST_REQUIRE_MESSAGE(summary.has_value(), (summary ? "" : summary.error().message));
  return std::move(*summary);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(mixed_devices)

BOOST_AUTO_TEST_CASE(servers_on_different_devices_answer_together) {
  for (const auto mode : {actors::run_mode::emulated, actors::run_mode::local}) {
    auto world = mixed_world();
    world.setup.mode = mode;
    const auto outcome = actors::run_requests(world.setup);
    BOOST_REQUIRE_MESSAGE(outcome.has_value(), (outcome ? "" : outcome.error().message));
    BOOST_REQUIRE_EQUAL(outcome->outcomes.size(), 4u);
    for (const auto& each : outcome->outcomes) {
      BOOST_TEST(!each.problem.has_value());
      BOOST_TEST(each.token_ids.size() == 12u);
    }
    // Servers of both kinds have run batches.
    std::array<std::int64_t, 2> batches{};
    for (std::size_t m = 0; m < outcome->servers.size(); ++m)
      batches[m % 2] += outcome->servers[m].batches;
    BOOST_TEST(batches[0] > 0);
    BOOST_TEST(batches[1] > 0);
  }
}

BOOST_AUTO_TEST_CASE(a_trace_of_several_kinds_says_so_and_one_of_one_kind_does_not) {
  auto mixed = mixed_world();
  const auto said = traced(mixed);
  BOOST_TEST(said.mixed_devices.find("2 kinds") != std::string::npos, said.mixed_devices);
  BOOST_TEST(trace::summary_text(said).find("devices ") != std::string::npos);
  BOOST_TEST(trace::summary_json(said).find("\"mixed_devices\"") != std::string::npos);
  auto alike = mixed_world();
  for (auto& server : alike.setup.servers.servers) server.device = test::libtorch_device();
  BOOST_TEST(traced(alike).mixed_devices == "");
}

BOOST_AUTO_TEST_CASE(a_server_on_a_device_without_a_model_there_is_refused_by_name) {
  auto world = mixed_world();
  world.setup.servers.servers[3].device = "libtorch:cuda:7";
  const auto outcome = actors::run_requests(world.setup);
  BOOST_REQUIRE(!outcome.has_value());
  BOOST_TEST((outcome.error().code == errc::mismatch));
  for (const char* part : {"server 3", "libtorch:cuda:7", "no model was loaded"})
    BOOST_TEST(outcome.error().message.find(part) != std::string::npos, outcome.error().message);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
