#include "model/evaluation.hpp"

#include <cmath>

#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using ordermoe::errc;
using ordermoe::error;
using ordermoe::result;

}  // namespace

BOOST_AUTO_TEST_SUITE(evaluation)

BOOST_AUTO_TEST_CASE(windows_predict_every_token_but_the_first_once) {
  std::vector<std::int32_t> ids(23);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i);
  for (const std::size_t context : {2, 5, 12, 23, 100}) {
    std::vector<std::int32_t> predicted;
    for (const auto& window : om::windows(ids, context)) {
      BOOST_TEST(window.size() <= context);
      predicted.insert(predicted.end(), window.begin() + 1, window.end());
    }
    BOOST_TEST(predicted == std::vector<std::int32_t>(ids.begin() + 1, ids.end()),
               boost::test_tools::per_element());
  }
  BOOST_TEST(om::windows(std::span(ids).first(1), 5).empty());
}

BOOST_AUTO_TEST_CASE(perplexity_is_the_exponential_of_the_mean_loss_over_tokens) {
  const std::vector<std::vector<std::int32_t>> documents{{1, 2, 3}, {4}, {5, 6}};
  const auto score = fixture::need(om::perplexity(documents, [](auto ids) {
    return result<std::vector<double>>(
        std::vector<double>(ids.size() - 1, ids[0] == 1 ? 1.0 : 4.0));
  }));
  BOOST_TEST(score.n_tokens == 3u);
  BOOST_TEST(score.nats_per_token == 2.0);
  BOOST_TEST(score.perplexity == std::exp(2.0));
  // Residuals are 2 - 2 * 2 and 4 - 2 * 1: sqrt((4 + 4) * 2 / 1) / 3.
  BOOST_TEST(std::abs(score.standard_error - 4.0 / 3.0) < 1e-12);
  BOOST_TEST(score.losses == (std::vector<double>{1, 1, 4}), boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(perplexity_names_the_document_that_fails_and_can_be_stopped) {
  const std::vector<std::vector<std::int32_t>> documents{{1, 2}, {1, 2, 999}};
  const auto model = fixture::tiny_model();
  check_error(om::perplexity(documents, om::reference_losses(*model)), errc::out_of_range,
              {"document 1", "999"});
  check_error(om::perplexity({}, om::reference_losses(*model)), errc::out_of_range, {"texts"});
  om::evaluation_hooks hooks;
  hooks.should_stop = [] { return true; };
  check_error(om::perplexity(documents, om::reference_losses(*model), hooks), errc::interrupted,
              {});
}

BOOST_AUTO_TEST_CASE(the_reference_scores_its_own_losses) {
  const auto model = fixture::tiny_model();
  const std::vector<std::vector<std::int32_t>> documents{{1, 20, 30, 40}, {1, 50, 60}};
  const auto score = fixture::need(om::perplexity(documents, om::reference_losses(*model)));
  const auto first = fixture::need(om::token_losses(*model, documents[0]));
  BOOST_REQUIRE_EQUAL(score.losses.size(), 5u);
  for (std::size_t i = 0; i < 3; ++i) BOOST_TEST(score.losses[i] == first[i]);
}

BOOST_AUTO_TEST_CASE(problems_are_read_line_by_line) {
  const fixture::scratch_folder folder;
  const auto path = folder.write("problems.jsonl",
                                 "{\"prompt\":\"1+1=\",\"answer\":\"2\"}\n\n"
                                 "{\"answer\":\"4\",\"prompt\":\"2+2=\",\"note\":1}");
  const auto problems = fixture::need(om::read_problems(path));
  BOOST_REQUIRE_EQUAL(problems.size(), 2u);
  BOOST_TEST(problems[0].prompt == "1+1=");
  BOOST_TEST(problems[1].answer == "4");
}

BOOST_AUTO_TEST_CASE(a_bad_line_is_named_with_its_number) {
  const fixture::scratch_folder folder;
  const std::string good = "{\"prompt\":\"1+1=\",\"answer\":\"2\"}\n";
  for (const std::string& bad :
       {std::string("{\"prompt\":\"x\"}"), std::string("{"), std::string("[]"),
        std::string("{\"prompt\":\"x\",\"answer\":2}"), std::string("plain text")})
    check_error(om::read_problems(folder.write("p.jsonl", good + "\n" + bad + "\n" + good)),
                errc::malformed, {"p.jsonl:3"});
  check_error(om::read_problems(folder.write("p.jsonl", "\n\n")), errc::malformed, {"p.jsonl"});
  check_error(om::read_problems(folder.path() / "none.jsonl"), errc::not_found, {"none.jsonl"});
}

BOOST_AUTO_TEST_CASE(answers_are_compared_up_to_the_line_break_without_white_space) {
  BOOST_TEST(om::answer_line(" 42 \nmore") == "42");
  BOOST_TEST(om::answer_line("\n 42") == "42");
  BOOST_TEST(om::answer_line("4 2\t") == "4 2");
  BOOST_TEST(om::answer_line(" \n ") == "");
  BOOST_TEST(om::answer_line(" 6*4=24; 10*4=40; answer 64\nQ: 1") == "64");
  BOOST_TEST(om::answer_line("answer ") == "");
  const std::vector<om::problem> problems{{"a", "1"}, {"b", " 2"}, {"c", "3"}};
  const auto score = fixture::need(om::exact_match(problems, [](const std::string& prompt) {
    return result<std::string>(prompt == "a" ? "1\n2" : prompt == "b" ? "2 " : "33");
  }));
  BOOST_TEST(score.n_right == 2u);
  BOOST_TEST(score.exact_match() == 2.0 / 3.0);
  BOOST_TEST(score.answers.at(2) == "33");
}

BOOST_AUTO_TEST_CASE(exact_match_passes_errors_on_with_the_problems_number) {
  const std::vector<om::problem> problems{{"a", "1"}};
  check_error(om::exact_match(problems,
                              [](const std::string&) -> result<std::string> {
                                return error{errc::timed_out, "no answer came"};
                              }),
              errc::timed_out, {"problem 0", "no answer came"});
}

BOOST_AUTO_TEST_CASE(the_reference_answers_with_its_greedy_continuation) {
  const auto model = fixture::tiny_model();
  const auto tokens = fixture::tiny_tokenizer();
  const auto answer = fixture::need(om::reference_answers(*model, *tokens, 6)("fox"));
  om::generation_options options;
  options.max_new_tokens = 6;
  options.stop_strings = {"\n"};
  const auto made =
      fixture::need(om::generate(*model, tokens.get(), tokens->encode("fox"), options));
  BOOST_TEST(answer == made.text);
}

BOOST_AUTO_TEST_SUITE_END()
