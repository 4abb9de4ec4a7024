#include "setup/calibration.hpp"

#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <string>

#include "config/files.hpp"
#include "config/job.hpp"
#include "config/random.hpp"
#include "model/calibration.hpp"
#include "model/text/tokenizer.hpp"
#include "setup/calibration_profile.hpp"
#include "setup/preparation.hpp"
#include "setup/world.hpp"

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
}

BOOST_AUTO_TEST_CASE(statistics_see_nothing_of_what_is_set_apart) {
  const auto texts = own_text(12);
  for (const std::size_t most : {4, 8, 12, 100}) {
    const auto parts = setup::set_apart(texts, most);
    BOOST_TEST(parts.documents.size() == std::min<std::size_t>(most, 8));
    auto all = parts.documents;
    all.insert(all.end(), parts.apart.begin(), parts.apart.end());
    BOOST_TEST((all == texts));
  }
  // Too few for two parts.
  const auto few = setup::set_apart(own_text(2), 1);
  BOOST_TEST((few.documents == own_text(2)));
  BOOST_TEST((few.apart == own_text(2)));
}

BOOST_AUTO_TEST_CASE(a_profile_keeps_texts_that_its_statistics_did_not_see) {
  // 512 tokens are two documents, and what follows them in the bundled text is kept.
  const auto model = lineage();
  const auto tokens = *model::tokenizer::load(folder);
  job work;
  const auto made = setup::calibrate_on(folder, *model, *tokens,
                                        ORDERMOE_DATA "/eval/calibration.txt", 512, 1, {}, work);
  BOOST_REQUIRE_MESSAGE(made.has_value(), (made ? "" : made.error().message));
  BOOST_TEST(made->calibration_tokens == 512u);
  auto all = *setup::read_documents(ORDERMOE_DATA "/eval/calibration.txt", *tokens, 256,
                                    512 + setup::most_tuning_tokens);
  all.erase(all.begin(), all.begin() + 2);
  BOOST_TEST((made->texts == all));
}

// Of two kinds the dearer one, as far up as chance may have kept it down.
BOOST_AUTO_TEST_CASE(what_a_prompt_loses_is_charged_as_it_was_measured) {
  const auto texts = own_text(2);
  auto found = model::calibrate(*lineage(), texts, {.damage_tokens = 64});
  BOOST_REQUIRE(found.has_value());
  const auto charged = [&](std::vector<model::unread_statistics> unread) {
    found->unread = std::move(unread);
    return setup::make_profile(*found, "lineage", "", 1).unread_damage;
  };
  BOOST_TEST((charged({{{2, 0}, {1, 0}}}) == std::vector<double>{2}));
  BOOST_TEST(charged({{{2, 0.5}, {1, 0}}}).front() == 2 + 1.645 * 0.5,
             boost::test_tools::tolerance(1e-12));
  BOOST_TEST((charged({{{2, 0.5}, {4, 0}}}) == std::vector<double>{4}));
  // A longer prompt's tokens do no more than those of a shorter one.
  BOOST_TEST((charged({{{0.25, 0}, {0.125, 0}}, {{0.5, 0}, {0, 0}}, {{0, 0}, {0.4375, 0}}}) ==
              std::vector<double>{0.5, 0.5, 0.4375}));
  BOOST_TEST((charged({{{1000, 0}, {0, 0}}, {{0, 0}, {0, 0}}}) == std::vector<double>{100, 0.4}));
  BOOST_TEST(charged({}).empty());
}

BOOST_AUTO_TEST_CASE(no_budget_depends_on_a_text_that_does_not_fit) {
  for (const auto& texts : {random_ids(5), of_file(ORDERMOE_DATA "/../LICENSE", 5)}) {
    const auto made = calibrated(texts);
    const auto problem = setup::unfit(made, lineage()->config());
    BOOST_REQUIRE(problem.has_value());
    BOOST_TEST((problem->code == errc::mismatch));
    BOOST_TEST(problem->message.find("ordermoe calibrate --text") != std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_strategy_is_prepared_under_a_budget_only_where_the_profile_fits) {
  setup::world_options options;
  options.model = folder;
  options.cluster = ORDERMOE_DATA "/clusters/edge8.toml";
  job work;
  auto world = setup::load_world(options, work);
  BOOST_REQUIRE_MESSAGE(world.has_value(), (world ? "" : world.error().message));
  BOOST_TEST(!world->unfit.has_value());
  const auto code_of = [&](const char* strategy, double quality) -> std::optional<errc> {
    setup::preparation_request request;
    request.strategy = strategy;
    request.options.quality_percent = quality;
    request.options.search_steps = 50;
    request.options.dry_run_requests = 0;
    const auto ready = setup::prepare(*world, request, work);
    if (ready) return std::nullopt;
    return ready.error().code;
  };
  BOOST_TEST((code_of("paper", 1) == std::nullopt));
  world->unfit = setup::unfit(calibrated(random_ids(5)), lineage()->config());
  for (const auto* strategy : {"ordermoe", "paper", "local-only"})
    BOOST_TEST((code_of(strategy, 1) == errc::mismatch));
  BOOST_TEST((code_of("exact", 1) == std::nullopt));
  BOOST_TEST((code_of("paper", 0) == std::nullopt));
  BOOST_TEST((code_of("paper", -1) == std::nullopt));
}

BOOST_AUTO_TEST_CASE(the_texts_of_a_profile_are_those_that_budgets_are_tuned_on) {
  const auto texts = own_text(6);
  const auto path = std::filesystem::temp_directory_path() /
                    ("ordermoe-profile-" + std::to_string(::getpid()) + ".json");
  BOOST_REQUIRE(write_file(path, planning::profile_json(calibrated(texts))).has_value());
  setup::world_options options;
  options.model = folder;
  options.profile = path.string();
  job work;
  const auto world = setup::load_world(options, work);
  std::filesystem::remove(path);
  BOOST_REQUIRE_MESSAGE(world.has_value(), (world ? "" : world.error().message));
  BOOST_TEST((world->tuning_texts == texts));
  BOOST_TEST(world->profile.texts.empty());
}

BOOST_AUTO_TEST_CASE(no_budget_depends_on_a_handful_of_tokens) {
  const auto made = calibrated(own_text(3));
  const auto problem = setup::unfit(made, lineage()->config());
  BOOST_REQUIRE(problem.has_value());
  BOOST_TEST((problem->code == errc::out_of_range));
  BOOST_TEST(problem->message.find("192 tokens") != std::string::npos);
  BOOST_TEST(problem->message.find("256") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(no_budget_is_tuned_on_one_text_of_a_profile) {
  auto made = calibrated(own_text(6));
  made.texts.resize(2);
  BOOST_TEST(!setup::unfit(made, lineage()->config()).has_value());
  made.texts.resize(1);
  const auto problem = setup::unfit(made, lineage()->config());
  BOOST_REQUIRE(problem.has_value());
  BOOST_TEST((problem->code == errc::out_of_range));
  BOOST_TEST(problem->message.find("one text") != std::string::npos);
  BOOST_TEST(problem->message.find("ordermoe calibrate --text") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_budget_is_not_tuned_on_texts_that_cost_far_more_than_the_profiles) {
  const auto made = calibrated(own_text(6));
  BOOST_TEST(!setup::unfit(own_text(8), made, *lineage()).has_value());
  const auto problem = setup::unfit(random_ids(8), made, *lineage());
  BOOST_REQUIRE(problem.has_value());
  BOOST_TEST((problem->code == errc::mismatch));
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ordermoe
