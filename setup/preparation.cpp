#include "setup/preparation.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <optional>
#include <thread>

#include "bench/experiments/experiment.hpp"
#include "config/precision.hpp"
#include "model/reference.hpp"

namespace ordermoe::setup {

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

  /// What the increase stays below with 95 % confidence.
  double bound() const {
    constexpr double one_sided_95 = 1.645;
    return increase + one_sided_95 * standard_error;
  }
};

/// The calibration texts, and their losses without substitution, which every exact run has.
class calibration_texts {
 public:
  static result<calibration_texts> make(const run_setup& setup, const token_documents& documents) {
    calibration_texts made;
    made.requests_ = experiments::scoring_requests(documents);
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
    std::vector<std::vector<double>> losses;
    double spent = 0, n = 0;
    for (const auto& answer : outcome->outcomes) {
      losses.push_back(answer.losses);
      spent += static_cast<double>(answer.spent) / planning::units_per_loss;
      n += static_cast<double>(answer.losses.size());
    }
    auto found = above(losses);
    found.predicted = spent / n;
    return found;
  }

  /// How far these losses, of the same texts, are above those without substitution.
  trial_score above(const std::vector<std::vector<double>>& losses) const {
    trial_score found;
    double n = 0;
    std::vector<double> of_text;
    for (std::size_t i = 0; i < exact_.size(); ++i) {
      double difference = 0;
      for (std::size_t t = 0; t < exact_[i].size(); ++t) difference += losses[i][t] - exact_[i][t];
      of_text.push_back(difference);
      found.increase += difference;
      n += static_cast<double>(exact_[i].size());
    }
    found.increase /= n;
    double square = 0;
    for (std::size_t i = 0; i < of_text.size(); ++i)
      square += std::pow(of_text[i] - found.increase * static_cast<double>(exact_[i].size()), 2);
    const auto texts = static_cast<double>(of_text.size());
    if (texts > 1) found.standard_error = std::sqrt(square * texts / (texts - 1)) / n;
    return found;
  }

