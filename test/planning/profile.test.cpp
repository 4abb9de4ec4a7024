#include "planning/profile.hpp"
#include "test/support/random_profile.hpp"

#include <boost/test/unit_test.hpp>
#include <cmath>
#include <filesystem>
#include <limits>

#include "config/files.hpp"
#include "config/random.hpp"

using namespace ordermoe;
using namespace ordermoe::planning;

namespace {

/// The error of a profile after one change; empty message where it is still valid.
template <class Change>
error after(Change change) {
  auto content = random_profile(3, 4, 2, 7);
  change(content);
  const auto checked = validate(content);
  return checked ? error{errc::failed, ""} : checked.error();
}

bool same(const layer_profile& a, const layer_profile& b) {
  if (a.sets.size() != b.sets.size()) return false;
  for (std::size_t s = 0; s < a.sets.size(); ++s)
    if (a.sets[s].experts != b.sets[s].experts || a.sets[s].mean_gate != b.sets[s].mean_gate ||
        a.sets[s].probability != b.sets[s].probability)
      return false;
  return a.activation == b.activation && a.router_logit == b.router_logit &&
         a.token_gate_regret == b.token_gate_regret && a.mean_gate == b.mean_gate &&
         a.transition == b.transition && a.set_transition == b.set_transition &&
         a.damage == b.damage && a.damage_error == b.damage_error;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(profile)

BOOST_AUTO_TEST_CASE(random_profiles_of_every_shape_are_valid) {
  for (const auto& [layers, experts, slots] : std::vector<std::array<std::size_t, 3>>{
           {1, 1, 1}, {1, 8, 2}, {2, 2, 1}, {2, 3, 3}, {6, 8, 2}, {4, 8, 1}, {3, 60, 4}})
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      const auto content = random_profile(layers, experts, slots, seed);
      const auto checked = validate(content);
      BOOST_TEST_INFO("layers " << layers << " experts " << experts << " slots " << slots
                                << " seed " << seed);
      BOOST_TEST(checked.has_value(), (checked ? "" : checked.error().message));
    }
}

BOOST_AUTO_TEST_CASE(random_profiles_repeat_with_the_seed_and_differ_without) {
  const auto one = random_profile(3, 8, 2, 5), again = random_profile(3, 8, 2, 5),
             other = random_profile(3, 8, 2, 6);
  BOOST_TEST(profile_json(one) == profile_json(again));
  BOOST_TEST(profile_json(one) != profile_json(other));
}

BOOST_AUTO_TEST_CASE(random_profiles_have_groups_of_similar_experts) {
  const auto content = random_profile(6, 8, 2, 3);
  std::size_t similar = 0, different = 0;
  for (const auto& layer : content.layers)
    for (std::size_t i = 0; i < 8; ++i)
      for (std::size_t j = 0; j < i; ++j) ++(layer.router_logit(i, j) >= 0.7 ? similar : different);
  BOOST_TEST(similar > 0u);
  BOOST_TEST(different > similar);
}

BOOST_AUTO_TEST_CASE(set_transitions_of_random_profiles_lead_to_the_next_layers_shares) {
  const auto content = random_profile(4, 60, 4, 9);
  for (std::size_t l = 0; l + 1 < content.n_layers; ++l) {
    const auto& layer = content.layers[l];
    const auto& next = content.layers[l + 1].sets;
    for (std::size_t to = 0; to < next.size(); ++to) {
      double share = 0;
      for (std::size_t from = 0; from < layer.sets.size(); ++from)
        share += layer.sets[from].probability * layer.set_transition(from, to);
      BOOST_TEST(std::abs(share - next[to].probability) < 1e-12);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_written_profile_reads_back_to_exactly_the_same_numbers) {
  auto content = random_profile(3, 5, 2, 11);
  content.model_name = "a \"quoted\" näme\n";
  content.layers[0].token_gate_regret(0, 1) = 0.1;
  content.layers[0].token_gate_regret(0, 2) = 5e-324;
  content.layers[0].damage[0] = std::numeric_limits<double>::max();
  content.layers[0].token_gate_regret(0, 4) = 1.0 / 3;
  content.seed = std::numeric_limits<std::uint64_t>::max();
  content.texts = {{1, 2, 3}, {40000}};
  content.position_damage = {7.5, 1.0 / 3, 1};
  content.unread_damage = {3, 1.0 / 3};
  const auto text = profile_json(content);
  const auto read = parse_profile(text, "profile.json");
  BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
  BOOST_TEST(read->model_name == content.model_name);
  BOOST_TEST(read->model_digest == content.model_digest);
  BOOST_TEST(read->seed == content.seed);
  BOOST_TEST((read->texts == content.texts));
  BOOST_TEST(read->position_damage == content.position_damage, boost::test_tools::per_element());
  BOOST_TEST(read->unread_damage == content.unread_damage, boost::test_tools::per_element());
  BOOST_TEST(read->baseline_nats == content.baseline_nats);
  BOOST_TEST(read->calibration_tokens == content.calibration_tokens);
  for (std::size_t l = 0; l < 3; ++l) BOOST_TEST(same(read->layers[l], content.layers[l]));
  BOOST_TEST(profile_json(*read) == text);
}

BOOST_AUTO_TEST_CASE(what_is_assumed_of_an_unknown_model_is_a_profile_without_preferences) {
  for (const std::size_t top_k : {1, 2, 5}) {
    const auto content = uniform_profile("m", "d", 3, 5, top_k);
    const auto read = parse_profile(profile_json(content), "profile.json");
    BOOST_REQUIRE_MESSAGE(read.has_value(), (read ? "" : read.error().message));
    BOOST_TEST(read->calibration_tokens == 0u);
    for (const auto& layer : read->layers) {
      std::vector<double> chosen(5);
      for (const auto& set : layer.sets)
        for (const auto expert : set.experts) chosen[expert] += set.probability;
      for (const auto each : chosen) BOOST_TEST(std::abs(each - top_k / 5.0) < 1e-12);
      for (const auto each : layer.activation) BOOST_TEST(each == 0.2);
      for (const auto each : layer.damage) BOOST_TEST(each > 0);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_profile_is_read_from_a_file_and_a_missing_file_is_named) {
  const auto path = std::filesystem::temp_directory_path() / "ordermoe-test-profile.json";
  BOOST_REQUIRE(write_file(path, profile_json(random_profile(2, 4, 2, 1))).has_value());
  const auto read = read_profile(path);
  std::filesystem::remove(path);
  BOOST_TEST(read.has_value());
  const auto missing = read_profile(path);
  BOOST_REQUIRE(!missing.has_value());
  BOOST_TEST((missing.error().code == errc::not_found));
  BOOST_TEST(missing.error().message.find("ordermoe-test-profile.json") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(coarser_copies_read_back_and_wrong_ones_are_refused) {
  const auto add = [](planning::profile& content) {
    for (auto& layer : content.layers)
      layer.copies = {{precision::int8, {0.01, 0.02, 0.03, 0.04}, 0.5, 0.1},
                      {precision::int4, {0.1, 0.2, 0.3, 0.4}, 0.25, 0.05}};
  };
  auto content = random_profile(3, 4, 2, 7);
  add(content);
  const auto again = parse_profile(profile_json(content), "p.json");
  BOOST_TEST_REQUIRE(again.has_value(), (again ? "" : again.error().message));
  BOOST_TEST(profile_json(*again) == profile_json(content));
  BOOST_TEST((again->layers[2].copy_of(precision::int4)->distance[3] == 0.4));
  BOOST_TEST((again->layers[2].copy_of(precision::stored) == nullptr));

  const auto refused = [&](auto change, const std::string& path) {
    const auto problem = after([&](planning::profile& changed) {
      add(changed);
      change(changed.layers);
    });
    BOOST_TEST(problem.message.find(path) == 0u, problem.message);
  };
  refused([](auto& layers) { layers[1].copies.pop_back(); }, "layers[1].copies");
  refused([](auto& layers) { std::swap(layers[1].copies[0], layers[1].copies[1]); },
          "layers[1].copies[0].precision");
  refused([](auto& layers) { layers[2].copies[1].distance.pop_back(); },
          "layers[2].copies[1].distance");
  refused([](auto& layers) { layers[0].copies[0].distance[2] = -1; },
          "layers[0].copies[0].distance[2]");
  refused([](auto& layers) { layers[0].copies[0].damage = NAN; }, "layers[0].copies[0].damage");
}

BOOST_AUTO_TEST_CASE(what_slots_left_out_do_reads_back_and_may_be_unknown) {
  auto content = random_profile(3, 4, 2, 7);
  content.layers[1].left_out = {0.25, 0.05};
  const auto again = parse_profile(profile_json(content), "p.json");
  BOOST_TEST_REQUIRE(again.has_value(), (again ? "" : again.error().message));
  BOOST_TEST(profile_json(*again) == profile_json(content));
  BOOST_TEST(!again->layers[0].left_out.has_value());
  BOOST_TEST_REQUIRE(again->layers[1].left_out.has_value());
  BOOST_TEST(again->layers[1].left_out->damage == 0.25);
  BOOST_TEST(again->layers[1].left_out->damage_error == 0.05);
  const auto problem = after([](planning::profile& p) { p.layers[2].left_out = {-1, 0}; });
  BOOST_TEST(problem.message.find("layers[2].left_out.damage") == 0u, problem.message);
}

BOOST_AUTO_TEST_CASE(errors_name_the_json_path) {
  const auto expect = [](const error& found, errc code, const char* path) {
    BOOST_TEST((found.code == code), found.message);
    BOOST_TEST(found.message.find(path) == 0, found.message << " does not open with " << path);
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect(after([](auto& p) { p.layers[2].activation.pop_back(); }), errc::mismatch,
         "layers[2].activation");
  expect(after([](auto& p) { p.layers[1].activation[0] += 0.01; }), errc::out_of_range,
         "layers[1].activation");
  expect(after([&](auto& p) { p.layers[0].activation[3] = nan; }), errc::out_of_range,
         "layers[0].activation[3]");
  expect(after([](auto& p) { p.layers[1].router_logit(0, 2) = 0.123; }), errc::out_of_range,
         "layers[1].router_logit[2][0]");
  expect(after([](auto& p) { p.layers[1].router_logit(3, 3) = 0.5; }), errc::out_of_range,
         "layers[1].router_logit[3][3]");
  expect(after([](auto& p) { p.layers[0].damage[1] = -1; }), errc::out_of_range,
         "layers[0].damage[1]");
  expect(after([](auto& p) { p.layers[0].damage[1] = std::numeric_limits<double>::infinity(); }),
         errc::out_of_range, "layers[0].damage[1]");
  expect(after([](auto& p) { p.layers[0].token_gate_regret(2, 2) = 0.1; }), errc::out_of_range,
         "layers[0].token_gate_regret[2][2]");
  expect(after([](auto& p) { p.layers[1].transition(3, 0) += 0.5; }), errc::out_of_range,
         "layers[1].transition[3]");
  expect(after([](auto& p) { p.layers[2].transition = p.layers[1].transition; }), errc::mismatch,
         "layers[2].transition");
  expect(after([](auto& p) {
           p.layers[0].sets[1].experts = {2, 1};
         }),
         errc::out_of_range, "layers[0].sets[1].experts[1]");
  expect(after([](auto& p) { p.layers[0].sets[0].experts[1] = 4; }), errc::out_of_range,
         "layers[0].sets[0].experts[1]");
  expect(after([](auto& p) { p.layers[0].sets[1].experts = p.layers[0].sets[0].experts; }),
         errc::mismatch, "layers[0].sets");
  expect(after([](auto& p) { p.layers[1].sets.pop_back(); }), errc::mismatch,
         "layers[0].set_transition");
  expect(after([](auto& p) { p.layers[1].damage.clear(); }), errc::mismatch, "layers[1].damage");
  expect(after([](auto& p) { p.layers[1].damage[1] = -0.1; }), errc::out_of_range,
         "layers[1].damage[1]");
  expect(after([](auto& p) { p.top_k = 5; }), errc::out_of_range, "top_k");
  expect(after([](auto& p) { p.layers.pop_back(); }), errc::mismatch, "layers");
  expect(after([&](auto& p) { p.baseline_nats = nan; }), errc::out_of_range, "baseline_nats");
  expect(after([](auto& p) {
           p.position_damage = {1, 0};
         }),
         errc::out_of_range, "position_damage[1]");
  expect(after([&](auto& p) { p.position_damage = {nan}; }), errc::out_of_range,
         "position_damage[0]");
  for (const double wrong : {0.0, nan, 1e4})
    expect(after([&](auto& p) {
             p.unread_damage = {1, wrong};
           }),
           errc::out_of_range, "unread_damage[1]");
}

BOOST_AUTO_TEST_CASE(wrong_documents_are_refused_with_file_and_path) {
  const auto text = profile_json(random_profile(2, 3, 1, 2));
  const auto changed = [&](const std::string& from, const std::string& to) {
    auto other = text;
    const auto at = other.find(from);
    BOOST_REQUIRE(at != std::string::npos);
    return parse_profile(other.replace(at, from.size(), to), "p.json");
  };
  const auto newer = changed("\"version\": 1", "\"version\": 2");
  BOOST_REQUIRE(!newer.has_value());
  BOOST_TEST((newer.error().code == errc::unsupported));
  const auto foreign = changed("ordermoe-profile", "ordermoe-plan");
  BOOST_REQUIRE(!foreign.has_value());
  BOOST_TEST((foreign.error().code == errc::malformed));
  const auto huge = changed("\"n_layers\": 2", "\"n_layers\": 18446744073709551615");
  BOOST_REQUIRE(!huge.has_value());
  BOOST_TEST(huge.error().message.find("p.json: layers") == 0, huge.error().message);
  const auto text_for_number = changed("\"top_k\": 1", "\"top_k\": \"1\"");
  BOOST_REQUIRE(!text_for_number.has_value());
  BOOST_TEST(text_for_number.error().message.find("p.json: top_k") == 0,
             text_for_number.error().message);
}

BOOST_AUTO_TEST_CASE(every_truncation_is_an_error) {
  const auto text = profile_json(random_profile(1, 2, 1, 4));
  // The final newline alone may be missing.
  for (std::size_t length = 0; length + 1 < text.size(); ++length)
    BOOST_REQUIRE(!parse_profile(text.substr(0, length), "p").has_value());
}

BOOST_AUTO_TEST_CASE(corrupted_bytes_never_give_an_invalid_profile) {
  const auto text = profile_json(random_profile(2, 3, 2, 4));
  random_stream random(1);
  std::size_t n_refused = 0;
  for (int i = 0; i < 2000; ++i) {
    auto other = text;
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n)
      other[random.below(other.size())] = static_cast<char>(random.below(256));
    const auto read = parse_profile(other, "p");
    if (!read)
      ++n_refused;
    else
      BOOST_TEST(validate(*read).has_value());
  }
  BOOST_TEST(n_refused > 1000u);
}

BOOST_AUTO_TEST_SUITE_END()
