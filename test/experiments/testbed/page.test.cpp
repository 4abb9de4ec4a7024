#include "bench/experiments/testbed/page.hpp"

#include <boost/test/unit_test.hpp>
#include <nlohmann/json.hpp>

#include "bench/experiments/testbed/plot.hpp"
#include "test/experiments/testbed/made_rows.hpp"

namespace ordermoe::experiments::testbed::test {

namespace {

std::size_t count(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (auto at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// Every experiment with a row for each point.
std::vector<measured_experiment> everything() {
  std::vector<measured_experiment> all;
  for (const auto& of : experiments()) {
    all.push_back({&of, {}});
    for (const auto& what : of.points(scale::quick, 11)) {
      auto& rows = all.back().rows;
      rows.push_back(made_row(what, {}));
      for (auto& value : rows.back().values) value = static_cast<double>(rows.size());
    }
  }
  return all;
}

}  // namespace

BOOST_AUTO_TEST_SUITE(page)

BOOST_AUTO_TEST_CASE(the_page_has_every_experiment_and_what_is_opened_is_closed) {
  const auto html =
      page_html("/nonexistent", {{"model", "a <model>"}, {"quick", true}}, everything());
  for (const auto& of : experiments())
    BOOST_TEST(count(html, "<h2 id=\"" + std::string(of.name) + "\">") == 1u, of.name);
  for (const auto* tag : {"table", "thead", "tbody", "tr", "td", "th", "h2", "p", "div"})
    BOOST_TEST(
        count(html, std::string("<") + tag + ">") + count(html, std::string("<") + tag + " ") ==
            count(html, std::string("</") + tag + ">"),
        tag);
  BOOST_TEST(count(html, "a &lt;model&gt;") == 2u);
  BOOST_TEST(count(html, "src=") == 0u);
  BOOST_TEST(count(html, "one drawn cluster") == 1u);
}

BOOST_AUTO_TEST_CASE(infeasible_points_stand_in_the_table_and_say_why) {
  auto all = everything();
  auto& one = all.front().rows.front();
  one = made_row(one.what, {});
  one.is_infeasible = true;
  one.note = "3 bytes short";
  const auto html = page_html("/nonexistent", {{"model", "m"}}, {all.front()});
  BOOST_TEST(count(html, "(infeasible on 1 of 1)") == 1u);
  BOOST_TEST(count(html, "exact: 3 bytes short") == 1u);
  BOOST_TEST(table_text(all.front()).find("| exact (infeasible on 1 of 1) | - |") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(values_that_only_some_clusters_have_say_how_many) {
  const auto& of = *find_experiment("overall");
  auto here = at_main_budget("paper", 11), there = at_main_budget("paper", 12);
  const std::vector rows{made_row(here, {{metric::latency_ms, 5}, {metric::traffic_mb_per_1k, 2}}),
                         made_row(there, {{metric::latency_ms, 5}})};
  BOOST_TEST(table_text({&of, rows}).find("| 5 [5, 5] | 2 (of 1) |") != std::string::npos,
             table_text({&of, rows}));
}

BOOST_AUTO_TEST_CASE(a_finding_says_on_how_many_clusters_and_whether_it_is_near_the_papers_number) {
  const auto& of = *find_experiment("overall");
  const std::vector rows{
      made_row(at_main_budget("paper", 11), {{metric::latency_ms, 91}}),
      made_row(at_main_budget("layer-shards", 11, 0), {{metric::latency_ms, 100}})};
  const auto found = judgements({{&of, rows}});
  const auto half = std::ranges::find_if(
      found, [](const judgement& one) { return one.about->published == 0.49; });
  BOOST_REQUIRE((half != found.end()));
  BOOST_TEST(judgement_text(*half) ==
             "Fig. 4(a), paper: Latency is below EdgeShard's (published: about half). Published "
             "0.49, measured 0.91 on 1 cluster: agrees (0.99 or less), and not near the number.");
}

BOOST_AUTO_TEST_CASE(a_plot_names_both_pictures_and_nothing_measured_is_no_plot) {
  for (const auto& one : everything()) {
    const auto script = plot_script(*one.of, one.rows);
    BOOST_TEST(count(script, "set output '" + std::string(one.of->name) + ".svg'") == 1u);
    BOOST_TEST(count(script, "set output '" + std::string(one.of->name) + ".png'") == 1u);
    BOOST_TEST(count(script, "plot ") >= 2u);
  }
  auto none = everything().front();
  for (auto& each : none.rows) each.values.fill(std::nullopt);
  BOOST_TEST(plot_script(*none.of, none.rows).empty());
}

BOOST_AUTO_TEST_CASE(judgements_of_ordermoe_stand_beside_the_papers_where_it_has_the_points) {
  const auto found = judgements(everything());
  std::size_t of_paper = 0, of_ours = 0;
  for (const auto& one : found) {
    // Findings about a rival are told of that.
    const auto about = one.about->first.strategy;
    if (!about.empty()) BOOST_TEST(one.subject == about);
    (one.subject == "ordermoe" ? of_ours : of_paper) += 1;
  }
  BOOST_TEST(of_paper == claims().size());
  BOOST_TEST(of_ours > 10u);
  BOOST_TEST(of_ours < of_paper);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe::experiments::testbed::test
