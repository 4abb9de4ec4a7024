#include "model/training/train.hpp"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <filesystem>
#include <string>

#include "config/files.hpp"
#include "config/random.hpp"
#include "model/architecture/half_trained.hpp"
#include "model/checkpoint/verify.hpp"
#include "model/reference.hpp"
#include "model/text/tokenizer.hpp"
#include "model/training/corpus.hpp"
#include "model/training/shapes.hpp"
#include "model/transformer.hpp"

using namespace ordermoe;
using namespace ordermoe::training;
namespace fs = std::filesystem;

BOOST_AUTO_TEST_SUITE(train)

namespace {

struct folder {
  fs::path path = fs::temp_directory_path() / ("ordermoe_train_" + std::to_string(::getpid()));
  folder() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~folder() { fs::remove_all(path); }
};

/// A model so small that a stage takes a fraction of a second.
train_options tiny(const fs::path& root) {
  std::string text;
  for (std::uint64_t d = 0; d < 150; ++d) text += make_document(split::train, 3, d).text();
  BOOST_REQUIRE(write_file(root / "text.txt", text).has_value());
  train_options o;
  o.text = root / "text.txt";
  o.out = root / "model";
  o.tokens = 8192;
  o.vocab_size = 300;
  o.hidden_size = 32;
  o.intermediate_size = 32;
  o.n_layers = 2;
  o.n_experts = 4;
  o.max_context = 64;
  o.sequence_length = 32;
  o.sequences_per_step = 4;
  o.learning_rate = 5e-3;
  return o;
}

std::string bytes_of(const fs::path& path) {
  auto bytes = read_file(path);
  BOOST_TEST_REQUIRE(bytes.has_value());
  return *bytes;
}

/// The same held-out text through code that shares nothing with the trainer.
void check_perplexity(const fs::path& trained_on, const fs::path& out, double reported) {
  const auto model = model::transformer::load(out);
  BOOST_TEST_REQUIRE(model.has_value());
  const auto tokens = model::tokenizer::load(out);
  BOOST_TEST_REQUIRE(tokens.has_value());
  const auto text = bytes_of(trained_on);
  const auto cut = text.find('\n', text.size() - text.size() / 10) + 1;
  const auto ids = (*tokens)->encode(std::string_view(text).substr(cut));
  double total = 0;
  std::size_t n = 0;
  const std::size_t window = (*model)->config().max_context;
  for (std::size_t at = 0; at + 1 < ids.size(); at += window) {
    const auto losses =
        model::token_losses(**model, std::span(ids).subspan(at, std::min(window, ids.size() - at)));
    BOOST_TEST_REQUIRE(losses.has_value());
    for (const double loss : *losses) total += loss;
    n += losses->size();
  }
  BOOST_TEST(n > 200u);
  // Both compute in fp32 from the same bf16 weights.
  BOOST_TEST(std::exp(total / static_cast<double>(n)) == reported,
             boost::test_tools::tolerance(1e-4));
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_folder_runs_in_the_reference_and_scores_the_same) {
  const folder here;
  auto options = tiny(here.path);
  double first = 0, last = 0;
  options.on_progress = [&](const train_progress& p) { (first == 0 ? first : last) = p.loss; };
  const auto report = training::train(options);
  BOOST_TEST_REQUIRE(report.has_value());
  BOOST_TEST(last < first - 0.3);
  const auto model = model::transformer::load(options.out);
  BOOST_TEST_REQUIRE(model.has_value());
  BOOST_TEST((*model)->config().n_experts == 4u);
  const auto tokens = model::tokenizer::load(options.out);
  BOOST_TEST_REQUIRE(tokens.has_value());
  BOOST_TEST((*tokens)->vocab_size() == (*model)->config().vocab_size);
  check_perplexity(options.text, options.out, report->held_out_perplexity);
  BOOST_TEST(!bytes_of(options.out / "CARD.md").empty());
  BOOST_TEST(!fs::exists(model::training_state_of(options.out)));
  const auto checked = model::verify_model(options.out, model::checksum_check::verify);
  BOOST_TEST_REQUIRE(checked.has_value());
  BOOST_TEST(checked->problems.empty());
}

BOOST_AUTO_TEST_CASE(twins_run_in_the_reference_and_score_the_same) {
  for (const std::string name : {"mixtral-twin", "qwen-twin", "switch-twin"}) {
    const folder here;
    auto options = tiny(here.path);
    BOOST_TEST_REQUIRE(use_shape(options, name).has_value());
    const auto depth = options.n_layers, wanted = options.n_experts;
    BOOST_TEST(depth >= 12u);
    options.n_layers = 2;
    options.n_experts = 8;
    options.sequences_per_step = 4;
    options.tokens = 2048;
    options.measure = false;
    options.device = "libtorch:cpu";
    options.plain = here.path / "plain";
    const auto report = training::train(options);
    BOOST_TEST_REQUIRE(report.has_value(), (report ? "" : report.error().message));
    check_perplexity(options.text, options.out, report->held_out_perplexity);
    const auto model = model::transformer::load(options.out);
    BOOST_TEST_REQUIRE(model.has_value());
    const auto& shape = (*model)->config();
    BOOST_TEST((shape.kind == options.kind));
    BOOST_TEST((shape.gates == options.gates));
    BOOST_TEST(shape.top_k == options.top_k);
    BOOST_TEST(shape.shared_intermediate_size == options.shared_intermediate_size);
    BOOST_TEST(wanted >= 8u);
    const auto card = bytes_of(options.out / "CARD.md"),
               plain = bytes_of(options.plain / "CARD.md");
    BOOST_TEST(card.starts_with("# " + name + "\n"));
    BOOST_TEST(plain.starts_with("# " + name + "-plain\n"));
    BOOST_TEST(card.find("--device libtorch:cpu") != std::string::npos);
    BOOST_TEST(card.find("the router choosing among the rest") != std::string::npos);
    BOOST_TEST(plain.find("No row ever did without an expert") != std::string::npos);
    BOOST_TEST(plain.find("outages") == std::string::npos);
  }
}

BOOST_AUTO_TEST_CASE(a_plain_model_that_was_written_elsewhere_is_written_where_it_is_asked_for) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  options.finish = [&](const fs::path& out, const fs::path&,
                       const auto&) -> result<std::map<std::string, std::string>> {
    if (out == options.out) return error{errc::interrupted, "stopped"};
    return std::map<std::string, std::string>{};
  };
  for (const char* name : {"plain", "elsewhere"}) {
    options.plain = here.path / name;
    BOOST_TEST(!training::train(options).has_value());
    BOOST_TEST(fs::exists(options.plain / "model.safetensors"), name);
  }
}

