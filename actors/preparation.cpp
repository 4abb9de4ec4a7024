#include "actors/preparation.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "actors/experiment.hpp"
#include "model/reference.hpp"

namespace ordermoe::actors {

namespace {

using token_documents = std::vector<std::vector<std::int32_t>>;

constexpr double least_price = 1e5,
                 highest_price = 1e13;  // ns per nat: next to nothing, next to never

/// Tokens that one trial may execute, so that preparing a large model takes minutes and not hours:
/// trials compute every tensor. Small models have what they ask for.
std::size_t affordable_tokens(const model::model_config& shape) {
  constexpr double most_flops = 2e11;
  const auto costs = model::own_costs(shape);
  const double of_layer =
      static_cast<double>(costs.attention_flops) +
      static_cast<double>(shape.top_k) * static_cast<double>(costs.expert_flops);
  return static_cast<std::size_t>(most_flops / (of_layer * static_cast<double>(shape.n_layers)));
}

/// As much of the documents as may be executed. They get shorter before they get fewer: what is
/// measured on them is as sure as they are many.
token_documents affordable(const token_documents& documents, std::size_t most_tokens) {
  constexpr std::size_t enough_documents = 32, least_tokens = 8, least_documents = 4;
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

/// An emulated run without anything that only the real one wants.
run_setup trial_of(const run_setup& setup) {
  auto trial = setup;
  trial.mode = run_mode::emulated;
  trial.trace.clear();
  trial.on_progress = nullptr;
  trial.keep_final_hidden = false;
  return trial;
}

/// What scoring the calibration texts says of a price.
struct trial_score {
  double increase = 0;        ///< Mean nats per token above those without substitution.
  double standard_error = 0;  ///< Of the increase, from its spread over the texts.
  double predicted = 0;       ///< Mean nats per position that the ledger counted.
};

/// The calibration texts, and their losses without substitution, which every exact run has.
class calibration_texts {
 public:
  static result<calibration_texts> make(const run_setup& setup, const token_documents& documents) {
    calibration_texts made;
    made.requests_ = scoring_requests(documents);
    for (const auto& spec : made.requests_) {
      auto losses = model::token_losses(*setup.model, spec.prompt);
      if (!losses) return losses.error();
      made.exact_.push_back(std::move(*losses));
    }
    // As many tokens in flight as the trial load has.
    draw_arrivals(made.requests_, setup.servers, 1, setup.seed + 2);
    return made;
  }

  /// The first half of the texts: for trials that need not be as sure.
  calibration_texts half() const {
    calibration_texts made;
    const auto n = static_cast<std::ptrdiff_t>((requests_.size() + 1) / 2);
    made.requests_.assign(requests_.begin(), requests_.begin() + n);
    made.exact_.assign(exact_.begin(), exact_.begin() + n);
    return made;
  }

  result<trial_score> score(run_setup trial) const {
    trial.requests = requests_;
    const auto outcome = run_requests(trial);
    if (!outcome) return outcome.error();
    trial_score found;
    double n = 0;
    std::vector<double> of_text;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      const auto& answer = outcome->outcomes[i];
      double difference = 0;
      for (std::size_t t = 0; t < exact_[i].size(); ++t)
        difference += answer.losses[t] - exact_[i][t];
      of_text.push_back(difference);
      found.increase += difference;
      n += static_cast<double>(exact_[i].size());
      found.predicted += static_cast<double>(answer.spent) / planning::units_per_loss;
    }
    found.increase /= n;
    found.predicted /= n;
    double square = 0;
    for (std::size_t i = 0; i < of_text.size(); ++i)
      square += std::pow(of_text[i] - found.increase * static_cast<double>(exact_[i].size()), 2);
    const auto texts = static_cast<double>(of_text.size());
    if (texts > 1) found.standard_error = std::sqrt(square * texts / (texts - 1)) / n;
    return found;
  }

 private:
  std::vector<request_spec> requests_;
  std::vector<std::vector<double>> exact_;  ///< [documents] of [tokens - 1]
};

/// How long a search for a price may go on.
struct tuning_limits {
  int most_trials = 5;
  double tolerance = 0.1;  ///< Ends when at least 1 - tolerance of the budget is used.
};

/// Calibrates the budget of setup.chosen against execution with its ledger in force: finds the
/// lowest price of loss at which the texts' increase stays within the budget with 95 % confidence,
/// and multiplies the damage in setup.experts by what was measured over what was predicted. What
/// selection does without a ledger depends on price times damage alone, so that both are found in
/// one search: a secant search for that product on logarithmic scales, since the increase falls
/// about as a power of it.
result<void> calibrate_budget(run_setup& setup, const calibration_texts& texts,
                              tuning_limits limits) {
  struct point {
    double price, spend;  // logarithms
  };
  std::optional<point> over, within;
  const double nats = static_cast<double>(setup.chosen.token_budget) / planning::units_per_loss;
  const double target = std::log(nats);
  const auto metric = static_cast<std::size_t>(setup.chosen.policy.metric);
  const auto corrected = [&](double damage, double price) {
    auto trial = trial_of(setup);
    for (auto& layer : trial.experts.layers) {
      layer.damage[metric] *= damage;
      for (auto& copy : layer.copies) copy.damage *= damage;
    }
    trial.chosen.policy.price_ns_per_loss = std::exp(price) / damage;
    return trial;
  };
  double damage = 1, best_damage = 1, best_price = std::log(highest_price);
  double price =
      std::log(std::clamp(setup.chosen.policy.price_ns_per_loss, least_price, highest_price));
  for (int i = 0; i < limits.most_trials; ++i) {
    const auto found = texts.score(corrected(damage, price));
    if (!found) return found.error();
    constexpr double one_sided_95 = 1.645;
    const double bound = found->increase + one_sided_95 * found->standard_error;
    const point here{price, std::log(std::max(bound, 1e-3 * nats))};
    if (bound > nats) {
      if (!over || price > over->price) over = here;
    } else {
      if (!within || price < within->price) {
        within = here;
        best_price = price;
        best_damage = damage;
      }
      if (bound >= nats * (1 - limits.tolerance) || price <= std::log(least_price)) break;
    }
    if (found->increase > 0 && found->predicted > 0)
      damage *= std::clamp(found->increase / found->predicted, 0.25, 4.0);
    if (over && within) {
      const double width = within->price - over->price;
      const double share = (over->spend - target) / (over->spend - within->spend);
      price = over->price + width * std::clamp(share, 0.1, 0.9);
    } else {
      constexpr double elasticity = 0.7, longest = 4;  // of spend in price; steps of e^4 at most
      price +=
          std::clamp((here.spend - target) / elasticity + (over ? 0.1 : -0.1), -longest, longest);
      price = std::clamp(price, std::log(least_price), std::log(highest_price));
    }
  }
  auto best = corrected(best_damage, best_price);
  setup.experts = std::move(best.experts);
  setup.chosen.policy.price_ns_per_loss = best.chosen.policy.price_ns_per_loss;
  return {};
}

/// Mean latency of a load like the expected one, with calibration texts as prompts.
result<double> trial_load_ms(const run_setup& setup, const strategy_options& options,
                             const token_documents& documents) {
  auto trial = trial_of(setup);
  trial.requests.clear();
  constexpr std::size_t prompt_tokens = 32;
  constexpr std::uint32_t new_tokens = 32;
  constexpr std::size_t least_requests = 4;
  const auto most_requests = std::max(
      least_requests, affordable_tokens(setup.model->config()) / (prompt_tokens + new_tokens));
  for (std::size_t i = 0; i < std::min(options.dry_run_requests, most_requests); ++i) {
    const auto& document = documents[i % documents.size()];
    const auto n = static_cast<std::ptrdiff_t>(std::min(prompt_tokens, document.size()));
    request_spec spec;
    spec.number = i;
    spec.prompt.assign(document.begin(), document.begin() + n);
    spec.max_new_tokens = new_tokens;
    spec.ignore_end_of_text = true;
    trial.requests.push_back(std::move(spec));
  }
  draw_arrivals(trial.requests, trial.servers, options.expected_rate, setup.seed + 3);
  const auto outcome = run_requests(trial);
  if (!outcome) return outcome.error();
  double sum = 0;
  for (const auto& answer : outcome->outcomes)
    sum += static_cast<double>(answer.done_ns - answer.arrival_ns) * 1e-6;
  return sum / static_cast<double>(outcome->outcomes.size());
}

/// A variant made and tried.
struct tried_variant {
  run_setup setup;
  double latency_ms = std::numeric_limits<double>::infinity();
};

result<tried_variant> try_variant(const run_setup& setup, std::string_view name,
                                  const strategy_options& options, const calibration_texts* texts,
                                  const token_documents& documents) {
  tried_variant tried{setup};
  auto made = make_strategy(name, setup.experts, setup.servers, setup.costs, options);
  if (!made) return made.error();
  const double known_price = setup.chosen.policy.price_ns_per_loss;
  tried.setup.chosen = std::move(*made);
  tried.setup.chosen.policy.price_ns_per_loss = known_price;
  if (texts != nullptr)
    if (auto done = calibrate_budget(tried.setup, *texts, {}); !done) return done.error();
  const auto latency = trial_load_ms(tried.setup, options, documents);
  if (!latency) return latency.error();
  tried.latency_ms = *latency;
  return tried;
}

/// Tries every variant, two at a time where there are cores for it; the fastest one's plan, price
/// and damage stay in setup. The result does not depend on the threads. One variant without a
/// budget needs no trial.
result<void> choose_variant(run_setup& setup, std::string_view name,
                            const std::vector<strategy_options>& variants,
                            const calibration_texts* texts, const token_documents& documents) {
  if (variants.size() == 1 && texts == nullptr) {
    auto made = make_strategy(name, setup.experts, setup.servers, setup.costs, variants.front());
    if (!made) return made.error();
    setup.chosen = std::move(*made);
    return {};
  }
  std::vector<result<tried_variant>> tried(variants.size(), error{errc::failed, "not tried"});
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < variants.size(); i = next++)
      tried[i] = try_variant(setup, name, variants[i], texts, documents);
  };
  const auto n_threads =
      std::min<std::size_t>(variants.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < n_threads; ++i) threads.emplace_back(work);
  work();
  threads.clear();
  const tried_variant* best = nullptr;
  for (const auto& one : tried) {
    if (!one) {
      if (one.error().code == errc::infeasible) continue;
      return one.error();
    }
    if (best == nullptr || one->latency_ms < best->latency_ms) best = &*one;
  }
  if (best == nullptr) return tried.front().error();
  setup.chosen = best->setup.chosen;
  setup.experts = best->setup.experts;
  return {};
}

}  // namespace