  const std::vector<std::vector<double>>& exact() const { return exact_; }

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
/// and multiplies the damage in setup.profile by what was measured over what was predicted. What
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
    for (auto& layer : trial.profile.layers) {
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
    const double bound = found->bound();
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
  setup.profile = std::move(best.profile);
  setup.chosen.policy.price_ns_per_loss = best.chosen.policy.price_ns_per_loss;
  return {};
}

/// Mean latency of a load like the expected one, with calibration texts as prompts.
result<double> trial_load_ms(const run_setup& setup, const planning::strategy_options& options,
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
                                  const planning::strategy_options& options,
                                  const calibration_texts* texts,
                                  const token_documents& documents) {
  tried_variant tried{setup};
  auto made = planning::make_strategy(name, setup.profile, setup.servers, setup.costs, options);
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
/// budget needs no trial. Returns the latency that the fastest one was tried with.
result<std::optional<double>> choose_variant(
    run_setup& setup, std::string_view name,
    const std::vector<planning::strategy_options>& variants, const calibration_texts* texts,
    const token_documents& documents) {
  if (variants.size() == 1 && texts == nullptr) {
    auto made =
        planning::make_strategy(name, setup.profile, setup.servers, setup.costs, variants.front());
    if (!made) return made.error();
    setup.chosen = std::move(*made);
    return std::optional<double>();
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
  setup.profile = best->setup.profile;
  return std::optional(best->latency_ms);
}

/// Makes setup.chosen for the model as setup has it. Returns the latency that it was tried with, if
/// it was.
result<std::optional<double>> prepare(run_setup& setup, std::string_view name,
                                      const planning::strategy_options& options,
                                      const token_documents& documents) {
  auto rough = options;
  constexpr std::size_t rough_steps = 2000;
  rough.search_steps = std::min(options.search_steps, rough_steps);
  auto made = planning::make_strategy(name, setup.profile, setup.servers, setup.costs, rough);
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
    if (auto done = calibrate_budget(setup, texts->half(), roughly); !done) return done.error();
  }
  const auto variants =
      options.dry_run_requests == 0
          ? std::vector{options}
          : planning::plan_variants(name, setup.profile, setup.servers, setup.costs, options);
  return choose_variant(setup, name, variants, texts ? &*texts : nullptr, documents);
}

/// Whether the whole model may be kept coarser, as a server may: there is a budget that this can
/// take something of, nobody says how a server keeps its experts, and the plan stays.
bool may_keep_whole_model_coarser(const run_setup& setup, std::string_view name,
                                  const planning::strategy_options& options) {
  const auto* record = planning::find_strategy(name);
  return options.choose_precision && record != nullptr && record->uses_coarser_copies &&
         options.quality_percent > 0 &&
         !options.plan && options.expert_precision.empty() && options.dry_run_requests > 0 &&
         setup.replans.empty() && setup.monitor.drift_margin <= 0 &&
         std::ranges::all_of(setup.servers.servers, [](const server_spec& server) {
           return server.expert_precision == precision::stored;
         });
}

/// The same run with every expert of the model kept so.
run_setup with_whole_model(const run_setup& setup, precision kept) {
  auto coarse = setup;
  coarse.model = setup.coarser.at(kept);
  coarse.costs = at_precision(setup.costs, kept);
  coarse.coarser.clear();
  return coarse;
}

/// Prepares the strategy on the model in each coarser precision with what its damage, measured on
/// the texts at 95 % confidence, leaves of the budget; `setup` becomes the fastest of these if that
/// is faster than `latency_ms`.
result<void> try_whole_models(run_setup& setup, const run_setup& before, double latency_ms,
                              std::string_view name, const planning::strategy_options& options,
                              const token_documents& documents) {
  const auto nats = planning::nats_of_percent(options.quality_percent);
  const auto read = affordable(documents, affordable_tokens(before.model->config()));
  const auto texts = calibration_texts::make(before, read);
  if (!texts) return texts.error();
  for (const auto& [kept, model] : before.coarser) {
    auto coarse = with_whole_model(before, kept);
    const auto of_coarse = calibration_texts::make(coarse, read);
    if (!of_coarse) return of_coarse.error();
    const double taken = std::max(0.0, texts->above(of_coarse->exact()).bound());
    if (taken >= nats) continue;
    auto rest = options;
    rest.choose_precision = false;
    rest.quality_percent = planning::percent_of_nats(nats - taken);
    const auto tried = prepare(coarse, name, rest, documents);
    if (!tried && tried.error().code == errc::infeasible) continue;
    if (!tried) return tried.error();
    if (!*tried || **tried >= latency_ms) continue;
    latency_ms = **tried;
    coarse.chosen.whole_model = kept;
    coarse.chosen.whole_model_nats = taken;
    setup = std::move(coarse);
  }
  return {};
}

}  // namespace

result<void> prepare_strategy(run_setup& setup, std::string_view name,
                              const planning::strategy_options& options,
                              const std::vector<std::vector<std::int32_t>>& documents) {
  setup.quality_percent = options.quality_percent;
  const bool tries_coarser = may_keep_whole_model_coarser(setup, name, options);
  const auto before = tries_coarser ? setup : run_setup{};
  const auto latency = prepare(setup, name, options, documents);
  if (!tries_coarser) return latency ? result<void>{} : latency.error();
  if (!latency && latency.error().code != errc::infeasible) return latency.error();
  // Where the model as stored fits nowhere, a coarser one may.
  const double to_beat = latency && *latency ? **latency : std::numeric_limits<double>::infinity();
  if (auto done = try_whole_models(setup, before, to_beat, name, options, documents); !done)
    return done;
  if (!latency && setup.chosen.whole_model == precision::stored) return latency.error();
  return {};
}

}  // namespace ordermoe::setup