BOOST_AUTO_TEST_CASE(the_plain_model_is_the_state_before_the_outages) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  options.plain = here.path / "plain";
  std::vector<fs::path> finished;
  options.finish = [&](const fs::path& out, const fs::path&,
                       const auto&) -> result<std::map<std::string, std::string>> {
    finished.push_back(out);
    if (finished.size() == 2) return error{errc::interrupted, "stopped"};
    return std::map<std::string, std::string>{{"name.txt", out.filename().string() + "\n"}};
  };
  const auto stopped = training::train(options);
  BOOST_TEST_REQUIRE(!stopped.has_value());
  BOOST_TEST((stopped.error().code == errc::interrupted));
  const auto weights = bytes_of(options.plain / "model.safetensors");
  BOOST_TEST((bytes_of(options.plain / "name.txt") == "plain\n"));
  // Goes on with the folder that is missing, and leaves the one that is there.
  const auto report = training::train(options);
  BOOST_TEST_REQUIRE(report.has_value(), (report ? "" : report.error().message));
  BOOST_TEST((finished == std::vector<fs::path>{options.plain, options.out, options.out}));
  BOOST_TEST((bytes_of(options.plain / "model.safetensors") == weights));
  BOOST_TEST((bytes_of(options.out / "model.safetensors") != weights));
  const auto checked = model::verify_model(options.plain, model::checksum_check::verify);
  BOOST_TEST_REQUIRE(checked.has_value());
  BOOST_TEST(checked->problems.empty());

  // It is what the run would be without its last stage, and a model beside it changes nothing.
  auto alone = options;
  alone.plain.clear();
  alone.finish = nullptr;
  alone.out = here.path / "alone";
  BOOST_TEST_REQUIRE(training::train(alone).has_value());
  BOOST_TEST(
      (bytes_of(alone.out / "model.safetensors") == bytes_of(options.out / "model.safetensors")));
  // A folder that holds something is not written into.
  alone.out = here.path / "again";
  alone.plain = options.plain;
  BOOST_TEST((training::train(alone).error().code == errc::io));
  BOOST_TEST(!fs::exists(alone.out));
}

