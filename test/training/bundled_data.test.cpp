#include <boost/test/unit_test.hpp>

#include <filesystem>
#include <set>
#include <string>

#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "model/architecture/model_config.hpp"
#include "model/text/tokenizer.hpp"
#include "model/training/corpus.hpp"
#include "model/training/evaluation_data.hpp"
#include "model/training/shapes.hpp"
#include "model/training/train.hpp"

using namespace ordermoe;
using namespace ordermoe::training;
namespace fs = std::filesystem;

BOOST_AUTO_TEST_SUITE(bundled_data)

namespace {

const fs::path data = ORDERMOE_DATA;

std::string bytes_of(const fs::path& path) {
  auto bytes = read_file(path);
  BOOST_TEST_REQUIRE(bytes.has_value(), path.string());
  return *bytes;
}

std::set<std::string> lines_of(const std::string& text) {
  std::set<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    lines.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

BOOST_AUTO_TEST_CASE(the_evaluation_files_are_what_the_generator_writes) {
  const auto files = evaluation_files(1);
  BOOST_TEST_REQUIRE(files.has_value());
  BOOST_TEST(files->size() == 5u);
  for (const auto& file : *files)
    BOOST_TEST((bytes_of(data / "eval" / file.name) == file.content), file.name);
}

BOOST_AUTO_TEST_CASE(the_evaluation_files_are_large_enough) {
  const auto tokens = model::tokenizer::load(data / "models" / "upcycled");
  BOOST_TEST_REQUIRE(tokens.has_value());
  BOOST_TEST((*tokens)->encode(bytes_of(data / "eval" / "held-out.txt")).size() >= 12000u);
  BOOST_TEST((*tokens)->encode(bytes_of(data / "eval" / "retold.txt")).size() >= 12000u);
  BOOST_TEST((*tokens)->encode(bytes_of(data / "eval" / "calibration.txt")).size() >= 30000u);
  BOOST_TEST(lines_of(bytes_of(data / "eval" / "problems.jsonl")).size() >= 200u);
  const auto prompts = lines_of(bytes_of(data / "eval" / "prompts.jsonl"));
  BOOST_TEST(prompts.size() >= 64u);
  for (const auto& line : prompts) {
    const auto n =
        (*tokens)->encode(nlohmann::json::parse(line).at("prompt").get<std::string>()).size();
    BOOST_TEST(n >= 20u);
    BOOST_TEST(n <= 60u);
  }
}

BOOST_AUTO_TEST_CASE(held_out_and_calibration_text_share_no_document_line_of_facts_or_problems) {
  // Lines of code repeat on their own ("import x"); what no split shares is a whole item. Lines of
  // the atlas are items.
  const auto held_out = bytes_of(data / "eval" / "held-out.txt");
  for (const auto& line : lines_of(bytes_of(data / "eval" / "calibration.txt")))
    if (line.find(" word for ") != std::string::npos || line.starts_with("Q: "))
      BOOST_TEST(held_out.find(line + "\n") == std::string::npos, line);
}

BOOST_AUTO_TEST_CASE(
    what_budgets_are_tuned_on_shares_no_fact_or_problem_with_what_models_are_calibrated_on) {
  constexpr std::size_t n_calibrated = 24'576;
  const auto tokens = model::tokenizer::load(data / "models" / "upcycled");
  BOOST_TEST_REQUIRE(tokens.has_value());
  const auto ids = (*tokens)->encode(bytes_of(data / "eval" / "calibration.txt"));
  BOOST_TEST_REQUIRE(ids.size() >= n_calibrated + 16'384u);
  const auto calibrated = (*tokens)->decode(std::span(ids).first(n_calibrated));
  const auto tuned_on = (*tokens)->decode(std::span(ids).subspan(n_calibrated));
  std::size_t n = 0;
  for (const auto& line : lines_of(calibrated))
    if (line.find(" word for ") != std::string::npos || line.starts_with("Q: ")) {
      BOOST_TEST(tuned_on.find(line + "\n") == std::string::npos, line);
      ++n;
    }
  BOOST_TEST(n >= 100u);
}

BOOST_AUTO_TEST_CASE(both_models_carry_the_tokenizer_of_the_corpus_and_stay_small) {
  const auto tokenizer = synthetic_tokenizer(768);
  BOOST_TEST_REQUIRE(tokenizer.has_value());
  for (const auto* name : {"upcycled", "lineage"}) {
    const auto folder = data / "models" / name;
    BOOST_TEST((bytes_of(folder / "tokenizer.model") == *tokenizer), name);
    std::uintmax_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(folder)) bytes += fs::file_size(entry);
    BOOST_TEST(bytes <= 12u * 1024 * 1024);
    BOOST_TEST(!bytes_of(folder / "CARD.md").empty());
  }
}

BOOST_AUTO_TEST_CASE(twins_have_the_shape_that_train_knows_by_their_name_and_stay_small) {
  const auto tokenizer = synthetic_tokenizer(768);
  BOOST_TEST_REQUIRE(tokenizer.has_value());
  std::uintmax_t all = 0;
  std::size_t with_weights = 0;
  for (const std::string name : {"mixtral-twin", "qwen-twin", "switch-twin"})
    for (const std::string degree : {"", "-plain"}) {
      const auto folder = data / "models" / (name + degree);
      BOOST_TEST(bytes_of(folder / "CARD.md").starts_with("# " + name + degree + "\n"));
      for (const auto& entry : fs::directory_iterator(folder)) all += fs::file_size(entry);
      if (!fs::exists(folder / "model.safetensors")) continue;  // The card has the command.
      ++with_weights;
      BOOST_TEST(fs::file_size(folder / "model.safetensors") <= 12u * 1024 * 1024);
      BOOST_TEST((bytes_of(folder / "tokenizer.model") == *tokenizer), name);
      train_options wanted;
      BOOST_TEST_REQUIRE(use_shape(wanted, name).has_value());
      const auto shape = model::read_model_config(folder);
      BOOST_TEST_REQUIRE(shape.has_value());
      BOOST_TEST((shape->kind == wanted.kind));
      BOOST_TEST((shape->gates == wanted.gates));
      BOOST_TEST(shape->n_layers == wanted.n_layers);
      BOOST_TEST(shape->n_experts == wanted.n_experts);
      BOOST_TEST(shape->top_k == wanted.top_k);
      BOOST_TEST(shape->hidden_size == wanted.hidden_size);
      BOOST_TEST(shape->intermediate_size == wanted.intermediate_size);
      BOOST_TEST(shape->shared_intermediate_size == wanted.shared_intermediate_size);
    }
  BOOST_TEST(with_weights >= 3u);
  BOOST_TEST(all <= 40'000'000u);
}

BOOST_AUTO_TEST_SUITE_END()
