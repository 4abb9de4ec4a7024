#include "setup/trials.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "model/architecture/routing.hpp"
#include "model/reference.hpp"
#include "setup/seeds.hpp"

namespace ordermoe::setup {

namespace {

using actors::request_spec;
using actors::run_setup;

/// Tokens that one trial may execute.
std::size_t affordable_tokens(const model::model_config& shape) {
  constexpr double most_flops = 2e11;
  const auto costs = model::own_costs(shape);
  const double of_layer =
      static_cast<double>(costs.attention_flops) +
      static_cast<double>(shape.top_k) * static_cast<double>(costs.expert_flops);
  return static_cast<std::size_t>(most_flops / (of_layer * static_cast<double>(shape.n_layers)));
}

run_setup trial_of(const actors::service_options& service, const job& work) {
  run_setup trial;
  static_cast<actors::service_options&>(trial) = service;
  trial.should_stop = work.stopping();
  return trial;
}

/// The requests of a trial load: the beginnings of texts, answered at a fixed length.
std::vector<request_spec> load_of(const token_documents& documents, std::size_t n_wanted,
                                  const model::model_config& shape) {
  // What is answered early in a text is not what is answered late (profile::position_damage).
  constexpr std::size_t prompt_tokens[] = {8, 24, 40, 56};
  constexpr std::size_t mean_prompt = 32, least_requests = 4;
  constexpr std::uint32_t new_tokens = 48;  // as many as comparisons ask for
  const auto most = std::max(least_requests, affordable_tokens(shape) / (mean_prompt + new_tokens));
  std::vector<request_spec> requests;
  for (std::size_t i = 0; i < std::min(n_wanted, most); ++i) {
    const auto& document = documents[i % documents.size()];
    const auto wanted = prompt_tokens[i % std::size(prompt_tokens)];
    const auto n =
        static_cast<std::ptrdiff_t>(std::min({wanted, document.size(), shape.max_context - 1}));
    request_spec spec;
    spec.prompt.assign(document.begin(), document.begin() + n);
    spec.max_new_tokens = new_tokens;
    spec.ignore_end_of_text = true;
    requests.push_back(std::move(spec));
  }
  return requests;
}

}  // namespace

std::vector<request_spec> scoring_requests(const token_documents& documents,
                                           std::size_t prompt_tokens) {
  std::vector<request_spec> requests;
  for (const auto& document : documents) {
    if (document.size() < 2) continue;
    request_spec spec;
    spec.prompt = document;
    spec.score = true;
    spec.scored_after = static_cast<std::uint32_t>(std::min(prompt_tokens, document.size() - 1));
    requests.push_back(std::move(spec));
  }
  return requests;
}

token_documents affordable(const token_documents& documents, const model::model_config& shape) {
  constexpr std::size_t enough_documents = 32, least_tokens = 8, least_documents = 4;
  const auto most_tokens = affordable_tokens(shape);
  std::size_t total = 0;
  for (const auto& document : documents) total += document.size();
  if (total <= most_tokens) return documents;
  const auto length =
      std::max(least_tokens, most_tokens / std::min(enough_documents, documents.size()));
  token_documents kept;
  std::size_t n = 0;
  for (const auto& document : documents) {
    if (n >= most_tokens && kept.size() >= least_documents) break;
    const auto end = std::min(length, document.size());
    kept.emplace_back(document.begin(), document.begin() + static_cast<std::ptrdiff_t>(end));
    n += end;
  }
  return kept;
}

result<scored_texts> scored_texts::make(const actors::service_options& service,
                                        const token_documents& documents, const job& work,
                                        double requests_per_s) {
  scored_texts made;
  made.requests_ = scoring_requests(documents);
  for (const auto& spec : made.requests_) {
    if (work.stopped()) return error{errc::interrupted, "interrupted; nothing was written"};
    auto losses = model::token_losses(*service.model, spec.prompt);
    if (!losses) return losses.error();
    made.exact_.push_back(std::move(*losses));
  }
  // A text has as many tokens as four requests of 64: where answers are shorter, more tokens are in flight than of the requests.
  constexpr double requests_of_text = 4;
  const auto rate = requests_per_s > 0 ? requests_per_s : usual_requests_per_s;
  draw_arrivals(made.requests_, service.servers, rate / requests_of_text,
                seed_of(service.seed, seed_stream::tuning_texts));
  return made;
}

scored_texts scored_texts::part(std::size_t begin, std::size_t end) const {
  scored_texts made;
  const auto first = static_cast<std::ptrdiff_t>(begin), last = static_cast<std::ptrdiff_t>(end);
  made.requests_.assign(requests_.begin() + first, requests_.begin() + last);
  made.exact_.assign(exact_.begin() + first, exact_.begin() + last);
  // The first comes at once, as of all.
  for (const auto from = made.requests_.empty() ? 0 : made.requests_.front().arrival_ns;
       auto& each : made.requests_)
    each.arrival_ns -= from;
  return made;
}

scored_texts scored_texts::half() const {
  return part(0, (requests_.size() + 1) / 2);
}

std::pair<scored_texts, scored_texts> scored_texts::sought_and_judged() const {
  constexpr std::size_t fewest = 16;
  const auto n = requests_.size();
  if (n < fewest) return {*this, *this};
  return {part(0, n / 4), part(n / 4, n)};
}

result<trial_score> scored_texts::score(const actors::service_options& service,
                                        const job& work) const {
  auto trial = trial_of(service, work);
  trial.requests = requests_;
  const auto outcome = run_requests(trial);
  if (!outcome) return outcome.error();
  std::vector<std::vector<double>> losses;
  double spent = 0, n = 0;
  for (const auto& answer : outcome->outcomes) {
    losses.push_back(answer.losses);
    spent += static_cast<double>(answer.spent) / planning::units_per_loss;
    n += static_cast<double>(answer.losses.size());
  }
  auto found = above(losses);
  found.predicted = spent / n;
  if (!pruned_.empty()) {
    const auto rest = difference(losses, pruned_);
    found.rest = rest.increase;
    found.rest_error = rest.standard_error;
  }
  return found;
}

result<scored_texts> scored_texts::beside(const actors::service_options& service,
                                          const planning::pruned_experts& pruned,
                                          const job& work) const {
  auto without = losses_without(*service.model, service.profile, pruned, work);
  if (!without) return without.error();
  auto made = *this;
  made.pruned_ = std::move(without->losses);
  return made;
}

result<scored_texts::pruned_losses> scored_texts::losses_without(
    const model::transformer& model, const planning::profile& profile,
    const planning::pruned_experts& pruned, const job& work) const {
  const auto rule = model.config().gates;
  double predicted = 0, n = 0;
  std::vector<double> probabilities;
  const auto choose = [&](layer_id layer, std::size_t position, std::span<const float> logits,
                          std::vector<model::executed_slot>& slots) {
    const auto& without = pruned.layers[layer.index()];
    if (without.empty()) return;
    std::vector<float> kept(logits.begin(), logits.end());
    for (const auto expert : without) kept[expert] = -INFINITY;
    const auto chosen = model::choose_experts(kept, slots.size(), rule);
    probabilities.resize(logits.size());
    model::softmax(logits, probabilities);
    // What one loses to the others is what the targets have more in the router's eyes.
    double regret = 0;
    for (std::size_t j = 0; j < slots.size(); ++j) {
      regret += probabilities[slots[j].expert.index()] - probabilities[chosen[j].expert.index()];
      slots[j] = {chosen[j].expert, chosen[j].gate};
    }
    constexpr auto metric = static_cast<std::size_t>(planning::loss_metric::token_gate);
    predicted += profile.layers[layer.index()].damage[metric] * regret *
                 at_position(profile.position_damage, position);
  };
  pruned_losses found;
  for (const auto& spec : requests_) {
    if (work.stopped()) return error{errc::interrupted, "interrupted; nothing was written"};
    auto of_text = model::token_losses(model, spec.prompt, choose);
    if (!of_text) return of_text.error();
    n += static_cast<double>(of_text->size());
    found.losses.push_back(std::move(*of_text));
  }
  found.predicted = predicted / n;
  return found;
}

result<trial_score> scored_texts::score(const model::transformer& model,
                                        const planning::profile& profile,
                                        const planning::pruned_experts& pruned,
                                        const job& work) const {
  const auto without = losses_without(model, profile, pruned, work);
  if (!without) return without.error();
  auto found = above(without->losses);
  found.predicted = without->predicted;
  return found;
}

trial_score scored_texts::above(const std::vector<std::vector<double>>& losses) const {
  return difference(losses, exact_);
}

trial_score scored_texts::difference(const std::vector<std::vector<double>>& losses,
                                     const std::vector<std::vector<double>>& others) {
  trial_score found;
  double n = 0;
  std::vector<double> of_text;
  for (std::size_t i = 0; i < others.size(); ++i) {
    double difference = 0;
    for (std::size_t t = 0; t < others[i].size(); ++t) difference += losses[i][t] - others[i][t];
    of_text.push_back(difference);
    found.increase += difference;
    n += static_cast<double>(others[i].size());
  }
  found.increase /= n;
  double square = 0;
  for (std::size_t i = 0; i < of_text.size(); ++i)
    square += std::pow(of_text[i] - found.increase * static_cast<double>(others[i].size()), 2);
  const auto texts = static_cast<double>(of_text.size());
  found.n_texts = of_text.size();
  if (texts > 1) found.standard_error = std::sqrt(square * texts / (texts - 1)) / n;
  return found;
}

result<trial_answers> trial_load(const actors::service_options& service,
                                 const planning::strategy_options& options,
                                 const token_documents& documents, const job& work) {
  auto trial = trial_of(service, work);
  trial.requests = load_of(documents, options.dry_run_requests, service.model->config());
  draw_arrivals(trial.requests, trial.servers, options.expected_rate,
                seed_of(service.seed, seed_stream::trial_load));
  const auto outcome = run_requests(trial);
  if (!outcome) return outcome.error();
  trial_answers sum;
  for (const auto& answer : outcome->outcomes) {
    sum.ms += static_cast<double>(answer.done_ns - answer.arrival_ns) * 1e-6;
    sum.nats += static_cast<double>(answer.spent) / units_per_loss;
  }
  const auto n = static_cast<double>(outcome->outcomes.size());
  return trial_answers{sum.ms / n, sum.nats / n};
}

result<double> trial_load_ms(const actors::service_options& service,
                             const planning::strategy_options& options,
                             const token_documents& documents, const job& work) {
  const auto answers = trial_load(service, options, documents, work);
  if (!answers) return answers.error();
  return answers->ms;
}

}  // namespace ordermoe::setup