result<void> prepare_strategy(run_setup& setup, std::string_view name,
                              const strategy_options& options,
                              const std::vector<std::vector<std::int32_t>>& documents) {
  setup.quality_percent = options.quality_percent;
  auto rough = options;
  constexpr std::size_t rough_steps = 2000;
  rough.search_steps = std::min(options.search_steps, rough_steps);
  auto made = make_strategy(name, setup.experts, setup.servers, setup.costs, rough);
  if (!made) return made.error();
  setup.chosen = std::move(*made);
  const auto budget = setup.chosen.token_budget;
  const bool priced = setup.chosen.tunes_price && budget > 0 && budget < planning::unbounded_budget;
  std::optional<calibration_texts> texts;
  if (priced) {
    auto read = calibration_texts::make(
        setup, affordable(documents, affordable_tokens(setup.model->config())));
    if (!read) return read.error();
    texts = std::move(*read);
    constexpr double usual_price = 1e9;  // ns per nat
    setup.chosen.policy.price_ns_per_loss = usual_price;
    constexpr tuning_limits roughly{4, 0.3};
    if (auto done = calibrate_budget(setup, texts->half(), roughly); !done) return done;
  }
  const auto variants =
      options.dry_run_requests == 0
          ? std::vector{options}
          : plan_variants(name, setup.experts, setup.servers, setup.costs, options);
  return choose_variant(setup, name, variants, texts ? &*texts : nullptr, documents);
}

}  // namespace ordermoe::actors
