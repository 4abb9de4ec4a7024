#pragma once

#include <cstddef>
#include <vector>

#include "actors/service/runtime.hpp"
#include "config/error.hpp"
#include "config/job.hpp"
#include "model/architecture/model_config.hpp"
#include "planning/strategies/strategies.hpp"
#include "setup/texts.hpp"

/// Runs on the emulation that only try: how fast a load is answered, and what a budget's rule loses
/// on texts.
namespace ordermoe::setup {

/// One teacher-forced request for each text of two tokens or more.
std::vector<actors::request_spec> scoring_requests(const token_documents& documents);

/// As much of the documents as one trial may execute, so that preparing a large model takes minutes
/// and not hours: trials compute every tensor. Small models have what they ask for. Documents get
/// shorter before they get fewer: what is measured on them is as sure as they are many.
token_documents affordable(const token_documents& documents, const model::model_config& shape);

/// What scoring texts says of a price.
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

/// Texts, and their losses without substitution, which every exact run has.
class scored_texts {
 public:
  /// Errors: those of model::token_losses; interrupted.
  static result<scored_texts> make(const actors::service_options& service,
                                   const token_documents& documents, const job& work);

  /// The first half of the texts: for trials that need not be as sure.
  scored_texts half() const;
  /// Scores the texts on a service. Errors: those of run_requests.
  result<trial_score> score(const actors::service_options& service, const job& work) const;
  /// How far these losses, of the same texts, are above those without substitution.
  trial_score above(const std::vector<std::vector<double>>& losses) const;
  const std::vector<std::vector<double>>& exact() const { return exact_; }

 private:
  std::vector<actors::request_spec> requests_;
  std::vector<std::vector<double>> exact_;  ///< [documents] of [tokens - 1]
};

/// Mean latency of a load like the expected one, with texts as prompts. Errors: those of
/// run_requests.
result<double> trial_load_ms(const actors::service_options& service,
                             const planning::strategy_options& options,
                             const token_documents& documents, const job& work);

}  // namespace ordermoe::setup
