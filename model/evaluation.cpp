#include "model/evaluation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "config/files.hpp"

namespace ordermoe::model {

namespace {

const error stopped{errc::interrupted, "evaluation was stopped; nothing of it is kept"};

bool stopping(const evaluation_hooks& hooks) {
  return hooks.should_stop && hooks.should_stop();
}

void report(const evaluation_hooks& hooks, std::size_t done, std::size_t all) {
  if (hooks.progress) hooks.progress(static_cast<double>(done) / static_cast<double>(all));
}

}  // namespace

std::vector<std::vector<std::int32_t>> windows(std::span<const std::int32_t> ids,
                                               std::size_t context) {
  ORDERMOE_CHECK(context >= 2, "a window of fewer than two tokens predicts nothing");
  std::vector<std::vector<std::int32_t>> parts;
  for (std::size_t start = 0; start + 1 < ids.size(); start += context - 1) {
    const auto part = ids.subspan(start, std::min(context, ids.size() - start));
    parts.emplace_back(part.begin(), part.end());
  }
  return parts;
}

result<perplexity_score> perplexity(std::span<const std::vector<std::int32_t>> documents,
                                    const loss_function& losses, const evaluation_hooks& hooks) {
  perplexity_score score;
  struct document_sum {
    double nats;
    double tokens;
  };
  std::vector<document_sum> sums;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    if (stopping(hooks)) return stopped;
    if (documents[d].size() < 2) continue;
    auto found = losses(documents[d]);
    if (!found) return at(fmt::format("document {}", d), found.error());
    double nats = 0;
    for (const double loss : *found) nats += loss;
    sums.push_back({nats, static_cast<double>(found->size())});
    score.losses.insert(score.losses.end(), found->begin(), found->end());
    report(hooks, d + 1, documents.size());
  }
  score.n_tokens = score.losses.size();
  if (score.n_tokens == 0)
    return error{errc::out_of_range,
                 "the texts have no token to predict; give documents of two tokens or more"};
  double nats = 0;
  for (const auto& sum : sums) nats += sum.nats;
  score.nats_per_token = nats / static_cast<double>(score.n_tokens);
  score.perplexity = std::exp(score.nats_per_token);
  if (sums.size() > 1) {
    const auto n = static_cast<double>(sums.size());
    double residuals = 0;
    for (const auto& sum : sums) {
      const double residual = sum.nats - score.nats_per_token * sum.tokens;
      residuals += residual * residual;
    }
    score.standard_error = std::sqrt(residuals * n / (n - 1)) / static_cast<double>(score.n_tokens);
  }
  return score;
}

result<std::vector<problem>> read_problems(const std::filesystem::path& path) {
  auto text = read_file(path);
  if (!text) return text.error();
  std::vector<problem> problems;
  std::size_t line_number = 0;
  for (std::size_t start = 0; start < text->size();) {
    const std::size_t end = std::min(text->find('\n', start), text->size());
    const auto line = std::string_view(*text).substr(start, end - start);
    start = end + 1;
    ++line_number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const auto parsed = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
    const auto has = [&](const char* key) {
      return parsed.is_object() && parsed.contains(key) && parsed[key].is_string();
    };
    if (!has("prompt") || !has("answer"))
      return error{errc::malformed,
                   fmt::format("{}:{}: expected a JSON object with the strings prompt and answer, "
                               "one a line; correct the line",
                               path.string(), line_number)};
    problems.push_back({parsed["prompt"].get<std::string>(), parsed["answer"].get<std::string>()});
    if (problems.back().prompt.empty())
      return error{errc::out_of_range,
                   fmt::format("{}:{}: `prompt` is empty; remove the line or give a text",
                               path.string(), line_number)};
  }
  if (problems.empty())
    return error{errc::malformed,
                 fmt::format("{}: has no problem, expected one JSON object a line", path.string())};
  return problems;
}

std::string answer_line(std::string_view text) {
  constexpr std::string_view white = " \t\r\n\v\f";
  const std::size_t first = text.find_first_not_of(white);
  if (first == std::string_view::npos) return {};
  text.remove_prefix(first);
  text = text.substr(0, text.find('\n'));
  constexpr std::string_view worked = "answer ";
  if (const std::size_t stated = text.rfind(worked); stated != std::string_view::npos)
    text.remove_prefix(
        std::min(text.size(), text.find_first_not_of(white, stated + worked.size())));
  return std::string(text.substr(0, text.find_last_not_of(white) + 1));
}

result<match_score> exact_match(std::span<const problem> problems, const answer_function& answer,
                                const evaluation_hooks& hooks) {
  match_score score;
  score.n_problems = problems.size();
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (stopping(hooks)) return stopped;
    auto text = answer(problems[i].prompt);
    if (!text) return at(fmt::format("problem {}", i), text.error());
    score.answers.push_back(answer_line(*text));
    if (score.answers.back() == answer_line(problems[i].answer)) ++score.n_right;
    report(hooks, i + 1, problems.size());
  }
  return score;
}

loss_function reference_losses(const transformer& model) {
  return [&model](std::span<const std::int32_t> ids) { return token_losses(model, ids); };
}

answer_function reference_answers(const transformer& model, const tokenizer& tokens,
                                  std::size_t max_new_tokens) {
  return [&model, &tokens, max_new_tokens](const std::string& prompt) -> result<std::string> {
    generation_options options;
    options.max_new_tokens = max_new_tokens;
    options.stop_strings = {"\n"};
    auto made = generate(model, &tokens, tokens.encode(prompt), options);
    if (!made) return made.error();
    return std::move(made->text);
  };
}

}  // namespace ordermoe::model