BOOST_AUTO_TEST_CASE(an_interrupted_run_ends_in_the_same_weights) {
  const folder here;
  auto options = tiny(here.path);
  options.recipe = "lineage";
  options.measure = false;
  options.out = here.path / "whole";
  BOOST_TEST_REQUIRE(training::train(options).has_value());

  options.out = here.path / "pieces";
  int interruptions = 0;
  for (;; ++interruptions) {
    BOOST_TEST_REQUIRE(interruptions < 20);
    int steps = 0;
    options.should_stop = [&] { return ++steps > 11; };
    const auto report = training::train(options);
    if (report) break;
    BOOST_TEST_REQUIRE((report.error().code == errc::interrupted), report.error().message);
    BOOST_TEST(fs::exists(model::training_state_of(options.out)));
    BOOST_TEST(!fs::exists(options.out));
  }
  BOOST_TEST(interruptions >= 3);
  BOOST_TEST((bytes_of(here.path / "whole" / "model.safetensors") ==
              bytes_of(here.path / "pieces" / "model.safetensors")));
}

BOOST_AUTO_TEST_CASE(a_trained_model_that_is_measured_can_be_stopped_too) {
  const folder here;
  auto options = tiny(here.path);
  // No stage is at work any more, and none is asked for again.
  const auto trained = [&] {
    const auto state = model::training_state_of(options.out);
    return fs::exists(state / "outages.safetensors");
  };
  options.should_stop = trained;
  const auto report = training::train(options);
  BOOST_TEST_REQUIRE(!report.has_value());
  BOOST_TEST((report.error().code == errc::interrupted));
  BOOST_TEST(report.error().message.find("measured") != std::string::npos, report.error().message);
  BOOST_TEST(trained());
  BOOST_TEST(!fs::exists(options.out));
  options.should_stop = nullptr;
  BOOST_TEST(training::train(options).has_value());
}

BOOST_AUTO_TEST_CASE(a_half_trained_model_is_refused_with_the_command_that_goes_on) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  int steps = 0;
  options.should_stop = [&] { return ++steps > 3; };
  BOOST_TEST((training::train(options).error().code == errc::interrupted));
  for (const auto& path : {options.out, model::training_state_of(options.out)}) {
    const auto loaded = model::transformer::load(path);
    BOOST_TEST_REQUIRE(!loaded.has_value());
    const auto checked = model::verify_model(path, model::checksum_check::skip);
    BOOST_TEST_REQUIRE(!checked.has_value());
    for (const auto& message : {loaded.error().message, checked.error().message}) {
      BOOST_TEST(message.find("half trained") != std::string::npos, message);
      BOOST_TEST(message.find("ordermoe model train --text '" + options.text.string() + "'") !=
                     std::string::npos,
                 message);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_folder_that_holds_anything_is_not_trained_into) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  BOOST_TEST_REQUIRE(training::train(options).has_value());
  const auto weights = bytes_of(options.out / "model.safetensors");
  const auto again = training::train(options);
  BOOST_TEST_REQUIRE(!again.has_value());
  BOOST_TEST((again.error().code == errc::io));
  BOOST_TEST((bytes_of(options.out / "model.safetensors") == weights));
  BOOST_TEST(!fs::exists(model::training_state_of(options.out)));

  options.out = here.path / "foreign";
  fs::create_directories(options.out);
  BOOST_TEST_REQUIRE(write_file(options.out / "notes.txt", "mine\n").has_value());
  BOOST_TEST(!training::train(options).has_value());
  BOOST_TEST((bytes_of(options.out / "notes.txt") == "mine\n"));
  fs::remove(options.out / "notes.txt");
  BOOST_TEST(training::train(options).has_value());
}

