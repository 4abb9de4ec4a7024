#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "actors/service/runtime.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "model/architecture/model_config.hpp"
#include "model/transformer.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/texts.hpp"

/// Runs on the emulation that only try: how fast a load is answered, and what a budget's rule loses
/// on texts.
namespace ordermoe::setup {

/// One teacher-forced request for each text of two tokens or more, of which the first prompt_tokens are a prompt, but the
/// last never.
std::vector<actors::request_spec> scoring_requests(const token_documents& documents,
                                                   std::size_t prompt_tokens = 1);

/// As much of the documents as one trial may execute, so that preparing a large model takes minutes
/// and not hours: trials compute every tensor. Small models have what they ask for. Documents get
/// shorter before they get fewer: what is measured on them is as sure as they are many.
token_documents affordable(const token_documents& documents, const model::model_config& shape);

/// Of a budget, what the bound of an increase may reach. What has used a budget up exceeds it on every other text, since texts of some ten thousand
/// tokens differ by a quarter of a budget of 1 % in what the same substitutions cost on them.
inline constexpr double aimed_share = 0.8;

/// What scoring texts says of a price.
struct trial_score {
  double increase = 0;        ///< Mean nats per token above those without substitution.
  double standard_error = 0;  ///< Of the increase, from its spread over the texts.
  double predicted = 0;       ///< Mean nats per position that the ledger counted.
  /// Where a plan prunes for everybody (scored_texts::beside): how much of the increase the rest makes, which is what ledgers count, and
  /// its standard error.
  std::optional<double> rest = {}, rest_error = {};
  static constexpr std::size_t many_texts = 16;
  std::size_t n_texts = many_texts;  ///< That the spread is of. Of one nothing is sure.
  /// What the increase stays below with 95 % confidence, or would if so many times these texts had the same. What seems to lose less than
  /// nothing is taken to lose nothing: nothing else makes a model better than it is, and on other texts that is not seen again.
  double bound(double times_as_many = 1) const {
    return std::max(0.0, increase) + unsure(standard_error) / std::sqrt(times_as_many);
  }
  /// What the ledger should have counted: what was measured where that is above nothing with 95 % confidence, since less may be
  /// chance; else what it did count, or where that is more than the bound, the bound.
  double to_count() const {
    const double counted = rest.value_or(increase);
    const double beside = unsure(rest_error.value_or(standard_error));
    if (counted > beside) return counted;
    return std::max(0.0, std::min(predicted, std::max(0.0, counted) + beside));
  }

 private:
  /// What 95 % of estimates with this standard error are not further below than: by Student's distribution for fewer than many_texts, else by
  /// the normal one, which is 6 % narrower there.
  double unsure(double error_of_mean) const {
    constexpr double students[] = {6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895,
                                   1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761};
    static_assert(std::size(students) == many_texts - 2);
    constexpr double normal = 1.645;
    if (n_texts < 2) return std::numeric_limits<double>::infinity();
    return error_of_mean * (n_texts < many_texts ? students[n_texts - 2] : normal);
  }
};

/// Texts, and their losses without substitution, which every exact run has.
class scored_texts {
 public:
  /// They come as often as puts as many tokens in flight as so many requests a second do that have 64 tokens each; 0, where no load is known: as usual_requests_per_s. Errors: those of
  /// model::token_losses; interrupted.
  static result<scored_texts> make(const actors::service_options& service,
                                   const token_documents& documents, const job& work,
                                   double requests_per_s = usual_requests_per_s);
  static constexpr double usual_requests_per_s = 4;

  /// The first half of the texts: for trials that need not be as sure.
  scored_texts half() const;
  /// The first quarter, on which what loses little may be sought, and the others, on which what was found so is judged: what is best on
  /// some texts is better on these than on others. Of fewer than 16 texts, all and all.
  std::pair<scored_texts, scored_texts> sought_and_judged() const;
  /// Scores the texts on a service. Errors: those of run_requests.
  result<trial_score> score(const actors::service_options& service, const job& work) const;
  /// Of the model without these experts: the same as score() of a plan that prunes them for everybody, as far as rounding
  /// goes, without servers. Errors: those of model::token_losses; interrupted.
  result<trial_score> score(const model::transformer& model, const planning::profile& profile,
                            const planning::pruned_experts& pruned, const job& work) const;
  /// The same texts for plans that prune these experts for everybody: scores say what of the increase the rest makes.
  /// Errors: those of the latter score().
  result<scored_texts> beside(const actors::service_options& service,
                              const planning::pruned_experts& pruned, const job& work) const;
  /// What pruning alone loses on them; 0 where nothing is pruned.
  trial_score pruned() const { return pruned_.empty() ? trial_score() : above(pruned_); }
  /// How far these losses, of the same texts, are above those without substitution.
  trial_score above(const std::vector<std::vector<double>>& losses) const;
  const std::vector<std::vector<double>>& exact() const { return exact_; }

 private:
  scored_texts part(std::size_t begin, std::size_t end) const;
  struct pruned_losses {
    std::vector<std::vector<double>> losses;  ///< [documents] of [tokens - 1]
    double predicted = 0;                     ///< As trial_score::predicted.
  };
  result<pruned_losses> losses_without(const model::transformer& model,
                                       const planning::profile& profile,
                                       const planning::pruned_experts& pruned,
                                       const job& work) const;
  /// How far losses are above others of the same texts.
  static trial_score difference(const std::vector<std::vector<double>>& losses,
                                const std::vector<std::vector<double>>& others);

  std::vector<actors::request_spec> requests_;
  std::vector<std::vector<double>> exact_;  ///< [documents] of [tokens - 1]
  std::vector<std::vector<double>>
      pruned_;  ///< Likewise, without the experts that are pruned; empty: none is.
};

/// How a trial load was answered.
struct trial_answers {
  double ms = 0;    ///< Mean latency of a request.
  double nats = 0;  ///< What a request's ledger counted, in the mean.
};

/// A load like the expected one, with the beginnings of texts as prompts, of 8 to 56 tokens. Errors: those of run_requests.
result<trial_answers> trial_load(const actors::service_options& service,
                                 const planning::strategy_options& options,
                                 const token_documents& documents, const job& work);

/// trial_answers::ms of it.
result<double> trial_load_ms(const actors::service_options& service,
                             const planning::strategy_options& options,
                             const token_documents& documents, const job& work);

}  // namespace ordermoe::setup
