#include "model/reference.hpp"

#include <cmath>

#include "model/architecture/routing.hpp"
#include "model/checkpoint/safetensors.hpp"
#include "test/model/fixture.hpp"

namespace {

namespace om = ordermoe::model;
using fixture::check_error;
using fixture::tiny_model;
using ordermoe::errc;

const std::vector<std::int32_t> prompt{1, 60, 61, 62};

om::generation make(const om::generation_options& options, const om::tokenizer* tokens = nullptr,
                    const std::vector<std::int32_t>& ids = prompt) {
  return fixture::need(om::generate(*tiny_model(), tokens, ids, options));
}

om::generation_options sampled(std::size_t n, std::uint64_t seed) {
  om::generation_options options;
  options.max_new_tokens = n;
  options.sampling = {.temperature = 1.0, .seed = seed};
  return options;
}

/// The tiny model with its end-of-text id moved.
std::shared_ptr<const om::transformer> model_ending_with(const fixture::scratch_folder& folder,
                                                         std::int32_t eos_id) {
  auto config = tiny_model()->config();
  config.eos_id = eos_id;
  folder.write("config.json", om::model_config_json(config));
  std::filesystem::copy_file(fixture::tiny / "model.safetensors",
                             folder.path() / "model.safetensors");
  return fixture::need(om::transformer::load(folder.path()));
}

}  // namespace

BOOST_AUTO_TEST_SUITE(reference)

BOOST_AUTO_TEST_CASE(generation_with_a_cache_equals_full_passes) {
  const auto made = make(sampled(20, 3));
  BOOST_REQUIRE(made.token_ids.size() == 20u);
  auto ids = prompt;
  for (const auto expected : made.token_ids) {
    const auto scores = fixture::need(om::logits(*tiny_model(), ids));
    const auto last = std::span<const float>(scores).last(tiny_model()->config().vocab_size);
    const auto next = om::sample(last, {.temperature = 1.0, .seed = 3}, 0, ids.size());
    BOOST_REQUIRE_EQUAL(next, expected);
    ids.push_back(next);
  }
}

BOOST_AUTO_TEST_CASE(the_same_seed_repeats_and_another_differs) {
  BOOST_TEST((make(sampled(30, 1)).token_ids == make(sampled(30, 1)).token_ids));
  BOOST_TEST((make(sampled(30, 1)).token_ids != make(sampled(30, 2)).token_ids));
  auto other = sampled(30, 1);
  other.request = 9;
  BOOST_TEST((make(sampled(30, 1)).token_ids != make(other).token_ids));
}

BOOST_AUTO_TEST_CASE(generation_ends_at_the_number_of_tokens_asked_for) {
  const auto made = make(sampled(5, 1));
  BOOST_TEST(made.token_ids.size() == 5u);
  BOOST_TEST((made.reason == om::finish_reason::length));
  const auto none = make(sampled(0, 1));
  BOOST_TEST(none.token_ids.empty());
  BOOST_TEST(none.final_hidden.size() == tiny_model()->config().hidden_size);
}

BOOST_AUTO_TEST_CASE(generation_ends_at_the_context_length) {
  const auto made = make(sampled(1000, 1));
  BOOST_TEST(made.token_ids.size() == 60u);
  BOOST_TEST((made.reason == om::finish_reason::context));
  const std::vector<std::int32_t> full(64, 5);
  const auto none = make(sampled(3, 1), nullptr, full);
  BOOST_TEST(none.token_ids.empty());
  BOOST_TEST((none.reason == om::finish_reason::context));
}