BOOST_AUTO_TEST_CASE(what_else_belongs_into_the_folder_is_asked_for_before_it_appears) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  std::size_t n_left_out = 0;
  options.finish = [&](const fs::path&, const fs::path& folder,
                       const auto& left_out) -> result<std::map<std::string, std::string>> {
    BOOST_TEST(!fs::exists(options.out));
    BOOST_TEST(model::transformer::load(folder).has_value());
    for (const auto& ids : left_out) n_left_out += ids.size();
    return error{errc::failed, "the second file cannot be made"};
  };
  BOOST_TEST(!training::train(options).has_value());
  BOOST_TEST(!fs::exists(options.out));
  BOOST_TEST(n_left_out > 256u);
  options.finish = [&](const fs::path&, const fs::path&,
                       const auto&) -> result<std::map<std::string, std::string>> {
    return std::map<std::string, std::string>{{"second.txt", "made\n"}};
  };
  const auto report = training::train(options);
  BOOST_TEST_REQUIRE(report.has_value());
  BOOST_TEST(report->left_out == n_left_out);
  BOOST_TEST((bytes_of(options.out / "second.txt") == "made\n"));
}

BOOST_AUTO_TEST_CASE(recipes_share_their_dense_stage) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  for (const std::string recipe : {"upcycled", "dense"}) {
    options.recipe = recipe;
    options.out = here.path / recipe;
    options.state = here.path / ("state-" + recipe);
    BOOST_TEST_REQUIRE(training::train(options).has_value());
  }
  const auto parameters = [&](const char* recipe) {
    return bytes_of(here.path / ("state-" + std::string(recipe)) / "dense.safetensors");
  };
  // The headers hold seconds, which differ; the weights and moments behind them must not.
  const auto upcycled = parameters("upcycled"), dense = parameters("dense");
  const std::size_t tail = std::min(upcycled.size(), dense.size()) - 4096;
  BOOST_TEST((upcycled.substr(upcycled.size() - tail) == dense.substr(dense.size() - tail)));
}

BOOST_AUTO_TEST_CASE(a_short_text_is_not_read_more_than_sixteen_times) {
  const folder here;
  auto options = tiny(here.path);
  const auto text = bytes_of(options.text).substr(0, 6000);
  BOOST_REQUIRE(write_file(options.text, text).has_value());
  options.tokens = 0;
  options.minutes = 1000;
  options.measure = false;
  const auto report = training::train(options);
  BOOST_TEST_REQUIRE(report.has_value());
  // No token is shorter than a byte.
  BOOST_TEST(report->tokens < 16 * text.size() + 1024);
  BOOST_TEST(report->tokens > text.size());
}

BOOST_AUTO_TEST_CASE(the_state_of_another_run_is_not_continued) {
  const folder here;
  auto options = tiny(here.path);
  options.measure = false;
  int steps = 0;
  options.should_stop = [&] { return ++steps > 3; };
  BOOST_TEST((training::train(options).error().code == errc::interrupted));
  options.should_stop = nullptr;
  options.seed = 2;
  const auto report = training::train(options);
  BOOST_TEST_REQUIRE(!report.has_value());
  BOOST_TEST((report.error().code == errc::mismatch));
}

BOOST_AUTO_TEST_CASE(impossible_wishes_are_refused) {
  const folder here;
  const auto refused = [&](auto change) {
    auto options = tiny(here.path);
    change(options);
    const auto report = training::train(options);
    BOOST_TEST_REQUIRE(!report.has_value());
    return report.error().code;
  };
  BOOST_TEST((refused([](auto& o) { o.recipe = "sparse"; }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.out.clear(); }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.n_experts = 3; }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.tokens = 0, o.minutes = -1; }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.n_heads = 5; }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.plain = o.out; }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.recipe = "dense", o.plain = "p"; }) == errc::usage));
  BOOST_TEST((refused([](auto& o) { o.device = "libtorch:abacus"; }) == errc::unsupported));
  BOOST_TEST((refused([](auto& o) { o.shared_intermediate_size = 8; }) == errc::usage));
  train_options unknown;
  BOOST_TEST((use_shape(unknown, "llama-twin").error().code == errc::usage));
  BOOST_TEST((refused([&](auto& o) { o.text = here.path / "missing.txt"; }) == errc::not_found));
  BOOST_TEST((refused([&](auto& o) {
                BOOST_REQUIRE(write_file(here.path / "binary", "text \xff\xfe").has_value());
                o.text = here.path / "binary";
              }) == errc::malformed));
  BOOST_TEST((refused([&](auto& o) {
                BOOST_REQUIRE(
                    write_file(here.path / "short.txt", "Too short to learn from.\n").has_value());
                o.text = here.path / "short.txt";
              }) == errc::out_of_range));
}

BOOST_AUTO_TEST_SUITE_END()
