#include "bench/experiments/testbed/model_comparison.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

namespace {

measured_model made_model(const char* name, double paper_ms, double moe2_ms, double increase) {
  measured_model made;
  made.asked = {{"model", name}};
  for (const std::uint64_t seed : {11, 12}) {
    made.rows.push_back(
        made_row(at_main_budget("paper", seed),
                 {{metric::latency_ms, paper_ms}, {metric::increase_percent, increase}}));
    made.rows.push_back(made_row(at_main_budget("moe2", seed), {{metric::latency_ms, moe2_ms}}));
  }
  return made;
}

bool says(const std::vector<std::string>& all, const std::string& what) {
  return std::ranges::any_of(all,
                             [&](const auto& one) { return one.find(what) != std::string::npos; });
}

}  // namespace

BOOST_AUTO_TEST_SUITE(model_comparison)

BOOST_AUTO_TEST_CASE(each_model_has_its_columns_and_its_findings) {
  const std::vector all{made_model("small", 90, 100, 0.5), made_model("large", 120, 100, 2)};
  const auto table = model_table(all);
  BOOST_TEST(table.find("| small: mean latency, ms | small: perplexity") != std::string::npos,
             table);
  BOOST_TEST(table.find("| paper 7 % | 90 [90, 90] | 0.5 [0.5, 0.5] | 120 [120, 120] |") !=
                 std::string::npos,
             table);
  const auto found = model_findings(all);
  BOOST_TEST(says(found,
                  "Fig. 6(a), small, paper: No method that it is compared with answers faster. "
                  "Measured 0.9 [0.9, 0.9]: agrees."));
  BOOST_TEST(says(found,
                  "Fig. 6(a), large, paper: No method that it is compared with answers faster. "
                  "Measured 1.2 [1.2, 1.2]: disagrees."));
  BOOST_TEST(says(
      found, "Measured 99.5 [99.5, 99.5] % of it by perplexity, with a budget of 7 %: agrees."));
  BOOST_TEST(
      says(found, "Measured 98 [98, 98] % of it by perplexity, with a budget of 7 %: disagrees."));
  BOOST_TEST(says(found, "Measured 0.90, 1.20, from the first model to the last: disagrees."));
  BOOST_TEST(says(model_findings({all[1], all[0]}),
                  "Measured 1.20, 0.90, from the first model to the last: agrees."));
  // Less than a hundredth apart tells nothing.
  BOOST_TEST(
      says(model_findings({made_model("small", 80.1, 100, 1), made_model("large", 80, 100, 1)}),
           "Measured 0.80, 0.80, from the first model to the last: undecided."));
}

BOOST_AUTO_TEST_CASE(what_differs_besides_the_model_is_told) {
  auto small = made_model("small", 90, 100, 0.5), large = made_model("large", 120, 100, 2);
  small.asked["model_digest"] = "1";
  large.asked["model_digest"] = "2";
  BOOST_TEST(!says(model_findings({small, large}), "Not alike"));
  large.asked["requests"] = 16;
  large.rows.resize(2);
  BOOST_TEST(says(model_findings({small, large}),
                  "Not alike besides the model: requests (none; 16), clusters (11 12; 11)."));
}

BOOST_AUTO_TEST_CASE(folders_without_rows_are_refused_with_what_makes_them) {
  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("ordermoe-model-comparison-{}", ::getpid());
  std::filesystem::remove_all(folder);
  BOOST_TEST(!read_measured_model(folder).has_value());
  const settings asked{{"model", "small"}, {"quick", true}};
  BOOST_REQUIRE(claim_folder(folder, asked).has_value());
  const auto none = read_measured_model(folder);
  BOOST_REQUIRE(!none.has_value());
  BOOST_TEST(none.error().message.find("ordermoe testbed overall") != std::string::npos);
  rows_of_experiment rows(*find_experiment("overall"), scale::quick);
  BOOST_REQUIRE(
      rows.put(made_row(at_main_budget("paper", 11), {{metric::latency_ms, 5}})).has_value());
  BOOST_REQUIRE(write_rows(folder, asked, rows).has_value());
  const auto read = read_measured_model(folder);
  BOOST_REQUIRE(read.has_value());
  BOOST_TEST(read->rows.size() == 1u);
  BOOST_TEST(read->name() == "small");
  std::filesystem::remove_all(folder);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
