#include <boost/test/unit_test.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "model/reference.hpp"

// The fixture is made by scripts/make_golden.py in float64 with numpy, from the same bf16 weights.
// fp32 sums over up to 40 terms in 3 layers stay within about 1e-5 of it at logits of size 10; 1e-4
// leaves an order of magnitude.

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

}  // namespace

BOOST_AUTO_TEST_SUITE(golden)

BOOST_AUTO_TEST_CASE(logits_agree_with_the_independent_implementation) {
  const auto model = model_of();
  for (const auto& sequence : sequences()) BOOST_TEST(largest_difference(*model, sequence) <= 1e-4);
}

BOOST_AUTO_TEST_CASE(the_libtorch_path_agrees_with_the_independent_implementation) {
  const auto model = model_of({.device = "cpu", .linear = linear_path::libtorch});
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
