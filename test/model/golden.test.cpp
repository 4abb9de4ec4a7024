#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "model/reference.hpp"
#include "test/support/devices.hpp"

// The fixtures are made by scripts/make_golden.py and scripts/golden/ in float64 with numpy, from
// the same bf16 weights. fp32 sums over up to 40 terms in 3 layers stay within about 1e-5 of it at
// logits of size 10; 1e-4 leaves an order of magnitude.

namespace {

using namespace ordermoe;
using namespace ordermoe::model;

const std::filesystem::path folder = std::filesystem::path(ORDERMOE_TEST_DATA) / "mixtral-tiny";

nlohmann::json sequences() {
  const auto text = read_file(folder / "golden.json");
  BOOST_REQUIRE(text);
  auto all = nlohmann::json::parse(*text)["sequences"];
  BOOST_REQUIRE_EQUAL(all.size(), 4u);
  return all;
}

std::shared_ptr<const transformer> model_of(const load_options& options = {}) {
  auto loaded = transformer::load(folder, options);
  if (!loaded) BOOST_FAIL(loaded.error().message);
  return *loaded;
}

double largest_difference(const transformer& model, const nlohmann::json& sequence) {
  const auto ids = sequence["ids"].get<std::vector<std::int32_t>>();
  const auto rows = sequence["rows"].get<std::vector<std::size_t>>();
  const auto scores = logits(model, ids);
  BOOST_REQUIRE(scores);
  const std::size_t vocab_size = model.config().vocab_size;
  double largest = 0;
  for (std::size_t r = 0; r < rows.size(); ++r)
    for (std::size_t v = 0; v < vocab_size; ++v)
      largest = std::max(largest, std::abs(sequence["logits"][r][v].get<double>() -
                                           (*scores)[rows[r] * vocab_size + v]));
  return largest;
}

/// The families beside Mixtral. -mixed and -top8 have dense layers, switch-capacity experts that
/// overflow.
const char* const family_fixtures[] = {"qwen2-moe",      "qwen2-moe-mixed", "qwen3-moe",
                                       "qwen3-moe-top8", "olmoe",           "olmoe-gqa",
                                       "switch",         "switch-capacity"};

struct family_fixture {
  std::shared_ptr<const transformer> model;
  std::vector<std::int32_t> ids, decoder_ids, prompt, greedy;
  std::vector<float> logits;  ///< [ids or decoder_ids, vocabulary]
};

/// The numbers of a .npy file of version 1.0 that holds little-endian float32.
std::vector<float> read_numbers(const std::filesystem::path& path) {
  const auto bytes = read_file(path);
  BOOST_REQUIRE(bytes);
  BOOST_REQUIRE(bytes->size() > 10);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>((*bytes)[i]); };
  const std::size_t start = 10u + byte(8) + 256u * byte(9);
  BOOST_REQUIRE(bytes->substr(0, start).find("'<f4'") != std::string::npos);
  std::vector<float> numbers((bytes->size() - start) / sizeof(float));
  std::memcpy(numbers.data(), bytes->data() + start, numbers.size() * sizeof(float));
  return numbers;
}

family_fixture fixture_of(const std::string& name, const load_options& options = {}) {
  const auto place = std::filesystem::path(ORDERMOE_TEST_DATA) / "golden" / name;
  auto loaded = transformer::load(place, options);
  if (!loaded) BOOST_FAIL(loaded.error().message);
  const auto text = read_file(place / "golden.json");
  BOOST_REQUIRE(text);
  const auto content = nlohmann::json::parse(*text);
  const auto ids = [&](const char* field) {
    return content.value(field, std::vector<std::int32_t>{});
  };
  return {*loaded,       ids("ids"),    ids("decoder_ids"),
          ids("prompt"), ids("greedy"), read_numbers(place / "logits.npy")};
}

double largest_difference(const family_fixture& fixture) {
  const auto made = fixture.decoder_ids.empty()
                        ? logits(*fixture.model, fixture.ids)
                        : logits(*fixture.model, fixture.ids, fixture.decoder_ids);
  BOOST_REQUIRE(made);
  BOOST_REQUIRE_EQUAL(made->size(), fixture.logits.size());
  double largest = 0;
  for (std::size_t i = 0; i < made->size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>((*made)[i]) - fixture.logits[i]));
  BOOST_TEST_MESSAGE(to_string(fixture.model->config().kind)
                     << " of " << fixture.model->config().n_experts
                     << " experts: largest difference " << largest);
  return largest;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden)

BOOST_AUTO_TEST_CASE(logits_of_every_family_agree_with_the_independent_implementation) {
  for (const std::string name : family_fixtures)
    for (const auto& device : ordermoe::test::both_devices()) BOOST_TEST_CONTEXT(name)
  BOOST_TEST(largest_difference(fixture_of(name, {.device = device})) <= 1e-4);
}

BOOST_AUTO_TEST_CASE(sixty_four_greedy_tokens_of_every_family_are_the_independent_implementations) {
  for (const std::string name : family_fixtures) BOOST_TEST_CONTEXT(name) {
      const auto fixture = fixture_of(name);
      if (name == "switch-capacity") continue;  // It has no continuation.
      BOOST_REQUIRE_EQUAL(fixture.greedy.size(), 64u);
      generation_options options;
      options.max_new_tokens = 64;
      const auto made = generate(*fixture.model, nullptr, fixture.prompt, options);
      BOOST_REQUIRE(made);
      BOOST_TEST(made->token_ids == fixture.greedy, boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(logits_agree_with_the_independent_implementation) {
  const auto model = model_of();
  for (const auto& sequence : sequences()) BOOST_TEST(largest_difference(*model, sequence) <= 1e-4);
}

BOOST_AUTO_TEST_CASE(the_libtorch_path_agrees_with_the_independent_implementation) {
  const auto model = model_of({.device = ordermoe::test::libtorch_device()});
  for (const auto& sequence : sequences()) BOOST_TEST(largest_difference(*model, sequence) <= 1e-4);
}

BOOST_AUTO_TEST_CASE(the_greedy_continuation_is_the_independent_implementations) {
  const auto model = model_of();
  for (const auto& sequence : sequences()) {
    const auto ids = sequence["ids"].get<std::vector<std::int32_t>>();
    const auto expected = sequence["greedy"].get<std::vector<std::int32_t>>();
    generation_options options;
    options.max_new_tokens = 12;
    const auto made = generate(*model, nullptr, ids, options);
    BOOST_REQUIRE(made);
    BOOST_REQUIRE(!expected.empty());
    BOOST_TEST(made->token_ids == expected, boost::test_tools::per_element());
  }
}

BOOST_AUTO_TEST_SUITE_END()
