#include "setup/calibration.hpp"

#include <boost/test/unit_test.hpp>
#include <string>

#include "config/files.hpp"
#include "config/random.hpp"
#include "model/text/tokenizer.hpp"

namespace ordermoe {

namespace {

using token_documents = std::vector<std::vector<std::int32_t>>;

const std::string folder = ORDERMOE_DATA "/models/lineage";

std::shared_ptr<const model::transformer> lineage() {
  static const auto loaded = *model::transformer::load(folder);
  return loaded;
}

/// So many texts of 64 tokens.
token_documents cut(const std::vector<std::int32_t>& ids, std::size_t n) {
  token_documents made;
  for (std::size_t i = 0; i < n; ++i)
    made.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(i * 64),
                      ids.begin() + static_cast<std::ptrdiff_t>((i + 1) * 64));
  return made;
}

token_documents of_file(const std::string& path, std::size_t n) {
  const auto tokens = *model::tokenizer::load(folder);
  return cut(tokens->encode(*read_file(path)), n);
}

token_documents own_text(std::size_t n) {
  return of_file(ORDERMOE_DATA "/eval/calibration.txt", n);
}

token_documents random_ids(std::size_t n) {
  random_stream random(7);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < 64 * n; ++i)
    ids.push_back(static_cast<std::int32_t>(3 + random.below(700)));
  return cut(ids, n);
}

planning::profile calibrated(const token_documents& documents) {
  setup::calibration_request request;
  request.folder = folder;
  request.model_name = "lineage";
  request.documents = documents;
  auto made = setup::calibrate_model(*lineage(), request);
  BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  return std::move(*made);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(calibration)

BOOST_AUTO_TEST_CASE(a_profile_keeps_its_texts_and_fits_the_model_that_learnt_such) {
  const auto texts = own_text(6);
  const auto made = calibrated(texts);
  BOOST_TEST((made.texts == texts));
  BOOST_TEST(!setup::unfit(made, lineage()->config()).has_value());
  BOOST_TEST(setup::check_budget("ordermoe", 1, made, lineage()->config()).has_value());
  const auto tuned_on = setup::tuning_texts("ordermoe", 1, made, *lineage(), [] {
    BOOST_FAIL("the bundled text was read");
    return token_documents();
  });
  BOOST_REQUIRE(tuned_on.has_value());
  BOOST_TEST((*tuned_on == texts));
}

BOOST_AUTO_TEST_CASE(no_budget_depends_on_a_text_that_does_not_fit) {
  for (const auto& texts : {random_ids(5), of_file(ORDERMOE_DATA "/../LICENSE", 5)}) {
    const auto made = calibrated(texts);
    const auto problem = setup::unfit(made, lineage()->config());
    BOOST_REQUIRE(problem.has_value());
    BOOST_TEST((problem->code == errc::mismatch));
    BOOST_TEST(problem->message.find("ordermoe calibrate --text") != std::string::npos);
    for (const std::string strategy : {"ordermoe", "paper", "local-only"})
      BOOST_TEST(!setup::check_budget(strategy, 1, made, lineage()->config()).has_value());
    for (const std::string strategy : {"exact", "layer-shards"})
      BOOST_TEST(setup::check_budget(strategy, 1, made, lineage()->config()).has_value());
    for (const double quality : {0.0, -1.0})
      BOOST_TEST(setup::check_budget("ordermoe", quality, made, lineage()->config()).has_value());
  }
}

BOOST_AUTO_TEST_CASE(no_budget_depends_on_a_handful_of_tokens) {
  const auto made = calibrated(own_text(3));
  const auto problem = setup::unfit(made, lineage()->config());
  BOOST_REQUIRE(problem.has_value());
  BOOST_TEST((problem->code == errc::out_of_range));
  BOOST_TEST(problem->message.find("192 tokens") != std::string::npos);
  BOOST_TEST(problem->message.find("256") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_budget_is_not_tuned_on_texts_that_cost_far_more_than_the_profiles) {
  auto made = calibrated(own_text(6));
  made.texts.clear();
  const auto tune_on = [&](const token_documents& bundled, double quality) {
    return setup::tuning_texts("ordermoe", quality, made, *lineage(),
                               [&]() -> result<token_documents> { return bundled; });
  };
  BOOST_TEST(tune_on(own_text(8), 1).has_value());
  const auto refused = tune_on(random_ids(8), 1);
  BOOST_REQUIRE(!refused.has_value());
  BOOST_TEST((refused.error().code == errc::mismatch));
  BOOST_TEST(tune_on(random_ids(8), 0).has_value());
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