BOOST_AUTO_TEST_CASE(generation_ends_before_the_end_of_text) {
  const auto whole = make(sampled(20, 1));
  // Some id that was not made before its place becomes the end of text.
  std::size_t place = 5;
  while (std::find(whole.token_ids.begin(), whole.token_ids.begin() + static_cast<long>(place),
                   whole.token_ids[place]) != whole.token_ids.begin() + static_cast<long>(place))
    ++place;
  const fixture::scratch_folder folder;
  const auto model = model_ending_with(folder, whole.token_ids[place]);
  const auto made = fixture::need(om::generate(*model, nullptr, prompt, sampled(20, 1)));
  BOOST_TEST((made.reason == om::finish_reason::end_of_text));
  BOOST_TEST(made.token_ids ==
                 std::vector<std::int32_t>(whole.token_ids.begin(),
                                           whole.token_ids.begin() + static_cast<long>(place)),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(generation_ends_before_any_of_the_ids_that_end_a_text) {
  const auto whole = make(sampled(20, 1));
  auto config = tiny_model()->config();
  // The model's own end, which is not made here, and the one that is made third.
  BOOST_REQUIRE(std::ranges::count(whole.token_ids, config.eos_id) == 0);
  const auto third = whole.token_ids[2];
  const auto first = std::ranges::find(whole.token_ids, third);
  const fixture::scratch_folder folder;
  folder.write("config.json", om::model_config_json(config));
  folder.write("generation_config.json", "{\"eos_token_id\": [" + std::to_string(config.eos_id) +
                                             ", " + std::to_string(third) + "]}");
  std::filesystem::copy_file(fixture::tiny / "model.safetensors",
                             folder.path() / "model.safetensors");
  const auto model = fixture::need(om::transformer::load(folder.path()));
  const auto made = fixture::need(om::generate(*model, nullptr, prompt, sampled(20, 1)));
  BOOST_TEST((made.reason == om::finish_reason::end_of_text));
  BOOST_TEST(made.token_ids == std::vector<std::int32_t>(whole.token_ids.begin(), first),
             boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(an_empty_prompt_is_refused_with_what_to_do) {
  // A byte-level tokenizer makes no ids of an empty text; SentencePiece begins every text.
  const auto tokens = fixture::need(
      om::tokenizer::load(std::filesystem::path(ORDERMOE_TEST_DATA) / "tokenizer-qwen"));
  BOOST_TEST(tokens->encode("").empty());
  BOOST_TEST(fixture::tiny_tokenizer()->encode("").size() == 1u);
  fixture::check_error(om::generate(*tiny_model(), tokens.get(), tokens->encode(""), {}),
                       ordermoe::errc::out_of_range, {"prompt is empty", "give at least one"});
}

BOOST_AUTO_TEST_CASE(an_answer_goes_on_with_the_text_of_its_prompt) {
  const auto tokens = fixture::tiny_tokenizer();
  auto options = sampled(30, 4);
  // A word that a space begins.
  const auto word = tokens->encode_inside("the").front();
  BOOST_REQUIRE(tokens->decode_further({&word, 1}).starts_with(' '));
  std::size_t began_with_spaces = 0;
  for (options.request = 0; options.request < 40; ++options.request) {
    const auto made = make(options, tokens.get());
    began_with_spaces += made.text.starts_with(' ');
    auto all = prompt;
    all.insert(all.end(), made.token_ids.begin(), made.token_ids.end());
    // Half a character at its end is told by as many signs as it has bytes, either way.
    BOOST_TEST(tokens->decode(prompt) + made.text == tokens->decode(all));
  }
  BOOST_TEST(began_with_spaces > 0u);
}

BOOST_AUTO_TEST_CASE(the_text_ends_before_the_first_stop_string) {
  const auto tokens = fixture::tiny_tokenizer();
  const auto whole = make(sampled(50, 4), tokens.get());
  BOOST_REQUIRE(whole.text.size() > 20u);
  auto options = sampled(50, 4);
  options.stop_strings = {"never to be seen", whole.text.substr(12, 3), ""};
  const auto made = make(options, tokens.get());
  BOOST_TEST((made.reason == om::finish_reason::stop_string));
  BOOST_TEST(made.text == whole.text.substr(0, whole.text.find(options.stop_strings[1])));
  BOOST_TEST(made.token_ids.size() < whole.token_ids.size());
}

BOOST_AUTO_TEST_CASE(stop_strings_without_a_tokenizer_are_refused) {
  auto options = sampled(5, 1);
  options.stop_strings = {"x"};
  check_error(om::generate(*tiny_model(), nullptr, prompt, options), errc::usage, {"tokenizer"});
}

BOOST_AUTO_TEST_CASE(prompts_that_do_not_fit_the_model_are_refused) {
  const auto refuse = [](const std::vector<std::int32_t>& ids, const std::string& word) {
    check_error(om::generate(*tiny_model(), nullptr, ids, {}), errc::out_of_range, {word});
    check_error(om::logits(*tiny_model(), ids), errc::out_of_range, {word});
    check_error(om::token_losses(*tiny_model(), ids), errc::out_of_range, {word});
  };
  refuse({}, "empty");
  refuse({1, 2, 320}, "320");
  refuse({1, -1}, "-1");
  refuse(std::vector<std::int32_t>(65, 1), "65");
}

BOOST_AUTO_TEST_CASE(losses_are_those_of_the_logits) {
  const std::vector<std::int32_t> ids{1, 40, 50, 60};
  const auto losses = fixture::need(om::token_losses(*tiny_model(), ids));
  const auto scores = fixture::need(om::logits(*tiny_model(), ids));
  BOOST_REQUIRE_EQUAL(losses.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i)
    BOOST_TEST(losses[i] == om::negative_log_likelihood(
                                std::span<const float>(scores).subspan(i * 320, 320), ids[i + 1]));
  BOOST_TEST(fixture::need(om::token_losses(*tiny_model(), std::vector<std::int32_t>{1})).empty());
}

BOOST_AUTO_TEST_CASE(an_override_that_changes_nothing_keeps_every_bit) {
  const std::vector<std::int32_t> ids{1, 40, 50, 60, 70, 80};
  const auto plain = fixture::need(om::logits(*tiny_model(), ids));
  std::size_t calls = 0;
  const auto same =
      fixture::need(om::logits(*tiny_model(), ids,
                               [&](ordermoe::layer_id, std::size_t, std::span<const float> logits,
                                   std::vector<om::executed_slot>& slots) {
                                 ++calls;
                                 const auto chosen =
                                     om::choose_experts(logits, 2, om::gate_rule::renormalised);
                                 for (std::size_t j = 0; j < 2; ++j)
                                   BOOST_TEST((slots[j].expert == chosen[j].expert));
                               }));
  BOOST_TEST(calls == 3 * ids.size());
  BOOST_TEST(fixture::same_bits(plain.data(), same.data(), plain.size()));
}

BOOST_AUTO_TEST_CASE(an_override_changes_its_own_position_and_later_ones_only) {
  const std::vector<std::int32_t> ids{1, 40, 50, 60, 70, 80};
  const auto plain = fixture::need(om::logits(*tiny_model(), ids));
  const auto changed =
      fixture::need(om::logits(*tiny_model(), ids,
                               [&](ordermoe::layer_id layer, std::size_t position,
                                   std::span<const float>, std::vector<om::executed_slot>& slots) {
                                 if (layer.index() != 1 || position != 3) return;
                                 slots[0].expert =
                                     ordermoe::expert_id{(slots[0].expert.index() + 1) % 6};
                               }));
  BOOST_TEST(fixture::same_bits(plain.data(), changed.data(), 3 * 320));
  for (std::size_t i = 3; i < 6; ++i)
    BOOST_TEST(!fixture::same_bits(&plain[i * 320], &changed[i * 320], 320));
}

BOOST_AUTO_TEST_CASE(rows_without_slots_skip_the_experts) {
  const std::vector<std::int32_t> ids{1, 40, 50};
  const auto dropped =
      fixture::need(om::logits(*tiny_model(), ids,
                               [](ordermoe::layer_id, std::size_t, std::span<const float>,
                                  std::vector<om::executed_slot>& slots) { slots.clear(); }));
  const auto plain = fixture::need(om::logits(*tiny_model(), ids));
  BOOST_TEST(!fixture::same_bits(plain.data(), dropped.data(), plain.size()));
  for (const float x : dropped) BOOST_TEST(std::isfinite(x));
}

BOOST_AUTO_TEST_SUITE_END()
