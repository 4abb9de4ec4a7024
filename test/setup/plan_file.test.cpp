#include "setup/plan_file.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <string>

#include "config/files.hpp"
#include "test/setup/small_world.hpp"

namespace ordermoe {

namespace {

namespace fs = std::filesystem;

setup::world small_world() {
  auto made = test::small_world(test::tiny_model(), 4, 16);
  for (auto& layer : made.profile.layers) layer.left_out = {0.5, 0.1};
  return made;
}

setup::preparation_request small_request(double quality_percent) {
  setup::preparation_request request;
  request.options.quality_percent = quality_percent;
  request.options.search_steps = 100;
  request.options.dry_run_requests = 4;
  return request;
}

struct scratch_file {
  fs::path path = fs::temp_directory_path() / ("ordermoe-plan-" + std::to_string(::getpid()));
  ~scratch_file() { fs::remove(path); }
};

/// What a plan file that was made for a world says when it is read again.
struct written_plan {
  setup::world world = small_world();
  setup::preparation_request request;
  setup::prepared ready;
  setup::plan_file file;

  explicit written_plan(double quality_percent) : request(small_request(quality_percent)) {
    job work;
    auto made = setup::prepare(world, request, work);
    BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
    ready = std::move(*made);
    const scratch_file scratch;
    BOOST_REQUIRE(
        write_file(scratch.path, setup::plan_file_json(world, request, ready)).has_value());
    auto read = setup::read_plan_file(scratch.path);
    BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
    file = std::move(*read);
  }
};

std::string refusal(const setup::plan_file& file, const setup::world& world) {
  const auto checked = setup::check_made_for(file, world);
  return checked ? "" : checked.error().message;
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

std::string refused_text(const std::string& text) {
  const scratch_file scratch;
  BOOST_REQUIRE(write_file(scratch.path, text).has_value());
  const auto read = setup::read_plan_file(scratch.path);
  BOOST_REQUIRE(!read.has_value());
  BOOST_TEST((read.error().code != errc::infeasible));
  BOOST_TEST(has(read.error().message, scratch.path.string()));
  return read.error().message;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(plan_file)

BOOST_AUTO_TEST_CASE(a_plan_that_is_read_again_is_prepared_to_the_same_service) {
  const written_plan written(20);
  BOOST_REQUIRE(written.ready.was_tuned);
  auto request = setup::request_with(written.file, small_request(20));
  BOOST_REQUIRE(request.has_value());
  job work;
  const auto again = setup::prepare(written.world, *request, work);
  BOOST_REQUIRE_MESSAGE(again.has_value(), (again ? "" : again.error().message));
  const auto& before = written.ready.service;
  BOOST_TEST(planning::plan_json(again->service.chosen.plan) ==
             planning::plan_json(before.chosen.plan));
  BOOST_TEST(again->service.chosen.policy.price_ns_per_loss ==
             before.chosen.policy.price_ns_per_loss);
  BOOST_TEST(again->service.chosen.token_budget == before.chosen.token_budget);
  for (std::size_t l = 0; l < before.profile.layers.size(); ++l) {
    const auto &layer = before.profile.layers[l], &read = again->service.profile.layers[l];
    BOOST_TEST((read.damage == layer.damage));
    BOOST_TEST_REQUIRE((layer.left_out && read.left_out));
    BOOST_TEST(read.left_out->damage == layer.left_out->damage);
  }
}

BOOST_AUTO_TEST_CASE(a_plan_of_before_has_one_correction_for_substitutes_and_what_is_left_out) {
  const written_plan written(20);
  auto ready = written.ready;
  ready.found.damage = 3;
  ready.found.left_out = 5;
  auto text = setup::plan_file_json(written.world, written.request, ready);
  const auto left_out_of = [](const std::string& content) {
    const scratch_file scratch;
    BOOST_REQUIRE(write_file(scratch.path, content).has_value());
    const auto read = setup::read_plan_file(scratch.path);
    BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
    const auto request = setup::request_with(*read, small_request(20));
    BOOST_REQUIRE((request.has_value() && request->known_tuning.has_value()));
    BOOST_TEST(request->known_tuning->damage == 3);
    return request->known_tuning->left_out;
  };
  BOOST_TEST(left_out_of(text) == 5);
  const auto key = text.find("\"left_out\"");
  BOOST_REQUIRE(key != std::string::npos);
  const auto comma = text.rfind(',', key);
  text.erase(comma, text.find('}', key) - comma);
  BOOST_TEST(left_out_of(text) == 3);
}

BOOST_AUTO_TEST_CASE(a_plan_is_refused_for_another_model_strategy_or_charges_by_name) {
  const written_plan written(0);
  BOOST_TEST(refusal(written.file, written.world) == "");
  auto other = written.world;
  other.model_digest = std::string(64, 'b');
  BOOST_TEST(has(refusal(written.file, other), "made for the model tiny"));
  other = written.world;
  other.costs.name = "other";
  BOOST_TEST(has(refusal(written.file, other), "the charges"));
  auto request = small_request(0);
  request.strategy = "exact";
  const auto refused = setup::request_with(written.file, request);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST(has(refused.error().message, "made for the strategy ordermoe, not for exact"));
}

BOOST_AUTO_TEST_CASE(a_plan_is_refused_for_another_cluster_by_what_differs_first) {
  const written_plan written(0);
  const auto with = [&](auto&& change) {
    auto other = written.world;
    change(other.servers);
    return refusal(written.file, other);
  };
  BOOST_TEST(has(with([](cluster& c) { c.servers[2].name = "renamed"; }), "server 2"));
  BOOST_TEST(has(with([](cluster& c) { c.servers[1].memory_bytes += 8; }), "bytes of memory"));
  BOOST_TEST(
      has(with([](cluster& c) { c.links[1].bandwidth_bytes_per_s /= 100; }), "bytes a second"));
  BOOST_TEST(has(with([](cluster& c) { c.links[1].latency_ns += 1; }), "ns of latency"));
  BOOST_TEST(with([](cluster& c) { c.name = "another"; }) == "");
}

BOOST_AUTO_TEST_CASE(another_budget_is_tuned_anew_on_the_plan) {
  const written_plan written(20);
  const auto request = setup::request_with(written.file, small_request(10));
  BOOST_REQUIRE(request.has_value());
  BOOST_TEST(!request->known_tuning.has_value());
  BOOST_TEST(request->options.plan.has_value());
}

BOOST_AUTO_TEST_CASE(a_damaged_plan_is_bad_input_that_names_the_file) {
  const written_plan written(0);
  const auto text = setup::plan_file_json(written.world, written.request, written.ready);
  auto without = text;
  without.replace(without.find("made_for"), 8, "made_off");
  BOOST_TEST(has(refused_text(without), "made_for"));
  auto lacking = text;
  const auto experts = lacking.find("\"n_experts\"");
  lacking.replace(experts, lacking.find(',', experts) - experts, "\"n_experts\": 9");
  refused_text(lacking);
  refused_text("{");
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
