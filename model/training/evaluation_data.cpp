#include "model/training/evaluation_data.hpp"

#include <optional>
#include <set>
#include <string>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "config/files.hpp"
#include "model/training/corpus.hpp"
#include "model/training/retelling.hpp"
#include "model/training/text_source.hpp"
#include "model/training/train.hpp"

namespace ordermoe::training {
namespace {

constexpr std::size_t vocab_size = 768, held_out_tokens = 16384, calibration_tokens = 60000,
                      n_problems = 256, n_prompts = 96;
// Of the bundled models: what statistics choose loses less on items that they saw.
constexpr std::size_t calibrated_tokens = 24576;
constexpr std::size_t shortest_prompt = 20, longest_prompt = 60;

/// Documents with an empty line between two, of so many tokens: make(d, tokens before it), of which empty ones are left out.
template <class Make>
std::string joined(const piece_encoder& pieces, std::size_t tokens, const Make& make) {
  std::string all;
  std::size_t n = 0;
  for (std::uint64_t d = 0; n < tokens; ++d) {
    const std::string text = make(d, n);
    if (text.empty()) continue;
    n += pieces.encode(text).size() + 2;
    all += (all.empty() ? "" : "\n") + text;
  }
  return all;
}

/// Documents of a split, of which what follows the first n_seen tokens has no item that they have.
std::string documents(const piece_encoder& pieces, split part, std::uint64_t seed,
                      std::size_t tokens, std::size_t n_seen) {
  std::set<std::string> seen;
  return joined(pieces, tokens, [&](std::uint64_t d, std::size_t n) {
    auto made = make_document(part, seed, d);
    if (n < n_seen)
      for (const auto& item : made.items) seen.insert(item.key);
    else
      std::erase_if(made.items, [&](const corpus_item& item) { return seen.contains(item.key); });
    return made.text();
  });
}

/// Documents of the second generator.
std::string retold(const piece_encoder& pieces, std::uint64_t seed, std::size_t tokens) {
  return joined(pieces, tokens,
                [&](std::uint64_t d, std::size_t) { return retold_document(seed, d).text(); });
}

/// The beginning of a document, cut in front of a space or a line end; of arithmetic, up to the
/// question's end.
std::optional<std::string> prompt_of(const piece_encoder& pieces, const document& from,
                                     random_stream& random) {
  const auto text = from.text();
  const auto fits = [&](const std::string& prompt) {
    const auto n = pieces.encode(prompt).size() + 1;
    return n >= shortest_prompt && n <= longest_prompt;
  };
  if (from.what == domain::arithmetic) {
    for (auto end = text.find("\nA:"); end != std::string::npos; end = text.find("\nA:", end + 1))
      if (auto prompt = text.substr(0, end + 3); fits(prompt)) return prompt;
    return std::nullopt;
  }
  const auto ids = pieces.encode(text);
  const auto wanted = shortest_prompt + random.below(longest_prompt - shortest_prompt);
  if (ids.size() < wanted) return std::nullopt;
  auto prompt = pieces.decode(std::span(ids).first(wanted));
  while (!prompt.empty() && text[prompt.size()] != ' ' && text[prompt.size()] != '\n')
    prompt.pop_back();
  return fits(prompt) ? std::optional(prompt) : std::nullopt;
}

}  // namespace

result<std::vector<evaluation_file>> evaluation_files(std::uint64_t seed) {
  auto tokenizer = synthetic_tokenizer(vocab_size);
  if (!tokenizer) return tokenizer.error();
  auto pieces = piece_encoder::from_bytes(std::move(*tokenizer));
  if (!pieces) return pieces.error();
  std::string problems, prompts;
  random_stream random(seed, 1);
  for (std::size_t i = 0; i < n_problems; ++i) {
    const auto p = make_problem(split::eval, random);
    problems += nlohmann::ordered_json{{"prompt", p.prompt}, {"answer", p.answer}}.dump() + "\n";
  }
  random_stream drawn(seed, 2);
  for (std::size_t i = 0; i < n_prompts;) {
    const auto from = make_document(split::eval, static_cast<domain>(i % n_domains), drawn);
    const auto prompt = prompt_of(**pieces, from, drawn);
    if (!prompt) continue;
    prompts += nlohmann::ordered_json{{"prompt", *prompt}}.dump() + "\n";
    ++i;
  }
  return std::vector<evaluation_file>{
      {"held-out.txt", documents(**pieces, split::eval, seed, held_out_tokens, held_out_tokens)},
      {"calibration.txt",
       documents(**pieces, split::calibration, seed, calibration_tokens, calibrated_tokens)},
      {"retold.txt", retold(**pieces, seed, held_out_tokens)},
      {"problems.jsonl", problems},
      {"prompts.jsonl", prompts}};
}

result<void> write_evaluation_data(const std::filesystem::path& folder, std::uint64_t seed) {
  const auto files = evaluation_files(seed);
  if (!files) return files.error();
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    return error{errc::io, fmt::format("{}: the folder cannot be made: {}", folder.string(),
                                       problem.message())};
  for (const auto& file : *files)
    if (auto written = write_file(folder / file.name, file.content); !written) return written;
  return {};
}

}  // namespace ordermoe::training
