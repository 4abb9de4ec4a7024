#include "bench/experiments/testbed/substitution_map.hpp"

#include <boost/test/unit_test.hpp>

#include "bench/experiments/testbed/page.hpp"
#include "bench/experiments/testbed/plot.hpp"
#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

namespace {

testbed::row timed(const char* strategy, double percent, double ratio, std::uint64_t seed,
                   double ms, const char* form = "") {
  auto what = at_main_budget(strategy, seed, percent);
  what.memory_ratio = ratio;
  auto made = made_row(
      what, {{metric::latency_ms, ms}, {metric::increase_percent, percent == 0 ? 0 : 0.5}});
  made.form = form;
  return made;
}

/// Two memories on two clusters: at 2 a budget saves a quarter and a half, at 3 it is slower; at 1 no exact plan fits.
std::vector<testbed::row> rows() {
  std::vector<testbed::row> made{timed("exact", 0, 2, 11, 200),
                                 timed("layer-shards", 0, 2, 11, 100),
                                 timed("ordermoe", 0, 2, 11, 110),
                                 timed("ordermoe", 1, 2, 11, 75, core_form),
                                 timed("exact", 0, 2, 12, 300),
                                 timed("layer-shards", 0, 2, 12, 120),
                                 timed("ordermoe", 0, 2, 12, 100),
                                 timed("ordermoe", 1, 2, 12, 50, "layer-shards"),
                                 timed("layer-shards", 0, 3, 11, 100),
                                 timed("ordermoe", 1, 3, 11, 110, pruned_form),
                                 timed("ordermoe", 1, 1, 11, 90, own_form)};
  testbed::row none;
  none.what = at_main_budget("layer-shards", 11, 0);
  none.what.memory_ratio = 1;
  none.is_infeasible = true;
  made.push_back(none);
  // A rival that gives quality up is none of the exact ones.
  made.push_back(timed("static-pruning", 1, 2, 11, 10));
  return made;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(substitution_map)

BOOST_AUTO_TEST_CASE(a_budget_is_held_against_the_fastest_exact_plan_of_each_cluster) {
  const auto cells = map_of(*find_experiment("map"), rows());
  BOOST_REQUIRE(cells.size() == 3u);
  BOOST_TEST(cells[0].setting == "stored 2, as drawn, 4/s");
  // 75 of 100 by layer-shards, and 50 of 100 by ordermoe without a budget.
  BOOST_TEST(cells[0].saved_percent->median == 37.5);
  BOOST_TEST(cells[0].n_clusters == 2u);
  BOOST_TEST(cells[0].n_rival_forms == 1u);
  BOOST_TEST(cells[0].n_pruned_forms == 0u);
  BOOST_TEST(cells[1].n_rival_forms == 0u);
  BOOST_TEST(cells[1].n_pruned_forms == 1u);
  BOOST_TEST(cells[0].increase_percent->median == 0.5);
  BOOST_TEST(cells[0].saved_by_pruning_percent->median == 90);
  BOOST_TEST(!cells[1].saved_by_pruning_percent.has_value());
  BOOST_TEST(cells[1].saved_percent->median == -10, boost::test_tools::tolerance(1e-9));
  BOOST_TEST(cells[1].fastest_exact == "layer-shards");
  BOOST_TEST(!cells[2].saved_percent.has_value());
  BOOST_TEST(cells[2].n_without_exact == 1u);
  BOOST_TEST(cells[0].n_core_forms == 1u);
  BOOST_TEST(cells[2].n_core_forms == 0u);
  BOOST_TEST(cells[2].n_rival_forms == 0u);
  BOOST_TEST(cells[2].fastest_exact.empty());
}

BOOST_AUTO_TEST_CASE(a_loss_is_of_the_model_as_it_is_kept_there) {
  const auto lossy = [](const char* strategy, double percent, double increase) {
    auto made = timed(strategy, percent, 2, 11, 100);
    made.what.kept = precision::int4;
    made[metric::increase_percent] = increase;
    return made;
  };
  const std::vector<testbed::row> all{lossy("exact", 0, 0.4), lossy("ordermoe", 1, 1.244),
                                      lossy("static-pruning", 1, 1.5058)};
  const auto cells = map_of(*find_experiment("map"), all);
  BOOST_REQUIRE(cells.size() == 1u);
  BOOST_TEST(cells[0].increase_percent->median == 100 * (1.01244 / 1.004 - 1),
             boost::test_tools::tolerance(1e-9));
  const auto said = map_sentences(cells);
  BOOST_REQUIRE(said.size() == 1u);
  BOOST_TEST(said[0].find("More than 1 % of perplexity was lost in none of 1, by static-pruning in "
                          "1 of 1 (1.10 % at most).") != std::string::npos,
             said[0]);
}

BOOST_AUTO_TEST_CASE(sentences_count_the_settings_that_an_exact_plan_fits) {
  const auto said = map_sentences(map_of(*find_experiment("map"), rows()));
  BOOST_REQUIRE(said.size() == 1u);
  BOOST_TEST(said[0].find("in 1 of 2 settings") != std::string::npos, said[0]);
  BOOST_TEST(said[0].find("stored 2 1 of 1, stored 3 0 of 1") != std::string::npos, said[0]);
  BOOST_TEST(
      said[0].find("beside them, on 1, and one of static-pruning on 1.") != std::string::npos,
      said[0]);
  BOOST_TEST(said[0].find("an exact rival's plan on 1 of 3 clusters") != std::string::npos,
             said[0]);
  BOOST_TEST(said[0].find("saves as much in 1 of 1.") != std::string::npos, said[0]);
}

BOOST_AUTO_TEST_CASE(the_picture_and_the_table_have_every_setting) {
  const auto& of = *find_experiment("map");
  const auto script = plot_script(of, rows());
  BOOST_TEST(script.find("\"stored 3\" 1") != std::string::npos, script);
  BOOST_TEST(script.find("0 0 37.5 \"38\"") != std::string::npos, script);
  BOOST_TEST(script.find("NaN \"alone\"") != std::string::npos, script);
  const auto table = table_text({&of, rows()});
  BOOST_TEST(table.find("| stored 2, as drawn, 4/s | 1 | 37.5") != std::string::npos, table);
  BOOST_TEST(table.find("none fits") != std::string::npos, table);
  BOOST_TEST(plot_script(of, {}).empty());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
